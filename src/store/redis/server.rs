//! The server to which a client connects.

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, RedisResult};

use super::sentinel::Sentinels;

/// The server to which a client connects.
#[derive(Clone, Debug)]
pub(super) enum Server {
    At(::redis::Client),
    /// The current master of a group of servers. The sentinels of the group say which server is the master.
    Master(Sentinels),
}

impl Server {
    /// Makes a connection.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        match self {
            Self::At(client) => client.get_multiplexed_async_connection_with_config(config).await,
            Self::Master(sentinels) => sentinels.connect(config).await,
        }
    }
}
