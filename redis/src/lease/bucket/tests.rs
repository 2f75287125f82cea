//! The script on a real server, compared with its reference in Rust: random trips of several processes, at times that
//! the tests set.

use super::*;
use crate::tests::Random;
use crate::tests::scripted::{START, Scripted};
use tower_throttle::Quota;

/// The script on a server, and its reference.
struct Both {
    bucket: Bucket,
    script: Scripted,
    value: Leased,
}

impl Leased {
    fn fields(&self) -> BTreeMap<String, String> {
        let leases =
            self.leases.iter().map(|(name, (units, ends))| (name.clone(), format!("{units} {ends}")));
        let state = self.state.iter().map(|(prefix, Level { missing, last, leased }, first)| {
            ("s".to_owned(), format!("{prefix} {missing} {last} {leased} {first}"))
        });
        leases.chain(state).collect()
    }
}

impl Both {
    fn new(quota: Quota) -> Self {
        let bucket = Bucket::new(&TokenBucket::new(quota)).unwrap();
        Self { bucket, script: Scripted::start(LEASING), value: Leased::default() }
    }

    /// Makes a trip of a process, and compares the replies and the values. The numbers are the units that are returned
    /// and refunded, the grains that are undone, the time at which the latter were charged, and the units that are
    /// wanted. Returns the reply.
    fn trip(&mut self, process: u64, numbers: [u64; 5], costs: &[u64], now: u64) -> String {
        let Bucket { micro, unit, full, period } = self.bucket;
        let numbers = [&[micro, unit, full, period, LEASE], &numbers[..]].concat();
        let texts = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
        let names = vec!["1 t:test".to_owned(), format!("lease.{process}")];
        let arguments = [names, texts(&numbers), vec![texts(costs).join(" ")]].concat();
        let before = self.value.clone();
        let context = format!("{arguments:?} at {now}, {before:?}");
        let expected = self.value.execute(&arguments, now).unwrap();
        let reply = self.script.execute(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), now);
        assert_eq!((&reply, self.script.fields()), (&expected, self.value.fields()), "{context}");
        if self.value != before {
            assert_eq!(self.script.ttl(), self.value.ttl, "{context}");
        }
        reply
    }
}

fn compare(trips: u64) {
    for text in
        ["10/s", "1000/s burst 200", "7/min burst 40", "1000000/s", "3/7ns burst 50", "104249 per day"]
    {
        let quota: Quota = text.parse().unwrap();
        let mut both = Both::new(quota);
        let (burst, period) = (both.bucket.burst(), both.bucket.period.max(1));
        let (random, mut now) = (&mut Random(0x9e37_79b9_7f4a_7c15), START);
        let (mut leased, mut expired) = (0, 0);
        for _ in 0..trips {
            now = match random.below(20) {
                0 => now + random.below(2 * LEASE),
                1 => now - LEASE - random.below(2 * LEASE),
                _ => random.reading_after(now, period, 8 * period / quota.limit().min(period) + 2),
            };
            let units = |random: &mut Random| {
                let most = burst >> random.below(8);
                random.below(most + 1)
            };
            let costs: Vec<_> = (0..random.below(4)).map(|_| units(random)).collect();
            let refund = if random.below(10) == 0 { units(random) } else { 0 };
            let undo = if random.below(10) == 0 { units(random) * both.bucket.unit } else { 0 };
            let undo = undo.saturating_sub(random.below(both.bucket.unit));
            let charged = match random.below(8) {
                0 => now + random.scaled_below(period),
                _ => now - random.scaled_below(period),
            };
            let numbers = [random.below(12), refund, undo, charged, random.below(12)];
            let reply = both.trip(random.below(5), numbers, &costs, now);
            leased += u64::from(both.value.leases.len() > 1);
            expired += u64::from(!reply.ends_with(" 0"));
        }
        assert!(leased > trips / 10 && expired > 20, "{text}: {leased} {expired}");
    }
}

#[test]
fn an_abandoned_lease_expires_after_the_clock_was_set_back() {
    let mut both = Both::new("10/s burst 20".parse().unwrap());
    for process in [0, 1] {
        both.trip(process, [0, 0, 0, 0, 4], &[], START + 1_000 * process);
    }
    let now = START - 3_600_000_000;
    for (later, end, what) in [
        (0, " 8 0 0", "the clock was set back, and the units are leased"),
        (LEASE - 1, " 8 0 0", "before the end, the units are leased"),
        (LEASE, " 8 0 8", "the leases have expired"),
        (2 * LEASE, " 0 0 0", "later"),
    ] {
        let reply = both.trip(2, [0; 5], &[0], now + later);
        assert!(reply.ends_with(end), "{what}: {reply}");
    }
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
