//! What an [`HttpResponder`] says of waits, and of requests for which no wait helps.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::accept::prefers_html;
use super::drain::DrainBody;
use super::response::Rejection;
use super::response::headers::Waits;
use super::response::http_responder::HttpResponder;
use super::response::jitter::jitter;
use super::response::options::{BodyFormat, Options};

impl<F, D> HttpResponder<F, D> {
    /// What `Retry-After` says where a wait helps but nothing tells how long it is: of calls in progress, of a limiter that
    /// was closed, of a store that failed. One second unless set; `None`: nothing, and many clients then come back at once.
    ///
    /// It is a hint and stands in `Retry-After` only, no shorter than the wait of another policy that denied. A request that
    /// costs more than a limit can ever admit gets none, nor do gRPC callers, which go by other fields.
    #[must_use]
    pub const fn retry_after_unknown(mut self, hint: Option<Duration>) -> Self {
        self.options.retry_after_unknown = hint;
        self
    }

    /// The longest wait that a refusal reports, in any of its fields: clients that sleep through whatever they are told
    /// come back after `most`, though they may be refused again. Unbounded unless set.
    #[must_use]
    pub const fn max_reported_wait(mut self, most: Duration) -> Self {
        self.options.longest_wait = most;
        self
    }

    /// The status of a refusal for which no wait helps, since the request costs more than a limit can ever admit; 429
    /// unless set. Many clients retry any 429: 413 keeps them from it. gRPC callers and answers of one's own are not
    /// concerned; those ask [`Rejection::unsatisfiable_cost`].
    #[must_use]
    pub const fn never_fits_status(mut self, status: StatusCode) -> Self {
        self.options.never_fits_status = status;
        self
    }

    /// The body of such a refusal; that of [all others](Self::body) unless set.
    #[must_use]
    pub const fn never_fits_body(mut self, format: BodyFormat) -> Self {
        self.options.never_fits_body = Some(format);
        self
    }

    /// Reads and discards the body of a refused HTTP/1.x request before the answer is returned: at most `max_bytes` of it,
    /// for at most `max_time`. Unless set, nothing of it is read, and the answer says `Connection: close`.
    ///
    /// A client that is still sending when the server closes may lose the answer, and a proxy then answers 502. A body
    /// that is read to its end spares the connection, too. The answer says `Connection: close` at once if a longer body is
    /// announced or the client [expects](http::header::EXPECT) to be asked for it; and as soon as a body turns out to be
    /// longer, slower, or broken. At most 1,024 bodies are read at the same time, by all clones of this responder; the
    /// others are left unread. Over HTTP/2 there is no need for any of that.
    ///
    /// The request's body must be an [`http_body::Body`] that is `Send` and `'static`, as those of axum, hyper and tonic
    /// are.
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
    /// The responder does not. The limited service does, if it refuses such a request outside a tokio runtime with a
    /// timer.
    #[must_use]
    pub fn drain(self, max_bytes: u64, max_time: Duration) -> HttpResponder<F, DrainBody> {
        let unread = DrainBody::new(max_bytes, max_time);
        HttpResponder { options: self.options, answer: self.answer, unread }
    }
}

/// The status and the body of a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(super) status: StatusCode,
    /// Not by `Accept`: that is decided.
    pub(super) format: BodyFormat,
}

impl Options {
    /// How the waits of a refusal are reported.
    pub(super) fn waits(&self, rejection: &Rejection<'_>) -> Waits {
        let wait = rejection.retry_after();
        let extra = wait.map_or(Duration::ZERO, |_| jitter(self.jitter));
        let wait = wait.map(|wait| wait.saturating_add(extra).min(self.longest_wait));
        Waits { wait, extra, longest: self.longest_wait }
    }

    /// What `Retry-After` says where nothing tells how long; `None` where no wait helps, or the key is the problem.
    pub(super) fn hint(&self, rejection: &Rejection<'_>) -> Option<Duration> {
        if matches!(rejection, Rejection::Key(_)) || rejection.unsatisfiable_cost() {
            return None;
        }
        let hint = self.retry_after_unknown?.max(rejection.known_wait().unwrap_or_default());
        Some(hint.saturating_add(jitter(self.jitter)).min(self.longest_wait))
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
