use std::time::Duration;

use super::Algorithm;
use crate::clock::Nanos;

/// The configuration of a key's queue: how many calls may wait, how long each may wait, and what happens when the queue
/// is full.
///
/// An algorithm returns its configuration from [`Algorithm::queue_config`](crate::algorithm::Algorithm::queue_config).
/// In addition, [`max_queued`](crate::limiter::Builder::max_queued) bounds the queued calls of all keys together.
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
    /// True if `places` bounds the queue. If false, any number of calls of `acquire` may wait.
    bounded: bool,
    /// True if requests of a layer are queued as well, not only calls of `acquire`.
    enabled: bool,
    /// True if `places` was set, and is not a default.
    explicit: bool,
    /// True if only calls with priority wait. In this case, `places` bounds their total cost.
    priority_only: bool,
    /// True if queued calls count as admitted.
    counted: bool,
    /// True if it is unknown when a call will be admitted.
    untimed: bool,
    /// True if the queue cannot be combined with that of another member of a tuple.
    exclusive: bool,
}

/// The call that is denied when a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueOverflow {
    /// The call that arrives.
    #[default]
    RejectNew,
    /// The call that has waited longest. Choose this if new requests matter more than old ones, whose callers may be
    /// gone. The `retry_after` of the denied call is the time until the next place is free.
    DropOldest,
}

impl QueueConfig {
    /// Creates a queue used only by [`acquire`](crate::limiter::RateLimiter::acquire). Any number of calls may wait,
    /// and each for any time. A layer rejects requests that cannot pass now.
    ///
    /// `default_places` is the capacity of the queue once [`within`](QueueConfig::within) or
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
            priority_only: false,
            counted: false,
            untimed: false,
            exclusive: false,
        }
    }

    /// Creates a queue for calls of `acquire` and requests of a layer. At most `places` calls wait, each for any time.
    /// Further calls are denied.
    #[must_use]
    pub const fn enabled(places: u64) -> Self {
        Self::acquire_only(places).for_all()
    }

    /// Enables the queue for requests of a layer, and bounds it by `places`.
    const fn for_all(self) -> Self {
        Self { bounded: true, enabled: true, ..self }
    }

    /// Sets the capacity to `places`, and enables the queue for requests of a layer.
    #[must_use]
    pub const fn queue(self, places: u64) -> Self {
        Self { places, bounded: true, enabled: true, explicit: true, ..self }
    }

    /// Sets the maximum time that a call waits, and enables the queue for requests of a layer.
    #[must_use]
    pub fn within(self, max_wait: Duration) -> Self {
        Self { max_wait: Nanos::from(max_wait).0, ..self.for_all() }
    }

    /// Sets which call is denied when the queue is full, and enables the queue for requests of a layer.
    #[must_use]
    pub const fn with_overflow(self, overflow: QueueOverflow) -> Self {
        Self { overflow, ..self.for_all() }
    }

    /// Lets only calls with priority wait, up to a total cost of `units`.
    #[must_use]
    pub const fn priority_only(self, units: u64) -> Self {
        Self { places: units, bounded: true, enabled: true, explicit: false, priority_only: true, ..self }
    }

    /// Counts queued calls as admitted: the `limit` and `remaining` of a decision include the places of the queue. The
    /// algorithm's policy must include these places: the quota of its first
    /// [policy](crate::algorithm::Algorithm::for_each_policy) must be the number of calls of cost 1 that an idle key
    /// admits or queues at one instant. A decision reports that quota as its `limit`, unless
    /// [`max_queued`](crate::limiter::Builder::max_queued) allows fewer waiters.
    #[must_use]
    pub const fn counted(self) -> Self {
        Self { counted: true, ..self }
    }

    /// Declares that it is unknown when a queued call will be admitted, because calls are admitted when other calls
    /// end. A call that has waited for the maximum time is denied.
    #[must_use]
    pub const fn untimed(self) -> Self {
        Self { untimed: true, ..self }
    }

    /// Makes the queue exclusive: the queue cannot be combined with that of another member of a tuple.
    pub(super) const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    /// Returns the configuration of one queue for two members of a tuple: the stricter of each setting. Returns `None`
    /// if the two queues cannot be combined.
    pub(super) fn and(self, other: Self) -> Option<Self> {
        let exclusive = |queue: Self| queue.exclusive || queue.priority_only;
        (!exclusive(self) && !exclusive(other)).then(|| self.stricter(other))
    }

    fn stricter(self, other: Self) -> Self {
        Self {
            places: self.places().min(other.places()),
            max_wait: self.max_wait.min(other.max_wait),
            bounded: self.bounded || other.bounded,
            overflow: if self.overflow == other.overflow { self.overflow } else { QueueOverflow::RejectNew },
            enabled: self.enabled && other.enabled,
            explicit: self.explicit || other.explicit,
            priority_only: false,
            counted: false,
            untimed: self.untimed || other.untimed,
            exclusive: false,
        }
    }

    /// Returns how many calls without priority may wait. `u64::MAX` if only the maximum for all keys together bounds
    /// them.
    #[must_use]
    pub const fn places(&self) -> u64 {
        match (self.priority_only, self.bounded) {
            (true, _) => 0,
            (false, true) => self.places,
            (false, false) => u64::MAX,
        }
    }

    /// Returns the maximum total cost of queued calls with priority, if only those wait.
    pub(crate) const fn priority_units(&self) -> Option<u64> {
        if self.priority_only { Some(self.places) } else { None }
    }

    pub(crate) const fn is_counted(&self) -> bool {
        self.counted
    }

    pub(crate) const fn is_timed(&self) -> bool {
        !self.untimed
    }

    /// Returns whether the queue is exclusive. The algorithm of an exclusive queue may count denials, so a call that
    /// may be queued is peeked at before it is checked.
    pub(crate) const fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Returns how long a call may wait, in nanoseconds. `u64::MAX` means any time.
    #[must_use]
    pub const fn max_wait(&self) -> u64 {
        self.max_wait
    }

    /// Returns which call is denied when the queue is full.
    #[must_use]
    pub const fn overflow(&self) -> QueueOverflow {
        self.overflow
    }

    /// Returns how many calls may wait, if [`queue`](QueueConfig::queue) was called.
    pub(crate) const fn explicit_capacity(&self) -> Option<u64> {
        if self.explicit { Some(self.places) } else { None }
    }

    /// Returns whether requests of a layer are queued as well, not only calls of `acquire`.
    #[must_use]
    pub const fn holds_requests(&self) -> bool {
        self.enabled
    }
}

/// Returns whether an algorithm queues the requests of a layer.
#[inline]
pub(crate) fn holds_requests<A: Algorithm>(algorithm: &A) -> bool {
    algorithm.queue_config().is_some_and(|queue| queue.holds_requests())
}

/// Defines the methods that make an algorithm queue calls instead of denying them.
macro_rules! queue_methods {
    ($algorithm:ty, $default:literal) => {
        impl $algorithm {
            /// Sets how many calls may wait, per key. With 0, no call waits.
            /// [`max_queued`](crate::limiter::Builder::max_queued) bounds the waiters of all keys together.
            ///
            /// A layer queues requests only once `queue`, `max_wait` or `overflow` was called. Before that, a layer
            /// rejects requests that cannot pass now, and only `max_queued` bounds how many calls wait in
            /// [`acquire`](crate::limiter::RateLimiter::acquire), so the waiters of one key may use up that bound.
            #[doc = concat!("If only `max_wait` or `overflow` is called, ", $default, " may wait per key.")]
            #[must_use]
            pub const fn queue(mut self, places: u64) -> Self {
                self.queue_config = self.queue_config.queue(places);
                self
            }

            /// Sets how long a call may wait, and, as `queue` does, makes a layer queue requests. A call that would
            /// wait longer is denied at once. If the wait is unknown, as for calls in progress, the call is denied when
            /// it has waited this long.
            #[must_use]
            pub fn max_wait(mut self, max_wait: std::time::Duration) -> Self {
                self.queue_config = self.queue_config.within(max_wait);
                self
            }

            /// Sets which call is denied when the queue is full, by default the call that arrives. As `queue` does,
            /// this method makes a layer queue requests.
            #[must_use]
            pub const fn overflow(mut self, overflow: $crate::algorithm::QueueOverflow) -> Self {
                self.queue_config = self.queue_config.with_overflow(overflow);
                self
            }
        }
    };
}

pub(super) use queue_methods;
