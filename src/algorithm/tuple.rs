//! Tuples: several limits on one key.

use crate::algorithm::{
    Algorithm, QueueConfig, QuotaPolicy, ScriptSteps, Semaphore, SharedPermit, StateReader, StateWriter,
    StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;

/// The combined decision of several limits.
#[derive(Clone, Copy, Debug, Default)]
struct Combined {
    reported: Option<Decision>,
    limits: usize,
    remaining: u64,
    reset: u64,
    /// The [effective window](QuotaPolicy::effective_window) of the reported limit.
    window: Option<u64>,
    /// `true` if one of the limits can never admit the call.
    never: bool,
    /// `true` if one of the limits locks the key out.
    locked_out: bool,
}

impl Combined {
    /// Adds the `decision` of one more member, which has `limits` limits. `window` is the effective window of the limit
    /// that `decision` reports.
    #[inline]
    fn and(mut self, decision: Decision, (limits, window): (usize, Option<u64>)) -> Self {
        let index = self.limits + decision.limit_index();
        let decision = decision.with_index(index);
        self.limits += limits;
        self.never |= decision.never_fits();
        self.locked_out |= decision.is_locked_out();
        self.reset = self.reset.max(decision.reset_nanos());
        self.remaining = self.reported.map_or(u64::MAX, |_| self.remaining).min(decision.remaining());
        if self.reported.is_none_or(|reported| urgency(&decision, window) > urgency(&reported, self.window)) {
            (self.reported, self.window) = (Some(decision), window);
        }
        self
    }

    #[inline]
    fn decision(self) -> Decision {
        let Some(reported) = self.reported else { unreachable!("a tuple has at least two limits") };
        let decision = if reported.is_allowed() {
            Decision::allow(reported.limit(), self.remaining, self.reset)
                .with_window(self.window.unwrap_or(0))
        } else {
            Decision::deny(reported.limit(), self.remaining, reported.retry_nanos(), self.reset)
                .with_unknown_wait(!self.never)
                .with_locked_out(self.locked_out)
        };
        decision.with_index(reported.limit_index())
    }
}

/// Returns how urgent a decision is. A tuple reports the most urgent decision of its members. Denials are more urgent
/// than admissions. The most urgent denial is the one with the longest wait, and a denial without a `retry_after`
/// counts as the longest wait. The most urgent admission is the one with the fewest units left. Of admissions with
/// equally many units left, the one with the longest effective window is the most urgent, and an admission without an
/// effective window counts as the longest.
#[inline]
fn urgency(decision: &Decision, window: Option<u64>) -> (bool, u64, u64) {
    if decision.is_allowed() {
        (false, u64::MAX - decision.remaining(), window.unwrap_or(u64::MAX))
    } else {
        (true, decision.retry_nanos().unwrap_or(u64::MAX), 0)
    }
}

/// Returns how many limits a member has, and the effective window of the limit that `decision` reports, in nanoseconds.
#[inline]
fn reported(algorithm: &impl Algorithm, decision: &Decision) -> (usize, Option<u64>) {
    let (mut limits, mut reported) = (0, None);
    algorithm.for_each_policy(&mut |policy| {
        // A custom algorithm may have returned an index out of range. The first limit is used for such an index.
        if limits == 0 || limits == decision.limit_index() {
            reported = Some(policy);
        }
        limits += 1;
    });
    (limits, reported.and_then(|policy| policy.effective_nanos(decision)))
}

/// Splits the [units of the states](StoredAlgorithm::unit) of a tuple's members, such as `a,(b,c),d`, at the
/// commas outside parentheses.
fn split_members(units: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    units.split(move |c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    })
}

/// Several limits on one key: a call is admitted and charged if each member admits it. Otherwise no member is charged.
///
/// `remaining` is the lowest of all members, and `retry_after` and `reset_after` are the longest. If a member denies
/// the call without a `retry_after`, the combined decision has none. `limit` and [`limit_index`](Decision::limit_index)
/// are those of the member with the most urgent decision.
///
/// In [`acquire`](crate::limiter::RateLimiter::acquire), a call is queued until all members admit it. The shortest of
/// the members' queues and the shortest `max_wait` apply. A layer queues requests only if each member is configured to
/// queue requests. So in a tuple of a [`LeakyBucket`](crate::algorithm::LeakyBucket) and a window on which none of
/// `queue`, `max_wait` and `overflow` was called, requests that arrive before the bucket's next slot are denied. No
/// call is queued if a member is a [`Lockout`](crate::algorithm::Lockout), a [`Tiered`](crate::algorithm::Tiered) or a
/// window with [priority](crate::algorithm#priority). A lockout around a tuple queues calls as the tuple does.
macro_rules! tuple {
    ($($part:ident $at:tt)+) => {
        #[allow(non_snake_case, reason = "a member's type stands for whether it was checked")]
        impl<$($part: Algorithm),+> Algorithm for ($($part,)+) {
            type State = ($($part::State,)+);

            const UNDO_BY_COPY: bool = $($part::UNDO_BY_COPY)&&+;
            const NEEDS_RELEASE: bool = $($part::NEEDS_RELEASE)||+;

            fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State {
                ($(self.$at.new_state(created_at, now),)+)
            }

            #[inline]
            fn last_update(&self, state: &Self::State) -> Nanos {
                Nanos::ZERO$(.max(self.$at.last_update(&state.$at)))+
            }

            fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
                // Most calls are admitted, so all members are charged at once. If a member denies the call, the members
                // that allowed it get their former states back, and are peeked at for the decision.
                if Self::UNDO_BY_COPY && !Self::NEEDS_RELEASE {
                    let before = state.clone();
                    let mut decisions = ($(self.$at.check(&mut state.$at, now, cost),)+);
                    let passes = $(decisions.$at.is_allowed())&&+;
                    let together = Combined::default();
                    $(
                        if !passes && decisions.$at.is_allowed() {
                            self.$at.restore(&mut state.$at, before.$at);
                            decisions.$at = self.$at.peek(&mut state.$at, now, cost);
                        }
                        let together = together.and(decisions.$at, reported(&self.$at, &decisions.$at));
                    )+
                    return together.decision();
                }
                let mut peeked = ($(self.$at.peek(&mut state.$at, now, cost),)+);
                let mut passes = $(peeked.$at.is_allowed())&&+;
                // Members with a total of all keys are checked first, because calls of other keys may have used up the
                // total since the peek.
                $(
                    let $part = (passes && $part::NEEDS_RELEASE).then(|| {
                        peeked.$at = self.$at.check(&mut state.$at, now, cost);
                        passes = peeked.$at.is_allowed();
                        passes
                    });
                )+
                let together = Combined::default();
                $(
                    let is_checked = $part.is_none() && (passes || !peeked.$at.is_allowed());
                    // Members that deny the call are also checked, because a member may count its denials.
                    let decision = is_checked.then(|| self.$at.check(&mut state.$at, now, cost));
                    let is_charged = decision.map_or($part == Some(true), |decision| decision.is_allowed());
                    let decision = decision.filter(|_| passes || !is_charged).unwrap_or(peeked.$at);
                    if is_charged && !passes {
                        self.$at.release(&mut state.$at, now, cost);
                        drop(SharedPermit::of_admitted(&self.$at, cost));
                        self.$at.refund(&mut state.$at, now, cost, Some(now));
                    }
                    let together = together.and(decision, reported(&self.$at, &decision));
                )+
                together.decision()
            }

            fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
                let together = Combined::default();
                $(
                    let decision = self.$at.peek(&mut state.$at, now, cost);
                    let together = together.and(decision, reported(&self.$at, &decision));
                )+
                together.decision()
            }

            fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
                $(self.$at.refund(&mut state.$at, now, cost, charged_at);)+
            }

            fn refund_settled(
                &self,
                state: &mut Self::State,
                now: Nanos,
                charged: u64,
                actual: u64,
                charged_at: Nanos,
            ) {
                $(self.$at.refund_settled(&mut state.$at, now, charged, actual, charged_at);)+
            }

            /// Charges each member as far as the member allows. Returns the fewest units that were charged to a member.
            fn charge(&self, state: &mut Self::State, now: Nanos, cost: u64, max_debt: u64) -> u64 {
                cost$(.min(self.$at.charge(&mut state.$at, now, cost, max_debt)))+
            }

            fn charge_available(&self, state: &mut Self::State, now: Nanos, cost: u64) -> u64 {
                cost$(.min(self.$at.charge_available(&mut state.$at, now, cost)))+
            }

            fn migrate(&self, state: &mut Self::State, from: &Self, now: Nanos) {
                $(self.$at.migrate(&mut state.$at, &from.$at, now);)+
            }

            fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
                $(self.$at.is_fresh(&state.$at, now))&&+
            }

            /// Returns the policy of the first member. See [`for_each_policy`](Algorithm::for_each_policy).
            fn policy(&self) -> QuotaPolicy {
                self.0.policy()
            }

            #[inline]
            fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
                $(self.$at.for_each_policy(f);)+
            }

            fn release(&self, state: &mut Self::State, now: Nanos, cost: u64) {
                $(self.$at.release(&mut state.$at, now, cost);)+
            }

            fn for_each_total(&self, f: &mut dyn FnMut(&Semaphore)) {
                $(self.$at.for_each_total(f);)+
            }

            fn in_flight(&self, state: &Self::State) -> u64 {
                0$(.max(self.$at.in_flight(&state.$at)))+
            }

            fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
                Usage::NONE$(.max(self.$at.usage(&state.$at, now)))+
            }

            /// Returns the combined queue configuration of all members. Returns `None` if a member has no queue
            /// configuration, or if the configurations cannot be combined. A waiter is admitted once all members admit
            /// it.
            fn queue_config(&self) -> Option<QueueConfig> {
                let members = [$(self.$at.queue_config()?),+];
                let [first, others @ ..] = members;
                others.into_iter().try_fold(first, QueueConfig::and)
            }

            fn ready_at(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Option<Nanos> {
                let mut latest = Nanos::ZERO;
                $(latest = latest.max(self.$at.ready_at(&mut state.$at, now, cost)?);)+
                Some(latest)
            }

            /// Returns the latest time of the members. Each is asked at its own latest reading, which may be earlier
            /// than that of the tuple.
            fn due_from(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Nanos {
                Nanos::ZERO$(.max(self.$at.due_from(&mut state.$at, now, cost)))+
            }

            /// Admits the call if all members can admit it now, and otherwise returns `None`. Each member admits the
            /// call as if the call had arrived when the others could admit it. So a bucket or a `Smooth` keeps its
            /// schedule if the admission is late, and a window counts the call now.
            fn admit_queued(
                &self,
                state: &mut Self::State,
                now: Nanos,
                arrived: Nanos,
                cost: u64,
            ) -> Option<Nanos> {
                if now < self.last_update(state) {
                    let _ = self.ready_at(state, now, cost);
                }
                // The time from which all members admit the call.
                let mut due = arrived;
                $(
                    let $part = self.$at.due_from(&mut state.$at, now, cost);
                    due = due.max($part);
                )+
                if due > now && self.ready_at(state, now, cost)? > now {
                    return None;
                }
                let due = due.min(now);
                let mut charged_at = due;
                $(
                    // A bucket does not look at the arrival, so its state is advanced to it.
                    if $part < due && self.$at.last_update(&state.$at) < due {
                        let _ = self.$at.ready_at(&mut state.$at, due, cost);
                    }
                    let admitted = self.$at.admit_queued(&mut state.$at, now, due, cost);
                    charged_at = charged_at.max(admitted.unwrap_or(now));
                )+
                Some(charged_at)
            }

            fn report(
                &self,
                state: &mut Self::State,
                now: Nanos,
                cost: u64,
                counts: bool,
                mut decision: Decision,
            ) -> Decision {
                let is_paused = decision.is_paused();
                $(
                    decision = self.$at.report(&mut state.$at, now, cost, counts, decision);
                    decision = decision.with_paused(is_paused);
                )+
                decision
            }

            fn restore(&self, state: &mut Self::State, before: Self::State) {
                $(self.$at.restore(&mut state.$at, before.$at);)+
            }
        }

        // The state as it is stored: the states of the members, one after another.
        impl<$($part: StoredAlgorithm),+> StoredAlgorithm for ($($part,)+) {
            fn kind() -> String {
                format!("({})", [$($part::kind()),+].join(","))
            }

            fn unit(&self) -> String {
                format!("({})", [$(self.$at.unit()),+].join(","))
            }

            fn with_unit(&self, unit: &str) -> Option<Self> {
                let mut members = split_members(unit.strip_prefix('(')?.strip_suffix(')')?);
                let all = ($(self.$at.with_unit(members.next()?)?,)+);
                members.next().is_none().then_some(all)
            }

            fn write_state(&self, state: &Self::State, numbers: &mut StateWriter) {
                $(self.$at.write_state(&state.$at, numbers);)+
            }

            fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State> {
                Some(($(self.$at.read_state(numbers)?,)+))
            }

            fn check_storable(&self) -> Result<(), ConfigError> {
                $(self.$at.check_storable()?;)+
                Ok(())
            }

            fn script(&self) -> Option<ScriptSteps> {
                let members = [$(self.$at.script()?),+];
                members.into_iter().reduce(ScriptSteps::and)
            }

            fn counts_denials(&self) -> bool {
                $(self.$at.counts_denials())||+
            }

            fn must_keep(&self, before: &Self::State, after: &Self::State) -> bool {
                $(self.$at.must_keep(&before.$at, &after.$at))||+
            }

            fn adopt(&self, state: &mut Self::State) {
                $(self.$at.adopt(&mut state.$at);)+
            }
        }
    };
}

tuple!(A 0 B 1);
tuple!(A 0 B 1 C 2);
tuple!(A 0 B 1 C 2 D 3);
tuple!(A 0 B 1 C 2 D 3 E 4);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingLog, TokenBucket};
    use crate::quota::Quota;
    use std::time::Duration;

    const SECOND: u64 = 1_000_000_000;

    fn ten_a_second_and_twelve_a_day() -> (TokenBucket, FixedWindow) {
        (TokenBucket::new(Quota::per_second(10)), FixedWindow::new(Quota::per_day(12)))
    }

    #[test]
    fn an_admission_reports_the_limit_nearest_to_exhaustion() {
        let both = ten_a_second_and_twelve_a_day();
        let mut state = both.new_state(Nanos::ZERO, Nanos::ZERO);
        let first = both.check(&mut state, Nanos::ZERO, 1);
        assert_eq!((first.limit_index(), first.limit(), first.remaining()), (0, 10, 9));
        assert_eq!(first.reset_after(), Duration::from_secs(86_400));
        let later = both.check(&mut state, Nanos(SECOND), 1);
        assert_eq!((later.limit_index(), later.limit(), later.remaining()), (0, 10, 9));
        let more = both.check(&mut state, Nanos(2 * SECOND), 1);
        assert_eq!(
            (more.limit_index(), more.limit(), more.remaining()),
            (1, 12, 9),
            "of two with as many left, the slower"
        );
        let last = both.check(&mut state, Nanos(2 * SECOND), 5);
        assert_eq!((last.limit_index(), last.remaining()), (1, 4));
        assert_eq!(both.1.policy().effective_window(&last), Some(Duration::from_secs(86_398)));
    }

    #[test]
    fn a_denial_reports_the_longest_wait_and_takes_nothing_from_any() {
        let both = ten_a_second_and_twelve_a_day();
        let mut state = both.new_state(Nanos::ZERO, Nanos::ZERO);
        assert!(both.check(&mut state, Nanos::ZERO, 10).is_allowed());
        let short = both.check(&mut state, Nanos::ZERO, 1);
        assert_eq!((short.limit_index(), short.retry_after()), (0, Some(Duration::from_millis(100))));
        let long = both.check(&mut state, Nanos(SECOND), 3);
        assert_eq!((long.limit_index(), long.retry_after()), (1, Some(Duration::from_secs(86_399))));
        assert_eq!((long.limit(), long.remaining()), (12, 2));
        assert_eq!(both.check(&mut state, Nanos(SECOND), 11).retry_after(), None, "never fits the bucket");
        assert_eq!(both.0.peek(&mut state.0, Nanos(SECOND), 10).remaining(), 10, "nothing was taken");
    }

    #[test]
    fn tuples_of_tuples_count_their_limits_in_order() {
        let quota = Quota::per_second(5);
        let nested =
            ((TokenBucket::new(quota), SlidingLog::new(Quota::per_second(4))), FixedWindow::new(quota));
        let mut state = nested.new_state(Nanos::ZERO, Nanos::ZERO);
        assert_eq!(nested.check(&mut state, Nanos::ZERO, 1).limit_index(), 1);
        let denied = nested.check(&mut state, Nanos(SECOND / 2), 5);
        assert_eq!((denied.limit_index(), denied.retry_after()), (1, None));
        let mut quotas = Vec::new();
        nested.for_each_policy(&mut |policy| quotas.push(policy.quota));
        assert_eq!(quotas, [5, 4, 5]);
    }

    #[test]
    fn members_are_split_outside_of_parentheses() {
        let members: Vec<_> = split_members("a:1,(b,(c,d)),e").collect();
        assert_eq!(members, ["a:1", "(b,(c,d))", "e"]);
    }
}
