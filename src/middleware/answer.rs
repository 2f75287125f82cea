//! The answer to a refused HTTP request: the standard one, or one of the user's making.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use super::body::ResponseBody;
use super::head::Head;
use super::options::BodyFormat;
use super::problem;
use super::responder::{Refusal, Report};
use super::waits::Shape;

/// Makes an answer with a body for services whose bodies are `B`. Implemented by this crate only.
pub trait Answer<B> {
    /// The answer, and how long its body is, if that is known.
    #[doc(hidden)]
    fn answer(&self, refusal: &Refusal<'_>, head: &Head<'_>, shape: Shape) -> Answered<B>;
}

type Answered<B> = (Response<ResponseBody<B>>, Option<u64>);

/// The answers that [`HttpResponder`](super::HttpResponder) describes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standard;

impl<B> Answer<B> for Standard {
    fn answer(&self, refusal: &Refusal<'_>, _: &Head<'_>, Shape { status, format }: Shape) -> Answered<B> {
        let (content_type, text) = match format {
            BodyFormat::Problem | BodyFormat::ByAccept => {
                (Some(problem::MEDIA_TYPE), problem_details(refusal, status))
            }
            BodyFormat::Plain => (Some("text/plain; charset=utf-8"), line(refusal)),
            BodyFormat::Empty => (None, Bytes::new()),
        };
        let length = text.len() as u64;
        let mut response = Response::new(ResponseBody::full(text));
        *response.status_mut() = status;
        if let Some(content_type) = content_type {
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        (response, Some(length))
    }
}

fn problem_details(refusal: &Refusal<'_>, status: StatusCode) -> Bytes {
    match refusal {
        Refusal::Limit(reports) if refusal.is_unavailable() => {
            let reduced = visible(reports).find(|report| report.decision().is_unavailable());
            reduced.map_or_else(|| problem::reduced_capacity(&[]), |reduced| reduced.label().reduced.clone())
        }
        Refusal::Limit(reports) => {
            let denials = || visible(reports).filter(|report| !report.decision().is_allowed());
            match (denials().next(), denials().nth(1)) {
                (Some(denial), None) if status == StatusCode::TOO_MANY_REQUESTS => {
                    denial.label().exceeded.clone()
                }
                _ => problem::quota_exceeded_as(status, &denials().map(Report::name).collect::<Vec<_>>()),
            }
        }
        Refusal::Key(error) => problem::plain(refusal.status(), error.public_text()),
        Refusal::Store(failure) if failure.is_hidden => problem::reduced_capacity(&[]),
        Refusal::Store(failure) => failure.label.reduced.clone(),
    }
}

fn line(refusal: &Refusal<'_>) -> Bytes {
    match refusal {
        Refusal::Key(error) => format!("{}\n", error.public_text()).into(),
        Refusal::Limit(_) if !refusal.is_unavailable() => Bytes::from_static(b"rate limit exceeded\n"),
        Refusal::Limit(_) | Refusal::Store(_) => Bytes::from_static(b"service unavailable\n"),
    }
}

fn visible<'a, 'r>(reports: &'r [Report<'a>]) -> impl Iterator<Item = &'r Report<'a>> {
    reports.iter().filter(|report| !report.is_hidden())
}

/// A function of the user's. Made by [`HttpResponder::answer`](super::HttpResponder::answer).
pub struct Custom<F> {
    answer: Arc<F>,
}

impl<F> Custom<F> {
    pub(super) fn new(answer: F) -> Self {
        Self { answer: Arc::new(answer) }
    }
}

impl<B, F, T> Answer<B> for Custom<F>
where
    F: Fn(&Refusal<'_>, &Head<'_>) -> Response<T>,
    T: IntoBody<B>,
{
    fn answer(&self, refusal: &Refusal<'_>, head: &Head<'_>, _: Shape) -> Answered<B> {
        let response = (self.answer)(refusal, head);
        let length = response.body().length();
        (response.map(IntoBody::into_body), length)
    }
}

impl<F> Clone for Custom<F> {
    fn clone(&self) -> Self {
        Self { answer: Arc::clone(&self.answer) }
    }
}

impl<F> fmt::Debug for Custom<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").finish_non_exhaustive()
    }
}

/// What can be the body of a refusal, for services whose bodies are `B`. Implemented by this crate only.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the body of a refusal, where the service's bodies are `{B}`",
    note = "give text, bytes or `()`; or with the feature `axum`, axum's body in an axum app"
)]
pub trait IntoBody<B> {
    #[doc(hidden)]
    fn into_body(self) -> ResponseBody<B>;

    #[doc(hidden)]
    fn length(&self) -> Option<u64>;
}

impl<B> IntoBody<B> for () {
    fn into_body(self) -> ResponseBody<B> {
        ResponseBody::empty()
    }

    fn length(&self) -> Option<u64> {
        Some(0)
    }
}

macro_rules! into_body {
    ($($text:ty),+) => {
        $(impl<B> IntoBody<B> for $text {
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
impl IntoBody<Self> for axum::body::Body {
    fn into_body(self) -> ResponseBody<Self> {
        ResponseBody::inner(self)
    }

    fn length(&self) -> Option<u64> {
        http_body::Body::size_hint(self).exact()
    }
}
