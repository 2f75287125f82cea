//! The keys of callers that keep calling stay in a full table, whatever the keys of a flood have used.

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

use super::{Count, INVENTED_KEYS, MAX_KEYS, MINUTE, SECOND, bucket};

/// The units of its limit that a key of the flood has used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Used {
    One,
    Half,
    All,
    /// One, half or all, in turn.
    Mixed,
}

/// How the keys of a flood arrive, at the same average rate.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    Steady,
    /// A third of the table at one key per microsecond, then a pause.
    Bursts,
}

/// The shares of the table that are replaced between two calls of a frequent caller, in percent.
const SHARES: [u64; 4] = [1, 3, 10, 25];
const CALLERS: u64 = 20;

/// A flood into a table that was full before. While it lasts, 1.5 s replace the whole table.
#[derive(Clone, Copy, Debug)]
struct Flood {
    max_keys: usize,
    used: Used,
    arrival: Arrival,
    /// The number of times that the whole table is replaced.
    rounds: u64,
    /// The number of calls that lock a key out after its units are used, or 0.
    denials: u64,
}

/// The effect of a flood on callers.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// For each of [`SHARES`]: the number of admitted calls, and that number without a flood.
    frequent: [(u64, u64); SHARES.len()],
    newcomers: Count,
    half_an_hour_later: Count,
    /// Units of keys that were used up before the flood and are silent during two replacements of the table: the number
    /// that is admitted then, and the number that was admitted before.
    silent: (u64, u64),
}

impl Flood {
    fn new(used: Used, arrival: Arrival) -> Self {
        Self { max_keys: 1_000, used, arrival, rounds: 12, denials: 0 }
    }

    /// Uses units of the key number `at` of the flood.
    fn use_key<A: Algorithm>(self, limiter: &RateLimiter<A>, at: u64, limit: u64) {
        let key = INVENTED_KEYS + at;
        let units = match (self.used, at % 3) {
            (Used::One, _) | (Used::Mixed, 0) => 1,
            (Used::Half, _) | (Used::Mixed, 1) => limit.div_ceil(2),
            (Used::All, _) | (Used::Mixed, _) => limit,
        };
        let _ = limiter.check_n(&key, units);
        if units == limit {
            for _ in 0..self.denials {
                let _ = limiter.check(&key);
            }
        }
    }

    fn run<A: Algorithm>(self, algorithm: &A) -> Seen {
        const FREQUENT: u64 = 1_000;
        const NEW: u64 = 1_000_000;
        const SILENT: u64 = 2_000_000;
        let (clock, size) = (ManualClock::new(), self.max_keys as u64);
        let builder = |max| RateLimiter::builder(algorithm.clone()).clock(clock.clone()).max_keys(max);
        let limiter = builder(self.max_keys).build();
        let quiet = builder(100_000).build();
        let limit = algorithm.policy().quota;
        let (step, burst) = (3 * SECOND / 2 / size as u32, size / 3);
        let advance = |at: u64| match self.arrival {
            Arrival::Steady => clock.advance(step),
            Arrival::Bursts if at.is_multiple_of(burst) => clock.advance(step * burst as u32),
            Arrival::Bursts => clock.advance(Duration::from_micros(1)),
        };
        let use_up = |key: u64| (0..limit).filter(|_| limiter.check(&key).is_allowed()).count() as u64;
        let mut seen = Seen::default();
        seen.silent.1 = (0..size / 50).map(|key| use_up(SILENT + key)).sum();
        // The table is filled first.
        for at in 0..size {
            advance(at);
            self.use_key(&limiter, at, limit);
        }
        for at in size..(1 + self.rounds) * size {
            advance(at);
            self.use_key(&limiter, at, limit);
            for (share, counts) in SHARES.iter().zip(&mut seen.frequent) {
                let interval = share * size / 100;
                for caller in 0..CALLERS {
                    // Callers with the same share call one after another.
                    if (at + caller * interval / CALLERS).is_multiple_of(interval) {
                        let key = FREQUENT * share + caller;
                        counts.0 += u64::from(limiter.check(&key).is_allowed());
                        counts.1 += u64::from(quiet.check(&key).is_allowed());
                    }
                }
            }
            if at.is_multiple_of(100) {
                seen.newcomers.add(limiter.check(&(NEW + at)).is_allowed());
            }
            if at == 3 * size {
                seen.silent.0 = (0..size / 50).map(|key| use_up(SILENT + key)).sum();
            }
        }
        clock.advance(30 * MINUTE);
        for newcomer in 0..size / 10 {
            seen.half_an_hour_later.add(limiter.check(&(NEW / 2 + newcomer)).is_allowed());
        }
        seen
    }
}

fn assert_keeps_frequent_callers<A: Algorithm>(algorithm: &A, denials: u64) {
    let cases = [Used::One, Used::Half, Used::All, Used::Mixed]
        .into_iter()
        .flat_map(|used| [(used, Arrival::Steady), (used, Arrival::Bursts)]);
    for (used, arrival) in cases.step_by(every(3)) {
        let flood = Flood { denials, ..Flood::new(used, arrival) };
        let (seen, what) = (flood.run(algorithm), format!("{algorithm:?}, {flood:?}"));
        for (share, (admitted, due)) in SHARES.iter().zip(seen.frequent) {
            assert!(due > 0 && 10 * admitted <= 11 * due, "{share} %: {admitted} of {due}, {what}");
            assert!(10 * admitted >= 9 * due, "{share} %: {admitted} of {due}, {what}");
        }
        seen.newcomers.assert_below(0, &what);
        seen.half_an_hour_later.assert_below(0, &what);
    }
}

/// The callers call more often than their limits allow in each case, so a caller that is evicted gets too much.
#[test]
fn a_key_that_keeps_calling_gets_no_more_than_its_limit_from_a_bucket() {
    assert_keeps_frequent_callers(&TokenBucket::new(Quota::per_minute(20).burst(8)), 0);
    assert_keeps_frequent_callers(&LeakyBucket::new(Quota::per_minute(20)), 0);
}

#[test]
fn a_key_that_keeps_calling_gets_no_more_than_its_limit_from_a_window() {
    let quota = Quota::per_minute(20);
    assert_keeps_frequent_callers(&FixedWindow::new(quota), 0);
    assert_keeps_frequent_callers(&SlidingWindow::new(quota), 0);
    assert_keeps_frequent_callers(&SlidingCounter::new(quota), 0);
    assert_keeps_frequent_callers(&SlidingLog::new(quota), 0);
    assert_keeps_frequent_callers(&FixedWindow::new(Quota::per_hour(1)), 0);
}

#[test]
fn a_key_that_keeps_calling_is_locked_out() {
    let logins = FixedWindow::new(Quota::per_minute(5)).block_for(60 * MINUTE).after(10);
    assert_keeps_frequent_callers(&logins, 0);
    assert_keeps_frequent_callers(&logins, 10);
}

/// Callers fill half of the table, and each of them calls whenever a tenth of the table was replaced. The excess is
/// that of several tables together, because with some seeds, callers take most places of a shard, and evict each other.
#[test]
fn half_of_the_keys_of_a_table_may_keep_calling() {
    const SIZE: u64 = 2_000;
    const TABLES: u64 = 5;
    for used in [20, 10, 1].into_iter().step_by(every(2)) {
        let (mut admitted, mut due) = (0, 0);
        for _ in 0..TABLES {
            let clock = ManualClock::new();
            let limiter = |max| {
                let window = FixedWindow::new(Quota::per_minute(20));
                RateLimiter::builder(window).clock(clock.clone()).max_keys(max).build()
            };
            let (full, quiet) = (limiter(SIZE as usize), limiter(100_000));
            for at in 0..12 * SIZE {
                clock.advance(SECOND / 1_000);
                let _ = full.check_n(&(INVENTED_KEYS + at), used);
                for caller in 0..5 {
                    let key = at % (SIZE / 10) * 5 + caller;
                    admitted += u64::from(full.check(&key).is_allowed());
                    due += u64::from(quiet.check(&key).is_allowed());
                }
            }
        }
        assert!(
            due >= TABLES * 10_000 && 100 * admitted <= 102 * due,
            "{admitted} of {due}, {used} units each"
        );
    }
}

/// Some keys of the flood become fresh and are removed, and others are evicted. In both cases the table is replaced.
#[test]
fn silent_keys_at_their_limits_outlast_keys_that_have_used_one_unit() {
    const SIZE: u64 = 2_000;
    const SILENT: u64 = 100;
    // A unit is refilled in ten seconds. In this time, as many new keys arrive as fill this share of the table.
    for percent in [80, 90, 120] {
        let bucket = TokenBucket::new(Quota::per_hour(360).burst(60));
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).max_keys(SIZE as usize).build();
        let step = 10 * SECOND * 100 / (SIZE * percent) as u32;
        let flood = |keys: std::ops::Range<u64>| {
            for key in keys {
                clock.advance(step);
                let _ = limiter.check(&(INVENTED_KEYS + key));
            }
        };
        let use_up = |key: u64| (0..60).filter(|_| limiter.check(&key).is_allowed()).count() as u64;
        flood(0..2 * SIZE);
        assert_eq!((0..SILENT).map(use_up).sum::<u64>(), 60 * SILENT);
        flood(2 * SIZE..6 * SIZE);
        let refilled = 1 + 4 * 100 / percent;
        let admitted = (0..SILENT).map(use_up).sum::<u64>();
        assert!(admitted <= (refilled + 1) * SILENT, "{admitted} of {refilled} each, {percent} %");
    }
}

/// Until the clock has caught up, only the usage tells which keys of the time before are in use.
#[test]
fn a_clock_that_is_set_back_lets_no_frequent_caller_in() {
    for set_back in [10 * SECOND, 50 * SECOND, 60 * MINUTE] {
        let clock = ManualClock::new();
        let limiter = |max| {
            let window = FixedWindow::new(Quota::per_minute(20));
            RateLimiter::builder(window).clock(clock.clone()).max_keys(max).build()
        };
        let (full, quiet) = (limiter(1_000), limiter(100_000));
        let mut now = 120 * MINUTE;
        clock.set(now);
        let (mut admitted, mut due) = (0, 0);
        for at in 0..20_000 {
            now += SECOND / 1_000;
            if at == 3_000 {
                now -= set_back;
            }
            clock.set(now);
            let _ = full.check(&(INVENTED_KEYS + at));
            if at % 10 == 0 {
                let key = at / 10 % 20;
                admitted += u64::from(full.check(&key).is_allowed());
                due += u64::from(quiet.check(&key).is_allowed());
            }
        }
        assert!(due >= 400 && 10 * admitted <= 11 * due, "{admitted} of {due}, {set_back:?}");
    }
}

/// Prints the table of figures in the guide for tables that are full before a flood. The command is `cargo test
/// -p tower-throttle-tests --test limiter -- --ignored --nocapture figures_for_full_tables`.
#[test]
#[ignore = "prints figures of the guide: .ci/nightly runs it, and its comment says how to see them"]
fn figures_for_full_tables() {
    fn print<A: Algorithm>(what: &str, algorithm: &A, usages: &[(Used, &str)], denials: u64) {
        for &(used, of_each_key) in usages {
            let flood =
                Flood { max_keys: MAX_KEYS, rounds: 40, denials, ..Flood::new(used, Arrival::Steady) };
            let seen = flood.run(algorithm);
            let [one, three, ten, quarter] =
                seen.frequent.map(|(admitted, due)| admitted as f64 / due as f64);
            println!(
                "| {what} | {of_each_key} | {one:.2} x | {three:.2} x | {ten:.2} x | {quarter:.2} x | {:.2} x \
                 | {:.1} % | {:.1} % |",
                1.0 + seen.silent.0 as f64 / seen.silent.1 as f64,
                seen.newcomers.percent(),
                seen.half_an_hour_later.percent(),
            );
        }
    }
    let usages = [
        (Used::One, "one unit"),
        (Used::Half, "half"),
        (Used::All, "all"),
        (Used::Mixed, "one unit, half, all"),
    ];
    let quota = Quota::per_minute(100);
    print("TokenBucket 100/min, burst 20", &bucket(), &usages, 0);
    print("FixedWindow 100/min", &FixedWindow::new(quota), &usages, 0);
    print("SlidingWindow 100/min", &SlidingWindow::new(quota), &usages, 0);
    let logins = FixedWindow::new(Quota::per_minute(5)).block_for(60 * MINUTE).after(10);
    print("FixedWindow 5/min, block_for 1 h after 10", &logins, &usages, 0);
    print("FixedWindow 5/min, block_for 1 h after 10", &logins, &[(Used::All, "all, and locked out")], 10);
    print("FixedWindow 1/hour", &FixedWindow::new(Quota::per_hour(1)), &[(Used::All, "all")], 0);
}

/// Returns `n`, or 1 if the environment variable `FULL_SIZE` is set. A test takes every `n`-th of its cases.
fn every(n: usize) -> usize {
    match std::env::var_os("FULL_SIZE") {
        Some(_) => 1,
        None => n,
    }
}
