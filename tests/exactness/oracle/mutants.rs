//! Mutants, which are broken on purpose. The checker must detect each of them.

use std::fmt::Debug;
use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, FixedWindow, QuotaPolicy, TokenBucket};
use tower_throttle::clock::Nanos;
use tower_throttle::{Decision, Quota};

use super::config::Rule;

/// The fault of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault in the operations. The parameters may still be wrong.
    None,
    /// A denied call takes a unit, if one is left.
    DenialSpends,
    LookingTakes,
    RefundGivesMore,
    RefundIsIgnored,
    /// A settlement below the charge gives back nothing.
    SettlementIsIgnored,
    /// A settlement below the charge gives back units of any age.
    SettlementGivesAnyUnits,
    /// A charge makes no debt.
    DebtIsForgiven,
    RemainingIsOneMore,
    RetryIsShort,
    ResetIsLong,
    /// A step back of the clock advances the key's time by the same distance.
    BackIsElapsed,
    /// After a replacement, all keys are new.
    ReplacingResets,
    /// A replacement keeps the remaining units, instead of the used units.
    ReplacingKeepsWhatIsLeft,
}

/// An algorithm with one fault, either in its parameters or in its operations.
#[derive(Clone, Debug)]
pub(crate) struct Mutant<A> {
    inner: A,
    fault: Fault,
}

#[derive(Clone, Debug)]
pub(crate) struct TwinState<S> {
    inner: S,
    seen: u64,
    /// The distance by which the mutant's time is ahead.
    ahead: u64,
}

fn per(limit: u64, nanos: u64, burst: u64) -> Quota {
    let period = Duration::from_nanos(nanos.clamp(1, i64::MAX as u64));
    Quota::per(limit, period).unwrap().burst(burst)
}

impl<A> Mutant<A> {
    pub(crate) fn new(fault: Fault, inner: A) -> Self {
        Self { inner, fault }
    }
}

impl Mutant<TokenBucket> {
    /// Adds a token every `period / limit` nanoseconds, rounded down, so each token is a little early.
    pub(crate) fn rounded_down(rule: &Rule) -> Self {
        let interval = rule.period / rule.limit;
        Self::new(Fault::None, TokenBucket::new(per(1, interval, rule.burst)))
    }

    /// Adds a token every `period / limit` nanoseconds, rounded up, so the schedule drifts.
    pub(crate) fn rounded_up(rule: &Rule) -> Self {
        let interval = rule.period.div_ceil(rule.limit);
        Self::new(Fault::None, TokenBucket::new(per(1, interval, rule.burst)))
    }

    /// Follows a clock that steps back by less than a period, and so refills twice for the same time.
    pub(crate) fn paid_twice(rule: &Rule) -> Self {
        let shrunk = (1..=rule.limit.min(10))
            .rev()
            .find(|n| rule.limit.is_multiple_of(*n) && rule.period.is_multiple_of(*n))
            .unwrap_or(1);
        let quota = per(rule.limit / shrunk, rule.period / shrunk, rule.burst);
        Self::new(Fault::None, TokenBucket::new(quota))
    }
}

impl Mutant<FixedWindow> {
    /// The window lasts a nanosecond too long.
    pub(crate) fn late_edge(rule: &Rule) -> Self {
        Self::new(Fault::None, FixedWindow::new(per(rule.limit, rule.period + 1, rule.burst)))
    }

    /// The window ends a nanosecond too early.
    pub(crate) fn early_edge(rule: &Rule) -> Self {
        Self::new(Fault::None, FixedWindow::new(per(rule.limit, rule.period - 1, rule.burst)))
    }
}

impl<A: Algorithm> Mutant<A> {
    /// Returns the time that the mutant takes for `now`.
    fn time(&self, state: &mut TwinState<A::State>, now: Nanos) -> Nanos {
        if self.fault == Fault::BackIsElapsed {
            let back = state.seen.saturating_sub(now.0);
            state.ahead = state.ahead.saturating_add(back.saturating_mul(2));
            state.seen = now.0;
        }
        now.saturating_add(state.ahead)
    }

    fn reported(&self, decision: Decision) -> Decision {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let (limit, mut remaining) = (decision.limit(), decision.remaining());
        let (mut retry, mut reset) = (decision.retry_after().map(nanos), nanos(decision.reset_after()));
        match self.fault {
            Fault::RemainingIsOneMore => remaining = remaining.saturating_add(1),
            Fault::RetryIsShort => retry = retry.map(|wait| wait.saturating_sub(1)),
            Fault::ResetIsLong => reset = reset.saturating_add(1),
            _ => return decision,
        }
        match decision.is_allowed() {
            true => Decision::allow(limit, remaining, reset),
            false => Decision::deny(limit, remaining, retry, reset),
        }
    }
}

impl<A: Algorithm> Algorithm for Mutant<A> {
    type State = TwinState<A::State>;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State {
        TwinState { inner: self.inner.new_state(created_at, now), seen: now.0, ahead: 0 }
    }

    fn last_update(&self, state: &Self::State) -> Nanos {
        self.inner.last_update(&state.inner)
    }

    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let now = self.time(state, now);
        let decision = self.inner.check(&mut state.inner, now, cost);
        if self.fault == Fault::DenialSpends && !decision.is_allowed() {
            let _ = self.inner.check(&mut state.inner, now, 1);
        }
        self.reported(decision)
    }

    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let now = self.time(state, now);
        let decision = self.inner.peek(&mut state.inner, now, cost);
        if self.fault == Fault::LookingTakes {
            let _ = self.inner.check(&mut state.inner, now, cost);
        }
        self.reported(decision)
    }

    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        let now = self.time(state, now);
        match self.fault {
            Fault::RefundGivesMore => {
                self.inner.refund(&mut state.inner, now, cost.saturating_add(1), charged_at);
            }
            Fault::RefundIsIgnored => {}
            Fault::SettlementIsIgnored if charged_at.is_some() => {}
            Fault::SettlementGivesAnyUnits => self.inner.refund(&mut state.inner, now, cost, None),
            _ => self.inner.refund(&mut state.inner, now, cost, charged_at),
        }
    }

    fn refund_settled(
        &self,
        state: &mut Self::State,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        let now = self.time(state, now);
        match self.fault {
            Fault::RefundGivesMore => {
                let actual = actual.saturating_sub(1);
                self.inner.refund_settled(&mut state.inner, now, charged, actual, charged_at);
            }
            Fault::RefundIsIgnored | Fault::SettlementIsIgnored => {}
            Fault::SettlementGivesAnyUnits => {
                self.inner.refund(&mut state.inner, now, charged - actual, None);
            }
            _ => self.inner.refund_settled(&mut state.inner, now, charged, actual, charged_at),
        }
    }

    fn charge(&self, state: &mut Self::State, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        let now = self.time(state, now);
        let bound = if self.fault == Fault::DebtIsForgiven { 0 } else { max_debt };
        self.inner.charge(&mut state.inner, now, cost, bound)
    }

    fn migrate(&self, state: &mut Self::State, from: &Self, now: Nanos) {
        let now = self.time(state, now);
        let left = from.inner.peek(&mut state.inner, now, 0).remaining();
        self.inner.migrate(&mut state.inner, &from.inner, now);
        match self.fault {
            Fault::ReplacingResets => state.inner = self.inner.new_state(Nanos::ZERO, now),
            Fault::ReplacingKeepsWhatIsLeft => {
                let more = self.inner.peek(&mut state.inner, now, 0).remaining().saturating_sub(left);
                let _ = self.inner.check(&mut state.inner, now, more);
            }
            _ => {}
        }
    }

    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
        self.inner.is_fresh(&state.inner, now.saturating_add(state.ahead))
    }

    fn policy(&self) -> QuotaPolicy {
        self.inner.policy()
    }
}
