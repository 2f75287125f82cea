//! The latest resets of the keys of a shard.

use std::collections::VecDeque;

use super::fingerprint::Fingerprint;
use crate::clock::Nanos;

/// The number of keys of which a shard remembers that they were reset. Beyond it, all keys of the shard count as reset
/// when the key of these was that was reset first.
const MAX_RESETS: usize = 64;

/// When a call was charged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChargeTime {
    /// The clock reading at which the algorithm charged the call.
    pub(super) at: Nanos,
    /// The number of resets of the table before the charge. If the key was reset since, nothing is given back, because
    /// the units that are charged to the key now are those of other calls. 0 if nothing is given back since the call
    /// was charged less than its cost, which happens only after a replacement.
    pub(super) resets: u64,
}

/// The latest resets, each as the number of the table's resets with this one. A settlement looks here whether the call
/// was charged before.
#[derive(Debug, Default)]
pub(super) struct Resets {
    /// The latest reset of all keys, or replacement of the algorithm.
    all: u64,
    /// The keys that were reset, the latest at the end: at most [`MAX_RESETS`].
    keys: VecDeque<(Fingerprint, u64)>,
}

impl Resets {
    /// Creates the resets of a shard whose keys were all reset, or whose algorithm was replaced.
    pub(super) fn of_all(number: u64) -> Self {
        Self { all: number, keys: VecDeque::new() }
    }

    /// Records the reset of a key, which is the one with this number.
    pub(super) fn record(&mut self, id: Fingerprint, number: u64) {
        self.keys.retain(|(other, _)| *other != id);
        self.keys.push_back((id, number));
        if self.keys.len() > MAX_RESETS
            && let Some((_, oldest)) = self.keys.pop_front()
        {
            self.all = oldest;
        }
    }

    /// Returns whether the key was reset after the first `resets` resets.
    pub(super) fn contain(&self, id: Fingerprint, resets: u64) -> bool {
        let of_key = self.keys.iter().find(|(other, _)| *other == id);
        resets < of_key.map_or(0, |(_, number)| *number).max(self.all)
    }
}
