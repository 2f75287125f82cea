//! The master of a group of servers that Redis Sentinel watches.
//!
//! After a failover, connections to the former master end, or calls on them fail. So it is enough to ask the sentinels
//! before each new connection, and no subscription to their events is needed.

use std::fmt;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value};
use tokio::task::JoinSet;

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

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Client>, name: &str, like: ConnectionInfo) -> Self {
        Self { sentinels, name: name.to_owned(), like }
    }

    /// Creates sentinels from their addresses. The master is reached with the settings of the first sentinel.
    pub(super) fn from_infos(infos: Vec<ConnectionInfo>, name: &str) -> RedisResult<Self> {
        let Some(like) = infos.first().cloned() else {
            return Err((ErrorKind::InvalidClientConfig, "the URL of at least one sentinel is needed").into());
        };
        // A sentinel has no databases.
        let without_database = |info: ConnectionInfo| {
            let settings = info.redis_settings().clone().set_db(0);
            Client::open(info.set_redis_settings(settings))
        };
        let sentinels = infos.into_iter().map(without_database).collect::<RedisResult<_>>()?;
        Ok(Self::new(sentinels, name, like))
    }

    /// Connects to the present master.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let info = self.master(config).await?.apply_to(&self.like);
        let mut connection = Client::open(info)?.get_multiplexed_async_connection_with_config(config).await?;
        // The sentinels name the former master until they have agreed on a new one.
        let role: Value = ::redis::cmd("ROLE").query_async(&mut connection).await?;
        match &role {
            Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"master".to_vec())) => {
                Ok(connection)
            }
            _ => Err((ErrorKind::Io, "the server that the sentinels name is not a master").into()),
        }
    }

    /// Asks all sentinels at once for the address of the master, and returns the first address that arrives. So a
    /// sentinel that does not answer delays nothing.
    async fn master(&self, config: &AsyncConnectionConfig) -> RedisResult<Address> {
        let mut replies = JoinSet::new();
        for sentinel in &self.sentinels {
            replies.spawn(ask(sentinel.clone(), self.name.clone(), config.clone()));
        }
        let mut failed = None;
        while let Some(reply) = replies.join_next().await {
            match reply {
                Ok(Ok(Some(address))) => return Ok(address),
                Ok(Ok(None)) => failed = Some(self.unknown_name()),
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| (ErrorKind::Io, "the runtime of the attempt has ended").into()))
    }

    fn unknown_name(&self) -> RedisError {
        let detail = format!("no master is called {:?}", self.name);
        (ErrorKind::InvalidClientConfig, "the sentinels do not know the name", detail).into()
    }
}

async fn ask(sentinel: Client, name: String, config: AsyncConnectionConfig) -> RedisResult<Option<Address>> {
    let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
    let mut question = ::redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(name);
    let address: Option<(String, u16)> = question.query_async(&mut connection).await?;
    Ok(address.map(|(host, port)| Address { host, port }))
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may have a password.
        f.debug_struct("Sentinels").field("name", &self.name).finish_non_exhaustive()
    }
}
