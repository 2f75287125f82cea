//! The calls of a limiter: their counts, and whether they are still admitted.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::sync::Semaphore;

use super::error::RedisError;
use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::limiter::Decided;
use tower_throttle::stats::LimiterStats;
use tower_throttle::store_support::{CallCounts, CallOutcome, Observed, limit_of_new_key};

/// The counts of a limiter's calls, what is seen of them by its name, and whether the limiter was closed.
#[derive(Debug)]
pub struct Calls {
    observed: Observed,
    counts: CallCounts,
    /// A semaphore without permits, which is closed together with the limiter.
    open: Semaphore,
}

/// A call that is counted once it has ended. If it is dropped before, it is counted as cancelled.
#[derive(Debug)]
pub struct CountedCall<'a> {
    calls: &'a Calls,
    in_shadow: bool,
    is_queued: bool,
    has_ended: bool,
}

impl Calls {
    /// Creates the counts of a limiter with this name.
    pub fn new(name: &str) -> Self {
        let observed = Observed::new(Some(name.to_owned()));
        Self { observed, counts: CallCounts::default(), open: Semaphore::new(0) }
    }

    /// Returns what observes the limiter.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Counts an outcome.
    pub fn add(&self, outcome: CallOutcome) {
        self.counts.add(outcome);
    }

    /// Begins a call, whose policy is in shadow mode if `in_shadow`.
    pub fn begin(&self, in_shadow: bool) -> CountedCall<'_> {
        CountedCall { calls: self, in_shadow, is_queued: false, has_ended: false }
    }

    /// Returns the counts of the calls, together with the other counts of the limiter.
    pub fn add_to(&self, others: LimiterStats) -> LimiterStats {
        let mut stats = others;
        stats.calls = self.counts.stats();
        stats
    }

    /// Closes the limiter.
    pub fn close(&self) {
        self.open.close();
    }

    /// Returns whether the limiter was closed.
    pub fn is_closed(&self) -> bool {
        self.open.is_closed()
    }

    /// Returns the denial of a call if the limiter was closed. `algorithm` is that of the call.
    pub fn denial(&self, algorithm: &impl Algorithm, cost: u64) -> Option<Decision> {
        (cost > 0 && self.is_closed()).then(|| closed(algorithm))
    }

    /// Waits until the limiter is closed.
    pub async fn closed(&self) {
        // A semaphore without permits is acquired only when it is closed, with an error.
        let _ = self.open.acquire().await;
    }

    /// Awaits `future` until the limiter is closed. Returns `None` if the limiter is closed first.
    async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut closed = pin!(self.closed());
        let mut future = pin!(future);
        poll_fn(|cx| match closed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => future.as_mut().poll(cx).map(Some),
        })
        .await
    }
}

impl CountedCall<'_> {
    /// Counts the call as one that waits.
    pub fn wait(&mut self) {
        if !self.is_queued {
            self.is_queued = true;
            self.calls.add(CallOutcome::Queued);
        }
    }

    /// Awaits `future` until the limiter is closed. Returns `None` if the limiter is closed first.
    pub async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.calls.unless_closed(future).await
    }

    /// Counts the call by its decision. Does not count a call that failed.
    pub fn end(mut self, decided: Result<Decided, RedisError>) -> Result<Decided, RedisError> {
        self.has_ended = true;
        if let Ok(decision) = decided.as_ref().map(Decided::decision) {
            if decision.is_allowed() && !decision.delay().is_zero() {
                self.wait();
            }
            self.calls.add(CallOutcome::of(decision, self.in_shadow));
        }
        decided
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.calls.add(CallOutcome::Cancelled);
        }
    }
}

/// Returns the denial by a limiter that was closed. `algorithm` is that of the call.
pub(super) fn closed(algorithm: &impl Algorithm) -> Decision {
    Decision::closed(limit_of_new_key(algorithm))
}
