//! A call that waits in line.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use pin_project_lite::pin_project;

use super::MemoryContext;
use super::charge::MemoryCharge;
use super::fingerprint::Fingerprint;
use crate::algorithm::Algorithm;
use crate::clock::{Nanos, Sleep};
use crate::decision::Decision;
use crate::queue::PollTurn;
use crate::store::{Permit, Reservation};

pin_project! {
    /// A call's place in a line of a [`MemoryStore`](super::MemoryStore).
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, it has charged nothing, and those behind it move up.
    #[must_use = "futures do nothing unless polled"]
    pub struct QueuedAcquire<A>
    where
        A: Algorithm,
    {
        place: QueueTicket<A>,
        alarm: Nanos,
        #[pin]
        sleep: Option<Sleep>,
        permit: Permit,
        // Apart: most calls are not settled.
        charge: Option<Box<MemoryCharge<A>>>,
        charged_at: Nanos,
    }
}

/// A place in a line, given up when dropped.
struct QueueTicket<A: Algorithm> {
    context: Arc<MemoryContext<A>>,
    key: Fingerprint,
    ticket: u64,
    left: bool,
}

impl<A: Algorithm> Drop for QueueTicket<A> {
    fn drop(&mut self) {
        if !self.left {
            self.context.store().abandon(&self.context, self.key, self.ticket);
        }
    }
}

impl<A: Algorithm> QueuedAcquire<A> {
    pub(super) fn new(
        context: Arc<MemoryContext<A>>,
        key: Fingerprint,
        ticket: u64,
        permit: Permit,
        charge: Option<MemoryCharge<A>>,
    ) -> Self {
        let place = QueueTicket { context, key, ticket, left: false };
        let charge = charge.map(Box::new);
        Self { place, alarm: Nanos::ZERO, sleep: None, permit, charge, charged_at: Nanos::ZERO }
    }

    /// When the call was charged, which was let in.
    pub(super) fn charged_at(self: Pin<&mut Self>) -> Nanos {
        *self.project().charged_at
    }

    /// The reservation of the call, which was let in, if it is to be settled.
    pub(crate) fn reservation(self: Pin<&mut Self>) -> Option<Reservation> {
        let this = self.project();
        let charge = this.charge.take()?;
        Some(MemoryCharge { charged_at: *this.charged_at, ..*charge }.into())
    }

    /// What the call holds, which was let in.
    pub(crate) fn permit(self: Pin<&mut Self>) -> Permit {
        mem::take(self.project().permit).armed()
    }
}

impl<A: Algorithm> Future for QueuedAcquire<A> {
    type Output = Result<Decision, Infallible>;

    /// # Panics
    ///
    /// With the default clock, outside a tokio runtime with a timer; and when polled after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let place = this.place;
        assert!(!place.left, "polled after it was ready");
        // A sleep that ends is asked about once more; one that ends before its time leaves the rest to the next poll.
        for _ in 0..2 {
            match place.context.store().ask(&place.context, place.key, place.ticket, cx.waker()) {
                PollTurn::Ready(decision, charged_at) => {
                    place.left = true;
                    *this.charged_at = charged_at;
                    this.sleep.set(None);
                    return Poll::Ready(Ok(decision));
                }
                PollTurn::NotBefore(alarm) if this.sleep.is_some() && *this.alarm == alarm => {}
                PollTurn::NotBefore(alarm) => {
                    this.sleep.set(Some(place.context.clock().sleep_until(alarm)));
                    *this.alarm = alarm;
                }
            }
            match this.sleep.as_mut().as_pin_mut().map(|sleep| sleep.poll(cx)) {
                Some(Poll::Pending) => return Poll::Pending,
                _ => this.sleep.set(None),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<A: Algorithm> fmt::Debug for QueuedAcquire<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWait").field("until", &self.alarm).finish_non_exhaustive()
    }
}
