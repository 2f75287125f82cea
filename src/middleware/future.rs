use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::drain::Drain;
use super::policy::set::{PolicySet, SettlePolicies, WaitOutcome};
use super::response::{Rejection, Responder};
use crate::store::Permit;

pin_project! {
    /// The response future of a rate-limited service.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped while the call is queued, nothing is charged, the calls behind it move up, and the inner service
    /// is not called. If it is dropped later, its units stay charged, and a permit it holds is released.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Svc, Req, P, R>
    where
        Svc: Service<Req>,
        P: PolicySet<Req>,
        R: Responder<Req, Svc::Response, Svc::Error>,
    {
        #[pin]
        stage: Stage<Held<P::Wait, Svc, Req>, Svc::Future, P::Outcome, Result<R::Response, R::Error>>,
        // `None` once only the answer is left to return.
        asked: Option<(Arc<P>, R)>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<H, F, D, T> {
        // Boxed, so that the future of a call that does not wait stays small.
        PolicyWait { held: Pin<Box<H>> },
        Calling {
            #[pin]
            response: F,
            outcome: Option<D>,
            permit: Permit,
        },
        Answered { answer: Option<T>, drain: Option<Drain> },
    }
}

pin_project! {
    /// A queued call, with the service that is ready for it.
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
    #[inline]
    pub(super) fn calling(
        response: Svc::Future,
        outcome: Option<P::Outcome>,
        permit: Permit,
        policies: &Arc<P>,
        responder: &R,
    ) -> Self {
        let stage = Stage::Calling { response, outcome, permit };
        Self { stage, asked: Some((Arc::clone(policies), responder.clone())) }
    }

    pub(super) fn waiting(wait: P::Wait, ready: Svc, request: Req, policies: &Arc<P>, responder: &R) -> Self {
        let held = Box::pin(Held { wait, call: Some((ready, request)) });
        Self { stage: Stage::PolicyWait { held }, asked: Some((Arc::clone(policies), responder.clone())) }
    }

    #[inline]
    pub(super) fn reject(
        answer: Result<R::Response, R::Error>,
        drain: Option<Drain>,
        policies: &Arc<P>,
        responder: &R,
    ) -> Self {
        let asked = drain.is_some().then(|| (Arc::clone(policies), responder.clone()));
        Self { stage: Stage::Answered { answer: Some(answer), drain }, asked }
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
    /// Panics if it is polled after it was ready. Panics if the call has to wait with the default clock outside a tokio
    /// runtime with a timer.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (policies, responder) = match (this.stage.as_mut().project(), &*this.asked) {
                (StageProj::Answered { answer, drain }, asked) => {
                    if let Some(reading) = drain {
                        let at_end = ready!(Pin::new(reading).poll(cx));
                        *drain = None;
                        if let (true, Some(Ok(answer)), Some((_, responder))) = (at_end, &mut *answer, asked)
                        {
                            responder.drained(answer);
                        }
                    }
                    match answer.take() {
                        Some(answer) => return Poll::Ready(answer),
                        None => panic!("polled after it was ready"),
                    }
                }
                (_, Some((policies, responder))) => (&**policies, responder),
                (_, None) => unreachable!("only an answer needs no policies"),
            };
            let answer = match this.stage.as_mut().project() {
                StageProj::PolicyWait { held } => {
                    let held = held.as_mut().project();
                    let waited = ready!(held.wait.poll(cx));
                    let Some((mut ready, mut request)) = held.call.take() else {
                        unreachable!("it calls once")
                    };
                    let refused = match waited.map(|waited| policies.waited(waited, &request)) {
                        Ok(WaitOutcome::Admitted(outcome, permit)) => {
                            policies.log_wait(&outcome);
                            policies.report(&outcome, |reports| responder.on_admit(&mut request, reports));
                            if let Some(denial) = policies.shadow_denial(&outcome) {
                                responder.on_shadow_deny(&mut request, denial);
                            }
                            let response = ready.call(request);
                            this.stage.set(Stage::Calling { response, outcome: Some(outcome), permit });
                            continue;
                        }
                        Ok(WaitOutcome::Denied(outcome)) => {
                            policies.log_denial(&outcome);
                            policies.report(&outcome, |reports| {
                                responder.reject(&request, Rejection::Limited(reports))
                            })
                        }
                        Err(error) => {
                            let failure = policies.observe_failure(error.into());
                            if policies.fails_open() {
                                let (response, permit) = (ready.call(request), Permit::default());
                                this.stage.set(Stage::Calling { response, outcome: None, permit });
                                continue;
                            }
                            responder.reject(&request, Rejection::Store(failure))
                        }
                    };
                    let drain = responder.drain(request);
                    this.stage.set(Stage::Answered { answer: Some(refused), drain });
                    continue;
                }
                StageProj::Calling { response, outcome, permit } => {
                    match (ready!(response.poll(cx)), outcome) {
                        (Ok(response), Some(outcome)) => {
                            if policies.settles() {
                                P::each(outcome, &mut |outcome| policies.settle(outcome, &response));
                            }
                            let response =
                                policies.report(outcome, |reports| responder.map_response(reports, response));
                            Ok(match permit.is_empty() {
                                true => response,
                                false => responder.hold_permit(response, mem::take(permit)),
                            })
                        }
                        (Ok(response), None) => Ok(responder.map_response(&[], response)),
                        (Err(error), _) => Err(responder.map_error(error)),
                    }
                }
                StageProj::Answered { .. } => unreachable!("it has returned"),
            };
            this.stage.set(Stage::Answered { answer: None, drain: None });
            return Poll::Ready(answer);
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
