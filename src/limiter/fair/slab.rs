//! Values in slots, whose numbers stay the same while they are in use.

/// A list of slots. A slot that was removed is used again, so the memory is that of the most values at a time.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    vacant: Vec<usize>,
}

/// The number of no slot.
pub(super) const NONE: usize = usize::MAX;

const IN_USE: &str = "a number is used while its slot is occupied";

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> usize {
        if let Some(at) = self.vacant.pop() {
            self.slots[at] = Some(value);
            return at;
        }
        self.slots.push(Some(value));
        self.slots.len() - 1
    }

    /// Removes the value of an occupied slot.
    pub(super) fn remove(&mut self, at: usize) -> T {
        let value = self.slots[at].take().expect(IN_USE);
        self.vacant.push(at);
        value
    }

    /// Returns the value of an occupied slot.
    #[inline]
    pub(super) fn at(&self, at: usize) -> &T {
        self.slots[at].as_ref().expect(IN_USE)
    }

    #[inline]
    pub(super) fn at_mut(&mut self, at: usize) -> &mut T {
        self.slots[at].as_mut().expect(IN_USE)
    }

    /// Returns the numbers of all occupied slots.
    pub(super) fn occupied(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|at| self.slots[*at].is_some()).collect()
    }
}
