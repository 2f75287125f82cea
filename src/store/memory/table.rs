//! A bounded map that cleans itself.
//!
//! Each new key pays for a little cleaning: the two keys looked at longest ago are looked at again, and forgotten if
//! they are as good as new and nobody has asked for them for a while (a window of the quota, at most ten seconds: a
//! busy key that never uses much is not made anew at each call). No thread, no timer, no pause; work per call is
//! constant.
//!
//! When the table is full, more are looked at, and those go that are as good as new, asked for or not. If none can
//! go, the newcomer shares a bucket with others like it: one of 256, picked by its fingerprint. So nobody who has
//! used anything is pushed out, a flood of keys is limited as a whole, and memory stays what it was. A key that later
//! gets a place of its own starts where its shared bucket stands, so moving out is no way to a second budget.

use std::collections::hash_map::Entry;
use std::mem;
use std::task::Waker;

use super::Own;
use super::fingerprint::Fingerprint;
use super::home::bucket;
use super::house::House;
use super::round::Round;
use super::seat::Seat;
use super::shard::{Law, Lines, Shard, Shards, Wakers, lock};
use crate::algorithm::{Algorithm, Unit};
use crate::clock::Nanos;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The longest that a key rests: ten seconds.
const LONGEST_REST: u64 = 10_000_000_000;
/// Keys looked at for each new one.
const LOOKS: usize = 2;
/// Keys looked at when there is no place.
const LOOKS_WHEN_FULL: usize = 8;
const SHARDS: usize = 64;
const SHARED_SHARDS: usize = 16;

/// Locks are taken in this order: the round, a shard of keys, the shared buckets.
#[derive(Debug)]
pub(super) struct Table<A: Algorithm> {
    pub(super) keys: Shards<A>,
    pub(super) shared: Shards<A>,
    /// Whether `shared` was ever used.
    pub(super) crowded: AtomicBool,
    pub(super) round: Mutex<Round>,
    len: AtomicUsize,
    max_keys: usize,
    /// The latest reading at which a key was forgotten.
    horizon: AtomicU64,
    /// For how long nobody has asked for a key that is forgotten though there is room, in nanoseconds.
    pub(super) rest: AtomicU64,
    pub(super) house: House,
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
            crowded: AtomicBool::new(false),
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
        let Shard { law, states, lines } = &mut *shard;
        let (rule, state) = (rule.unwrap_or(&law.rule), states.get_mut(&key)?);
        if law.closed || lines.contains_key(&key) {
            return None;
        }
        let late = now < rule.seen(state);
        let now = if late { context.clock().now() } else { now };
        change(rule, state, now)
    }

    /// Holds the key while `change` runs, making it first if need be. The rule is `rule`, or else the limiter's.
    pub(super) fn with<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        change: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> R {
        let mut wake = Wakers::default();
        let mut shard = self.keys.lock(&key);
        let Shard { law, states, lines } = &mut *shard;
        match states.get_mut(&key) {
            Some(state) => {
                let now = context.clock().now();
                change(self.seat(key, law, rule, state, Some(lines), &mut wake), now)
            }
            None => {
                drop(shard);
                self.with_new(context, key, rule, &mut wake, change)
            }
        }
    }

    #[cold]
    fn with_new<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        wake: &mut Vec<Waker>,
        change: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> R {
        self.clean(context);
        let (result, kept) = {
            let mut shard = self.keys.lock(&key);
            let Shard { law, states, lines } = &mut *shard;
            let own = rule.unwrap_or(&law.rule);
            match states.entry(key) {
                Entry::Occupied(mut known) => {
                    let now = context.clock().now();
                    let state = known.get_mut();
                    (change(self.seat(key, law, rule, state, Some(lines), wake), now), false)
                }
                Entry::Vacant(vacant) if !self.must_share(key, law) && self.reserve() => {
                    // Should the rule panic, the place is free again.
                    let place = Place(&self.len);
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
                Entry::Vacant(_) => {
                    self.crowded.store(true, Ordering::Relaxed);
                    let bucket = bucket(key);
                    let mut shared = self.shared.lock(&bucket);
                    let Shard { law, states, .. } = &mut *shared;
                    let own = rule.unwrap_or(&law.rule);
                    // Read while the bucket is held, too: other keys draw on it.
                    let now = context.clock().now();
                    let state = states.entry(bucket).or_insert_with(|| self.fresh(context, law, own, now));
                    (change(self.seat(key, law, rule, state, None, wake), now), false)
                }
            }
        };
        if kept {
            self.add(key);
        }
        result
    }

    /// Holds the key while `look` runs, or what it would be. Makes no key.
    pub(super) fn look<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        look: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> R {
        let mut shard = self.keys.lock(&key);
        let now = context.clock().now();
        let Shard { law, states, lines } = &mut *shard;
        let mut unknown;
        let state = match states.get_mut(&key) {
            Some(known) => known,
            None => {
                unknown = self.unknown(context, key, law, rule.unwrap_or(&law.rule), now);
                &mut unknown
            }
        };
        // Nobody is released, so nobody is woken.
        look(self.seat(key, law, rule, state, Some(lines), &mut Vec::new()), now)
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

    pub(super) fn reserve(&self) -> bool {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// A key is gone that was as good as new at `now`; it knew of no later reading, else it would not have been.
    pub(super) fn forget(&self, now: Nanos) {
        self.horizon.fetch_max(now.0, Ordering::Relaxed);
        self.len.fetch_sub(1, Ordering::Relaxed);
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

    /// Where a key starts that has no place: where its shared bucket stands, if it has one.
    pub(super) fn unknown(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        law: &Law<A>,
        rule: &A,
        now: Nanos,
    ) -> A::State {
        // No ordering is needed: the key's own shard is locked here and was locked when the flag was set.
        if self.crowded.load(Ordering::Relaxed) {
            let bucket = bucket(key);
            let shared = self.shared.lock(&bucket);
            if let Some(state) = shared.states.get(&bucket) {
                let mut state = state.clone();
                if shared.law.generation != law.generation {
                    // The rule is being replaced, and has come to one of the two only.
                    law.rule.adapt(&mut state, &shared.law.rule, now);
                }
                return state;
            }
        }
        self.fresh(context, law, rule, now)
    }

    /// Looks at a few keys, and forgets those that are as good as new.
    pub(super) fn clean(&self, context: &Own<A>) {
        let mut round = self.round();
        let rest = self.rest.load(Ordering::Relaxed);
        for look in 0..LOOKS_WHEN_FULL {
            let full = self.len() >= self.max_keys;
            if look >= LOOKS && !full {
                return;
            }
            let Some((key, is_there)) = round.next() else { return };
            if !is_there {
                continue;
            }
            let mut shard = self.keys.lock(&key);
            let Shard { law, states, lines } = &mut *shard;
            if let Entry::Occupied(known) = states.entry(key) {
                let (rule, now) = (&law.rule, context.clock().now());
                let unasked = now.since(rule.seen(known.get())) >= rest;
                let idle = (unasked || full) && rule.is_fresh(known.get(), now);
                if idle && self.may_forget(context, law, now) && !lines.contains_key(&key) {
                    known.remove();
                    self.forget(now);
                } else {
                    round.again(key);
                }
            }
        }
    }

    /// A key has come into the table. No shard is held.
    pub(super) fn add(&self, key: Fingerprint) {
        self.round().add(key);
    }

    pub(super) fn round(&self) -> MutexGuard<'_, Round> {
        lock(&self.round)
    }
}

/// A place that is reserved, and given back when dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
