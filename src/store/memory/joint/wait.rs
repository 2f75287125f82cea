//! Calls that are decided together, and wait.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::few::Few;
use super::held::{GiveBack, Rule, Waiting};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::Permit;

/// What became of one of several calls.
#[derive(Debug)]
pub struct Decided {
    pub(crate) decision: Decision,
    pub(crate) rule: Option<Rule>,
}

/// What became of several calls; `None` stands for one that is not limited. And what they hold until they are over,
/// if all were let in.
pub(crate) type AllDecided = (Few<Option<Decided>>, Permit);

/// A call that waits in one line, or in several at once.
///
/// Dropped before it is ready, it gives back what it was charged, and those behind it move up.
#[derive(Default)]
pub struct TogetherWait {
    pub(super) waits: Vec<(usize, Waiting)>,
    /// Of each call; `None` while it waits.
    pub(super) decisions: Few<Option<Decision>>,
    /// How to give back what each call was charged. One that still waits was not.
    pub(super) charged: Few<Option<GiveBack>>,
    /// Which call decides for each part, and the part's rule.
    pub(super) parts: Few<(Option<usize>, Option<Rule>)>,
    /// What was charged, and is to be given back in any case.
    pub(super) regrets: Vec<GiveBack>,
    /// What each call holds; unarmed, while it waits.
    pub(super) permits: Few<Option<Permit>>,
}

impl TogetherWait {
    /// Gives back what was charged to those that were let in.
    fn give_back(&mut self) {
        for (decision, charged) in self.decisions.iter().zip(&mut self.charged) {
            if let (Some(decision), Some(give_back)) = (decision, charged.take())
                && decision.is_allowed()
            {
                give_back(Nanos::from(decision.delay()).0);
            }
        }
    }

    /// Nothing is charged, and nobody waits.
    pub(super) fn call_off(&mut self) {
        self.waits.clear();
        self.give_back();
        self.regrets.drain(..).for_each(|give_back| give_back(0));
        self.permits.clear();
    }

    /// What all of them hold.
    pub(super) fn hold(&mut self) -> Permit {
        self.permits.drain(..).flatten().fold(Permit::default(), Permit::and)
    }

    /// What became of each part, once none waits.
    pub(super) fn decided(&mut self) -> Few<Option<Decided>> {
        let decisions = &self.decisions;
        let decided = |(call, rule): (Option<usize>, Option<Rule>)| {
            let decision = decisions[call?]?;
            Some(Decided { decision, rule })
        };
        self.parts.drain(..).map(decided).collect()
    }
}

impl Future for TogetherWait {
    type Output = Result<AllDecided, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut refused = false;
        this.waits.retain_mut(|(call, wait)| match wait.as_mut().poll(cx) {
            Poll::Ready(decision) => {
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
            this.call_off();
        }
        match this.waits.is_empty() {
            true => Poll::Ready(Ok((this.decided(), this.hold()))),
            false => Poll::Pending,
        }
    }
}

impl Drop for TogetherWait {
    fn drop(&mut self) {
        if self.waits.is_empty() {
            return;
        }
        self.give_back();
    }
}

impl fmt::Debug for TogetherWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TogetherWait").field("waits", &self.waits.len()).finish_non_exhaustive()
    }
}
