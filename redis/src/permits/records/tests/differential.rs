//! The script on a real server, compared with its reference in Rust: random trips of several processes, at times that
//! the test sets.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use super::super::{Arguments, Found, Kind, Operation, Outcome, PERMITS, PREFIX, Script, TimeSource};
use super::reference::{Permits, Record};
use crate::script::Packed;
use crate::tests::Random;
use crate::tests::redis_connection::Connection;
use crate::tests::redis_server::{RedisServer, Reply};

const KEY: &str = "throttle:{a}:test";
const LEASE: u64 = 1_000_000;

/// The script on a server, and its reference.
struct Both {
    side: Connection,
    sha: String,
    value: Permits,
}

impl Both {
    fn new(server: &RedisServer) -> Self {
        let mut side = server.connect();
        static NOW: AtomicU64 = AtomicU64::new(0);
        let script = Script::of_hash(TimeSource::Passed(&NOW), PERMITS);
        let sha = side.call(&["SCRIPT", "LOAD", script.text()]).text();
        Self { side, sha, value: Permits::default() }
    }

    /// Makes a trip, and compares the replies and the records.
    fn execute(&mut self, arguments: &Arguments, operations: &[Operation], now: u64) -> Outcome {
        let context = format!("{operations:?} of {arguments:?} at {now}, {:?}", self.value);
        let expected = self.value.execute(arguments, operations, now);
        let Arguments { process, limit, lease, places, channel } = arguments;
        let operations: Vec<_> = operations.iter().map(Operation::text).collect();
        let words = [PREFIX, process, &limit.to_string(), &lease.to_string(), &places.to_string(), channel];
        let (operations, mut time) = (operations.join(" "), Packed::default());
        time.number(now);
        let mut command: Vec<_> = ["EVALSHA", &self.sha, "1", KEY].map(str::as_bytes).into();
        command
            .extend(words.into_iter().chain([operations.as_str()]).map(str::as_bytes).chain([time.as_ref()]));
        let Reply::Text(reply) = self.side.try_call(&command).unwrap() else { panic!("no reply: {context}") };
        let outcome = Outcome::parse(&reply[9..], now).unwrap();
        if outcome.has_changed {
            let ttl = self.side.call(&["GET", &format!("ttl:{KEY}")]).text();
            assert_eq!(ttl, self.value.ttl().to_string(), "{context}");
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
        let without_places = |outcome: Outcome| Outcome { found: Vec::new(), has_changed: true, ..outcome };
        assert_eq!(outcome.found.len(), expected.found.len(), "{context}");
        assert_eq!(without_places(outcome), without_places(expected.clone()), "{context}");
        assert_eq!(self.records(), self.value.records, "{context}");
        expected
    }

    fn records(&mut self) -> BTreeMap<String, Record> {
        let fields = match self.side.call(&["HGETALL", KEY]) {
            Reply::List(fields) => fields.into_iter().map(Reply::text).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let (mut records, mut waiters, mut places) = (BTreeMap::new(), 0, 0);
        for pair in fields.chunks(2) {
            places += usize::from(pair[0].starts_with('q'));
            let Some(name) = pair[0].strip_prefix('r') else { continue };
            let words: Vec<_> = pair[1].split(' ').collect();
            let [units, ends, lease, mark] = [1, 2, 3, 4].map(|index: usize| words[index].parse().unwrap());
            let holds = words[0] == "h";
            waiters += usize::from(!holds);
            let fence = if holds { mark } else { 0 };
            records.insert(name.to_owned(), Record::new(holds, units, ends, lease, fence));
        }
        assert_eq!(places, waiters, "each waiter has a place");
        records
    }
}

fn compare(limit: u64, trips: u64) {
    let server = RedisServer::start();
    let mut both = Both::new(&server);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut now = 1_700_000_000_000_000;
    let (mut granted, mut waited, mut expired) = (0, 0, 0);
    for _ in 0..trips {
        now = match random.below(40) {
            0 => now - random.below(LEASE),
            1 => now - 2 * LEASE - random.below(100 * LEASE),
            2 => now + random.below(3 * LEASE),
            3..10 => now,
            _ => now + random.below(LEASE / 20),
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
        let count = random.below(4);
        let mut operations: Vec<_> = (0..count).map(|_| operation(&mut random)).collect();
        // A record is in a trip at most once.
        operations.sort_by_key(|operation| operation.number);
        operations.dedup_by_key(|operation| operation.number);
        let (before, fence) = (both.value.records.len(), both.value.fence);
        let outcome = both.execute(&arguments, &operations, now);
        assert!(outcome.held <= limit + 1, "{outcome:?}");
        granted += u64::from(both.value.fence > fence);
        waited += outcome.found.iter().filter(|found| matches!(found, Found::Waits(_))).count() as u64;
        let left = operations.iter().filter(|operation| operation.kind == Kind::Leave).count();
        expired += u64::from(both.value.records.len() + left < before);
    }
    assert!(
        granted > trips / 20 && waited > trips / 20 && expired > trips / 200,
        "{granted} {waited} {expired}"
    );
}

#[test]
fn the_script_makes_the_same_trips_as_the_reference() {
    for limit in [1, 2, 5] {
        compare(limit, 2_000);
    }
}

#[test]
#[ignore = "takes minutes: .ci/nightly runs it"]
fn the_script_makes_the_same_100_000_trips_as_the_reference() {
    for limit in [1, 2, 5] {
        compare(limit, 100_000);
    }
}
