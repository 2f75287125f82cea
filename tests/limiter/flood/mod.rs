//! A full key table: floods of invented keys, more honest callers than the table has room for, and the effect of each
//! treatment of a full table.

mod callers;
mod evictions;
mod frequent_calls;
mod joint_calls;

use std::collections::VecDeque;
use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{OnFull, Permit};
use tower_throttle::{Decision, Quota, RateLimiter};

const MAX_KEYS: usize = 10_000;
/// The number of invented keys: 3.7 for each place in the table, as in an attack that was measured, with 370,000 keys
/// and 100,000 places.
const INVENTED: u64 = 37_000;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
const INVENTED_KEYS: u64 = 10_000_000;

fn daily() -> Quota {
    Quota::per_day(1_000)
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_minute(100).burst(20))
}

/// A limiter, a clock, and the calls in progress.
struct Scene<A: Algorithm> {
    limiter: RateLimiter<A>,
    clock: ManualClock,
    now: Duration,
    in_progress: VecDeque<(Duration, Permit)>,
}

impl<A: Algorithm> Scene<A> {
    fn new(algorithm: &A, on_full: Option<OnFull>) -> Self {
        let clock = ManualClock::new();
        let builder = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).max_keys(MAX_KEYS);
        let limiter = match on_full {
            Some(on_full) => builder.on_full(on_full).build(),
            None => builder.build(),
        };
        Self { limiter, clock, now: Duration::ZERO, in_progress: VecDeque::new() }
    }

    /// Ends the calls in progress that were admitted a second ago.
    fn advance(&mut self, duration: Duration) {
        self.now += duration;
        self.clock.advance(duration);
        while self.in_progress.front().is_some_and(|(end, _)| *end <= self.now) {
            self.in_progress.pop_front();
        }
    }

    /// Makes a call that lasts a second. Returns whether the call is admitted.
    fn call(&mut self, key: u64) -> bool {
        assert!(self.limiter.len() <= MAX_KEYS);
        match self.limiter.try_acquire_permit(&key) {
            Ok(permit) => {
                self.in_progress.push_back((self.now + SECOND, permit));
                true
            }
            Err(_) => false,
        }
    }
}

/// The number of calls, and the number of denied calls.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    calls: u64,
    denied: u64,
}

impl Count {
    fn add(&mut self, admitted: bool) {
        self.calls += 1;
        self.denied += u64::from(!admitted);
    }

    fn percent(self) -> f64 {
        100.0 * self.denied as f64 / self.calls as f64
    }

    fn assert_below(self, percent: u64, what: &str) {
        assert!(self.denied * 100 <= self.calls * percent, "{what}: {self:?}");
    }
}

fn assert_full(denial: &Decision) {
    assert!(!denial.is_allowed() && denial.is_table_full() && !denial.is_closed(), "{denial:?}");
    assert_eq!((denial.retry_after(), denial.remaining()), (None, denial.limit()), "it has used nothing");
}
