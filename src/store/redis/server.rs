//! The server to which a client connects.

use ::redis::aio::{MultiplexedConnection, PubSub};
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
            Self::Master(sentinels) => Ok(sentinels.connect(config).await?.1),
        }
    }

    /// Subscribes to a channel, on a connection of its own.
    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<PubSub> {
        let mut subscription = match self {
            Self::At(client) => client.get_async_pubsub().await?,
            Self::Master(sentinels) => {
                let (client, _) = sentinels.connect(&AsyncConnectionConfig::new()).await?;
                client.get_async_pubsub().await?
            }
        };
        subscription.subscribe(channel).await?;
        Ok(subscription)
    }
}
