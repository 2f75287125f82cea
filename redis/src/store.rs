//! The connection to a server, of which limiters are built, and its builder.

use std::fmt;
#[cfg(any(test, feature = "test-util"))]
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

use super::client::{Client, Server};
use super::connection::{Connection, completed};
use super::error::{RedisError, RedisErrorKind, convert};
use super::lease::LeasedLimit;
use super::limiter::RedisLimit;
use super::link::Link;
use super::links::Links;
use super::names::Names;
use super::permits::{Listener, RedisPermits};
use super::script::TimeSource;
use super::sentinel::Sentinels;
use super::states::Plan;
use super::trips::Trips;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{Algorithm, Concurrency, StoredAlgorithm, TokenBucket};
use tower_throttle::clock::AnyClock;
use tower_throttle::stats::StoreStats;
use tower_throttle::store::{KeySecret, KeyText, MakeStore, Store, StoreSettings};
use tower_throttle::store_support::{AsPermits, AsState, KeptAs};

/// The time limit of an attempt to connect, unless another limit is set or the deadline of calls is longer.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// A connection to Redis or Valkey, for any number of limiters. Clones share the connection.
///
/// Pass the store to [`Builder::store`](tower_throttle::limiter::Builder::store), which creates a [`RedisLimit`], or
/// [`RedisPermits`] for a [`Concurrency`]. Each limiter needs a [name](tower_throttle::limiter::Builder::name).
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
    /// The time for which a call waits for the server.
    deadline: Duration,
}

/// A builder of a [`RedisStore`].
#[must_use = "a builder does nothing until `connect` or `connect_lazily`"]
pub struct RedisStoreBuilder {
    servers: Result<Servers, RedisError>,
    deadline: Duration,
    connect_timeout: Option<Duration>,
    settings: Settings,
}

/// The servers to which a store connects.
enum Servers {
    One(Box<Server>),
    /// The cluster to which these nodes belong.
    Cluster(Vec<ConnectionInfo>),
    /// The server of a connection that another part of this crate has made. A feature must not remove `UnwindSafe` from
    /// a builder.
    #[cfg(any(test, feature = "test-util"))]
    Over(AssertUnwindSafe<Box<dyn Connection>>, TimeSource),
}

/// A [`RedisStore`] with a limiter in memory, which decides the calls that Redis could not decide.
/// [`RedisStore::fallback`] creates this store.
#[derive(Clone, Debug)]
pub struct WithFallback<A: StoredAlgorithm> {
    store: RedisStore,
    fallback: RateLimiter<A>,
}

/// A [`RedisStore`] whose limiters lease units. [`RedisStore::lease`] creates this store.
#[derive(Clone, Debug)]
pub struct WithLeases {
    store: RedisStore,
    units: u64,
}

/// Makes the store of a limiter, by what is kept for its keys. There are two implementations, and a trait of the other
/// crate cannot have both: [`StoredAlgorithm`] could be implemented for `Concurrency` later.
#[doc(hidden)]
pub trait MakeKept<A: Algorithm, Kept> {
    type Store: Store<A>;

    fn make(self, settings: StoreSettings<A>) -> Result<Self::Store, RedisError>;
}

/// The settings of a store, which apply to each of its limiters.
#[derive(Clone, Debug)]
struct Settings {
    prefix: String,
    slot: Option<String>,
    secret: Option<KeySecret>,
    remember_denials: Duration,
    permit_lease: Duration,
    /// `true` if scripts decide the calls of each algorithm that has a script.
    scripts: bool,
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
        RedisStoreBuilder::with(
            url.into_connection_info().and_then(Servers::at).map_err(|error| convert(&error)),
        )
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
        let infos = urls.into_iter().map(|url| url.as_ref().into_connection_info());
        RedisStoreBuilder::with(
            infos.collect::<Result<_, _>>().map(Servers::Cluster).map_err(|error| convert(&error)),
        )
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
        let infos = urls.into_iter().map(|url| url.as_ref().into_connection_info());
        let sentinels =
            infos.collect::<Result<_, _>>().and_then(|infos| Sentinels::from_infos(infos, master));
        RedisStoreBuilder::with(sentinels.map(Servers::master).map_err(|error| convert(&error)))
    }

    /// Returns what this store has counted since it was created: `trips`, `late`, `circuit_openings` and
    /// `is_circuit_open`. Its clones and all its limiters share these counts. The other fields are zero.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.links.stats()
    }

    /// Returns a store for [`Builder::store`](tower_throttle::limiter::Builder::store) that passes a call to `limiter`
    /// if Redis cannot decide the call.
    ///
    /// `limiter` charges only the calls that are passed to it, so give it one machine's share of the quota.
    ///
    /// No method fails: what Redis cannot do is done in `limiter`, and is then `Ok`. This is true of `check`,
    /// `acquire`, `peek`, `refund` and `reset`. A reset is always made in `limiter` as well. A reset during an outage
    /// is made only in `limiter`, and is `Ok` as well: Redis keeps the state of the key, so the key is limited in Redis
    /// again as soon as Redis works. Reset the key once more then, or use a store without a fallback if you have to
    /// know.
    ///
    /// `limiter` gets the text of each key, as it is in Redis. So ask `limiter` about a key by its
    /// [`KeyText`], with the settings of the store:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::store::KeyText;
    /// use tower_throttle_redis::RedisStore;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let local = RateLimiter::new(FixedWindow::new(Quota::per_minute(5)));
    /// // There is no server at this address.
    /// let redis = RedisStore::builder("redis://127.0.0.1:1").prefix("shop").connect_lazily()?;
    /// let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_minute(10)))
    ///     .name("login")
    ///     .store(redis.fallback(local.clone()))
    ///     .build()?;
    /// limiter.check("user:42").await?;
    /// let text = KeyText::new("login").prefix("shop").of("user:42");
    /// assert_eq!(local.peek(&text).remaining(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fallback<A: StoredAlgorithm>(self, limiter: RateLimiter<A>) -> WithFallback<A> {
        WithFallback { store: self, fallback: limiter }
    }

    /// Returns a store for [`Builder::store`](tower_throttle::limiter::Builder::store) whose limiters take up to
    /// `units` units of a key at once. These units are a *lease*: the limiter spends them without further trips.
    ///
    /// A call whose units are leased is decided at once. So a key with many calls needs about one trip for every
    /// `units` calls. A process leases units only of keys that it used within the last second: first 1 unit, and twice
    /// as many in each further trip, up to `units`. A lease has at most half of the units that the bucket has left, so
    /// leases get smaller while few units are left.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle_redis::RedisStore;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let redis = RedisStore::connect("redis://10.0.0.5").await?;
    /// let bucket = TokenBucket::new(Quota::per_second(1_000).burst(200));
    /// let limiter = RateLimiter::builder(bucket).name("api").store(redis.lease(10)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Guarantees
    ///
    /// All processes together never admit a call that a single bucket would deny. The processes may deny calls that a
    /// single bucket would admit, because other processes hold the units. Each process holds at most `units` units of a
    /// key. One second after a process has leased units, or when the limiter is dropped, the process returns the units
    /// that it has not spent, if the runtime still runs. If a process ends without returning units, or a reply is lost,
    /// these units count as spent. Their refill begins with the first trip of any process that is made three seconds or
    /// more after they were leased. If the server's clock was set back in between, these three seconds begin with the
    /// first trip after the clock was set back.
    ///
    /// These guarantees require that the server's clock is not set forward, and that the process is not suspended
    /// together with its monotonic clock, as a virtual machine may be. Otherwise the units of a lease may be spent
    /// after its end. Then the excess is at most the units of the leases.
    ///
    /// The methods of a limiter keep their meaning, except:
    ///
    /// | method | with leases |
    /// |---|---|
    /// | `remaining` and `reset_after` of a decision | are those of the last trip, without the later calls of other processes |
    /// | `retry_after` of a denial | may be up to 75 ms longer, so that the next trip takes several units. `None` if the call has to wait for units that other processes hold, or behind queued calls |
    /// | `acquire` and its variants | the calls of a process are admitted in the order in which they arrived; the processes are served in no particular order. A call that is cancelled while it waits charges nothing |
    /// | `peek`, `refund`, `reset` | each makes a trip. `reset` gives back all units except those that other processes hold |
    /// | `replace`, `settle` of a layer, `fallback` | do not compile |
    ///
    /// Other algorithms do not compile:
    ///
    /// ```compile_fail,E0277
    /// # use tower_throttle::algorithm::FixedWindow;
    /// # use tower_throttle_redis::RedisStore;
    /// # use tower_throttle::{Quota, RateLimiter};
    /// # fn example(redis: RedisStore) {
    /// RateLimiter::builder(FixedWindow::new(Quota::per_second(10))).store(redis.lease(10));
    /// # }
    /// ```
    ///
    /// All limiters that share a name must lease units, and have the same quota. A call fails with
    /// [`RedisErrorKind::Foreign`] if the value of its key was written by a limiter that leases no units or has another
    /// quota. A call of a limiter without leases fails in the same way if the value was written by a limiter with
    /// leases. So choose a new name when you begin to use leases, or when you change the quota.
    ///
    /// # Permissions
    ///
    /// The Redis user needs the permission to run EXISTS, HMGET, HGETALL, HSET, HDEL and PEXPIRE, in addition to the
    /// commands of limiters without leases: EVALSHA, EVAL, TIME, GET, PSETEX and DEL.
    ///
    /// # Memory
    ///
    /// For each limiter, a process holds units of at most 10,000 keys at once, each for about a second.
    ///
    /// # Errors
    ///
    /// A limiter is not built if `units` is 0, or if its bucket needs numbers above 2^53.
    #[must_use]
    pub fn lease(self, units: u64) -> WithLeases {
        WithLeases { store: self, units }
    }

    fn limit<A: StoredAlgorithm>(
        &self,
        settings: StoreSettings<A>,
        fallback: Option<RateLimiter<A>>,
    ) -> Result<RedisLimit<A>, RedisError> {
        let StoreSettings { algorithm, name, .. } = settings;
        let Settings { scripts, remember_denials, .. } = self.settings;
        let plan = Plan::new(algorithm, self.links.any().source(), scripts)?;
        let key_text = self.settings.key_text(name.as_deref().unwrap_or_default());
        let name = self.names.register(name, plan.prefix())?;
        let trips = Trips::new(self.links.clone(), plan, scripts, remember_denials, name);
        Ok(RedisLimit::new(self.links.clone(), trips, key_text, fallback))
    }

    fn to_server(
        connection: Box<dyn Connection>,
        deadline: Duration,
        source: TimeSource,
        settings: Settings,
    ) -> Self {
        let link = Link::new(connection, AnyClock::default(), deadline, source);
        Self::with(Links::One(link.into()), deadline, settings)
    }

    fn with(links: Links, deadline: Duration, settings: Settings) -> Self {
        let listener = Arc::new(Listener::new(settings.channel("permits")));
        Self { links, settings, names: Names::default(), listener, deadline }
    }
}

impl RedisStoreBuilder {
    /// Creates a builder from a client of the crate `redis`, which may have settings that a URL does not have, such as
    /// certificates.
    pub fn from_client(client: ::redis::Client) -> Self {
        let info = client.get_connection_info().clone();
        Self::with(Servers::at(info).map_err(|error| convert(&error)))
    }

    /// Creates a builder for the master that these [sentinels](RedisStore::sentinel) know under the name `master`. The
    /// master is reached at its own address, with the other settings of the client `like`.
    pub fn from_sentinel_clients(
        sentinels: impl IntoIterator<Item = ::redis::Client>,
        master: &str,
        like: &::redis::Client,
    ) -> Self {
        let like = like.get_connection_info().clone();
        let sentinels = Sentinels::new(sentinels.into_iter().collect(), master, like);
        Self::with(sentinels.map(Servers::master).map_err(|error| convert(&error)))
    }

    /// Creates a builder for the [cluster](RedisStore::cluster) to which the servers of these clients belong. The other
    /// nodes are reached with the settings of the first client, such as its certificates.
    pub fn from_cluster_clients(clients: impl IntoIterator<Item = ::redis::Client>) -> Self {
        let infos = clients.into_iter().map(|client| client.get_connection_info().clone());
        Self::with(Ok(Servers::Cluster(infos.collect())))
    }

    /// Sets the prefix of all keys. The default is `throttle`. Applications that share a server need different
    /// prefixes.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.settings.prefix);
        self
    }

    /// Sets the maximum time for which a call waits for the server. The default is 50 ms. This time includes the time
    /// to reconnect, but not the time for which the call waits for units. A call may fail up to 1 ms later, because
    /// tokio's timers count whole milliseconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the maximum time of an attempt to connect. This time includes TLS, the log-in and, with sentinels, the
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

    /// Sets the secret for long keys. A key whose [text](tower_throttle::store::SharedKey) has more than [100
    /// bytes](tower_throttle::store::KeyText::MAX_LEN) is replaced by its hash with this secret. All processes need the
    /// same secret. Without a secret, keys of any length are stored in full.
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

    /// Sets the time for which the server keeps a [permit](super::RedisPermits), or a place in the queue for permits,
    /// without a renewal. The default is ten seconds. Values below 100 ms are raised to 100 ms, and values above one
    /// day are lowered to one day.
    ///
    /// The permits of a process that has failed are free again after this time. A process that cannot reach the server
    /// for this time, or that is suspended for this time, loses its permits. The time must be at least four times the
    /// [deadline](Self::deadline). A process renews its permits and places after a third of this time. One trip renews
    /// up to 256 permits and places of one key.
    pub fn permit_lease(mut self, lease: Duration) -> Self {
        let (shortest, longest) = (Duration::from_millis(100), Duration::from_secs(86_400));
        self.settings.permit_lease = lease.clamp(shortest, longest);
        self
    }

    /// Creates a builder of a store on the server of `connection`.
    #[cfg(any(test, feature = "test-util"))]
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

    /// Connects to the server, and executes a script to test the connection. In a cluster, executes the script on the
    /// masters.
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
        store.links.verify(&store.settings.key_text("connect")).await?;
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
        Ok(self.open()?.0)
    }

    /// Creates the store and, if there is one server, the client that connects to it.
    fn open(self) -> Result<(RedisStore, Option<Client>), RedisError> {
        let Self { servers, deadline, connect_timeout, settings } = self;
        let timeout = connect_timeout.unwrap_or_else(|| deadline.max(CONNECT_TIMEOUT));
        Ok(match servers? {
            Servers::One(server) => {
                let client = Client::new(*server, timeout);
                let connection = Box::new(client.clone());
                (RedisStore::to_server(connection, deadline, TimeSource::Server, settings), Some(client))
            }
            Servers::Cluster(infos) => {
                (RedisStore::with(Links::to_cluster(infos, timeout, deadline)?, deadline, settings), None)
            }
            #[cfg(any(test, feature = "test-util"))]
            Servers::Over(AssertUnwindSafe(connection), source) => {
                (RedisStore::to_server(connection, deadline, source, settings), None)
            }
        })
    }

    fn with(servers: Result<Servers, RedisError>) -> Self {
        Self {
            servers,
            deadline: Duration::from_millis(50),
            connect_timeout: None,
            settings: Settings::default(),
        }
    }
}

impl Servers {
    fn at(info: ConnectionInfo) -> RedisResult<Self> {
        let client = ::redis::Client::open(completed(info))?;
        Ok(Self::One(Server::At(client).into()))
    }

    fn master(sentinels: Sentinels) -> Self {
        Self::One(Server::Master(sentinels).into())
    }
}

impl Settings {
    /// Returns the beginning of the names of the channels for messages of this kind.
    fn channel(&self, kind: &str) -> String {
        format!("{}:{kind}:", self.prefix)
    }

    /// Returns the [`KeyText`] that creates the keys of the limiter `name` in Redis.
    fn key_text(&self, name: &str) -> KeyText {
        let mut text = KeyText::new(name).prefix(&self.prefix);
        if let Some(slot) = &self.slot {
            text = text.one_slot(slot);
        }
        match self.secret {
            Some(secret) => text.secret(secret),
            None => text,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "throttle".to_owned(),
            slot: None,
            secret: None,
            remember_denials: Duration::from_secs(1),
            permit_lease: Duration::from_secs(10),
            scripts: true,
        }
    }
}

impl<A: KeptAs> MakeStore<A> for RedisStore
where
    Self: MakeKept<A, A::Kept>,
{
    type Store = <Self as MakeKept<A, A::Kept>>::Store;
    type Error = RedisError;

    /// Creates the store of a limiter: [`RedisPermits`] for a `Concurrency`, and a [`RedisLimit`]
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

impl<A: StoredAlgorithm> MakeKept<A, AsState> for RedisStore {
    type Store = RedisLimit<A>;

    fn make(self, settings: StoreSettings<A>) -> Result<RedisLimit<A>, RedisError> {
        self.limit(settings, None)
    }
}

impl MakeKept<Concurrency, AsPermits> for RedisStore {
    type Store = RedisPermits;

    /// Creates the store of a limiter. Returns an error also if the algorithm has a total or drops the oldest waiter,
    /// or if the deadline of calls is longer than a quarter of the lease of permits.
    fn make(self, settings: StoreSettings<Concurrency>) -> Result<RedisPermits, RedisError> {
        let StoreSettings { algorithm, name, .. } = settings;
        let Self { links, settings, names, listener, deadline } = self;
        let key_text = settings.key_text(name.as_deref().unwrap_or_default());
        let register = |unit: &str| names.register(name, unit);
        RedisPermits::new(algorithm, settings.permit_lease, deadline, links, listener, key_text, register)
    }
}

impl<A: StoredAlgorithm> MakeStore<A> for WithFallback<A> {
    type Store = RedisLimit<A>;
    type Error = RedisError;

    fn make_store(self, settings: StoreSettings<A>) -> Result<RedisLimit<A>, RedisError> {
        self.store.limit(settings, Some(self.fallback))
    }
}

impl MakeStore<TokenBucket> for WithLeases {
    type Store = LeasedLimit;
    type Error = RedisError;

    /// Creates the store of a limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no name, if another limiter of this store has the same name, but another
    /// quota or no leases, if a lease has 0 units, or if the bucket needs numbers above 2^53.
    fn make_store(self, settings: StoreSettings<TokenBucket>) -> Result<LeasedLimit, RedisError> {
        let Self { store: RedisStore { links, settings: store, names, .. }, units } = self;
        let StoreSettings { algorithm, name, .. } = settings;
        let key_text = store.key_text(name.as_deref().unwrap_or_default());
        let register = |unit: &str| names.register(name, unit);
        LeasedLimit::new(algorithm, units, store.remember_denials, links, key_text, register)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password, so it is not shown.
        f.debug_struct("RedisStoreBuilder").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
