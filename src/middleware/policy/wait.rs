//! The wait for a decision that is not made at once, because the call is queued or the store replies later.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::decision::Decision;
use crate::stats::{CallCounts, CallOutcome};
use crate::store::{BoxError, Reservation};

/// The result of a wait: the decision on the call, its algorithm, its reservation, and the units that it borrows.
#[derive(Debug)]
pub struct WaitResult<A> {
    pub(super) decision: Decision,
    pub(super) algorithm: Option<A>,
    pub(super) reservation: Reservation,
    /// The number of units that the call has borrowed from the next window if it was delayed: the cost of a call with
    /// priority, and 0 for any other call. If the call was not delayed, this number has no meaning.
    pub(super) borrows: u64,
}

pin_project! {
    /// A wait for the decision of the store, with the call's algorithm.
    #[derive(Debug)]
    pub struct PolicyWait<W, A> {
        #[pin]
        wait: W,
        algorithm: Option<A>,
        borrows: u64,
        undecided: Undecided,
    }
}

impl<W, A> PolicyWait<W, A> {
    /// Creates the wait of a call. If the call is delayed, it borrows `borrows` units. If the wait is dropped before
    /// the decision, the call is counted in `calls` as cancelled.
    pub(super) fn new(wait: W, algorithm: Option<A>, borrows: u64, calls: Arc<CallCounts>) -> Self {
        Self { wait, algorithm, borrows, undecided: Undecided(Some(calls)) }
    }
}

/// The counters of a call that is not decided yet. If this value is dropped before the decision, the call is counted as
/// cancelled. `None` once the call has been decided.
#[derive(Debug)]
struct Undecided(Option<Arc<CallCounts>>);

impl Drop for Undecided {
    fn drop(&mut self) {
        self.0.iter().for_each(|calls| calls.add(CallOutcome::Cancelled));
    }
}

impl<W, A, E> Future for PolicyWait<W, A>
where
    W: Future<Output = Result<(Decision, Reservation), E>>,
    E: Into<BoxError>,
{
    type Output = Result<WaitResult<A>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let decided = ready!(this.wait.poll(cx));
        this.undecided.0 = None;
        let (decision, reservation) = decided.map_err(Into::into)?;
        Poll::Ready(Ok(WaitResult {
            decision,
            algorithm: this.algorithm.take(),
            reservation,
            borrows: *this.borrows,
        }))
    }
}
