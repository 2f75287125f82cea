//! Where keys live, for calls that hold several at once.

use std::mem;

use super::Own;
use super::fingerprint::Fingerprint;
use super::home::Home;
use super::on_full::OnFull;
use super::room::Place;
use super::shard::{Law, Shard};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::sync::Mutex;

/// What became of a key that was to get a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Known,
    /// It has a new place, or a bucket that it shares.
    New,
    /// There is no room for it.
    Homeless,
}

impl<A: Algorithm> Table<A> {
    /// The shard of a key; or the shared buckets, where a key is that has no place.
    pub(super) fn shard(&self, home: Home) -> &Mutex<Shard<A>> {
        match home {
            Home::Own(key) => self.keys.of(&key),
            Home::Shared(bucket) => self.shared.of(&bucket),
        }
    }

    /// Where a key is that has no place, if the table has shared buckets.
    pub(super) fn elsewhere(&self, key: Fingerprint) -> Option<Home> {
        if self.house.on_full != OnFull::ShareBuckets {
            return None;
        }
        self.counters.share();
        Some(Home::Shared(self.house.bucket(key)))
    }

    /// Reserves room for a key, if it is a new one. `keep` are keys of the same call.
    pub(super) fn prepare(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        keep: &[Fingerprint],
    ) -> Option<Place<'_>> {
        if self.is_known(key) {
            return None;
        }
        self.clean_shared(context);
        self.make_room(context, keep)
    }

    /// Gives a key a state in its shard, which is held. `reserved` says whether there is room reserved for it: a new
    /// key takes that over.
    pub(super) fn settle(
        &self,
        context: &Own<A>,
        shard: &mut Shard<A>,
        home: Home,
        reserved: bool,
        now: Nanos,
    ) -> Settled {
        let (Home::Own(key) | Home::Shared(key)) = home;
        if shard.states.contains_key(&key) {
            return Settled::Known;
        }
        match home {
            Home::Own(_) if self.must_share(key, &shard.law) => return Settled::Homeless,
            Home::Own(_) => {
                let place = if reserved { None } else { self.reserve() };
                if !reserved && place.is_none() {
                    return Settled::Homeless;
                }
                let state = self.unknown(context, key, &shard.law, &shard.law.rule, now);
                shard.make_slot();
                shard.states.insert(key, state);
                // The key has it now.
                mem::forget(place);
            }
            Home::Shared(_) => self.open_bucket(context, shard, key, None, now),
        }
        Settled::New
    }

    /// Whether a key that is new to its shard, which is held, stays.
    pub(super) fn stays(&self, shard: &mut Shard<A>, key: Fingerprint, now: Nanos) -> bool {
        let Shard { law: Law { rule, .. }, states, lines, .. } = shard;
        let stays =
            states.get(&key).is_some_and(|state| !rule.is_fresh(state, now)) || lines.contains_key(&key);
        if !stays {
            states.remove(&key);
            self.forget(now);
        }
        stays
    }
}
