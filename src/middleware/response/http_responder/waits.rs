//! Settings of an [`HttpResponder`] for reported waits, for costs above a limit, and for unread bodies.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::HttpResponder;
use crate::middleware::accept::prefers_html;
use crate::middleware::drain::DrainBody;
use crate::middleware::response::Rejection;
use crate::middleware::response::headers::Waits;
use crate::middleware::response::jitter::jitter;
use crate::middleware::response::options::{BodyFormat, Options, Shape};

impl<F, D, B> HttpResponder<F, D, B> {
    /// Sets the `Retry-After` of a rejection if waiting helps, but the length of the wait is unknown. The length is
    /// unknown if it depends on calls in progress, if the limiter was closed, if its key table is full, or if the store
    /// failed. The default is one second. With `None`, such a rejection has no `Retry-After`, and many clients then
    /// retry at once.
    ///
    /// The time is a hint, and is sent only in `Retry-After` and `retry-after-ms`. If several policies denied the call,
    /// and the wait of some of them is known, the hint is raised to the longest known wait. The [jitter](Self::jitter)
    /// is added to the hint, and the [maximum reported wait](Self::max_reported_wait) caps the sum. A request gets no
    /// hint if it has no valid key, if its caller is forbidden, or if it costs more than a limit can ever admit. gRPC
    /// responses have no hint, because gRPC clients read other fields.
    #[must_use]
    pub const fn retry_after_unknown(mut self, hint: Option<Duration>) -> Self {
        self.options.retry_after_unknown = hint;
        self
    }

    /// Sets the maximum wait that a rejection reports in its header fields and in its gRPC details. If the true wait is
    /// longer than `max`, a client retries after `max`, and may be rejected again. By default there is no maximum.
    #[must_use]
    pub const fn max_reported_wait(mut self, max: Duration) -> Self {
        self.options.max_reported_wait = max;
        self
    }

    /// Sets the status of the rejection of a request that costs more than a limit can ever admit, so that waiting does
    /// not help. The default is 429. Many clients retry any 429, but not a 413. The setting does not apply to gRPC
    /// responses and [custom responses](Self::rejection_response). The function that makes a custom response can call
    /// [`Rejection::unsatisfiable_cost`].
    #[must_use]
    pub const fn never_fits_status(mut self, status: StatusCode) -> Self {
        self.options.never_fits_status = status;
        self
    }

    /// Sets the format of the body of a rejection if waiting does not help. The default is the [format](Self::body) of
    /// all other rejections.
    #[must_use]
    pub const fn never_fits_body(mut self, format: BodyFormat) -> Self {
        self.options.never_fits_body = Some(format);
        self
    }

    /// Lets the responder read and discard the body of a rejected HTTP/1.x request before the response is returned. At
    /// most `max_bytes` of the body are read, for at most `max_time`. By default the body is not read, and the response
    /// has `Connection: close`.
    ///
    /// A client that is still sending its body when the server closes the connection may lose the response. A proxy in
    /// this situation may return 502 to its own client. If the body is read to its end, the client gets the response,
    /// and the connection can be used again.
    ///
    /// If `Content-Length` is above `max_bytes`, or if the client sent [`Expect`](http::header::EXPECT), the response
    /// is returned at once, with `Connection: close`. If reading shows that the body is too long, takes too much time
    /// or fails, the response is returned at that point, also with `Connection: close`. This responder and its clones
    /// together read at most 1,024 bodies at the same time. Further bodies are left unread. Requests over HTTP/2 and
    /// HTTP/3 are not affected.
    ///
    /// The request's body must be an [`http_body::Body`] that is `Send` and `'static`, as the bodies of axum, hyper and
    /// tonic are.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// let responder = HttpResponder::new().drain(2 * 1024 * 1024, Duration::from_millis(500));
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).responder(responder);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    ///
    /// # Panics
    ///
    /// The method itself does not panic. But the limited service panics if it has to read the body of a rejected
    /// request outside of a tokio runtime whose timer is enabled.
    #[must_use]
    pub fn drain(self, max_bytes: u64, max_time: Duration) -> HttpResponder<F, DrainBody, B> {
        let unread = DrainBody::new(max_bytes, max_time);
        HttpResponder { options: self.options, answer: self.answer, unread, body: self.body }
    }
}

impl Options {
    /// Returns the waits that a rejection reports.
    pub(super) fn waits(&self, rejection: &Rejection<'_>) -> Waits {
        let wait = rejection.retry_after();
        let extra = wait.map_or(Duration::ZERO, |_| jitter(self.jitter));
        let wait = wait.map(|wait| wait.saturating_add(extra).min(self.max_reported_wait));
        Waits { wait, extra, max: self.max_reported_wait }
    }

    /// Returns the `Retry-After` of a rejection whose wait is unknown: the configured hint or, if it is longer, the
    /// longest wait that is known. The jitter is included, and the result is at most the maximum reported wait. Returns
    /// `None` if no hint is configured, if waiting does not help, if the call has no valid key, or if the caller is
    /// forbidden.
    pub(super) fn hint(&self, rejection: &Rejection<'_>) -> Option<Duration> {
        if matches!(rejection, Rejection::Key(_)) || rejection.unsatisfiable_cost() {
            return None;
        }
        let hint = self.retry_after_unknown?.max(rejection.known_wait().unwrap_or_default());
        Some(hint.saturating_add(jitter(self.jitter)).min(self.max_reported_wait))
    }

    pub(super) fn shape(&self, rejection: &Rejection<'_>, headers: &HeaderMap) -> Shape {
        let (status, format) = match rejection.unsatisfiable_cost() {
            true => (self.never_fits_status, self.never_fits_body.unwrap_or(self.body)),
            false => (rejection.status(), self.body),
        };
        let format = match format {
            BodyFormat::ByAccept if prefers_html(headers) => BodyFormat::PlainText,
            BodyFormat::ByAccept => BodyFormat::ProblemJson,
            chosen => chosen,
        };
        Shape { status, format }
    }
}
