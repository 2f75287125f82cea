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

/// What became of one of several calls.
#[derive(Debug)]
pub struct Decided {
    pub(crate) decision: Decision,
    pub(crate) rule: Option<Rule>,
}

/// A call that waits in one line, or in several at once.
///
/// Dropped before it is ready, it gives back what it was charged, and those behind it move up.
#[derive(Default)]
pub struct TogetherWait {
    pub(super) waits: Vec<(usize, Waiting)>,
    /// Of each call; `None` while it waits.
    pub(super) decisions: Few<Option<Decision>>,
    /// How to give back what each call was charged. One that still waits was not.
    pub(super) charged: Vec<Option<GiveBack>>,
    /// Which call decides for each part, and the part's rule.
    pub(super) parts: Few<(Option<usize>, Option<Rule>)>,
}

impl TogetherWait {
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
    type Output = Result<Few<Option<Decided>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.waits.retain_mut(|(call, wait)| match wait.as_mut().poll(cx) {
            Poll::Ready(decision) => {
                this.decisions[*call] = Some(decision);
                false
            }
            Poll::Pending => true,
        });
        match this.waits.is_empty() {
            true => Poll::Ready(Ok(this.decided())),
            false => Poll::Pending,
        }
    }
}

impl Drop for TogetherWait {
    fn drop(&mut self) {
        if self.waits.is_empty() {
            return;
        }
        for (decision, charged) in self.decisions.iter().zip(&mut self.charged) {
            if let (Some(decision), Some(give_back)) = (decision, charged.take()) {
                give_back(Nanos::from(decision.delay()).0);
            }
        }
    }
}

impl fmt::Debug for TogetherWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TogetherWait").field("waits", &self.waits.len()).finish_non_exhaustive()
    }
}
