//! The connection as the store sees it: a command goes in, a reply comes out. Tests stage every fault here.

use std::future::Future;
use std::pin::Pin;

use super::error::RedisError;

/// A connection to one server, or to the nodes of a cluster. Commands of several callers are sent one after another without
/// waiting.
pub(super) trait Connection: Send + Sync + 'static {
    /// Sends a command, and returns its reply. Waits until there is a connection; the caller sets the deadline.
    fn call(&self, command: Command) -> Call;

    /// Returns why there is no connection, if there is none.
    fn problem(&self) -> Option<RedisError>;

    /// Returns the number of the present connection, or of the last one if there is none.
    fn number(&self) -> u64;

    /// Gives up the connection of that number, if it is the present one, so that the next call is sent on a new one.
    fn renew(&self, number: u64);
}

/// A pending [`Connection::call`].
pub(super) type Call = Pin<Box<dyn Future<Output = Result<Reply, CallError>> + Send>>;

/// The words of a command.
#[derive(Clone, Debug, Default)]
pub(super) struct Command {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    is_asking: bool,
}

/// A reply that is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Text(Vec<u8>),
    /// One that no script of this crate returns.
    Other(String),
}

/// Why there is no reply.
#[derive(Clone, Debug)]
pub(super) enum CallError {
    /// The server does not have the script.
    NoScript,
    Failed(RedisError),
}

impl Command {
    pub(super) fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        self.bytes.extend_from_slice(word.as_ref());
        self.ends.push(self.bytes.len());
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        use std::io::Write;
        // Writing to a vector cannot fail.
        let _ = write!(self.bytes, "{number}");
        self.ends.push(self.bytes.len());
        self
    }

    /// Sets whether it is sent right after `ASKING`: a node of a cluster then executes it for a slot that is on its way to it.
    pub(super) fn set_asking(&mut self, is_asking: bool) -> &mut Self {
        self.is_asking = is_asking;
        self
    }

    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    pub(super) fn words(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}
