//! The trait [`Algorithm`], and what only its methods return.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use crate::algorithm::clock_step::earliest_slot;
use crate::algorithm::{QueueConfig, QuotaPolicy, Semaphore};
use crate::clock::Nanos;
use crate::decision::Decision;

/// The maximum number of units by which a key is in [debt](crate::limiter::Builder::max_debt): 2^53. It is the largest
/// number up to which the scripts of a limiter in Redis compute exactly.
pub const MAX_DEBT: u64 = 1 << 53;

/// An algorithm that decides whether a call may pass.
///
/// Implement this trait for an algorithm of your own. Every method should return in constant time, and must not panic
/// for any `now` and `cost`. A call of cost 0 must be allowed, and must not charge anything. Either all values of a
/// type can [queue](Algorithm::queue_config) calls, or none can.
///
/// Keys may be locked while a limiter calls the methods, and while it clones or drops the algorithm or a state. So none
/// of these may use the limiter. If one of them panics nevertheless, the panic reaches the caller of the limiter, and
/// later calls are decided. But it is not promised that what the call was charged until then is undone, by this limit
/// or by those that are [joined](crate::middleware::RateLimitLayer::and) with it.
///
/// The eight required methods are enough to decide calls. [`queue_config`](Algorithm::queue_config) lets an algorithm
/// queue calls as well. All other methods that limiters call are hidden: they are for algorithms that limit calls in
/// progress, that have several limits, or that let a limiter do less work, and have defaults.
///
/// The types of the module [`algorithm`](crate::algorithm) implement the trait, and so do tuples of them. Their pages
/// do not list these methods, because only limiters call them.
///
/// # Stability
///
/// Before 1.0, any version may change what an implementation of this trait, or of
/// [`StoredAlgorithm`](super::StoredAlgorithm), must have. So an implementation is exempt from semantic versioning, as
/// calls of the methods are. A bound such as `A: Algorithm`, and [`block_for`](Algorithm::block_for), are not exempt.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no algorithm that decides whether a call may pass",
    note = "take one of `tower_throttle::algorithm`, or a tuple of them: a `Quota` becomes one by \
            `TokenBucket::new(quota)`, and `block_for(..)` by `.after(n)`",
    note = "a limiter that you have already made goes into a layer by `RateLimitLayer::with_limiter(key, limiter)`"
)]
pub trait Algorithm: Clone + Debug + Send + Sync + 'static {
    /// The state of one key.
    type State: Clone + Debug + Send + Sync + 'static;

    /// The way in which a limiter undoes the latest admission of a queued call. With `true`, the limiter copies the
    /// state before each such admission, and undoes the admission by [restoring](Algorithm::restore) the copy. With
    /// `false`, the limiter calls [`refund`](Algorithm::refund) with the time of the charge. Choose `false` if this is
    /// as exact as a copy, or if a copy is expensive.
    ///
    /// A tuple whose members all have `true` here, and [need no release](Algorithm::NEEDS_RELEASE), copies their states
    /// before each call, and calls `check` of all members. If a member denies the call, the members that allowed it get
    /// their copies back, and `refund` is not called.
    #[doc(hidden)]
    const UNDO_BY_COPY: bool = true;

    /// `true` if a [`refund`](Algorithm::refund) without the time of the charge removes one of several
    /// [projected](Algorithm::project) calls exactly: the state is then the same as if that call had never been
    /// projected.
    #[doc(hidden)]
    const ADDS_UP: bool = false;

    /// `true` if an admitted call holds units until the call ends, as with [`Concurrency`](super::Concurrency) and with
    /// algorithms that contain one. If `true`, the limiter calls `release` once when the call ends.
    const NEEDS_RELEASE: bool = false;

    /// `true` if a denial of a call of cost 1 stands until its `retry_after` has passed, whatever calls are made until
    /// then. At each instant until then, [`check`](Algorithm::check) must return the same denial, except that the times
    /// in the denial are shorter by the time that has passed. `check` must then do nothing to the state except advance
    /// it to `now`. If `true`, a limiter may deny such calls without calling `check`.
    #[doc(hidden)]
    const DENIALS_STAND: bool = false;

    /// Returns the state of a new key at `now`.
    ///
    /// The limiter was created at `created_at`, and the key has been idle since then.
    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State;

    /// Returns the latest clock reading that the state has observed.
    fn last_update(&self, state: &Self::State) -> Nanos;

    /// Charges `cost` units if all of them are available. Otherwise charges nothing.
    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// Returns the decision that [`check`](Algorithm::check) would make for a call of `cost`, without charging the
    /// call. `remaining` and `reset_after` describe the state without the call.
    ///
    /// The state may be advanced to `now`, which changes no decision at `now` or later.
    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// Gives back up to `cost` units that were charged and still count. Units that no longer count are not given back:
    /// a key never has more units available than a fresh key.
    ///
    /// `charged_at` is the time of the charge. If it is `None`, it is not known which charge the refund is for. If it
    /// is known, the refund undoes that charge, as far as its units still count, and other charges of the key are not
    /// affected. An algorithm that cannot tell which charges still count may treat a charge as expired if `now` is
    /// after `charged_at`. The algorithms of this crate undo nothing if the clock was set back by more than one period,
    /// to before `charged_at`. If it was set back by more than one period to a later time, they may give back units of
    /// calls that were charged before the step.
    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Option<Nanos>);

    /// Settles a call that was charged `charged` units at `charged_at`, and whose actual cost is the lower number
    /// `actual`.
    ///
    /// The default undoes as much of the difference as still counts. An algorithm overrides this method if it knows
    /// better how many units of a call still count than for a charge of the difference alone.
    #[doc(hidden)]
    fn refund_settled(
        &self,
        state: &mut Self::State,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        self.refund(state, now, charged.saturating_sub(actual), Some(charged_at));
    }

    /// Converts `state` at `now` from the configuration `old` to this configuration.
    ///
    /// Charged units that still count stay charged, up to the maximum that calls can charge to a key with this
    /// configuration. Debt, which is what was charged above that maximum of `old`, is added to them.
    /// See [replacing an algorithm](crate::limiter::RateLimiter::replace).
    fn migrate(&self, state: &mut Self::State, old: &Self, now: Nanos);

    /// Charges up to `cost` units after the fact, even if `self` would deny a call of this cost. Returns how many units
    /// were charged.
    ///
    /// Units that were charged although they were not available are *debt*, which is at most `max_debt`. So with a
    /// `max_debt` of 0, at most the available units are charged, and [`u64::MAX`] means no bound but the range of the
    /// state. A key in debt has no units available, and calls are denied until enough units have been refilled, or
    /// no longer count. A charge never lowers what was charged before.
    ///
    /// [Settlements](crate::limiter::Reservation::settle) call this method with the
    /// [`max_debt`](crate::limiter::Builder::max_debt) of the limiter, unless it is 0. [`Tiered`](super::Tiered) calls
    /// it with 0, for a call that another tier has admitted, and so does a reset, for a call that was admitted before.
    ///
    /// By default, charges only as many units as are available, whatever `max_debt` is.
    /// [`Concurrency`](super::Concurrency) always charges all units. [`LeakyBucket`](super::LeakyBucket) and
    /// [`Smooth`](super::Smooth) charge as many units as the next scheduled time is then at most `max_debt` intervals
    /// and those of the calls that can pass at once away or, with a `max_debt` of 0, at most `cost` intervals.
    #[doc(hidden)]
    fn charge(&self, state: &mut Self::State, now: Nanos, cost: u64, _max_debt: u64) -> u64 {
        self.charge_available(state, now, cost)
    }

    /// Charges up to `cost` units after the fact, by a call of as many whole units as are available: a schedule moves
    /// only if its next time has come, and a unit that is partly refilled stays. Returns how many units were charged.
    /// Each of several limits is charged what is available there, and the result is the lowest number.
    ///
    /// Charges after the fact call this method if the limiter has a [`max_debt`](crate::limiter::Builder::max_debt) of
    /// 0.
    #[doc(hidden)]
    fn charge_available(&self, state: &mut Self::State, now: Nanos, cost: u64) -> u64 {
        let charged = cost.min(self.peek(state, now, 0).remaining());
        let _ = self.check(state, now, charged);
        charged
    }

    /// Returns whether the state is fresh: a fresh state decides, at `now` and later, as the state of a new key does. A
    /// limiter may remove a fresh state. While the [time](crate::algorithm#time) of a key stands still, its state is
    /// not fresh.
    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool;

    /// Returns the policy that is reported to clients: the quota and the window of the `RateLimit-Policy` field.
    fn policy(&self) -> QuotaPolicy;

    /// Calls `f` with the policy of each limit, in the order of [`Decision::limit_index`]. A tuple has more than one
    /// limit.
    #[doc(hidden)]
    #[inline]
    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        f(self.policy());
    }

    /// Locks a key out for `duration` when a number of its calls were denied within one window. The method `after(n)`
    /// of the result sets the number, and returns the [`Lockout`](super::Lockout). The window is as long as the longest
    /// window of the algorithm's policies. If the policies have no window, it is as long as the lockout.
    ///
    /// # Panics
    ///
    /// Panics if `duration` is zero. `after` panics if `n` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::algorithm::{Algorithm, FixedWindow, Lockout, TokenBucket};
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limits =
    ///     (TokenBucket::new(Quota::per_second(1)), FixedWindow::new(Quota::per_minute(5)));
    /// let algorithm: Lockout<_> = limits.block_for(Duration::from_secs(3_600)).after(10);
    /// let logins = RateLimiter::new(algorithm);
    /// ```
    #[track_caller]
    fn block_for(self, duration: Duration) -> LockoutBuilder<Self> {
        LockoutBuilder::new(self, duration)
    }

    /// Releases the units that an ended call of `cost` held for its key.
    #[doc(hidden)]
    fn release(&self, _state: &mut Self::State, _now: Nanos, _cost: u64) {}

    /// Calls `f` with each [total](super::Concurrency::total), which bounds the units that the calls of all keys hold
    /// together. A [`SharedPermit`](super::SharedPermit) stands for the units of one call in these totals, and
    /// subtracts them when it is dropped.
    #[doc(hidden)]
    fn for_each_total(&self, _f: &mut dyn FnMut(&Semaphore)) {}

    /// Returns the number of units that calls in progress hold for the key. A key with such units is never evicted.
    ///
    /// A reset gives the key the state of a new key, to which these units are [charged](Algorithm::charge).
    /// Then the state is [restored](Algorithm::restore) to that of a new key. So the state keeps only what `restore`
    /// does not undo: the units of calls in progress.
    #[doc(hidden)]
    fn in_flight(&self, _state: &Self::State) -> u64 {
        0
    }

    /// `true` if [`usage`](Algorithm::usage) counts units of the quota of [`policy`](Algorithm::policy), and nothing
    /// else in the state of a key makes decisions stricter than those on a new key. A limiter may then evict a key that
    /// has used one unit of a large quota without comparing the key with others.
    #[doc(hidden)]
    const USAGE_IS_OF_QUOTA: bool = false;

    /// Returns how near the key is to its limit at `now`. A limiter that has no room for a new key may compare several
    /// keys, and evict the key with the lowest usage.
    ///
    /// The default implementation calls [`peek`](Algorithm::peek) on a copy of the state, and returns the fraction of
    /// the limit that is used. An algorithm that contains other algorithms returns the highest of their usages.
    #[doc(hidden)]
    fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
        Usage::reported_by(&self.peek(&mut state.clone(), now, 0))
    }

    /// Returns how calls are queued. Returns `None` if the algorithm cannot queue calls. A call that cannot pass now is
    /// then denied.
    ///
    /// The first queued call is tried when the `retry_after` that [`peek`](Algorithm::peek) reports has passed, and is
    /// admitted if [`check`](Algorithm::check) allows it.
    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        None
    }

    /// Returns the time at which a call of `cost` that is first in the queue can be admitted. Returns `None` if that
    /// time is unknown.
    ///
    /// A time that is not after `now` means that the call can be admitted now. [`Nanos::MAX`] means a time beyond the
    /// range of the clock. A queued call can cost more than the limit or burst only if the algorithm was replaced after
    /// the call was queued. Such a call is admitted when the whole limit or burst is available.
    #[doc(hidden)]
    fn ready_at(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Option<Nanos> {
        let mut decision = self.peek(state, now, cost);
        if decision.never_fits() {
            decision = self.peek(state, now, decision.limit());
        }
        if decision.is_allowed() {
            Some(now)
        } else {
            decision.retry_after().map(|wait| now.saturating_add(Nanos::from(wait).0))
        }
    }

    /// Charges a call of `cost` that is first in the queue, if the call can be admitted at `now`. The call arrived at
    /// `arrived`. Returns the time that counts as the time of the charge. By default, this is `now`. In a bucket or a
    /// [`Smooth`](super::Smooth), it is the scheduled time of the call, or 5 ms before `now` if the scheduled time is
    /// earlier than that. In a tuple, it is the latest of the members' times.
    ///
    /// Returns `None` if the call must still wait. This is not counted as a denial.
    #[doc(hidden)]
    fn admit_queued(&self, state: &mut Self::State, now: Nanos, _arrived: Nanos, cost: u64) -> Option<Nanos> {
        let mut decision = self.check(state, now, cost);
        if decision.never_fits() {
            decision = self.check(state, now, decision.limit());
        }
        decision.is_allowed().then_some(now)
    }

    /// Returns the time from which this member of a tuple admits a call of `cost` that is first in the queue, for an
    /// admission at `now`. The state is not advanced to `now`. Returns [`Nanos::MAX`] if the time is unknown.
    ///
    /// A window that admits the call at its own latest reading has perhaps done so for a while, so this reading must
    /// not move the schedules of the others. The latest reading of a member whose units are released is that of the
    /// release.
    #[doc(hidden)]
    fn due_from(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Nanos {
        let last = self.last_update(state);
        let ready_at = self.ready_at(state, last, cost).unwrap_or(Nanos::MAX);
        if ready_at > last || Self::NEEDS_RELEASE { ready_at } else { ready_at.min(earliest_slot(now)) }
    }

    /// Charges a queued call to `state`, which is a copy of the key's state, as if the call were admitted at its
    /// scheduled time. That time may be in the future. Returns the clock reading that must be passed as `now` to the
    /// next method that is called with the copy. This reading is at least the given `now`.
    #[doc(hidden)]
    fn project(&self, state: &mut Self::State, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        let ready_at = self.ready_at(state, now, cost).map_or(now, |ready_at| ready_at.max(now));
        let _ = self.admit_queued(state, ready_at, arrived, cost);
        ready_at
    }

    /// Adjusts `decision`, which the queue has made on a call of `cost`, before the decision is returned to the caller.
    /// `counts` is `false` if a denial must not be counted, as for a peek. [`Lockout`](super::Lockout) implements this
    /// method to count denials.
    #[doc(hidden)]
    #[inline]
    fn report(
        &self,
        _state: &mut Self::State,
        _now: Nanos,
        _cost: u64,
        _counts: bool,
        decision: Decision,
    ) -> Decision {
        decision
    }

    /// Undoes the latest admission of a queued call. `before` is a copy of the state from before the admission. The
    /// copy is advanced to the latest clock reading, and replaces the state. Units that calls hold until they end stay
    /// counted, because only [`release`](Algorithm::release) gives them back. So an algorithm with
    /// [`in_flight`](Algorithm::in_flight) units implements this method.
    #[doc(hidden)]
    fn restore(&self, state: &mut Self::State, before: Self::State) {
        let now = self.last_update(state);
        *state = before;
        let _ = self.peek(state, now, 0);
    }
}

/// Returns the limit that decisions on a new key report.
pub fn limit_of_new_key<A: Algorithm>(algorithm: &A) -> u64 {
    let now = Nanos::ZERO;
    algorithm.peek(&mut algorithm.new_state(now, now), now, 0).limit()
}

/// Returns whether an algorithm queues the requests of a layer.
#[inline]
pub fn holds_requests<A: Algorithm>(algorithm: &A) -> bool {
    algorithm.queue_config().is_some_and(|queue| queue.holds_requests())
}

/// The used fraction of a key's limit. A limiter that has no room for a new key compares usages to choose the key to
/// evict.
///
/// Usages are ordered by the used fraction of the limit, from [`NONE`](Usage::NONE) to [`FULL`](Usage::FULL). The
/// usages of keys in [debt](Algorithm::charge) are above `FULL`, and [`LOCKED_OUT`](Usage::LOCKED_OUT) is above all
/// others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usage {
    /// The fraction, in units of 2^-32.
    fraction: u64,
}

impl Usage {
    /// Nothing is used.
    pub const NONE: Self = Self::new(0);
    /// The limit is reached: nothing remains.
    pub const FULL: Self = Self::new(1 << 32);
    /// The key is locked out, even if units remain.
    pub const LOCKED_OUT: Self = Self::new((1 << 33) - 1);

    const fn new(fraction: u64) -> Self {
        Self { fraction }
    }

    /// Returns the usage of a key that has used `used` of `limit` units. The result is [`FULL`](Usage::FULL) if `used`
    /// is `limit`, less if `used` is less, and more if `used` is more. From twice the `limit` on, all usages are equal.
    #[must_use]
    pub const fn of(used: u64, limit: u64) -> Self {
        match used.checked_sub(limit) {
            None => Self::new(fraction(used, limit)),
            Some(0) => Self::FULL,
            Some(debt) => Self::in_debt(debt, limit),
        }
    }

    /// Returns the usage of a key that has used `debt` units more than `limit`.
    const fn in_debt(debt: u64, limit: u64) -> Self {
        let highest = Self::LOCKED_OUT.fraction - 1;
        let above = if debt < limit { fraction(debt, limit) } else { highest };
        let fraction = Self::FULL.fraction + above;
        Self::new(if fraction < highest { fraction } else { highest })
    }

    /// Returns the usage that follows from the decision on a peek of cost 0.
    const fn reported_by(decision: &Decision) -> Self {
        Self::of(decision.limit().saturating_sub(decision.remaining()), decision.limit())
    }

    /// Returns a number that is ordered as usages are. The number is less than 2^33.
    pub(crate) const fn to_bits(self) -> u64 {
        self.fraction
    }

    /// Returns whether the limit is reached or the key is locked out.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.fraction >= Self::FULL.fraction
    }
}

/// Returns `part / whole` in units of 2^-32, rounded down. `part` is less than `whole`, so the result is less than
/// 2^32.
const fn fraction(part: u64, whole: u64) -> u64 {
    // If possible, the division is in 64 bits, because it then takes less time.
    match part >> 32 {
        0 => (part << 32) / whole,
        _ => (((part as u128) << 32) / whole as u128) as u64,
    }
}

/// A builder of a [`Lockout`](super::Lockout) with a given duration. `after` sets the number of denials, and returns
/// the `Lockout`.
#[derive(Clone, Debug)]
#[must_use = "say after how many denials: `.after(n)`"]
pub struct LockoutBuilder<A> {
    algorithm: A,
    duration: u64,
}

impl<A> LockoutBuilder<A> {
    #[track_caller]
    pub(super) fn new(algorithm: A, duration: Duration) -> Self {
        assert!(!duration.is_zero(), "a block of no time blocks nothing: give at least one nanosecond");
        // A lockout lasts at most 292 years, like a period.
        Self { algorithm, duration: Nanos::from(duration).0.min(i64::MAX as u64) }
    }

    /// Returns the algorithm, and the duration of the lockout in nanoseconds.
    pub(super) fn into_parts(self) -> (A, u64) {
        (self.algorithm, self.duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usages_are_ordered_across_limits() {
        assert_eq!(Usage::of(0, 5), Usage::NONE);
        assert!(Usage::of(1, 1_000) < Usage::of(1, 20));
        assert!(Usage::of(u64::MAX - 1, u64::MAX) < Usage::FULL);
        assert_eq!(Usage::of(1, 1), Usage::FULL);
        assert_eq!(Usage::of(0, 0), Usage::FULL);
        assert!(Usage::FULL < Usage::LOCKED_OUT && Usage::FULL.is_full() && !Usage::of(4, 5).is_full());
        // A key in debt is used more than a key at its limit, and less than a key that is locked out.
        let debts = [(6, 5), (7, 5), (10, 5), (u64::MAX, u64::MAX - 1), (1, 0), ((1 << 41) - 1, 1 << 40)]
            .map(|(used, of)| Usage::of(used, of));
        assert!(debts.iter().all(|debt| *debt >= Usage::FULL && debt.is_full() && *debt < Usage::LOCKED_OUT));
        assert!(Usage::FULL < debts[0] && debts[0] < debts[1] && debts[1] < debts[2] && debts[2] == debts[4]);
        assert_eq!(Usage::of(11, 5), Usage::of(10, 5));
    }

    #[test]
    fn a_decision_reports_what_is_used() {
        assert_eq!(Usage::reported_by(&Decision::allow(4, 3, 9)), Usage::of(1, 4));
        assert_eq!(Usage::reported_by(&Decision::deny(4, 0, Some(1), 9)), Usage::FULL);
        // A cost above the limit is denied, and uses nothing.
        assert_eq!(Usage::reported_by(&Decision::deny(4, 4, None, 0)), Usage::NONE);
    }
}
