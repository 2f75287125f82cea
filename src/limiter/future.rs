//! The futures of calls that wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;

use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::store::{Acquired, Attempt, CheckStore, Denied, MemoryStore, Permit, Reservation, Store};

pin_project! {
    /// The future of [`RateLimiter::acquire`](super::RateLimiter::acquire) and its variants.
    ///
    /// Borrows neither the key nor the limiter. Yields the [`Decision`], or a `Result` of the decision if the store can
    /// fail.
    #[must_use = "futures do nothing unless polled"]
    pub struct Acquire<A, S = MemoryStore<A>>
    where
        A: Algorithm,
        S: Store<A>,
    {
        #[pin]
        stage: Stage<A, S::Key, S::Wait, S>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<A, K, W, S> {
        Start { store: S, key: Option<K>, call: Call<A> },
        Waiting { #[pin] wait: W },
        Done,
    }
}

/// A call that has not been made yet.
struct Call<A> {
    cost: u64,
    algorithm: Option<A>,
    priority: bool,
    max_wait: Duration,
}

impl<A: Algorithm, S: CheckStore<A>> Acquire<A, S> {
    pub(super) fn new(store: S, key: S::Key, cost: u64) -> Self {
        let call = Call { cost, algorithm: None, priority: false, max_wait: Duration::MAX };
        Self { stage: Stage::Start { store, key: Some(key), call } }
    }

    /// Sets the maximum wait. Must be called before the first poll.
    pub(super) fn with_max_wait(self, max_wait: Duration) -> Self {
        self.with(|call| call.max_wait = max_wait)
    }

    /// Sets whether the call has priority. Must be called before the first poll.
    pub(super) fn with_priority(self, priority: bool) -> Self {
        self.with(|call| call.priority = priority)
    }

    /// Sets another algorithm than the limiter's. Must be called before the first poll.
    pub(super) fn with_algorithm(self, algorithm: A) -> Self {
        self.with(|call| call.algorithm = Some(algorithm))
    }

    fn with(mut self, change: impl FnOnce(&mut Call<A>)) -> Self {
        if let Stage::Start { call, .. } = &mut self.stage {
            change(call);
        }
        self
    }

    fn poll_inner(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Decision, Reservation), S::Error>> {
        // tokio's budget is checked before the decision. So if the task has no budget left, the call charges nothing
        // and joins no queue. If the call is queued, the unit of budget is returned. Outside a tokio runtime, there is
        // always budget.
        let budget = ready!(poll_proceed(cx));
        let mut stage = self.project().stage;
        loop {
            let decided = match stage.as_mut().project() {
                StageProj::Start { store, key, call } => {
                    let attempt = Attempt::with(call.cost, call.algorithm.as_ref(), call.priority);
                    let Some(key) = key.take() else { unreachable!("it starts once") };
                    match store.acquire(key, attempt.wait().with_max_wait(call.max_wait)) {
                        Acquired::Ready(decision, reservation) => Ok((decision, reservation)),
                        Acquired::Pending(wait) => {
                            stage.set(Stage::Waiting { wait });
                            continue;
                        }
                    }
                }
                StageProj::Waiting { wait } => ready!(wait.poll(cx)),
                StageProj::Done => panic!("polled after it was ready"),
            };
            stage.set(Stage::Done);
            budget.made_progress();
            return Poll::Ready(decided);
        }
    }
}

impl<A: Algorithm, S: CheckStore<A>> Future for Acquire<A, S> {
    type Output = S::Output<Decision>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decided = ready!(self.poll_inner(cx));
        Poll::Ready(S::output(decided.map(|(decision, reservation)| {
            // The call stays in progress until `release` is called.
            reservation.forget();
            decision
        })))
    }
}

pin_project! {
    /// The future of [`RateLimiter::acquire_permit`](super::RateLimiter::acquire_permit) and its variants.
    ///
    /// Borrows neither the key nor the limiter. Yields a `Result` of the [`Permit`] or the denial. If the store can
    /// fail, this `Result` is inside another `Result`.
    #[must_use = "futures do nothing unless polled"]
    pub struct AcquirePermit<A, S = MemoryStore<A>>
    where
        A: Algorithm,
        S: Store<A>,
    {
        #[pin]
        acquire: Acquire<A, S>,
    }
}

impl<A: Algorithm, S: CheckStore<A>> AcquirePermit<A, S> {
    pub(super) fn new(acquire: Acquire<A, S>) -> Self {
        Self { acquire }
    }
}

impl<A: Algorithm, S: CheckStore<A>> Future for AcquirePermit<A, S> {
    type Output = S::Output<Result<Permit, Denied>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decided = ready!(self.project().acquire.poll_inner(cx));
        Poll::Ready(S::output(decided.map(|(decision, reservation)| Permit::decided(decision, reservation))))
    }
}

impl<A: Algorithm, S: Store<A>> fmt::Debug for Acquire<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl<A: Algorithm, S: Store<A>> fmt::Debug for AcquirePermit<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquirePermit").finish_non_exhaustive()
    }
}
