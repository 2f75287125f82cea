//! A bounded map that cleans itself.
//!
//! Each new key pays for a little cleaning: the two keys looked at longest ago are looked at again, and forgotten if
//! they are as good as new and nobody has asked for them for a while (a window of the quota, at most ten seconds: a
//! busy key that never uses much is not made anew at each call). No thread, no timer. Work per call is constant, but
//! for the growth of the map, which is amortised: the call that makes a shard grow moves all its keys.
//!
//! When the table is full, more are looked at, and those go that are as good as new, asked for or not. If none can
//! go, [`OnFull`](super::OnFull) says what happens to the new key.

use std::collections::hash_map::Entry;
use std::mem;
use std::task::Waker;

use super::Own;
use super::fingerprint::Fingerprint;
use super::house::House;
use super::on_full::OnFull;
use super::round::Round;
use super::seat::Seat;
use super::shard::{Law, Lines, Shard, Shards, Wakers, lock};
use super::stats::Counters;
use crate::algorithm::{Algorithm, Unit};
use crate::clock::Nanos;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The longest that a key rests: ten seconds.
const LONGEST_REST: u64 = 10_000_000_000;
const SHARDS: usize = 64;
const SHARED_SHARDS: usize = 16;

/// Locks are taken in this order: the round, a shard of keys, the shared buckets.
#[derive(Debug)]
pub(super) struct Table<A: Algorithm> {
    pub(super) keys: Shards<A>,
    pub(super) shared: Shards<A>,
    /// How many shared buckets are in use. Changed while the bucket is locked.
    pub(super) buckets: AtomicUsize,
    /// The shared bucket that is looked at next.
    pub(super) next_bucket: AtomicUsize,
    pub(super) round: Mutex<Round>,
    pub(super) len: AtomicUsize,
    pub(super) max_keys: usize,
    /// The latest reading at which a key was forgotten.
    horizon: AtomicU64,
    /// For how long nobody has asked for a key that is forgotten though there is room, in nanoseconds.
    pub(super) rest: AtomicU64,
    pub(super) house: House,
    pub(super) counters: Counters,
}

impl<A: Algorithm> Table<A> {
    /// A table of at most `max_keys`.
    pub(super) fn new(max_keys: usize, rule: &A, house: House) -> Self {
        Self {
            house,
            horizon: AtomicU64::new(0),
            rest: AtomicU64::new(rest(rule)),
            keys: Shards::new(SHARDS, rule),
            shared: Shards::new(SHARED_SHARDS, rule),
            counters: Counters::default(),
            buckets: AtomicUsize::new(0),
            next_bucket: AtomicUsize::new(0),
            round: Mutex::default(),
            len: AtomicUsize::new(0),
            max_keys: max_keys.max(1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Holds a key that is known and for which nobody waits, while `change` runs: the common case, and short.
    ///
    /// The clock is read before, while the processor has nothing else to wait for. A thread that was held up since
    /// must not look like a clock that was set back: where the key knows of a later reading, the clock is read again,
    /// now that nobody else can have a later one.
    #[inline]
    pub(super) fn known<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        change: impl FnOnce(&A, &mut A::State, Nanos) -> Option<R>,
    ) -> Option<R> {
        let now = context.clock().now();
        let mut shard = self.keys.lock(&key);
        let Shard { law, states, lines, .. } = &mut *shard;
        let (rule, state) = (rule.unwrap_or(&law.rule), states.get_mut(&key)?);
        if law.closed || lines.contains_key(&key) {
            return None;
        }
        let late = now < rule.seen(state);
        let now = if late { context.clock().now() } else { now };
        change(rule, state, now)
    }

    /// Holds the key while `change` runs, making it first if need be. The rule is `rule`, or else the limiter's. `None`
    /// if there is no room for a new key.
    pub(super) fn with<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        change: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        let mut wake = Wakers::default();
        let mut shard = self.keys.lock(&key);
        let Shard { law, states, lines, .. } = &mut *shard;
        match states.get_mut(&key) {
            Some(state) => {
                let now = context.clock().now();
                Some(change(self.seat(key, law, rule, state, Some(lines), &mut wake), now))
            }
            None => {
                drop(shard);
                self.with_new(context, key, rule, &mut wake, change)
            }
        }
    }

    /// The same for what concerns only a key that has used something: it makes none, unless the key may have used it in
    /// a shared bucket.
    pub(super) fn with_used<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        change: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        if self.house.on_full == OnFull::ShareBuckets {
            return self.with(context, key, rule, change);
        }
        let mut wake = Wakers::default();
        let mut shard = self.keys.lock(&key);
        let Shard { law, states, lines, .. } = &mut *shard;
        let state = states.get_mut(&key)?;
        let now = context.clock().now();
        Some(change(self.seat(key, law, rule, state, Some(lines), &mut wake), now))
    }

    #[cold]
    fn with_new<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        wake: &mut Vec<Waker>,
        change: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        self.clean_shared(context);
        // Should the rule panic, the place is free again.
        let place = self.make_room(context, &[key]);
        let (result, kept) = {
            let mut shard = self.keys.lock(&key);
            shard.make_slot();
            let Shard { law, states, lines, .. } = &mut *shard;
            let own = rule.unwrap_or(&law.rule);
            let place = place.filter(|_| !self.must_share(key, law));
            match (states.entry(key), place) {
                (Entry::Occupied(mut known), _) => {
                    let now = context.clock().now();
                    let state = known.get_mut();
                    (change(self.seat(key, law, rule, state, Some(lines), wake), now), false)
                }
                (Entry::Vacant(vacant), Some(place)) => {
                    let now = context.clock().now();
                    let mut state = self.unknown(context, key, law, own, now);
                    let seat = self.seat(key, law, rule, &mut state, Some(&mut *lines), wake);
                    let result = change(seat, now);
                    let kept = !own.is_fresh(&state, now)
                        || lines.contains_key(&key)
                        || !self.may_forget(context, law, now);
                    mem::forget(place);
                    if kept {
                        vacant.insert(state);
                    } else {
                        self.forget(now);
                    }
                    (result, kept)
                }
                // The shard stays locked meanwhile, so that the key does not get a place of its own in between.
                (Entry::Vacant(_), None) if self.house.on_full == OnFull::ShareBuckets => {
                    (self.with_shared(context, key, rule, wake, change), false)
                }
                // Once the limiter is closed, nothing is counted.
                (Entry::Vacant(_), None) if law.closed => {
                    let now = context.clock().now();
                    let mut state = self.fresh(context, law, own, now);
                    (change(self.seat(key, law, rule, &mut state, None, wake), now), false)
                }
                (Entry::Vacant(_), None) => return None,
            }
        };
        if kept {
            self.add(key);
        }
        Some(result)
    }

    /// Holds the key while `look` runs, or what it would be. Makes no key, so `look` must not use anything.
    pub(super) fn look<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        look: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> R {
        let mut wake = Wakers::default();
        let mut shard = self.keys.lock(&key);
        let now = context.clock().now();
        let Shard { law, states, lines, .. } = &mut *shard;
        let mut unknown;
        let state = match states.get_mut(&key) {
            Some(known) => known,
            None => {
                unknown = self.unknown(context, key, law, rule.unwrap_or(&law.rule), now);
                &mut unknown
            }
        };
        look(self.seat(key, law, rule, state, Some(lines), &mut wake), now)
    }

    /// A key that is held. The rule is `rule`, or else the limiter's.
    pub(super) fn seat<'a>(
        &'a self,
        key: Fingerprint,
        law: &'a Law<A>,
        rule: Option<&'a A>,
        state: &'a mut A::State,
        lines: Option<&'a mut Lines<A>>,
        wake: &'a mut Vec<Waker>,
    ) -> Seat<'a, A> {
        let rule = rule.unwrap_or(&law.rule);
        Seat { key, rule, house: &self.house, closed: law.closed, state, lines, wake }
    }

    /// A key is gone that was as good as new at `now`; it knew of no later reading, else it would not have been.
    pub(super) fn forget(&self, now: Nanos) {
        self.forgotten_at(now);
        self.len.fetch_sub(1, Ordering::Relaxed);
    }

    /// A key has left the table at `now`; its room is used again.
    pub(super) fn forgotten_at(&self, now: Nanos) {
        self.horizon.fetch_max(now.0, Ordering::Relaxed);
    }

    /// The state of a key never seen, or forgotten: it may have seen the latest reading at which one was forgotten.
    pub(super) fn fresh(&self, context: &Own<A>, law: &Law<A>, rule: &A, now: Nanos) -> A::State {
        let now = now.max(Nanos(self.horizon.load(Ordering::Relaxed)));
        let Some(mut first) = law.first.clone() else { return rule.fresh(context.built(), now) };
        // Brings it up to now.
        let _ = law.rule.peek(&mut first, now, 0);
        first
    }

    /// Whether a key never seen is as one that has been idle for long. Until then keys are kept: a bucket that starts
    /// empty may have been filled early by a refund.
    pub(super) fn may_forget(&self, context: &Own<A>, law: &Law<A>, now: Nanos) -> bool {
        law.rule.is_fresh(&self.fresh(context, law, &law.rule, now), now)
    }

    /// A key has come into the table. No shard is held.
    pub(super) fn add(&self, key: Fingerprint) {
        self.round().add(key);
    }

    pub(super) fn round(&self) -> MutexGuard<'_, Round> {
        lock(&self.round)
    }
}

/// For how long keys that are as good as new rest before they are forgotten, in nanoseconds: its longest window, but
/// not over ten seconds.
pub(super) fn rest<A: Algorithm>(rule: &A) -> u64 {
    let mut longest = 0;
    rule.policies(&mut |policy| match policy.unit {
        Unit::ConcurrentRequests => longest = LONGEST_REST,
        _ => longest = Nanos::from(policy.window).0.max(longest),
    });
    longest.min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, TokenBucket};

    #[test]
    fn a_key_costs_what_the_documentation_says() {
        assert_eq!(size_of::<(Fingerprint, <TokenBucket as Algorithm>::State)>(), 40);
        assert_eq!(size_of::<(Fingerprint, <FixedWindow as Algorithm>::State)>(), 40);
        assert_eq!(size_of::<(Fingerprint, <LeakyBucket as Algorithm>::State)>(), 40);
        assert_eq!(size_of::<Fingerprint>(), 16);
    }
}
