//! The script on a real server, compared with its reference in Rust: random trips of several processes, at times that
//! the tests set.

use super::Random;
use crate::algorithm::TokenBucket;
use crate::quota::Quota;
use crate::store::redis::lease::bucket::{Bucket, LEASE};
use crate::store::redis::lease::reference::{Leased, execute};
use crate::store::redis::lease::script::script;
use crate::store::redis::scripts::TimeSource;
use crate::store::redis::tests::redis_server::{RedisServer, Reply};

const KEY: &str = "throttle:{a}:test";

fn compare(quota: Quota, trips: u64) {
    let bucket = Bucket::new(&TokenBucket::new(quota)).unwrap();
    let (burst, period) = (bucket.burst(), bucket.period.max(1));
    let server = RedisServer::start();
    let mut side = server.connect();
    let sha = side.call(&["SCRIPT", "LOAD", script(TimeSource::Passed).text()]).text();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut value, mut now) = (Leased::default(), 1_700_000_000_000_000);
    let (mut leased, mut expired) = (0, 0);
    for trip in 0..trips {
        now = match random.below(20) {
            0 => now - random.below(period),
            1 => now - period - random.below(2 * period),
            2 => now + random.below(2 * LEASE),
            3..8 => now,
            _ => now + random.below(8 * period / quota.limit().min(period) + 2),
        };
        let of_burst = |random: &mut Random| {
            let most = burst >> random.below(8);
            random.below(most + 1)
        };
        let costs: Vec<_> = (0..random.below(4)).map(|_| of_burst(&mut random).to_string()).collect();
        let refund = if random.below(10) == 0 { of_burst(&mut random) } else { 0 };
        let Bucket { micro, unit, full, period } = bucket;
        let (unspent, want) = (random.below(12), random.below(12));
        let numbers =
            [micro, unit, full, period, LEASE, unspent, refund, want].map(|number| number.to_string());
        let mut arguments = vec!["1 t:test".to_owned(), format!("lease.{}", random.below(5))];
        arguments.extend(numbers.into_iter().chain([costs.join(" ")]));

        let before = value.clone();
        let expected = execute(&mut value, &arguments, now).unwrap();
        let time = now.to_string();
        let mut command = vec!["EVALSHA", &sha, "1", KEY];
        command.extend(arguments.iter().map(String::as_str).chain([time.as_str()]));
        let got = side.call(&command);
        let expected_reply = format!("D{} {} {expected}", now / 1_000_000, now % 1_000_000);
        assert_eq!(
            got,
            Reply::Text(expected_reply.clone().into()),
            "trip {trip} at {now}, {arguments:?}, {before:?}"
        );
        let fields = match side.call(&["HGETALL", KEY]) {
            Reply::List(fields) => fields.into_iter().map(|field| field.text()).collect(),
            other => panic!("{other:?}"),
        };
        let mut fields: Vec<String> = fields;
        let mut expected = value.fields();
        fields.sort_unstable();
        expected.sort_unstable();
        assert_eq!(fields, expected, "trip {trip} at {now}, {arguments:?}, {before:?}");
        if value != before {
            let ttl = side.call(&["GET", &format!("ttl:{KEY}")]).text();
            assert_eq!(ttl, value.ttl().to_string(), "trip {trip} at {now}, {arguments:?}, {before:?}");
        }
        leased += u64::from(value.fields().len() > 2);
        expired += u64::from(!expected_reply.ends_with(" 0"));
    }
    assert!(leased > trips / 10 && expired > 20, "{leased} {expired}");
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
