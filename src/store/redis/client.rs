//! A connection of the `redis` crate that reconnects.
//!
//! The crate's own connection manager stops after some attempts, and waits without bound while it connects. Here, a
//! task tries again as long as calls wait, and each call has its own deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::connection::{Call, CallError, Command, Connection, Reply};
use super::error::{RedisError, RedisErrorKind};

/// The time limit of an attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// The shortest and the longest pause between two attempts. The pause doubles after each attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

#[derive(Clone)]
pub(super) struct Client(Arc<Inner>);

struct Inner {
    client: ::redis::Client,
    current: watch::Sender<Current>,
    is_connecting: AtomicBool,
    problem: Mutex<Option<RedisError>>,
}

/// The present connection, if there is one. No two connections have the same number.
#[derive(Clone, Default)]
struct Current {
    number: u64,
    connection: Option<MultiplexedConnection>,
}

/// Clears `is_connecting` when the task ends, also if the runtime drops it.
struct Connecting(Arc<Inner>);

impl Client {
    pub(super) fn new(client: ::redis::Client) -> Self {
        let (current, _) = watch::channel(Current::default());
        Self(Arc::new(Inner {
            client,
            current,
            is_connecting: AtomicBool::new(false),
            problem: Mutex::new(None),
        }))
    }

    /// Makes one attempt to connect.
    pub(super) async fn connect(&self) -> Result<(), RedisError> {
        match self.0.attempt().await {
            Ok(()) => Ok(()),
            Err(error) => Err(convert(&error)),
        }
    }
}

impl Inner {
    async fn attempt(&self) -> Result<(), ::redis::RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let connection = match tokio::time::timeout(2 * CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => connected?,
            Err(_) => return Err((ErrorKind::Io, "no answer while connecting").into()),
        };
        self.current.send_modify(|current| {
            *current = Current { number: current.number + 1, connection: Some(connection) };
        });
        *self.lock_problem() = None;
        Ok(())
    }

    fn lock_problem(&self) -> std::sync::MutexGuard<'_, Option<RedisError>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task that connects, unless one is running. The task ends when no call waits for it any more.
    fn start_connecting(self: &Arc<Self>) -> Result<(), RedisError> {
        let runtime = Handle::try_current()
            .map_err(|error| RedisError::new(RedisErrorKind::NoRuntime, error.to_string()))?;
        if self.is_connecting.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let connecting = Connecting(Arc::clone(self));
        runtime.spawn(async move {
            let inner = &connecting.0;
            let mut pause = PAUSES.0;
            while inner.current.borrow().connection.is_none() {
                let Err(error) = inner.attempt().await else { break };
                *inner.lock_problem() = Some(convert(&error));
                if inner.current.receiver_count() == 0 {
                    break;
                }
                tokio::time::sleep(pause).await;
                pause = PAUSES.1.min(2 * pause);
            }
        });
        Ok(())
    }

    /// Drops the connection with this number, unless another connection has replaced it.
    fn discard(&self, number: u64) {
        self.current.send_if_modified(|current| {
            let is_this = current.number == number && current.connection.is_some();
            if is_this {
                current.connection = None;
            }
            is_this
        });
    }

    async fn call(self: Arc<Self>, command: Command) -> Result<Reply, CallError> {
        let current = self.current.borrow().clone();
        let current = match current.connection {
            Some(_) => current,
            None => {
                let mut changes = self.current.subscribe();
                self.start_connecting().map_err(CallError::Failed)?;
                loop {
                    let next = changes.borrow_and_update().clone();
                    if next.connection.is_some() {
                        break next;
                    }
                    // The task may have ended just before this call began to wait.
                    self.start_connecting().map_err(CallError::Failed)?;
                    let changed = tokio::time::timeout(PAUSES.1, changes.changed()).await;
                    if let Ok(Err(_)) = changed {
                        unreachable!("the sender lives in `self`");
                    }
                }
            }
        };
        let Some(mut connection) = current.connection else { unreachable!("it was waited for") };
        let mut cmd = Cmd::new();
        command.words().for_each(|word| {
            cmd.arg(word);
        });
        match connection.req_packed_command(&cmd).await.and_then(Value::extract_error) {
            Ok(Value::BulkString(text)) => Ok(Reply::Text(text)),
            Ok(other) => Ok(Reply::Other(format!("{other:?}"))),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                Err(CallError::NoScript)
            }
            Err(error) => {
                if error.is_io_error() || error.is_unrecoverable_error() {
                    self.discard(current.number);
                }
                Err(CallError::Failed(convert(&error)))
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.is_connecting.store(false, Ordering::Release);
    }
}

impl Connection for Client {
    fn call(&self, command: Command) -> Call {
        Box::pin(Arc::clone(&self.0).call(command))
    }

    fn problem(&self) -> Option<RedisError> {
        match self.0.current.borrow().connection {
            Some(_) => None,
            None => self.0.lock_problem().clone(),
        }
    }

    fn renew(&self) {
        let number = self.0.current.borrow().number;
        self.0.discard(number);
    }
}

/// Converts an error of the crate.
pub(super) fn convert(error: &::redis::RedisError) -> RedisError {
    match error.kind() {
        ErrorKind::AuthenticationFailed => RedisError::new(RedisErrorKind::Auth, error.to_string()),
        ErrorKind::InvalidClientConfig => RedisError::new(RedisErrorKind::Config, error.to_string()),
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let (code, detail) = (error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
            RedisError::from_reply(format!("{code} {detail}").trim_end())
        }
        _ if error.is_io_error() || error.is_unrecoverable_error() => {
            RedisError::new(RedisErrorKind::Unreachable, error.to_string())
        }
        _ => RedisError::new(RedisErrorKind::Server, error.to_string()),
    }
}
