//! What the clones of a limiter share: the current algorithm, and the bounded table of keys, which locks a key, and
//! gives a new key a state.
//!
//! A [shard](super::shard) keeps its keys, and makes room for new ones.

use std::sync::Arc;
use std::task::Waker;

use super::attempt::Attempt;
use super::entry::KeyEntry;
use super::eviction::one_unit;
use super::fingerprint::{Fingerprint, HashSeed, MemoryKey};
use super::options::StoreConfig;
use super::queue::{Arrival, PollTurn, Preview};
use super::shard::{LockedShard, Room, Shard, Shards};
use crate::algorithm::info::knows_priority;
use crate::algorithm::{Algorithm, AlgorithmInfo, Lockout, limit_of_new_key};
use crate::clock::{AnyClock, Nanos};
use crate::decision::Decision;
use crate::observe::Recurrence;
use crate::stats::{CallCounts, CallOutcome, LimiterStats, StoreStats, UnitCounts};
use crate::sys::lock::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::lock::{Mutex, PoisonError, RwLock, SpinGuard};
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
    name: Option<String>,
    /// `true` if the current algorithm treats calls with priority differently from other calls.
    knows_priority: AtomicBool,
    /// Calls with priority, which the algorithm ignores.
    ignored_priority: Recurrence,
    seed: HashSeed,
    keys: Shards<A>,
    room: Room,
    clock: AnyClock,
    config: StoreConfig,
    /// The number of resets, of a key or of all keys of a shard. It changes only while the shard is locked.
    resets: AtomicU64,
    /// The counts of all calls, including those of layers.
    calls: Arc<CallCounts>,
    /// The counts of the units that were charged or given back after the fact.
    units: UnitCounts,
}

/// When a call was charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeTime {
    /// The clock reading at which the algorithm charged the call.
    pub(super) at: Nanos,
    /// The number of resets of the table before the charge. If the key was reset since, nothing is given back, because
    /// the units that are charged to the key now are those of other calls.
    pub(super) resets: u64,
}

/// The result of [`Table::insert_if_absent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Known,
    /// The key has a new place.
    New,
    /// There is no room for the key.
    NoRoom,
}

impl<A: Algorithm> Table<A> {
    /// Creates a table of at most `max_keys` keys.
    pub(super) fn new(
        algorithm: A,
        clock: AnyClock,
        name: Option<String>,
        max_keys: usize,
        config: StoreConfig,
    ) -> Self {
        let info = AlgorithmInfo::of(&algorithm);
        Self {
            keys: Shards::for_keys(max_keys, &algorithm),
            room: Room::new(max_keys, config.on_full(), &algorithm, clock.now()),
            knows_priority: AtomicBool::new(info.knows_priority()),
            generation: AtomicU64::new(info.generation()),
            current: RwLock::new((algorithm, info)),
            replacement: Mutex::new(()),
            name,
            ignored_priority: Recurrence::new(),
            seed: HashSeed::random(),
            clock,
            config,
            resets: AtomicU64::new(0),
            calls: Arc::default(),
            units: UnitCounts::default(),
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

    /// Returns the name of the limiter, if one was set.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns whether the algorithm of a call with priority treats such calls differently from other calls. `tier` is
    /// the algorithm that the call chose. Logs calls whose algorithm does not, at most once a minute.
    ///
    /// Takes no lock, because each call with priority asks, even during a replacement. The caller must hold no lock.
    #[cold]
    pub(super) fn heeds_priority(&self, tier: Option<&A>) -> bool {
        let heeds = tier.map_or_else(|| self.knows_priority.load(Ordering::Relaxed), knows_priority);
        if !heeds {
            self.ignored_priority.priority_ignored(self.name());
        }
        heeds
    }

    /// Returns the fingerprint of a key.
    #[inline]
    pub(super) fn fingerprint<K: MemoryKey + ?Sized>(&self, key: &K) -> Fingerprint {
        self.seed.fingerprint(key)
    }

    #[inline]
    pub(super) fn clock(&self) -> &AnyClock {
        &self.clock
    }

    /// Returns the settings that apply to all keys.
    #[inline]
    pub(super) fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// Returns the shard of a key.
    #[inline]
    pub(super) fn of(&self, key: Fingerprint) -> &LockedShard<A> {
        self.keys.of(key)
    }

    /// Locks the key of a call while `change` runs. Takes the locked shard of the key. `now` is a clock reading that
    /// was made before the shard was locked, or `None`. Returns `None` if there is no room for the key. A call of cost
    /// 0 needs no room.
    #[inline]
    pub(super) fn with_called<R>(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        call: &Attempt<'_, A>,
        now: Option<Nanos>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        if call.cost() > 0 {
            return self.with_locked_entry(shard, key, call.algorithm(), now, change);
        }
        drop(shard);
        self.sweep_for_peek(key);
        Some(self.peek_entry(key, call.algorithm(), change))
    }

    /// Locks the key while `change` runs. A new key gets a state first. The call uses `algorithm`, or the limiter's
    /// algorithm if `algorithm` is `None`. Returns `None` if a new key cannot get a state, because the table is full.
    pub(super) fn with_entry<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        self.with_locked_entry(self.keys.of(key).lock(), key, algorithm, None, change)
    }

    /// Like [`with_entry`](Table::with_entry), but takes the locked shard of the key. `now` is a clock reading that was
    /// made before the shard was locked, or `None`. `now` is used only if the key is new, because a new key has
    /// observed no later reading.
    #[inline]
    fn with_locked_entry<R>(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        algorithm: Option<&A>,
        now: Option<Nanos>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        let mut wake = Wakers::default();
        // This variable is dropped before `wake`. So the lock is released before the wakers are woken.
        let mut shard = shard;
        match shard.entry(key, algorithm, &self.config, &mut wake) {
            Some(entry) => Some(change(entry, self.clock.now())),
            None => {
                let now = now.unwrap_or_else(|| self.clock.now());
                let result = self.with_new_entry(shard, key, algorithm, now, &mut wake, change);
                self.room.warn_if_full(self.name());
                result
            }
        }
    }

    /// Like [`with_entry`](Table::with_entry), for changes that affect only a key with charged units. If the key is not
    /// in the table, returns `None` and does not run `change`.
    fn with_used<R>(&self, key: Fingerprint, change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R) -> Option<R> {
        self.with_charge(key, None, u64::MAX, |entry, now, _| change(entry, now))
    }

    /// Like [`with_used`](Table::with_used), for a call that was charged after `resets` resets. Passes `change` whether
    /// the charge still counts, because the key was not reset since.
    pub(super) fn with_charge<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        resets: u64,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos, bool) -> R,
    ) -> Option<R> {
        let mut wake = Wakers::default();
        // This variable is dropped before `wake`. So the lock is released before the wakers are woken.
        let mut shard = self.keys.of(key).lock();
        let counts = !shard.was_reset(key, resets);
        let entry = shard.entry(key, algorithm, &self.config, &mut wake)?;
        Some(change(entry, self.clock.now(), counts))
    }

    /// Returns when a call was charged whose key is still locked: at the clock reading `at`.
    pub(super) fn charge_time(&self, at: Nanos) -> ChargeTime {
        ChargeTime { at, resets: self.resets.load(Ordering::Relaxed) }
    }

    /// Counts a reset, while the shard is locked. Returns the number of resets with this one.
    fn count_reset(&self) -> u64 {
        self.resets.fetch_add(1, Ordering::Relaxed) + 1
    }

    #[inline]
    fn with_new_entry<R>(
        &self,
        mut shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        algorithm: Option<&A>,
        now: Nanos,
        wake: &mut Vec<Waker>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        let Self { room, config, .. } = self;
        // If the algorithm panics, the place is released.
        match shard.make_room(room, &[], now) {
            Some(place) => {
                let mut state = shard.new_state(algorithm, room, now);
                let result = change(shard.new_entry(key, algorithm, &mut state, config, wake), now);
                shard.insert_if_used(key, algorithm, state, place, room, now);
                Some(result)
            }
            // Once the limiter is closed, nothing is charged, so the call needs no room.
            None if shard.is_closed() => {
                let mut state = shard.new_state(algorithm, room, now);
                Some(change(shard.new_entry(key, algorithm, &mut state, config, wake), now))
            }
            None => None,
        }
    }

    /// Examines a few slots if `key` is not in the table, and removes the keys that are fresh. So slots are also
    /// examined for a call of cost 0 with a new key, although that call inserts nothing. The caller must not hold a
    /// lock.
    #[cold]
    fn sweep_for_peek(&self, key: Fingerprint) {
        let mut shard = self.keys.of(key).lock();
        if !shard.contains(key) {
            shard.sweep_for_peek(&self.room, self.clock.now());
        }
    }

    /// Locks the key while `look` runs. A new key gets a temporary state, which is not kept, so `look` must not charge
    /// anything.
    pub(super) fn peek_entry<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        look: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> R {
        let mut wake = Wakers::default();
        let mut shard = self.keys.of(key).lock();
        let now = self.clock.now();
        if let Some(entry) = shard.entry(key, algorithm, &self.config, &mut wake) {
            return look(entry, now);
        }
        let mut state = shard.new_state(algorithm, &self.room, now);
        look(shard.new_entry(key, algorithm, &mut state, &self.config, &mut wake), now)
    }
}

/// What is counted.
impl<A: Algorithm> Table<A> {
    pub(super) fn stats(&self) -> LimiterStats {
        LimiterStats { calls: self.calls.stats(), store: self.store_stats(), units: self.units.stats() }
    }

    /// Returns the counts of the key table.
    pub(super) fn store_stats(&self) -> StoreStats {
        StoreStats { waiting: self.config.waiting().len(), ..self.room.stats() }
    }

    /// Returns the counts of the units that were charged or given back after the fact.
    pub(super) fn units(&self) -> &UnitCounts {
        &self.units
    }

    /// Returns the counts of all calls.
    #[inline]
    pub(super) fn calls(&self) -> &Arc<CallCounts> {
        &self.calls
    }
}

/// Changes of keys that are not caused by new calls: polls and drops of calls that wait, the end of calls, refunds,
/// resets, replacements of the algorithm, and closing.
impl<A: Algorithm> Table<A> {
    /// Polls a queued call. If `counts`, counts its decision.
    pub(super) fn ask(&self, key: Fingerprint, ticket: u64, counts: bool, waker: &Waker) -> PollTurn {
        let asked = self.with_used(key, |entry, now| {
            let asked = entry.ask(now, ticket, waker);
            if let (PollTurn::Ready(decision, ..), true) = (&asked.0, counts) {
                self.calls.add_decision(decision, false);
            }
            asked
        });
        let Some((turn, _spare)) = asked else { unreachable!("a key with queued calls is never evicted") };
        turn
    }

    /// Charges units to the key after the fact, and counts them. See
    /// [`RateLimiter::charge`](crate::limiter::RateLimiter::charge).
    pub(super) fn charge(&self, key: Fingerprint, algorithm: Option<&A>, units: u64) {
        if !A::NEEDS_RELEASE && units > 0 {
            let charge = |mut entry: KeyEntry<'_, A>, now| entry.charge(now, units);
            let charged = self.with_entry(key, algorithm, charge);
            self.units.add_charge(units, charged.unwrap_or(0));
        }
    }

    /// Cancels a queued call. If `counts`, counts it.
    pub(super) fn abandon(&self, key: Fingerprint, ticket: u64, counts: bool) {
        drop(self.with_used(key, |entry, now| entry.abandon(now, ticket)));
        if counts {
            self.calls.add(CallOutcome::Cancelled);
        }
    }

    /// Undoes a charge of `cost` units that was made at `charged_at`, as far as the charge still counts.
    pub(super) fn undo(&self, key: Fingerprint, algorithm: Option<&A>, cost: u64, charged_at: ChargeTime) {
        let _ = self.with_charge(key, algorithm, charged_at.resets, |mut entry, now, counts| {
            if counts {
                entry.undo(now, cost, charged_at.at);
            }
        });
    }

    /// Ends a call that holds a permit.
    pub(super) fn end(&self, key: Fingerprint, algorithm: &A, cost: u64) {
        let mut wake = Wakers::default();
        {
            let mut shard = self.keys.of(key).lock();
            let now = self.clock.now();
            // A key with calls in progress is not evicted. The key can be missing only after a panic of the algorithm.
            // The algorithm that admitted the call releases its units. The current algorithm releases waiters.
            let entry = shard.entry(key, Some(algorithm), &self.config, &mut wake);
            if let Some(entry) = entry {
                entry.end(now, cost);
            }
        }
    }

    /// Marks all shards as closed, releases due waiters, and denies all other waiters. Returns the wakers to wake once
    /// no lock is held.
    pub(super) fn close(&self) -> Wakers {
        let mut wake = Wakers::default();
        for mut shard in self.keys.iter() {
            shard.close(&self.config, self.clock.now(), &mut wake);
        }
        wake
    }

    /// Refunds `cost` units of the key. If the key has no place in the table, this has no effect, unless the state of a
    /// new key is not fresh, as with a bucket that starts empty. The key then gets a place, so that the refund does the
    /// same as after a denied call.
    pub(super) fn refund(&self, key: Fingerprint, cost: u64) {
        let shard = self.keys.of(key).lock();
        let is_fresh = !shard.contains(key) && shard.may_forget(&self.room, self.clock.now());
        if cost > 0 && !is_fresh {
            let _ = self.with_locked_entry(shard, key, None, None, |entry, now| entry.refund(now, cost));
        }
    }

    /// Resets the key to the state of a new key, except that calls in progress stay counted. Does nothing if the key
    /// has no place in the table. Returns whether the key was not fresh.
    pub(super) fn reset(&self, key: Fingerprint) -> bool {
        let mut wake = Wakers::default();
        {
            let mut shard = self.keys.of(key).lock();
            let now = self.clock.now();
            shard.record_reset(key, self.count_reset());
            shard.reset(key, &self.room, &self.config, now, &mut wake)
        }
    }

    /// Resets all keys, as [`reset`](Table::reset) does, one shard at a time. Returns the wakers to wake once no lock is
    /// held.
    pub(super) fn reset_all(&self) -> Wakers {
        let Self { room, config, clock, .. } = self;
        let mut wake = Wakers::default();
        for mut shard in self.keys.iter() {
            shard.record_reset_of_all(self.count_reset());
            shard.reset_all(room, config, clock.now(), &mut wake);
        }
        wake
    }

    /// Replaces the algorithm of all keys, one shard at a time, and then makes the new algorithm the current one, and
    /// at last its generation. Only one replacement runs at a time. A layer that asks for the info does not wait for
    /// it. Returns the wakers to wake once no lock is held.
    pub(super) fn replace(&self, algorithm: A) -> Wakers {
        let _turn = self.replacement.lock().unwrap_or_else(PoisonError::into_inner);
        let info = self.info().replaced_by(&algorithm);
        let (mut wake, one_unit) = (Wakers::default(), one_unit(&algorithm));
        for mut shard in self.keys.iter() {
            let now = self.clock.now();
            shard.record_reset_of_all(self.count_reset());
            shard.replace(&algorithm, one_unit, &self.room, &self.config, now, &mut wake);
        }
        self.room.replace(&algorithm);
        self.knows_priority.store(info.knows_priority(), Ordering::Relaxed);
        let generation = info.generation();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (algorithm, info);
        self.generation.store(generation, Ordering::Release);
        wake
    }
}

/// Lockouts that an administrator begins and ends.
impl<A: Algorithm> Table<Lockout<A>> {
    /// Locks the key out for `left` nanoseconds. Returns whether it is locked out.
    pub(super) fn set_lockout(&self, key: Fingerprint, left: u64) -> bool {
        self.with_entry(key, None, |entry, now| entry.set_lockout(now, left))
            .is_some_and(|(_, is_set)| is_set)
    }

    /// Ends the lockout of the key, and forgets its counted denials. Returns whether the key had any of these.
    pub(super) fn lift_lockout(&self, key: Fingerprint) -> bool {
        self.with_used(key, |entry, now| entry.set_lockout(now, 0)).is_some_and(|(had_any, _)| had_any)
    }
}

/// Calls that lock several keys together.
impl<A: Algorithm> Table<A> {
    /// Gives the key a state, unless it has one already. `shard` is the locked shard of the key. `keep` contains the
    /// keys of the same joint call, which must not be evicted.
    pub(super) fn insert_if_absent(
        &self,
        shard: &mut Shard<A>,
        key: Fingerprint,
        keep: &[Fingerprint],
        now: Nanos,
    ) -> Settled {
        if shard.contains(key) {
            return Settled::Known;
        }
        let Some(place) = shard.make_room(&self.room, keep, now) else { return Settled::NoRoom };
        let state = shard.new_state(None, &self.room, now);
        shard.insert(key, state, place, &self.room, now);
        Settled::New
    }

    /// Runs `change` on the key, which has a state. `shard` is its locked shard.
    pub(super) fn with_settled<R>(
        &self,
        shard: &mut Shard<A>,
        key: Fingerprint,
        algorithm: Option<&A>,
        wake: &mut Vec<Waker>,
        change: impl FnOnce(KeyEntry<'_, A>) -> R,
    ) -> R {
        let Some(entry) = shard.entry(key, algorithm, &self.config, wake) else {
            unreachable!("it was settled")
        };
        change(entry)
    }

    /// Returns the preview of a call of `cost` for whose key the locked shard has no room. If the call has a cost and
    /// the limiter is open, the call needs room, and is denied.
    pub(super) fn preview_without_room(
        &self,
        shard: &mut Shard<A>,
        key: Fingerprint,
        algorithm: Option<&A>,
        arrival: Arrival,
        wake: &mut Vec<Waker>,
    ) -> Preview {
        if arrival.cost() > 0 && !shard.is_closed() {
            return Preview::Deny(Decision::table_full(limit_of_new_key(shard.algorithm(algorithm))));
        }
        let mut state = shard.new_state(algorithm, &self.room, arrival.now());
        shard.new_entry(key, algorithm, &mut state, &self.config, wake).preview(arrival)
    }

    /// Removes a new key from its locked shard, because an algorithm has panicked.
    pub(super) fn remove(&self, shard: &mut Shard<A>, key: Fingerprint, now: Nanos) {
        shard.remove(key, &self.room, now);
    }

    /// Removes a new key from its locked shard if the state of the key is fresh and the key has no queue.
    pub(super) fn remove_unless_used(&self, shard: &mut Shard<A>, key: Fingerprint, now: Nanos) {
        shard.remove_unless_used(key, &self.room, now);
    }

    /// Logs a warning if the table was found full, and a warning is due. The caller must hold no lock.
    pub(super) fn warn_if_full(&self) {
        self.room.warn_if_full(self.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, TokenBucket};

    #[test]
    fn a_key_costs_what_the_documentation_says() {
        assert_eq!(size_of::<Option<(Fingerprint, <TokenBucket as Algorithm>::State)>>(), 32);
        assert_eq!(size_of::<Option<(Fingerprint, <FixedWindow as Algorithm>::State)>>(), 32);
        assert_eq!(size_of::<Option<(Fingerprint, <LeakyBucket as Algorithm>::State)>>(), 32);
    }
}
