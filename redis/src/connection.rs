//! The trait of a connection to a server, which sends a command and returns the reply. Tests implement the trait to
//! simulate faults.

use std::future::Future;
use std::pin::Pin;

use ::redis::Cmd;

use super::error::RedisError;

/// A connection to one server. It sends the commands of several callers one after another, without waiting for the
/// replies in between.
pub(crate) trait Connection: Send + Sync + 'static {
    /// Sends a command, and returns its reply. If there is no connection, the future waits for one. The caller must
    /// bound the time for which it waits.
    fn call(&self, command: Command) -> Call;

    /// Returns why there is no connection. Returns `None` if there is a connection, or if no attempt to connect has
    /// failed yet.
    fn problem(&self) -> Option<RedisError>;

    /// Returns the number of the present connection, or of the last connection if there is none now.
    fn number(&self) -> u64;

    /// Drops the connection with this number, so that the next call is sent on a new connection. Does nothing if
    /// another connection has replaced it.
    fn renew(&self, number: u64);

    /// Returns whether there was no reply for so long that the path to the server may be gone.
    fn is_silent(&self) -> bool {
        false
    }

    /// Subscribes to a channel, on a connection of its own, and passes each message to `on_message`. The future ends
    /// when that connection ends, or if it cannot be made. By default, there are no messages.
    fn listen(&self, _channel: String, _on_message: OnMessage) -> Listening {
        Box::pin(std::future::pending())
    }
}

/// The receiver of messages.
pub(crate) type OnMessage = Box<dyn Fn(&str) + Send + Sync>;

/// A pending [`Connection::listen`].
pub(crate) type Listening = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A pending [`Connection::call`].
pub(crate) type Call = Pin<Box<dyn Future<Output = Result<Reply, CallError>> + Send>>;

/// A command: its name and its arguments.
#[derive(Clone)]
pub(crate) struct Command {
    pub(crate) words: Cmd,
    /// `true` if the command is sent right after `ASKING`. A node of a cluster then executes the command even if the
    /// slot of the key is still being migrated to that node.
    pub(crate) is_asking: bool,
}

/// A reply that is not an error of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(Vec<u8>),
    /// A reply that no script of this crate returns.
    Other(String),
}

/// The reason why a call has no reply.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// The server does not have the script.
    NoScript,
    Failed(RedisError),
    /// The reply on the connection with this number was an error.
    FailedOn(u64, RedisError),
    /// The connection with this number has ended.
    Ended(u64, RedisError),
}

impl Command {
    pub(crate) fn new(is_asking: bool) -> Self {
        // This capacity is enough for the script of two limits.
        Self { words: Cmd::with_capacity(8, 320), is_asking }
    }

    pub(crate) fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        self.words.arg(word.as_ref());
        self
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        self.words.arg(number);
        self
    }
}
