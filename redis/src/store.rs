//! The connection to a server, of which limiters are built, and its builder.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use ::redis::ConnectionInfo;

use super::client::{Client, Server};
use super::connection::{Connection, completed};
use super::error::{RedisError, RedisErrorKind, convert};
use super::limiter::RedisLimiterBuilder;
use super::link::Link;
use super::links::Links;
use super::parts::{Settings, StoreParts};
use super::permits::{Listener, RedisPermitsBuilder};
use super::script::TimeSource;
use super::sentinel::Sentinels;
use super::url;
use tower_throttle::algorithm::{MAX_DEBT, StoredAlgorithm};
use tower_throttle::clock::AnyClock;
use tower_throttle::limiter::KeySecret;
use tower_throttle::stats::StoreStats;

/// The time limit of an attempt to connect, unless another limit is set or the deadline of calls is longer.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// A connection to Redis or Valkey, for any number of limiters. Clones share the connection.
///
/// [`limiter`](Self::limiter) creates a limiter of rates, and [`permits`](Self::permits) a limiter of the calls in
/// progress. The name of a limiter is part of its keys, so all processes that use this name with the same
/// [kind](crate::guide::many_machines#keys) of algorithm share the limit.
///
/// # Guarantees
///
/// Each call whose future is polled when it is woken ends at most 1 ms after the
/// [deadline](RedisStoreBuilder::deadline), even while the server cannot be reached. The time for which the call waits
/// for units is not part of the deadline. If the server receives a call after the deadline of the call, the server
/// charges nothing. This holds only if the server has replied at least once before the call was sent, so that the store
/// knows the server's time, and if the server's clock is not set back. An attempt to connect goes on when the deadlines
/// of the calls that wait for it have passed.
///
/// A server may close idle connections, or restart. A call that was not sent before its connection ended is sent on a
/// new connection, within its deadline. If it may have been sent, it fails with [`RedisErrorKind::Unreachable`], and is
/// not sent again. (An encrypted connection does not tell what it has sent before it ended. So calls may have been sent
/// as soon as they are passed to it.) If a firewall has forgotten a connection, the first late reply after a second
/// without replies ends the connection. Unless the client has other settings, the kernel tries an idle connection every
/// 30 s, which is often enough for most firewalls.
///
/// Five failed trips in a row, because of late replies or a missing connection, open the circuit breaker. The end of a
/// connection is one failure, however many trips it fails. A reply that says that the server cannot decide any call
/// opens the breaker at once. While the breaker is open, calls fail at once and are not sent. When a pause of 50 ms is
/// over, the next call begins a trial of the server. The calls that arrive during the trial wait for its result within
/// their deadlines: if the server replies, they are sent, and otherwise they fail together with the trial. So also the
/// first calls after an outage are decided. Each time that a trial fails, the pause before the next one doubles, up to
/// 400 ms. If the server failed to write, for example because it is out of memory, only a call that writes a state
/// closes the breaker.
///
/// If a call is dropped before its reply was received, and the server has charged the call, another trip undoes the
/// charge. The charge remains if that trip fails. The charge also remains if the call may wait for a `TokenBucket` or a
/// `LeakyBucket`, and a later call was charged. No key is written without a time to live, which is the time until all
/// units of the key are available again, and up to 2 ms more, or 7 ms if a call was queued in its process. A value that
/// is not a state of this crate is never overwritten.
///
/// # Memory
///
/// On the server, most algorithms take 136 to 184 bytes for a key of 26 bytes (`MEMORY USAGE` of redis-server 7.0), and
/// the hash tables of Redis itself about 60 more. [A table](crate::guide::many_machines#memory-of-the-server) has the
/// bytes of each algorithm: a `SlidingLog` of 100 calls takes 1.9 kB.
///
/// # Errors
///
/// Calls fail with a [`RedisError`], unless their limiter has a [fallback](RedisLimiterBuilder::fallback).
#[derive(Clone)]
pub struct RedisStore {
    parts: StoreParts,
    listener: Arc<Listener>,
}

/// A builder of a [`RedisStore`].
#[must_use = "a builder does nothing until `connect` or `connect_lazily`"]
pub struct RedisStoreBuilder {
    servers: Result<Servers, RedisError>,
    connect_timeout: Option<Duration>,
    settings: Settings,
}

/// The servers to which a store connects.
enum Servers {
    /// What is known of sentinels is replaced as a whole, so a builder stays `UnwindSafe`.
    One(AssertUnwindSafe<Server>),
    /// The cluster to which these nodes belong.
    Cluster(Vec<ConnectionInfo>),
    /// The server of a connection that another part of this crate has made. A feature must not remove `UnwindSafe` from
    /// a builder.
    #[cfg(any(test, feature = "__in-process"))]
    Over(AssertUnwindSafe<Box<dyn Connection>>, TimeSource),
}

impl RedisStore {
    /// Connects to the server at `url`, such as `redis://:password@localhost:6379/0`.
    ///
    /// The keys begin with the default [prefix](RedisStoreBuilder::prefix), which is the same for every app. If another
    /// app uses this server, set a prefix: `RedisStore::builder(url).prefix("shop").connect()`. Otherwise, limiters of
    /// the same name share their budgets. With the feature `tracing`, an event of level `info` tells the prefix of each
    /// store.
    ///
    /// Special characters of the user and the password are percent-encoded: `%2F` stands for `/`. No error has a part
    /// of the URL that may be secret.
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
        RedisStoreBuilder::with(url::parse(url).and_then(Servers::at))
    }

    /// Returns a builder of a store in a cluster. `urls` are the URLs of one or more nodes of the cluster.
    ///
    /// Each key is kept on the master that has the slot of the key. So the keys of a limiter are spread over all
    /// masters, unless [`one_slot`](RedisStoreBuilder::one_slot) is set. If a slot moves to another master, the store
    /// sends the calls for the keys of that slot there (`MOVED`), and also while the slot is being migrated (`ASK`). A
    /// call then fails only if its deadline passes before the store has connected to the new node. Joined layers are an
    /// exception: until the migration has ended (`SETSLOT NODE`), a request fails at its deadline if one of its keys in
    /// that slot does not exist yet. If the clocks of the two nodes differ, the move has the same effect on the keys of
    /// the slot as a step of the server's clock.
    ///
    /// Each master has a circuit breaker of its own. If the configuration of the servers has
    /// `cluster-require-full-coverage no`, and a master fails, only the calls for the keys of that master fail. After a
    /// call has failed, the store asks the nodes which masters there are, at most every 100 ms, and while the circuit
    /// breaker of the failed master is open, at most 400 ms later. So it finds a replica that has taken over. As after
    /// any failover, the replica lacks charges that were not replicated. `CLUSTER FAILOVER` loses none.
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
    /// given servers report are reached at the addresses that the cluster announces (`cluster-announce-ip`,
    /// `cluster-preferred-endpoint-type`), with the user, the password and the encryption of the first URL.
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> RedisStoreBuilder {
        let infos = urls.into_iter().map(|url| url::parse(url.as_ref()));
        RedisStoreBuilder::with(infos.collect::<Result<_, _>>().map(Servers::Cluster))
    }

    /// Returns a builder of a store on the master that Redis Sentinel knows under the name `master`. `urls` are the
    /// URLs of one or more sentinels.
    ///
    /// While calls are made, a background task asks all sentinels once a second which server is the master, on
    /// connections that are kept. Each answer has an epoch (`config-epoch`), which increases with each failover. The
    /// master with the highest epoch that any sentinel has named is used, even for new connections. The store connects
    /// to it first, and the calls that are under way end on the former connection. A new connection is also made as
    /// soon as the present one ends, five trips in a row are late, or the server refuses to write. If no sentinel
    /// names a master, the last known master is used, unless more than half of the given sentinels reply that they know
    /// no master of this name. A master of a lower epoch is used only after more than half of them have named it for
    /// ten seconds, and none a master of the known epoch, as after the sentinels were set up again.
    ///
    /// Charges that the new master did not receive are lost. For each key, at most the units of these charges are
    /// admitted once more. In a planned failover (`SENTINEL FAILOVER`), the former master goes on deciding, and the
    /// charges of about two seconds are lost: it takes the sentinels a second to notice that the replica has taken
    /// over, and up to another second until they are asked. In this other second, two processes may use two masters. A
    /// call after an idle time may be decided by the former master as well, while the sentinels are asked. A master
    /// that requires replicas (`min-replicas-to-write`) refuses calls as soon as it has too few.
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
    /// sentinel, use [`from_sentinel_clients`](RedisStoreBuilder::from_sentinel_clients). The users at the
    /// servers and at the sentinels need [permissions](crate::guide::many_machines#permissions).
    /// [`connect`](RedisStoreBuilder::connect) and [`connect_lazily`](RedisStoreBuilder::connect_lazily) return an
    /// error if there is no URL, or if a URL is wrong. `connect` also returns an error if no sentinel knows the name.
    pub fn sentinel<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, master: &str) -> RedisStoreBuilder {
        let infos = urls.into_iter().map(|url| url::parse(url.as_ref()));
        let sentinels =
            infos.collect::<Result<_, _>>().and_then(|infos| Sentinels::from_infos(infos, master));
        RedisStoreBuilder::with(sentinels.map(Servers::master))
    }

    /// Returns what this store has counted since it was created: `trips`, `late`, `circuit_openings`,
    /// `is_circuit_open`, and the `settle_errors` of all its limiters. Its clones share these counts. The other fields
    /// are zero.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let mut stats = self.parts.links.stats();
        stats.settle_errors = self.parts.settlements.failed();
        stats
    }

    /// Waits until no settlement of any limiter of this store is open, but at most for `timeout`. Returns how many
    /// settlements are still open, so 0 if all of them were made or have failed.
    ///
    /// A settlement is open from the call of [`settle`](tower_throttle::limiter::Reservation::settle) until its trip
    /// has ended, and a [charge](super::RedisLimiter::charge) from the first poll of its future. No response waits for
    /// them, so the trips that are under way when a process ends are lost. To lose none at a shutdown, first end all
    /// calls, and then call this method before the runtime ends. Reservations that are not settled yet are not waited
    /// for, and settlements that begin meanwhile are. While the server works, a few times the
    /// [deadline](RedisStoreBuilder::deadline) is long enough. Charges that no response waits for, such as those of a
    /// meter, are open until the server has made them, even while it fails. If their runtime has ended, this method
    /// does not try them again: they stay open until the limiter makes another such charge.
    /// [`settle_errors`](tower_throttle::stats::StoreStats::settle_errors) counts the settlements that failed.
    ///
    /// ```no_run
    /// # async fn example(redis: tower_throttle_redis::RedisStore) {
    /// use std::time::Duration;
    ///
    /// // The server has ended, and with it all calls.
    /// let open = redis.flush(Duration::from_secs(1)).await;
    /// if open > 0 {
    ///     eprintln!("{open} settlements are lost");
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the settlements go on, and another call of this method waits for them.
    ///
    /// # Panics
    ///
    /// The future panics if it is polled outside a tokio runtime with an enabled timer.
    pub async fn flush(&self, timeout: Duration) -> u64 {
        self.parts.settlements.flush(timeout).await
    }

    /// Returns a builder of a limiter. All processes whose limiters have this name, and this
    /// [kind](StoredAlgorithm::kind) of algorithm, share the limit.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle_redis::RedisStore;
    ///
    /// let redis = RedisStore::connect("redis://10.0.0.5").await?;
    /// let limiter = redis.limiter("api", TokenBucket::new(Quota::per_minute(100))).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limiter<A: StoredAlgorithm>(&self, name: &str, algorithm: A) -> RedisLimiterBuilder<A> {
        RedisLimiterBuilder {
            store: self.parts.clone(),
            name: self.parts.name(name),
            algorithm,
            max_debt: MAX_DEBT,
            max_queued: None,
            fallback: None,
        }
    }

    /// Returns a builder of a limiter that admits at most `limit` calls at a time for each key. All processes whose
    /// limiters have this name share the limit.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tower_throttle_redis::RedisStore;
    ///
    /// let redis = RedisStore::connect("redis://10.0.0.5").await?;
    /// let exports =
    ///     redis.permits("exports", 1).queue(5).max_wait(Duration::from_secs(30)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(&self, name: &str, limit: u64) -> RedisPermitsBuilder {
        let store = self.parts.clone();
        let name = self.parts.name(name);
        RedisPermitsBuilder::new(store, Arc::clone(&self.listener), name, limit)
    }

    fn to_server(connection: Box<dyn Connection>, source: TimeSource, settings: Settings) -> Self {
        let link = Link::new(connection, AnyClock::default(), settings.deadline, source);
        Self::with(Links::One(link.into()), settings)
    }

    fn with(links: Links, settings: Settings) -> Self {
        let listener = Arc::new(Listener::new(settings.channel("permits")));
        Self { parts: StoreParts::new(links, settings), listener }
    }
}

impl RedisStoreBuilder {
    /// Creates a builder from a client of the crate `redis`, which may have settings that a URL does not have, such as
    /// certificates.
    pub fn from_client(client: ::redis::Client) -> Self {
        let info = client.get_connection_info().clone();
        Self::with(Servers::at(info))
    }

    /// Creates a builder for the master that these [sentinels](RedisStore::sentinel) know under the name `master`. The
    /// master is reached at its own address, with the other settings of the client `like`.
    pub fn from_sentinel_clients(
        sentinels: impl IntoIterator<Item = ::redis::Client>,
        master: &str,
        like: &::redis::Client,
    ) -> Self {
        let infos = sentinels.into_iter().map(|client| client.get_connection_info().clone());
        let sentinels = Sentinels::new(infos.collect(), master, like.get_connection_info().clone());
        Self::with(sentinels.map(Servers::master))
    }

    /// Creates a builder for the [cluster](RedisStore::cluster) to which the servers of these clients belong. The other
    /// nodes are reached with the settings of the first client, such as its certificates.
    pub fn from_cluster_clients(clients: impl IntoIterator<Item = ::redis::Client>) -> Self {
        let infos = clients.into_iter().map(|client| client.get_connection_info().clone());
        Self::with(Ok(Servers::Cluster(infos.collect())))
    }

    /// Sets the prefix of all keys. The default is `throttle`. Apps that share a server need different prefixes: two
    /// apps with the same prefix share the budgets of their limiters of the same name, and no error tells.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.settings.prefix);
        self
    }

    /// Sets the maximum time for which a call waits for the server. The default is 50 ms. This time includes the time
    /// to reconnect, but not the time for which the call waits for units. A call may fail up to 1 ms later, because
    /// tokio's timers count whole milliseconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Sets the maximum time of an attempt to connect. This time includes TLS, the sign-in and, with sentinels, the
    /// search for the master. The default is 250 ms, or the [deadline](Self::deadline) if the deadline is longer.
    ///
    /// An attempt to connect goes on after the calls that wait for it have failed at their deadlines. So this time may
    /// be much longer than the deadline, for example for a server that is far away. But if a server does not answer at
    /// all, because it hangs or is behind a firewall, the next attempt begins only after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Keeps all keys in one slot of a cluster: the slot of `tag`. Then one node does all the work.
    ///
    /// Only [joined layers](tower_throttle::RateLimitLayer::and) that have different keys for one request need this,
    /// such as one limit for each caller and one for all callers. Without this setting, the requests to such layers
    /// fail with a [`RedisErrorKind::Config`].
    pub fn one_slot(mut self, tag: &str) -> Self {
        self.settings.slot = Some(tag.to_owned());
        self
    }

    /// Sets the secret for long keys. A key whose [text](tower_throttle::limiter::SharedKey) has more than [100
    /// bytes](tower_throttle::limiter::KeyText::MAX_LEN) is replaced by its hash with this secret. All processes need
    /// the same secret. Without a secret, keys of any length are stored in full.
    pub fn key_secret(mut self, secret: KeySecret) -> Self {
        self.settings.secret = Some(secret);
        self
    }

    /// Sets the maximum time for which a process remembers that a key has no unit available. The default is one second.
    /// With zero, nothing is remembered, and each call is sent.
    ///
    /// During this time, if the units of a call for the key cannot be available yet, the process denies the call
    /// without asking Redis. A reset or refund by another process has no effect on such denials. With a
    /// [lockout](tower_throttle::algorithm::Lockout), each call is sent. Calls that may be settled, and calls that may
    /// wait for a `TokenBucket` or a `LeakyBucket`, are always sent.
    pub fn remember_denials(mut self, longest: Duration) -> Self {
        self.settings.remember_denials = longest;
        self
    }

    /// Creates a builder of a store on the server of `connection`.
    #[cfg(any(test, feature = "__in-process"))]
    pub(super) fn over(connection: impl Connection, source: TimeSource) -> Self {
        Self::with(Ok(Servers::Over(AssertUnwindSafe(Box::new(connection)), source)))
    }

    /// Decides all calls in this process. One trip reads the state, and another trip writes it. Without this setting, a
    /// script decides most calls in one trip. Tests compare the decisions of this process with those of the scripts.
    #[doc(hidden)]
    pub fn without_scripts(mut self) -> Self {
        self.settings.scripts = false;
        self
    }

    /// Connects to the server, and executes a script to test the connection, and the permission to run the commands of
    /// a rate limiter. In a cluster, executes the script on the masters. With the feature `tracing`, an event of level
    /// `info` tells the [prefix](Self::prefix).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is wrong, if the server cannot be reached, if a server does not execute scripts, or
    /// if there is no tokio runtime. In a cluster, a master that cannot be reached causes an error only if no other
    /// master answers.
    pub async fn connect(self) -> Result<RedisStore, RedisError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(RedisError::new(RedisErrorKind::NoRuntime, ""));
        }
        let (store, client) = self.open()?;
        if let Some(client) = client {
            client.connect().await?;
        }
        let StoreParts { links, settings, .. } = &store.parts;
        links.verify(&settings.key_text("connect")).await?;
        log_prefix(&settings.prefix);
        Ok(store)
    }

    /// Returns a store that makes no connection until a call needs one. So a service can start while the server cannot
    /// be reached.
    ///
    /// Nothing is verified here. If the host or the password is wrong, each call fails, and each request is treated as
    /// [`OnStoreError`](tower_throttle::middleware::OnStoreError) says. With `OnStoreError::Allow`, requests are then
    /// never limited. The log and [`stats`](RedisStore::stats) show such a failure.
    ///
    /// # Errors
    ///
    /// Returns an error if a URL is wrong or missing.
    pub fn connect_lazily(self) -> Result<RedisStore, RedisError> {
        let (store, _) = self.open()?;
        log_prefix(&store.parts.settings.prefix);
        Ok(store)
    }

    /// Creates the store and, if there is one server, the client that connects to it.
    fn open(self) -> Result<(RedisStore, Option<Client>), RedisError> {
        let Self { servers, connect_timeout, settings } = self;
        let deadline = settings.deadline;
        let timeout = connect_timeout.unwrap_or_else(|| deadline.max(CONNECT_TIMEOUT));
        Ok(match servers? {
            Servers::One(AssertUnwindSafe(server)) => {
                let client = Client::new(server, timeout);
                let connection = Box::new(client.clone());
                (RedisStore::to_server(connection, TimeSource::Server, settings), Some(client))
            }
            Servers::Cluster(infos) => {
                (RedisStore::with(Links::to_cluster(infos, timeout, deadline)?, settings), None)
            }
            #[cfg(any(test, feature = "__in-process"))]
            Servers::Over(AssertUnwindSafe(connection), source) => {
                (RedisStore::to_server(connection, source, settings), None)
            }
        })
    }

    fn with(servers: Result<Servers, RedisError>) -> Self {
        Self { servers, connect_timeout: None, settings: Settings::default() }
    }
}

impl Servers {
    fn at(info: ConnectionInfo) -> Result<Self, RedisError> {
        let client = ::redis::Client::open(completed(info)).map_err(|error| convert(&error))?;
        Ok(Self::One(AssertUnwindSafe(Server::At(client.into(), ""))))
    }

    fn master(sentinels: Sentinels) -> Self {
        Self::One(AssertUnwindSafe(Server::Master(sentinels)))
    }
}

/// Logs the prefix, because apps that have the same one on one server share limits without an error.
#[cfg(feature = "tracing")]
fn log_prefix(prefix: &str) {
    tracing::info!(target: "tower_throttle", event = "redis_prefix", prefix,
        "tower-throttle: limits in Redis are shared with each app that has this prefix and limiters of the same names");
}

#[cfg(not(feature = "tracing"))]
fn log_prefix(_: &str) {}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.parts.settings).finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password, so it is not shown.
        f.debug_struct("RedisStoreBuilder").field("deadline", &self.settings.deadline).finish_non_exhaustive()
    }
}
