//! The script on a real server, compared with its reference in Rust: random trips of several processes, at times that
//! the test sets.

use std::collections::BTreeMap;

use super::super::{Arguments, Found, Kind, Operation, Outcome, PERMITS, PREFIX};
use super::reference::{Permits, Record};
use crate::tests::Random;
use crate::tests::scripted::{START, Scripted};

const LEASE: u64 = 1_000_000;

/// Makes a trip by the script and by its reference, and compares the replies and the records.
fn execute(
    script: &mut Scripted,
    value: &mut Permits,
    arguments: &Arguments,
    operations: &[Operation],
    now: u64,
) -> Outcome {
    let context = format!("{operations:?} of {arguments:?} at {now}, {value:?}");
    let expected = value.execute(arguments, operations, now);
    let Arguments { process, limit, lease, places, channel } = arguments;
    let operations = operations.iter().map(Operation::text).collect::<Vec<_>>().join(" ");
    let [limit, lease, places] = [limit, lease, places].map(u64::to_string);
    let words = [PREFIX, process, &limit, &lease, &places, channel, &operations];
    let outcome = Outcome::parse(script.execute(&words, now).as_bytes(), now).unwrap();
    if outcome.has_changed {
        assert_eq!(script.ttl(), value.ttl(), "{context}");
    }
    // The script may also count waiters that have left the queue.
    for (found, expected) in outcome.found.iter().zip(&expected.found) {
        match (found, expected) {
            (Found::Waits(most), Found::Waits(ahead)) => assert!(most >= ahead, "{context}: {outcome:?}"),
            _ => assert_eq!(found, expected, "{context}: {outcome:?}"),
        }
    }
    // The script also writes when it skips tickets of waiters that have left.
    assert!(outcome.has_changed || !expected.has_changed, "{context}");
    let without_places =
        |outcome: Outcome| Outcome { found: Vec::new(), has_changed: true, is_proof: true, ..outcome };
    assert_eq!(outcome.found.len(), expected.found.len(), "{context}");
    assert_eq!(without_places(outcome), without_places(expected.clone()), "{context}");
    assert_eq!(records(script.fields()), value.records, "{context}");
    expected
}

fn records(fields: BTreeMap<String, String>) -> BTreeMap<String, Record> {
    let places = fields.keys().filter(|name| name.starts_with('q')).count();
    let record = |(name, text): (&String, &String)| {
        let words: Vec<_> = text.split(' ').collect();
        let [units, ends, lease, mark] = [1, 2, 3, 4].map(|index: usize| words[index].parse().unwrap());
        let holds = words[0] == "h";
        let fence = if holds { mark } else { 0 };
        Some((name.strip_prefix('r')?.to_owned(), Record::new(holds, units, ends, lease, fence)))
    };
    let of_records = fields.iter().filter(|(name, _)| name.starts_with('r'));
    let records: BTreeMap<_, _> = of_records.filter_map(record).collect();
    let waiters = records.values().filter(|record| !record.holds).count();
    assert_eq!(places, waiters, "each waiter has a place");
    records
}

fn compare(trips: u64) {
    for limit in [1, 2, 5] {
        let (mut script, mut value) = (Scripted::start(PERMITS), Permits::default());
        let (random, mut now) = (&mut Random(0x9e37_79b9_7f4a_7c15), START);
        let (mut granted, mut waited, mut expired) = (0, 0, 0);
        for _ in 0..trips {
            now = match random.below(20) {
                0 => now + random.below(3 * LEASE),
                1 => now - random.below(100 * LEASE),
                _ => random.reading_after(now, LEASE, LEASE / 5),
            };
            let arguments = Arguments {
                process: format!("p{}", random.below(3)),
                // The processes of a rolling deployment may have another limit.
                limit: limit + u64::from(random.below(20) == 0),
                lease: LEASE << random.below(2),
                places: 6,
                channel: "test:".to_owned(),
            };
            let operation = |random: &mut Random| Operation {
                kind: [Kind::Leave, Kind::Leave, Kind::Keep, Kind::Queue, Kind::Queue, Kind::Try]
                    [random.below(6) as usize],
                number: random.below(6),
                units: 1 + random.below(limit + 1) / 2,
            };
            let mut operations: Vec<_> = (0..random.below(4)).map(|_| operation(random)).collect();
            // A record is in a trip at most once.
            operations.sort_by_key(|operation| operation.number);
            operations.dedup_by_key(|operation| operation.number);
            let (before, fence) = (value.records.len(), value.fence);
            let outcome = execute(&mut script, &mut value, &arguments, &operations, now);
            assert!(outcome.held <= limit + 1, "{outcome:?}");
            granted += u64::from(value.fence > fence);
            waited += outcome.found.iter().filter(|found| matches!(found, Found::Waits(_))).count() as u64;
            let left = operations.iter().filter(|operation| operation.kind == Kind::Leave).count();
            expired += u64::from(value.records.len() + left < before);
        }
        assert!(
            granted > trips / 20 && waited > trips / 20 && expired > trips / 200,
            "{limit}: {granted} {waited} {expired}"
        );
    }
}

#[test]
fn a_full_server_proves_nothing_by_a_trip_that_first_removes_a_record() {
    let mut script = Scripted::start(PERMITS);
    let trip = |script: &mut Scripted, operations: &str, now: u64| {
        let lease = LEASE.to_string();
        let words = [PREFIX, "p", "5", &lease, "6", "test:", operations];
        let outcome = Outcome::parse(script.execute(&words, now).as_bytes(), now).unwrap();
        (outcome.has_changed, outcome.is_proof)
    };
    assert_eq!(trip(&mut script, "t1:1 t2:1 t3:1", START), (true, true));
    assert_eq!(trip(&mut script, "k1:1", START), (true, true));
    assert_eq!(trip(&mut script, "", START), (false, false));
    script.fill();
    assert_eq!(trip(&mut script, "l1:0 k2:1 t4:1", START), (true, false), "it is full, and grants a permit");
    assert_eq!(trip(&mut script, "t5:1", START + 2 * LEASE), (true, false), "the other records have expired");
}

#[test]
fn the_script_makes_the_same_trips_as_the_reference() {
    compare(2_000);
}

#[test]
#[ignore = "takes minutes: .ci/nightly runs it"]
fn the_script_makes_the_same_100_000_trips_as_the_reference() {
    compare(100_000);
}
