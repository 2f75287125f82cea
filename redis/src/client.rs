//! A connection of the `redis` crate that reconnects.
//!
//! The connection manager of the `redis` crate gives up after some attempts to connect, and a call waits without bound
//! while the manager connects. Here, a task tries to connect as long as calls wait for a connection, and each call has
//! its own deadline.
//!
//! The crate drives each connection in a task, which ends with the connection. If a command then fails, the crate does
//! not tell whether it has sent the command. So this module makes the streams of connections itself, and observes what
//! is written to them: if nothing was written since a command was passed to the task, the command was not sent, and can
//! be sent on another connection.
//!
//! Only the crate can make the stream of an encrypted connection, because it does not disclose its certificates. There,
//! it is found out before each command whether the task has ended. Commands that fail later count as sent.

use std::future::{Future, poll_fn};
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::TcpSettings;
use ::redis::io::tcp::socket2::SockRef;
use ::redis::{AsyncConnectionConfig, ConnectionAddr, ErrorKind, RedisResult, ServerErrorKind, Value};
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::connection::{BoxFuture, CallError, Command, Connection, Listened, Reply};
use super::error::{RedisError, RedisErrorKind, convert};
use super::sentinel::Sentinels;
use super::url;
use tower_throttle::clock::{AnyClock, Nanos};

/// The first pause between two attempts to connect, and the maximum pause. The pause doubles after each attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

/// The time between two questions to the sentinels, in nanoseconds.
const BETWEEN_QUESTIONS: u64 = 1_000_000_000;
/// The number of times that a command is sent again, because a server may accept connections only to close them.
const MAX_UNSENT: u32 = 3;
/// The maximum number of commands that wait until the connection sends them.
const PIPELINE: usize = 1 << 16;

/// The maximum number of bytes of a line by which a server refuses a connection.
const MAX_REFUSAL: usize = 1 << 10;

/// The silence, in nanoseconds, after which it is found out whether a connection has ended before something is sent.
const SHORT: u64 = 1_000_000;
/// The silence, in nanoseconds, after which one late reply is enough to give up a connection: a firewall may have
/// forgotten the connection.
const LONG: u64 = 1_000_000_000;

/// A connection to a server, which is made again when it has ended. Clones share it.
#[derive(Clone)]
pub(super) struct Client(Arc<Inner>);

/// The server to which a client connects.
#[derive(Clone, Debug)]
pub(super) enum Server {
    /// A server, and the [origin](url::name) of its address.
    At(Box<::redis::Client>, &'static str),
    /// The current master of a group of servers. The sentinels of the group say which server is the master.
    Master(Sentinels),
}

struct Inner {
    server: Server,
    /// The time limit of an attempt to connect.
    timeout: Duration,
    clock: AnyClock,
    current: watch::Sender<Current>,
    /// Notifies tasks that do not wait for a connection when the present connection has changed.
    changed: Notify,
    connecting: Mutex<Connecting>,
    problem: Mutex<Option<RedisError>>,
    /// The earliest time, in nanoseconds, at which the sentinels may be asked again.
    next_question: AtomicU64,
}

/// The present connection, if there is one. Each connection has a number of its own.
#[derive(Clone, Default)]
struct Current {
    number: u64,
    /// The version of the master that is connected to, or 0 without sentinels.
    version: u64,
    connection: Option<Connected>,
    /// The name of the server of the present connection, or of the last connection.
    server: Option<Arc<str>>,
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

/// A question to the sentinels. While this value exists, no other question begins, unless it takes so long that its
/// runtime is probably not driven.
struct Question {
    inner: Arc<Inner>,
    /// The earliest time of the next question.
    next: u64,
}

impl Client {
    pub(super) fn new(server: Server, timeout: Duration) -> Self {
        let (current, _) = watch::channel(Current::default());
        Self(Arc::new(Inner {
            server,
            timeout,
            clock: AnyClock::default(),
            current,
            changed: Notify::new(),
            connecting: Mutex::default(),
            problem: Mutex::new(None),
            next_question: AtomicU64::new(0),
        }))
    }

    /// Makes one attempt to connect.
    pub(super) async fn connect(&self) -> Result<(), RedisError> {
        self.0.attempt().await
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

impl Inner {
    async fn attempt(&self) -> Result<(), RedisError> {
        let (version, connection) = self.server.connect(self.timeout, &config()).await?;
        self.use_connection(version, connection);
        Ok(())
    }

    /// Replaces the present connection, unless it is one to a newer master. The trips that are under way end on the
    /// connection on which they began.
    fn use_connection(&self, version: u64, connection: Connected) {
        self.current.send_if_modified(|current| {
            let is_newer = current.connection.is_none() || version >= current.version;
            if is_newer {
                let number = current.number + 1;
                let server = Some(Arc::clone(&connection.name));
                *current = Current { number, version, connection: Some(connection), server };
            }
            is_newer
        });
        *self.lock_problem() = None;
        self.changed.notify_waiters();
    }

    /// Starts a task that asks the sentinels which server is the master, if they were last asked more than a second
    /// ago.
    fn ask_sentinels(self: &Arc<Self>) {
        let Server::Master(sentinels) = &self.server else { return };
        let now = self.clock.now().0;
        let next = self.next_question.load(Ordering::Relaxed);
        if now < next {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let after = now.saturating_add(BETWEEN_QUESTIONS);
        let longest = Nanos::from(self.timeout).0.saturating_mul(10);
        let abandoned = after.saturating_add(longest);
        let ours = self.next_question.compare_exchange(next, abandoned, Ordering::Relaxed, Ordering::Relaxed);
        if ours.is_ok() {
            let question = Question { inner: Arc::clone(self), next: after };
            let sentinels = sentinels.clone();
            runtime.spawn(async move { question.inner.follow(&sentinels).await });
        }
    }

    /// Asks the sentinels, and replaces the connection if it is one to a former master. If the new master cannot be
    /// reached, the connection is kept until the next question.
    async fn follow(&self, sentinels: &Sentinels) {
        sentinels.ask(self.timeout).await;
        let Ok(Some((version, server))) = sentinels.master() else { return };
        let is_former = {
            let current = self.current.borrow();
            current.connection.is_some() && current.version < version
        };
        if is_former && let Ok(connection) = connect_to_master(server, config(), self.timeout).await {
            self.use_connection(version, connection);
        }
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
                *inner.lock_problem() = Some(error);
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
        let is_discarded = self.current.send_if_modified(|current| {
            let is_this = current.number == number && current.connection.is_some();
            if is_this {
                current.connection = None;
            }
            is_this
        });
        if is_discarded {
            self.changed.notify_waiters();
        }
    }

    /// Waits until the connection with this number is dropped.
    async fn dropped(&self, number: u64) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // A change after this line is not missed.
            changed.as_mut().enable();
            let is_present = {
                let current = self.current.borrow();
                current.number == number && current.connection.is_some()
            };
            if !is_present {
                return;
            }
            changed.await;
        }
    }

    async fn listen(
        &self,
        channel: &str,
        on_message: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Listened, RedisError> {
        let (number, version) = {
            let current = self.current.borrow();
            match current.connection {
                Some(_) => (current.number, current.version),
                None => return Ok(Listened::Unconnected),
            }
        };
        let server = match &self.server {
            Server::At(server, _) => (**server).clone(),
            Server::Master(sentinels) => match sentinels.master()? {
                Some((known, server)) if known == version => server,
                // The connection is about to be replaced.
                _ => return Ok(Listened::Unconnected),
            },
        };
        let subscribing = async {
            let mut subscription = server.get_async_pubsub().await?;
            subscription.subscribe(channel).await?;
            Ok(subscription)
        };
        let subscription = in_time(self.timeout, subscribing).await.map_err(|error| convert(&error))?;
        let mut messages = pin!(subscription.into_on_message());
        let mut dropped = pin!(self.dropped(number));
        Ok(poll_fn(|cx| {
            while let Poll::Ready(message) = messages.as_mut().poll_next(cx) {
                match message {
                    Some(message) => on_message(&String::from_utf8_lossy(message.get_payload_bytes())),
                    None => return Poll::Ready(Listened::Ended),
                }
            }
            dropped.as_mut().poll(cx).map(|()| Listened::Unconnected)
        })
        .await)
    }

    /// Returns a connection that is not known to have ended, and its number. Waits until there is one.
    async fn connected(self: &Arc<Self>) -> Result<(u64, Connected), RedisError> {
        loop {
            let Current { number, connection, .. } = self.current.borrow().clone();
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
        self.ask_sentinels();
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
                return Err(CallError::FailedOn(number, connected.explain(convert(&error)).await));
            }
            self.discard(number);
            if !connected.has_sent_nothing_since(before) || unsent == MAX_UNSENT {
                return Err(CallError::Ended(number, convert(&error).at(&connected.name)));
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

impl Drop for Question {
    fn drop(&mut self) {
        self.inner.next_question.store(self.next, Ordering::Relaxed);
    }
}

impl Connection for Client {
    fn call(&self, command: Command) -> BoxFuture<Result<Reply, CallError>> {
        Box::pin(Arc::clone(&self.0).call(command))
    }

    fn problem(&self) -> Option<RedisError> {
        match self.0.current.borrow().connection {
            Some(_) => None,
            None => self.0.lock_problem().clone(),
        }
    }

    fn server(&self) -> Option<Arc<str>> {
        self.0.current.borrow().server.clone()
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

    fn listen(&self, channel: String, on_message: Box<dyn Fn(&str) + Send + Sync>) -> BoxFuture<Listened> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let listened = inner.listen(&channel, &*on_message).await;
            listened.unwrap_or_else(Listened::Refused)
        })
    }
}

/// Returns the settings of connections.
fn config() -> AsyncConnectionConfig {
    // Calls that are not polled keep their places in the pipeline. So the pipeline is long. Otherwise a task that
    // begins many calls and does not poll them would delay all other calls.
    AsyncConnectionConfig::new()
        .set_pipeline_buffer_size(PIPELINE)
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

impl Server {
    /// Makes a connection. Also returns the version of the master, or 0 without sentinels. Each sentinel is asked
    /// within `limit`.
    async fn connect(
        &self,
        limit: Duration,
        config: &AsyncConnectionConfig,
    ) -> Result<(u64, Connected), RedisError> {
        match self {
            Self::At(client, origin) => Ok((0, Connected::open(client, origin, limit, config).await?)),
            Self::Master(sentinels) => sentinels.connect(limit, config, connect_to_master).await,
        }
    }
}

/// Connects to a server within `limit`. Returns an error if the server is not a master, since sentinels name the former
/// master until they have agreed on a new one.
async fn connect_to_master(
    server: ::redis::Client,
    config: AsyncConnectionConfig,
    limit: Duration,
) -> Result<Connected, RedisError> {
    let address = server.get_connection_info().addr();
    let name = url::name(address, url::FROM_SENTINEL);
    let opened = in_time(limit, async {
        let mut connected = Connected::open_within(&server, name.as_str().into(), &config).await?;
        let role = connected.role().await;
        Ok((connected, role))
    });
    let opened = opened.await.map_err(|error| url::unconnected(convert(&error), address, &name));
    let (connected, role) = opened?;
    match role.map_err(|error| convert(&error).at(&connected.name))? {
        Some(role) if role == "master" => Ok(connected),
        role => {
            let detail = format!("its role is {:?}, not \"master\"", role.unwrap_or_default());
            Err(RedisError::new(RedisErrorKind::Unreachable, detail).at(&connected.name))
        }
    }
}

/// Awaits a part of an attempt to connect, within the time limit of the attempt.
async fn in_time<T>(limit: Duration, attempt: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| {
        Err((ErrorKind::Io, "no connection within the `connect_timeout`", format!("{limit:?}")).into())
    })
}

/// A connection. The connection ends when its last clone is dropped.
#[derive(Clone)]
struct Connected {
    connection: MultiplexedConnection,
    /// The [name](url::name) of the server.
    name: Arc<str>,
    /// `None` if the connection is encrypted.
    observed: Option<Arc<Observed>>,
    /// The silence since anything was received or, if the connection is encrypted, since the last reply to a call that
    /// still awaited it.
    silence: Arc<Silence>,
}

/// What is observed of a connection.
struct Observed {
    /// The number of times that something was written.
    writes: Arc<AtomicU64>,
    task: AbortHandle,
}

/// What a connection had sent when this value was made.
#[derive(Clone, Copy, Debug)]
struct Sent(Option<u64>);

impl Connected {
    async fn open(
        client: &::redis::Client,
        origin: &str,
        limit: Duration,
        config: &AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let address = client.get_connection_info().addr();
        let name = url::name(address, origin);
        let opened = in_time(limit, Self::open_within(client, name.as_str().into(), config)).await;
        opened.map_err(|error| url::unconnected(convert(&error), address, &name))
    }

    async fn open_within(
        client: &::redis::Client,
        name: Arc<str>,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<Self> {
        let info = client.get_connection_info();
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, info.tcp_settings()).await?;
                Self::over(stream, client, name, config).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                Self::over(tokio::net::UnixStream::connect(path).await?, client, name, config).await
            }
            _ => {
                let connection = client.get_multiplexed_async_connection_with_config(config).await?;
                let silence = Arc::new(Silence::default());
                silence.end();
                Ok(Self { connection, name, observed: None, silence })
            }
        }
    }

    async fn over<S>(
        stream: S,
        client: &::redis::Client,
        name: Arc<str>,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        for<'a> SockRef<'a>: From<&'a S>,
    {
        let writes = Arc::default();
        let silence = Arc::new(Silence::default());
        silence.end();
        let refusal = Arc::new(OnceLock::new());
        let stream = ObservedStream {
            stream,
            writes: Arc::clone(&writes),
            silence: Arc::clone(&silence),
            refusal: Some(Arc::clone(&refusal)),
        };
        let settings = client.get_connection_info().redis_settings();
        let made = MultiplexedConnection::new_with_config(settings, stream, config.clone()).await;
        let (connection, driver) = made.map_err(|error| match refusal.get() {
            Some(line) if is_refused(&error, line) => {
                (ErrorKind::Io, "the server refused the connection", line.clone()).into()
            }
            _ => error,
        })?;
        let task = tokio::spawn(driver).abort_handle();
        Ok(Self { connection, name, observed: Some(Arc::new(Observed { writes, task })), silence })
    }

    /// Returns the role of the server, such as `master`, `slave` or `sentinel`.
    async fn role(&mut self) -> RedisResult<Option<String>> {
        let role: Value = ::redis::cmd("ROLE").query_async(&mut self.connection).await?;
        Ok(match role {
            Value::Array(parts) => match parts.into_iter().next() {
                Some(Value::BulkString(role)) => String::from_utf8(role).ok(),
                _ => None,
            },
            _ => None,
        })
    }

    /// Replaces the error of a command that the server does not know, because the server is a sentinel.
    async fn explain(&mut self, error: RedisError) -> RedisError {
        if error.detail().contains("unknown command")
            && let Ok(Some(role)) = self.role().await
            && role == "sentinel"
        {
            let detail = format!("{} is a sentinel: create the store with `RedisStore::sentinel`", self.name);
            return RedisError::new(RedisErrorKind::Config, detail);
        }
        error
    }

    /// Sends a command, right after `ASKING` if it says so, and returns the reply to the command.
    async fn send(&mut self, command: &Command) -> RedisResult<Value> {
        let replied = command.send(&mut self.connection).await;
        if self.observed.is_none() && replied.is_ok() {
            self.silence.end();
        }
        replied
    }

    /// Returns whether nothing was received for so long that the path to the server may be gone.
    fn is_silent(&self) -> bool {
        self.silence.is_long()
    }

    /// Returns what was sent before now.
    fn sent(&self) -> Sent {
        Sent(self.observed.as_ref().map(|observed| observed.writes.load(Ordering::Acquire)))
    }

    /// Returns whether it is certain that nothing was sent since `before`. The connection must have ended.
    fn has_sent_nothing_since(&self, before: Sent) -> bool {
        before.0.is_some() && before.0 == self.sent().0
    }

    /// Returns whether it is known that the connection has ended. Always returns `false` if the connection is not
    /// encrypted, because then it is known afterwards whether a command was sent, and if there was a reply just before.
    ///
    /// A command is passed to the connection's task, which is possible only if the task has not ended. The command is
    /// taken back at once. If the task was so quick that it has sent the command, it ignores the reply.
    fn has_ended(&self) -> bool {
        if self.observed.is_some() || self.silence.is_short() {
            return false;
        }
        let time = ::redis::cmd("TIME");
        let mut connection = self.connection.clone();
        let passed = pin!(tokio::task::unconstrained(connection.send_packed_command(&time)));
        matches!(passed.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects to all addresses of a host at once. Returns the first connection.
async fn connect_tcp(host: &str, port: u16, settings: &TcpSettings) -> RedisResult<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut failed = None;
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(stream)) => match set(&stream, settings) {
                Ok(()) => return Ok(stream),
                Err(error) => failed = Some(error.into()),
            },
            Ok(Err(error)) => failed = Some(error.into()),
            Err(_) => {}
        }
    }
    Err(failed.unwrap_or_else(|| (ErrorKind::Io, "the host has no address").into()))
}

/// Applies the settings. The time to linger is not among them, because the `redis` crate does not disclose it.
fn set(stream: &TcpStream, settings: &TcpSettings) -> io::Result<()> {
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}

/// A stream that counts how often something is written to it, and writes nothing after the other side has closed it.
struct ObservedStream<S> {
    stream: S,
    writes: Arc<AtomicU64>,
    silence: Arc<Silence>,
    /// The line by which a server refuses a connection before it closes it. `None` once anything was received. The
    /// crate takes such a line as a reply to the first command, which it ignores.
    refusal: Option<Arc<OnceLock<String>>>,
}

impl<S> ObservedStream<S>
where
    for<'a> SockRef<'a>: From<&'a S>,
{
    /// Asks the kernel whether the other side has closed the stream. The runtime does not know it yet if it was blocked
    /// or suspended.
    fn has_ended(&self) -> bool {
        match SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Keeps a refusal that the crate will not read, because it could not write.
    fn keep_unread_refusal(&mut self) {
        let mut unread = [0; MAX_REFUSAL];
        if self.refusal.is_some()
            && let Ok(length) = (&*SockRef::from(&self.stream)).read(&mut unread)
        {
            keep_refusal(&mut self.refusal, &unread[..length]);
        }
    }
}

/// Returns whether an attempt has failed because the server has refused the connection by `line`. If the first command
/// is `AUTH`, the line may be the reply to it instead.
fn is_refused(error: &::redis::RedisError, line: &str) -> bool {
    if error.kind() == ErrorKind::AuthenticationFailed {
        return line.contains("max number of clients") || line.starts_with("DENIED");
    }
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Keeps the first bytes that were received, if they are one line with an error.
fn keep_refusal(refusal: &mut Option<Arc<OnceLock<String>>>, received: &[u8]) {
    let Some(refusal) = refusal.take_if(|_| !received.is_empty()) else { return };
    let text = String::from_utf8_lossy(received);
    if let Some(line) = text.trim_end().strip_prefix('-')
        && !line.contains('\n')
    {
        let _ = refusal.set(line.to_owned());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.silence.end();
            if self.refusal.is_some() {
                keep_refusal(&mut self.refusal, &buffer.filled()[before..]);
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S>
where
    for<'a> SockRef<'a>: From<&'a S>,
{
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.silence.is_short() && self.has_ended() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        match written {
            Poll::Ready(Ok(_)) => {
                self.writes.fetch_add(1, Ordering::Release);
            }
            Poll::Ready(Err(_)) => self.keep_unread_refusal(),
            Poll::Pending => {}
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The time since something was last received on a connection, or since the connection was made.
#[derive(Debug, Default)]
struct Silence {
    clock: AnyClock,
    /// The time at which the silence began, in nanoseconds.
    began: AtomicU64,
}

impl Silence {
    /// Records that something was received, or that the connection was made.
    fn end(&self) {
        self.began.store(self.clock.now().0, Ordering::Relaxed);
    }

    fn is_short(&self) -> bool {
        self.nanos() < SHORT
    }

    fn is_long(&self) -> bool {
        self.nanos() >= LONG
    }

    fn nanos(&self) -> u64 {
        self.clock.now().saturating_since(Nanos(self.began.load(Ordering::Relaxed)))
    }
}
