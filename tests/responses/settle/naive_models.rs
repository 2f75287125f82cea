//! Random calls with random actual costs leave as many units as in naive models of the algorithms.

use std::collections::VecDeque;
use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, FixedWindow, SlidingLog, TokenBucket};
use tower_throttle::{Quota, RateLimiter};

use super::{Call, Outcome, PERIOD, behind, settling, unit};
use crate::reference_service::limited;
use crate::support::{Random, TickingClock, scaled};

/// A naive model of an algorithm.
trait Naive {
    fn left(&mut self, now: u64) -> u64;
    fn take(&mut self, now: u64, units: u64);
    /// Charges units after the fact. What is not left is debt, up to the bound.
    fn charge(&mut self, now: u64, units: u64, max_debt: u64) {
        let most = self.left(now).saturating_add(max_debt);
        self.take(now, units.min(most));
    }
    /// Settles a call that was charged `charged` units at `taken` to a lower cost.
    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64);
}

/// A window that begins with its first unit.
struct Window {
    limit: u64,
    begun: Option<u64>,
    used: u64,
}

impl Naive for Window {
    fn left(&mut self, now: u64) -> u64 {
        if self.begun.is_some_and(|begun| now - begun >= PERIOD) {
            (self.begun, self.used) = (None, 0);
        }
        self.limit.saturating_sub(self.used)
    }

    fn take(&mut self, now: u64, units: u64) {
        self.left(now);
        if self.used == 0 && units > 0 {
            self.begun = Some(now);
        }
        self.used += units;
    }

    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64) {
        self.left(now);
        if self.begun.is_some_and(|begun| taken >= begun) {
            self.used -= charged - actual;
        }
    }
}

/// All units, each with the time at which it was charged.
struct Log {
    limit: u64,
    taken: VecDeque<u64>,
}

impl Naive for Log {
    fn left(&mut self, now: u64) -> u64 {
        self.taken.retain(|taken| now - taken < PERIOD);
        self.limit.saturating_sub(self.taken.len() as u64)
    }

    fn take(&mut self, now: u64, units: u64) {
        self.taken.extend((0..units).map(|_| now));
    }

    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64) {
        self.left(now);
        for _ in actual..charged {
            if let Some(at) = self.taken.iter().position(|unit| *unit == taken) {
                self.taken.remove(at);
            }
        }
    }
}

/// The missing units, in fractions of a unit. A unit has as many fractions as the period has nanoseconds, and each
/// nanosecond refills `limit` fractions.
struct Bucket {
    limit: u64,
    missing: u64,
    seen: u64,
}

impl Naive for Bucket {
    fn left(&mut self, now: u64) -> u64 {
        self.missing = self.missing.saturating_sub((now - self.seen) * self.limit);
        self.seen = now;
        (self.limit * PERIOD).saturating_sub(self.missing) / PERIOD
    }

    fn take(&mut self, now: u64, units: u64) {
        self.left(now);
        self.missing += units * PERIOD;
    }

    /// Gives back the difference, but at most the units of the charge that were not refilled since then.
    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64) {
        self.left(now);
        let counts = (charged * PERIOD).saturating_sub((now - taken) * self.limit);
        self.missing = self.missing.saturating_sub(counts.min((charged - actual) * PERIOD));
    }
}

/// Two limits of a tuple.
struct Both<A, B>(A, B);

impl<A: Naive, B: Naive> Naive for Both<A, B> {
    fn left(&mut self, now: u64) -> u64 {
        self.0.left(now).min(self.1.left(now))
    }

    fn take(&mut self, now: u64, units: u64) {
        self.0.take(now, units);
        self.1.take(now, units);
    }

    fn charge(&mut self, now: u64, units: u64, max_debt: u64) {
        self.0.charge(now, units, max_debt);
        self.1.charge(now, units, max_debt);
    }

    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64) {
        self.0.give(now, charged, actual, taken);
        self.1.give(now, charged, actual, taken);
    }
}

fn agrees<A: Algorithm, N: Naive>(
    max_debt: u64,
    clock: fn() -> TickingClock,
    rule: fn(Quota) -> A,
    naive: fn(u64) -> N,
) {
    for (seed, clock) in (0..scaled(6_000)).map(|seed| (seed, clock())) {
        let nanos = |nanos| Duration::from_nanos(nanos) * unit(&clock);
        let mut random = Random::new(seed);
        let limit = 1 + random.below(12);
        let mut now = 1_000_000;
        clock.set(nanos(now));
        let rule = rule(Quota::per(limit, nanos(PERIOD)).unwrap());
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).max_debt(max_debt).build();
        let service = limited(settling(&limiter), behind());
        let mut naive = naive(limit);
        let mut open: Vec<(Call, u64, u64)> = Vec::new();
        for _ in 0..40 {
            match random.below(4) {
                0 => {
                    let most = if random.one_in(5) { 3 * PERIOD } else { PERIOD / 3 };
                    now += random.below(most);
                    clock.set(nanos(now));
                }
                1 | 2 => {
                    let most = limit / 2 + random.below(3);
                    let cost = random.within(0..=most);
                    let call = Call::start(&service, cost);
                    let fits = cost == 0 || cost <= naive.left(now);
                    assert_eq!(call.goes_on(), fits, "seed {seed}");
                    if fits {
                        naive.take(now, cost);
                        open.push((call, cost, now));
                    }
                }
                _ if open.is_empty() => {}
                _ => {
                    let at = random.below(open.len() as u64) as usize;
                    let (mut call, cost, taken) = open.swap_remove(at);
                    match random.below(6) {
                        0 => call.ends(Outcome::Fails),
                        1 => drop(call),
                        2 => call.ends(Outcome::Costs(None)),
                        _ => {
                            let actual = random.below(cost + 3);
                            call.costs(actual);
                            if actual < cost {
                                naive.give(now, cost, actual, taken);
                            } else {
                                naive.charge(now, actual - cost, max_debt);
                            }
                        }
                    }
                }
            }
            assert_eq!(
                limiter.peek(&()).remaining(),
                naive.left(now),
                "seed {seed}, at {now}, of {limit}: {limiter:?}"
            );
        }
    }
}

#[test]
fn naive_models_agree() {
    let window = |limit| Window { limit, begun: None, used: 0 };
    let log = |limit| Log { limit, taken: VecDeque::new() };
    let bucket = |limit| Bucket { limit, missing: 0, seen: 0 };
    for clock in [TickingClock::still, TickingClock::new] {
        for max_debt in [u64::MAX, 0] {
            agrees(max_debt, clock, FixedWindow::new, window);
        }
        // With debt, a log keeps no more records than its limit, which the model does not know.
        agrees(0, clock, SlidingLog::new, log);
        agrees(
            0,
            clock,
            |quota| (FixedWindow::new(quota), SlidingLog::new(quota)),
            |limit| Both(Window { limit, begun: None, used: 0 }, Log { limit, taken: VecDeque::new() }),
        );
    }
    // If the clock advances at each reading, a bucket that was refunded lacks the units that were refilled between two
    // readings. The model does not include this.
    for max_debt in [u64::MAX, 0] {
        agrees(max_debt, TickingClock::still, TokenBucket::new, bucket);
    }
}
