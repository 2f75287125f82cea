//! The model of a key that can be paused.

use super::Oracle;

/// A key, and what is left of its pause, in nanoseconds of the key's own time.
#[derive(Clone, Debug)]
pub(crate) struct Paused<O> {
    pub(crate) rule: O,
    left: u64,
}

impl<O: Oracle> Paused<O> {
    pub(crate) fn new(rule: O) -> Self {
        Self { rule, left: 0 }
    }

    pub(crate) fn observe(&mut self, now: u64) {
        let before = self.rule.clock().time;
        self.rule.observe(now);
        let on = self.rule.clock().time - before;
        self.left = u128::from(self.left).saturating_sub(on) as u64;
    }

    /// Pauses the key from now on, instead of an earlier pause. A pause of 0 is none.
    pub(crate) fn pause(&mut self, duration: u64) {
        self.left = duration;
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.left > 0
    }

    /// Returns the key as it is at the end of the pause, and the time on the clock until then. If the clock is behind,
    /// the pause goes on once it has caught up. Without a pause, returns the key at its latest reading.
    pub(crate) fn at_end(&self) -> (O, u64) {
        let mut rule = self.rule.clone();
        rule.observe(rule.clock().latest + self.left);
        (rule, self.left + self.rule.behind())
    }
}
