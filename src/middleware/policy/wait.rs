//! The wait of a queued call.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::decision::Decision;
use crate::store::{BoxError, Reservation};

/// The result of a wait.
#[derive(Debug)]
pub struct WaitResult<A> {
    pub(super) decision: Decision,
    pub(super) algorithm: Option<A>,
    pub(super) reservation: Reservation,
}

pin_project! {
    /// A pending decision of the store, with the call's algorithm.
    #[derive(Debug)]
    pub struct PolicyWait<W, A> {
        #[pin]
        pub(super) wait: W,
        pub(super) algorithm: Option<A>,
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
        let (decision, reservation) = ready!(this.wait.poll(cx)).map_err(Into::into)?;
        Poll::Ready(Ok(WaitResult { decision, algorithm: this.algorithm.take(), reservation }))
    }
}
