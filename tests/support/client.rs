//! Clients over real sockets, with HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use hyper::body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tower::BoxError;

use super::answer::Answer;
use super::server::Task;

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
