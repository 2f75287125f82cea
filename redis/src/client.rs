//! A connection of the `redis` crate that reconnects.
//!
//! The connection manager of the `redis` crate gives up after some attempts to connect, and a call waits without bound
//! while the manager connects. Here, a task tries to connect as long as calls wait for a connection, and each call has
//! its own deadline.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::{AsyncConnectionConfig, ErrorKind, ServerErrorKind, Value};
use futures_core::Stream;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::connected::Connected;
use super::connection::{Call, CallError, Command, Connection, Listening, OnMessage, Reply};
use super::error::{RedisError, RedisErrorKind, convert};
use super::server::Server;
use tower_throttle::clock::{AnyClock, Nanos};

/// The first pause between two attempts to connect, and the maximum pause. The pause doubles after each attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

/// The number of times that a command is sent again, because a server may accept connections only to close them.
const MAX_UNSENT: u32 = 3;

#[derive(Clone)]
pub(super) struct Client(Arc<Inner>);

struct Inner {
    server: Server,
    /// The time limit of an attempt to connect.
    timeout: Duration,
    clock: AnyClock,
    current: watch::Sender<Current>,
    connecting: Mutex<Connecting>,
    problem: Mutex<Option<RedisError>>,
}

/// The present connection, if there is one. Each connection has a number of its own.
#[derive(Clone, Default)]
struct Current {
    number: u64,
    connection: Option<Connected>,
}

/// The task that connects, if there is one.
#[derive(Debug, Default)]
struct Connecting {
    task: u64,
    /// The time after which the task counts as abandoned, because its runtime is not driven. `None` if there is no
    /// task.
    until: Option<Nanos>,
}

/// A guard in the task that connects. Dropping the guard records that the task has ended, even if the runtime drops the
/// task.
struct ConnectTask {
    inner: Arc<Inner>,
    number: u64,
}

impl Client {
    pub(super) fn new(server: Server, timeout: Duration) -> Self {
        let (current, _) = watch::channel(Current::default());
        Self(Arc::new(Inner {
            server,
            timeout,
            clock: AnyClock::default(),
            current,
            connecting: Mutex::default(),
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

    /// Returns the server's reply to `CLUSTER SLOTS`, which says which nodes have which slots. Waits until there is a
    /// connection.
    pub(super) async fn slots(&self) -> Result<Value, RedisError> {
        let mut command = Command::new(false);
        command.word("CLUSTER").word("SLOTS");
        self.0.send(&command).await.map_err(|error| match error {
            CallError::Failed(error) | CallError::FailedOn(_, error) | CallError::Ended(_, error) => error,
            CallError::NoScript => {
                RedisError::new(RedisErrorKind::Server, "NOSCRIPT in reply to CLUSTER SLOTS")
            }
        })
    }
}

/// The maximum number of commands that wait until the connection sends them.
const PIPELINE: usize = 1 << 16;

impl Inner {
    async fn attempt(&self) -> Result<(), ::redis::RedisError> {
        // Calls that are not polled keep their places in the pipeline. So the pipeline is long. Otherwise a task that
        // begins many calls and does not poll them would delay all other calls.
        let config = AsyncConnectionConfig::new()
            .set_pipeline_buffer_size(PIPELINE)
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let connection = match tokio::time::timeout(self.timeout, self.server.connect(&config)).await {
            Ok(connected) => connected?,
            Err(_) => {
                let detail = format!("within {:?}", self.timeout);
                return Err((ErrorKind::Io, "no connection, see `connect_timeout`", detail).into());
            }
        };
        self.current.send_modify(|current| {
            *current = Current { number: current.number + 1, connection: Some(connection) };
        });
        *self.lock_problem() = None;
        Ok(())
    }

    fn lock_problem(&self) -> MutexGuard<'_, Option<RedisError>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_connecting(&self) -> MutexGuard<'_, Connecting> {
        self.connecting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time at which a task that begins an attempt now will count as abandoned. That time is later by twice
    /// the sum of the time limit of an attempt and the maximum pause.
    fn end_of_attempt(&self) -> Nanos {
        let attempt = Nanos::from(self.timeout.saturating_add(PAUSES.1)).0;
        self.clock.now().saturating_add(attempt.saturating_mul(2))
    }

    /// Starts the task that connects, unless it is running. The task ends when there is a connection, or when no call
    /// waits for a connection any more.
    fn start_connecting(self: &Arc<Self>) -> Result<(), RedisError> {
        let runtime = Handle::try_current()
            .map_err(|error| RedisError::new(RedisErrorKind::NoRuntime, error.to_string()))?;
        let mut connecting = self.lock_connecting();
        if connecting.until.is_some_and(|until| self.clock.now() <= until) {
            return Ok(());
        }
        connecting.task += 1;
        connecting.until = Some(self.end_of_attempt());
        let task = ConnectTask { inner: Arc::clone(self), number: connecting.task };
        drop(connecting);
        runtime.spawn(async move {
            let inner = &task.inner;
            let mut pause = PAUSES.0;
            while inner.current.borrow().connection.is_none() && task.goes_on() {
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

    /// Drops the connection with this number, unless it was dropped before.
    fn discard(&self, number: u64) {
        self.current.send_if_modified(|current| {
            let is_this = current.number == number && current.connection.is_some();
            if is_this {
                current.connection = None;
            }
            is_this
        });
    }

    /// Returns a connection that is not known to have ended, and its number. Waits until there is one.
    async fn connected(self: &Arc<Self>) -> Result<(u64, Connected), RedisError> {
        loop {
            let Current { number, connection } = self.current.borrow().clone();
            match connection {
                Some(last) if !last.has_ended() => return Ok((number, last)),
                Some(_) => self.discard(number),
                None => self.wait_for_connection().await?,
            }
        }
    }

    async fn wait_for_connection(self: &Arc<Self>) -> Result<(), RedisError> {
        let mut changes = self.current.subscribe();
        while changes.borrow_and_update().connection.is_none() {
            // The task may have ended just before this call began to wait.
            self.start_connecting()?;
            let changed = tokio::time::timeout(PAUSES.1, changes.changed()).await;
            if let Ok(Err(_)) = changed {
                unreachable!("the sender lives in `self`");
            }
        }
        Ok(())
    }

    /// Sends a command, and returns the reply. If the connection has ended before the command was sent, sends the
    /// command on another connection.
    async fn send(self: &Arc<Self>, command: &Command) -> Result<Value, CallError> {
        let mut unsent = 0;
        loop {
            let (number, mut connected) = self.connected().await.map_err(CallError::Failed)?;
            let before = connected.sent();
            let replied = connected.send(command).await;
            let error = match replied.and_then(Value::extract_error) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
                return Err(CallError::NoScript);
            }
            if !error.is_io_error() && !error.is_unrecoverable_error() {
                return Err(CallError::FailedOn(number, convert(&error)));
            }
            self.discard(number);
            if !connected.has_sent_nothing_since(before) || unsent == MAX_UNSENT {
                return Err(CallError::Ended(number, convert(&error)));
            }
            unsent += 1;
        }
    }

    async fn call(self: Arc<Self>, command: Command) -> Result<Reply, CallError> {
        Ok(match self.send(&command).await? {
            Value::BulkString(text) => Reply::Text(text),
            other => Reply::Other(format!("{other:?}")),
        })
    }
}

impl ConnectTask {
    /// Postpones the time after which this task counts as abandoned, so that it can make another attempt to connect.
    /// Returns `false` if another task has taken over.
    fn goes_on(&self) -> bool {
        let mut connecting = self.inner.lock_connecting();
        let is_present = connecting.task == self.number;
        if is_present {
            connecting.until = Some(self.inner.end_of_attempt());
        }
        is_present
    }
}

impl Drop for ConnectTask {
    fn drop(&mut self) {
        let mut connecting = self.inner.lock_connecting();
        if connecting.task == self.number {
            connecting.until = None;
        }
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

    fn number(&self) -> u64 {
        self.0.current.borrow().number
    }

    fn renew(&self, number: u64) {
        self.0.discard(number);
    }

    fn is_silent(&self) -> bool {
        self.0.current.borrow().connection.as_ref().is_some_and(Connected::is_silent)
    }

    fn listen(&self, channel: String, on_message: OnMessage) -> Listening {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let subscribed = tokio::time::timeout(inner.timeout, inner.server.subscribe(&channel)).await;
            let Ok(Ok(subscription)) = subscribed else { return };
            let mut messages = pin!(subscription.into_on_message());
            while let Some(message) = poll_fn(|cx| messages.as_mut().poll_next(cx)).await {
                on_message(&String::from_utf8_lossy(message.get_payload_bytes()));
            }
        })
    }
}
