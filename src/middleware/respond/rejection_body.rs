//! The response to a rejected HTTP request: the default response, or the response that a function of the user returns.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};

use super::accept::prefers_html;
use super::{PolicyReport, Rejection};
#[cfg(feature = "axum")]
use crate::limiter::Permit;
use crate::middleware::body::ResponseBody;
use crate::middleware::problem_json;
use crate::observe::RejectedBy;

/// The body of a rejection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyFormat {
    /// One line of text for clients whose `Accept` prefers `text/html` to JSON, such as a browser that opens a page.
    /// All other clients get [problem details](Self::ProblemJson). At most 512 bytes of `Accept` are read: a line with
    /// which the field is longer is ignored, and so are the lines after it.
    #[default]
    ByAccept,
    /// Problem details (RFC 9457), with the types that the RateLimit draft registers.
    ProblemJson,
    /// One line of text.
    PlainText,
    /// An empty body.
    Empty,
}

/// A rejected request without its body. Is made from a reference to a [`Request`] or to its [`Parts`].
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: Version,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a, B> From<&'a Request<B>> for RequestHead<'a> {
    #[inline]
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl<'a> From<&'a Parts> for RequestHead<'a> {
    fn from(parts: &'a Parts) -> Self {
        let Parts { method, uri, version, headers, extensions, .. } = parts;
        Self { method, uri, version: *version, headers, extensions }
    }
}

impl<'a> RequestHead<'a> {
    /// Returns the request's method.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// Returns the request's URI.
    #[must_use]
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// Returns the request's HTTP version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the request's header fields.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the request's extensions, such as those that outer layers have inserted.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// Records that a handler has rejected the request, in the span in which a layer has seen it, or else in the
    /// current one, if the span declares the field.
    pub(in crate::middleware) fn record_rejected_by(&self, limiter: &str) {
        if let Some(span) = self.extensions.get().cloned().or_else(RejectedBy::current) {
            span.record(limiter);
        }
    }
}

/// A responder that can answer a request of which only the head is left, with a body that may be a `T`. Only this crate
/// implements the trait, for [`HttpResponder`](crate::middleware::HttpResponder).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot answer a request by its head",
    note = "only `HttpResponder` can, and in `RateLimitLayer::reject` its own function must return text, bytes or `()`"
)]
pub trait RejectHead<T> {
    #[doc(hidden)]
    fn reject_head(&self, head: &RequestHead<'_>, rejection: Rejection<'_>) -> Response<ResponseBody<T>>;
}

/// Makes the response to a rejected request, for services with the body type `B`. Only this crate implements the trait.
pub trait RejectionResponse<B> {
    /// `true` if the implementation makes the default responses.
    #[doc(hidden)]
    const IS_DEFAULT: bool;

    /// Returns the response. If the request is a `HEAD` request, the response has no body.
    #[doc(hidden)]
    fn answer(
        &self,
        rejection: &Rejection<'_>,
        head: &RequestHead<'_>,
        shape: Shape,
    ) -> Response<ResponseBody<B>>;
}

/// The status and the body format of a rejection.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    status: StatusCode,
    format: BodyFormat,
    /// Whether the client prefers HTML, if that is known.
    is_html: Option<bool>,
}

impl Shape {
    pub(super) fn new(status: StatusCode, format: BodyFormat, is_html: Option<bool>) -> Self {
        Self { status, format, is_html }
    }
}

/// Removes the body. If the length of the body is known and `Content-Length` is not set, sets `Content-Length` to this
/// length.
fn without_body<T, B>(response: Response<T>, length: Option<u64>) -> Response<ResponseBody<B>> {
    let mut response = response.map(|_| ResponseBody::empty());
    if let Some(length) = length {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    response
}

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Makes the default responses, which [`HttpResponder`](crate::middleware::HttpResponder) describes.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultRejection;

impl<B> RejectionResponse<B> for DefaultRejection {
    const IS_DEFAULT: bool = true;

    fn answer(
        &self,
        rejection: &Rejection<'_>,
        head: &RequestHead<'_>,
        Shape { status, format, is_html }: Shape,
    ) -> Response<ResponseBody<B>> {
        let is_html = || is_html.unwrap_or_else(|| prefers_html(head.headers()));
        let (content_type, text) = match format {
            BodyFormat::Empty => (None, Bytes::new()),
            BodyFormat::PlainText => (Some(PLAIN_TEXT), line(rejection)),
            BodyFormat::ByAccept if is_html() => (Some(PLAIN_TEXT), line(rejection)),
            BodyFormat::ByAccept | BodyFormat::ProblemJson => {
                (Some(problem_json::MEDIA_TYPE), problem_details(rejection, status))
            }
        };
        let length = text.len() as u64;
        let mut response = Response::new(ResponseBody::full(text));
        *response.status_mut() = status;
        if let Some(content_type) = content_type {
            response.headers_mut().insert(CONTENT_TYPE, content_type);
        }
        if *head.method() == Method::HEAD { without_body(response, Some(length)) } else { response }
    }
}

/// Makes the same responses as [`DefaultRejection`], for a layer whose responder is not set. It is a type of its own,
/// so that a layer with a responder has another type than one without.
#[derive(Clone, Copy, Debug)]
pub struct Unset;

impl<B> RejectionResponse<B> for Unset {
    const IS_DEFAULT: bool = true;

    fn answer(
        &self,
        rejection: &Rejection<'_>,
        head: &RequestHead<'_>,
        shape: Shape,
    ) -> Response<ResponseBody<B>> {
        DefaultRejection.answer(rejection, head, shape)
    }
}

fn problem_details(rejection: &Rejection<'_>, status: StatusCode) -> Bytes {
    match rejection {
        Rejection::Limited(reports) if rejection.is_unavailable() => {
            let reduced = visible(reports).find(|report| report.decision().is_unavailable());
            reduced
                .map_or_else(|| problem_json::reduced_capacity(&[]), |reduced| reduced.label().reduced_body())
        }
        Rejection::Limited(reports) => {
            let denials = || visible(reports).filter(|report| !report.decision().is_allowed());
            match (denials().next(), denials().nth(1)) {
                (Some(denial), None) if status == StatusCode::TOO_MANY_REQUESTS => {
                    denial.label().exceeded_body()
                }
                _ => problem_json::quota_exceeded_as(
                    status,
                    &denials().map(PolicyReport::name).collect::<Vec<_>>(),
                ),
            }
        }
        Rejection::Key(error) => problem_json::plain(rejection.status(), error.public_text()),
        Rejection::Store(failure) => failure.info.names().store_failed_body(),
    }
}

fn line(rejection: &Rejection<'_>) -> Bytes {
    match rejection {
        Rejection::Key(error) => format!("{}\n", error.public_text()).into(),
        Rejection::Limited(_) if !rejection.is_unavailable() => Bytes::from_static(b"rate limit exceeded\n"),
        Rejection::Limited(_) | Rejection::Store(_) => Bytes::from_static(b"service unavailable\n"),
    }
}

fn visible<'a, 'r>(reports: &'r [PolicyReport<'a>]) -> impl Iterator<Item = &'r PolicyReport<'a>> {
    reports.iter().filter(|report| !report.is_hidden())
}

/// A function that makes the responses to rejected requests. Created by
/// [`HttpResponder::rejection_response`](crate::middleware::HttpResponder::rejection_response).
pub struct RejectionFn<F> {
    answer: Arc<F>,
}

impl<F> RejectionFn<F> {
    pub(super) fn new(answer: F) -> Self {
        Self { answer: Arc::new(answer) }
    }
}

impl<B, F, T> RejectionResponse<B> for RejectionFn<F>
where
    F: Fn(&Rejection<'_>, &RequestHead<'_>) -> Response<T>,
    T: IntoRejectionBody<B>,
{
    const IS_DEFAULT: bool = false;

    fn answer(
        &self,
        rejection: &Rejection<'_>,
        head: &RequestHead<'_>,
        _: Shape,
    ) -> Response<ResponseBody<B>> {
        let response = (self.answer)(rejection, head);
        if *head.method() == Method::HEAD {
            let length = response.body().length();
            without_body(response, length)
        } else {
            response.map(IntoRejectionBody::into_body)
        }
    }
}

impl<F> Clone for RejectionFn<F> {
    fn clone(&self) -> Self {
        Self { answer: Arc::clone(&self.answer) }
    }
}

impl<F> fmt::Debug for RejectionFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionFn").finish_non_exhaustive()
    }
}

/// A type that the body of a rejection can have, for services with the body type `B`. Only this crate implements the
/// trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the body of a rejection, if the service's body type is `{B}`",
    note = "give text, bytes or `()`; or with the feature `axum`, axum's body in an axum app"
)]
pub trait IntoRejectionBody<B> {
    #[doc(hidden)]
    fn into_body(self) -> ResponseBody<B>;

    #[doc(hidden)]
    fn length(&self) -> Option<u64>;
}

impl<B> IntoRejectionBody<B> for () {
    fn into_body(self) -> ResponseBody<B> {
        ResponseBody::empty()
    }

    fn length(&self) -> Option<u64> {
        Some(0)
    }
}

macro_rules! into_body {
    ($($text:ty),+) => {
        $(impl<B> IntoRejectionBody<B> for $text {
            fn into_body(self) -> ResponseBody<B> {
                ResponseBody::full(self.into())
            }

            fn length(&self) -> Option<u64> {
                Some(self.len() as u64)
            }
        })+
    };
}

into_body!(Bytes, String, Vec<u8>, &'static str, &'static [u8]);

#[cfg(feature = "axum")]
impl IntoRejectionBody<Self> for axum::body::Body {
    fn into_body(self) -> ResponseBody<Self> {
        ResponseBody::inner(self, Permit::default())
    }

    fn length(&self) -> Option<u64> {
        http_body::Body::size_hint(self).exact()
    }
}
