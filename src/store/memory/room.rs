//! Room for a new key: by forgetting keys that are fresh, or else by the policy for a full table.

use std::collections::hash_map::Entry;

use super::Own;
use super::fingerprint::Fingerprint;
use super::on_full::{LeastUsed, OnFull, Sampled};
use super::round::Round;
use super::shard::{Law, Shard};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Keys looked at for each new one.
const LOOKS: usize = 2;
/// Keys looked at when there is no room, and none may be evicted.
const LOOKS_WHEN_FULL: usize = 8;
/// Keys looked at before a new one is refused because none of them may be evicted.
const MOST_LOOKS: usize = 64;

/// Room for one key, given back when dropped.
pub(super) struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What was found of a key that was looked at.
enum Look {
    /// It was fresh, and is forgotten; or it is no longer there.
    Gone,
    Stays,
    MayGo(Sampled<Fingerprint>),
}

impl<A: Algorithm> Table<A> {
    /// Reserves room for a new key. Looks at a few keys, forgets those that are fresh, and if there is still no room,
    /// evicts one where the policy says so, but none of `keep`. Nothing is locked.
    pub(super) fn make_room(&self, context: &Own<A>, keep: &[Fingerprint]) -> Option<Place<'_>> {
        let evicts = self.house.on_full == OnFull::EvictLeastUsed;
        let mut round = self.round();
        let sample = self.clean(context, &mut round, evicts, keep);
        if let Some(place) = self.reserve() {
            return Some(place);
        }
        let place = sample.in_order().find_map(|sampled| self.evict(context, &mut round, sampled));
        drop(round);
        self.counters.full(self.max_keys);
        place
    }

    /// Looks at a few keys if this one is new, and forgets those that are fresh. Nothing is locked.
    pub(super) fn tidy(&self, context: &Own<A>, key: Fingerprint) {
        if !self.is_known(key) {
            self.clean_shared(context);
            self.clean(context, &mut self.round(), false, &[]);
        }
    }

    pub(super) fn is_known(&self, key: Fingerprint) -> bool {
        self.keys.lock(&key).states.contains_key(&key)
    }

    /// Looks at a few keys, forgets those that are fresh, and samples those that may be evicted.
    fn clean(
        &self,
        context: &Own<A>,
        round: &mut Round,
        evicts: bool,
        keep: &[Fingerprint],
    ) -> LeastUsed<Fingerprint> {
        let mut sample = LeastUsed::new();
        let keys = round.len();
        for look in 0..keys.min(MOST_LOOKS) {
            let full = self.len() >= self.max_keys;
            let enough = match (full, evicts) {
                (false, _) => look >= LOOKS,
                (true, false) => look >= LOOKS_WHEN_FULL,
                (true, true) => sample.is_complete(),
            };
            if enough {
                break;
            }
            // What is looked at goes to the end: so none of the first `keys - look` was. The first keys of a sample are
            // those looked at longest ago; the others are random, so that its neighbours can evict no key.
            let next = if evicts && look >= LOOKS { round.any_of(keys - look) } else { round.next() };
            let Some(key) = next else { continue };
            match self.look_at(context, key, full) {
                Look::Gone => round.forget_last(),
                Look::MayGo(sampled) if evicts && !keep.contains(&key) => sample.offer(sampled),
                Look::MayGo(_) | Look::Stays => {}
            }
        }
        sample
    }

    fn look_at(&self, context: &Own<A>, key: Fingerprint, full: bool) -> Look {
        let rest = self.rest.load(Ordering::Relaxed);
        let mut shard = self.keys.lock(&key);
        let Shard { law, states, lines, .. } = &mut *shard;
        let rule = &law.rule;
        let Entry::Occupied(known) = states.entry(key) else { return Look::Gone };
        if lines.contains_key(&key) {
            return Look::Stays;
        }
        let now = context.clock().now();
        let idle = now.since(rule.seen(known.get()));
        if (idle >= rest || full) && rule.is_fresh(known.get(), now) && self.may_forget(context, law, now) {
            known.remove();
            self.forget(now);
            return Look::Gone;
        }
        match full && rule.held(known.get()) == 0 {
            true => Look::MayGo(Sampled { key, usage: rule.usage(known.get(), now), idle }),
            false => Look::Stays,
        }
    }

    /// Evicts a key, unless it was used since it was sampled. Returns its room.
    fn evict(
        &self,
        context: &Own<A>,
        round: &mut Round,
        Sampled { key, usage, .. }: Sampled<Fingerprint>,
    ) -> Option<Place<'_>> {
        let mut shard = self.keys.lock(&key);
        let Shard { law: Law { rule, .. }, states, lines, .. } = &mut *shard;
        let Entry::Occupied(known) = states.entry(key) else { return None };
        let now = context.clock().now();
        let state = known.get();
        if lines.contains_key(&key) || rule.held(state) > 0 || rule.usage(state, now) > usage {
            return None;
        }
        known.remove();
        round.forget_recent(key);
        self.forgotten_at(now);
        self.counters.evict(usage.is_full());
        Some(Place(&self.len))
    }

    /// Denies a call for whose key there is no room. It has used nothing.
    pub(super) fn reject(&self, quota: u64) -> Decision {
        self.counters.reject();
        Decision::table_full(quota)
    }

    /// Gives back room that was reserved, and is not needed.
    pub(super) fn unreserve(&self) {
        drop(Place(&self.len));
    }

    pub(super) fn reserve(&self) -> Option<Place<'_>> {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        let reserved = self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        // Not `then_some`: a place that is made is given back.
        reserved.then(|| Place(&self.len))
    }
}
