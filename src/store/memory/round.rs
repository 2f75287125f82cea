use std::collections::{HashSet, VecDeque};

use super::fingerprint::{Direct, Fingerprint};

/// The keys in the order in which they are looked at.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Each key once, the one looked at longest ago first; and those that are gone.
    order: VecDeque<Fingerprint>,
    /// Those of the order that were reset, and are no more.
    gone: HashSet<Fingerprint, Direct>,
}

impl Round {
    /// A key has come into the table.
    pub(super) fn add(&mut self, key: Fingerprint) {
        if !self.gone.remove(&key) {
            self.order.push_back(key);
        }
    }

    /// A key has left it, before its turn.
    pub(super) fn leave(&mut self, key: Fingerprint) {
        self.gone.insert(key);
    }

    /// The next key, taken out; and whether it is still in the table. What has left has its turn, too: work per look
    /// is constant.
    pub(super) fn next(&mut self) -> Option<(Fingerprint, bool)> {
        let key = self.order.pop_front()?;
        Some((key, !self.gone.remove(&key)))
    }

    /// A key that was looked at stays.
    pub(super) fn again(&mut self, key: Fingerprint) {
        self.order.push_back(key);
    }
}
