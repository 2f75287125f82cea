//! The client's connections, which can be closed while requests are in flight.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::http::{Method, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::{USER, at_last};
use crate::support::{Version, request};

#[derive(Clone)]
pub(super) enum Sender {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Full<Bytes>>>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// The tasks of a connection, including those that hold its socket.
#[derive(Clone, Default)]
pub(super) struct Tasks(Arc<Mutex<Vec<AbortHandle>>>);

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, future: F) {
        self.0.lock().unwrap().push(tokio::spawn(future).abort_handle());
    }
}

/// The connection of a client that reads responses in pieces.
pub(super) struct Connection {
    pub(super) address: SocketAddr,
    pub(super) sender: Sender,
    pub(super) tasks: Tasks,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr, version: Version) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let io = TokioIo::new(stream);
        let tasks = Tasks::default();
        let sender = match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                tasks.execute(async move { drop(connection.await) });
                Sender::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
            }
            Version::Http2 => {
                let (sender, connection) = http2::handshake(tasks.clone(), io).await.unwrap();
                tasks.execute(async move { drop(connection.await) });
                Sender::Http2(sender)
            }
        };
        Self { address, sender, tasks }
    }

    /// Sends a request, and returns the head of its response.
    pub(super) async fn send(&self, method: Method, path: &str) -> Response<Incoming> {
        self.try_send(method, path).await.unwrap()
    }

    pub(super) async fn try_send(&self, method: Method, path: &str) -> hyper::Result<Response<Incoming>> {
        let mut request = request(method, path);
        request.headers_mut().insert("x-user", USER.parse().unwrap());
        request.headers_mut().insert("te", "trailers".parse().unwrap());
        match self.sender.clone() {
            Sender::Http1(sender) => {
                request.headers_mut().insert("host", self.address.to_string().parse().unwrap());
                let mut sender = sender.lock().await;
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
            Sender::Http2(mut sender) => {
                *request.uri_mut() = format!("http://{}{path}", self.address).parse().unwrap();
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
        }
    }

    pub(super) async fn get(&self, path: &str) -> Response<Incoming> {
        at_last(path, self.send(Method::GET, path)).await
    }

    /// Closes the socket, whatever is in flight.
    pub(super) fn close(&self) {
        self.tasks.0.lock().unwrap().iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) async fn text(body: &mut Incoming) -> String {
    let frame = at_last("a frame", body.frame()).await.expect("not the end").unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

pub(super) async fn whole(response: Response<Incoming>) -> Bytes {
    at_last("the whole body", response.into_body().collect()).await.unwrap().to_bytes()
}
