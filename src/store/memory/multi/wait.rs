//! The future of calls that are decided together.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::few::Few;
use super::locked::{AnyAlgorithm, BoxWait, Reserve, Undo};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::stats::{CallCounts, CallOutcome};
use crate::store::Reservation;

/// The outcome of one of several calls.
#[derive(Debug)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// The algorithm that the call chose, if it chose one.
    pub algorithm: Option<AnyAlgorithm>,
    /// The permit of the call, or the charge of a call that can be settled. Empty if there is neither.
    pub reservation: Reservation,
    /// The units that the call has borrowed from the next window.
    pub borrowed: u64,
    /// `true` if the decision was made in shadow mode, so that it does not affect the other calls.
    pub is_shadow: bool,
}

/// One of the calls that are decided together.
#[derive(Default)]
pub(super) struct Member {
    /// The index of the call whose decision is reported for this call: this call itself, or its leader. The leader is
    /// the first call that uses the same state, and charges the state for all of these calls. `None` if this call is
    /// not limited.
    pub(super) decides: Option<usize>,
    pub(super) algorithm: Option<AnyAlgorithm>,
    /// The index of the call that was charged for this call, and the function that creates the reservation of this
    /// call.
    pub(super) reserve: Option<(usize, Reserve)>,
    /// The units that the call borrows if it waits.
    pub(super) borrows: u64,
    /// The counters in which the outcome of the call is counted, if the joint call waits.
    pub(super) counts: Option<Arc<CallCounts>>,
}

/// The outcomes of several calls, with `None` for a call that is not limited.
pub type AllDecisions = Few<Option<Decided>>;

/// A joint call that waits in one queue, or in several queues at the same time.
///
/// If this future is dropped before it is ready, the charges of its calls are undone, its calls leave their queues, and
/// the waiters behind these calls move up.
#[derive(Default)]
pub struct JointWait {
    pub(super) may_wait: Vec<(usize, BoxWait)>,
    /// The decision of each call. `None` while the call waits.
    pub(super) decisions: Few<Option<Decision>>,
    /// For each call, the function that undoes its charge, if the charge may have to be undone.
    pub(super) charged: Few<Option<Undo>>,
    /// The clock reading at which each call was charged.
    pub(super) charged_at: Few<Nanos>,
    /// For each call, `true` if it can be settled.
    pub(super) settles: Few<bool>,
    pub(super) parts: Few<Member>,
    /// The charges that must be undone in any case, with the clock readings at which they were made.
    pub(super) rollbacks: Vec<(Nanos, Undo)>,
    /// The permit of each call. Empty while the call waits, and for a call that needs no release.
    pub(super) permits: Few<Reservation>,
}

impl JointWait {
    /// Undoes the charges of the calls that were admitted.
    fn undo(&mut self) {
        let charged = self.charged.iter_mut().zip(&self.charged_at);
        for (decision, (charged, charged_at)) in self.decisions.iter().zip(charged) {
            if let (Some(decision), Some(undo)) = (decision, charged.take())
                && decision.is_allowed()
            {
                undo(*charged_at);
            }
        }
    }

    /// Cancels all waits, undoes all charges, and releases all permits.
    pub(super) fn roll_back(&mut self) {
        self.may_wait.clear();
        self.undo();
        self.rollbacks.drain(..).for_each(|(charged_at, undo)| undo(charged_at));
        self.permits.fill_with(Reservation::default);
    }

    /// Counts the outcomes of the calls. The caller ensures that no call is waiting.
    fn count(&self) {
        let is_denied = self.decisions.iter().flatten().any(|decision| !decision.is_allowed());
        for member in &self.parts {
            let Some((counts, decides)) = member.counts.as_ref().zip(member.decides) else { continue };
            let outcome = self.decisions[decides].map(|decision| CallOutcome::of(&decision, false));
            counts.add(match outcome {
                Some(CallOutcome::Admitted) | None if is_denied => CallOutcome::DeniedByOthers,
                Some(outcome) => outcome,
                None => CallOutcome::Admitted,
            });
        }
    }

    /// Returns the outcome of each call. The caller ensures that no call is waiting.
    pub(super) fn decided(&mut self) -> AllDecisions {
        let (decisions, charged_at, permits) = (&self.decisions, &self.charged_at, &mut self.permits);
        let decided = |Member { decides, algorithm, reserve, borrows, .. }: Member| {
            let decision = decisions[decides?]?;
            let reserve = reserve.filter(|_| decision.is_allowed());
            let reservation = match reserve {
                Some((charged, reserve)) => reserve(charged_at[charged]),
                // If several calls use one state, the first of them gets the permit.
                None => mem::take(&mut permits[decides?]),
            };
            let borrowed = if decision.is_delayed() { borrows } else { 0 };
            Some(Decided { decision, algorithm, reservation, borrowed, is_shadow: false })
        };
        self.parts.drain(..).map(decided).collect()
    }
}

impl Future for JointWait {
    type Output = Result<AllDecisions, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut denied = false;
        this.may_wait.retain_mut(|(call, wait)| match wait.as_mut().poll(cx) {
            Poll::Ready((decision, charged_at, permit)) => {
                this.charged_at[*call] = charged_at;
                denied |= !decision.is_allowed();
                this.decisions[*call] = Some(decision);
                this.permits[*call] = permit;
                false
            }
            Poll::Pending => true,
        });
        if denied {
            // The charges of the other calls are undone.
            this.roll_back();
        }
        match this.may_wait.is_empty() {
            true => {
                this.count();
                Poll::Ready(Ok(this.decided()))
            }
            false => Poll::Pending,
        }
    }
}

impl Drop for JointWait {
    fn drop(&mut self) {
        if self.may_wait.is_empty() {
            return;
        }
        self.undo();
        let counts = self.parts.iter().filter_map(|member| member.counts.as_ref());
        counts.for_each(|counts| counts.add(CallOutcome::Cancelled));
    }
}

impl fmt::Debug for JointWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JointWait").field("waits", &self.may_wait.len()).finish_non_exhaustive()
    }
}
