use std::time::Duration;

use crate::clock::Nanos;

/// How many calls may wait for a key, how long each, and what happens when that many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    places: u64,
    max_wait: u64,
    overflow: Overflow,
    /// Whether somebody has said that calls are to wait.
    asked: bool,
    /// Whether somebody has said how many.
    counted: bool,
}

/// Who is refused when a line is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// The call that comes.
    #[default]
    Refuse,
    /// The call that has waited longest: for callers who care about fresh answers, and may have given up on old ones. It is
    /// told to come back when the next place is free.
    DropOldest,
}

impl Patience {
    /// `places` for calls that want to wait; all others are refused.
    pub(super) const fn unasked(places: u64) -> Self {
        Self { places, max_wait: u64::MAX, overflow: Overflow::Refuse, asked: false, counted: false }
    }

    /// `places` for all calls.
    pub(super) const fn asked(places: u64) -> Self {
        Self { asked: true, ..Self::unasked(places) }
    }

    pub(super) const fn queue(self, places: u64) -> Self {
        Self { places, asked: true, counted: true, ..self }
    }

    pub(super) fn within(self, max_wait: Duration) -> Self {
        Self { max_wait: Nanos::from(max_wait).0, asked: true, ..self }
    }

    pub(super) const fn overflowing(self, overflow: Overflow) -> Self {
        Self { overflow, asked: true, ..self }
    }

    /// The patience of two rules at once.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            places: self.places.min(other.places),
            max_wait: self.max_wait.min(other.max_wait),
            overflow: if self.overflow == other.overflow { self.overflow } else { Overflow::Refuse },
            asked: self.asked && other.asked,
            counted: self.counted || other.counted,
        }
    }

    /// How many calls may wait.
    #[must_use]
    pub const fn places(&self) -> u64 {
        self.places
    }

    /// How long a call may wait, in nanoseconds. `u64::MAX`: as long as it takes.
    #[must_use]
    pub const fn max_wait(&self) -> u64 {
        self.max_wait
    }

    /// Who is refused when that many wait.
    #[must_use]
    pub const fn overflow(&self) -> Overflow {
        self.overflow
    }

    /// How many calls may wait, if somebody has said so.
    pub(crate) const fn chosen_places(&self) -> Option<u64> {
        if self.counted { Some(self.places) } else { None }
    }

    /// Whether calls wait that do not ask for it: those of a layer.
    #[must_use]
    pub const fn is_asked(&self) -> bool {
        self.asked
    }
}

/// The methods by which a rule that refuses is told to let calls wait.
macro_rules! waits {
    ($rule:ty, $default:literal) => {
        impl $rule {
            /// How many calls may wait, per key; 0: none. In total, [`max_waiting`](crate::limiter::Builder::max_waiting) bounds them.
            ///
            #[doc = concat!("Unless set, ", $default, " may wait in [`acquire`](crate::limiter::RateLimiter::acquire), and none in a layer, which refuses \
                what may not pass now. Once set, a layer holds requests as well.")]
            #[must_use]
            pub const fn queue(mut self, places: u64) -> Self {
                self.patience = self.patience.queue(places);
                self
            }

            /// How long a call may wait. One whose turn would come later is refused at once, not after having waited. Once set, a layer holds
            /// requests as well.
            #[must_use]
            pub fn max_wait(mut self, max_wait: std::time::Duration) -> Self {
                self.patience = self.patience.within(max_wait);
                self
            }

            /// Who is refused when the line is full: whoever comes, unless set. Once set, a layer holds requests as well.
            #[must_use]
            pub const fn overflow(mut self, overflow: $crate::algorithm::Overflow) -> Self {
                self.patience = self.patience.overflowing(overflow);
                self
            }
        }
    };
}

pub(super) use waits;
