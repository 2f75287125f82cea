//! Where keys live, for those who hold several at once.

use super::Own;
use super::fingerprint::Fingerprint;
use super::home::{Home, bucket};
use super::shard::{Law, Shard};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;

impl<A: Algorithm> Table<A> {
    /// The shard of a key; or the shared buckets, where a key is that has no place.
    pub(super) fn shard(&self, home: Home) -> &Mutex<Shard<A>> {
        match home {
            Home::Own(key) => self.keys.of(&key),
            Home::Shared(bucket) => self.shared.of(&bucket),
        }
    }

    /// Where a key is that has no place.
    pub(super) fn elsewhere(&self, key: Fingerprint) -> Home {
        self.crowded.store(true, Ordering::Relaxed);
        Home::shared(key)
    }

    /// Makes place for a key, if it is a new one.
    pub(super) fn prepare(&self, context: &Own<A>, key: Fingerprint) {
        let known = self.keys.lock(&key).states.contains_key(&key);
        if !known {
            self.clean(context);
        }
    }

    /// Gives a key a state in its shard, which is held. `None` if there is no place; else whether it is new.
    pub(super) fn settle(
        &self,
        context: &Own<A>,
        shard: &mut Shard<A>,
        home: Home,
        now: Nanos,
    ) -> Option<bool> {
        let (Home::Own(key) | Home::Shared(key)) = home;
        if shard.states.contains_key(&key) {
            return Some(false);
        }
        let state = match home {
            Home::Own(_) if self.must_share(key, &shard.law) || !self.reserve() => return None,
            Home::Own(_) => self.unknown(context, key, &shard.law, &shard.law.rule, now),
            Home::Shared(_) => self.fresh(context, &shard.law, &shard.law.rule, now),
        };
        shard.states.insert(key, state);
        Some(matches!(home, Home::Own(_)))
    }

    /// Whether a key that is new to its shard, which is held, stays.
    pub(super) fn stays(&self, shard: &mut Shard<A>, key: Fingerprint, now: Nanos) -> bool {
        let Shard { law: Law { rule, .. }, states, lines } = shard;
        let stays =
            states.get(&key).is_some_and(|state| !rule.is_fresh(state, now)) || lines.contains_key(&key);
        if !stays {
            states.remove(&key);
            self.forget(now);
        }
        stays
    }

    /// Whether a new key must share a bucket though there may be room: since calls in progress hold something of it,
    /// some of them perhaps of this key.
    pub(super) fn must_share(&self, key: Fingerprint, law: &Law<A>) -> bool {
        if !law.rule.holds() || !self.crowded.load(Ordering::Relaxed) {
            return false;
        }
        let bucket = bucket(key);
        let shared = self.shared.lock(&bucket);
        shared.states.get(&bucket).is_some_and(|state| shared.law.rule.held(state) > 0)
    }
}
