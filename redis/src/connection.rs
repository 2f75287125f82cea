//! The trait of a connection to a server, which sends a command and returns the reply. Tests implement the trait to
//! simulate faults.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(test, feature = "__in-process"))]
use ::redis::Arg;
use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::socket2::TcpKeepalive;
use ::redis::{Cmd, ConnectionAddr, ConnectionInfo, RedisResult, Value};

use super::error::RedisError;

/// The time after which the kernel tries an idle connection. Firewalls keep an idle connection for a minute or longer.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The pause before the kernel tries an idle connection again.
#[cfg(target_os = "linux")]
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(10);
/// The time without a sign of the other side after which the kernel ends a connection, if something was sent. So an
/// idle connection ends after it was tried twice.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(45);

/// A connection to one server. It sends the commands of several callers one after another, without waiting for the
/// replies in between.
pub(super) trait Connection: Send + Sync + 'static {
    /// Sends a command, and returns its reply. If there is no connection, the future waits for one. The caller must
    /// bound the time for which it waits.
    fn call(&self, command: Command) -> BoxFuture<Result<Reply, CallError>>;

    /// Returns why there is no connection. Returns `None` if there is a connection, or if no attempt to connect has
    /// failed yet.
    fn problem(&self) -> Option<RedisError>;

    /// Returns the name of the server of the present connection, or of the last connection.
    fn server(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns the number of the present connection, or of the last connection if there is none now.
    fn number(&self) -> u64;

    /// Drops the connection with this number, so that the next call is sent on a new connection. Does nothing if
    /// another connection has replaced it.
    fn renew(&self, number: u64);

    /// Returns whether there was no reply for so long that the path to the server may be gone.
    fn is_silent(&self) -> bool {
        false
    }

    /// Subscribes to a channel, on a connection of its own to the server of the present connection, and passes each
    /// message to `on_message`. The future ends when one of the two connections ends. By default, there are no
    /// messages.
    fn listen(&self, _channel: String, _on_message: Box<dyn Fn(&str) + Send + Sync>) -> BoxFuture<Listened> {
        Box::pin(std::future::pending())
    }
}

/// Why no more messages arrive.
#[derive(Debug)]
pub(super) enum Listened {
    /// The present connection has ended, or there was none.
    Unconnected,
    /// The connection for messages has ended.
    Ended,
    Refused(RedisError),
}

/// A future whose type is erased.
pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A command: its name and its arguments.
#[derive(Clone)]
pub(super) struct Command {
    words: Cmd,
    /// `true` if the command is sent right after `ASKING`. A node of a cluster then executes the command even if the
    /// slot of the key is still being migrated to that node.
    is_asking: bool,
}

/// A reply that is not an error of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Text(Vec<u8>),
    /// A reply that no script of this crate returns.
    Other(String),
}

/// The reason why a call has no reply.
#[derive(Clone, Debug)]
pub(super) enum CallError {
    /// The server does not have the script.
    NoScript,
    Failed(RedisError),
    /// The reply on the connection with this number was an error.
    FailedOn(u64, RedisError),
    /// The connection with this number has ended.
    Ended(u64, RedisError),
}

impl Command {
    pub(super) fn new(is_asking: bool) -> Self {
        // This capacity is enough for the script of two limits.
        Self { words: Cmd::with_capacity(8, 320), is_asking }
    }

    pub(super) fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        self.words.arg(word.as_ref());
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.words.arg(number);
        self
    }

    /// Sends the command, right after `ASKING` if it says so, and returns the reply to the command.
    pub(super) async fn send(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        if !self.is_asking {
            return connection.send_packed_command(&self.words).await;
        }
        let mut pipeline = ::redis::pipe();
        pipeline.cmd("ASKING").add_command(self.words.clone());
        // A large future, which is seldom needed.
        let mut replies = Box::pin(connection.send_packed_commands(&pipeline, 1, 1)).await?;
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// Returns the words of the command, for servers in this process. Each byte becomes a character, because the
    /// numbers of a script are not text.
    #[cfg(any(test, feature = "__in-process"))]
    pub(super) fn words(&self) -> Vec<String> {
        let words = self.words.args_iter().map(|word| match word {
            Arg::Simple(word) => word_of(word),
            _ => unreachable!("this crate adds no cursor to a command"),
        });
        words.collect()
    }
}

/// Returns the bytes of a word whose characters stand for one byte each.
#[cfg(any(test, feature = "__in-process"))]
pub(super) fn bytes_of(word: &str) -> Vec<u8> {
    word.chars().map(|byte| byte as u8).collect()
}

/// Returns the word whose characters stand for these bytes.
#[cfg(any(test, feature = "__in-process"))]
pub(super) fn word_of(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// Returns the settings with which this crate connects: `info` with a keepalive, and on Linux with a user timeout, so
/// that the kernel notices a path that is gone. Settings that the user has made are kept. If the connection is to be
/// encrypted, rustls has a crypto provider afterwards.
pub(super) fn completed(info: ConnectionInfo) -> ConnectionInfo {
    #[cfg(feature = "tls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. })
        && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // If another thread installs one now, that one is used. Without this call, rustls would panic in an app that
        // builds it with two providers.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
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

/// Returns the settings of `like` for a server at another address, as [`completed`] returns them.
pub(super) fn at_address(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    completed(like.clone().set_addr(match like.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }))
}
