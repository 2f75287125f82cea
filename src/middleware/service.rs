//! The rate-limited service, its response future, and the part that the clones of a service share.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::drain::Drain;
use super::outcome::{Outcome, limited, record_decisions, record_end, shadow_denial, take_permit, word};
use super::policies::{Policies, PolicySet, Progress, RejectReason, SettlePolicies};
use super::respond::{Rejection, Responder, StoreError, reports};
use crate::clock::Nanos;
use crate::observe;

/// A rate-limited service. Created by [`RateLimitLayer`](super::RateLimitLayer).
///
/// `poll_ready` only polls the inner service. The decision begins in `call`, because the key is extracted from the
/// request. If the call is rejected, everything that the inner service reserved in `poll_ready` is released, such as a
/// permit of tower's `ConcurrencyLimit`: this clone continues with a new clone of the inner service. If the call waits
/// for its decision, because it is queued or because the limiter replies later, the response future takes over the
/// inner service with its reservation, and this clone continues with a new clone, too.
pub struct RateLimit<Svc, P, R> {
    inner: Svc,
    shared: Arc<SharedPart<P, R>>,
}

impl<Svc, P, R> RateLimit<Svc, P, R> {
    pub(super) fn new(inner: Svc, policies: Arc<Policies<P>>, responder: R) -> Self {
        Self { inner, shared: Arc::new(SharedPart::new(policies, responder)) }
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
        let shared = &self.shared;
        let (policies, infos) = shared.policies.parts();
        let max_wait = if policies.may_queue(infos) { shared.responder.max_wait(&request) } else { None };
        let mut outcomes = P::Outcomes::default();
        match policies.decide_request(infos, &request, max_wait, &mut outcomes) {
            Progress::Ready(Ok(())) => {
                let started = if shared.admits_as_is(outcomes.as_ref()) {
                    Nanos::ZERO
                } else {
                    shared.admit(&mut request, &mut outcomes)
                };
                if shared.passes(outcomes.as_ref()) {
                    let response = self.inner.call(request);
                    return ResponseFuture { stage: Stage::Passing { response }, shared: None };
                }
                let shared = Arc::clone(shared);
                let response = self.inner.call(request);
                let admitted = Some(Admitted { outcomes, started });
                let response = Some(response);
                ResponseFuture { stage: Stage::Calling { response, admitted }, shared: Some(shared) }
            }
            Progress::Ready(Err(rejected)) => {
                let answer = ResponseFuture::rejected(rejected, &outcomes, request, shared);
                // A client that keeps this clone must not keep what the inner service has reserved in `poll_ready`.
                if may_reserve::<Svc>() {
                    self.inner = self.inner.clone();
                }
                answer
            }
            Progress::Pending(wait) => {
                // Only the instance that is ready may be called, so it moves into the future. Its clone stays here for
                // the next call.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                let held = Box::pin(WaitingCall { wait, call: Some((ready, request)) });
                ResponseFuture { stage: Stage::Waiting { held }, shared: Some(Arc::clone(shared)) }
            }
        }
    }
}

/// Returns whether `poll_ready` may reserve something. That of axum's `Route` does nothing, and a clone of it clones
/// all layers inside. This is known by its name, since services need not be `'static`.
#[inline]
fn may_reserve<Svc>() -> bool {
    #[cfg(feature = "axum")]
    let route = type_name::<axum::routing::Route>();
    #[cfg(not(feature = "axum"))]
    let route = "";
    type_name::<Svc>() != route
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

pin_project! {
    /// The response future of a rate-limited service.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while its call is queued, the calls behind this call move up, and the inner service is
    /// not called. With state in memory, the limit that queues the call has charged nothing. A
    /// [joined](crate::RateLimitLayer::and) policy that has already charged the call refunds as much of the charge as
    /// still counts. If the future is dropped before the reply of a limiter that replies later, such as one in Redis,
    /// that limiter may already have charged the call.
    ///
    /// The future may also be dropped after the queue has admitted the call, but before the next poll of the future.
    /// With state in memory, the charge is then undone, with one exception: the charge stays if another call for the
    /// key was admitted since, or if the key's state was changed in another way, such as by a refund.
    ///
    /// Once the inner service was called, the charge stays. If the future is dropped before its response is ready, a
    /// permit of the call is released.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Svc, Req, P, R>
    where
        Svc: Service<Req>,
        P: PolicySet<Req>,
        R: Responder<Req, Svc::Response, Svc::Error>,
    {
        #[pin]
        stage: Stage<WaitingCall<P::Wait, Svc, Req>, Svc::Future, P::Outcomes, Result<R::Response, R::Error>>,
        // `None` if the future only has to return a rejection, or to pass on a response.
        shared: Option<Arc<SharedPart<P, R>>>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<H, F, O, T> {
        // This field is boxed, so that the future of a call that is not queued stays small.
        Waiting { held: Pin<Box<H>> },
        // Nothing is left to do for the call but to pass on its response.
        Passing {
            #[pin]
            response: F,
        },
        Calling {
            // Both are `None` once the response was ready.
            #[pin]
            response: Option<F>,
            admitted: Option<Admitted<O>>,
        },
        Answered { answer: Option<T>, drain: Option<Drain> },
        Done,
    }
}

pin_project! {
    /// A call that waits for its decision, with its request and the instance of the service that is ready for the
    /// request.
    struct WaitingCall<W, Svc, Req> {
        #[pin]
        wait: W,
        call: Option<(Svc, Req)>,
    }
}

impl<Svc, Req, P, R> ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: PolicySet<Req>,
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    /// Creates the future of a call that was rejected.
    #[inline(always)]
    fn rejected(
        rejected: RejectReason,
        outcomes: &P::Outcomes,
        request: Req,
        shared: &Arc<SharedPart<P, R>>,
    ) -> Self {
        let answer = shared.reject(rejected, &request, outcomes);
        let drain = if R::DRAINS {
            shared.responder.drain(request)
        } else {
            drop(request);
            None
        };
        let shared = drain.is_some().then(|| Arc::clone(shared));
        Self { stage: Stage::Answered { answer: Some(answer), drain }, shared }
    }
}

impl<Svc, Req, P, R> Future for ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: PolicySet<Req> + SettlePolicies<Svc::Response>,
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    type Output = Result<R::Response, R::Error>;

    /// # Panics
    ///
    /// Panics if the future is polled after it has returned `Poll::Ready`. If the call is queued and the limiter has
    /// the default clock, also panics outside a tokio runtime whose timer is enabled.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        match this.stage.project() {
            // The inner future is dropped before its response is converted, since it may hold resources, such as a
            // permit of another layer.
            StageProj::Passing { response } => {
                let polled = response.poll(cx);
                if polled.is_pending() {
                    return Poll::Pending;
                }
                self.project().stage.set(Stage::Done);
                let pass = R::PASS.expect("a responder that passes on responses converts them");
                pass(polled)
            }
            StageProj::Calling { mut response, admitted } => {
                let inner = response.as_mut().as_pin_mut().expect("polled after it was ready");
                let answered = inner.poll(cx);
                if answered.is_pending() {
                    return Poll::Pending;
                }
                let mut ended = Ended(admitted);
                response.set(None);
                let shared = this.shared.as_ref().expect("an admitted call has its policies");
                shared.finish(answered, &mut ended)
            }
            StageProj::Waiting { .. } => {
                ready!(self.as_mut().poll_wait(cx));
                self.poll(cx)
            }
            StageProj::Answered { answer, drain } => {
                if let Some(reading) = drain {
                    let at_end = ready!(Pin::new(reading).poll(cx));
                    *drain = None;
                    if let (true, Some(Ok(answer)), Some(shared)) = (at_end, &mut *answer, &*this.shared) {
                        shared.responder.drained(answer);
                    }
                }
                Poll::Ready(answer.take().expect("polled after it was ready"))
            }
            StageProj::Done => panic!("polled after it was ready"),
        }
    }
}

impl<Svc, Req, P, R> ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: PolicySet<Req> + SettlePolicies<Svc::Response>,
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    /// Polls the wait of a call. Once the call is decided, passes an admitted call to the inner service, or makes the
    /// response to a rejected call.
    fn poll_wait(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let StageProj::Waiting { held } = this.stage.as_mut().project() else { return Poll::Ready(()) };
        let shared = this.shared.as_ref().expect("a queued call has its policies");
        let held = held.as_mut().project();
        let waited = ready!(held.wait.poll(cx));
        let (mut ready, mut request) = held.call.take().expect("it calls once");
        let ((policies, infos), mut outcomes) = (shared.policies.parts(), P::Outcomes::default());
        let next = match policies.waited(infos, &request, waited, &mut outcomes) {
            Ok(()) => {
                limited(infos, outcomes.as_ref())
                    .for_each(|(info, outcome)| info.log_wait(outcome.decision()));
                let started = shared.admit(&mut request, &mut outcomes);
                let passes = shared.passes(outcomes.as_ref());
                let response = ready.call(request);
                if passes {
                    Stage::Passing { response }
                } else {
                    let admitted = Some(Admitted { outcomes, started });
                    Stage::Calling { response: Some(response), admitted }
                }
            }
            Err(rejected) => Self::rejected(rejected, &outcomes, request, shared).stage,
        };
        this.stage.set(next);
        Poll::Ready(())
    }
}

impl<Svc, Req, P, R> fmt::Debug for ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: PolicySet<Req>,
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// The part that the clones of a service share.
struct SharedPart<P, R> {
    policies: Arc<Policies<P>>,
    responder: R,
    has_timeline: bool,
    is_metered: bool,
}

impl<P, R> SharedPart<P, R> {
    fn new(policies: Arc<Policies<P>>, responder: R) -> Self {
        let (_, infos) = policies.parts();
        let has_timeline = infos.iter().any(|info| info.timeline().is_some());
        let is_metered = infos.iter().any(|info| info.settings.is_metered);
        Self { policies, responder, has_timeline, is_metered }
    }

    /// Prepares an admitted request for the inner service. Returns the clock reading from which the response time is
    /// measured, or zero if none of the policies that decided the request has a timeline.
    #[inline(always)]
    fn admit<Req, Res, Err>(&self, request: &mut Req, outcomes: &mut P::Outcomes) -> Nanos
    where
        P: PolicySet<Req>,
        R: Responder<Req, Res, Err>,
    {
        let (policies, infos) = self.policies.parts();
        policies.meter(infos, request, outcomes.as_mut());
        let outcomes = outcomes.as_ref();
        if observe::is_on() {
            self.record_admission(request, outcomes);
        }
        let started = if self.has_timeline { record_decisions(infos, outcomes, true) } else { Nanos::ZERO };
        if outcomes.iter().any(Option::is_some) {
            self.responder.on_admit(request, &reports(infos, outcomes));
        }
        if let Some(denial) = shadow_denial(outcomes) {
            self.responder.on_shadow_deny(request, denial);
        }
        started
    }

    /// Records the outcome of an admitted request in its span, and keeps the span for handlers, which may reject it.
    #[inline(never)]
    fn record_admission<Req, Res, Err>(&self, request: &mut Req, outcomes: &[Option<Outcome>])
    where
        R: Responder<Req, Res, Err>,
    {
        observe::record_decision(|| word(outcomes));
        self.responder.keep_span(request);
    }

    /// Returns whether [`admit`](Self::admit) would do nothing. To find that out takes less than to do nothing, for
    /// which the reports would be made.
    #[inline(always)]
    fn admits_as_is<Req, Res, Err>(&self, outcomes: &[Option<Outcome>]) -> bool
    where
        R: Responder<Req, Res, Err>,
    {
        self.responder.admits_as_is()
            && !self.is_metered
            && !self.has_timeline
            && !observe::is_on()
            && !outcomes.iter().flatten().any(Outcome::is_shadow)
    }

    /// Returns whether nothing is left to do for an admitted call but to pass on its response.
    #[inline(always)]
    fn passes<Req, Res, Err>(&self, outcomes: &[Option<Outcome>]) -> bool
    where
        R: Responder<Req, Res, Err>,
    {
        R::PASS.is_some()
            && self.responder.passes()
            && !self.has_timeline
            && outcomes.iter().flatten().all(Outcome::holds_nothing)
    }

    /// Returns the response to a rejected request.
    fn reject<Req, Res, Err>(
        &self,
        rejected: RejectReason,
        request: &Req,
        outcomes: &P::Outcomes,
    ) -> Result<R::Response, R::Error>
    where
        P: PolicySet<Req>,
        R: Responder<Req, Res, Err>,
    {
        let ((_, infos), outcomes) = (self.policies.parts(), outcomes.as_ref());
        match rejected {
            RejectReason::Denied => {
                observe::record_decision(|| word(outcomes));
                if self.has_timeline {
                    record_decisions(infos, outcomes, false);
                }
                limited(infos, outcomes).for_each(|(info, outcome)| info.log_denial(outcome.decision()));
                self.responder.reject(request, Rejection::Limited(&reports(infos, outcomes)))
            }
            RejectReason::KeyError(error) => {
                observe::record_decision(|| Some(error.label()));
                self.responder.reject(request, Rejection::Key(error))
            }
            RejectReason::StoreError(at, error) => {
                self.responder.reject(request, Rejection::Store(StoreError::new(&infos[at], error)))
            }
        }
    }

    /// Makes the response to an admitted call, whose inner service has returned its result.
    // Responses are large. This function is not inlined, and takes and returns a `Poll`, because the compiler otherwise
    // copies each response several times.
    #[inline(never)]
    fn finish<Req, Res, Err>(
        &self,
        answered: Poll<Result<Res, Err>>,
        ended: &mut Ended<'_, P::Outcomes>,
    ) -> Poll<Result<R::Response, R::Error>>
    where
        P: PolicySet<Req> + SettlePolicies<Res>,
        R: Responder<Req, Res, Err>,
    {
        let (Poll::Ready(result), Some(admitted)) = (&answered, &mut *ended.0) else { return Poll::Pending };
        let ((policies, infos), outcomes) = (self.policies.parts(), admitted.outcomes.as_mut());
        if self.has_timeline {
            record_end(infos, outcomes, admitted.started, result.is_ok());
        }
        if let Ok(response) = result {
            policies.settle(outcomes, response);
        }
        // If the inner service returned an error, the permit is released when this function returns.
        let permit = take_permit(outcomes);
        match answered {
            Poll::Ready(Ok(response)) => {
                Poll::Ready(Ok(self.responder.convert(&reports(infos, outcomes), response, permit)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.responder.map_error(error))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// An admitted call whose response has not been made yet.
struct Admitted<O> {
    outcomes: O,
    /// The clock reading from which the response time is measured. Zero if none of the policies that decided the call
    /// has a timeline.
    started: Nanos,
}

/// An admitted call whose inner service has returned its result. Dropping this value releases the permits of the call
/// where they are, also if something panics.
struct Ended<'a, O>(&'a mut Option<Admitted<O>>);

impl<O> Drop for Ended<'_, O> {
    fn drop(&mut self) {
        *self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc;

    use http::{Request, Response};
    use tower_layer::Layer;

    use super::*;
    use crate::middleware::policies::undecided;
    use crate::middleware::{OnStoreError, RateLimitLayer, Shadow};
    use crate::quota::Quota;

    #[cfg(feature = "axum")]
    #[test]
    fn of_all_services_only_routes_of_axum_are_known_to_reserve_nothing() {
        assert!(!may_reserve::<axum::routing::Route>());
        assert!(
            may_reserve::<axum::routing::MethodRouter>() && may_reserve::<Option<axum::routing::Route>>()
        );
    }

    #[test]
    fn if_a_store_fails_only_policies_that_are_enforced_reject_the_request() {
        let limit = || RateLimitLayer::per_ip(Quota::per_minute(1));
        let (off, shadow) = (|| limit().enabled(false), || limit().shadow(&Shadow::on()));
        let allows = || limit().on_store_error(OnStoreError::Allow);
        for (first, second, errors, rejecting) in [
            (limit(), allows(), [1, 1], Some("default")),
            (allows(), limit(), [1, 1], Some("default-2")),
            (off(), limit(), [0, 1], Some("default-2")),
            (shadow(), limit(), [1, 1], Some("default-2")),
            (limit(), shadow(), [1, 1], Some("default")),
            (off(), allows(), [0, 1], None),
            (shadow(), allows(), [1, 1], None),
        ] {
            let (names, seen) = mpsc::channel();
            let layer = first.and(second).on_reject(move |rejection: &Rejection<'_>, _: &Request<()>| {
                if let Rejection::Store(failure) = rejection {
                    names.send(failure.name().to_owned()).unwrap();
                }
            });
            let shared = layer.layer(()).shared;
            let (_, infos) = shared.policies.parts();
            let verdict = undecided(infos.iter().map(|info| (info, info.mode())), "down".into());
            assert_eq!(layer.stats().iter().map(|policy| policy.store_errors).collect::<Vec<_>>(), errors);
            if let Err(rejected) = verdict {
                let _ = shared.reject::<_, Response<()>, Infallible>(
                    rejected,
                    &Request::new(()),
                    &Default::default(),
                );
            }
            assert_eq!(seen.try_recv().ok().as_deref(), rejecting);
        }
    }
}
