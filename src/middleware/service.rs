use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use super::future::ResponseFuture;
use super::policy::set::{Policies, PolicySet, Progress, SettlePolicies};
use super::response::Responder;
use super::shared::{Admitted, Shared};

/// A rate-limited service. Created by [`RateLimitLayer`](super::RateLimitLayer).
///
/// `poll_ready` only polls the inner service. The decision begins in `call`, because the key is extracted from the
/// request. If the call is rejected in `call`, everything that the inner service reserved in `poll_ready` stays
/// reserved for the next call of this clone. If the call waits for its decision, because it is queued or because the
/// store replies later, the response future takes over the inner service with its reservation, and this clone continues
/// with a new clone of the inner service.
pub struct RateLimit<Svc, P, R> {
    inner: Svc,
    shared: Arc<Shared<P, R>>,
}

impl<Svc, P, R> RateLimit<Svc, P, R> {
    pub(super) fn new(inner: Svc, policies: Arc<Policies<P>>, responder: R) -> Self {
        Self { inner, shared: Arc::new(Shared::new(policies, responder)) }
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
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<Svc, Req, P, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), R::Error>> {
        self.inner.poll_ready(cx).map_err(|error| self.shared.responder.map_error(error))
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let (shared, policies) = (&self.shared, &*self.shared.policies);
        let max_wait = match policies.set.may_queue(&policies.infos) {
            true => shared.responder.max_wait(&request),
            false => None,
        };
        let mut outcomes = P::Outcomes::default();
        match policies.set.decide(&policies.infos, &request, max_wait, &mut outcomes) {
            Progress::Ready(Ok(())) => {
                let started = shared.admit(&mut request, &outcomes);
                let shared = Arc::clone(shared);
                let response = self.inner.call(request);
                ResponseFuture::calling(response, Admitted { outcomes, started }, shared)
            }
            Progress::Ready(Err(rejected)) => ResponseFuture::rejected(rejected, &outcomes, request, shared),
            Progress::Pending(wait) => {
                // Only the instance that is ready may be called, so it moves into the future. Its clone stays here for
                // the next call.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                ResponseFuture::waiting(wait, ready, request, shared)
            }
        }
    }
}

impl<Svc: Clone, P, R> Clone for RateLimit<Svc, P, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<Svc: fmt::Debug, P: fmt::Debug, R> fmt::Debug for RateLimit<Svc, P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("policies", &self.shared.policies)
            .finish_non_exhaustive()
    }
}
