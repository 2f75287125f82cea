use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::policy::Policies;
use super::responder::{Refusal, Responder};
use crate::decision::Decision;

pin_project! {
    /// The answer of a limited service, to come.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the call waits in line, it has charged nothing and those behind move up; the service behind is not called. Dropped
    /// later, its units stay charged.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Svc, Req, P, R>
    where
        Svc: Service<Req>,
        P: Policies<Req>,
        R: Responder<Req, Svc::Response, Svc::Error>,
    {
        #[pin]
        stage: Stage<Svc, Req, P::Wait, Svc::Future, Result<R::Response, R::Error>>,
        policies: Arc<P>,
        responder: R,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<Svc, Req, W, F, T> {
        Waiting {
            #[pin]
            wait: W,
            call: Option<(Svc, Req)>,
        },
        Calling {
            #[pin]
            response: F,
            decision: Option<Decision>,
        },
        Answered { answer: Option<T> },
        Done,
    }
}

impl<Svc, Req, P, R> ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: Policies<Req>,
    R: Responder<Req, Svc::Response, Svc::Error> + Clone,
{
    #[inline]
    pub(super) fn calling(
        response: Svc::Future,
        decision: Option<Decision>,
        policies: &Arc<P>,
        responder: &R,
    ) -> Self {
        Self {
            stage: Stage::Calling { response, decision },
            policies: Arc::clone(policies),
            responder: responder.clone(),
        }
    }

    pub(super) fn waiting(wait: P::Wait, ready: Svc, request: Req, policies: &Arc<P>, responder: &R) -> Self {
        Self {
            stage: Stage::Waiting { wait, call: Some((ready, request)) },
            policies: Arc::clone(policies),
            responder: responder.clone(),
        }
    }

    pub(super) fn answered(answer: Result<R::Response, R::Error>, policies: &Arc<P>, responder: &R) -> Self {
        Self {
            stage: Stage::Answered { answer: Some(answer) },
            policies: Arc::clone(policies),
            responder: responder.clone(),
        }
    }
}

impl<Svc, Req, P, R> Future for ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: Policies<Req>,
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    type Output = Result<R::Response, R::Error>;

    /// # Panics
    ///
    /// When polled after it was ready. When the call has to wait: with the default clock, outside a tokio runtime with a timer.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (policies, responder) = (&**this.policies, &*this.responder);
        loop {
            match this.stage.as_mut().project() {
                StageProj::Waiting { wait, call } => {
                    let decided = ready!(wait.poll(cx));
                    let Some((mut ready, request)) = call.take() else { unreachable!("it calls once") };
                    let answer = match decided {
                        Ok(decision) if decision.is_allowed() => {
                            let response = ready.call(request);
                            this.stage.set(Stage::Calling { response, decision: Some(decision) });
                            continue;
                        }
                        Ok(decision) => {
                            policies.observe_denial(&decision);
                            responder.refused(&request, Refusal::Limit(&[policies.report(&decision)]))
                        }
                        Err(error) => {
                            let failure = policies.observe_failure(error.into());
                            responder.refused(&request, Refusal::Store(failure))
                        }
                    };
                    this.stage.set(Stage::Done);
                    return Poll::Ready(answer);
                }
                StageProj::Calling { response, decision } => {
                    let result = ready!(response.poll(cx));
                    let answer = match (result, &*decision) {
                        (Ok(response), Some(decision)) => {
                            Ok(responder.admitted(&[policies.report(decision)], response))
                        }
                        (Ok(response), None) => Ok(responder.admitted(&[], response)),
                        (Err(error), _) => Err(responder.failed(error)),
                    };
                    this.stage.set(Stage::Done);
                    return Poll::Ready(answer);
                }
                StageProj::Answered { answer } => match answer.take() {
                    Some(answer) => return Poll::Ready(answer),
                    None => panic!("polled after it was ready"),
                },
                StageProj::Done => panic!("polled after it was ready"),
            }
        }
    }
}

impl<Svc, Req, P, R> fmt::Debug for ResponseFuture<Svc, Req, P, R>
where
    Svc: Service<Req>,
    P: Policies<Req>,
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
