//! Broken on purpose: the checker must see each of them.

use std::fmt::Debug;
use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, FixedWindow, Policy, TokenBucket};
use tower_throttle::clock::Nanos;
use tower_throttle::{Decision, Quota};

/// An algorithm with one thing wrong: its numbers, or what it does with a denial.
#[derive(Clone, Debug)]
pub(crate) struct Twin<A> {
    inner: A,
    denial_spends: bool,
}

fn per(limit: u64, nanos: u64, burst: u64) -> Quota {
    let period = Duration::from_nanos(nanos.clamp(1, i64::MAX as u64));
    Quota::per(limit, period).unwrap().burst(burst)
}

fn period(quota: Quota) -> u64 {
    quota.period().as_nanos() as u64
}

impl Twin<TokenBucket> {
    /// A token every `period / limit` nanoseconds, rounded down: a little early each time.
    pub(crate) fn rounded_down(quota: Quota) -> Self {
        let interval = period(quota) / quota.limit();
        Self { inner: TokenBucket::new(per(1, interval, quota.capacity())), denial_spends: false }
    }

    /// A token every `period / limit` nanoseconds, rounded up: it drifts.
    pub(crate) fn rounded_up(quota: Quota) -> Self {
        let interval = period(quota).div_ceil(quota.limit());
        Self { inner: TokenBucket::new(per(1, interval, quota.capacity())), denial_spends: false }
    }

    /// A denied call takes a token as well, if there is one.
    pub(crate) fn denial_spends(quota: Quota) -> Self {
        Self { inner: TokenBucket::new(quota), denial_spends: true }
    }

    /// Believes a clock that steps back by less than a period, and is paid for the same time twice.
    pub(crate) fn paid_twice(quota: Quota) -> Self {
        let shrunk = (1..=quota.limit().min(10))
            .rev()
            .find(|n| quota.limit().is_multiple_of(*n) && period(quota).is_multiple_of(*n))
            .unwrap_or(1);
        let quota = per(quota.limit() / shrunk, period(quota) / shrunk, quota.capacity());
        Self { inner: TokenBucket::new(quota), denial_spends: false }
    }
}

impl Twin<FixedWindow> {
    /// `<` for `<=` at the end of the window, which so lasts a nanosecond longer.
    pub(crate) fn late_edge(quota: Quota) -> Self {
        let quota = per(quota.limit(), period(quota) + 1, quota.capacity());
        Self { inner: FixedWindow::new(quota), denial_spends: false }
    }

    /// `<=` for `<`: the window ends a nanosecond early.
    pub(crate) fn early_edge(quota: Quota) -> Self {
        let quota = per(quota.limit(), period(quota) - 1, quota.capacity());
        Self { inner: FixedWindow::new(quota), denial_spends: false }
    }
}

impl<A: Algorithm> Algorithm for Twin<A> {
    type State = A::State;

    fn fresh(&self, built: Nanos, now: Nanos) -> A::State {
        self.inner.fresh(built, now)
    }

    fn check(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        let decision = self.inner.check(state, now, cost);
        if self.denial_spends && !decision.is_allowed() {
            let _ = self.inner.check(state, now, 1);
        }
        decision
    }

    fn peek(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        self.inner.peek(state, now, cost)
    }

    fn seen(&self, state: &A::State) -> Nanos {
        self.inner.seen(state)
    }

    fn refund(&self, state: &mut A::State, now: Nanos, cost: u64) {
        self.inner.refund(state, now, cost);
    }

    fn adapt(&self, state: &mut A::State, from: &Self, now: Nanos) {
        self.inner.adapt(state, &from.inner, now);
    }

    fn is_fresh(&self, state: &A::State, now: Nanos) -> bool {
        self.inner.is_fresh(state, now)
    }

    fn policy(&self) -> Policy {
        self.inner.policy()
    }
}
