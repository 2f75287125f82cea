//! Reference limiters that return the decisions that limits must make, and the fields that report them.

use tower_throttle::Decision;

use crate::generators::{Reference, Rule, seconds};
use crate::header_parser::{Left, Policy};

/// One limit, with the name with which it must be reported.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The name that was given to it, without a number that makes it unique.
    pub(crate) given: String,
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) reference: Box<dyn Reference>,
}

/// One policy. It has several limits if it is a tuple.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) limits: Vec<Limit>,
    pub(crate) hidden: bool,
}

/// One layer. It has several policies if it is joined.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) members: Vec<Member>,
}

/// The decision that a layer must make.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) admitted: bool,
    pub(crate) cost: u64,
    /// The decisions of the limits of each policy.
    pub(crate) members: Vec<Vec<Decision>>,
}

impl Level {
    /// Charges all limits or none.
    pub(crate) fn decide(&self, cost: u64) -> Verdict {
        let limits = || self.members.iter().map(|member| &member.limits);
        let asked: Vec<Vec<_>> =
            limits().map(|limits| limits.iter().map(|limit| limit.reference.peek(cost)).collect()).collect();
        let admitted = asked.iter().flatten().all(Decision::is_allowed);
        let members = match admitted {
            true => limits()
                .map(|limits| limits.iter().map(|limit| limit.reference.check(cost)).collect())
                .collect(),
            false => asked,
        };
        Verdict { admitted, cost, members }
    }

    /// Ends a call that was admitted.
    pub(crate) fn over(&self, cost: u64) {
        for limit in self.members.iter().flat_map(|member| &member.limits) {
            limit.reference.end(cost);
        }
    }
}

/// The longest wait that is reported.
const LONGEST: u64 = 0x7fff_ffff;

impl Member {
    /// Returns how many calls of cost 1 all its limits would admit.
    pub(crate) fn remaining(decisions: &[Decision]) -> u64 {
        decisions.iter().map(Decision::remaining).min().unwrap()
    }

    /// Returns the limits that may be reported. If limits deny the call, these are the limits with the longest wait.
    /// Otherwise, they are the limits with the fewest remaining units.
    pub(crate) fn nearest(decisions: &[Decision]) -> Vec<usize> {
        let longest = Self::wait(decisions);
        let least = Self::remaining(decisions);
        let is_nearest = |decision: &Decision| match longest {
            Some(wait) => !decision.is_allowed() && seconds_of(decision) == wait,
            None => decision.remaining() == least,
        };
        (0..decisions.len()).filter(|at| is_nearest(&decisions[*at])).collect()
    }

    /// Returns the wait in seconds if the policy denies the call. Returns `Some(None)` if waiting does not help.
    pub(crate) fn wait(decisions: &[Decision]) -> Option<Option<u64>> {
        let waits = decisions.iter().filter(|decision| !decision.is_allowed()).map(seconds_of);
        waits.reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)))
    }

    pub(crate) fn policies(&self) -> Vec<Policy> {
        self.limits.iter().map(|limit| limit.rule.policy(&limit.name)).collect()
    }

    /// Returns the items with which the policy may be reported. The layer reports one of them.
    ///
    /// The decision on a call of cost 0 has the remaining units of a tuple, but not always the time until the key is
    /// fresh. The same is true of a limit of a tuple that has not been used.
    pub(crate) fn left(&self, decisions: &[Decision], cost: u64) -> Vec<Left> {
        let r = Self::remaining(decisions).min(crate::header_parser::MOST);
        let reported = |at: usize| {
            let (limit, decision) = (&self.limits[at], &decisions[at]);
            let t = limit.rule.t(decision, || limit.reference.peek(1).retry_after());
            let t = if decision.is_allowed() { t } else { t.map(|t| t.min(LONGEST)) };
            Left { name: limit.name.clone(), r, t: t.map(tamed) }
        };
        let nearest = Self::nearest(decisions);
        let mut left: Vec<_> = nearest.iter().map(|at| reported(*at)).collect();
        for (at, known) in nearest.into_iter().zip(left.clone()) {
            let unused = decisions[at].is_allowed() && decisions[at].reset_after().is_zero();
            if self.limits.len() > 1 && (cost == 0 || unused) {
                left.push(Left { t: None, ..known });
            }
        }
        left
    }
}

/// Near the end of the clock, waits of centuries are cut off, so all such waits are treated as equal.
pub(crate) fn tamed(seconds: u64) -> u64 {
    seconds.min(9_000_000_000)
}

fn seconds_of(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|wait| seconds(crate::generators::nanos(wait)).min(LONGEST))
}
