//! The time of a check, in nanoseconds. Each check depends on the result of the previous one, so that they do not
//! overlap in the processor.

use std::hint::black_box;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::clock;
use crate::{Contestant, Group, Options, Row, Run, print_head};

/// How a limiter is called.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    keys: usize,
    max_keys: usize,
    threads: usize,
    /// The number of checks of a thread in a batch. A batch of many keys is long, so that few of its keys are in the
    /// cache of the processor.
    calls: usize,
    rounds: usize,
}

const FULL: &str = "full table";
const ONE: Case = Case { name: "1 key", keys: 1, max_keys: 2, threads: 1, calls: 500, rounds: 2_000 };
const MANY: Case =
    Case { name: "100000 keys", keys: 100_000, max_keys: 200_000, threads: 1, calls: 100_000, rounds: 40 };

const CASES: [Case; 5] = [
    ONE,
    MANY,
    Case { name: "1000000 keys", keys: 1_000_000, max_keys: 2_000_000, ..MANY },
    // Each key was evicted before its turn.
    Case { name: FULL, keys: 300_000, max_keys: 100_000, ..MANY },
    Case { name: "two threads, 1 key", threads: 2, calls: 100_000, rounds: 40, ..ONE },
];

/// A burst that is never used up.
const PLENTY: u32 = 3_500_000_000;

/// Returns the rows of a revision: the name of each, and what makes its checks of a case.
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
                ($name, |case| {
                    let builder = RateLimiter::builder($algorithm).clock($clock);
                    let limiter = builder.max_keys(case.max_keys).build();
                    let keys = keys(case.keys);
                    for key in &keys {
                        assert!(limiter.check_n(key, $first).is_allowed());
                    }
                    run_of(case, keys, move |key| limiter.check(key).is_allowed())
                })
            };
        }
        const fn deep_bucket() -> TokenBucket {
            TokenBucket::new(Quota::per_minute(70).burst(PLENTY as u64))
        }
        let rows: [(&str, fn(Case) -> Run); 6] = [
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
    for case in CASES {
        for ((algorithm, base), (_, change)) in rows!(base).into_iter().zip(rows!(change)) {
            let name = format!("{algorithm}, {}", case.name);
            // The calls of one key would use up the limit of a window.
            // In a full table, the keys with large counts would never be evicted.
            let is_measured = match case.name {
                FULL => !algorithm.ends_with("large"),
                _ => case.keys > 1 || algorithm.starts_with("TokenBucket"),
            };
            if !is_measured || !options.want(title, &name) {
                continue;
            }
            if mem::take(&mut is_first) {
                print_head(title);
            }
            let [base, change] = [base, change].map(|run| Contestant::new(&name, run(case)));
            let peers = vec![Contestant::new("governor", governor(case))];
            Group { plain: None, peers, rows: vec![Row { base, change, peer: 0 }] }
                .run(options.rounds.unwrap_or(case.rounds), case.calls);
        }
    }
}

/// The table of governor is not bounded, so it has all keys.
fn governor(case: Case) -> Run {
    let number = |number| NonZeroU32::new(number).expect("it is not 0");
    let quota = governor::Quota::per_minute(number(70)).allow_burst(number(PLENTY));
    let limiter = governor::DefaultKeyedRateLimiter::keyed(quota);
    let keys = keys(case.keys);
    for key in &keys {
        assert!(limiter.check_key(key).is_ok());
    }
    run_of(case, keys, move |key| limiter.check_key(key).is_ok())
}

/// Returns distinct addresses, in no particular order.
fn keys(count: usize) -> Vec<IpAddr> {
    // An odd factor makes this a permutation of all addresses.
    let address = |n: usize| Ipv4Addr::from_bits((n as u32).wrapping_mul(2_654_435_761).rotate_left(16));
    (0..count).map(|n| address(n).into()).collect()
}

/// Checks the keys in turn. A batch begins behind the last key of the previous one.
fn run_of(case: Case, keys: Vec<IpAddr>, check: impl Fn(&IpAddr) -> bool + Sync + 'static) -> Run {
    let mut first = 0;
    Box::new(move || {
        let visit = || {
            let (mut at, mut carried) = (first, 0);
            let started = Instant::now();
            for _ in 0..case.calls {
                let is_allowed = check(&keys[at + carried]);
                // This is always 0. But the compiler does not know that, and the processor waits for the result.
                carried = black_box(usize::from(is_allowed)) >> 1;
                at = if at + 1 < keys.len() { at + 1 } else { 0 };
            }
            (started.elapsed(), at)
        };
        let (took, at) = if case.threads == 1 {
            visit()
        } else {
            let ready = Barrier::new(case.threads);
            let visit_on = &|core| {
                core_affinity::set_for_current(core);
                ready.wait();
                visit()
            };
            let cores = core_affinity::get_core_ids().unwrap_or_default();
            assert!(cores.len() >= case.threads, "each thread needs a core of its own");
            thread::scope(|scope| {
                let cores = cores.into_iter().take(case.threads);
                let threads: Vec<_> = cores.map(|core| scope.spawn(move || visit_on(core))).collect();
                let visits = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
                visits.max().expect("there are threads")
            })
        };
        first = at;
        took
    })
}
