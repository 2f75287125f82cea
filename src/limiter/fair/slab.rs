//! Values in slots, whose numbers stay the same while they are in use.

/// A list of slots. A slot that was removed is used again, so the memory is that of the most values at a time.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The slot that was removed last.
    vacant: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Occupied(T),
    /// With the slot that was removed before this one.
    Vacant(usize),
}

/// The number of no slot.
pub(super) const NONE: usize = usize::MAX;

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), vacant: NONE }
    }

    pub(super) fn insert(&mut self, value: T) -> usize {
        let at = self.vacant;
        match self.slots.get_mut(at) {
            Some(slot) => {
                if let Slot::Vacant(before) = *slot {
                    self.vacant = before;
                }
                *slot = Slot::Occupied(value);
                at
            }
            None => {
                self.slots.push(Slot::Occupied(value));
                self.slots.len() - 1
            }
        }
    }

    /// Removes the value of an occupied slot.
    pub(super) fn remove(&mut self, at: usize) -> T {
        match std::mem::replace(&mut self.slots[at], Slot::Vacant(self.vacant)) {
            Slot::Occupied(value) => {
                self.vacant = at;
                value
            }
            Slot::Vacant(_) => unreachable!("a slot is removed once"),
        }
    }

    /// Returns the value of an occupied slot.
    #[inline]
    pub(super) fn at(&self, at: usize) -> &T {
        match &self.slots[at] {
            Slot::Occupied(value) => value,
            Slot::Vacant(_) => unreachable!("a number is used while its slot is occupied"),
        }
    }

    #[inline]
    pub(super) fn at_mut(&mut self, at: usize) -> &mut T {
        match &mut self.slots[at] {
            Slot::Occupied(value) => value,
            Slot::Vacant(_) => unreachable!("a number is used while its slot is occupied"),
        }
    }

    /// Returns the numbers of all occupied slots.
    pub(super) fn occupied(&self) -> Vec<usize> {
        let is_occupied = |at: &usize| matches!(self.slots[*at], Slot::Occupied(_));
        (0..self.slots.len()).filter(is_occupied).collect()
    }
}
