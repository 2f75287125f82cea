//! The wait of a queued call.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use pin_project_lite::pin_project;

use super::charge::Reservable;
use super::contract::Decided;
use super::fingerprint::Fingerprint;
use super::observed::Observed;
use super::resets::ChargeTime;
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::{Nanos, Sleep};

pin_project! {
    /// The future of a queued call of a [`RateLimiter`](crate::RateLimiter).
    ///
    /// # Cancel safety
    ///
    /// If this future is dropped while its call is queued, nothing is charged, and the waiters behind the call move up.
    /// If the queue has already admitted the call, and the future was not polled since, the charge is undone. The
    /// charge stays only if another call of the key was admitted since, or if the state of the key was changed in
    /// another way, such as by a refund. The units of a call that needs a release are always given back.
    #[must_use = "futures do nothing unless polled"]
    pub struct QueuedAcquire<A>
    where
        A: Algorithm,
    {
        place: QueueTicket<A>,
        wake_at: Nanos,
        #[pin]
        sleep: Option<Sleep>,
        // The value is boxed, because most calls have none.
        held: Option<Box<Reservable<A>>>,
        charged_at: ChargeTime,
    }
}

/// A place in a queue. When it is dropped before the call has left the queue, the call is cancelled.
struct QueueTicket<A: Algorithm> {
    table: Arc<Table<A>>,
    id: Fingerprint,
    ticket: u64,
    left: bool,
    /// `true` if the outcome is counted here. `false` if a joint call counts it.
    counts: bool,
}

impl<A: Algorithm> Drop for QueueTicket<A> {
    fn drop(&mut self) {
        if !self.left {
            self.table.cancel(self.id, self.ticket, self.counts);
        }
    }
}

impl<A: Algorithm> QueuedAcquire<A> {
    pub(super) fn new(table: Arc<Table<A>>, id: Fingerprint, ticket: u64, counts: bool) -> Self {
        let place = QueueTicket { table, id, ticket, left: false, counts };
        Self { place, wake_at: Nanos::ZERO, sleep: None, held: None, charged_at: ChargeTime::default() }
    }

    /// Sets what the reservation of the call is made of when the call is admitted.
    pub(super) fn hold(&mut self, held: Option<Reservable<A>>) {
        self.held = held.map(Box::new);
    }

    /// Returns what observes the limiter.
    pub(super) fn observed(self: Pin<&mut Self>) -> &Observed {
        &self.project().place.table.shared.observed
    }

    /// Returns when the call was charged. The call must have been admitted.
    pub(super) fn charged_at(self: Pin<&mut Self>) -> ChargeTime {
        *self.project().charged_at
    }
}

impl<A: Algorithm> Future for QueuedAcquire<A> {
    type Output = Result<Decided, Infallible>;

    /// # Panics
    ///
    /// Panics if it is polled after it was ready. With the default clock, also panics outside a tokio runtime that has
    /// its timer enabled.
    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let place = this.place;
        assert!(!place.left, "polled after it was ready");
        // When a sleep has ended, the queue is polled once more. If the next sleep has ended as well, the task is woken
        // to poll again.
        for _ in 0..2 {
            let QueueTicket { table, id, ticket, left, counts } = &mut *place;
            // Not returned by the closure, so that a waker that panics releases the permit.
            let mut decided = None;
            let wake_at = table.poll(*id, *ticket, cx.waker(), |decision, charged_at| {
                *left = true;
                *this.charged_at = charged_at;
                if *counts {
                    table.shared.calls.add_decision(&decision, false);
                }
                // Of a denied call, it is dropped later, because the algorithm in it may run any code when it is
                // dropped.
                let held = if decision.is_allowed() { this.held.take() } else { None };
                let reservation = held.map(|held| held.reserve_at(table, charged_at)).unwrap_or_default();
                decided = Some(Decided::new(decision, reservation));
            });
            if let Some(decided) = decided {
                this.sleep.set(None);
                return Poll::Ready(Ok(decided));
            }
            if let Some(wake_at) = wake_at.filter(|at| this.sleep.is_none() || this.wake_at != at) {
                this.sleep.set(Some(table.shared.clock.sleep_until(wake_at)));
                *this.wake_at = wake_at;
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
        f.debug_struct("QueuedAcquire").field("until", &self.wake_at).finish_non_exhaustive()
    }
}
