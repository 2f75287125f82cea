//! Unread bodies of rejected requests.
//!
//! Over HTTP/1.x, a connection with an unread body cannot be used again, because the server would read the rest of the
//! body as the next request. So the server closes the connection, and announces the close to the client by `Connection:
//! close`. A client that ignores the announcement can lose the response to the rejected request, or the response to its
//! next request. If the body is read to its end, the connection can be used again.
//!
//! Over HTTP/2, hyper resets a stream with an unread body. It ends the whole connection, with the streams of all
//! callers, after too much data for streams that were reset. If the body is read to its end, no stream is reset.

use std::future::Future;
use std::mem;
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

/// The maximum number of bodies that one responder and its clones read at the same time.
const MAX_DRAINS: usize = 1_024;

/// The maximum number of frames that are read before the task yields to the runtime.
const FRAMES_AT_ONCE: usize = 64;

/// A future that reads the rest of a rejected request: see [`Responder::drain`](super::Responder::drain).
pub(super) type Drain = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Reads the unread body of a rejected request, or leaves it unread. `B` is the type of the body. Only this crate
/// implements the trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot read request bodies of type `{B}`",
    note = "with `drain`, the request's body must be an `http_body::Body` that is `Send` and `'static`"
)]
pub trait UnreadBody<B> {
    /// `true` if `drain` may return a future.
    #[doc(hidden)]
    const IS_READ: bool;

    /// Returns whether the request has a body that must be read to its end before an HTTP/1.x connection can be used
    /// again.
    #[doc(hidden)]
    fn is_unread(request: &Request<B>) -> bool;

    /// Returns a future that reads the body, or `None` if the body is left unread.
    #[doc(hidden)]
    fn drain(&self, request: Request<B>) -> Option<Drain>;
}

/// The default, with which the body of a rejected request is left unread.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaveUnread;

impl<B> UnreadBody<B> for LeaveUnread {
    const IS_READ: bool = false;

    /// Decides by the head, since `B` may be any type. If a layer outside this one has changed the body, it has
    /// removed the length. Without a length, methods that are meant to have a body are taken to have one: a client
    /// sends `Content-Length: 0` if it has none (RFC 9110, section 8.6).
    #[inline]
    fn is_unread(request: &Request<B>) -> bool {
        let headers = request.headers();
        headers.contains_key(TRANSFER_ENCODING)
            || match content_length(headers) {
                Some(length) => length > 0,
                None => matches!(request.method().as_str(), "POST" | "PUT" | "PATCH" | "QUERY"),
            }
    }

    #[inline]
    fn drain(&self, _: Request<B>) -> Option<Drain> {
        None
    }
}

/// The bounds within which the body of a rejected request is read and discarded before the response is sent. Created by
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

    /// Asks the body, since a layer outside this one may have read it, or may have changed its length.
    fn is_unread(request: &Request<B>) -> bool {
        let body = request.body();
        !body.is_end_stream() && body.size_hint().upper() != Some(0)
    }

    fn drain(&self, request: Request<B>) -> Option<Drain> {
        let headers = request.headers();
        let announced = content_length(headers).unwrap_or(0);
        // Over HTTP/1.x, a client that sent `Expect: 100-continue` sends no body after it has received the final
        // response. Over HTTP/2, a client that does not wait would have its stream reset, which counts against its
        // connection.
        let waits = request.version() < Version::HTTP_2 && headers.contains_key(EXPECT);
        if !Self::is_unread(&request) || announced > self.max_bytes || waits {
            return None;
        }
        let slot = Slot::take(&self.running)?;
        let body = request.into_body();
        let (max_time, deadline) = (self.max_time, sleep(self.max_time));
        let left = self.max_bytes;
        Some(Box::pin(Reading { body, left, max_time, deadline, is_late: false, _slot: slot }))
    }
}

/// Returns whether the connection of the request must be closed unless the body is read: if it is an HTTP/1.x
/// connection, and the body is unread.
#[inline]
pub(super) fn must_close<D: UnreadBody<B>, B>(request: &Request<B>) -> bool {
    request.version() < Version::HTTP_2 && D::is_unread(request)
}

/// Returns the value of `Content-Length`, or `None` if the field is absent. For a value that is not a number, returns
/// `u64::MAX`.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let length = headers.get(CONTENT_LENGTH)?;
    Some(length.to_str().ok().and_then(|length| length.parse().ok()).unwrap_or(u64::MAX))
}

/// An extension of a response that has `Connection: close` only because the body of the request is unread.
#[derive(Clone, Copy, Debug)]
struct ClosedByUs;

/// Adds `Connection: close` to the response, unless the response already has it. If `may_be_read` is `true`,
/// [`keep_open`] can remove the added field.
pub(super) fn close<B>(answer: &mut Response<B>, may_be_read: bool) {
    if is_closing(answer.headers()) {
        return;
    }
    if may_be_read {
        answer.extensions_mut().insert(ClosedByUs);
    }
    answer.headers_mut().append(CONNECTION, HeaderValue::from_static("close"));
}

/// Removes the field that [`close`] has added. This function is called when the body of the request has been read to
/// its end.
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

pin_project! {
    struct Reading<B> {
        #[pin]
        body: B,
        // The number of bytes that may still be read.
        left: u64,
        max_time: Duration,
        #[pin]
        deadline: Sleep,
        // `true` if `max_time` is over. The deadline is then later by as much again.
        is_late: bool,
        _slot: Slot,
    }
}

impl<B: Body> Future for Reading<B> {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut this = self.project();
        let (mut is_pending, mut has_read) = (false, false);
        for _ in 0..FRAMES_AT_ONCE {
            let frame = match this.body.as_mut().poll_frame(cx) {
                Poll::Pending => {
                    is_pending = true;
                    break;
                }
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let length = frame.data_ref().map_or(0, |data| data.remaining() as u64);
            has_read |= length > 0;
            match this.left.checked_sub(length) {
                Some(left) => *this.left = left,
                None => return Poll::Ready(false),
            }
        }
        if this.deadline.as_mut().poll(cx).is_ready() {
            if mem::replace(this.is_late, true) {
                return Poll::Ready(false);
            }
            this.deadline.set(sleep(*this.max_time));
        }
        // If the runtime's thread stood still past the deadline, the body may have arrived in time. hyper gives one
        // piece of it for each turn. So as long as pieces arrive, there is one more turn, up to the second deadline.
        if *this.is_late && !has_read {
            return Poll::Ready(false);
        }
        if *this.is_late || !is_pending {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// The right to read one body. At most [`MAX_DRAINS`] slots exist for a responder and its clones.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(running: &Arc<AtomicUsize>) -> Option<Self> {
        // Relaxed: the counter orders no other memory.
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
