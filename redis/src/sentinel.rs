//! The master of a group of servers that Redis Sentinel watches.
//!
//! After a failover, connections to the former master end, or calls on them fail. So it is enough to ask the sentinels
//! before each new connection, and no subscription to their events is needed.

use std::fmt;
use std::future::Future;

use ::redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError, RedisResult};
use tokio::task::JoinSet;

use super::connection::{at_address, completed};

/// The sentinels of a group.
#[derive(Clone)]
pub(super) struct Sentinels {
    sentinels: Vec<Client>,
    /// The name under which the sentinels know the master.
    name: String,
    /// The settings with which the master is reached, apart from its address.
    like: ConnectionInfo,
}

/// A step of an attempt to connect to the master.
enum Progress<C> {
    /// A sentinel has named the host and the port of the master.
    Named(String, u16),
    Connected(C),
}

impl Sentinels {
    /// Creates sentinels from their clients. The master is reached with the settings of `like`, apart from the address.
    pub(super) fn new(sentinels: Vec<Client>, name: &str, like: ConnectionInfo) -> RedisResult<Self> {
        if sentinels.is_empty() {
            return Err(no_sentinels());
        }
        Ok(Self { sentinels, name: name.to_owned(), like })
    }

    /// Creates sentinels from their addresses. The master is reached with the settings of the first sentinel.
    pub(super) fn from_infos(infos: Vec<ConnectionInfo>, name: &str) -> RedisResult<Self> {
        let like = infos.first().cloned().ok_or_else(no_sentinels)?;
        // A sentinel has no databases.
        let without_database = |info: ConnectionInfo| {
            let settings = info.redis_settings().clone().set_db(0);
            Client::open(completed(info.set_redis_settings(settings)))
        };
        let sentinels = infos.into_iter().map(without_database).collect::<RedisResult<_>>()?;
        Self::new(sentinels, name, like)
    }

    /// Connects to the present master. Asks all sentinels at once, and connects to each server that one of them names,
    /// by `connect`, which fails if the server is not a master. Returns the first connection. So neither a sentinel
    /// that does not answer nor a sentinel that names the former master delays the connection.
    pub(super) async fn connect<C, F>(
        &self,
        config: &AsyncConnectionConfig,
        connect: fn(Client, AsyncConnectionConfig) -> F,
    ) -> RedisResult<C>
    where
        C: Send + 'static,
        F: Future<Output = RedisResult<C>> + Send + 'static,
    {
        let mut steps = JoinSet::new();
        for sentinel in &self.sentinels {
            steps.spawn(ask(sentinel.clone(), self.name.clone(), config.clone()));
        }
        let (mut named, mut failed) = (Vec::new(), None);
        while let Some(step) = steps.join_next().await {
            match step {
                Ok(Ok(Progress::Connected(connection))) => return Ok(connection),
                Ok(Ok(Progress::Named(host, port))) if !named.contains(&(host.clone(), port)) => {
                    let server = Client::open(at_address(&self.like, host.clone(), port))?;
                    let connected = connect(server, config.clone());
                    steps.spawn(async move { connected.await.map(Progress::Connected) });
                    named.push((host, port));
                }
                Ok(Ok(Progress::Named(..))) | Err(_) => {}
                // The user can correct a wrong name, so this error is returned rather than another.
                Ok(Err(error)) if error.kind() == ErrorKind::InvalidClientConfig => failed = Some(error),
                Ok(Err(error)) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| (ErrorKind::Io, "the runtime of the attempt has ended").into()))
    }
}

fn no_sentinels() -> RedisError {
    (ErrorKind::InvalidClientConfig, "at least one sentinel is needed").into()
}

/// Asks a sentinel for the address of the master.
async fn ask<C>(sentinel: Client, name: String, config: AsyncConnectionConfig) -> RedisResult<Progress<C>> {
    let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
    let mut question = ::redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(&name);
    match question.query_async(&mut connection).await? {
        Some((host, port)) => Ok(Progress::Named(host, port)),
        None => {
            let detail = format!("no master is called {name:?}");
            Err((ErrorKind::InvalidClientConfig, "the sentinels do not know the name", detail).into())
        }
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may have a password.
        f.debug_struct("Sentinels").field("name", &self.name).finish_non_exhaustive()
    }
}
