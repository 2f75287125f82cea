//! A connection of the `redis` crate, and what is known of its end.
//!
//! The crate drives each connection in a task, which ends with the connection. If a command then fails, the crate does
//! not tell whether it has sent the command. So this module makes the streams of connections itself, and observes what
//! is written to them: if nothing was written since a command was passed to the task, the command was not sent, and can
//! be sent on another connection.
//!
//! Only the crate can make the stream of an encrypted connection, because it does not disclose its certificates. There,
//! it is found out before each command whether the task has ended. Commands that fail later count as sent.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::TcpSettings;
use ::redis::io::tcp::socket2::SockRef;
use ::redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

use super::connection::Command;
use super::silence::Silence;

/// A connection. The connection ends when its last clone is dropped.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
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
pub(super) struct Sent(Option<u64>);

impl Connected {
    pub(super) async fn open(client: &Client, config: &AsyncConnectionConfig) -> RedisResult<Self> {
        let info = client.get_connection_info();
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, info.tcp_settings()).await?;
                Self::over(stream, client, config).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                Self::over(tokio::net::UnixStream::connect(path).await?, client, config).await
            }
            _ => {
                let connection = client.get_multiplexed_async_connection_with_config(config).await?;
                let silence = Arc::new(Silence::default());
                silence.end();
                Ok(Self { connection, observed: None, silence })
            }
        }
    }

    async fn over<S>(stream: S, client: &Client, config: &AsyncConnectionConfig) -> RedisResult<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        for<'a> SockRef<'a>: From<&'a S>,
    {
        let (writes, silence) = (Arc::default(), Arc::new(Silence::default()));
        silence.end();
        let stream = ObservedStream { stream, writes: Arc::clone(&writes), silence: Arc::clone(&silence) };
        let settings = client.get_connection_info().redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config.clone()).await?;
        let task = tokio::spawn(driver).abort_handle();
        Ok(Self { connection, observed: Some(Arc::new(Observed { writes, task })), silence })
    }

    /// Sends a command, right after `ASKING` if it says so, and returns the reply to the command.
    pub(super) async fn send(&mut self, command: &Command) -> RedisResult<Value> {
        let replied = self.reply_to(command).await;
        if self.observed.is_none() && replied.is_ok() {
            self.silence.end();
        }
        replied
    }

    async fn reply_to(&mut self, command: &Command) -> RedisResult<Value> {
        if !command.is_asking {
            return self.connection.send_packed_command(&command.words).await;
        }
        let mut pipeline = ::redis::pipe();
        pipeline.cmd("ASKING").add_command(command.words.clone());
        // A large future, which is seldom needed.
        let mut replies = Box::pin(self.connection.send_packed_commands(&pipeline, 1, 1)).await?;
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// Returns whether nothing was received for so long that the path to the server may be gone.
    pub(super) fn is_silent(&self) -> bool {
        self.silence.is_long()
    }

    /// Returns what was sent before now.
    pub(super) fn sent(&self) -> Sent {
        Sent(self.observed.as_ref().map(|observed| observed.writes.load(Ordering::Acquire)))
    }

    /// Returns whether it is certain that nothing was sent since `before`. The connection must have ended.
    pub(super) fn has_sent_nothing_since(&self, before: Sent) -> bool {
        before.0.is_some() && before.0 == self.sent().0
    }

    /// Returns whether it is known that the connection has ended. Always returns `false` if the connection is not
    /// encrypted, because then it is known afterwards whether a command was sent, and if there was a reply just before.
    ///
    /// A command is passed to the connection's task, which is possible only if the task has not ended. The command is
    /// taken back at once. If the task was so quick that it has sent the command, it ignores the reply.
    pub(super) fn has_ended(&self) -> bool {
        if self.observed.is_some() || self.silence.is_short() {
            return false;
        }
        let (time, mut connection) = (::redis::cmd("TIME"), self.connection.clone());
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
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.silence.end();
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
        if let Poll::Ready(Ok(_)) = written {
            self.writes.fetch_add(1, Ordering::Release);
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
