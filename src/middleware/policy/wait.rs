//! The wait of a queued call.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::decision::Decision;
use crate::store::{BoxError, Permit, Reservation};

/// The result of a wait.
#[derive(Debug)]
pub struct WaitResult<A> {
    pub(super) decision: Decision,
    pub(super) algorithm: Option<A>,
    pub(super) reservation: Option<Reservation>,
    pub(super) permit: Permit,
}

pin_project! {
    /// A pending decision of the store, with the call's algorithm and the functions that return its permit and its
    /// reservation.
    #[derive(Debug)]
    pub struct PolicyWait<W, A> {
        #[pin]
        pub(super) wait: W,
        pub(super) algorithm: Option<A>,
        pub(super) permit: fn(Pin<&mut W>) -> Permit,
        pub(super) reservation: fn(Pin<&mut W>) -> Option<Reservation>,
    }
}

impl<W, A, E> Future for PolicyWait<W, A>
where
    W: Future<Output = Result<Decision, E>>,
    E: Into<BoxError>,
{
    type Output = Result<WaitResult<A>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let decision = ready!(this.wait.as_mut().poll(cx)).map_err(Into::into)?;
        let (permit, reservation) = match decision.is_allowed() {
            true => ((this.permit)(this.wait.as_mut()), (this.reservation)(this.wait)),
            false => (Permit::default(), None),
        };
        Poll::Ready(Ok(WaitResult { decision, algorithm: this.algorithm.take(), reservation, permit }))
    }
}
