use std::time::Duration;

use crate::clock::Nanos;

/// How many calls may wait for a key, how long each, and what happens when that many wait.
///
/// For authors of algorithms: see [`Queueing::queue_config`](crate::algorithm::Queueing::queue_config). Whatever it says, all calls that
/// wait are bounded by [`max_queued`](crate::limiter::Builder::max_queued).
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::{QueueOverflow, QueueConfig};
///
/// let queue_config = QueueConfig::enabled(10).within(Duration::from_secs(1)).with_overflow(QueueOverflow::DropOldest);
/// assert_eq!((queue_config.places(), queue_config.max_wait()), (10, 1_000_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    places: u64,
    max_wait: u64,
    overflow: QueueOverflow,
    /// Whether `places` is the bound already, or only once calls are to wait in layers as well.
    bounded: bool,
    /// Whether somebody has said that calls are to wait.
    enabled: bool,
    /// Whether somebody has said how many.
    explicit: bool,
}

/// Who is refused when a line is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueOverflow {
    /// The call that comes.
    #[default]
    RejectNew,
    /// The call that has waited longest: for callers who care about fresh answers, and may have given up on old ones.
    /// It is told to come back when the next place is free.
    DropOldest,
}

impl QueueConfig {
    /// Only calls that ask to wait ([`acquire`](crate::limiter::RateLimiter::acquire)) do: any number of them, as long
    /// as it takes. Those of a layer are refused.
    ///
    /// `default_places` is the length of the queue once [`within`](QueueConfig::within) or
    /// [`with_overflow`](QueueConfig::with_overflow) is called without [`queue`](QueueConfig::queue).
    #[must_use]
    pub const fn acquire_only(default_places: u64) -> Self {
        Self {
            places: default_places,
            max_wait: u64::MAX,
            overflow: QueueOverflow::RejectNew,
            bounded: false,
            enabled: false,
            explicit: false,
        }
    }

    /// All calls wait, as long as it takes. When `places` of them wait, further calls are refused.
    #[must_use]
    pub const fn enabled(places: u64) -> Self {
        Self::acquire_only(places).for_all()
    }

    /// The same for all calls, and so with a bounded queue.
    const fn for_all(self) -> Self {
        Self { bounded: true, enabled: true, ..self }
    }

    /// The same for all calls, with so many places.
    #[must_use]
    pub const fn queue(self, places: u64) -> Self {
        Self { places, bounded: true, enabled: true, explicit: true, ..self }
    }

    /// The same for all calls, none of which waits longer.
    #[must_use]
    pub fn within(self, max_wait: Duration) -> Self {
        Self { max_wait: Nanos::from(max_wait).0, ..self.for_all() }
    }

    /// The same for all calls, with somebody else refused when all places are taken.
    #[must_use]
    pub const fn with_overflow(self, overflow: QueueOverflow) -> Self {
        Self { overflow, ..self.for_all() }
    }

    /// The patience of two rules at once.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            places: self.places().min(other.places()),
            max_wait: self.max_wait.min(other.max_wait),
            bounded: self.bounded || other.bounded,
            overflow: if self.overflow == other.overflow { self.overflow } else { QueueOverflow::RejectNew },
            enabled: self.enabled && other.enabled,
            explicit: self.explicit || other.explicit,
        }
    }

    /// How many calls may wait. `u64::MAX`: as many as all keys' waiting calls may be.
    #[must_use]
    pub const fn places(&self) -> u64 {
        if self.bounded { self.places } else { u64::MAX }
    }

    /// How long a call may wait, in nanoseconds. `u64::MAX`: as long as it takes.
    #[must_use]
    pub const fn max_wait(&self) -> u64 {
        self.max_wait
    }

    /// Who is refused when that many wait.
    #[must_use]
    pub const fn overflow(&self) -> QueueOverflow {
        self.overflow
    }

    /// How many calls may wait, if somebody has said so.
    pub(crate) const fn explicit_capacity(&self) -> Option<u64> {
        if self.explicit { Some(self.places) } else { None }
    }

    /// Whether calls wait that do not ask for it: those of a layer.
    #[must_use]
    pub const fn holds_requests(&self) -> bool {
        self.enabled
    }
}

/// The methods by which a rule that refuses is told to let calls wait.
macro_rules! queue_methods {
    ($algorithm:ty, $default:literal) => {
        impl $algorithm {
            /// How many calls may wait, per key; 0: none. In total,
            /// [`max_queued`](crate::limiter::Builder::max_queued) bounds them.
            ///
            /// Unless this, `max_wait` or `overflow` is called, only that total bounds how many may wait in
            /// [`acquire`](crate::limiter::RateLimiter::acquire), so one key may take every place of it; and none wait in
            #[doc = concat!("a layer, which refuses what may not pass now. With `max_wait` or `overflow` alone, ", $default, " may wait. Once \
                any of the three is called, a layer holds requests as well.")]
            #[must_use]
            pub const fn queue(mut self, places: u64) -> Self {
                self.queue_config = self.queue_config.queue(places);
                self
            }

            /// How long a call may wait. One whose turn would come later is refused at once, not after having waited.
            /// Once set, a layer holds requests as well.
            #[must_use]
            pub fn max_wait(mut self, max_wait: std::time::Duration) -> Self {
                self.queue_config = self.queue_config.within(max_wait);
                self
            }

            /// Who is refused when the line is full: whoever comes, unless set. Once set, a layer holds requests as
            /// well.
            #[must_use]
            pub const fn overflow(mut self, overflow: $crate::algorithm::QueueOverflow) -> Self {
                self.queue_config = self.queue_config.with_overflow(overflow);
                self
            }
        }
    };
}

pub(super) use queue_methods;
