//! The script on a real server, compared with its reference in Rust: random trips of several processes, at times that
//! the tests set.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::script::Packed;
use crate::tests::Random;
use crate::tests::redis_connection::Connection;
use crate::tests::redis_server::{RedisServer, Reply};
use tower_throttle::Quota;

const KEY: &str = "throttle:{a}:test";

/// The script on a server, and its reference.
struct Both {
    side: Connection,
    sha: String,
    value: Leased,
}

impl Leased {
    /// Returns the fields of the hash, in order.
    fn fields(&self) -> Vec<String> {
        let lease = |(name, (units, ends)): (&String, &(u64, u64))| [name.clone(), format!("{units} {ends}")];
        let mut fields: Vec<_> = self.leases.iter().flat_map(lease).collect();
        if let Some((prefix, Level { missing, last, leased }, first)) = &self.state {
            fields.extend(["s".to_owned(), format!("{prefix} {missing} {last} {leased} {first}")]);
        }
        fields
    }

    fn ttl(&self) -> u64 {
        self.ttl
    }
}

impl Both {
    fn new(server: &RedisServer) -> Self {
        let mut side = server.connect();
        static NOW: AtomicU64 = AtomicU64::new(0);
        let script = Script::of_hash(TimeSource::Passed(&NOW), LEASING);
        let sha = side.call(&["SCRIPT", "LOAD", script.text()]).text();
        Self { side, sha, value: Leased::default() }
    }

    /// Makes a trip, and compares the replies and the values. Returns the reply after the time.
    fn execute(&mut self, arguments: &[String], now: u64, trip: &str) -> String {
        let Self { side, sha, value } = self;
        let before = value.clone();
        let context = format!("{trip} at {now}, {arguments:?}, {before:?}");
        let found = value.execute(arguments, now).unwrap();
        let mut command: Vec<_> = ["EVALSHA", sha, "1", KEY].map(str::as_bytes).into();
        let mut time = Packed::default();
        time.number(now);
        command.extend(arguments.iter().map(String::as_bytes).chain([time.as_ref()]));
        let expected_reply = [b"D", time.as_ref(), found.as_bytes()].concat();
        assert_eq!(side.try_call(&command).unwrap(), Reply::Text(expected_reply), "{context}");
        let mut fields: Vec<String> = match side.call(&["HGETALL", KEY]) {
            Reply::List(fields) => fields.into_iter().map(|field| field.text()).collect(),
            other => panic!("{other:?}"),
        };
        let mut expected = value.fields();
        fields.sort_unstable();
        expected.sort_unstable();
        assert_eq!(fields, expected, "{context}");
        if *value != before {
            let ttl = side.call(&["GET", &format!("ttl:{KEY}")]).text();
            assert_eq!(ttl, value.ttl().to_string(), "{context}");
        }
        found
    }
}

/// Returns the arguments of a trip. The numbers are the units that are returned, refunded and wanted.
fn arguments(
    bucket: &Bucket,
    name: &str,
    [unspent, refund, want]: [u64; 3],
    costs: &[String],
) -> Vec<String> {
    let Bucket { micro, unit, full, period } = *bucket;
    let numbers = [micro, unit, full, period, LEASE, unspent, refund, want].map(|number| number.to_string());
    let names = ["1 t:test".to_owned(), name.to_owned()];
    names.into_iter().chain(numbers).chain([costs.join(" ")]).collect()
}

fn compare(quota: Quota, trips: u64) {
    let bucket = Bucket::new(&TokenBucket::new(quota)).unwrap();
    let (burst, period) = (bucket.burst(), bucket.period.max(1));
    let server = RedisServer::start();
    let mut both = Both::new(&server);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut now = 1_700_000_000_000_000;
    let (mut leased, mut expired) = (0, 0);
    for trip in 0..trips {
        now = match random.below(20) {
            0 => now - random.below(period),
            1 => now - period - random.below(2 * period),
            2 => now + random.below(2 * LEASE),
            3 => now - LEASE - random.below(2 * LEASE),
            4..8 => now,
            _ => now + random.below(8 * period / quota.limit().min(period) + 2),
        };
        let of_burst = |random: &mut Random| {
            let most = burst >> random.below(8);
            random.below(most + 1)
        };
        let costs: Vec<_> = (0..random.below(4)).map(|_| of_burst(&mut random).to_string()).collect();
        let refund = if random.below(10) == 0 { of_burst(&mut random) } else { 0 };
        let (unspent, want) = (random.below(12), random.below(12));
        let name = format!("lease.{}", random.below(5));
        let arguments = arguments(&bucket, &name, [unspent, refund, want], &costs);
        let reply = both.execute(&arguments, now, &format!("trip {trip}"));
        leased += u64::from(both.value.fields().len() > 2);
        expired += u64::from(!reply.ends_with(" 0"));
    }
    assert!(leased > trips / 10 && expired > 20, "{leased} {expired}");
}

#[test]
fn an_abandoned_lease_expires_after_the_clock_was_set_back() {
    let bucket = Bucket::new(&TokenBucket::new("10/s burst 20".parse::<Quota>().unwrap())).unwrap();
    let server = RedisServer::start();
    let mut both = Both::new(&server);
    let start = 1_700_000_000_000_000;
    for (process, delay) in [(0, 0), (1, 1_000)] {
        let ask = arguments(&bucket, &format!("lease.{process}"), [0, 0, 4], &[]);
        both.execute(&ask, start + delay, "lease");
    }
    let look = arguments(&bucket, "lease.2", [0; 3], &["0".to_owned()]);
    let now = start - 3_600_000_000;
    let reply = both.execute(&look, now, "the clock was set back");
    assert!(reply.ends_with(" 8 0 0"), "the units are leased: {reply}");
    let reply = both.execute(&look, now + LEASE - 1, "before the end");
    assert!(reply.ends_with(" 8 0 0"), "the units are leased: {reply}");
    let reply = both.execute(&look, now + LEASE, "the end");
    assert!(reply.ends_with(" 8 0 8"), "the leases have expired: {reply}");
    let reply = both.execute(&look, now + 2 * LEASE, "later");
    assert!(reply.ends_with(" 0 0 0"), "{reply}");
}

#[test]
fn the_script_makes_the_same_trips_as_the_reference() {
    for text in
        ["10/s", "1000/s burst 200", "7/min burst 40", "1000000/s", "3/7ns burst 50", "104249 per day"]
    {
        compare(text.parse().unwrap(), 2_000);
    }
}

#[test]
#[ignore = "takes minutes: .ci/nightly runs it"]
fn the_script_makes_the_same_100_000_trips_as_the_reference() {
    for text in
        ["10/s", "1000/s burst 200", "7/min burst 40", "1000000/s", "3/7ns burst 50", "104249 per day"]
    {
        compare(text.parse().unwrap(), 100_000);
    }
}
