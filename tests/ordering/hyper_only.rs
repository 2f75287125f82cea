//! Servers without axum, of one HTTP version or of both, and clients that read a response step by step.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::server::conn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceExt};

use crate::at_last;
use crate::support::{Server, Task, Version, listen};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Http1,
    Http2,
    Either,
}

/// The kinds of servers, each with the HTTP version of its client.
pub(crate) const KINDS: [(Kind, Version); 4] = [
    (Kind::Http1, Version::Http1),
    (Kind::Http2, Version::Http2),
    (Kind::Either, Version::Http1),
    (Kind::Either, Version::Http2),
];

/// A service with boxed bodies and errors, so that hyper is compiled for one type only.
pub(crate) type Boxed =
    BoxCloneService<Request<Incoming>, Response<UnsyncBoxBody<Bytes, BoxError>>, Infallible>;

pub(crate) fn boxed<S, B>(service: S) -> Boxed
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let boxed = |response: Response<B>| response.map(|body| body.map_err(Into::into).boxed_unsync());
    BoxCloneService::new(service.map_response(boxed))
}

pub(crate) async fn serve<S, B>(kind: Kind, service: S) -> Server
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let (listener, address) = listen().await;
    let serving = async move {
        // The connections end with the server.
        let mut connections = Vec::new();
        loop {
            let io = TokioIo::new(listener.accept().await.unwrap().0);
            let service = TowerToHyperService::new(service.clone());
            connections.push(Task::spawn(async move {
                // A client that disconnects early is not a failure.
                let _ = match kind {
                    Kind::Http1 => {
                        let connection = conn::http1::Builder::new().serve_connection(io, service);
                        connection.with_upgrades().await.map_err(BoxError::from)
                    }
                    Kind::Http2 => {
                        let mut builder = conn::http2::Builder::new(TokioExecutor::new());
                        let connection = builder.enable_connect_protocol().serve_connection(io, service);
                        connection.await.map_err(BoxError::from)
                    }
                    Kind::Either => {
                        let mut builder = auto::Builder::new(TokioExecutor::new());
                        builder.http2().enable_connect_protocol();
                        builder.serve_connection_with_upgrades(io, service).await
                    }
                };
            }));
        }
    };
    Server::running(address, serving)
}

/// A client's connection that does not read response bodies by itself.
pub(crate) struct Connection<B> {
    address: SocketAddr,
    sender: Sender<B>,
    _task: Task,
}

enum Sender<B> {
    Http1(http1::SendRequest<B>),
    Http2(http2::SendRequest<B>),
}

impl<B> Connection<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    pub(crate) async fn open(address: SocketAddr, version: Version) -> Self {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (sender, task) = match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                let task = Task::spawn(async move {
                    let _ = connection.with_upgrades().await;
                });
                (Sender::Http1(sender), task)
            }
            Version::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
                let task = Task::spawn(async move {
                    let _ = connection.await;
                });
                (Sender::Http2(sender), task)
            }
        };
        Self { address, sender, _task: task }
    }

    /// Sends a request for a path, or for another authority.
    pub(crate) async fn send(&mut self, mut request: Request<B>) -> Response<Incoming> {
        let host = request.uri().authority().map_or_else(|| self.address.to_string(), ToString::to_string);
        let sent = async {
            match &mut self.sender {
                Sender::Http1(sender) => {
                    let host = HeaderValue::try_from(host).unwrap();
                    request.headers_mut().entry("host").or_insert(host);
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Sender::Http2(sender) => {
                    if request.uri().authority().is_none() {
                        *request.uri_mut() = format!("http://{host}{}", request.uri()).parse().unwrap();
                    }
                    sender.ready().await?;
                    sender.send_request(request).await
                }
            }
        };
        at_last("an answer", sent).await.unwrap()
    }
}

/// Returns the next frame of a body, which must be data, or `None` at its end.
pub(crate) async fn text(body: &mut Incoming) -> Option<Bytes> {
    let frame = at_last("a frame", body.frame()).await?;
    Some(frame.unwrap().into_data().unwrap())
}

/// Returns the next frame of a body, which must be trailers.
pub(crate) async fn end(body: &mut Incoming) -> HeaderMap {
    let frame = at_last("a frame", body.frame()).await.unwrap();
    frame.unwrap().into_trailers().unwrap()
}
