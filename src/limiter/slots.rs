//! The keys of one shard and their states: a hash table with open addressing.
//!
//! A key and its state are in one slot. The fingerprint of the key determines the index of that slot. If the slot is
//! occupied by another key, the key is put into the next vacant slot. So a lookup usually reads one or two cache lines,
//! and compares one word per slot. (A `HashMap` of std first reads a table of tags.) When a key is removed, the keys
//! behind it move up if necessary. So removed keys leave no marks in slots, and the table needs no rebuild.
//!
//! The table doubles when a key is inserted and seven of eight slots are occupied. The number of
//! [shards](super::shard::Shards::for_keys) determines how many keys a shard has when the key table is full.

use std::mem;

use super::fingerprint::Fingerprint;

/// The number of slots after the first key was inserted.
const FIRST_SLOTS: usize = 8;

#[derive(Debug)]
pub(super) struct Slots<S> {
    /// At first there are no slots. Later, their number is a power of two, and at least one slot is vacant.
    slots: Box<[Option<Slot<S>>]>,
    /// A shard of more than 2^32 slots would take more than 64 GB.
    len: u32,
    /// The index of the slot that is examined next.
    cursor: u32,
}

#[derive(Debug)]
struct Slot<S> {
    key: Fingerprint,
    state: S,
}

impl<S> Slots<S> {
    pub(super) fn new() -> Self {
        Self { slots: Box::default(), len: 0, cursor: 0 }
    }

    /// Returns the number of slots, vacant or not.
    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn contains(&self, key: Fingerprint) -> bool {
        self.find(key).is_some()
    }

    pub(super) fn get(&self, key: Fingerprint) -> Option<&S> {
        self.slots[self.find(key)?].as_ref().map(|slot| &slot.state)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Fingerprint) -> Option<&mut S> {
        self.slots[self.find(key)?].as_mut().map(|slot| &mut slot.state)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Fingerprint, &mut S)> {
        self.slots.iter_mut().flatten().map(|slot| (slot.key, &mut slot.state))
    }

    /// Inserts a key that is not in the table.
    pub(super) fn insert(&mut self, key: Fingerprint, state: S) {
        if 8 * self.len as usize >= 7 * self.slots.len() {
            self.grow();
        }
        let mut at = self.home(key);
        while self.slots[at].is_some() {
            at = self.next(at);
        }
        self.slots[at] = Some(Slot { key, state });
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key: Fingerprint) {
        if let Some(at) = self.find(key) {
            self.remove_at(at);
        }
    }

    /// Returns the key and the state in the next slot, or `None` if that slot is vacant. Advances the cursor. The table
    /// must have slots. All slots are examined in turn. The order of keys depends on their keyed hashes, so callers
    /// cannot choose that order.
    pub(super) fn examine_next(&mut self) -> Option<(Fingerprint, &mut S)> {
        let at = self.cursor as usize;
        self.cursor = (self.cursor + 1) & (self.slots.len() as u32).wrapping_sub(1);
        self.slots[at].as_mut().map(|slot| (slot.key, &mut slot.state))
    }

    /// Advances the cursor by at most `max` slots, while they are vacant, or `skips` returns `true` for their states.
    /// Stops at the end of the table, from where the cursor moves to the first slot. Returns the number of slots by
    /// which the cursor has advanced.
    pub(super) fn skip_while(&mut self, max: usize, skips: impl Fn(&S) -> bool) -> usize {
        let cursor = self.cursor as usize;
        let end = self.slots.len().min(cursor + max);
        let slots = &self.slots[cursor..end];
        let is_kept = |slot: &Slot<S>| !skips(&slot.state);
        let skipped = slots.iter().position(|slot| slot.as_ref().is_some_and(is_kept)).unwrap_or(slots.len());
        self.cursor = ((cursor + skipped) & self.slots.len().wrapping_sub(1)) as u32;
        skipped
    }

    /// Removes the key that was examined last. Another key may move into the slot that is now vacant. So this slot is
    /// examined next.
    pub(super) fn remove_examined(&mut self) {
        let examined = (self.cursor as usize).wrapping_sub(1) & (self.slots.len() - 1);
        self.cursor = examined as u32;
        self.remove_at(examined);
    }

    /// Returns the index at which the search for a key begins. If there are no slots, the result is not a valid index.
    #[inline]
    fn home(&self, key: Fingerprint) -> usize {
        key.slot() & self.slots.len().wrapping_sub(1)
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & self.slots.len().wrapping_sub(1)
    }

    #[inline]
    fn find(&self, key: Fingerprint) -> Option<usize> {
        let mut at = self.home(key);
        while let Some(Some(slot)) = self.slots.get(at) {
            if slot.key == key {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    fn remove_at(&mut self, at: usize) {
        let mut vacant = at;
        // The state is dropped at the end, because its drop may panic.
        let _removed = self.slots[vacant].take();
        self.len -= 1;
        let mut at = self.next(vacant);
        while let Some(slot) = &self.slots[at] {
            // A key moves up to the vacant slot, unless its search begins behind that slot.
            let mask = self.slots.len() - 1;
            let from_home = at.wrapping_sub(self.home(slot.key)) & mask;
            if from_home >= at.wrapping_sub(vacant) & mask {
                self.slots.swap(vacant, at);
                vacant = at;
            }
            at = self.next(at);
        }
    }

    #[cold]
    fn grow(&mut self) {
        let count = (2 * self.slots.len()).max(FIRST_SLOTS);
        let slots = mem::replace(&mut self.slots, (0..count).map(|_| None).collect());
        self.len = 0;
        for Slot { key, state } in slots.into_iter().flatten() {
            self.insert(key, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::collections::BTreeMap;

    /// Keys have few different indexes, so that there are long runs of occupied slots, even across the end of the
    /// table.
    #[test]
    fn a_table_has_the_keys_that_a_map_has() {
        for seed in 0..256 {
            let mut random = Rng::with_seed(seed);
            let (mut slots, mut map) = (Slots::new(), BTreeMap::new());
            for at in 0..random.usize(..400) {
                let (number, kind) = (random.u64(..60), random.u8(..4));
                let key = Fingerprint::of_slot(number / 3 + 50, number);
                match kind {
                    0 | 1 if !slots.contains(key) => {
                        slots.insert(key, at);
                        map.insert(number, at);
                    }
                    2 => {
                        slots.remove(key);
                        map.remove(&number);
                    }
                    3 if slots.slot_count() > 0 => {
                        let examined = slots.examine_next().map(|(key, _)| key);
                        if let Some(key) = examined {
                            slots.remove_examined();
                            map.retain(|number, _| Fingerprint::of_slot(number / 3 + 50, *number) != key);
                        }
                    }
                    _ => {}
                }
                for number in 0..60 {
                    let key = Fingerprint::of_slot(number / 3 + 50, number);
                    assert_eq!(slots.get(key), map.get(&number), "seed {seed}");
                    assert_eq!(
                        slots.get_mut(key).map(|state| *state),
                        map.get(&number).copied(),
                        "seed {seed}"
                    );
                }
                assert_eq!(slots.iter_mut().count(), map.len(), "seed {seed}");
                assert!(slots.slot_count() <= 128 && map.len() <= slots.slot_count() / 8 * 7, "seed {seed}");
            }
        }
    }

    #[test]
    fn the_cursor_examines_every_key_once_per_round() {
        let mut slots = Slots::new();
        (0..700).for_each(|number| slots.insert(Fingerprint::of_slot(number, number), number));
        assert_eq!(slots.slot_count(), 1_024);
        let mut examined = Vec::new();
        for _ in 0..slots.slot_count() {
            examined.extend(slots.examine_next().map(|(_, number)| *number));
        }
        examined.sort_unstable();
        assert_eq!(examined, (0..700).collect::<Vec<_>>());
    }
}
