use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use super::future::ResponseFuture;
use super::policy::set::{PolicySet, SettlePolicies, Verdict};
use super::response::{Rejection, Responder};
use crate::store::Permit;

/// A rate-limited service. Created by [`RateLimitLayer`](super::RateLimitLayer).
///
/// Calls are decided in `call`, since the key is extracted from the request; `poll_ready` is that of the inner service.
/// If a call is rejected, what the inner service reserved in `poll_ready` stays with this clone of it, for its next call.
pub struct RateLimit<Svc, P, R> {
    inner: Svc,
    policies: Arc<P>,
    responder: R,
}

impl<Svc, P, R> RateLimit<Svc, P, R> {
    pub(super) fn new(inner: Svc, policies: Arc<P>, responder: R) -> Self {
        Self { inner, policies, responder }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &Svc {
        &self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> Svc {
        self.inner
    }
}

impl<Svc, Req, P, R> Service<Req> for RateLimit<Svc, P, R>
where
    Svc: Service<Req> + Clone,
    P: PolicySet<Req> + SettlePolicies<Svc::Response>,
    R: Responder<Req, Svc::Response, Svc::Error> + Clone,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<Svc, Req, P, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), R::Error>> {
        self.inner.poll_ready(cx).map_err(|error| self.responder.map_error(error))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let policies = &self.policies;
        let refused = match policies.decide(&request, &|| self.responder.max_wait(&request)) {
            Verdict::Pass => {
                let response = self.inner.call(request);
                return ResponseFuture::calling(response, None, Permit::default(), policies, &self.responder);
            }
            Verdict::Admitted(outcome, permit) => {
                policies.report(&outcome, |reports| self.responder.on_admit(&mut request, reports));
                if let Some(denial) = policies.shadow_denial(&outcome) {
                    self.responder.on_shadow_deny(&mut request, denial);
                }
                let response = self.inner.call(request);
                return ResponseFuture::calling(response, Some(outcome), permit, policies, &self.responder);
            }
            Verdict::Later(wait) => {
                // The instance that is ready must be the one that is called; the clone is for the next call.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                return ResponseFuture::waiting(wait, ready, request, policies, &self.responder);
            }
            Verdict::Denied(outcome) => {
                policies.log_denial(&outcome);
                policies
                    .report(&outcome, |reports| self.responder.reject(&request, Rejection::Limited(reports)))
            }
            Verdict::NoKey(error) => self.responder.reject(&request, Rejection::Key(error)),
        };
        ResponseFuture::reject(refused, self.responder.drain(request), policies, &self.responder)
    }
}

impl<Svc: Clone, P, R: Clone> Clone for RateLimit<Svc, P, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            policies: Arc::clone(&self.policies),
            responder: self.responder.clone(),
        }
    }
}

impl<Svc: fmt::Debug, P: fmt::Debug, R> fmt::Debug for RateLimit<Svc, P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("policies", &self.policies)
            .finish_non_exhaustive()
    }
}
