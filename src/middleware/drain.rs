//! Request bodies that nothing has read when the request is refused, over HTTP/1.x.
//!
//! Such a connection is of no further use: what is left of the body would be taken for the next request. So the server
//! closes it, and a client that does not know that loses this answer or its next request. `Connection: close` says so,
//! and reading the body to its end spares the connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

/// How many bodies the clones of one responder read at the same time.
const MAX_DRAINS: usize = 1_024;

/// How many frames are read before other tasks get their turn.
const FRAMES_AT_ONCE: usize = 64;

/// What becomes of the body of a refused request, of type `B`. Implemented by this crate only.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot read request bodies of type `{B}`",
    note = "with `drain`, the request's body must be an `http_body::Body` that is `Send` and `'static`"
)]
pub trait UnreadBody<B> {
    /// Whether it is ever read.
    #[doc(hidden)]
    const IS_READ: bool;

    /// Begins to read it; `None` if it is left unread.
    #[doc(hidden)]
    fn drain(&self, request: Request<B>) -> Option<Drain>;
}

/// The body of a refused request is left unread. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaveUnread;

impl<B> UnreadBody<B> for LeaveUnread {
    const IS_READ: bool = false;

    #[inline]
    fn drain(&self, _: Request<B>) -> Option<Drain> {
        None
    }
}

/// The body of a refused request is read and discarded before the answer is sent, within bounds. Made by
/// [`HttpResponder::drain`](super::HttpResponder::drain).
#[derive(Clone, Debug)]
pub struct DrainBody {
    max_bytes: u64,
    max_time: Duration,
    running: Arc<AtomicUsize>,
}

impl DrainBody {
    pub(super) fn new(max_bytes: u64, max_time: Duration) -> Self {
        Self { max_bytes, max_time, running: Arc::default() }
    }
}

impl<B> UnreadBody<B> for DrainBody
where
    B: Body + Send + 'static,
{
    const IS_READ: bool = true;

    fn drain(&self, request: Request<B>) -> Option<Drain> {
        let headers = request.headers();
        let announced = content_length(headers).unwrap_or(0);
        // A client that waits for leave to send its body sends none once it has its answer.
        let waits = headers.contains_key(EXPECT);
        if !announces_body(&request) || announced > self.max_bytes || waits {
            return None;
        }
        let slot = Slot::take(&self.running)?;
        let body = request.into_body();
        let deadline = sleep(self.max_time);
        Some(Drain(Box::pin(Reading { body, left: self.max_bytes, deadline, _slot: slot })))
    }
}

/// Whether a body comes with the request, on a connection that has no other way to end it than to read or to close.
pub(super) fn announces_body<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.version() < Version::HTTP_2
        && (headers.contains_key(TRANSFER_ENCODING)
            || content_length(headers).is_some_and(|length| length > 0))
}

/// The announced length; one that is no number counts as endless.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let length = headers.get(CONTENT_LENGTH)?;
    Some(length.to_str().ok().and_then(|length| length.parse().ok()).unwrap_or(u64::MAX))
}

/// Marks an answer that says `Connection: close` only because the body is unread.
#[derive(Clone, Copy, Debug)]
struct ClosedByUs;

/// Says that the connection ends with this answer. `may_be_read`: unless the body is read to its end.
pub(super) fn close<B>(answer: &mut Response<B>, may_be_read: bool) {
    if is_closing(answer.headers()) {
        return;
    }
    if may_be_read {
        answer.extensions_mut().insert(ClosedByUs);
    }
    answer.headers_mut().append(CONNECTION, HeaderValue::from_static("close"));
}

/// Takes back what [`close`] has said: the body was read to its end.
pub(super) fn keep_open<B>(answer: &mut Response<B>) {
    if answer.extensions_mut().remove::<ClosedByUs>().is_none() {
        return;
    }
    let headers = answer.headers_mut();
    let others: Vec<_> =
        headers.get_all(CONNECTION).iter().filter(|value| *value != "close").cloned().collect();
    headers.remove(CONNECTION);
    for value in others {
        headers.append(CONNECTION, value);
    }
}

fn is_closing(headers: &HeaderMap) -> bool {
    let options = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}

/// Reads what is left of a refused request's body and discards it. Ready when it has: `true` at the body's end, `false`
/// if it was too long, too slow or failed.
///
/// # Cancel safety
///
/// Dropped, it reads no more, and the connection is closed with the body unread.
pub struct Drain(Pin<Box<dyn Future<Output = bool> + Send>>);

impl Drain {
    /// Any future that is ready when the request has been read. For responders of one's own.
    #[must_use]
    pub fn new(reading: impl Future<Output = bool> + Send + 'static) -> Self {
        Self(Box::pin(reading))
    }
}

impl Future for Drain {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").finish_non_exhaustive()
    }
}

pin_project! {
    struct Reading<B> {
        #[pin]
        body: B,
        // How many bytes may still come.
        left: u64,
        #[pin]
        deadline: Sleep,
        _slot: Slot,
    }
}

impl<B: Body> Future for Reading<B> {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut this = self.project();
        if this.deadline.poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        for _ in 0..FRAMES_AT_ONCE {
            let frame = match this.body.as_mut().poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let length = frame.data_ref().map_or(0, |data| data.remaining() as u64);
            match this.left.checked_sub(length) {
                Some(left) => *this.left = left,
                None => return Poll::Ready(false),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// One of the bodies that may be read at the same time.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(running: &Arc<AtomicUsize>) -> Option<Self> {
        // Nothing else is published by it.
        let more = |count: usize| (count < MAX_DRAINS).then_some(count + 1);
        running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(running)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
