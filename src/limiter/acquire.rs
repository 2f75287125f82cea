use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;

use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::store::{Acquired, Attempt, Context, MemoryKeyId, MemoryStore, Permit, QueuedAcquire};

pin_project! {
    /// A pending [`RateLimiter::acquire`](super::RateLimiter::acquire).
    ///
    /// Borrows neither the key nor the limiter.
    #[must_use = "futures do nothing unless polled"]
    pub struct Acquire<A>
    where
        A: Algorithm,
    {
        #[pin]
        wait: AcquirePermit<A>,
    }
}

impl<A: Algorithm> Acquire<A> {
    pub(super) fn new(wait: AcquirePermit<A>) -> Self {
        Self { wait }
    }

    /// Returns the same call with a maximum wait. Call it before the first poll.
    pub(super) fn with_max_wait(self, max_wait: Duration) -> Self {
        Self { wait: self.wait.with_max_wait(max_wait) }
    }
}

impl<A: Algorithm> Future for Acquire<A> {
    type Output = Decision;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Decision> {
        let (decision, permit) = ready!(self.project().wait.poll_inner(cx));
        // The call stays in progress until `release` is called.
        drop(permit.disarmed());
        Poll::Ready(decision)
    }
}

pin_project! {
    /// A pending [`RateLimiter::acquire_permit`](super::RateLimiter::acquire_permit).
    ///
    /// Borrows neither the key nor the limiter.
    #[must_use = "futures do nothing unless polled"]
    pub struct AcquirePermit<A>
    where
        A: Algorithm,
    {
        #[pin]
        stage: Stage<A>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<A>
    where
        A: Algorithm,
    {
        Start {
            context: Arc<Context<A, MemoryStore<A>>>,
            key: MemoryKeyId,
            cost: u64,
            algorithm: Option<A>,
            priority: bool,
            max_wait: Duration,
        },
        Queued { #[pin] wait: QueuedAcquire<A> },
        Done,
    }
}

impl<A: Algorithm> AcquirePermit<A> {
    pub(super) fn new(
        context: Arc<Context<A, MemoryStore<A>>>,
        key: MemoryKeyId,
        cost: u64,
        algorithm: Option<A>,
        priority: bool,
    ) -> Self {
        Self { stage: Stage::Start { context, key, cost, algorithm, priority, max_wait: Duration::MAX } }
    }

    /// Returns the same call with a maximum wait. Call it before the first poll.
    pub(super) fn with_max_wait(mut self, wait: Duration) -> Self {
        if let Stage::Start { max_wait, .. } = &mut self.stage {
            *max_wait = wait;
        }
        self
    }

    fn poll_inner(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<(Decision, Permit)> {
        // This comes before the decision, so a call without budget charges nothing and joins no queue. If the call is
        // queued, the unit of budget is returned. Outside a tokio runtime, there is always budget.
        let budget = ready!(poll_proceed(cx));
        let mut this = self.project();
        loop {
            let decided = match this.stage.as_mut().project() {
                StageProj::Start { context, key, cost, algorithm, priority, max_wait } => {
                    let call =
                        Attempt::with(*cost, algorithm.as_ref(), *priority).wait().with_max_wait(*max_wait);
                    match MemoryStore::enter(context, *key, call) {
                        Acquired::Ready(decision) | Acquired::Reserved(decision, _) => {
                            (decision, Permit::default())
                        }
                        Acquired::Held(decision, permit) => (decision, permit),
                        Acquired::Pending(wait) => {
                            this.stage.set(Stage::Queued { wait });
                            continue;
                        }
                    }
                }
                StageProj::Queued { mut wait } => match ready!(wait.as_mut().poll(cx)) {
                    Ok(decision) if decision.is_allowed() => (decision, wait.permit()),
                    Ok(decision) => (decision, Permit::default()),
                    Err(never) => match never {},
                },
                StageProj::Done => panic!("polled after it was ready"),
            };
            this.stage.set(Stage::Done);
            budget.made_progress();
            return Poll::Ready(decided);
        }
    }
}

impl<A: Algorithm> Future for AcquirePermit<A> {
    type Output = Result<Permit, Decision>;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let (decision, permit) = ready!(self.poll_inner(cx));
        Poll::Ready(if decision.is_allowed() { Ok(permit) } else { Err(decision) })
    }
}

impl<A: Algorithm> fmt::Debug for Acquire<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl<A: Algorithm> fmt::Debug for AcquirePermit<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquirePermit").finish_non_exhaustive()
    }
}
