//! A responder that calls a function with each rejection, and the layers whose responder can be set.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Response;

#[cfg(feature = "axum")]
use super::IntoAxumBody;
use super::{HttpResponder, Pass, PolicyReport, RejectHead, Rejection, RequestHead, Responder, Unset};
use crate::decision::Decision;
use crate::limiter::Permit;
use crate::middleware::body::ResponseBody;
use crate::middleware::drain::Drain;

/// A responder that calls a function before it makes the response to a rejected call. Created by
/// [`on_reject`](crate::middleware::RateLimitLayer::on_reject).
pub struct OnReject<R, F> {
    responder: R,
    observe: Arc<F>,
}

impl<R, F> OnReject<R, F> {
    pub(in crate::middleware) fn new(responder: R, observe: F) -> Self {
        Self { responder, observe: Arc::new(observe) }
    }
}

impl<Req, Res, Err, R, F> Responder<Req, Res, Err> for OnReject<R, F>
where
    R: Responder<Req, Res, Err>,
    F: Fn(&Rejection<'_>, &Req),
{
    type Response = R::Response;
    type Error = R::Error;

    const PASS: Option<Pass<Res, Err, R::Response, R::Error>> = R::PASS;
    const DRAINS: bool = R::DRAINS;

    fn passes(&self) -> bool {
        self.responder.passes()
    }

    fn admits_as_is(&self) -> bool {
        self.responder.admits_as_is()
    }

    fn max_wait(&self, request: &Req) -> Option<Duration> {
        self.responder.max_wait(request)
    }

    fn keep_span(&self, request: &mut Req) {
        self.responder.keep_span(request);
    }

    fn on_admit(&self, request: &mut Req, reports: &[PolicyReport<'_>]) {
        self.responder.on_admit(request, reports);
    }

    fn on_shadow_deny(&self, request: &mut Req, denial: &Decision) {
        self.responder.on_shadow_deny(request, denial);
    }

    fn hold_permit(&self, response: Self::Response, permit: Permit) -> Self::Response {
        self.responder.hold_permit(response, permit)
    }

    fn map_response(&self, reports: &[PolicyReport<'_>], response: Res) -> Self::Response {
        self.responder.map_response(reports, response)
    }

    #[inline]
    fn convert(&self, reports: &[PolicyReport<'_>], response: Res, permit: Permit) -> Self::Response {
        self.responder.convert(reports, response, permit)
    }

    fn map_error(&self, error: Err) -> Self::Error {
        self.responder.map_error(error)
    }

    fn reject(&self, request: &Req, rejection: Rejection<'_>) -> Result<Self::Response, Self::Error> {
        (self.observe)(&rejection, request);
        self.responder.reject(request, rejection)
    }

    fn drain(&self, request: Req) -> Option<Drain> {
        self.responder.drain(request)
    }

    fn drained(&self, answer: &mut Self::Response) {
        self.responder.drained(answer);
    }
}

/// The function is not called, because its argument is a whole request.
impl<T, R: RejectHead<T>, F> RejectHead<T> for OnReject<R, F> {
    fn reject_head(&self, head: &RequestHead<'_>, rejection: Rejection<'_>) -> Response<ResponseBody<T>> {
        self.responder.reject_head(head, rejection)
    }
}

/// What can be set as the responder of a layer that has the responder `R` now: anything, if it has none of its own yet.
/// Only this crate implements the trait.
#[diagnostic::on_unimplemented(
    message = "the responder of this layer cannot be set any more",
    label = "this layer has a responder or `axum_body` already",
    note = "call `responder` once, and before `axum_body`; jitter, formats and the like are methods of `HttpResponder`"
)]
pub trait SetOn<R> {
    #[doc(hidden)]
    type Responder;

    #[doc(hidden)]
    fn set_on(self, present: R) -> Self::Responder;
}

impl<T> SetOn<HttpResponder<Unset>> for T {
    type Responder = T;

    fn set_on(self, _: HttpResponder<Unset>) -> T {
        self
    }
}

impl<T: SetOn<R>, R, F> SetOn<OnReject<R, F>> for T {
    type Responder = OnReject<T::Responder, F>;

    fn set_on(self, present: OnReject<R, F>) -> Self::Responder {
        OnReject { responder: self.set_on(present.responder), observe: present.observe }
    }
}

#[cfg(feature = "axum")]
impl<R: IntoAxumBody, F> IntoAxumBody for OnReject<R, F> {
    type Responder = OnReject<R::Responder, F>;

    fn into_axum_body(self) -> Self::Responder {
        OnReject { responder: self.responder.into_axum_body(), observe: self.observe }
    }
}

impl<R: Clone, F> Clone for OnReject<R, F> {
    fn clone(&self) -> Self {
        Self { responder: self.responder.clone(), observe: Arc::clone(&self.observe) }
    }
}

impl<R: fmt::Debug, F> fmt::Debug for OnReject<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnReject").field("responder", &self.responder).finish_non_exhaustive()
    }
}
