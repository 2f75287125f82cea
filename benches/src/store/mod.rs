//! Measurements of the store in memory: `check`, compared with governor's `check_key`, with a map of plain states, and
//! with a bare table. `benches/README.md` describes the method.

mod parts;
mod peers;
mod report;
mod tables;

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket,
};
use tower_throttle::{Quota, RateLimiter};

use self::parts::parts;
pub use self::parts::{cancellations, waits};
use self::peers::{Bare, Map, fast_governor};
use self::report::Report;
use self::tables::{bytes, first_seen, replace};
use crate::check::{FEW, PLENTY, Quotas, Subject, governor, keys};
use crate::interleave::{Contestant, Rounds};
use crate::random::Random;
use crate::tsc::TscClock;

const MILLION: usize = 1_000_000;
const PEER: &str = "governor";

/// Makes a call with each key in `order`. Returns the number of admitted calls, and the time of all calls. If `apart`,
/// each key depends on the result of the previous call, so that the processor cannot overlap calls.
#[inline(never)]
fn visit(subject: &impl Subject, keys: &[IpAddr], order: &[u32], apart: bool) -> (usize, Duration) {
    let (mut admitted, mut carried) = (0, 0);
    let started = Instant::now();
    for at in order {
        let result = usize::from(subject.check(&keys[*at as usize + carried]));
        admitted += result;
        if apart {
            // This is always 0, but the compiler does not know that.
            carried = black_box(result) >> 1;
        }
    }
    (admitted, started.elapsed())
}

/// Returns `calls` indexes of `keys` keys. All keys are equally frequent. The order is random, and the same in each
/// run.
fn uniform(keys: usize, calls: usize) -> Vec<u32> {
    let (mut random, mut order) = (Random::new(7), (0..keys as u32).collect::<Vec<_>>());
    for at in (1..keys).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    order.into_iter().cycle().take(calls).collect()
}

/// Returns `calls` indexes of `keys` keys. The probability of a key is inversely proportional to its rank.
fn zipf(keys: usize, calls: usize) -> Vec<u32> {
    let mut random = Random::new(9);
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let ranks = uniform(keys, keys);
    let draw = |_| {
        let at = random.word() as f64 / u64::MAX as f64 * sum;
        ranks[sums.partition_point(|below| *below < at).min(keys - 1)]
    };
    (0..calls).map(draw).collect()
}

fn ours<A: Algorithm>(algorithm: A, max_keys: usize) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).max_keys(max_keys).build()
}

fn by_tsc<A: Algorithm>(algorithm: A, max_keys: usize) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(TscClock::new()).max_keys(max_keys).build()
}

/// Creates a sliding window of which each key has used so much that its counts are in an allocation.
fn busy_window(keys: &[IpAddr]) -> RateLimiter<SlidingWindow> {
    let limiter = ours(SlidingWindow::new(Quota::per_day(MILLION as u64)), keys.len());
    keys.iter().for_each(|key| assert!(limiter.check_n(key, 100_000).is_allowed()));
    limiter
}

/// The calls of one row. If `admitted`, the quotas are so high that no call is denied. Otherwise they are used up
/// before the measurement.
struct Row<'a> {
    keys: &'a [IpAddr],
    order: &'a [u32],
    apart: bool,
    admitted: bool,
}

impl Row<'_> {
    /// Makes calls with each key before the measurement. If the calls of the row must be denied, these calls use up
    /// the quota.
    fn prime(&self, subject: &impl Subject) {
        let calls = if self.admitted { 1 } else { FEW + 1 };
        for key in self.keys {
            (0..calls).for_each(|_| _ = subject.check(key));
        }
    }

    fn contestant<'a>(&'a self, name: &str, subject: impl Subject + 'a) -> Contestant<'a> {
        self.prime(&subject);
        Contestant::new(name, move || {
            let (passed, took) = visit(&subject, self.keys, self.order, self.apart);
            assert_eq!(
                passed,
                if self.admitted { self.order.len() } else { 0 },
                "all return the same results"
            );
            took
        })
    }

    fn rounds(&self, rounds: usize) -> Rounds {
        let (max, burst) = (self.keys.len(), if self.admitted { u64::from(PLENTY) } else { 0 });
        let of = |plenty: fn() -> Quotas| if self.admitted { plenty() } else { Quotas::per_hour(FEW) };
        let (window, deep, fast) = (of(|| Quotas::per_hour(PLENTY)), of(Quotas::deep), of(Quotas::fast));
        let map = Map { started: Instant::now(), full_at: DashMap::default(), burst };
        // Every key is inserted here: with a full bucket if its calls must be admitted, and with an empty bucket
        // otherwise.
        self.keys
            .iter()
            .for_each(|key| _ = map.full_at.insert(*key, u64::MAX / 2 * u64::from(!self.admitted)));
        let mut contestants = vec![
            self.contestant(PEER, governor(deep)),
            self.contestant("governor, foldhash", fast_governor(deep)),
            self.contestant("DashMap, foldhash, plain states", map),
            self.contestant("bare table", Bare::new(max, burst)),
            self.contestant("TokenBucket", ours(TokenBucket::new(deep.ours), max)),
            self.contestant("TokenBucket, time stamp counter", by_tsc(TokenBucket::new(deep.ours), max)),
            self.contestant("FixedWindow", ours(FixedWindow::new(window.ours), max)),
            self.contestant("SlidingCounter", ours(SlidingCounter::new(window.ours), max)),
            self.contestant("SlidingWindow", ours(SlidingWindow::new(window.ours), max)),
            self.contestant("LeakyBucket", ours(LeakyBucket::new(fast.ours), max)),
        ];
        if self.keys.len() == 1 {
            let two = (TokenBucket::new(deep.ours), FixedWindow::new(window.ours));
            contestants.push(self.contestant("tuple of two", ours(two, max)));
        } else {
            contestants.push(self.contestant("SlidingWindow, busy keys", busy_window(self.keys)));
        }
        Rounds::of(contestants, rounds)
    }
}

/// Prints all tables. If `summary`, also prints a table of all rows, and writes its numbers.
pub fn run(rounds: usize, summary: bool) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.first().map(|core| core_affinity::set_for_current(*core));
    let (rounds, keys, mut report) = (rounds.max(3), keys(MILLION), Report::default());
    for (name, count, calls, skewed) in [
        ("one key", 1, 200_000, false),
        ("100,000 keys", 100_000, 200_000, false),
        ("1,000,000 keys, uniform", MILLION, MILLION, false),
        ("1,000,000 keys, zipf", MILLION, MILLION, true),
    ] {
        let order = if skewed { zipf(count, calls) } else { uniform(count, calls) };
        for (apart, admitted) in [(false, true), (true, true), (false, false), (true, false)] {
            if count > 1 && (!apart || !admitted) {
                continue;
            }
            let row = Row { keys: &keys[..count], order: &order, apart, admitted };
            let kind = if apart { "one after another" } else { "tight" };
            let result = if admitted { "admitted" } else { "denied" };
            report.add(&format!("{name}, {kind}, {result}"), &row.rounds(rounds));
        }
    }
    report.add("a million first-seen keys", &first_seen(&keys, keys.len(), 1, rounds));
    for (title, calls) in [
        ("a million keys into a full table of 100,000", 1),
        ("a million keys with two calls each, into a full table", 2),
    ] {
        report.add(title, &first_seen(&keys, 100_000, calls, rounds));
    }
    bytes(&keys);
    if let [first, second, ..] = cores[..] {
        for (count, admitted) in [(1, true), (1, false), (100_000, true)] {
            let row = Row { keys: &keys[..count], order: &uniform(count, 200_000), apart: false, admitted };
            let result = if admitted { "admitted" } else { "denied" };
            let name = if count == 1 { "one key" } else { "100,000 keys" };
            let title = format!("two threads, {name}, {result}");
            report.add(&title, &two_threads(&row, [first, second], rounds));
        }
    }
    replace(&keys);
    parts(rounds);
    waits();
    cancellations();
    if summary {
        report.finish();
    }
}

fn two_threads(row: &Row<'_>, cores: [core_affinity::CoreId; 2], rounds: usize) -> Rounds {
    fn contestant<'a>(
        row: &'a Row<'_>,
        name: &str,
        subject: impl Subject + Sync + 'a,
        cores: [core_affinity::CoreId; 2],
    ) -> Contestant<'a> {
        row.prime(&subject);
        Contestant::new(name, move || {
            let ready = Barrier::new(2);
            let call = |core| {
                core_affinity::set_for_current(core);
                ready.wait();
                visit(&subject, row.keys, row.order, false).1
            };
            thread::scope(|scope| {
                let other = scope.spawn(|| call(cores[1]));
                let here = call(cores[0]);
                here.max(other.join().expect("it does not panic"))
            })
        })
    }
    let max = row.keys.len();
    let (deep, window) = match row.admitted {
        true => (Quotas::deep(), Quotas::per_hour(PLENTY)),
        false => (Quotas::per_hour(FEW), Quotas::per_hour(FEW)),
    };
    let contestants = vec![
        contestant(row, PEER, governor(deep), cores),
        contestant(row, "governor, foldhash", fast_governor(deep), cores),
        contestant(row, "TokenBucket", ours(TokenBucket::new(deep.ours), max), cores),
        contestant(row, "TokenBucket, time stamp counter", by_tsc(TokenBucket::new(deep.ours), max), cores),
        contestant(row, "FixedWindow", ours(FixedWindow::new(window.ours), max), cores),
    ];
    Rounds::of(contestants, rounds.min(9))
}
