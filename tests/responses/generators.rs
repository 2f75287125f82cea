//! Random names, quotas and algorithms, and the fields with which each of them must be reported.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::iter;
use std::pin::Pin;
use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{Attempt, Reservation};
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::header_parser::{MOST, Policy};
use crate::support::Random;
use crate::support::calls::acquire;

/// Returns a name of 1 to 256 printable characters. Many of them are quotes or backslashes.
pub(crate) fn name(random: &mut Random) -> String {
    let length = if random.one_in(20) { 256 } else { 1 + random.below(40) };
    let char = |random: &mut Random| match random.below(4) {
        0 => random.one_of(&['"', '\\', ';', ',', '=', ' ', '%']),
        _ => char::from(random.within(0x20..=0x7e) as u8),
    };
    (0..length).map(|_| char(random)).collect()
}

/// Returns the names with which policies with the names `given` are reported, in the same order. All these names are
/// different.
pub(crate) fn distinct(given: &[String]) -> Vec<String> {
    let mut reported: Vec<String> = Vec::new();
    for name in given {
        reported.push(unlike(&reported, name, name));
    }
    reported
}

/// Returns `name`, or if it is taken the first of `given-2`, `given-3` and so on that is not.
pub(crate) fn unlike(taken: &[String], name: &str, given: &str) -> String {
    let numbered = (2..).map(|number| {
        let number = format!("-{number}");
        format!("{}{number}", &given[..given.len().min(256 - number.len())])
    });
    iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap()
}

pub(crate) fn quota(random: &mut Random) -> Quota {
    let size = |random: &mut Random| match random.below(6) {
        0 => 1,
        1 => random.one_of(&[u64::MAX, u64::MAX - 1, MOST, MOST + 1, 1 << 63]),
        2 => random.any_size(),
        _ => 1 + random.below(20),
    };
    let period = match random.below(6) {
        0 => 1 + random.below(10),
        1 => random.one_of(&[1, 1_000_000_000, 999_999_999, 1_000_000_001, i64::MAX as u64]),
        2 => random.any_size().min(i64::MAX as u64),
        _ => 1 + random.below(200_000_000_000),
    };
    let quota = Quota::per(size(random), Duration::from_nanos(period)).unwrap();
    if random.one_in(2) { quota.burst(size(random)) } else { quota }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    FixedWindow,
    Aligned,
    SlidingWindow,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    Bursty,
    WarmingUp,
    Concurrency,
}

pub(crate) const KINDS: [Kind; 10] = [
    Kind::FixedWindow,
    Kind::Aligned,
    Kind::SlidingWindow,
    Kind::SlidingCounter,
    Kind::SlidingLog,
    Kind::TokenBucket,
    Kind::LeakyBucket,
    Kind::Bursty,
    Kind::WarmingUp,
    Kind::Concurrency,
];

/// An algorithm and its settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) kind: Kind,
    pub(crate) quota: Quota,
    pub(crate) slices: usize,
    /// The queue capacity, if the algorithm queues calls.
    pub(crate) places: u64,
    pub(crate) warm_up: Duration,
}

/// Calls the function with an algorithm of the concrete type.
macro_rules! made {
    ($rule:expr, |$made:ident| $then:expr) => {
        $crate::generators::made_of_units!($rule, |$made| $then, |$made| $then)
    };
}
pub(crate) use made;

/// The same, for a function that does not compile with an algorithm that needs a release.
macro_rules! made_of_units {
    ($rule:expr, |$made:ident| $then:expr) => {
        $crate::generators::made_of_units!($rule, |$made| $then, |_calls| unreachable!("not of units"))
    };
    ($rule:expr, |$made:ident| $then:expr, |$calls:ident| $in_progress:expr) => {{
        use tower_throttle::algorithm as algorithms;
        use $crate::generators::Kind;
        let rule: $crate::generators::Rule = $rule;
        match rule.kind {
            Kind::FixedWindow => {
                let $made = algorithms::FixedWindow::new(rule.quota);
                $then
            }
            Kind::Aligned => {
                let $made = algorithms::FixedWindow::new(rule.quota).aligned();
                $then
            }
            Kind::SlidingWindow => {
                let $made = rule.sliding_window();
                $then
            }
            Kind::SlidingCounter => {
                let $made = algorithms::SlidingCounter::new(rule.quota);
                $then
            }
            Kind::SlidingLog => {
                let $made = algorithms::SlidingLog::new(rule.quota);
                $then
            }
            Kind::TokenBucket => {
                let $made = algorithms::TokenBucket::new(rule.quota);
                $then
            }
            Kind::LeakyBucket => {
                let $made = algorithms::LeakyBucket::new(rule.quota).queue(rule.places);
                $then
            }
            Kind::Bursty => {
                let $made = algorithms::Smooth::bursty(rule.quota).queue(rule.places);
                $then
            }
            Kind::WarmingUp => {
                let $made = algorithms::Smooth::warming_up(rule.quota, rule.warm_up).queue(rule.places);
                $then
            }
            Kind::Concurrency => {
                let $calls = rule.concurrency();
                $in_progress
            }
        }
    }};
}
pub(crate) use made_of_units;

impl Rule {
    pub(crate) fn of(kind: Kind, quota: Quota) -> Self {
        Self { kind, quota, slices: 10, places: 0, warm_up: Duration::from_secs(1) }
    }

    /// Returns a random rule of this kind. The rule queues calls if `waits` is `true`.
    pub(crate) fn any(random: &mut Random, kind: Kind, waits: bool) -> Self {
        Self {
            kind,
            quota: quota(random),
            slices: 1 + random.below(12) as usize,
            places: if waits { random.below(4) } else { 0 },
            warm_up: Duration::from_nanos(random.below(10_000_000_000)),
        }
    }

    pub(crate) fn sliding_window(self) -> SlidingWindow {
        SlidingWindow::new(self.quota).slices(self.slices)
    }

    pub(crate) fn concurrency(self) -> Concurrency {
        Concurrency::per_key(self.quota.limit())
    }

    pub(crate) fn fixed_window(self) -> FixedWindow {
        FixedWindow::new(self.quota)
    }

    pub(crate) fn token_bucket(self) -> TokenBucket {
        TokenBucket::new(self.quota)
    }

    pub(crate) fn sliding_counter(self) -> SlidingCounter {
        SlidingCounter::new(self.quota)
    }

    pub(crate) fn sliding_log(self) -> SlidingLog {
        SlidingLog::new(self.quota)
    }

    pub(crate) fn leaky_bucket(self) -> LeakyBucket {
        LeakyBucket::new(self.quota).queue(self.places)
    }

    pub(crate) fn bursty(self) -> Smooth {
        Smooth::bursty(self.quota).queue(self.places)
    }

    pub(crate) fn reference(self, clock: &ManualClock) -> Box<dyn Reference> {
        made!(self, |rule| {
            let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
            Box::new(WithCalls { limiter, in_progress: RefCell::default() })
        })
    }

    /// Returns whether units become available one by one, at the quota's rate.
    pub(crate) fn flows(self) -> bool {
        matches!(self.kind, Kind::TokenBucket | Kind::LeakyBucket | Kind::Bursty | Kind::WarmingUp)
    }

    /// Returns the nanoseconds in which `units` units become available. Times beyond 584 years are reported as 584
    /// years.
    fn time_of(self, units: u64) -> u64 {
        let nanos = u128::from(units) * self.quota.period().as_nanos();
        u64::try_from(nanos.div_ceil(u128::from(self.quota.limit()))).unwrap_or(u64::MAX)
    }

    /// Returns the item of `RateLimit-Policy` that the standards and the docs require.
    pub(crate) fn policy(self, name: &str) -> Policy {
        let q = if self.kind == Kind::TokenBucket { self.quota.capacity() } else { self.quota.limit() };
        let w = match self.kind {
            Kind::Concurrency => None,
            _ if self.flows() => Some(seconds(self.time_of(q)).min(MOST)),
            _ => Some(seconds(self.quota.period().as_nanos() as u64)),
        };
        let qu = (self.kind == Kind::Concurrency).then(|| "concurrent-requests".to_owned());
        Policy { name: name.to_owned(), q: q.min(MOST), w, qu }
    }

    /// Returns `t` for a decision that was just made. If no more calls of cost 1 would be admitted now, `next` returns
    /// the time until one would be admitted.
    pub(crate) fn t(self, decision: &Decision, next: impl FnOnce() -> Option<Duration>) -> Option<u64> {
        if self.kind == Kind::Concurrency {
            return None;
        }
        let span = match decision.is_allowed() {
            false => return decision.retry_after().map(|wait| seconds(nanos(wait))),
            true if self.flows() && decision.remaining() == 0 => nanos(next()?),
            true if self.flows() => self.time_of(decision.remaining()),
            true if decision.remaining() >= decision.limit() => nanos(self.quota.period()),
            true => nanos(decision.reset_after()).min(nanos(self.quota.period())),
        };
        Some(seconds(span))
    }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

/// Returns whole seconds, rounded up, at least 1.
pub(crate) fn seconds(nanos: u64) -> u64 {
    nanos.div_ceil(1_000_000_000).max(1)
}

/// A reference limiter, which gets the same calls at the same times as the layer.
pub(crate) trait Reference {
    fn check(&self, cost: u64) -> Decision;
    fn peek(&self, cost: u64) -> Decision;
    fn acquire(&self, cost: u64) -> Pin<Box<dyn Future<Output = Decision>>>;
    /// Ends a call in progress of this cost.
    fn end(&self, cost: u64);
}

/// A limiter, and the costs of its calls in progress.
struct WithCalls<A: Algorithm> {
    limiter: RateLimiter<A>,
    in_progress: RefCell<Vec<(u64, Reservation)>>,
}

impl<A: Algorithm> Reference for WithCalls<A> {
    fn check(&self, cost: u64) -> Decision {
        let (decision, reservation) = self.limiter.reserve_attempt(&(), Attempt::new(cost));
        self.in_progress.borrow_mut().push((cost, reservation));
        decision
    }

    fn peek(&self, cost: u64) -> Decision {
        self.limiter.peek_n(&(), cost)
    }

    /// A call in progress ends when it was decided.
    fn acquire(&self, cost: u64) -> Pin<Box<dyn Future<Output = Decision>>> {
        let limiter = self.limiter.clone();
        Box::pin(async move { acquire(&limiter, &(), Attempt::new(cost)).await.0 })
    }

    fn end(&self, cost: u64) {
        let mut in_progress = self.in_progress.borrow_mut();
        in_progress.retain(|(_, reservation)| !reservation.is_empty());
        if let Some(at) = in_progress.iter().position(|call| call.0 == cost) {
            drop(in_progress.swap_remove(at));
        }
    }
}

impl fmt::Debug for dyn Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reference")
    }
}
