//! The time of a check, in nanoseconds. Each check depends on the result of the previous one, so that they do not
//! overlap in the processor.

use std::hint::black_box;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::Instant;

use crate::clock;
use crate::{Contestant, Group, Options, Row, Run, print_head};

/// The numbers of keys.
const COUNTS: [usize; 3] = [1, 100_000, 1_000_000];
/// The number of checks in a batch, and of rounds, of one key and of many keys. A batch of many keys is long, so that
/// few of its keys are in the cache of the processor.
const ONE: (usize, usize) = (500, 2_000);
const MANY: (usize, usize) = (100_000, 40);

/// A burst that is never used up.
const PLENTY: u32 = 3_500_000_000;

/// Returns the rows of a revision: the name of each, and what makes its checks of a number of keys.
macro_rules! rows {
    ($revision:ident) => {{
        use $revision::algorithm::{FixedWindow, SlidingCounter, SlidingWindow, TokenBucket};
        use $revision::clock::AnyClock;
        use $revision::{Quota, RateLimiter};

        macro_rules! row {
            // `first` is the cost of the first call of each key.
            ($name:literal, $algorithm:expr, $first:expr) => {
                row!($name, $algorithm, $first, AnyClock::default())
            };
            ($name:literal, $algorithm:expr, $first:expr, $clock:expr) => {
                ($name, |count| {
                    let limiter = RateLimiter::builder($algorithm).clock($clock).max_keys(2 * count).build();
                    let keys = keys(count);
                    for key in &keys {
                        assert!(limiter.check_n(key, $first).is_allowed());
                    }
                    run_of(keys, move |key| limiter.check(key).is_allowed())
                })
            };
        }
        const fn deep_bucket() -> TokenBucket {
            TokenBucket::new(Quota::per_minute(70).burst(PLENTY as u64))
        }
        let rows: [(&str, fn(usize) -> Run); 6] = [
            row!("TokenBucket", deep_bucket(), 1),
            row!("TokenBucket, counter", deep_bucket(), 1, clock::$revision::Counter::new()),
            row!("FixedWindow", FixedWindow::new(Quota::per_hour(60_000)), 1),
            row!("SlidingCounter", SlidingCounter::new(Quota::per_hour(60_000)), 1),
            row!("SlidingWindow", SlidingWindow::new(Quota::per_hour(60_000)), 1),
            row!("SlidingWindow, large", SlidingWindow::new(Quota::per_day(1_000_000)), 70_000),
        ];
        rows
    }};
}

pub fn run(options: &Options) {
    let title = "check: ns";
    let mut is_first = true;
    for count in COUNTS {
        for ((algorithm, base), (_, change)) in rows!(base).into_iter().zip(rows!(change)) {
            let name = format!("{algorithm}, {count} keys");
            // The calls of one key would use up the limit of a window.
            let is_measured = count > 1 || algorithm.starts_with("TokenBucket");
            if !is_measured || !options.want(title, &name) {
                continue;
            }
            if mem::take(&mut is_first) {
                print_head(title);
            }
            let [base, change] = [base, change].map(|run| Contestant::new(&name, run(count)));
            let peers = vec![Contestant::new("governor", governor(count))];
            let (calls, rounds) = if count == 1 { ONE } else { MANY };
            Group { plain: None, peers, rows: vec![Row { base, change, peer: 0 }] }
                .run(options.rounds.unwrap_or(rounds), calls);
        }
    }
}

fn governor(count: usize) -> Run {
    let number = |number| NonZeroU32::new(number).expect("it is not 0");
    let quota = governor::Quota::per_minute(number(70)).allow_burst(number(PLENTY));
    let limiter = governor::DefaultKeyedRateLimiter::keyed(quota);
    let keys = keys(count);
    for key in &keys {
        assert!(limiter.check_key(key).is_ok());
    }
    run_of(keys, move |key| limiter.check_key(key).is_ok())
}

/// Returns distinct addresses, in no particular order.
fn keys(count: usize) -> Vec<IpAddr> {
    // An odd factor makes this a permutation of all addresses.
    let address = |n: usize| Ipv4Addr::from_bits((n as u32).wrapping_mul(2_654_435_761).rotate_left(16));
    (0..count).map(|n| address(n).into()).collect()
}

/// Checks the keys in turn. A batch begins behind the last key of the previous one.
fn run_of(keys: Vec<IpAddr>, check: impl Fn(&IpAddr) -> bool + 'static) -> Run {
    let calls = if keys.len() == 1 { ONE.0 } else { MANY.0 };
    let mut at = 0;
    Box::new(move || {
        let mut carried = 0;
        let started = Instant::now();
        for _ in 0..calls {
            let is_allowed = check(&keys[at + carried]);
            // This is always 0. But the compiler does not know that, and the processor waits for the result.
            carried = black_box(usize::from(is_allowed)) >> 1;
            at = if at + 1 < keys.len() { at + 1 } else { 0 };
        }
        started.elapsed()
    })
}
