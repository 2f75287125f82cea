use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

#[cfg(feature = "axum")]
use crate::error::BoxError;
use crate::limiter::Permit;

pin_project! {
    /// The response body of a rate-limited HTTP service: the body that the inner service returned, or the body of a
    /// rejection.
    ///
    /// The trailers and errors of the inner service's body are passed on. `Default` creates an empty body for any type
    /// `B`. If the call has a permit, the body holds the permit until the body ends, fails or is dropped.
    ///
    /// In an axum app, the layer's method `axum_body` (feature `axum`) makes all bodies `axum::body::Body`, which
    /// [saves a box](crate::guide::servers#axum) for each request. Use it also if a compiler error says that it
    /// expected or found `Response<ResponseBody<Body>>`.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
        permit: Permit,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProj]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Full { bytes: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    /// Creates the body of an admitted call. The permit is empty if the call has none.
    #[inline]
    pub(super) fn inner(body: B, permit: Permit) -> Self {
        Self { kind: Kind::Inner { body }, permit }
    }

    pub(super) fn full(bytes: Bytes) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self { kind: Kind::Full { bytes }, permit: Permit::default() }
    }

    pub(super) fn empty() -> Self {
        Self { kind: Kind::Full { bytes: None }, permit: Permit::default() }
    }
}

/// Determines the response body of the limited service, for an inner service with the body type `B`. Only this crate
/// implements the trait.
#[diagnostic::on_unimplemented(
    message = "a service with the body type `{B}` cannot be limited with the body `{Self}`",
    note = "with `axum_body`, the service's body must be an `http_body::Body<Data = Bytes>` that is `Send` \
            and `'static`"
)]
pub trait OuterBody<B> {
    #[doc(hidden)]
    type Body;

    /// The body type that a function can give to a rejection, besides text and bytes.
    #[doc(hidden)]
    type Custom;

    /// Converts the response body of an admitted call. The permit is empty if the call has none.
    #[doc(hidden)]
    fn admitted(body: B, permit: Permit) -> Self::Body;

    /// Converts the body of a rejection.
    #[doc(hidden)]
    fn rejected(body: ResponseBody<Self::Custom>) -> Self::Body;

    /// Returns a body that holds `permit` until the body ends, fails or is dropped.
    #[doc(hidden)]
    fn holding(body: Self::Body, permit: Permit) -> Self::Body;
}

/// The default, with which every body becomes a [`ResponseBody`].
#[derive(Clone, Copy, Debug, Default)]
pub struct WrapBody;

impl<B> OuterBody<B> for WrapBody {
    type Body = ResponseBody<B>;
    type Custom = B;

    #[inline]
    fn admitted(body: B, permit: Permit) -> ResponseBody<B> {
        ResponseBody::inner(body, permit)
    }

    #[inline]
    fn rejected(body: ResponseBody<B>) -> ResponseBody<B> {
        body
    }

    fn holding(mut body: ResponseBody<B>, permit: Permit) -> ResponseBody<B> {
        body.permit = permit;
        body
    }
}

/// Every body becomes axum's. Created by [`HttpResponder::axum_body`](super::HttpResponder::axum_body).
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default)]
pub struct AxumBody;

#[cfg(feature = "axum")]
impl<B> OuterBody<B> for AxumBody
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Body = axum::body::Body;
    type Custom = axum::body::Body;

    #[inline]
    fn admitted(body: B, permit: Permit) -> axum::body::Body {
        match permit.is_empty() {
            // If `body` is axum's body already, `new` returns it as it is.
            true => axum::body::Body::new(body),
            false => axum::body::Body::new(ResponseBody::inner(body, permit)),
        }
    }

    fn rejected(body: ResponseBody<axum::body::Body>) -> axum::body::Body {
        match body.kind {
            Kind::Inner { body } => body,
            Kind::Full { bytes } => bytes.map_or_else(axum::body::Body::empty, axum::body::Body::from),
        }
    }

    fn holding(body: axum::body::Body, permit: Permit) -> axum::body::Body {
        axum::body::Body::new(ResponseBody::inner(body, permit))
    }
}

/// The body of a rejection.
impl From<ResponseBody<Self>> for Bytes {
    fn from(body: ResponseBody<Self>) -> Self {
        match body.kind {
            Kind::Inner { body } => body,
            Kind::Full { bytes } => bytes.unwrap_or_default(),
        }
    }
}

impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.kind.project() {
            KindProj::Inner { body } => {
                let frame = ready!(body.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *this.permit = Permit::default();
                }
                Poll::Ready(frame)
            }
            KindProj::Full { bytes } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Full { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Full { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full};

    #[tokio::test]
    async fn each_kind_knows_its_size_and_its_end() {
        let empty = ResponseBody::<Full<Bytes>>::default();
        assert!(empty.is_end_stream());
        assert_eq!(empty.size_hint().exact(), Some(0));
        assert!(ResponseBody::<Full<Bytes>>::full(Bytes::new()).is_end_stream());

        let mut full = ResponseBody::<Full<Bytes>>::full(Bytes::from_static(b"four"));
        assert!(!full.is_end_stream());
        assert_eq!(full.size_hint().exact(), Some(4));
        assert_eq!(full.frame().await.unwrap().unwrap().into_data().unwrap(), "four");
        assert!(full.is_end_stream() && full.frame().await.is_none());

        let inner = ResponseBody::inner(Full::new(Bytes::from_static(b"inner")), Permit::default());
        assert_eq!(inner.size_hint().exact(), Some(5));
        assert_eq!(inner.collect().await.unwrap().to_bytes(), "inner");
    }
}
