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
//! All processes that use one name on one server, or in one cluster, share one limit, and together they admit exactly what one process would.
//! Time is that of the server, in microseconds. A call is decided by a script in one round trip, or, for the algorithms
//! below the line, by reading the state and writing it unless another process has written it meanwhile:
//!
//! | algorithm | round trips |
//! |---|---|
//! | `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingCounter`, and tuples of them | 1 |
//! | larger tuples: of more than 13 sliding windows, 16 buckets, 18 sliding counters or 21 fixed windows | 2 |
//! | the same with numbers above 2^53 (a token bucket of a burst of 104,251 per day, a sliding counter of 1,000,000 per day) | 2 |
//! | `SlidingLog` up to a limit of 100, `Smooth`, `Tiered`, `Lockout`, algorithms of your own | 2, more while processes collide |
//!
//! For each key, a process has one trip under way; calls that arrive meanwhile are decided together in the next, in the order
//! in which they arrived. A denial is remembered until one unit is free, at most one second.
//!
//! # What is not promised
//!
//! - A failover to a replica loses what was not replicated: at most one more limit per key is admitted.
//! - With the eviction policies `allkeys-*` and `volatile-*`, a server that is full may evict keys, which resets their
//!   limits. With `noeviction`, calls that must write fail instead.
//! - A reset or refund by another process may be noticed up to one second late by a process that remembers a denial.
//! - Calls of several processes that wait for a window are in no order. Calls that wait for a bucket are, and are charged when
//!   they begin to wait; one that is cancelled gives that back only if no later call was given a time.
//! - While machines with two quotas for one name run, each call is decided by the quota of its machine, and charged to both:
//!   no machine admits more than its own quota would. Each call then takes two round trips.
//! - Two limiters of one name in a process make trips of their own.
//! - A limiter's clock has no effect. Buckets that [start empty](crate::algorithm::TokenBucket::start_empty) are full, since a
//!   new key counts as idle for ever.

mod breaker;
mod builder;
mod calls;
mod client;
mod cluster;
mod connection;
mod denials;
mod error;
mod flight;
mod fragments;
mod limit;
mod link;
mod links;
mod names;
mod node;
mod operation;
mod plan;
mod scripts;
mod server_time;
mod slots;
mod states;
mod stats;
#[cfg(test)]
mod tests;
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

/// A connection to Redis or Valkey, for any number of limiters. Clones share it.
///
/// [`Builder::store`](crate::limiter::Builder::store) takes it, and makes a [`RedisLimit`] of it. Each limiter needs a
/// [name](crate::limiter::Builder::name).
///
/// # Guarantees
///
/// Each call ends within the [deadline](RedisStoreBuilder::deadline), also while the server cannot be reached. A call that
/// failed because it was late charges nothing if the server gets to it later. After five late calls in a row, or an error by
/// which the server says that it cannot decide any, calls fail at once without a trip; one of them tries again after 50 ms,
/// then after up to 400 ms. If the server did not write, such as one that is full, only a call that writes ends this. A call that
/// is dropped charges nothing, unless its reply was taken; what was charged is undone by another trip. No key is written without a time to live, and no value is overwritten that is not a state of
/// this crate.
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

/// A [`RedisStore`] with a limiter in memory, which decides the calls that Redis could not. Created by
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

    /// Returns a builder, which sets the deadline and more.
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

    /// Returns a store whose calls are decided by `limiter` where Redis cannot decide them.
    ///
    /// That limiter counts only what it decided itself, so give it the share of the quota of one machine.
    pub fn fallback<A: StoredAlgorithm>(self, limiter: RateLimiter<A>) -> WithFallback<A> {
        WithFallback { store: self, fallback: limiter }
    }

    /// Returns what was counted.
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

    /// Returns an error if the limiter has no name, if its name is that of a limiter with another algorithm or quota, or if
    /// the states of its algorithm cannot be kept in Redis.
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
