//! What changes keys from outside: calls that are over, resets, other rules, and the end.

use std::collections::hash_map::Entry;

use super::Own;
use super::fingerprint::Fingerprint;
use super::home::Home;
use super::shard::{Law, Shard, Wakers, lock};
use super::table::{Table, rest};
use crate::algorithm::Algorithm;
use crate::sync::atomic::Ordering;

impl<A: Algorithm> Table<A> {
    /// Holds whatever a call's permit is of: the key's own place if it was taken there, or the shared bucket.
    pub(super) fn end(&self, context: &Own<A>, home: Home, rule: &A, cost: u64) {
        let mut wake = Wakers::default();
        {
            let (Home::Own(key) | Home::Shared(key)) = home;
            let mut shard = lock(self.shard(home));
            let now = context.clock().now();
            let Shard { law, states, lines, .. } = &mut *shard;
            // What calls in progress hold is not forgotten, unless the rule has panicked.
            if let Some(state) = states.get_mut(&key) {
                // By the rule that the call came by; who waits leaves by that of now.
                rule.release(state, now, cost);
                self.seat(key, law, None, state, Some(lines), &mut wake).ended(now, cost);
            }
        }
    }

    /// Refuses all who wait, and all who come. Whom to wake, once nothing is held.
    pub(super) fn close(&self, context: &Own<A>) -> Wakers {
        let mut wake = Wakers::default();
        for mut shard in self.keys.iter().chain(self.shared.iter()) {
            let now = context.clock().now();
            let Shard { law, states, lines, .. } = &mut *shard;
            law.closed = true;
            let waited_for: Vec<_> = lines.keys().copied().collect();
            for key in waited_for {
                if let Some(state) = states.get_mut(&key) {
                    self.seat(key, law, None, state, Some(&mut *lines), &mut wake).close(now);
                }
            }
        }
        wake
    }

    /// Makes the key as good as new.
    pub(super) fn reset(&self, context: &Own<A>, key: Fingerprint) {
        let mut wake = Wakers::default();
        {
            let mut round = self.round();
            let mut shard = self.keys.lock(&key);
            let now = context.clock().now();
            let Shard { law, states, lines, .. } = &mut *shard;
            let Entry::Occupied(mut known) = states.entry(key) else { return };
            if lines.contains_key(&key) || law.rule.holds() || self.buckets.load(Ordering::Relaxed) > 0 {
                // It keeps its place: for those who wait, for calls in progress, or since a key that comes to a crowded table starts with what others
                // have used.
                if let Some(queue) = lines.get_mut(&key) {
                    queue.restart(now);
                }
                let state = known.get_mut();
                let rule = &law.rule;
                let seat = self.seat(key, law, None, state, Some(lines), &mut wake);
                seat.change(now, |state| rule.renew(state, self.fresh(context, law, rule, now)));
            } else {
                known.remove();
                round.leave(key);
                self.forget(now);
            }
        }
    }

    /// Replaces the rule of all keys: shard by shard, each at an instant between two decisions. Whom to wake, once
    /// nothing is held.
    pub(super) fn replace(&self, context: &Own<A>, new: &A) -> Wakers {
        let mut wake = Wakers::default();
        for mut shard in self.keys.iter().chain(self.shared.iter()) {
            let now = context.clock().now();
            let Shard { law, states, lines, .. } = &mut *shard;
            for (key, state) in states {
                let wake = &mut wake;
                self.seat(*key, law, None, state, Some(&mut *lines), &mut *wake).release(now);
                let seat = self.seat(*key, law, Some(new), state, Some(lines), wake);
                seat.change(now, |state| new.adapt(state, &law.rule, now));
            }
            let mut first = self.fresh(context, law, &law.rule, now);
            new.adapt(&mut first, &law.rule, now);
            let (generation, closed) = (law.generation + 1, law.closed);
            *law = Law { rule: new.clone(), generation, first: Some(first), closed };
        }
        self.rest.store(rest(new), Ordering::Relaxed);
        wake
    }
}
