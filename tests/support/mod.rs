//! The shared parts of the integration tests: a real server, a real client, a parser of header fields, futures that are
//! polled by hand, and random numbers from a seed.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod clock;
mod random;
mod redis_connection;
pub(crate) mod redis_server;
mod scale;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};
use tower::BoxError;
use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;

pub(crate) use clock::TickingClock;
pub(crate) use random::Random;
pub(crate) use scale::scaled;

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A server on a port of its own. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _task: Task,
}

impl Server {
    /// Serves an app with the peer's address, as the documentation says.
    pub(crate) async fn start(app: axum::Router) -> Self {
        let (listener, address) = listen().await;
        let serve = axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>());
        Self { address, _task: Task::spawn(async move { serve.await.unwrap() }) }
    }

    /// Serves an app without the peer's address, which the documentation says not to do.
    pub(crate) async fn start_without_peers(app: axum::Router) -> Self {
        let (listener, address) = listen().await;
        Self { address, _task: Task::spawn(async move { axum::serve(listener, app).await.unwrap() }) }
    }

    pub(crate) fn running(address: SocketAddr, server: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { address, _task: Task::spawn(server) }
    }
}

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

pub(crate) const VERSIONS: [Version; 2] = [Version::Http1, Version::Http2];

/// A client's connection. Clones of an HTTP/2 connection share it.
#[derive(Clone, Debug)]
pub(crate) struct Client<S> {
    address: SocketAddr,
    sender: S,
    task: Arc<Task>,
}

pub(crate) type Client1 = Client<http1::SendRequest<Full<Bytes>>>;
pub(crate) type Client2 = Client<http2::SendRequest<Full<Bytes>>>;

impl<S> Client<S> {
    /// Closes the socket, even if requests are in flight.
    pub(crate) fn close(&self) {
        self.task.0.abort();
    }
}

impl<B> Client<http1::SendRequest<B>>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    pub(crate) async fn http1(address: SocketAddr) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(connect(address).await)).await.unwrap();
        let task = Task::spawn(async move {
            // A server may close the connection during an upload that it denies. Only the response matters.
            let _ = connection.await;
        });
        Self { address, sender, task: Arc::new(task) }
    }

    pub(crate) async fn send(&mut self, mut request: Request<B>) -> Answer {
        let host = HeaderValue::try_from(self.address.to_string()).unwrap();
        request.headers_mut().insert(HOST, host);
        self.sender.ready().await.unwrap();
        Answer::read(self.sender.send_request(request).await.unwrap()).await
    }
}

impl<B> Client<http2::SendRequest<B>>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    pub(crate) async fn http2(address: SocketAddr) -> Self {
        let io = TokioIo::new(connect(address).await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let task = Task::spawn(async move {
            let _ = connection.await;
        });
        Self { address, sender, task: Arc::new(task) }
    }

    pub(crate) async fn send(&mut self, mut request: Request<B>) -> Answer {
        *request.uri_mut() = format!("http://{}{}", self.address, request.uri()).parse().unwrap();
        self.sender.ready().await.unwrap();
        Answer::read(self.sender.send_request(request).await.unwrap()).await
    }
}

async fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads from a server until the text that was read contains `end`.
pub(crate) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    loop {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{}", bytes.escape_ascii());
        let text = String::from_utf8_lossy(&bytes);
        if text.contains(end) {
            return text.into_owned();
        }
    }
}

/// Sends one request, over a connection of its own.
pub(crate) async fn send(address: SocketAddr, version: Version, request: Request<Full<Bytes>>) -> Answer {
    match version {
        Version::Http1 => Client1::http1(address).await.send(request).await,
        Version::Http2 => Client2::http2(address).await.send(request).await,
    }
}

pub(crate) async fn get(address: SocketAddr, version: Version, path: &str) -> Answer {
    send(address, version, request(Method::GET, path)).await
}

/// Sends `count` requests at once. With HTTP/1.1, each request has a connection of its own. With HTTP/2, all requests
/// have one connection.
pub(crate) async fn at_once(address: SocketAddr, version: Version, path: &str, count: usize) -> Vec<Answer> {
    let start = Arc::new(Barrier::new(count));
    let mut tasks = JoinSet::new();
    match version {
        Version::Http1 => {
            for _ in 0..count {
                let (mut client, start) = (Client1::http1(address).await, start.clone());
                let request = request(Method::GET, path);
                tasks.spawn(async move {
                    start.wait().await;
                    client.send(request).await
                });
            }
        }
        Version::Http2 => {
            let client = Client2::http2(address).await;
            for _ in 0..count {
                let (mut client, start) = (client.clone(), start.clone());
                let request = request(Method::GET, path);
                tasks.spawn(async move {
                    start.wait().await;
                    client.send(request).await
                });
            }
        }
    }
    tasks.join_all().await
}

pub(crate) fn request(method: Method, path: &str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(path).body(Full::default()).unwrap()
}

/// A response as the client received it.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// `true` if the stream ended with the headers.
    pub(crate) ended_with_headers: bool,
}

impl Answer {
    pub(crate) async fn read<B>(response: http::Response<B>) -> Self
    where
        B: Body<Error: fmt::Debug>,
    {
        let (parts, body) = response.into_parts();
        let ended_with_headers = body.is_end_stream();
        let body = body.collect().await.unwrap().to_bytes();
        Self { status: parts.status, headers: parts.headers, body, ended_with_headers }
    }

    /// Returns the value of a header that has a single line.
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut lines = self.headers.get_all(name).iter();
        let line = lines.next().unwrap_or_else(|| panic!("no {name}: {self:?}"));
        assert_eq!(lines.next(), None, "{name} once: {self:?}");
        line.to_str().unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Returns the members of a list field, from all lines of the field.
    pub(crate) fn items(&self, name: &str) -> Vec<Item> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|line| Item::read(line.to_str().unwrap())).collect()
    }

    pub(crate) fn retry_after(&self) -> u64 {
        self.header("retry-after").parse().unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the headers that a limiter adds to a response, with their values, in the order of their names.
    pub(crate) fn reported(&self) -> Vec<(String, String)> {
        let ours = ["content-type", "ratelimit", "ratelimit-policy", "retry-after"];
        let mut reported: Vec<_> = self
            .headers
            .iter()
            .filter(|(name, _)| ours.contains(&name.as_str()))
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        reported.sort();
        reported
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        write!(f, "{} {:?} {body:?}", self.status, self.headers)
    }
}

/// An item of a structured field, which is a string with integer parameters (RFC 9651), as in the RateLimit fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) parameters: BTreeMap<String, u64>,
}

impl Item {
    /// Reads one item in canonical form. Panics if the text is anything else.
    pub(crate) fn read(text: &str) -> Self {
        let mut chars = text.strip_prefix('"').unwrap_or_else(|| panic!("not quoted: {text}")).chars();
        let mut name = String::new();
        loop {
            match chars.next() {
                Some('"') => break,
                Some('\\') => match chars.next() {
                    Some(escaped @ ('"' | '\\')) => name.push(escaped),
                    other => panic!("{other:?} escaped in {text}"),
                },
                Some(char @ ' '..='~') => name.push(char),
                other => panic!("{other:?} in {text}"),
            }
        }
        let rest = chars.as_str();
        let mut parameters = BTreeMap::new();
        for parameter in rest.split(';').skip(1) {
            let (key, value) = parameter.split_once('=').unwrap_or_else(|| panic!("{parameter} in {text}"));
            assert!(key.bytes().all(|byte| byte.is_ascii_lowercase()), "{key} in {text}");
            assert!(
                value.bytes().all(|byte| byte.is_ascii_digit()) && value.len() <= 15,
                "{value} in {text}"
            );
            let twice = parameters.insert(key.to_owned(), value.parse().unwrap());
            assert_eq!(twice, None, "{key} twice in {text}");
        }
        assert!(rest.is_empty() || rest.starts_with(';'), "{rest} after the name in {text}");
        Self { name, parameters }
    }

    pub(crate) fn get(&self, key: &str) -> u64 {
        *self.parameters.get(key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }
}

/// A waker that counts how often it was woken, and knows whether it was woken since the last poll.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    woken: AtomicBool,
    times: AtomicU64,
}

impl Alarm {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Creates a waker that counts as woken, because a new task is polled once.
    pub(crate) fn ringing() -> Arc<Self> {
        let alarm = Self::new();
        alarm.woken.store(true, Ordering::SeqCst);
        alarm
    }

    pub(crate) fn rang(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    /// Returns whether the waker was woken since the last poll, and does not reset this state.
    pub(crate) fn is_set(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    pub(crate) fn times(&self) -> u64 {
        self.times.load(Ordering::SeqCst)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.times.fetch_add(1, Ordering::SeqCst);
        self.woken.store(true, Ordering::SeqCst);
    }
}

/// A future that is polled by hand, in the same way as by an executor: only if its waker was woken.
pub(crate) struct PolledByHand<F: Future> {
    future: Option<Pin<Box<F>>>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) output: Option<F::Output>,
    pub(crate) polls: usize,
}

impl<F: Future> PolledByHand<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)), alarm: Alarm::ringing(), output: None, polls: 0 }
    }

    /// Polls the future, even if it was not woken. Returns whether the future is ready.
    pub(crate) fn poll(&mut self) -> bool {
        let waker = Waker::from(self.alarm.clone());
        let Some(future) = &mut self.future else { return true };
        self.alarm.rang();
        self.polls += 1;
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.output = Some(output);
            self.future = None;
        }
        self.future.is_none()
    }

    /// Polls the future if it was woken. Returns whether the future is ready.
    pub(crate) fn run(&mut self) -> bool {
        while self.alarm.rang() {
            if self.poll() {
                return true;
            }
        }
        self.future.is_none()
    }

    /// Moves the future to another task, which has another waker.
    pub(crate) fn moves(&mut self) -> Arc<Alarm> {
        std::mem::replace(&mut self.alarm, Alarm::new())
    }

    pub(crate) fn abandon(&mut self) {
        self.future = None;
    }

    /// Returns whether an executor would poll the future now.
    pub(crate) fn is_woken(&self) -> bool {
        self.is_pending() && self.alarm.is_set()
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.future.is_some()
    }
}

/// Returns the time over which a client that received `decision` should spread the remaining units.
pub(crate) fn effective_window(algorithm: &impl Algorithm, decision: &Decision) -> Option<Duration> {
    let mut policies = Vec::new();
    algorithm.for_each_policy(&mut |policy| policies.push(policy));
    policies[decision.limit_index()].effective_window(decision)
}
