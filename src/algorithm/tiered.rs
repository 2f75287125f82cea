//! Tiers: each call can choose the limit that decides the call.

use std::iter;
use std::mem;

use crate::algorithm::{
    Algorithm, QueueConfig, QuotaPolicy, Semaphore, StateReader, StateWriter, StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;

/// One kind of algorithm, configured differently for each tier. Each call may choose its tier.
///
/// The algorithm given to [`new`](Tiered::new) is for calls that choose no tier.
/// [`RateLimitLayer::tier`](crate::middleware::RateLimitLayer::tier) chooses the tier of a request, and
/// [`Call::tier`](crate::limiter::Call::tier) the tier of a call in code.
///
/// A key has one state for each tier that its calls have chosen. When a call chooses a tier that is new to the key, the
/// state of that tier is converted from the state of another tier, as the table of
/// [`replace`](crate::limiter::RateLimiter::replace) describes. Each admitted call is charged to all tiers of the key.
/// If a tier that the call did not choose has fewer units left than the call costs, only these units are charged to
/// that tier. A [`Concurrency`](crate::algorithm::Concurrency) is charged the whole cost even then. In the same case,
/// the next scheduled time of a [`LeakyBucket`](crate::algorithm::LeakyBucket), or of a
/// [`Smooth`](crate::algorithm::Smooth) that can admit no call now, is moved to at least as many intervals from now as
/// the call costs. A `Smooth` that can admit a call now is charged the whole cost. So a user who moves to another tier
/// keeps the charged units. In a span of any length, a user who alternates between token buckets gets at most the
/// largest burst and the refill of the fastest rate. This can be more than each of the buckets admits alone: with 10 a
/// minute and 100 an hour, up to 700 in an hour. A key has at most 32 tiers. If an admitted
/// call adds a tier to a key with 32 tiers, one of these 32 tiers is removed: the tier that becomes fresh first. A
/// denied call adds its tier, too, so that its `retry_after` stays true. A call of cost 0 adds no tier. Once all tiers
/// of a key are fresh, the key counts as a new key, and has only the tier of its next call. It is not promised with how
/// many units a tier begins then if it [starts empty](crate::algorithm::TokenBucket::start_empty): in memory, it is
/// full while the limiter knows the key, and empty once the limiter has removed the key.
///
/// A refund goes to the tier of the last admitted call whose cost was above 0, or of a later
/// [`charge`](crate::limiter::Call::charge) or settlement above the estimate. If that was the default tier, and a
/// [`replace`](crate::limiter::RateLimiter::replace) has replaced it, it goes to the new default tier. If a call is
/// [settled](crate::middleware::RateLimitLayer::settle) at less than it was charged, the difference goes back to the
/// tier of the call only. The other tiers keep the charge, because it is not known how much of it they were charged.
/// The same holds if a call is undone because another limit that is [joined](crate::middleware::RateLimitLayer::and)
/// to this one denies it after it was charged here.
/// Each tier of [lockouts](crate::algorithm::Lockout) counts its own denials, so one denial less than locks a key out,
/// in each of two tiers, does not lock it out.
///
/// Calls of all tiers wait in one queue, in the order of arrival. The first waiter is admitted when the tier that it
/// chose admits it.
///
/// ```
/// use tower_throttle::algorithm::{Tiered, TokenBucket};
/// use tower_throttle::{Quota, RateLimiter};
///
/// let free = TokenBucket::new(Quota::per_minute(10));
/// let paid = TokenBucket::new(Quota::per_minute(1_000));
/// let limiter = RateLimiter::new(Tiered::new(free.clone()));
///
/// assert_eq!(limiter.call("user:42").cost(4).tier(&free).check().remaining(), 6);
/// // The user pays. The four units that were charged stay charged.
/// assert_eq!(limiter.call("user:42").tier(&paid).check().remaining(), 995);
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures), by a user who pays for a larger
/// token bucket during a part of the time:
///
#[cfg_attr(doc, doc = include_str!("pictures/tiers.svg"))]
///
/// # In Redis
///
/// With a `RedisStore` of the crate [`tower-throttle-redis`], the decisions are the same as in memory, with these
/// exceptions:
///
/// - Algorithms that differ only in settings without which their states can be read are one tier. These settings are
///   the queue, [`start_empty`](crate::algorithm::TokenBucket::start_empty) and
///   [`extend_on_retry`](crate::algorithm::Lockout::extend_on_retry). In memory, they are two tiers.
/// - A default algorithm with [priority](crate::algorithm#priority) is refused when the limiter is built, and the
///   priority of another tier has no effect. The same holds for a queue that drops its
///   [oldest](crate::algorithm::QueueOverflow::DropOldest) call.
/// - Calls that wait are queued in their process, and the processes are served in no particular order.
/// - What is [not promised] for any limit in Redis.
///
/// [`tower-throttle-redis`]: https://docs.rs/tower-throttle-redis
/// [not promised]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/exactness/index.html#what-is-not-promised
///
/// # How it works
///
/// **Problem.** Free users may make ten calls a minute, and paying users a thousand. Logins need a stricter limit than
/// searches.
///
/// **Naive answer.** Use a limiter for each tier.
///
/// **Where it breaks.** A user who moves to another tier has an unused limit there.
///
/// **The idea.** A user has a state for each tier that the user's calls have chosen, and each admitted call is charged
/// to all these states. When a call chooses a tier for the first time, the new state is converted from an existing
/// state, as when the algorithm of a limiter is [replaced](crate::limiter::RateLimiter::replace). If there are several
/// existing states, each is converted, and the result with the fewest remaining units is used. Only whole units are
/// compared.
///
/// A single state is not enough. A state that is converted to a small limit and back to a large limit loses the charged
/// units above the small limit. A user who alternates between two tiers would have no limit at all.
///
/// **Invariant.** A call passes only if its own tier has room. Once a key has a state for a tier, each admitted call of
/// the key is charged to that tier, whichever tier the call chose. If a tier that the call did not choose has fewer
/// units left than the call costs, only these units are charged to that tier. A `Concurrency` is charged the whole cost
/// even then. A settlement makes [debt](crate::limiter::Builder::max_debt) only in the tier of its call. A state that
/// is converted to a new tier is converted with its debt.
///
/// **Cost.** A key takes the size of the algorithm more (48 to 80 bytes, or more for a
/// [`Smooth`](crate::algorithm::Smooth) or a combined algorithm), and another 24 bytes. A key whose recent calls chose
/// several tiers has a state and an algorithm for each of them, up to 32. The time that a call takes is then
/// proportional to the number of these tiers. When a queued call is admitted, the states are copied, with their whole
/// logs if they are those of a [`SlidingLog`](crate::algorithm::SlidingLog).
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiered<A> {
    algorithm: A,
}

/// The state that a [`Tiered`] keeps for a key.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TieredState<A: Algorithm> {
    /// The current tier: the tier of the last admitted call or, before the first admission, the tier with which the
    /// state was created.
    by: A,
    state: A::State,
    /// The other tiers of the key. Together with the current tier, there are at most [`MAX_TIERS`].
    other_tiers: Vec<(A, A::State)>,
}

/// The maximum number of tiers that a key has a state for.
const MAX_TIERS: usize = 32;

/// The treatment of a tier's state after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// If the tier is new to the key, its state is dropped, because no later decision depends on that state.
    Nothing,
    /// The state is kept if the key has room for another tier.
    State,
    /// The state is kept, and its tier becomes the current tier.
    Tier,
}

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Creates tiers with `algorithm` as the default, for calls that choose no tier.
    #[must_use]
    pub const fn new(algorithm: A) -> Self {
        Self { algorithm }
    }

    /// Returns the algorithm for calls that choose no tier.
    #[must_use]
    pub const fn algorithm(&self) -> &A {
        &self.algorithm
    }

    /// Converts a copy of the state of the tier `by` to this tier. Returns the converted state and its remaining units.
    fn migrated(&self, by: &A, state: &A::State, now: Nanos) -> (A::State, u64) {
        let mut converted = state.clone();
        self.algorithm.migrate(&mut converted, by, now);
        let left = self.algorithm.peek(&mut converted, now, 0).remaining();
        (converted, left)
    }

    /// Returns the state for a tier that is new to the key. The state of each other tier is converted, and the result
    /// with the fewest remaining units is returned, because a tier with a small limit cannot count all units that were
    /// charged to a tier with a large limit.
    #[cold]
    fn new_tier(&self, state: &TieredState<A>, now: Nanos) -> A::State {
        let mut fewest = self.migrated(&state.by, &state.state, now);
        for (by, other) in &state.other_tiers {
            let other = self.migrated(by, other, now);
            if other.1 < fewest.1 {
                fewest = other;
            }
        }
        if self.is_fresh(state, now) && !self.algorithm.is_fresh(&fewest.0, now) {
            // A `Smooth` of the other kind would begin without stored permits.
            return self.algorithm.new_state(Nanos::ZERO, now);
        }
        fewest.0
    }

    /// Calls `ask` with the state of this tier, even if the tier is new to the key. `ask` also returns what then
    /// happens to that state.
    #[inline]
    fn ask<R>(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        ask: impl FnOnce(&mut A::State) -> (R, Keep),
    ) -> R {
        if state.by == self.algorithm && state.other_tiers.is_empty() {
            ask(&mut state.state).0
        } else {
            self.ask_one(state, now, ask)
        }
    }

    /// Like [`ask`](Self::ask), for a key that has other tiers than this.
    fn ask_one<R>(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        ask: impl FnOnce(&mut A::State) -> (R, Keep),
    ) -> R {
        if self.is_fresh(state, now) {
            // A limiter may remove the key now. So its former tiers must have no effect even if it is not removed.
            let mut own = self.new_tier(state, now);
            let (result, keep) = ask(&mut own);
            if keep != Keep::Nothing {
                *state = TieredState { by: self.algorithm.clone(), state: own, other_tiers: Vec::new() };
            }
            return result;
        }
        if state.by == self.algorithm {
            return ask(&mut state.state).0;
        }
        let known = state.other_tiers.iter().position(|(algorithm, _)| *algorithm == self.algorithm);
        let (result, keep, at) = match known {
            Some(at) => {
                let (result, keep) = ask(&mut state.other_tiers[at].1);
                (result, keep, at)
            }
            None => {
                let mut own = self.new_tier(state, now);
                let (result, keep) = ask(&mut own);
                let has_place = state.other_tiers.len() < MAX_TIERS - 1;
                if keep == Keep::Nothing || keep == Keep::State && !has_place {
                    return result;
                }
                state.other_tiers.push((self.algorithm.clone(), own));
                (result, keep, state.other_tiers.len() - 1)
            }
        };
        if keep == Keep::Tier {
            let (by, own) = state.other_tiers.remove(at);
            let before = (mem::replace(&mut state.by, by), mem::replace(&mut state.state, own));
            state.other_tiers.push(before);
            state.make_room(now);
        }
        result
    }

    /// Extends the `reset_after` of a `decision` of this tier, because the key is fresh only once all its tiers are
    /// fresh.
    fn reported(&self, state: &mut TieredState<A>, now: Nanos, decision: Decision) -> Decision {
        let others = state.tiers_mut().filter(|(algorithm, _)| **algorithm != self.algorithm);
        others.fold(decision, |reported, (algorithm, state)| {
            reported.with_min_reset(Nanos::from(algorithm.peek(state, now, 0).reset_after()).0)
        })
    }

    /// Calls `charge` with the state of this tier, and charges the units that it returns to the other tiers, as far as
    /// they have them. Returns these units.
    fn charge_own(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        charge: impl FnOnce(&mut A::State) -> u64,
    ) -> u64 {
        let charged = self.ask(state, now, |own| {
            let charged = charge(own);
            (charged, if charged > 0 { Keep::Tier } else { Keep::Nothing })
        });
        if charged > 0 {
            state.count(now, charged);
        }
        charged
    }

    /// Calls `look` with the state of this tier. `look` must not change any later decision.
    fn look<R>(&self, state: &mut TieredState<A>, now: Nanos, look: impl FnOnce(&mut A::State) -> R) -> R {
        self.ask(state, now, |own| (look(own), Keep::Nothing))
    }
}

#[doc(hidden)]
impl<A: Algorithm + PartialEq> Algorithm for Tiered<A> {
    type State = TieredState<A>;

    // A refund would undo the charge in one tier only.
    const UNDO_BY_COPY: bool = true;
    const NEEDS_RELEASE: bool = A::NEEDS_RELEASE;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> TieredState<A> {
        TieredState {
            by: self.algorithm.clone(),
            state: self.algorithm.new_state(created_at, now),
            other_tiers: Vec::new(),
        }
    }

    #[inline]
    fn last_update(&self, state: &TieredState<A>) -> Nanos {
        state.by.last_update(&state.state)
    }

    /// Makes this tier the current tier of the key if the call is admitted. After a denial, the state of a tier that is
    /// new to the key is kept if the key has room for another tier, because the tier may count denials.
    #[inline]
    fn check(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        let decision = self.ask(state, now, |own| {
            let decision = self.algorithm.check(own, now, cost);
            let keep = match decision.is_allowed() {
                // A call of cost 0 charges nothing, so a limiter need not write it.
                true if cost == 0 => Keep::Nothing,
                true => Keep::Tier,
                false => Keep::State,
            };
            (decision, keep)
        });
        if decision.is_allowed() {
            state.count(now, cost);
        }
        self.reported(state, now, decision)
    }

    /// Peeks at the state of this tier. The current tier of the key stays the same.
    fn peek(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        let decision = self.look(state, now, |own| self.algorithm.peek(own, now, cost));
        self.reported(state, now, decision)
    }

    /// Gives units back to the current tier. If the time of the charge is known, undoes the charge of this tier. The
    /// charges of the other tiers stay, because it is not known how much was charged to each of them.
    fn refund(&self, state: &mut TieredState<A>, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        let mut tiers = state.tiers_mut();
        let tier = match charged_at {
            None => tiers.next(),
            Some(_) => tiers.find(|(algorithm, _)| **algorithm == self.algorithm),
        };
        if let Some((algorithm, state)) = tier {
            algorithm.refund(state, now, cost, charged_at);
        }
    }

    /// Settles the call in the tier of this algorithm.
    fn refund_settled(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        if let Some((algorithm, state)) =
            state.tiers_mut().find(|(algorithm, _)| **algorithm == self.algorithm)
        {
            algorithm.refund_settled(state, now, charged, actual, charged_at);
        }
    }

    /// Charges all units to each tier of the key if calls hold units until they end. Otherwise charges this tier, and
    /// then the units that were charged to each other tier, as far as that tier has them available. So only this tier
    /// is in debt.
    fn charge(&self, state: &mut TieredState<A>, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        if Self::NEEDS_RELEASE {
            for (algorithm, state) in state.tiers_mut() {
                let _ = algorithm.charge(state, now, cost, max_debt);
            }
            return cost;
        }
        self.charge_own(state, now, |own| self.algorithm.charge(own, now, cost, max_debt))
    }

    fn charge_available(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> u64 {
        self.charge_own(state, now, |own| self.algorithm.charge_available(own, now, cost))
    }

    /// If the key has a state for the old default tier, and none for the new default tier, adds a converted state for
    /// the new default tier. Calls that choose the old algorithm as their tier use the old state, unless it is removed
    /// to make room.
    fn migrate(&self, state: &mut TieredState<A>, from: &Self, now: Nanos) {
        if state.by == from.algorithm {
            return self.ask(state, now, |_| ((), Keep::Tier));
        }
        let old = state.other_tiers.iter().find(|(algorithm, _)| *algorithm == from.algorithm);
        if let Some((algorithm, old)) = old
            && self.algorithm != state.by
            && state.other_tiers.iter().all(|(algorithm, _)| *algorithm != self.algorithm)
        {
            let mut new = old.clone();
            self.algorithm.migrate(&mut new, algorithm, now);
            state.other_tiers.push((self.algorithm.clone(), new));
            state.make_room(now);
        }
    }

    fn is_fresh(&self, state: &TieredState<A>, now: Nanos) -> bool {
        state.tiers().all(|(algorithm, state)| algorithm.is_fresh(state, now))
    }

    fn policy(&self) -> QuotaPolicy {
        self.algorithm.policy()
    }

    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        self.algorithm.for_each_policy(f);
    }

    /// Releases the units of the call in the state of each tier.
    fn release(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        for (algorithm, state) in state.tiers_mut() {
            algorithm.release(state, now, cost);
        }
    }

    fn for_each_total(&self, f: &mut dyn FnMut(&Semaphore)) {
        self.algorithm.for_each_total(f);
    }

    fn in_flight(&self, state: &TieredState<A>) -> u64 {
        state.by.in_flight(&state.state)
    }

    /// Returns the highest usage of all tiers of the key.
    fn usage(&self, state: &TieredState<A>, now: Nanos) -> Usage {
        let other_tiers = state.other_tiers.iter().map(|(algorithm, state)| algorithm.usage(state, now));
        other_tiers.fold(state.by.usage(&state.state, now), Usage::max)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        self.algorithm.queue_config().map(QueueConfig::exclusive)
    }

    /// If this tier is new to the key, and the key has room for another tier, keeps the state of this tier. From then
    /// on, that state is refilled at the tier's own rate.
    fn ready_at(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Option<Nanos> {
        self.ask(state, now, |own| (self.algorithm.ready_at(own, now, cost), Keep::State))
    }

    fn admit_queued(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        arrived: Nanos,
        cost: u64,
    ) -> Option<Nanos> {
        let admitted = self.ask(state, now, |own| {
            let admitted = self.algorithm.admit_queued(own, now, arrived, cost);
            (admitted, if admitted.is_some() { Keep::Tier } else { Keep::State })
        })?;
        state.count(now, cost);
        Some(admitted)
    }

    fn project(&self, state: &mut TieredState<A>, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        let at = self.ask(state, now, |own| {
            // The tier of the next call may admit the next call earlier than this call. The next call must not overtake
            // this call.
            let ready_at = self.algorithm.ready_at(own, now, cost).unwrap_or(now);
            (self.algorithm.project(own, now, arrived, cost).max(ready_at), Keep::Tier)
        });
        state.count(at, cost);
        at
    }

    fn report(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        self.ask(state, now, |own| {
            let reported = self.algorithm.report(own, now, cost, counts, decision);
            (reported, if counts { Keep::State } else { Keep::Nothing })
        })
    }

    /// Restores the tiers of `before`, and makes the current one of them the current tier again. Tiers that were added
    /// after the copy was made, such as by the admission that is undone, stay, because they may have counted denials.
    /// Their states are converted again, from the copy. If there are then too many tiers, the tier of this algorithm,
    /// which has taken the place of another, is removed.
    ///
    /// If calls hold units until they end, a tier that was removed since stays so: some of its calls may have ended.
    fn restore(&self, state: &mut TieredState<A>, before: TieredState<A>) {
        let now = self.last_update(state);
        for (tier, own) in state.tiers_mut() {
            if before.tiers().all(|(known, _)| known != tier) {
                let converted = Self { algorithm: tier.clone() }.new_tier(&before, now);
                tier.restore(own, converted);
            }
        }
        let TieredState { by, state: current, other_tiers } = before;
        for (tier, mut kept) in iter::once((by.clone(), current)).chain(other_tiers) {
            let known = state.tiers().position(|(known, _)| *known == tier);
            if let Some((tier, own)) = known.and_then(|at| state.tiers_mut().nth(at)) {
                tier.restore(own, kept);
            } else if !Self::NEEDS_RELEASE && !tier.is_fresh(&kept, now) {
                let _ = tier.peek(&mut kept, now, 0);
                state.other_tiers.push((tier, kept));
            }
        }
        if let Some((tier, own)) = state.other_tiers.iter_mut().find(|(tier, _)| *tier == by) {
            mem::swap(&mut state.by, tier);
            mem::swap(&mut state.state, own);
        }
        if state.other_tiers.len() >= MAX_TIERS {
            state.other_tiers.retain(|(tier, _)| *tier != self.algorithm);
        }
    }
}

// The state as it is stored: the number of tiers other than the current one, then for each tier the unit of its state
// and the numbers of its state. The current tier is first. The grains of a state are exact, because the state may have
// been converted. Instants and the ages of windows are rounded as in the state of any other limit.
#[doc(hidden)]
impl<A: StoredAlgorithm + PartialEq> StoredAlgorithm for Tiered<A> {
    fn kind() -> String {
        format!("d({})", A::kind())
    }

    fn unit(&self) -> String {
        format!("d({})", self.algorithm.unit())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let inner = unit.strip_prefix("d(")?.strip_suffix(')')?;
        Some(Self { algorithm: self.algorithm.with_unit(inner)? })
    }

    fn write_state(&self, state: &Self::State, numbers: &mut StateWriter) {
        numbers.number(state.other_tiers.len() as u64);
        for (algorithm, state) in state.tiers() {
            numbers.word(&algorithm.unit());
            numbers.exactly(|numbers| algorithm.write_state(state, numbers));
        }
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State> {
        let others = numbers.at_most(MAX_TIERS as u64)?;
        let own = self.algorithm.unit();
        let mut tier = || {
            let unit = numbers.word()?;
            let algorithm =
                if unit == own { self.algorithm.clone() } else { self.algorithm.with_unit(unit)? };
            let state = numbers.exactly(|numbers| algorithm.read_state(numbers))?;
            Some((algorithm, state))
        };
        let (by, state) = tier()?;
        let other_tiers = (0..others).map(|_| tier()).collect::<Option<Vec<_>>>()?;
        Some(TieredState { by, state, other_tiers })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.algorithm.check_storable()
    }

    fn counts_denials(&self) -> bool {
        self.algorithm.counts_denials()
    }

    /// Also returns `true` if the key has other tiers than before.
    fn must_keep(&self, before: &Self::State, after: &Self::State) -> bool {
        let must_keep = |(algorithm, before): (&A, &A::State)| {
            let same = after.tiers().find(|(other, _)| *other == algorithm);
            same.is_none_or(|(_, after)| algorithm.must_keep(before, after))
        };
        before.other_tiers.len() != after.other_tiers.len() || before.tiers().any(must_keep)
    }

    /// Replaces the algorithm of each tier of `state` by `self.algorithm`, if both algorithms have the same unit. A
    /// tier that was read from bytes has the queue configuration of the limiter's own algorithm, which may differ
    /// from the queue configuration of the call's tier.
    fn adopt(&self, state: &mut Self::State) {
        let unit = self.algorithm.unit();
        let others = state.other_tiers.iter_mut().map(|(algorithm, _)| algorithm);
        for algorithm in iter::once(&mut state.by).chain(others) {
            if *algorithm != self.algorithm && algorithm.unit() == unit {
                *algorithm = self.algorithm.clone();
            }
        }
    }
}

impl<A: Algorithm> TieredState<A> {
    /// Returns each tier with its state, the current tier first.
    fn tiers(&self) -> impl Iterator<Item = (&A, &A::State)> {
        let other_tiers = self.other_tiers.iter().map(|(algorithm, state)| (algorithm, state));
        iter::once((&self.by, &self.state)).chain(other_tiers)
    }

    /// Returns each tier with its state, the current tier first.
    fn tiers_mut(&mut self) -> impl Iterator<Item = (&A, &mut A::State)> {
        let other_tiers = self.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
        iter::once((&self.by, &mut self.state)).chain(other_tiers)
    }

    /// Charges a call of `cost` to all tiers but the current tier, which was charged before.
    #[inline]
    fn count(&mut self, now: Nanos, cost: u64) {
        for (algorithm, state) in &mut self.other_tiers {
            let _ = algorithm.charge(state, now, cost, 0);
        }
    }

    /// If the key has too many tiers, removes the tier that becomes fresh first. The current tier is never removed.
    fn make_room(&mut self, now: Nanos) {
        if self.other_tiers.len() < MAX_TIERS {
            return;
        }
        let reset = |(algorithm, state): &mut (A, A::State)| algorithm.peek(state, now, 0).reset_after();
        let resets = self.other_tiers.iter_mut().map(reset).enumerate();
        if let Some((soonest, _)) = resets.min_by_key(|(_, reset)| *reset) {
            self.other_tiers.remove(soonest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::quota::Quota;

    #[test]
    fn replacements_without_calls_keep_at_most_32_tiers() {
        let tiers = |limit| Tiered::new(TokenBucket::new(Quota::per_hour(limit)));
        let mut state = tiers(1).new_state(Nanos(0), Nanos(0));
        assert!(tiers(1).check(&mut state, Nanos(0), 1).is_allowed());
        for limit in 1..=100 {
            tiers(limit + 1).migrate(&mut state, &tiers(limit), Nanos(0));
            assert!(state.other_tiers.len() < MAX_TIERS, "{limit}");
        }
        assert_eq!(state.other_tiers.len(), MAX_TIERS - 1);
    }

    #[test]
    fn a_key_whose_tiers_are_all_fresh_keeps_none_of_them() {
        let tiers = [1, 10, 100].map(|limit| Tiered::new(TokenBucket::new(Quota::per_second(limit))));
        let [slow, fast, other] = &tiers;
        let mut state = slow.new_state(Nanos(0), Nanos(0));
        assert!(
            slow.check(&mut state, Nanos(0), 1).is_allowed()
                && fast.check(&mut state, Nanos(0), 1).is_allowed()
        );
        // The slow tier is fresh after a second.
        let now = Nanos(1_000_000_000);
        assert_eq!(other.peek(&mut state, Nanos(now.0 - 1), 1).remaining(), 99);
        assert_eq!(other.check(&mut state, now, 0).remaining(), 100);
        assert_eq!(state.other_tiers.len(), 1, "neither a peek nor a call of cost 0 changes the tiers");
        assert_eq!(other.check(&mut state, now, 10).remaining(), 90);
        assert!(state.by == other.algorithm && state.other_tiers.is_empty());
    }

    #[test]
    fn a_call_of_cost_0_adds_no_tier_and_takes_no_refund() {
        let [small, large] = [10, 100].map(|limit| Tiered::new(TokenBucket::new(Quota::per_hour(limit))));
        let mut state = large.new_state(Nanos(0), Nanos(0));
        assert!(large.check(&mut state, Nanos(0), 50).is_allowed());
        assert_eq!(small.check(&mut state, Nanos(0), 0).remaining(), 0);
        large.refund(&mut state, Nanos(0), 20, None);
        assert_eq!(large.peek(&mut state, Nanos(0), 0).remaining(), 70);
        assert!(state.other_tiers.is_empty());
    }
}
