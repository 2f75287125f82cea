//! The connection to a server, of which limiters are built.

use std::fmt;
use std::sync::Arc;

use super::builder::RedisStoreBuilder;
use super::denials::Denials;
use super::error::RedisError;
use super::limit::Parts;
use super::limit::RedisLimit;
use super::links::Links;
use super::names::Names;
use super::permits::Listener;
use super::plan::Plan;
use super::settings::Settings;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{Algorithm, StoredAlgorithm};
use tower_throttle::stats::StoreStats;
use tower_throttle::store::{MakeStore, Store, StoreSettings};
use tower_throttle::store_support::{AsState, KeptAs};

/// A connection to Redis or Valkey, for any number of limiters. Clones share the connection.
///
/// Pass the store to [`Builder::store`](tower_throttle::limiter::Builder::store), which creates a [`RedisLimit`], or
/// [`RedisPermits`](super::RedisPermits) for a [`Concurrency`](tower_throttle::algorithm::Concurrency). Each limiter
/// needs a [name](tower_throttle::limiter::Builder::name).
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
/// new connection, within its deadline. If it may have been sent, it fails with
/// [`RedisErrorKind::Unreachable`](super::RedisErrorKind::Unreachable), and is not sent again. (An encrypted connection
/// does not tell what it has sent before it ended. So calls may have been sent as soon as they are passed to it.) If a
/// firewall has forgotten a connection, the first late reply after a second without replies ends the connection.
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
    pub(super) links: Links,
    pub(super) settings: Settings,
    pub(super) names: Names,
    pub(super) listener: Arc<Listener>,
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
    /// # async fn example() -> Result<(), tower_throttle_redis::RedisError> {
    /// use tower_throttle_redis::RedisStore;
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
    /// # async fn example() -> Result<(), tower_throttle_redis::RedisError> {
    /// use tower_throttle_redis::RedisStore;
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

    pub(super) fn limit<A: StoredAlgorithm>(
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

impl<A: KeptAs> MakeStore<A> for RedisStore
where
    Self: MakeKept<A, A::Kept>,
{
    type Store = <Self as MakeKept<A, A::Kept>>::Store;
    type Error = RedisError;

    /// Creates the store of a limiter: [`RedisPermits`](super::RedisPermits) for a `Concurrency`, and a [`RedisLimit`]
    /// for any other algorithm.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no name, if another limiter of this store has the same name and another
    /// algorithm or quota, or if the states of the algorithm cannot be kept in Redis. For a `Concurrency`, also returns
    /// an error if it has a total or drops the oldest waiter, or if the deadline of calls is longer than a quarter of
    /// the lease of permits.
    fn make_store(self, settings: StoreSettings<A>) -> Result<Self::Store, RedisError> {
        self.make(settings)
    }
}

/// Makes the store of a limiter, by what is kept for its keys. There are two implementations, and a trait of the other
/// crate cannot have both: [`StoredAlgorithm`] could be implemented for `Concurrency` later.
#[doc(hidden)]
pub trait MakeKept<A: Algorithm, Kept> {
    type Store: Store<A>;

    fn make(self, settings: StoreSettings<A>) -> Result<Self::Store, RedisError>;
}

impl<A: StoredAlgorithm> MakeKept<A, AsState> for RedisStore {
    type Store = RedisLimit<A>;

    fn make(self, settings: StoreSettings<A>) -> Result<RedisLimit<A>, RedisError> {
        self.limit(settings, None)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}
