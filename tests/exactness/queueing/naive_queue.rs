//! The algorithms, written as plainly as possible. They compute when a call may be admitted, and what the call takes.

use tower_throttle::algorithm::MAX_DEBT;

use crate::oracle::config::Rule;
use crate::oracle::model::{Counter, Fixed, Oracle, Sliding, Verdict};

/// An algorithm with a queue.
#[derive(Clone, Debug)]
pub(crate) enum Naive {
    Bucket(Bucket),
    Leaky(Leaky),
    Bursty(Bursty),
    Fixed(Fixed),
    Sliding(Sliding),
    Counter(Counter),
    All(Vec<Naive>),
}

/// The time at which a member of a tuple could first admit the waiter, in nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Ready {
    At(u64),
    /// Before the time that was last observed.
    Before(u64),
}

/// Tokens, in grains. A nanosecond brings `limit` grains, and a token has `period` grains. The time is also in grains,
/// because a token can become available between two nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    limit: u128,
    period: u128,
    burst: u128,
    at: u128,
    missing: u128,
}

/// A schedule. `next` is the time at which the next call may be admitted, in grains.
#[derive(Clone, Debug)]
pub(crate) struct Leaky {
    limit: u128,
    period: u128,
    at: u128,
    next: u128,
}

/// Guava's bursty limiter, with an interval of a whole number of nanoseconds. The stored time is at most a second.
#[derive(Clone, Debug)]
pub(crate) struct Bursty {
    interval: u128,
    at: u128,
    next: u128,
    stored: u128,
}

impl Bucket {
    pub(crate) fn new(limit: u64, period: u64, burst: u64, empty: bool) -> Self {
        let (limit, period, burst) = (limit.into(), period.into(), burst.into());
        let missing = if empty { burst * period } else { 0 };
        Self { limit, period, burst, at: 0, missing }
    }

    /// Returns when `cost` tokens are available, in grains.
    fn due(&self, cost: u64) -> u128 {
        let spare = (self.burst - u128::from(cost)) * self.period;
        self.at + self.missing.saturating_sub(spare)
    }

    fn go(&mut self, at: u128) {
        let on = at.saturating_sub(self.at);
        self.missing = self.missing.saturating_sub(on);
        self.at += on;
    }
}

impl Leaky {
    pub(crate) fn new(limit: u64, period: u64) -> Self {
        Self { limit: limit.into(), period: period.into(), at: 0, next: 0 }
    }
}

impl Bursty {
    pub(crate) fn new(interval: u64) -> Self {
        Self { interval: interval.into(), at: 0, next: 0, stored: 0 }
    }

    fn idle_until(&mut self, at: u128) {
        let idle = at.saturating_sub(self.next);
        self.stored = (self.stored + idle).min(1_000_000_000);
        self.next += idle;
    }
}

impl Naive {
    pub(crate) fn observe(&mut self, now: u64) {
        let nanos = u128::from(now);
        match self {
            Self::Bucket(bucket) => bucket.go(nanos * bucket.limit),
            Self::Leaky(leaky) => leaky.at = nanos * leaky.limit,
            Self::Bursty(bursty) => bursty.at = nanos,
            Self::Fixed(rule) => rule.observe(now),
            Self::Sliding(rule) => rule.observe(now),
            Self::Counter(rule) => rule.observe(now),
            Self::All(rules) => rules.iter_mut().for_each(|rule| rule.observe(now)),
        }
    }

    /// Returns the maximum cost of a call.
    pub(crate) fn capacity(&self) -> u64 {
        match self {
            Self::Bucket(bucket) => bucket.burst as u64,
            Self::Leaky(_) | Self::Bursty(_) => u64::MAX,
            Self::Fixed(rule) => rule.capacity().unwrap(),
            Self::Sliding(rule) => rule.capacity().unwrap(),
            Self::Counter(rule) => rule.capacity().unwrap(),
            Self::All(rules) => rules.iter().map(Self::capacity).min().unwrap(),
        }
    }

    pub(crate) fn starts_full(&self) -> bool {
        match self {
            Self::Bucket(bucket) => bucket.missing == 0,
            Self::All(rules) => rules.iter().all(Self::starts_full),
            _ => true,
        }
    }

    /// Returns how many calls of one unit would be admitted at this instant.
    pub(crate) fn units(&self, now: u64) -> u64 {
        let mut rule = self.clone();
        (0..10_000)
            .take_while(|_| {
                let fits = rule.fits(1);
                if fits {
                    rule.take(1, now);
                }
                fits
            })
            .count() as u64
    }

    /// Returns whether a call may be admitted at this instant.
    pub(crate) fn fits(&self, cost: u64) -> bool {
        if cost > self.capacity() {
            return false;
        }
        match self {
            Self::Bucket(bucket) => bucket.due(cost) <= bucket.at,
            Self::Leaky(leaky) => leaky.next <= leaky.at,
            Self::Bursty(bursty) => bursty.next <= bursty.at,
            Self::Fixed(rule) => rule.verdict(cost) == Verdict::Admit,
            Self::Sliding(rule) => rule.verdict(cost) == Verdict::Admit,
            Self::Counter(rule) => rule.verdict(cost) == Verdict::Admit,
            Self::All(rules) => rules.iter().all(|rule| rule.fits(cost)),
        }
    }

    /// Returns when the next call may be admitted, at `now` or later.
    pub(crate) fn turn(&self, cost: u64, now: u64) -> u64 {
        let turn = match self {
            Self::Bucket(bucket) => bucket.due(cost).div_ceil(bucket.limit) as u64,
            Self::Leaky(leaky) => leaky.next.div_ceil(leaky.limit) as u64,
            Self::Bursty(bursty) => bursty.next as u64,
            Self::All(rules) => rules.iter().map(|rule| rule.turn(cost, now)).max().unwrap(),
            window => {
                let fits = |at: u64| {
                    let mut window = window.clone();
                    window.observe(at);
                    window.fits(cost)
                };
                if fits(now) {
                    return now;
                }
                // The call is denied at `early`, and admitted at `late`.
                let (mut early, mut step) = (now, 1);
                while !fits(early + step) {
                    (early, step) = (early + step, step * 2);
                }
                let mut late = early + step;
                while late - early > 1 {
                    let middle = early + (late - early) / 2;
                    match fits(middle) {
                        true => late = middle,
                        false => early = middle,
                    }
                }
                late
            }
        };
        turn.max(now)
    }

    /// Charges a call that arrived at `arrived`, at its scheduled time.
    pub(crate) fn take(&mut self, cost: u64, arrived: u64) {
        let (units, arrived) = (u128::from(cost), u128::from(arrived));
        match self {
            Self::Bucket(bucket) => bucket.missing += units * bucket.period,
            Self::Leaky(leaky) => {
                leaky.next = leaky.next.max(arrived * leaky.limit) + units * leaky.period;
            }
            Self::Bursty(bursty) => {
                bursty.idle_until(arrived);
                let costs = units * bursty.interval;
                let stored = costs.min(bursty.stored);
                bursty.stored -= stored;
                bursty.next += costs - stored;
            }
            Self::Fixed(rule) => rule.admit(cost),
            Self::Sliding(rule) => rule.admit(cost),
            Self::Counter(rule) => rule.admit(cost),
            Self::All(rules) => rules.iter_mut().for_each(|rule| rule.take(cost, arrived as u64)),
        }
    }

    /// Admits the first waiter of a queue, if it may be admitted by `now`. Otherwise, only advances the time.
    pub(crate) fn admit(&mut self, first: Option<(u64, u64)>, now: u64) -> bool {
        if let Some((cost, arrived)) = first {
            if let Self::All(rules) = self {
                return Self::admit_from_all(rules, cost, arrived, now);
            }
            if let Self::Bucket(bucket) = self {
                let due = bucket.due(cost);
                if due <= u128::from(now) * bucket.limit {
                    bucket.go(due.max(earliest(now) * bucket.limit));
                    self.take(cost, arrived);
                    return true;
                }
            } else {
                self.observe(now);
                if self.fits(cost) {
                    match self {
                        Self::Leaky(leaky) => leaky.next = leaky.next.max(earliest(now) * leaky.limit),
                        Self::Bursty(bursty) => {
                            bursty.idle_until(arrived.into());
                            bursty.next = bursty.next.max(earliest(now));
                        }
                        _ => {}
                    }
                    self.take(cost, arrived);
                    return true;
                }
            }
        }
        self.observe(now);
        false
    }

    /// Admits a waiter of a tuple. Each member charges the waiter as if it had arrived when all others admit it.
    fn admit_from_all(rules: &mut [Naive], cost: u64, arrived: u64, now: u64) -> bool {
        let ready = |rule: &Naive| match rule.ready(cost) {
            Ready::At(at) => at,
            Ready::Before(at) => at.min(earliest(now) as u64),
        };
        let due = rules.iter().map(ready).fold(arrived, u64::max);
        let is_due = due <= now;
        for rule in rules {
            match rule {
                Self::Bucket(bucket) if is_due => bucket.go(u128::from(due) * bucket.limit),
                // The slot is not overdue: the call waits for another member.
                Self::Leaky(leaky) if !is_due => leaky.next = leaky.next.max(u128::from(now) * leaky.limit),
                _ => {}
            }
            assert!(rule.admit(is_due.then_some((cost, due)), now) == is_due);
        }
        is_due
    }

    /// Returns when this member of a tuple can first admit a call.
    fn ready(&self, cost: u64) -> Ready {
        match self {
            Self::Bucket(bucket) => {
                let due = bucket.due(cost);
                let at = due.div_ceil(bucket.limit) as u64;
                if due <= bucket.at { Ready::Before(at) } else { Ready::At(at) }
            }
            Self::Leaky(leaky) if leaky.next <= leaky.at => Ready::Before(self.turn(cost, 0)),
            Self::Leaky(_) | Self::Bursty(_) => Ready::At(self.turn(cost, 0)),
            window => {
                let last = match window {
                    Self::Fixed(rule) => rule.clock().latest,
                    Self::Sliding(rule) => rule.clock().latest,
                    Self::Counter(rule) => rule.clock().latest,
                    other => unreachable!("no window: {other:?}"),
                };
                let turn = window.turn(cost, last);
                if turn <= last { Ready::Before(turn) } else { Ready::At(turn) }
            }
        }
    }

    /// Charges a call after the fact, at `now`, whether or not it fits.
    pub(crate) fn charge(&mut self, cost: u64, now: u64) {
        match self {
            Self::Bucket(_) | Self::Leaky(_) | Self::Bursty(_) => self.take(cost, now),
            Self::Fixed(rule) => drop(rule.charge(cost, MAX_DEBT)),
            Self::Sliding(rule) => drop(rule.charge(cost, MAX_DEBT)),
            Self::Counter(rule) => drop(rule.charge(cost, MAX_DEBT)),
            Self::All(rules) => rules.iter_mut().for_each(|rule| rule.charge(cost, now)),
        }
    }

    pub(crate) fn refund(&mut self, cost: u64) {
        let units = u128::from(cost);
        match self {
            Self::Bucket(bucket) => bucket.missing = bucket.missing.saturating_sub(units * bucket.period),
            Self::Leaky(leaky) if leaky.next > leaky.at => {
                leaky.next = leaky.next.saturating_sub(units * leaky.period).max(leaky.at);
            }
            Self::Bursty(bursty) if bursty.next > bursty.at => {
                bursty.next = bursty.next.saturating_sub(units * bursty.interval).max(bursty.at);
            }
            Self::Leaky(_) | Self::Bursty(_) => {}
            Self::Fixed(rule) => rule.refund(cost),
            Self::Sliding(rule) => rule.refund(cost),
            Self::Counter(rule) => rule.refund(cost),
            Self::All(rules) => rules.iter_mut().for_each(|rule| rule.refund(cost)),
        }
    }
}

/// Returns the earliest slot that can be used at `now`: a slot that is overdue by more than 5 ms moves.
fn earliest(now: u64) -> u128 {
    now.saturating_sub(5_000_000).into()
}

/// Returns the parameters of a window.
pub(crate) fn window(limit: u64, period: u64, slices: u64, aligned: bool) -> Rule {
    Rule { limit, period, burst: limit, slices, aligned, warm_up: None, cold_factor: 1 << 10 }
}
