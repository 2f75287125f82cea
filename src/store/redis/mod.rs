//! A store in Redis or Valkey, for limits that several machines share. Feature `redis`.
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
//! All processes that use one name on one server, or in one cluster, share one limit, and together they admit exactly
//! what one process would. Times are those of the server's clock, in microseconds. For most algorithms, a script on the server decides a
//! call in one round trip. For the others, the state is read, and the new state is written unless another process has
//! changed it meanwhile:
//!
//! | algorithm | round trips |
//! |---|---|
//! | `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingCounter`, and tuples of them | 1 |
//! | tuples with more than 13 sliding windows, 16 buckets, 18 sliding counters or 21 fixed windows | 2 |
//! | algorithms of the first row with numbers above 2^53 (a token bucket of a burst of 104,251 per day, a sliding counter of 1,000,000 per day) | 2 |
//! | `SlidingLog` up to a limit of 100, `Smooth`, `Tiered`, `Lockout`, algorithms of your own | 2, and more while processes change the same key at once |
//!
//! For each key, a process makes one trip at a time. Calls that arrive during a trip are decided together in the next
//! trip, in the order in which they arrived. A process remembers a denial until one unit is available, at most for one
//! second.
//!
//! # What is not promised
//!
//! - A failover to a replica loses the calls that were not replicated: at most one more limit per key is admitted.
//! - With the eviction policies `allkeys-*` and `volatile-*`, a server that is full may evict keys, which resets their
//!   limits. With `noeviction`, calls that must write fail instead.
//! - A process that remembers a denial notices a reset or refund by another process up to one second late.
//! - Calls that wait for a window in several processes are admitted in no particular order. Calls that wait for a
//!   bucket are admitted in order. They are charged when they begin to wait; a call that is cancelled while it waits is
//!   given its charge back only if no later call was charged.
//! - While machines with two quotas use one name, each call is decided by the quota of its machine, and charged to both
//!   quotas: no machine admits more than its own quota would. Each call then takes two round trips.
//! - Two limiters of one name in a process make separate trips.
//! - A limiter's clock has no effect. Buckets that [start empty](crate::algorithm::TokenBucket::start_empty) are full,
//!   since a new key counts as idle for ever.

mod breaker;
mod builder;
mod calls;
mod client;
mod cluster;
mod connection;
mod decide;
mod denials;
mod error;
mod flight;
mod fragments;
mod limit;
mod link;
mod links;
mod names;
mod next_trip;
mod node;
mod operation;
mod plan;
mod replace;
mod route;
mod scripts;
mod server_time;
mod slots;
mod states;
mod stats;
#[cfg(test)]
mod tests;
mod wait_queue;
mod waiting;

use std::fmt;

use self::builder::Settings;
use self::denials::Denials;
use self::limit::Parts;
use self::links::Links;
use self::names::Names;
use self::plan::Plan;
use crate::algorithm::StoredAlgorithm;
use crate::limiter::RateLimiter;
use crate::store::{MakeStore, StoreSettings};

pub use builder::RedisStoreBuilder;
pub use error::{RedisError, RedisErrorKind};
pub use limit::{RedisKey, RedisLimit, RedisReply};
pub use stats::RedisStats;

/// A connection to Redis or Valkey, for any number of limiters. Clones share the connection.
///
/// Pass the store to [`Builder::store`](crate::limiter::Builder::store), which creates a [`RedisLimit`]. Each limiter
/// needs a [name](crate::limiter::Builder::name).
///
/// # Guarantees
///
/// Each call ends within the [deadline](RedisStoreBuilder::deadline), also while the server cannot be reached, except
/// for the time that it waits for units. A call that failed at its deadline charges nothing if the server receives it
/// later.
///
/// After five failures in a row because of late replies or a missing connection, or after an error by which the server
/// says that it cannot decide any call, calls fail at once and are not sent. One call tries the server again after 50
/// ms; if it fails, the pause doubles, up to 400 ms. If the server failed to write, for example because it is out of
/// memory, calls are sent again only after one of them has written.
///
/// A call that is dropped before its reply was received charges nothing: if the server has charged it, another trip
/// undoes the charge. No key is written without a time to live, and a value that is not a state of this crate is never
/// overwritten.
///
/// # Errors
///
/// Calls fail with a [`RedisError`], unless there is a [fallback](RedisStore::fallback).
#[derive(Clone)]
pub struct RedisStore {
    links: Links,
    settings: Settings,
    names: Names,
}

/// A [`RedisStore`] with a limiter in memory, which decides the calls that Redis could not decide. Created by
/// [`RedisStore::fallback`].
#[derive(Clone, Debug)]
pub struct WithFallback<A: StoredAlgorithm> {
    store: RedisStore,
    fallback: RateLimiter<A>,
}

impl RedisStore {
    /// Connects to a server, such as `redis://:password@localhost:6379/0`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is wrong, or the server cannot be reached or does not execute scripts. Use
    /// [`RedisStoreBuilder::connect_lazily`] for a server that may start later.
    pub async fn connect(url: &str) -> Result<Self, RedisError> {
        Self::builder(url).connect().await
    }

    /// Returns a builder for the server at `url`, with which the deadline and other options can be set.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }

    /// Returns a builder of a store in a cluster, found by the URLs of one or more of its nodes.
    ///
    /// Each key is kept on the master that has its slot, so the keys of a limiter are spread over all masters. Slots that move
    /// are followed. The circuit breaker is one per master: while a master fails, only the calls for its keys do. The other masters keep
    /// their keys only with `cluster-require-full-coverage no`.
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
    /// The builder's methods return an error if a URL is wrong, has a database other than 0 or is that of a Unix socket; if
    /// there is none; or if the server is no node of a cluster. Nodes that are found are reached with the user, the password
    /// and the encryption of the first URL.
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> RedisStoreBuilder {
        RedisStoreBuilder::of_cluster(urls)
    }

    /// Returns a store whose calls are decided by `limiter` while Redis fails.
    ///
    /// `limiter` counts only the calls that it decides, so give it one machine's share of the quota.
    pub fn fallback<A: StoredAlgorithm>(self, limiter: RateLimiter<A>) -> WithFallback<A> {
        WithFallback { store: self, fallback: limiter }
    }

    /// Returns the counts of this store, which its clones share.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
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
    /// algorithm or quota, or if the states of its algorithm cannot be kept in Redis.
    fn make_store(self, settings: StoreSettings<A>) -> Result<RedisLimit<A>, RedisError> {
        self.limit(settings, None)
    }
}

impl<A: StoredAlgorithm> MakeStore<A> for WithFallback<A> {
    type Store = RedisLimit<A>;
    type Error = RedisError;

    fn make_store(self, settings: StoreSettings<A>) -> Result<RedisLimit<A>, RedisError> {
        self.store.limit(settings, Some(self.fallback))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}
