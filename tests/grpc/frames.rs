//! A client that observes the frames a server sends.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::support::Task;

/// An empty message, framed.
pub(crate) const EMPTY: &[u8] = &[0; 5];

const HEADERS: u8 = 1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const RST_STREAM: u8 = 3;

/// The frames that the server sent for one call.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) frames: Vec<Frame>,
}

impl Heard {
    /// Returns the value of a header that occurs once.
    pub(crate) fn header(&self, name: &str) -> &str {
        one(&self.headers, name).unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Asserts that one frame has the whole response. After this frame, the server may reset the stream without an
    /// error.
    #[track_caller]
    pub(crate) fn assert_is_trailers_only(&self) {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        let [head, rest @ ..] = self.frames.as_slice() else { panic!("nothing: {self:?}") };
        assert_eq!((head.kind, head.flags), (HEADERS, END_HEADERS | END_STREAM), "{self:?}");
        assert!(rest.iter().all(Frame::asks_for_no_more), "{self:?}");
    }
}

/// Returns the value of a header that occurs at most once.
pub(crate) fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    assert_eq!(lines.next(), None, "{name} once: {headers:?}");
    Some(line.to_str().unwrap())
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<9>()?;
        let [a, b, c, kind, flags, stream @ ..] = *head;
        let (payload, rest) = rest.split_at_checked(u32::from_be_bytes([0, a, b, c]) as usize)?;
        *bytes = rest;
        Some(Self { kind, flags, stream: u32::from_be_bytes(stream), payload: payload.to_vec() })
    }

    /// Returns whether this is `RST_STREAM` with `NO_ERROR`, which says that the response is complete and the rest of
    /// the request is not needed.
    pub(crate) fn asks_for_no_more(&self) -> bool {
        self.kind == RST_STREAM && self.payload == [0; 4]
    }
}

/// A stream that records the bytes read from it.
struct Tap {
    stream: TcpStream,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let known = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.heard.lock().unwrap().extend_from_slice(&buffer.filled()[known..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The messages that a caller sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// One message, which is the last one.
    Once,
    /// One message, after which the stream stays open.
    AndGoesOn,
}

pub(crate) fn call(path: &str, content_type: Option<&str>) -> Request<()> {
    let request = Request::builder().method(Method::POST).uri(path).header("te", "trailers");
    let typed = content_type.into_iter().fold(request, |request, kind| request.header("content-type", kind));
    typed.body(()).unwrap()
}

pub(crate) async fn ask(address: SocketAddr, path: &str) -> Heard {
    send(address, call(path, Some("application/grpc")), Says::Once).await
}

/// Makes one call over a connection of its own.
pub(crate) async fn send(address: SocketAddr, mut request: Request<()>, says: Says) -> Heard {
    *request.uri_mut() = format!("http://{address}{}", request.uri()).parse().unwrap();
    *request.version_mut() = Version::HTTP_2;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let tap = Tap { stream: TcpStream::connect(address).await.unwrap(), heard: heard.clone() };
    let (sender, mut connection) = h2::client::handshake(tap).await.unwrap();
    let mut ping = connection.ping_pong().unwrap();
    let _connection = Task::spawn(async move {
        let _ = connection.await;
    });
    let mut sender = sender.ready().await.unwrap();
    let (response, mut saying) = sender.send_request(request, false).unwrap();
    saying.send_data(Bytes::from_static(EMPTY), says == Says::Once).unwrap();
    let (head, mut body) = response.await.unwrap().into_parts();
    let stream = body.stream_id().as_u32();
    while let Some(data) = body.data().await {
        data.unwrap();
    }
    body.trailers().await.unwrap();
    // The server replies to this ping after all frames that it has sent before.
    ping.ping(h2::Ping::opaque()).await.unwrap();
    let heard = heard.lock().unwrap();
    let mut bytes = heard.as_slice();
    let frames = std::iter::from_fn(|| Frame::read(&mut bytes)).filter(|frame| frame.stream == stream);
    Heard { status: head.status, headers: head.headers, frames: frames.collect() }
}
