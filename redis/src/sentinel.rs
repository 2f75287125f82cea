//! The master of a group of servers that Redis Sentinel watches.
//!
//! After a failover, connections to the former master end, or calls on them fail. So it is enough to ask the sentinels
//! before each new connection, and no subscription to their events is needed.

use std::fmt;

use ::redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value};
use tokio::task::JoinSet;

use super::connected::Connected;
use super::slots::Address;

/// The sentinels of a group.
#[derive(Clone)]
pub(super) struct Sentinels {
    sentinels: Vec<Client>,
    /// The name under which the sentinels know the master.
    name: String,
    /// The settings with which the master is reached, apart from its address.
    like: ConnectionInfo,
}

/// A step of an attempt to connect.
enum Step {
    /// A sentinel has named the master.
    Named(Address),
    Connected(Box<Client>, Connected),
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
            Client::open(info.set_redis_settings(settings))
        };
        let sentinels = infos.into_iter().map(without_database).collect::<RedisResult<_>>()?;
        Self::new(sentinels, name, like)
    }

    /// Connects to the present master. Asks all sentinels at once, and connects to each server that one of them names.
    /// Returns the first connection to a server that is a master, and the client of that server. So neither a sentinel
    /// that does not answer nor a sentinel that names the former master delays the connection.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> RedisResult<(Client, Connected)> {
        let mut steps = JoinSet::new();
        for sentinel in &self.sentinels {
            steps.spawn(ask(sentinel.clone(), self.name.clone(), config.clone()));
        }
        let (mut named, mut failed) = (Vec::new(), None);
        while let Some(step) = steps.join_next().await {
            match step {
                Ok(Ok(Step::Connected(client, connection))) => return Ok((*client, connection)),
                Ok(Ok(Step::Named(address))) if !named.contains(&address) => {
                    steps.spawn(connect_to_master(
                        Client::open(address.apply_to(&self.like))?,
                        config.clone(),
                    ));
                    named.push(address);
                }
                Ok(Ok(Step::Named(_))) | Err(_) => {}
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
async fn ask(sentinel: Client, name: String, config: AsyncConnectionConfig) -> RedisResult<Step> {
    let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
    let mut question = ::redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(&name);
    match question.query_async(&mut connection).await? {
        Some((host, port)) => Ok(Step::Named(Address { host, port })),
        None => {
            let detail = format!("no master is called {name:?}");
            Err((ErrorKind::InvalidClientConfig, "the sentinels do not know the name", detail).into())
        }
    }
}

/// Connects to a server. Returns an error if the server is not a master, since sentinels name the former master until
/// they have agreed on a new one.
async fn connect_to_master(server: Client, config: AsyncConnectionConfig) -> RedisResult<Step> {
    let mut connected = Connected::open(&server, &config).await?;
    let role: Value = ::redis::cmd("ROLE").query_async(&mut connected.connection).await?;
    match &role {
        Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"master".to_vec())) => {
            Ok(Step::Connected(server.into(), connected))
        }
        _ => Err((ErrorKind::Io, "the server that the sentinels name is not a master").into()),
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may have a password.
        f.debug_struct("Sentinels").field("name", &self.name).finish_non_exhaustive()
    }
}
