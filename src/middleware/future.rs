use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::drain::Drain;
use super::policy::info::PolicyInfo;
use super::policy::outcome::{Outcome, limited, record_decisions, record_end, shadow_denial, word};
use super::policy::set::{Policies, PolicySet, SettlePolicies, Verdict};
use super::response::report::reports;
use super::response::{Rejection, Responder, StoreError};
use crate::clock::Nanos;
use crate::observe;
use crate::store::Permit;

pin_project! {
    /// The response future of a rate-limited service.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the call is queued, the calls behind it move up, and the inner service is not
    /// called. With state in memory, the limit that queues the call charges nothing, and a
    /// [joined](crate::RateLimitLayer::and) policy that has charged the call already refunds the part of the charge
    /// that still counts. If the future is dropped after the call's release but before its next poll, the charge is
    /// undone, unless another call for the key was admitted meanwhile. Once the inner service was called, the charge
    /// stays. A permit of the call is released in any case.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Svc, Req, P, R>
    where
        Svc: Service<Req>,
        P: PolicySet<Req>,
        R: Responder<Req, Svc::Response, Svc::Error>,
    {
        #[pin]
        stage: Stage<Held<P::Wait, Svc, Req>, Svc::Future, P::Outcomes, Result<R::Response, R::Error>>,
        // `None` if the future only has a rejection left to return.
        shared: Option<(Arc<Policies<P>>, R)>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<H, F, O, T> {
        // Boxed, so that the future of a call that is not queued stays small.
        Waiting { held: Pin<Box<H>> },
        Calling {
            #[pin]
            response: F,
            outcomes: O,
            permit: Permit,
            started: Nanos,
        },
        Answered { answer: Option<T>, drain: Option<Drain> },
    }
}

/// An admitted call, until its response is made.
#[derive(Default)]
pub(super) struct Admitted<O> {
    outcomes: O,
    permit: Permit,
    /// The time from which the response time counts, if a policy has a timeline.
    started: Nanos,
}

impl<H, F, O, T> Stage<H, F, O, T> {
    #[inline]
    fn calling(response: F, Admitted { outcomes, permit, started }: Admitted<O>) -> Self {
        Self::Calling { response, outcomes, permit, started }
    }
}

pin_project! {
    /// A queued call: its wait, the instance of the service that is ready for it, and its request.
    struct Held<W, Svc, Req> {
        #[pin]
        wait: W,
        call: Option<(Svc, Req)>,
    }
}

impl<Svc, Req, P, R> ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: PolicySet<Req>,
    R: Responder<Req, Svc::Response, Svc::Error> + Clone,
{
    /// Creates the future of an admitted call.
    #[inline]
    pub(super) fn calling(
        response: Svc::Future,
        admitted: Admitted<P::Outcomes>,
        policies: &Arc<Policies<P>>,
        responder: &R,
    ) -> Self {
        let stage = Stage::calling(response, admitted);
        Self { stage, shared: Some((Arc::clone(policies), responder.clone())) }
    }

    #[inline]
    pub(super) fn rejected(
        answer: Result<R::Response, R::Error>,
        drain: Option<Drain>,
        policies: &Arc<Policies<P>>,
        responder: &R,
    ) -> Self {
        let shared = drain.is_some().then(|| (Arc::clone(policies), responder.clone()));
        Self { stage: Stage::Answered { answer: Some(answer), drain }, shared }
    }

    /// Creates the future of a call that is queued. `ready` is the instance of the service that will be called.
    pub(super) fn waiting(
        wait: P::Wait,
        ready: Svc,
        request: Req,
        policies: &Arc<Policies<P>>,
        responder: &R,
    ) -> Self {
        let held = Box::pin(Held { wait, call: Some((ready, request)) });
        Self { stage: Stage::Waiting { held }, shared: Some((Arc::clone(policies), responder.clone())) }
    }
}

/// Prepares an admitted request for the inner service. For a rejected request, returns the response as the error.
// Without inlining, the outcomes would be copied twice.
#[inline(always)]
pub(super) fn prepare<Req, O, R, Res, Err>(
    verdict: Verdict<O>,
    request: &mut Req,
    infos: &[PolicyInfo],
    responder: &R,
) -> Result<Admitted<O>, Result<R::Response, R::Error>>
where
    O: AsRef<[Option<Outcome>]> + Default,
    R: Responder<Req, Res, Err>,
{
    let rejection = match verdict {
        Verdict::Decided { is_admitted: true, outcomes, permit } => {
            observe::record_decision(|| word(outcomes.as_ref()));
            let started = record_decisions(infos, outcomes.as_ref(), true);
            if outcomes.as_ref().iter().any(Option::is_some) {
                responder.on_admit(request, &reports(infos, outcomes.as_ref()));
            }
            if let Some(denial) = shadow_denial(outcomes.as_ref()) {
                responder.on_shadow_deny(request, denial);
            }
            return Ok(Admitted { outcomes, permit, started });
        }
        Verdict::Decided { outcomes, .. } => {
            observe::record_decision(|| word(outcomes.as_ref()));
            record_decisions(infos, outcomes.as_ref(), false);
            limited(infos, outcomes.as_ref()).for_each(|(info, outcome)| info.log_denial(&outcome.decision));
            responder.reject(request, Rejection::Limited(&reports(infos, outcomes.as_ref())))
        }
        Verdict::KeyError(error) => {
            observe::record_decision(|| Some(error.label()));
            responder.reject(request, Rejection::Key(error))
        }
        Verdict::StoreError(error) => {
            // A store that fails is possible only if the layer has a single policy.
            let info = &infos[0];
            info.record_store_error(&error);
            observe::record_decision(|| Some("store_error"));
            if info.admits_on_store_error() {
                return Ok(Admitted::default());
            }
            responder.reject(request, Rejection::Store(StoreError { info, error }))
        }
    };
    Err(rejection)
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
    /// Panics if the future is polled after it has returned `Poll::Ready`. Panics if the call is queued, the limiter
    /// has the default clock, and the future is polled outside a tokio runtime with a timer.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (stage, shared) = (this.stage.as_mut().project(), &*this.shared);
            let next = match (stage, shared) {
                (StageProj::Waiting { held }, Some((policies, responder))) => {
                    let held = held.as_mut().project();
                    let waited = ready!(held.wait.poll(cx));
                    let Some((mut ready, mut request)) = held.call.take() else {
                        unreachable!("it calls once")
                    };
                    let verdict = policies.set.waited(&policies.infos, &request, waited);
                    policies.watch(&request, &verdict);
                    if let Verdict::Decided { is_admitted: true, outcomes, .. } = &verdict {
                        limited(&policies.infos, outcomes.as_ref())
                            .for_each(|(info, outcome)| info.log_wait(&outcome.decision));
                    }
                    match prepare(verdict, &mut request, &policies.infos, responder) {
                        Ok(admitted) => Stage::calling(ready.call(request), admitted),
                        Err(answer) => {
                            Stage::Answered { answer: Some(answer), drain: responder.drain(request) }
                        }
                    }
                }
                (StageProj::Calling { response, outcomes, permit, started }, Some((policies, responder))) => {
                    let answered = ready!(response.poll(cx));
                    record_end(&policies.infos, outcomes.as_ref(), *started, answered.is_ok());
                    let answer = match answered {
                        Ok(response) => {
                            let outcomes = outcomes.as_mut();
                            if outcomes.iter().flatten().any(Outcome::has_reservation) {
                                policies.set.settle(outcomes, &response);
                            }
                            let reports = reports(&policies.infos, outcomes);
                            let response = responder.map_response(&reports, response);
                            Ok(match permit.is_empty() {
                                true => response,
                                false => responder.hold_permit(response, mem::take(permit)),
                            })
                        }
                        Err(error) => Err(responder.map_error(error)),
                    };
                    this.stage.set(Stage::Answered { answer: None, drain: None });
                    return Poll::Ready(answer);
                }
                (StageProj::Answered { answer, drain }, shared) => {
                    if let Some(reading) = drain {
                        let at_end = ready!(Pin::new(reading).poll(cx));
                        *drain = None;
                        if let (true, Some(Ok(answer)), Some((_, responder))) = (at_end, &mut *answer, shared)
                        {
                            responder.drained(answer);
                        }
                    }
                    match answer.take() {
                        Some(answer) => return Poll::Ready(answer),
                        None => panic!("polled after it was ready"),
                    }
                }
                (_, None) => unreachable!("only a rejection needs no policies"),
            };
            this.stage.set(next);
        }
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
