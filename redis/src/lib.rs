//! Limits that several machines share, in Redis or Valkey, for [`tower_throttle`].
//!
//! ```no_run
//! use tower_throttle::Quota;
//! use tower_throttle::algorithm::TokenBucket;
//! use tower_throttle_redis::RedisStore;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = RedisStore::connect("redis://127.0.0.1").await?;
//! let logins = redis.limiter("login", TokenBucket::new(Quota::per_minute(5))).build()?;
//! if logins.check("user:42").await?.is_allowed() {
//!     // serve
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is exact
//!
//! All processes whose limiters have the same name, the same [kind](guide::many_machines#keys) of algorithm and the
//! same [prefix](RedisStoreBuilder::prefix), on one server or in one cluster, share one limit. Together they admit
//! exactly the calls that one process would admit. The exceptions are [below](#what-is-not-promised). Times are those
//! of the server's clock, in microseconds. For most algorithms, a script on the server decides a call in one round
//! trip. For the other algorithms, one round trip reads the state, and a second writes the new state. If another
//! process has changed the state between these two round trips, the call is decided again. Except in a cluster, the
//! process whose write failed then reserves the next write, unless another process has reserved it already. For this
//! purpose, the failed write sets a second Redis key (`…:turn:`), which exists for at most 100 ms and keeps other
//! processes from writing. This table lists the round trips:
//!
//! | algorithm | round trips |
//! |---|---|
//! | `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingCounter`, and tuples of them | 1 |
//! | tuples with more than 13 sliding windows, 16 buckets, 18 sliding counters or 21 fixed windows | 2, and more while processes change the same key at once |
//! | algorithms of the first row whose script would need numbers above 2^53 (such as a token bucket with `Quota::per_day(104_251)`, or a sliding counter with `Quota::per_day(1_000_000)`) | as above |
//! | `SlidingLog` up to a limit of 100, `Smooth`, `Tiered`, `Lockout`, algorithms of your own | as above |
//!
//! [Joined layers](tower_throttle::RateLimitLayer::and) are decided as a tuple of their algorithms is, in the same
//! number of round trips. Each request makes its own trip. If the algorithm has no script, joined requests do not take
//! turns. So if many of them change one key at the same time, some of them may reach their deadlines, which does not
//! open the circuit breaker. If a limit denies a request because of a remembered denial, the other limits do not decide
//! it, and the response has no header fields of these limits. A limit in shadow mode is decided in the same trip. If
//! another layer enforces the same limiter on the same key, only that layer charges the key. A `LeakyBucket`, or a
//! `TokenBucket` with a queue, queues requests as in memory: the other limits charge a request when it joins the queue,
//! and these charges are refunded if the request is cancelled.
//!
//! A limiter makes one trip to the server at a time for each key. Calls that arrive during a trip are decided together
//! in the next trip, up to 256 of them, in the order in which they arrived. If a key has no unit available, the process
//! remembers this, by default for at most one second. During this time, if the units of a call for the key cannot be
//! available yet, the process denies the call without asking Redis.
//!
//! A limit of the calls in progress ([`Concurrency`](tower_throttle::algorithm::Concurrency)) is kept as
//! [permits](RedisPermits).
//!
//! With [leases](RedisLeases), a process takes several units of a `TokenBucket` at once, and decides most calls
//! without a trip.
//!
//! # What is counted
//!
//! `stats` of a limiter has the counts of all its calls in this process, and of those of its clones: the calls of its
//! methods, and the requests of layers that use it. A layer counts its requests as well, in [counts of its
//! own](tower_throttle::RateLimitLayer::stats). Each call is counted once, whatever it costs, in one of the fields of
//! [`CallStats`](tower_throttle::stats::CallStats):
//!
//! | what happens to the call | field |
//! |---|---|
//! | it is admitted, by Redis or by the fallback | `admitted` |
//! | it is denied, by Redis, by the fallback, or because the process remembers that the key has no units | `denied`, or `queue_full` if it would wait and finds the queue full |
//! | it is denied because the limiter was [closed](RedisLimiter::close) | `closed` |
//! | another limit of a joined layer denies the request, and this limit does not | `denied_by_others` |
//! | its policy is in shadow mode, and it would have been denied | `shadow_denied` |
//! | its future is dropped before the reply | `cancelled` |
//! | it fails with a [`RedisError`] | none. [`RedisStore::stats`] has counts of failures |
//!
//! A call that waits is also counted in `queued` when it begins to wait. Peeks, charges, refunds and resets are not
//! counted, and neither is a call whose future was never polled.
//!
//! `units` of the stats has the units that settlements and charges have charged, given back, and not charged because of
//! the [`max_debt`](RedisLimiterBuilder::max_debt) or of a failure. Those of the fallback are included. If a settlement
//! or a charge fails, but only its reply was late or lost, its units count as not charged, although they were charged.
//!
//! # What is not promised
//!
//! - A failover to a replica loses the charges that were not replicated. For each key, at most as many additional units
//!   are admitted as were charged but not replicated. A planned failover of Sentinel loses the charges of about [two
//!   seconds](guide::many_machines#with-redis-sentinel).
//! - With the eviction policies `allkeys-*` and `volatile-*`, a server that is full may evict keys, which resets their
//!   limits. With `noeviction`, calls that must write fail instead.
//! - If another process resets or refunds a key, a process that remembers that the key has no units may still deny
//!   calls, by default for up to one second.
//! - When a call is [settled](tower_throttle::middleware::RateLimitLayer::settle), the process waits for no reply. A
//!   settlement that gives back units is lost if the server does not execute it within the deadline, or if the process
//!   ends before. Units that are charged late, by a settlement or a [meter](tower_throttle::Meter), are one charge for
//!   each key and tier that waits. What was certainly not charged is tried again until the process ends, for at most
//!   10,000 keys of a limiter at once. It is lost if it was sent and no reply came, because a charge is never sent
//!   twice. The charge of the call then stays as it is. While processes use different quotas for a key, a settlement makes debt
//!   only in the state of its process's quota. [`settle_errors`](tower_throttle::stats::StoreStats::settle_errors)
//!   counts such settlements, and [`flush`](RedisStore::flush) waits for those under way when a service stops.
//! - A [refund](RedisLimiter::refund) of more units than calls of a `TokenBucket` or a `LeakyBucket` were charged, and
//!   which still count, also gives back units of calls that wait. In memory, these calls keep their units.
//! - A `TokenBucket` or a `LeakyBucket` charges a call when the call begins to wait. So a settlement neither delays nor
//!   hastens calls that wait already, and a call is denied, because the queue is full, until the debt is less than the
//!   queue has places. In memory, the calls that wait are delayed or admitted earlier, and a new call waits as well.
//! - If the server's clock is set back, the time of a key is the latest time at which its state was written. A peek, a
//!   denial or a call of cost 0 usually writes nothing, and a key that is fresh is deleted. In memory, the time of a
//!   key is the latest reading of the clock by any of its calls.
//! - If the server's clock is set forward, windows end and buckets fill early. A failover to a server whose clock is
//!   ahead has the same effect.
//! - Two algorithms that differ only in their queues, in `start_empty` or in `extend_on_retry` are one tier in Redis,
//!   and two in memory. The first call of a tier writes the key even if the call is denied, so such a denial takes two
//!   round trips.
//! - If calls of several processes wait for a window or choose tiers, the processes are served in no particular order.
//!   Other calls that wait for a `TokenBucket` or a `LeakyBucket` are charged when they begin to wait, and are admitted
//!   in the order in which they were charged. If such a call is cancelled while it waits, its charge is given back only
//!   if no later call was charged.
//! - Calls that wait for a window or choose tiers are queued in their own process, once they were denied, and so are
//!   calls that wait for leased units. So a queue has its places in each process, and a call that finds calls queued
//!   before it is denied if it cannot be queued as well, even if units are available by then. The `retry_after` of a
//!   call that is denied because calls are queued before it is `None`. The order of a queue is that of arrival, among
//!   the calls whose futures are polled. A call whose future is kept and not polled delays those behind it once, by 3 ms,
//!   or until the deadline of its trip if it is left during a trip. Then the others overtake it, until it is polled
//!   again.
//! - While machines with different quotas use one name, the quota of each machine decides the calls of that machine.
//!   Each admitted call is charged to the states of all these quotas, so that no machine admits more than its own quota
//!   would. A machine with the larger quota may admit a call that a machine with the smaller quota would deny. Of two
//!   quotas such as 100 per hour and 10 per minute, neither is larger, and all machines together may admit more than
//!   either quota allows. A state for another quota is made from an existing state of the key, as
//!   [`replace`](tower_throttle::RateLimiter::replace) does, so used units stay used. The first call with the other
//!   quota makes it, also if the call is denied; a peek makes none. Until then, units are forgotten when the present
//!   quota's period ends. The state is dropped when no machine has
//!   used that quota for as long as it takes until all units of the quota are available again. At most four states of a
//!   key are kept, so all of this does not hold for more than four quotas. While a key has several states, an admitted
//!   call takes at least two round trips.
//! - While machines with different [kinds](guide::many_machines#deployments) of algorithms use one name, a key has one
//!   limit of each kind.
//! - Two limiters with the same name in one process make separate trips.
//! - The delay of the next slot of a `LeakyBucket` is kept in 64 bits. So it is at most 584 years for most quotas, but
//!   at most five hours for `Quota::per_second(999_999_999)`. A charge with a longer delay, such as one of `u64::MAX`
//!   units, has the longest delay that can be kept. In memory, delays have no such maximum.
//! - A bucket that [starts empty](tower_throttle::algorithm::TokenBucket::start_empty) in memory is full for a new key
//!   in Redis, because a new key counts as idle since the Unix epoch.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod calls;
mod client;
mod connection;
mod error;
mod flight;
pub mod guide;
#[cfg(any(test, feature = "__in-process"))]
mod in_process;
mod joint;
mod lease;
mod limiter;
mod link;
mod links;
mod names;
mod permits;
mod script;
mod sentinel;
mod settlements;
mod states;
mod store;
#[cfg(test)]
mod tests;
mod trips;
mod url;
mod wait;

pub use call::Callee;
pub use call::{RedisCall, RedisReply};
pub use error::{RedisError, RedisErrorKind};
pub use lease::{RedisLeases, RedisLeasesBuilder};
pub use limiter::{RedisLimiter, RedisLimiterBuilder};
pub use permits::{RedisPermits, RedisPermitsBuilder};
pub use store::{RedisStore, RedisStoreBuilder};

#[cfg(feature = "__in-process")]
#[doc(hidden)]
pub use in_process::RedisInProcess;

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
