//! The counters of limiters and layers, for dashboards, tests and alerts.
//!
//! Every limiter with state in memory and every policy of a layer counts its calls, always and exactly, on any number
//! of threads. Reading the counts blocks no call. The counters begin at zero when the limiter or the layer is created,
//! and never decrease. `keys`, `waiting` and `is_circuit_open` of [`StoreStats`] are not counters. They have the values
//! at the time of the reading.
//!
//! | to read | use |
//! |---|---|
//! | the calls of a limiter, and its key table | [`RateLimiter::stats`](crate::limiter::RateLimiter::stats) |
//! | the requests of a layer, by policy | [`RateLimitLayer::stats`](crate::middleware::RateLimitLayer::stats), and [`Layers::stats`](crate::middleware::Layers::stats) |
//! | the last minute of a policy, second by second | a [`Timeline`] |
//! | the keys that a policy denies most often | [`TopKeys`] |

mod calls;
mod counts;
pub(crate) mod outcome;
mod policy;
mod ring;
mod slice;
mod timeline;
mod top_keys;

pub use self::calls::{CallStats, StoreStats};
#[doc(hidden)]
pub use self::counts::CallCounts;
pub(crate) use self::counts::CallRegistry;
pub(crate) use self::outcome::CallOutcome;
pub use self::policy::{KeyStats, PolicyStats};
pub(crate) use self::slice::Event;
pub use self::slice::Slice;
pub use self::timeline::Timeline;
pub use self::top_keys::{TopKey, TopKeys};

/// The counts of a limiter. [`RateLimiter::stats`](crate::limiter::RateLimiter::stats) returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterStats {
    /// The calls of the limiter: the calls of layers that use the limiter, and the calls that were made without a
    /// layer.
    pub calls: CallStats,
    /// The events of the limiter's store, such as evictions.
    pub store: StoreStats,
}
