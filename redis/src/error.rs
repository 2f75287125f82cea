use std::error::Error;
use std::fmt;
use std::sync::Arc;

use ::redis::ErrorKind;
use tokio::runtime::Handle;

/// The error of a [`RedisStore`](super::RedisStore) that could not be set up, or that could not decide a call.
///
/// The message of the error says what to change, why and, if the store could not connect, which server the error is
/// about. It has no part of a password. By default, a layer that gets this error rejects the request with HTTP status
/// 503, or with gRPC `UNAVAILABLE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisError {
    kind: RedisErrorKind,
    detail: Arc<str>,
    /// What to change, if it is not what errors of this kind usually need.
    advice: Option<&'static str>,
}

/// The kind of a [`RedisError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedisErrorKind {
    /// The URL, or another setting of the store, is wrong. Or the server is a sentinel, no sentinel, or no node of a
    /// cluster, although the store was created for one.
    Config,
    /// The name of a limiter is empty, or another limiter with the same name has another algorithm or quota.
    Name,
    /// The states or the queue of this algorithm, as it is configured, cannot be kept in Redis. In joined layers, a
    /// call gets this error if it would have to wait in a queue of the process.
    Algorithm,
    /// No reply came before the deadline of the call. The call is charged if the server has executed it before that
    /// deadline. A call for a [permit](super::RedisPermits) also gets this error if its place in the queue has expired,
    /// or if its permit was lost before the call received it.
    Late,
    /// There is no connection, for example because the server accepts no more clients, or the connection ended when the
    /// call may have been sent already. In the second case, the call may be charged.
    Unreachable,
    /// Earlier calls failed, so this call was not sent. After a pause of at most 400 ms since the last failure, the
    /// next call is sent to try the server again.
    Open,
    /// The value of the key is not a state of this limiter. It was written by another program, or by a newer release of
    /// this crate with another format, in which case the text says so. The value is not changed.
    Foreign,
    /// The server accepts no writes: it is a replica (`READONLY`).
    ReadOnly,
    /// The server accepts no writes, because too few replicas are connected to it (`NOREPLICAS`, see
    /// `min-replicas-to-write`). It may be a master that was cut off, or that another server has replaced.
    NoReplicas,
    /// The server is out of memory (`OOM`), or cannot write its snapshot (`MISCONF`).
    OutOfMemory,
    /// The server is busy with a script that takes long (`BUSY`).
    Busy,
    /// The server is starting (`LOADING`), or has no master (`MASTERDOWN`, `CLUSTERDOWN`), or no node of the cluster
    /// has slots.
    Loading,
    /// The user or the password is wrong (`NOAUTH`, `WRONGPASS`).
    Auth,
    /// The Redis user lacks the permission to run a command of the store, or to use the key (`NOPERM`), or the command
    /// was renamed (`rename-command`).
    Permission,
    /// Another node of a cluster has the key (`MOVED`, `ASK`). Either the store was not created with
    /// [`cluster`](super::RedisStore::cluster), or the store could not use the address in the reply.
    Moved,
    /// No node of the cluster has the slot of the key (`CLUSTERDOWN Hash slot not served`). Calls for keys in other
    /// slots are not affected.
    Unserved,
    /// The call was made outside a tokio runtime, or the runtime of the call has ended.
    NoRuntime,
    /// Another error reply, or an unexpected reply, of the server.
    Server,
}

impl RedisError {
    pub(crate) fn new(kind: RedisErrorKind, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: detail.into(), advice: None }
    }

    /// Adds which server the error is about, unless the error says it already.
    pub(super) fn at(mut self, server: &str) -> Self {
        if !self.detail.starts_with(server) {
            let end = if self.detail.is_empty() { "" } else { ": " };
            self.detail = format!("{server}{end}{}", self.detail).into();
        }
        self
    }

    /// Replaces the advice of the kind, unless `advice` is `None`.
    pub(super) fn with_advice(mut self, advice: Option<&'static str>) -> Self {
        self.advice = advice.or(self.advice);
        self
    }

    /// Adds a text to the detail.
    pub(super) fn and(mut self, more: &str) -> Self {
        self.detail = format!("{}{more}", self.detail).into();
        self
    }

    /// Returns the runtime of the caller, or an error if there is none.
    pub(super) fn current_runtime() -> Result<Handle, Self> {
        Handle::try_current().map_err(|error| Self::new(RedisErrorKind::NoRuntime, error.to_string()))
    }

    /// Converts the text of an error reply of the server, such as `OOM command not allowed`.
    pub(crate) fn from_reply(text: &str) -> Self {
        let text = without_arguments(text);
        let mut words = text.split(' ');
        let code = words.next().and_then(RedisErrorKind::of_code);
        // Before Redis 7, the error of a command in a script is inside the text of another error: `ERR Error running
        // script (call to f_1f3c..): @user_script:9: -OOM command not allowed ..`.
        let inner = || {
            if text.contains("rror running script") {
                words.find_map(|word| RedisErrorKind::of_code(word.trim_start_matches('-')))
            } else {
                None
            }
        };
        let kind = match code.or_else(inner) {
            // The error is about the slot of the key, and not about the node that replied.
            _ if text.starts_with("CLUSTERDOWN Hash slot not served") => RedisErrorKind::Unserved,
            Some(kind) => kind,
            _ if text.contains("max number of clients") => RedisErrorKind::Unreachable,
            // A script fails with the second text if the Redis user may not run one of its commands, and with the third
            // in Redis 7.2 and later, and in Valkey.
            _ if ["NOPERM", "The user executing the script", "ACL failure in script"]
                .iter()
                .any(|part| text.contains(part)) =>
            {
                RedisErrorKind::Permission
            }
            // The command was renamed, by which all users lack it. Servers that are no sentinels do not know SENTINEL.
            _ if text.contains("nknown command") || text.contains("nknown Redis command") => {
                let is_sentinel = text.contains("SENTINEL");
                if is_sentinel { RedisErrorKind::Server } else { RedisErrorKind::Permission }
            }
            _ => RedisErrorKind::Server,
        };
        Self::new(kind, text)
    }

    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> RedisErrorKind {
        self.kind
    }

    /// Returns the text of the server's reply, or another detail.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }
}

impl RedisErrorKind {
    /// Returns the kind of an error reply that begins with `code`, or `None` if the code has no kind of its own.
    fn of_code(code: &str) -> Option<Self> {
        Some(match code {
            "READONLY" => Self::ReadOnly,
            "NOREPLICAS" => Self::NoReplicas,
            "OOM" | "MISCONF" => Self::OutOfMemory,
            "BUSY" => Self::Busy,
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => Self::Loading,
            "NOAUTH" | "WRONGPASS" => Self::Auth,
            "NOPERM" => Self::Permission,
            "WRONGTYPE" => Self::Foreign,
            "MOVED" | "ASK" => Self::Moved,
            _ => return None,
        })
    }

    /// Returns whether errors of this kind suggest that the server cannot decide any call. A permission may be missing
    /// for one limiter only.
    pub(super) const fn is_outage(self) -> bool {
        matches!(
            self,
            Self::ReadOnly
                | Self::NoReplicas
                | Self::OutOfMemory
                | Self::Busy
                | Self::Loading
                | Self::Auth
                | Self::Late
                | Self::Unreachable
        )
    }

    const fn advice(self) -> &'static str {
        match self {
            Self::Config => "the settings of the Redis store are wrong",
            Self::Name => "the limiter needs a name of its own",
            Self::Algorithm => "the algorithm cannot be used with Redis",
            Self::Late => {
                "Redis did not answer in time: set a longer `deadline`, or find out what delays the server"
            }
            Self::Unreachable => "Redis cannot be reached: check the address and that the server runs",
            Self::Open => "Redis failed a moment ago, and is tried again soon",
            Self::Foreign => {
                "the value of the key is not a state of this limiter: set a `prefix`, or delete the key"
            }
            Self::ReadOnly => "Redis only reads: connect to the master, not to a replica",
            Self::NoReplicas => {
                "Redis has too few replicas to write: check them and `min-replicas-to-write`, or connect to the \
                 present master by `RedisStore::sentinel`"
            }
            Self::OutOfMemory => "Redis cannot write: raise `maxmemory`, or check its disk",
            Self::Busy => "Redis executes a script that takes long: find it, or `SCRIPT KILL`",
            Self::Loading => "Redis is not ready",
            Self::Auth => {
                "Redis does not know the user or the password: check those in the URL, such as \
                 `redis://user:password@host`, in which special characters are percent-encoded"
            }
            Self::Permission => {
                "the Redis user lacks a permission, or a command was renamed: allow EVALSHA, EVAL, TIME, GET, PSETEX \
                 and DEL on the keys of the prefix; with leases or `Concurrency` also EXISTS, HGET, HMGET, HGETALL, \
                 HSET, HDEL and PEXPIRE; with `Concurrency` also PUBLISH and SUBSCRIBE on the channels \
                 `throttle:permits:*` (or another prefix); in a cluster also CLUSTER SLOTS and ASKING; with sentinels \
                 also ROLE, and SENTINEL MASTER and SENTINEL GET-MASTER-ADDR-BY-NAME there; with a database other than \
                 0 also SELECT"
            }
            Self::Moved => "the server is a node of a cluster: create the store with `RedisStore::cluster`",
            Self::Unserved => "no node of the cluster has the slot of the key: assign the slot to a master",
            Self::NoRuntime => "the call needs a tokio runtime that has its timer and I/O enabled",
            Self::Server => "Redis replied with an error",
        }
    }
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advice.unwrap_or(self.kind.advice()))?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " ({})", self.detail) }
    }
}

impl Error for RedisError {}

/// Returns an error text of the server without the arguments of a command that the server does not know, which may
/// contain a password, or keys of callers.
fn without_arguments(text: &str) -> &str {
    text.split_once(", with args beginning with").map_or(text, |(before, _)| before)
}

/// Converts an error of the `redis` crate.
pub(super) fn convert(error: &::redis::RedisError) -> RedisError {
    // The crate adds the name of its own kind to some texts, such as `no connection - Io: within 250ms`.
    let text = error.to_string().replacen(&format!(" - {:?}", error.kind()), "", 1);
    let text = without_arguments(&text);
    match error.kind() {
        ErrorKind::AuthenticationFailed => RedisError::new(RedisErrorKind::Auth, text),
        ErrorKind::InvalidClientConfig | ErrorKind::MasterNameNotFoundBySentinel => {
            RedisError::new(RedisErrorKind::Config, text)
        }
        ErrorKind::Server(_) if text.starts_with("Redis server refused to switch database") => {
            of_select(error.detail().unwrap_or_default())
        }
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let (code, detail) = (error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
            RedisError::from_reply(format!("{code} {detail}").trim_end())
        }
        _ if error.is_io_error() || error.is_unrecoverable_error() => {
            RedisError::new(RedisErrorKind::Unreachable, text)
        }
        _ => RedisError::new(RedisErrorKind::Server, text),
    }
}

/// Returns the error of a reply to `SELECT`, of which the crate keeps only the text after the code.
fn of_select(detail: &str) -> RedisError {
    let code = match detail {
        _ if detail.starts_with("Authentication required") => "NOAUTH",
        _ if detail.contains("no permissions to run") => "NOPERM",
        _ => {
            let text = format!("the server does not have the database of the URL: {detail}");
            return RedisError::new(RedisErrorKind::Config, text);
        }
    };
    RedisError::from_reply(&format!("{code} {detail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_server_have_names() {
        for (text, kind) in [
            ("READONLY You can't write against a read only replica.", RedisErrorKind::ReadOnly),
            ("NOREPLICAS Not enough good replicas to write.", RedisErrorKind::NoReplicas),
            ("OOM command not allowed when used memory > 'maxmemory'.", RedisErrorKind::OutOfMemory),
            ("BUSY Redis is busy running a script.", RedisErrorKind::Busy),
            ("LOADING Redis is loading the dataset in memory", RedisErrorKind::Loading),
            ("NOAUTH Authentication required.", RedisErrorKind::Auth),
            ("NOPERM this user has no permissions to run the 'evalsha' command", RedisErrorKind::Permission),
            (
                "ERR The user executing the script can't run this command or subcommand",
                RedisErrorKind::Permission,
            ),
            // The text of Redis 7.2 and later, and of Valkey.
            (
                "ERR ACL failure in script: User app has no permissions to run the 'hset' command",
                RedisErrorKind::Permission,
            ),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", RedisErrorKind::Foreign),
            ("ERR max number of clients reached", RedisErrorKind::Unreachable),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'aaaa' '0' ",
                RedisErrorKind::Permission,
            ),
            (
                "ERR Unknown Redis command called from script script: 9a56, on @user_script:3.",
                RedisErrorKind::Permission,
            ),
            ("ERR Unknown command called from script script: on @user_script:3.", RedisErrorKind::Permission),
            (
                "ERR Error running script (call to f_1f3c): @user_script:3: @user_script: 3: Unknown Redis command \
                 called from Lua script",
                RedisErrorKind::Permission,
            ),
            ("ERR unknown command `SENTINEL`, with args beginning with: ", RedisErrorKind::Server),
            ("MOVED 3999 127.0.0.1:6381", RedisErrorKind::Moved),
            ("ASK 3999 127.0.0.1:6381", RedisErrorKind::Moved),
            ("CLUSTERDOWN Hash slot not served", RedisErrorKind::Unserved),
            ("CLUSTERDOWN The cluster is down", RedisErrorKind::Loading),
            // The text of Redis 6 and 5.
            (
                "ERR Error running script (call to f_1f3c): @user_script:9: @user_script: 9: -OOM command not allowed",
                RedisErrorKind::OutOfMemory,
            ),
            (
                "ERR Error running script (call to f_1f3c): @user_script:9: -READONLY You can't write",
                RedisErrorKind::ReadOnly,
            ),
            (
                "ERR Error running script (call to f_1f3c): @user_script:9: -NOREPLICAS Not enough good replicas",
                RedisErrorKind::NoReplicas,
            ),
            (
                "ERR Error running script (call to f_1f3c): @user_script:6: -WRONGTYPE Operation against a key",
                RedisErrorKind::Foreign,
            ),
            (
                "ERR Error running script (call to f_1f3c): @user_script:6: WRONGTYPE Operation against a key",
                RedisErrorKind::Foreign,
            ),
            (
                "ERR Error running script (call to f_1f3c): @user_script:1: attempt to index a nil value",
                RedisErrorKind::Server,
            ),
            ("ERR the word OOM in another error", RedisErrorKind::Server),
            ("", RedisErrorKind::Server),
        ] {
            let error = RedisError::from_reply(text);
            assert_eq!(error.kind(), kind, "{text}");
            assert!(error.to_string().contains(without_arguments(text)), "{error}");
        }
    }

    #[test]
    fn the_arguments_of_an_unknown_command_are_in_no_error() {
        let line = "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'S3cret' ";
        let refused = (ErrorKind::Io, "the server refused the connection", format!("ERR {line}")).into();
        for error in [RedisError::from_reply(&format!("ERR {line}")), convert(&refused)] {
            let text = error.to_string();
            assert!(text.ends_with("ERR unknown command 'HELLO')"), "{text}");
        }
    }
}
