//! What the clones of a limiter share: the current algorithm, and the bounded table of keys, with all changes of keys
//! but those by [new calls](super::decide).

use std::sync::Arc;
use std::task::Waker;

use super::attempt::Attempt;
use super::eviction::one_unit;
use super::fingerprint::{Fingerprint, HashSeed, MemoryKey};
use super::latest_denial::LockedShard;
use super::queue::PollTurn;
use super::resets::ChargeTime;
use super::shard::{Locked, Shard, Shards};
use super::{Access, Shared};
use crate::algorithm::info::knows_priority;
use crate::algorithm::{Algorithm, AlgorithmInfo, Lockout};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::observe::Recurrence;
use crate::stats::CallOutcome;
use crate::sys::lock::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::lock::{Mutex, PoisonError, RwLock};
use crate::sys::wakers::Wakers;

/// The data that the clones of a limiter share.
#[derive(Debug)]
pub(super) struct Table<A: Algorithm> {
    /// The current algorithm, and its info. Each shard has a copy of the algorithm, by which calls are decided.
    current: RwLock<(A, Arc<AlgorithmInfo>)>,
    /// The generation of the current info.
    generation: AtomicU64,
    /// Held while the algorithm is replaced.
    replacement: Mutex<()>,
    /// `true` if the current algorithm treats calls with priority differently from other calls.
    knows_priority: AtomicBool,
    /// Calls with priority, which the algorithm ignores.
    ignored_priority: Recurrence,
    seed: HashSeed,
    keys: Shards<A>,
    pub(super) shared: Shared,
}

impl<A: Algorithm> Table<A> {
    /// Creates a table of at most `max_keys` keys.
    pub(super) fn new(algorithm: A, max_keys: usize, shared: Shared) -> Self {
        let info = AlgorithmInfo::of(&algorithm);
        Self {
            keys: Shards::for_keys(max_keys, &algorithm),
            knows_priority: AtomicBool::new(info.knows_priority()),
            generation: AtomicU64::new(info.generation()),
            current: RwLock::new((algorithm, info)),
            replacement: Mutex::new(()),
            ignored_priority: Recurrence::new(),
            seed: HashSeed::random(),
            shared,
        }
    }

    /// Returns the current algorithm.
    #[inline]
    pub(super) fn algorithm(&self) -> A {
        self.current.read().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Returns the info of the current algorithm.
    pub(super) fn info(&self) -> Arc<AlgorithmInfo> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Returns the generation of the current info. Takes no lock.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns whether the algorithm of a call with priority treats such calls differently from other calls. `tier` is
    /// the algorithm that the call chose. Logs calls whose algorithm does not, at most once a minute.
    ///
    /// Takes no lock, because each call with priority asks, even during a replacement. The caller must hold no lock.
    #[cold]
    pub(super) fn heeds_priority(&self, tier: Option<&A>) -> bool {
        let heeds = tier.map_or_else(|| self.knows_priority.load(Ordering::Relaxed), knows_priority);
        if !heeds {
            self.ignored_priority.priority_ignored(self.shared.observed.name());
        }
        heeds
    }

    /// Returns the fingerprint of a key.
    #[inline]
    pub(super) fn fingerprint<K: MemoryKey + ?Sized>(&self, key: &K) -> Fingerprint {
        self.seed.fingerprint(key)
    }

    /// Returns the shard of a key.
    #[inline]
    pub(super) fn of(&self, id: Fingerprint) -> &LockedShard<Shard<A>> {
        self.keys.of(id)
    }

    /// Locks the shard of a key.
    #[inline]
    pub(super) fn lock(&self, id: Fingerprint) -> Locked<'_, A> {
        Locked::new(&self.shared, self.keys.of(id).lock(), id, None)
    }
}

/// Changes of keys that are not caused by new calls: polls and drops of calls that wait, the end of calls, charges and
/// refunds after the fact, resets, replacements of the algorithm, and closing.
impl<A: Algorithm> Table<A> {
    /// Polls a queued call. Returns when to poll it again or, if it is decided, `None` after `leave` has got the
    /// decision and when the call was charged. `leave` is run while the key is locked, before wakers are woken, which
    /// may panic.
    pub(super) fn poll(
        &self,
        id: Fingerprint,
        ticket: u64,
        waker: &Waker,
        leave: impl FnOnce(Decision, ChargeTime),
    ) -> Option<Nanos> {
        let polled = self.lock(id).with_known(None, |key| match key.poll(ticket, waker) {
            (PollTurn::Ready(decision, charged_at), spare) => {
                leave(decision, charged_at);
                (None, spare)
            }
            (PollTurn::Waits(wake_at), spare) => (Some(wake_at), spare),
        });
        let Some((wake_at, _spare)) = polled else {
            unreachable!("a key with queued calls is never evicted")
        };
        wake_at
    }

    /// Cancels a queued call. If `counts`, counts it.
    pub(super) fn cancel(&self, id: Fingerprint, ticket: u64, counts: bool) {
        drop(self.lock(id).with_known(None, |key| key.cancel(ticket)));
        if counts {
            self.shared.calls.add(CallOutcome::Cancelled);
        }
    }

    /// Charges units to the key after the fact, and counts them. See
    /// [`RateLimiter::charge`](crate::limiter::RateLimiter::charge).
    pub(super) fn charge(&self, id: Fingerprint, tier: Option<&A>, units: u64) {
        if !A::NEEDS_RELEASE && units > 0 {
            let charged = self.lock(id).with(tier, |key| key.charge(units));
            self.shared.units.add_charge(units, charged.unwrap_or(0));
        }
    }

    /// Settles a call of `call.cost()` units, which was charged at `charged_at`, at its actual cost. Returns a decision
    /// that describes the key right after the settlement.
    ///
    /// If `actual` is at most the charged cost, returns `None` if the key is no longer in the table. If `actual` is
    /// higher, a key that is no longer in the table is inserted again, and the result is `None` only if there is no
    /// room for the key.
    pub(super) fn settle(
        &self,
        id: Fingerprint,
        call: Attempt<'_, A>,
        charged_at: ChargeTime,
        actual: u64,
    ) -> Option<Decision> {
        let cost = call.cost();
        let locked = self.lock(id);
        let units = &self.shared.units;
        if actual > cost {
            let settled = locked.with(call.algorithm(), |key| key.settle(call, charged_at.at, actual));
            units.add_charge(actual - cost, settled.map_or(0, |(_, charged)| charged));
            return settled.map(|(decision, _)| decision);
        }
        // A reset has given back what the call was charged.
        let actual = if locked.was_reset(charged_at.resets) { cost } else { actual };
        let (decision, _) =
            locked.with_known(call.algorithm(), |key| key.settle(call, charged_at.at, actual))?;
        units.add_refund(cost - actual);
        Some(decision)
    }

    /// Undoes a charge of `cost` units that was made at `charged_at`, as far as the charge still counts.
    pub(super) fn undo(&self, id: Fingerprint, tier: Option<&A>, cost: u64, charged_at: ChargeTime) {
        let locked = self.lock(id);
        if !locked.was_reset(charged_at.resets) {
            locked.with_known(tier, |key| key.refund(cost, Some(charged_at.at)));
        }
    }

    /// Ends a call that holds a permit.
    pub(super) fn end(&self, id: Fingerprint, algorithm: &A, cost: u64) {
        // A key with calls in progress is not evicted. The key can be missing only after a panic of the algorithm.
        // The algorithm that admitted the call releases its units. The current algorithm admits waiters.
        self.lock(id).with_known(Some(algorithm), |key| key.end(cost));
    }

    /// Refunds `cost` units of the key. If the key has no place in the table, this has no effect, unless the state of a
    /// new key is not fresh, as with a bucket that starts empty. The key then gets a place, so that the refund does the
    /// same as after a denied call.
    pub(super) fn refund(&self, id: Fingerprint, cost: u64) {
        let locked = self.lock(id);
        if cost > 0 && !locked.is_new_and_fresh() {
            locked.with(None, |key| key.refund(cost, None));
        }
    }

    /// Pauses the key for `duration` nanoseconds. Returns whether it is paused.
    pub(super) fn pause(&self, id: Fingerprint, duration: u64) -> bool {
        if duration == 0 {
            self.lock(id).with_known(None, |key| key.pause(0));
            return false;
        }
        let pause = || self.lock(id).with(None, |key| key.pause(duration)) == Some(true);
        let is_paused = pause();
        if is_paused || self.shared.paused.available() > 0 {
            return is_paused;
        }
        // The places may be those of pauses that are over.
        self.for_each_shard(&mut Wakers::default(), Shard::end_pauses);
        pause()
    }

    /// Resets the key to the state of a new key. See [`RateLimiter::reset`](crate::RateLimiter::reset).
    pub(super) fn reset(&self, id: Fingerprint) -> bool {
        self.lock(id).reset()
    }

    /// Resets all keys, as [`reset`](Table::reset) does, one shard at a time.
    pub(super) fn reset_all(&self) {
        self.for_each_shard(&mut Wakers::default(), Shard::reset_all);
    }

    /// Marks all shards as closed, admits due waiters, and denies all other waiters.
    pub(super) fn close(&self) {
        self.for_each_shard(&mut Wakers::default(), Shard::close);
    }

    /// Replaces the algorithm of all keys, one shard at a time, and then makes the new algorithm the current one, and
    /// at last its generation. Only one replacement runs at a time. A layer that asks for the info does not wait for
    /// it.
    pub(super) fn replace(&self, algorithm: A) {
        // The wakers are dropped after `_turn`. So both are unlocked before the waiters are woken.
        let mut wake = Wakers::default();
        let _turn = self.replacement.lock().unwrap_or_else(PoisonError::into_inner);
        let info = self.info().replaced_by(&algorithm);
        let one_unit = one_unit(&algorithm);
        self.for_each_shard(&mut wake, |shard, access| shard.replace(&algorithm, one_unit, access));
        self.shared.room.replace(&algorithm);
        self.knows_priority.store(info.knows_priority(), Ordering::Relaxed);
        let generation = info.generation();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (algorithm, info);
        self.generation.store(generation, Ordering::Release);
    }

    /// Runs `change` on each shard, which is locked meanwhile. `wake` gets the wakers to wake once no lock is held.
    fn for_each_shard(&self, wake: &mut Wakers, mut change: impl FnMut(&mut Shard<A>, &mut Access<'_, A>)) {
        let shared = &self.shared;
        for mut shard in self.keys.iter() {
            let now = shared.clock.now();
            change(&mut shard, &mut Access { shared, tier: None, now, wake });
        }
    }
}

/// Lockouts that an administrator begins and ends.
impl<A: Algorithm> Table<Lockout<A>> {
    /// Locks the key out for `left` nanoseconds. Returns whether it is locked out.
    pub(super) fn set_lockout(&self, id: Fingerprint, left: u64) -> bool {
        self.lock(id).with(None, |key| key.set_lockout(left)).is_some_and(|(_, is_set)| is_set)
    }

    /// Ends the lockout of the key, and forgets its counted denials. Returns whether the key had any of these.
    pub(super) fn lift_lockout(&self, id: Fingerprint) -> bool {
        self.lock(id).with_known(None, |key| key.set_lockout(0)).is_some_and(|(had_any, _)| had_any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};

    #[test]
    fn a_key_costs_what_the_documentation_says() {
        assert_eq!(size_of::<Option<(Fingerprint, <TokenBucket as Algorithm>::State)>>(), 32);
        assert_eq!(size_of::<Option<(Fingerprint, <FixedWindow as Algorithm>::State)>>(), 32);
        assert_eq!(size_of::<Option<(Fingerprint, <LeakyBucket as Algorithm>::State)>>(), 32);
        assert_eq!(size_of::<Option<(Fingerprint, <SlidingWindow as Algorithm>::State)>>(), 64);
    }
}
