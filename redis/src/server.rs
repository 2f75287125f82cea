//! The server to which a client connects.

use std::time::Duration;

use ::redis::aio::PubSub;
use ::redis::io::tcp::socket2::TcpKeepalive;
use ::redis::{AsyncConnectionConfig, ConnectionInfo, RedisResult};

use super::connected::Connected;
use super::sentinel::Sentinels;

/// The time after which the kernel tries an idle connection. Firewalls keep an idle connection for a minute or longer.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The pause before the kernel tries an idle connection again.
#[cfg(target_os = "linux")]
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(10);
/// The time without a sign of the other side after which the kernel ends a connection, if something was sent. So an
/// idle connection ends after it was tried twice.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(45);

/// The server to which a client connects.
#[derive(Clone, Debug)]
pub(super) enum Server {
    At(::redis::Client),
    /// The current master of a group of servers. The sentinels of the group say which server is the master.
    Master(Sentinels),
}

/// Returns `info` with a keepalive, and on Linux with a user timeout, so that the kernel notices a path that is gone.
/// Settings that the user has made are kept.
pub(super) fn kept_alive(info: ConnectionInfo) -> ConnectionInfo {
    let mut settings = info.tcp_settings().clone();
    if settings.keepalive().is_none() {
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
        #[cfg(target_os = "linux")]
        let keepalive = keepalive.with_interval(KEEPALIVE_AGAIN);
        settings = settings.set_keepalive(keepalive);
    }
    #[cfg(target_os = "linux")]
    if settings.user_timeout().is_none() {
        settings = settings.set_user_timeout(USER_TIMEOUT);
    }
    info.set_tcp_settings(settings)
}

impl Server {
    /// Makes a connection.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> RedisResult<Connected> {
        match self {
            Self::At(client) => Connected::open(client, config).await,
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
