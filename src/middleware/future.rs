use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::drain::Drain;
use super::policy::outcome::limited;
use super::policy::set::{PolicySet, RejectReason, SettlePolicies};
use super::response::Responder;
use super::shared::{Admitted, Shared};

pin_project! {
    /// The response future of a rate-limited service.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while its call is queued, the calls behind this call move up, and the inner service is
    /// not called. With state in memory, the limit that queues the call has charged nothing. A
    /// [joined](crate::RateLimitLayer::and) policy that has already charged the call refunds as much of the charge as
    /// still counts. If the future is dropped before the reply of another store, that store may already have charged
    /// the call.
    ///
    /// The future may also be dropped after the queue has released the call, but before the next poll of the future.
    /// With state in memory, the charge is then undone, with one exception: the charge stays if another call for the
    /// key was admitted since the release, or if the key's state was changed in another way, such as by a refund.
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
        stage: Stage<Held<P::Wait, Svc, Req>, Svc::Future, P::Outcomes, Result<R::Response, R::Error>>,
        // `None` if the future only has to return a rejection.
        shared: Option<Arc<Shared<P, R>>>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<H, F, O, T> {
        // This field is boxed, so that the future of a call that is not queued stays small.
        Waiting { held: Pin<Box<H>> },
        Calling {
            #[pin]
            response: F,
            admitted: Admitted<O>,
        },
        Answered { answer: Option<T>, drain: Option<Drain> },
        Done,
    }
}

pin_project! {
    /// A call that waits for its decision, with its request and the instance of the service that is ready for the
    /// request.
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
    R: Responder<Req, Svc::Response, Svc::Error>,
{
    /// Creates the future of a call that was passed to the inner service.
    #[inline(always)]
    pub(super) fn calling(
        response: Svc::Future,
        admitted: Admitted<P::Outcomes>,
        shared: Arc<Shared<P, R>>,
    ) -> Self {
        Self { stage: Stage::Calling { response, admitted }, shared: Some(shared) }
    }

    /// Creates the future of a call that was rejected.
    #[inline(always)]
    pub(super) fn rejected(
        rejected: RejectReason,
        outcomes: &P::Outcomes,
        request: Req,
        shared: &Arc<Shared<P, R>>,
    ) -> Self {
        let answer = Some(shared.reject(rejected, &request, outcomes));
        let mut future = Self { stage: Stage::Answered { answer, drain: None }, shared: None };
        if let (Some(reading), Stage::Answered { drain, .. }) =
            (shared.responder.drain(request), &mut future.stage)
        {
            *drain = Some(reading);
            future.shared = Some(Arc::clone(shared));
        }
        future
    }

    /// Creates the future of a call that waits for its decision, because the call is queued or the store replies later.
    /// If the call is admitted, the future passes the request to the service `ready`.
    pub(super) fn waiting(wait: P::Wait, ready: Svc, request: Req, shared: &Arc<Shared<P, R>>) -> Self {
        let held = Box::pin(Held { wait, call: Some((ready, request)) });
        Self { stage: Stage::Waiting { held }, shared: Some(Arc::clone(shared)) }
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
    /// the default clock, also panics outside of a tokio runtime whose timer is enabled.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        match this.stage.project() {
            StageProj::Calling { response, admitted } => {
                let shared = this.shared.as_ref().expect("an admitted call has its policies");
                let answer = shared.finish(response.poll(cx), admitted);
                if answer.is_ready() {
                    // The inner future is dropped now, since it may hold resources, such as a permit of another layer.
                    self.project().stage.set(Stage::Done);
                }
                answer
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
        let (policies, mut outcomes) = (&*shared.policies, P::Outcomes::default());
        let verdict = policies.set.waited(&policies.infos, &request, waited, &mut outcomes);
        let next = match shared.unless_allowed_on_error(verdict) {
            Ok(()) => {
                limited(&policies.infos, outcomes.as_ref())
                    .for_each(|(info, outcome)| info.log_wait(&outcome.decision));
                let started = shared.admit(&mut request, &outcomes);
                let response = ready.call(request);
                Stage::Calling { response, admitted: Admitted { outcomes, started } }
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
