//! The counters of limiters and layers, for dashboards, tests and alerts.
//!
//! Every [`RateLimiter`](crate::limiter::RateLimiter) and every policy of a layer counts its calls, always and exactly,
//! on any number of threads. A request of a layer is counted by its policy and by the limiter of the policy. Reading
//! the counts blocks no call. The counters begin at zero when the limiter or the layer is created, and never decrease.
//! `keys`, `waiting` and `is_circuit_open` of [`StoreStats`] are not counters. They have the values at the time of the
//! reading.
//!
//! | to read | use |
//! |---|---|
//! | the calls of a limiter, and its key table | [`RateLimiter::stats`](crate::limiter::RateLimiter::stats) |
//! | the requests of a layer, by policy | [`RateLimitLayer::stats`](crate::middleware::RateLimitLayer::stats), and [`Layers::stats`](crate::middleware::Layers::stats) |
//! | the last minute of a policy, second by second | a [`Timeline`] |
//! | the keys that a policy denies most often | [`TopKeys`] |

pub(crate) mod counts;
mod timeline;
mod top_keys;
mod units;

#[doc(hidden)]
pub use self::counts::CallCounts;
pub(crate) use self::counts::CallOutcome;
pub use self::counts::CallStats;
pub(crate) use self::timeline::Event;
pub use self::timeline::{Slice, Timeline};
pub use self::top_keys::{TopKey, TopKeys};
#[doc(hidden)]
pub use self::units::UnitCounts;
pub use self::units::UnitStats;

/// The counts of a limiter. [`RateLimiter::stats`](crate::limiter::RateLimiter::stats) returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterStats {
    /// The calls of the limiter: the calls of layers that use the limiter, and the calls that were made without a
    /// layer.
    pub calls: CallStats,
    /// The events of the limiter's key table or store, such as evictions.
    pub store: StoreStats,
    /// The units that settlements have charged or given back. With Redis, those of the fallback limiter are included.
    pub units: UnitStats,
}

/// Counts of the events in the key table or the store of a limiter, and its present size. A field that has no meaning
/// for a limiter is zero or `false`.
///
/// If `evicted` is zero, and no call was denied as [`table_full`](CallStats::table_full),
/// [`max_keys`](crate::limiter::Builder::max_keys) is large enough.
///
/// With Redis, `trips`, `late`, `circuit_openings` and `is_circuit_open` are counted for each `RedisStore`. All
/// limiters of the store report the same values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Keys that were evicted to make room for new keys: see [`OnFull::EvictLeastUsed`](crate::limiter::OnFull).
    pub evicted: u64,
    /// Evicted keys that were at their limits or locked out. At its next call, such a key has its whole quota again.
    pub evicted_at_limit: u64,
    /// Commands that were sent to a server. With Redis, these are the scripts that were sent.
    pub trips: u64,
    /// Calls that failed at their deadline or later, whatever the reason was, such as a missing connection. A call that
    /// a fallback limiter then decides is included. Only limiters in Redis count these calls.
    pub late: u64,
    /// Calls that the fallback limiter has decided. These are the calls that the limiter in Redis could not decide, and
    /// the calls that were made to the fallback limiter directly.
    pub fallbacks: u64,
    /// Settlements that failed, because the server did not execute them in time, or because their runtime has ended.
    /// Such a settlement neither charges nor gives back units, unless only its reply was late or lost. No response
    /// waits for settlements, so these failures are no errors of calls. Only limiters in Redis count them: each limiter
    /// its own, and the `RedisStore` those of all its limiters.
    pub settle_errors: u64,
    /// The number of times that the circuit breaker has opened.
    pub circuit_openings: u64,
    /// `true` if the circuit breaker is open now: calls are not sent to the server. They fail at once, or the fallback
    /// decides them. After each pause, the server is tried again, and calls wait for the result. In a Redis Cluster,
    /// this is `true` if the circuit breaker of any master is open.
    pub is_circuit_open: bool,
    /// The number of keys that are kept now.
    pub keys: u64,
    /// The number of calls that are queued now, for all keys together. Zero for a rate in Redis, but not for permits.
    pub waiting: u64,
}

/// The counts of one policy of a layer, for all clones of the layer together.
/// [`RateLimitLayer::stats`](crate::middleware::RateLimitLayer::stats) returns them.
///
/// No field contains a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStats {
    /// The name of the policy.
    pub name: String,
    /// The numbers of requests that were decided, by outcome. Requests that this policy does not limit are not counted.
    pub calls: CallStats,
    /// The requests without a valid key, and the requests of forbidden callers.
    pub keys: KeyStats,
    /// The number of requests that the limiter could not decide, because its store failed.
    pub store_errors: u64,
    /// The events of the limiter's key table or store. If other layers, or calls without a layer, use the same limiter,
    /// the events that these cause are included.
    pub store: StoreStats,
    /// The units that settlements of the limiter's calls have charged or given back. If other layers, or calls without
    /// a layer, use the same limiter, their units are included.
    pub units: UnitStats,
    /// `true` if the policy is enforced now, and `false` if it lets all requests pass: in
    /// [shadow mode](crate::middleware::RateLimitLayer::shadow), or if it is not
    /// [enabled](crate::middleware::RateLimitLayer::enabled).
    pub is_enforced: bool,
}

/// The counts of a policy's requests without a valid key, and of the requests of forbidden callers. This is the type of
/// [`PolicyStats::keys`]. In shadow mode, all these requests pass, and are counted as what they would have been
/// answered with. If the policy is joined with others, [`shared`](Self::shared) and [`unlimited`](Self::unlimited) also
/// count requests that another policy rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStats {
    /// The number of requests that were rejected because they had no key:
    /// [`MissingKey::Reject`](crate::key::MissingKey).
    pub rejected: u64,
    /// The number of requests without a key that were decided by the one budget that such requests share:
    /// [`MissingKey::Shared`](crate::key::MissingKey).
    pub shared: u64,
    /// The number of requests without a key that were not limited: [`MissingKey::Pass`](crate::key::MissingKey).
    pub unlimited: u64,
    /// The number of requests of forbidden callers: [`KeyError::forbidden`](crate::key::KeyError::forbidden).
    pub forbidden: u64,
    /// The number of requests that were rejected because the client made the key invalid:
    /// [`KeyError::invalid`](crate::key::KeyError::invalid).
    pub invalid: u64,
    /// The number of requests that were rejected because they did not say who their caller is:
    /// [`KeyError::unauthorized`](crate::key::KeyError::unauthorized).
    pub unauthorized: u64,
}
