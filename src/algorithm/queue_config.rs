//! The configuration of a key's queue, and the methods of algorithms that set it.

use std::time::Duration;

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
/// let queue_config = QueueConfig::enabled(10)
///     .within(Duration::from_secs(1))
///     .with_overflow(QueueOverflow::DropOldest);
/// assert_eq!((queue_config.places(), queue_config.max_wait()), (10, 1_000_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    waits: Waits,
    bound: Bound,
    /// The maximum number of waiters or, if only calls with priority wait, their maximum total cost: in one number,
    /// since each limiter and each state of `Tiered` contains a configuration.
    capacity: u64,
    max_wait: u64,
    overflow: QueueOverflow,
    /// True if it is unknown when a queued call will be admitted.
    untimed: bool,
    /// True if the queue cannot be combined with that of another member of a tuple.
    exclusive: bool,
}

/// Which calls wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Calls of `acquire`.
    Acquire,
    /// Calls of `acquire`, and requests of a layer.
    Requests,
    /// Calls with priority, up to a total cost.
    PriorityOnly,
}

/// The meaning of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// Any number of calls may wait. If another setting bounds the queue, it has this capacity.
    None,
    Default,
    /// [`queue`](QueueConfig::queue) has set the number.
    Set,
}

/// The call that is denied when a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueOverflow {
    /// The call that arrives.
    #[default]
    RejectNew,
    /// The call that has waited longest. Choose this if new requests matter more than old ones, whose callers may be
    /// gone. The `retry_after` of the denied call is the time until the call could be queued in a free place. A limiter
    /// in Redis cannot drop calls that wait, and is not built with this.
    ///
    /// If several limits decide a call together, the call may displace another one, and then be denied: if the last
    /// place of [`max_queued`](crate::limiter::Builder::max_queued), or the last unit of a
    /// [total](super::Concurrency::total), is taken while it joins its queues.
    DropOldest,
}

impl QueueConfig {
    /// Creates the configuration of a queue that only calls of [`acquire`](crate::limiter::RateLimiter::acquire) use.
    /// Any number of calls may wait, and each call may wait for any length of time. A layer rejects requests that
    /// cannot pass now.
    ///
    /// `default_places` is the number of places that the queue gets if [`within`](QueueConfig::within) or
    /// [`with_overflow`](QueueConfig::with_overflow) is called, and [`queue`](QueueConfig::queue) is not called.
    #[must_use]
    pub const fn acquire_only(default_places: u64) -> Self {
        Self {
            waits: Waits::Acquire,
            bound: Bound::None,
            capacity: default_places,
            max_wait: u64::MAX,
            overflow: QueueOverflow::RejectNew,
            untimed: false,
            exclusive: false,
        }
    }

    /// Creates the configuration of a queue that calls of `acquire` and requests of a layer use. At most `places` calls
    /// wait, and each may wait for any length of time. Further calls are denied.
    #[must_use]
    pub const fn enabled(places: u64) -> Self {
        Self::acquire_only(places).for_all()
    }

    /// Enables the queue for requests of a layer, and bounds it.
    const fn for_all(self) -> Self {
        if self.is_priority_only() {
            return self;
        }
        let bound = match self.bound {
            Bound::None => Bound::Default,
            bound => bound,
        };
        Self { waits: Waits::Requests, bound, ..self }
    }

    /// Sets how many calls may wait, and enables the queue for requests of a layer. Changes nothing if [only calls with
    /// priority wait](QueueConfig::priority_only).
    #[must_use]
    pub const fn queue(self, places: u64) -> Self {
        if self.is_priority_only() {
            return self;
        }
        Self { waits: Waits::Requests, bound: Bound::Set, capacity: places, ..self }
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

    /// Lets only calls with priority wait, up to a total cost of `units`. Then no call of a full queue takes the place
    /// of another, so [`with_overflow`](QueueConfig::with_overflow) has no effect.
    #[must_use]
    pub const fn priority_only(self, units: u64) -> Self {
        Self { waits: Waits::PriorityOnly, bound: Bound::Default, capacity: units, ..self }
    }

    /// Declares that it is unknown when a queued call will be admitted, because queued calls are admitted when other
    /// calls end. A queued call that has waited for the maximum time is denied.
    #[must_use]
    pub const fn untimed(self) -> Self {
        Self { untimed: true, ..self }
    }

    /// Makes the queue exclusive: the queue cannot be combined with that of another member of a tuple.
    pub(super) const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    /// Returns the configuration of one queue for two members of a tuple, with the stricter value of each setting.
    /// Returns `None` if the two queues cannot be combined.
    pub(super) fn and(self, other: Self) -> Option<Self> {
        let exclusive = |queue: Self| queue.exclusive || queue.is_priority_only();
        (!exclusive(self) && !exclusive(other)).then(|| self.stricter(other))
    }

    fn stricter(self, other: Self) -> Self {
        let bound = match (self.bound, other.bound) {
            (Bound::None, Bound::None) => Bound::None,
            (Bound::Set, _) | (_, Bound::Set) => Bound::Set,
            _ => Bound::Default,
        };
        let is_for_all = self.holds_requests() && other.holds_requests();
        Self {
            waits: if is_for_all { Waits::Requests } else { Waits::Acquire },
            bound,
            capacity: self.places().min(other.places()),
            max_wait: self.max_wait.min(other.max_wait),
            overflow: if self.overflow == other.overflow { self.overflow } else { QueueOverflow::RejectNew },
            untimed: self.untimed || other.untimed,
            exclusive: false,
        }
    }

    pub(crate) const fn is_priority_only(&self) -> bool {
        matches!(self.waits, Waits::PriorityOnly)
    }

    /// Returns how many calls without priority may wait. `u64::MAX` means that only the maximum for all keys together
    /// applies.
    #[must_use]
    pub const fn places(&self) -> u64 {
        match self.bound {
            _ if self.is_priority_only() => 0,
            Bound::None => u64::MAX,
            Bound::Default | Bound::Set => self.capacity,
        }
    }

    /// Returns whether the queue has a place for a call of `cost` behind `waiting` calls whose total cost is `ahead`.
    pub(crate) const fn has_place(&self, waiting: u64, ahead: u128, cost: u64) -> bool {
        match self.max_priority_cost() {
            Some(max_cost) => ahead + cost as u128 <= max_cost as u128,
            None => waiting < self.places(),
        }
    }

    /// Returns the maximum total cost of queued calls, if only calls with priority wait.
    pub(crate) const fn max_priority_cost(&self) -> Option<u64> {
        if self.is_priority_only() { Some(self.capacity) } else { None }
    }

    pub(crate) const fn is_timed(&self) -> bool {
        !self.untimed
    }

    /// Returns whether the queue is exclusive. The algorithm of an exclusive queue may count denials. So the queue
    /// decides each call by `peek` first, and calls `check` only if `peek` allows the call.
    pub(crate) const fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Returns how long a call may wait, in nanoseconds. `u64::MAX` means that there is no maximum.
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
    pub(crate) const fn explicit_places(&self) -> Option<u64> {
        if matches!(self.bound, Bound::Set) { Some(self.capacity) } else { None }
    }

    /// Returns whether requests of a layer are queued as well, not only calls of `acquire`.
    #[must_use]
    pub const fn holds_requests(&self) -> bool {
        !matches!(self.waits, Waits::Acquire)
    }
}

/// Defines the methods that configure the queue of an algorithm: `queue`, `max_wait` and `overflow`. For a window, also
/// defines `priority` and `check_no_priority`.
macro_rules! queue_methods {
    ($window:ty) => {
        queue_methods!($window, "as many calls as the limit");

        impl $window {
            /// Lets calls with priority borrow up to `percent` of the limit from the next window. Each of these calls
            /// waits at most the `max_wait` of this algorithm. No other calls wait, so `queue` and `overflow` have no
            /// effect. See [priority](crate::algorithm#priority).
            ///
            /// # Panics
            ///
            /// Panics if `percent` is above 100.
            #[must_use]
            #[track_caller]
            pub const fn priority(mut self, percent: u8) -> Self {
                assert!(percent <= 100, "over 100 % of the next window cannot be borrowed: give 0 to 100");
                // The result is at most the limit, so it fits.
                let units = (self.quota.limit() as u128 * percent as u128 / 100) as u64;
                self.queue_config = self.queue_config.priority_only(units);
                self
            }

            /// Returns an error if calls with priority wait, because other machines do not know which calls wait.
            fn check_no_priority(&self) -> Result<(), $crate::error::ConfigError> {
                match self.queue_config.max_priority_cost() {
                    None => Ok(()),
                    Some(_) => Err($crate::error::ConfigError::new(
                        "a window with priority cannot be kept in Redis, since calls with priority wait in the queue \
                         of one process: remove `.priority(..)`, or keep the limit in memory",
                    )),
                }
            }
        }
    };
    ($algorithm:ty, $default:literal) => {
        impl $algorithm {
            /// Sets how many calls may wait, per key. With 0, no call waits.
            /// [`max_queued`](crate::limiter::Builder::max_queued) bounds the waiters of all keys together.
            ///
            /// A layer queues requests only if `queue`, `max_wait` or `overflow` was called on the algorithm. If none
            /// of them was called, a layer rejects requests that cannot pass now, and only `max_queued` bounds how many
            /// calls wait in [`acquire`](crate::limiter::RateLimiter::acquire). So the waiters of one key may then use
            /// up `max_queued`.
            #[doc = concat!("If `max_wait` or `overflow` is called without `queue`, ", $default, " may wait per key.")]
            #[must_use]
            pub const fn queue(mut self, places: u64) -> Self {
                self.queue_config = self.queue_config.queue(places);
                self
            }

            /// Sets how long a call may wait. Like `queue`, this method enables queueing for the requests of a layer. A
            /// call that would wait longer is denied at once if the wait is known in advance. If it is not known, as it
            /// never is with [`Concurrency`](crate::algorithm::Concurrency), a queued call is denied once it has waited
            /// for `max_wait`.
            #[must_use]
            pub fn max_wait(mut self, max_wait: std::time::Duration) -> Self {
                self.queue_config = self.queue_config.within(max_wait);
                self
            }

            /// Sets which call is denied when the queue is full, by default the call that arrives. Like `queue`, this
            /// method enables queueing for the requests of a layer.
            #[must_use]
            pub const fn overflow(mut self, overflow: $crate::algorithm::QueueOverflow) -> Self {
                self.queue_config = self.queue_config.with_overflow(overflow);
                self
            }
        }
    };
}

pub(super) use queue_methods;
