use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

use super::client::Client;
use super::client::Server;
use super::cluster::Cluster;
use super::connection::Connection;
use super::connection::kept_alive;
use super::error::{RedisError, RedisErrorKind, convert};
use super::link::Link;
use super::links::Links;
use super::names::Names;
use super::permits::Listener;
use super::scripts::TimeSource;
use super::sentinel::Sentinels;
use super::settings::Settings;
use super::store::RedisStore;
use tower_throttle::clock::AnyClock;
use tower_throttle::store::KeySecret;

/// The time limit of an attempt to connect, unless another limit is set or the deadline of calls is longer.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

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
}

impl RedisStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self::with(url.into_connection_info().and_then(Servers::at).map_err(|error| convert(&error)))
    }

    pub(super) fn of_sentinels<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, master: &str) -> Self {
        let infos = urls.into_iter().map(|url| url.as_ref().into_connection_info());
        let sentinels =
            infos.collect::<Result<_, _>>().and_then(|infos| Sentinels::from_infos(infos, master));
        Self::with(sentinels.map(Servers::master).map_err(|error| convert(&error)))
    }

    pub(super) fn of_cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Self {
        let infos = urls.into_iter().map(|url| url.as_ref().into_connection_info());
        Self::with(infos.collect::<Result<_, _>>().map(Servers::Cluster).map_err(|error| convert(&error)))
    }

    fn with(servers: Result<Servers, RedisError>) -> Self {
        Self {
            servers,
            deadline: Duration::from_millis(50),
            connect_timeout: None,
            settings: Settings::default(),
        }
    }

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
        match self.connection()? {
            Opened::One(client) => {
                client.connect().await?;
                let store = self.finish(Box::new(client));
                let key = store.settings.key_text("connect").of(&());
                store.links.any().verify(&key, Duration::from_secs(2)).await?;
                Ok(store)
            }
            Opened::Cluster(cluster) => {
                cluster.ask_for_slots().await?;
                let store = Self::store_with(Links::Cluster(Arc::clone(&cluster)), self.settings);
                cluster.verify(&store.settings.key_text("connect")).await?;
                Ok(store)
            }
        }
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
        Ok(match self.connection()? {
            Opened::One(client) => self.finish(Box::new(client)),
            Opened::Cluster(cluster) => Self::store_with(Links::Cluster(cluster), self.settings),
        })
    }

    fn connection(&self) -> Result<Opened, RedisError> {
        let timeout = self.connect_timeout.unwrap_or_else(|| self.deadline.max(CONNECT_TIMEOUT));
        Ok(match self.servers.as_ref().map_err(Clone::clone)? {
            Servers::One(server) => Opened::One(Client::new((**server).clone(), timeout)),
            Servers::Cluster(infos) => {
                Opened::Cluster(Arc::new(Cluster::new(infos.clone(), timeout, self.deadline)?))
            }
        })
    }

    fn finish(self, connection: Box<dyn Connection>) -> RedisStore {
        Self::store(connection, self.deadline, TimeSource::Server, self.settings)
    }

    pub(super) fn store(
        connection: Box<dyn Connection>,
        deadline: Duration,
        source: TimeSource,
        settings: Settings,
    ) -> RedisStore {
        Self::store_with(
            Links::One(Link::new(connection, AnyClock::default(), deadline, source).into()),
            settings,
        )
    }

    fn store_with(links: Links, settings: Settings) -> RedisStore {
        RedisStore { links, settings, names: Names::default(), listener: Listener::new() }
    }
}

impl Servers {
    fn at(info: ConnectionInfo) -> RedisResult<Self> {
        let client = ::redis::Client::open(kept_alive(info))?;
        Ok(Self::One(Server::At(client).into()))
    }

    fn master(sentinels: Sentinels) -> Self {
        Self::One(Server::Master(sentinels).into())
    }
}

/// The connection to the server, or the cluster.
enum Opened {
    One(Client),
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password, so it is not shown.
        f.debug_struct("RedisStoreBuilder").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
