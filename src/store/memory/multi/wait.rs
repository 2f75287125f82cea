//! Calls that are decided together, and wait.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::few::Few;
use super::locked::{AnyAlgorithm, BoxWait, Reserve, Undo};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::{Permit, Reservation};

/// What became of one of several calls.
#[derive(Debug)]
pub struct Decided {
    pub(crate) decision: Decision,
    pub(crate) algorithm: Option<AnyAlgorithm>,
    /// If the call was let in, and is to be settled.
    pub(crate) reservation: Option<Reservation>,
}

/// One of the parts.
#[derive(Default)]
pub(super) struct Member {
    /// Which call decides for it; `None`: it is not limited.
    pub(super) decides: Option<usize>,
    pub(super) algorithm: Option<AnyAlgorithm>,
    /// Which call was charged for it, and how it is settled.
    pub(super) reserve: Option<(usize, Reserve)>,
}

/// What became of several calls; `None` stands for one that is not limited. And what they hold until they are over,
/// if all were let in.
pub(crate) type AllDecisions = (Few<Option<Decided>>, Permit);

/// A call that waits in one line, or in several at once.
///
/// Dropped before it is ready, it gives back what it was charged, and those behind it move up.
#[derive(Default)]
pub struct JointWait {
    pub(super) may_wait: Vec<(usize, BoxWait)>,
    /// Of each call; `None` while it waits.
    pub(super) decisions: Few<Option<Decision>>,
    /// How to give back what each call was charged. One that still waits was not.
    pub(super) charged: Few<Option<Undo>>,
    /// When each call was charged.
    pub(super) charged_at: Few<Nanos>,
    /// Whether each call can be settled.
    pub(super) settles: Few<bool>,
    pub(super) parts: Few<Member>,
    /// What was charged, when, and is to be given back in any case.
    pub(super) rollbacks: Vec<(Nanos, Undo)>,
    /// What each call holds; unarmed, while it waits.
    pub(super) permits: Few<Option<Permit>>,
}

impl JointWait {
    /// Gives back what was charged to those that were let in.
    fn undo(&mut self) {
        let charged = self.charged.iter_mut().zip(&self.charged_at);
        for (decision, (charged, charged_at)) in self.decisions.iter().zip(charged) {
            if let (Some(decision), Some(give_back)) = (decision, charged.take())
                && decision.is_allowed()
            {
                give_back(*charged_at);
            }
        }
    }

    /// Nothing is charged, and nobody waits.
    pub(super) fn roll_back(&mut self) {
        self.may_wait.clear();
        self.undo();
        self.rollbacks.drain(..).for_each(|(charged_at, give_back)| give_back(charged_at));
        self.permits.clear();
    }

    /// What all of them hold.
    pub(super) fn hold(&mut self) -> Permit {
        self.permits.drain(..).flatten().fold(Permit::default(), Permit::and)
    }

    /// What became of each part, once none waits.
    pub(super) fn decided(&mut self) -> Few<Option<Decided>> {
        let (decisions, charged_at) = (&self.decisions, &self.charged_at);
        let decided = |Member { decides, algorithm, reserve }: Member| {
            let decision = decisions[decides?]?;
            let reserve = reserve.filter(|_| decision.is_allowed());
            let reservation = reserve.map(|(charged, reserve)| reserve(charged_at[charged]));
            Some(Decided { decision, algorithm, reservation })
        };
        self.parts.drain(..).map(decided).collect()
    }
}

impl Future for JointWait {
    type Output = Result<AllDecisions, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut refused = false;
        this.may_wait.retain_mut(|(call, wait)| match wait.as_mut().poll(cx) {
            Poll::Ready((decision, charged_at)) => {
                this.charged_at[*call] = charged_at;
                refused |= !decision.is_allowed();
                this.decisions[*call] = Some(decision);
                if decision.is_allowed()
                    && let Some(permit) = this.permits.get_mut(*call)
                {
                    *permit = permit.take().map(Permit::armed);
                }
                false
            }
            Poll::Pending => true,
        });
        if refused {
            // The others are charged for nothing.
            this.roll_back();
        }
        match this.may_wait.is_empty() {
            true => Poll::Ready(Ok((this.decided(), this.hold()))),
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
    }
}

impl fmt::Debug for JointWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TogetherWait").field("waits", &self.may_wait.len()).finish_non_exhaustive()
    }
}
