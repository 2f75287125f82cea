//! A store in Redis or Valkey, for limits that several machines share. This module needs the feature `redis`.
//!
//! ```no_run
//! use tower_throttle::algorithm::TokenBucket;
//! use tower_throttle::store::redis::RedisStore;
//! use tower_throttle::{Quota, RateLimiter};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = RedisStore::connect("redis://127.0.0.1").await?;
//! let logins = RateLimiter::builder(TokenBucket::new(Quota::per_minute(5))).name("login").store(redis).build()?;
//! if logins.check("user:42").await?.is_allowed() {
//!     // serve
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is exact
//!
//! All processes whose limiters have the same name and the same [prefix](RedisStoreBuilder::prefix), on one server or
//! in one cluster, share one limit. Together they admit exactly the calls that one process would admit. The exceptions
//! are [below](#what-is-not-promised). Times are those of the server's clock, in microseconds. For most algorithms, a
//! script on the server decides a call in one round trip. For the other algorithms, one round trip reads the state, and
//! a second writes the new state. If another process has changed the state between these two round trips, the call is
//! decided again. Except in a cluster, the process whose write failed then reserves the next write, unless another
//! process has reserved it already. For this purpose, the failed write sets a second Redis key (`…:turn:`), which exists
//! for at most 100 ms and keeps other processes from writing. This table lists the round trips:
//!
//! | algorithm | round trips |
//! |---|---|
//! | `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingCounter`, and tuples of them | 1 |
//! | tuples with more than 13 sliding windows, 16 buckets, 18 sliding counters or 21 fixed windows | 2, and more while processes change the same key at once |
//! | algorithms of the first row whose script would need numbers above 2^53 (such as a token bucket with `Quota::per_day(104_251)`, or a sliding counter with `Quota::per_day(1_000_000)`) | as above |
//! | `SlidingLog` up to a limit of 100, `Smooth`, `Tiered`, `Lockout`, algorithms of your own | as above |
//!
//! [Joined layers](crate::RateLimitLayer::and) are decided as a tuple of their algorithms is, in the same number of
//! round trips.
//!
//! A limiter makes one trip to the server at a time for each key. Calls that arrive during a trip are decided together
//! in the next trip, up to 256 of them, in the order in which they arrived. If a key has no unit available, the process
//! remembers this, by default for at most one second. During this time, if the units of a call for the key cannot be
//! available yet, the process denies the call without asking Redis.
//!
//! A limit of the calls in progress ([`Concurrency`](crate::algorithm::Concurrency)) is kept as
//! [permits](RedisPermits).
//!
//! With [leases](RedisStore::lease), a process takes several units of a `TokenBucket` at once, and decides most calls
//! without a trip.
//!
//! # What is not promised
//!
//! - A failover to a replica loses the charges that were not replicated. For each key, at most as many additional units
//!   are admitted as were charged but not replicated.
//! - With the eviction policies `allkeys-*` and `volatile-*`, a server that is full may evict keys, which resets their
//!   limits. With `noeviction`, calls that must write fail instead.
//! - If another process resets or refunds a key, a process that remembers that the key has no units may still deny
//!   calls, by default for up to one second.
//! - When a call is [settled](crate::middleware::RateLimitLayer::settle), the process waits for no reply. The settlement
//!   is lost if the server does not execute it within the deadline, or if the process ends before. The charge of the
//!   call then stays as it is.
//! - If the server's clock is set back, the time of a key is the latest time at which its state was written. A peek, a
//!   denial or a call of cost 0 usually writes nothing, and a key that is fresh is deleted. In memory, the time of a key
//!   is the latest reading of the clock by any of its calls.
//! - If calls of several processes wait for a window or choose tiers, the processes are served in no particular order.
//!   Other calls that wait for a `TokenBucket` or a `LeakyBucket` are charged when they begin to wait, and are admitted
//!   in the order in which they were charged. If such a call is cancelled while it waits, its charge is given back only
//!   if no later call was charged.
//! - Calls that wait for a window or choose tiers are queued in their own process, once they were denied. The
//!   `retry_after` of a call that is denied because calls are queued before it is `None`.
//! - While machines with different quotas use one name, the quota of each machine decides the calls of that machine.
//!   Each admitted call is charged to the states of all these quotas, so that no machine admits more than its own quota
//!   would. At most four states of a key are kept, so this does not hold for more than four quotas. While a key has
//!   several states, an admitted call takes at least two round trips.
//! - Two limiters with the same name in one process make separate trips.
//! - The delay of the next slot of a `LeakyBucket` is kept in 64 bits. So it is at most 584 years for most quotas, but at
//!   most five hours for `Quota::per_second(999_999_999)`. A charge with a longer delay, such as one of `u64::MAX` units,
//!   has the longest delay that can be kept. In memory, delays have no such maximum.
//! - A clock that was set for the limiter has no effect on the state of keys, which depends only on the server's clock.
//!   A bucket that [starts empty](crate::algorithm::TokenBucket::start_empty) in memory is full for a new key in Redis,
//!   because a new key counts as idle since the Unix epoch.

mod answer;
mod asked;
mod breaker;
mod builder;
mod calls;
mod client;
mod cluster;
mod connected;
mod connection;
mod decide;
mod decide_script;
mod denials;
mod error;
mod fallback;
mod flight;
mod fragments;
#[cfg(any(test, feature = "test-util"))]
pub(crate) mod in_process;
mod joint;
mod lease;
mod limit;
mod link;
mod links;
mod names;
mod next_trip;
mod node;
mod operation;
mod packed;
mod permits;
mod plan;
mod replace;
mod route;
mod scripts;
mod sentinel;
mod server;
mod server_time;
mod settings;
mod silence;
mod slots;
mod states;
#[cfg(test)]
mod tests;
mod turns;
mod wait_queue;
mod waiting;

use std::fmt;
use std::sync::Arc;

use self::denials::Denials;
use self::limit::Parts;
use self::links::Links;
use self::names::Names;
use self::permits::Listener;
use self::plan::Plan;
use self::settings::Settings;
use crate::algorithm::StoredAlgorithm;
use crate::limiter::RateLimiter;
use crate::stats::StoreStats;
use crate::store::{MakeStore, StoreSettings};

pub use builder::RedisStoreBuilder;
pub use error::{RedisError, RedisErrorKind};
pub use lease::LeasedLimit;
pub use limit::RedisLimit;
pub use permits::RedisPermits;

#[doc(hidden)]
pub use self::{fallback::WithFallback, lease::WithLeases, limit::RedisKey};

/// A connection to Redis or Valkey, for any number of limiters. Clones share the connection.
///
/// Pass the store to [`Builder::store`](crate::limiter::Builder::store), which creates a [`RedisLimit`], or
/// [`RedisPermits`] for a [`Concurrency`](crate::algorithm::Concurrency). Each limiter needs a
/// [name](crate::limiter::Builder::name).
///
/// # Guarantees
///
/// Each call whose future is polled when it is woken ends at most 1 ms after the
/// [deadline](RedisStoreBuilder::deadline), even while the server cannot be reached. The time for which the call waits
/// for units is not part of the deadline. If the server receives a call after the deadline of the call, the server
/// charges nothing. This holds only if the server has replied at least once before the call was sent, so that the store
/// knows the server's time, and if the server's clock is not set back.
///
/// A server may close idle connections, or restart. A call that was not sent before its connection ended is sent on a
/// new connection, within its deadline. If it may have been sent, it fails with [`RedisErrorKind::Unreachable`], and is
/// not sent again. (An encrypted connection does not tell what it has sent before it ended. So calls may have been sent
/// as soon as they are passed to it.) If a firewall has forgotten a connection, the first late reply after a second
/// without replies ends the connection.
///
/// Five failed trips in a row, because of late replies or a missing connection, open the circuit breaker. The end of a
/// connection is one failure, however many trips it fails. A reply that says that the server cannot decide any call
/// opens the breaker at once. While the breaker is open, calls fail at once and are not sent, except for one call that
/// tries the server again after 50 ms. Each time that such a call fails, the pause before the next one doubles, up to
/// 400 ms. If the server failed to write, for example because it is out of memory, only a call that writes a state
/// closes the breaker.
///
/// If a call is dropped before its reply was received, and the server has charged the call, another trip undoes the
/// charge. The charge remains if that trip fails. The charge also remains if the call may wait for a `TokenBucket` or a
/// `LeakyBucket`, and a later call was charged. No key is written without a time to live, and a value that is not a
/// state of this crate is never overwritten.
///
/// # Errors
///
/// Calls fail with a [`RedisError`], unless there is a [fallback](RedisStore::fallback).
#[derive(Clone)]
pub struct RedisStore {
    links: Links,
    settings: Settings,
    names: Names,
    listener: Arc<Listener>,
}

impl RedisStore {
    /// Connects to the server at `url`, such as `redis://:password@localhost:6379/0`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is wrong, if the server cannot be reached or does not execute scripts, or if there
    /// is no tokio runtime. Use [`RedisStoreBuilder::connect_lazily`] for a server that may start later.
    pub async fn connect(url: &str) -> Result<Self, RedisError> {
        Self::builder(url).connect().await
    }

    /// Returns a builder for the server at `url`, with which the deadline and other options can be set.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }

    /// Returns a builder of a store in a cluster. `urls` are the URLs of one or more nodes of the cluster.
    ///
    /// Each key is kept on the master that has the slot of the key. So the keys of a limiter are spread over all
    /// masters, unless [`one_slot`](RedisStoreBuilder::one_slot) is set. If a slot moves to another master, the store
    /// sends the calls for the keys of that slot there. Each master has a circuit breaker of its own. If the
    /// configuration of the servers has `cluster-require-full-coverage no`, and a master fails, only the calls for the
    /// keys of that master fail.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), tower_throttle::store::redis::RedisError> {
    /// use tower_throttle::store::redis::RedisStore;
    ///
    /// let urls = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"];
    /// let redis = RedisStore::cluster(urls).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`connect`](RedisStoreBuilder::connect) and [`connect_lazily`](RedisStoreBuilder::connect_lazily) return an
    /// error if there is no URL, or if a URL is wrong, has a database other than 0, or is that of a Unix socket.
    /// `connect` also returns an error if none of the given servers replies as a node of a cluster. All nodes that the
    /// given servers report are reached with the user, the password and the encryption of the first URL.
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> RedisStoreBuilder {
        RedisStoreBuilder::of_cluster(urls)
    }

    /// Returns a builder of a store on the master that Redis Sentinel knows under the name `master`. `urls` are the
    /// URLs of one or more sentinels.
    ///
    /// Before each new connection, the sentinels are asked for the current master. After a failover, the store connects
    /// to the new master as soon as the connection to the former master ends, five trips in a row are late, or the
    /// former master replies that it is a replica. Charges that the new master did not receive are lost. For each key,
    /// at most the units of these charges are admitted once more.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), tower_throttle::store::redis::RedisError> {
    /// use tower_throttle::store::redis::RedisStore;
    ///
    /// let urls = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let redis = RedisStore::sentinel(urls, "mymaster").connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The master is reached with the user, the password, the database and the encryption of the first URL, and each
    /// sentinel with those of its own URL, without the database. If the master needs other settings than the first
    /// sentinel, use [`from_sentinel_clients`](RedisStoreBuilder::from_sentinel_clients). The Redis user must be
    /// allowed to run the command `ROLE`. [`connect`](RedisStoreBuilder::connect) and
    /// [`connect_lazily`](RedisStoreBuilder::connect_lazily) return an error if there is no URL, or if a URL is wrong.
    /// `connect` also returns an error if no sentinel knows the name.
    pub fn sentinel<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, master: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::of_sentinels(urls, master)
    }

    /// Returns what this store has counted since it was created: `trips`, `late`, `circuit_openings` and
    /// `is_circuit_open`. Its clones and all its limiters share these counts. The other fields are zero.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.links.stats()
    }

    fn limit<A: StoredAlgorithm>(
        &self,
        settings: StoreSettings<A>,
        fallback: Option<RateLimiter<A>>,
    ) -> Result<RedisLimit<A>, RedisError> {
        let StoreSettings { algorithm, name, .. } = settings;
        let scripts = self.settings.scripts;
        let plan = Plan::new(algorithm, self.links.any().source, scripts)?;
        let key_text = self.settings.key_text(name.as_deref().unwrap_or_default());
        let name = self.names.register(name, plan.prefix())?;
        let denials = Denials::new(self.settings.remember_denials);
        let links = self.links.clone();
        Ok(RedisLimit::new(Parts { links, key_text, plan, scripts, denials, fallback, name }))
    }
}

impl<A: StoredAlgorithm> MakeStore<A> for RedisStore {
    type Store = RedisLimit<A>;
    type Error = RedisError;

    /// Creates the store of a limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no name, if another limiter of this store has the same name and another
    /// algorithm or quota, or if the states of the limiter's algorithm cannot be kept in Redis.
    fn make_store(self, settings: StoreSettings<A>) -> Result<RedisLimit<A>, RedisError> {
        self.limit(settings, None)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}
