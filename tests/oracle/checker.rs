//! Drives an algorithm through a random sequence and holds every word of its decisions against an oracle, and against what
//! the algorithm itself does next, tried on copies of its state.

use std::fmt::Debug;

use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::Nanos;

use super::model::{Oracle, Verdict};
use super::random::Random;
use super::setup::{Setup, Told};

pub(crate) const STEPS: usize = 64;

/// What a promise is broken by. The sequence that did it follows.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

struct Sequence<'a, A: Algorithm, O> {
    setup: &'a Setup,
    algorithm: &'a A,
    oracle: O,
    state: A::State,
    /// Has seen admissions only: no denials, no looks, no calls of cost 0.
    quiet: A::State,
    now: u64,
    told: Told,
    random: Random,
    trail: Vec<(u64, u64, Decision)>,
}

/// Runs one sequence; tells which promise was broken, and how.
pub(crate) fn run<A: Algorithm, O: Oracle + Debug>(
    setup: &Setup,
    algorithm: &A,
    oracle: O,
    random: Random,
) -> Result<(), String> {
    let start = Nanos(setup.start);
    let state = algorithm.fresh(Nanos(setup.built), start);
    let quiet = state.clone();
    let trail = Vec::with_capacity(STEPS);
    let told = Told::default();
    let mut run = Sequence { setup, algorithm, oracle, state, quiet, now: setup.start, told, random, trail };
    for step in 0..STEPS {
        let most = run.oracle.capacity().unwrap_or(setup.limit);
        let at = if step == 0 { run.now } else { setup.next_time(&mut run.random, run.now, run.told) };
        let cost = setup.next_cost(&mut run.random, most, run.told);
        run.step(at, cost).map_err(|broken| run.describe(&broken, at, cost))?;
    }
    Ok(())
}

impl<A: Algorithm, O: Oracle + Debug> Sequence<'_, A, O> {
    fn step(&mut self, at: u64, cost: u64) -> Result<(), String> {
        if at < self.now {
            // It must know what the clock has shown, or there is no stepping back.
            let _ = self.algorithm.check(&mut self.quiet, Nanos(self.now), 0);
            let _ = self.algorithm.check(&mut self.quiet, Nanos(at), 0);
        }
        self.now = at;
        self.oracle.observe(at);
        let before = self.state.clone();
        let decision = self.algorithm.check(&mut self.state, Nanos(at), cost);
        self.trail.push((at, cost, decision));
        self.told = Told {
            retry: nanos(decision.retry_after()),
            reset: nanos(Some(decision.reset_after())),
            remaining: decision.remaining(),
        };
        self.verdict_is_right(&decision, cost)?;
        self.denials_spent_nothing(&decision, at, cost)?;
        self.retry_after_is_true(&decision, at, cost)?;
        self.remaining_is_true(&decision, at)?;
        self.reset_after_is_true(&decision, at)?;
        self.peek_agrees_with_check(&before, at)?;
        self.peek_agrees_with_check(&self.state, at)?;
        self.splitting_changes_nothing(&before, at)
    }

    fn check(&self, state: &mut A::State, at: u64, cost: u64) -> Decision {
        self.algorithm.check(state, Nanos(at), cost)
    }

    /// Whether a copy would be let in.
    fn lets_in(&self, state: &A::State, at: u64, cost: u64) -> bool {
        self.check(&mut state.clone(), at, cost).is_allowed()
    }

    fn verdict_is_right(&mut self, decision: &Decision, cost: u64) -> Result<(), String> {
        match (decision.is_allowed(), self.oracle.verdict(cost)) {
            (true, Verdict::Refuse) => return Err("admitted early".into()),
            (false, Verdict::Admit) => return Err("refused what the rule admits".into()),
            (true, _) => self.oracle.admit(cost),
            (false, _) => ensure!(cost > 0, "a cost of 0 was refused"),
        }
        let limit = self.oracle.capacity().unwrap_or(1);
        ensure!(decision.limit() == limit, "the limit should be {limit}");
        ensure!(decision.delay().is_zero(), "`check` never waits");
        Ok(())
    }

    fn denials_spent_nothing(&mut self, decision: &Decision, at: u64, cost: u64) -> Result<(), String> {
        let mut quiet = self.quiet.clone();
        let answer = self.check(&mut quiet, at, cost);
        ensure!(answer == *decision, "a caller that never hammered is told {answer:?}");
        if decision.is_allowed() && cost > 0 {
            self.quiet = quiet;
        } else if !decision.is_allowed() {
            let again = self.algorithm.check(&mut self.state, Nanos(at), cost);
            ensure!(again == *decision, "denied again at the same instant: {again:?}");
        }
        Ok(())
    }

    fn retry_after_is_true(&mut self, decision: &Decision, at: u64, cost: u64) -> Result<(), String> {
        let fits = self.oracle.capacity().is_none_or(|capacity| cost <= capacity);
        let told = decision.retry_after();
        if decision.is_allowed() {
            ensure!(told.is_none(), "an admission has a retry_after");
            return Ok(());
        }
        ensure!(told.is_some() == fits, "retry_after is there exactly if the cost can fit");
        let Some(wait) = told.map(|told| nanos(Some(told))) else {
            let later = self.setup.next_time(&mut self.random, at, self.told);
            ensure!(!self.lets_in(&self.state, later.max(at), cost), "never fits, but was let in later");
            return Ok(());
        };
        // At its last reading the clock cannot tell a later one.
        ensure!(wait > 0 || at == u64::MAX, "denied, but to be retried at once");
        let end = self.setup.end;
        let too_early = self.lets_in(&self.state, end, cost) && self.oracle_refuses(end, cost);
        ensure!(!too_early, "let in early, when the clock ends");
        if wait == 0 {
            return Ok(());
        }
        let in_time = at.saturating_add(wait);
        let mut hammering = self.state.clone();
        for early in [self.random.below(wait), self.random.below(wait), wait - 1] {
            let early = at.saturating_add(early).min(self.setup.end);
            if early < in_time {
                ensure!(!self.lets_in(&self.state, early, cost), "let in at {early}, before retry_after");
                ensure!(
                    !self.oracle_admits(early, cost),
                    "the rule admits it at {early}, before retry_after"
                );
            }
        }
        let _ = self.check(&mut hammering, in_time.saturating_sub(1).min(self.setup.end), cost);
        if self.due(at, wait).is_some() {
            ensure!(self.lets_in(&self.state, in_time, cost), "denied at retry_after");
            ensure!(self.lets_in(&hammering, in_time, cost), "denied at retry_after, having hammered");
            ensure!(!self.oracle_refuses(in_time, cost), "the rule refuses it at retry_after");
        }
        Ok(())
    }

    /// When a span that was told ends, unless it is told as 584 years or lasts until the clock ends.
    fn due(&self, at: u64, told: u64) -> Option<u64> {
        let due = at.checked_add(told)?;
        (told < u64::MAX - 1 && due < u64::MAX && due <= self.setup.end).then_some(due)
    }

    fn oracle_at(&self, at: u64) -> O {
        let mut oracle = self.oracle.clone();
        oracle.observe(at);
        oracle
    }

    fn oracle_admits(&self, at: u64, cost: u64) -> bool {
        self.oracle_at(at).verdict(cost) == Verdict::Admit
    }

    fn oracle_refuses(&self, at: u64, cost: u64) -> bool {
        self.oracle_at(at).verdict(cost) == Verdict::Refuse
    }

    fn remaining_is_true(&self, decision: &Decision, at: u64) -> Result<(), String> {
        let told = decision.remaining();
        let (least, most) = self.oracle.remaining();
        ensure!((least..=most).contains(&told), "remaining should be {least} to {most}");
        let mut state = self.state.clone();
        if told <= 6 {
            for n in 0..told {
                ensure!(self.check(&mut state, at, 1).is_allowed(), "only {n} more were let in");
            }
        } else {
            ensure!(self.check(&mut state, at, told).is_allowed(), "what remains was refused");
            let more = told.checked_add(1);
            ensure!(
                more.is_none_or(|more| !self.lets_in(&self.state, at, more)),
                "more than remaining let in"
            );
        }
        ensure!(!self.check(&mut state, at, 1).is_allowed(), "one more than remaining was let in");
        Ok(())
    }

    fn reset_after_is_true(&self, decision: &Decision, at: u64) -> Result<(), String> {
        let told = nanos(Some(decision.reset_after()));
        let whole = self.oracle.capacity().unwrap_or(1);
        let idle = self.oracle.reset() == Some(0);
        let end = u128::from(self.setup.end);
        match self.oracle.reset() {
            // A key that has used nothing may say that it stands still.
            Some(0) => ensure!(told == 0 || told == self.oracle.behind(), "reset_after should be 0"),
            Some(due) if due + u128::from(at) > end => {
                ensure!(u128::from(at) + u128::from(told) >= end, "reset_after should be {due}");
            }
            Some(due) => ensure!(u128::from(told) == due, "reset_after should be {due}"),
            None => {}
        }
        if told > 0 && !idle && self.oracle.behind() == 0 {
            let early = at.saturating_add(told - 1).min(self.setup.end);
            ensure!(!self.algorithm.is_fresh(&self.state, Nanos(early)), "fresh before reset_after");
            ensure!(!self.lets_in(&self.state, early, whole), "all was let in before reset_after");
        }
        let Some(due) = self.due(at, told) else { return Ok(()) };
        ensure!(self.algorithm.is_fresh(&self.state, Nanos(due)), "not fresh at reset_after");
        ensure!(self.oracle_at(due).remaining().1 == whole, "the rule has not reset at reset_after");
        ensure!(self.lets_in(&self.state, due, whole), "not all is let in at reset_after");
        Ok(())
    }

    fn peek_agrees_with_check(&self, state: &A::State, at: u64) -> Result<(), String> {
        let mut peeked = state.clone();
        let peek = self.algorithm.peek(&mut peeked, Nanos(at), 1);
        let idle = self.check(&mut state.clone(), at, 0);
        let check = self.check(&mut state.clone(), at, 1);
        ensure!(peek.is_allowed() == check.is_allowed(), "peek says {peek:?}, check {check:?}");
        ensure!(peek.retry_after() == check.retry_after(), "peek says {peek:?}, check {check:?}");
        ensure!(peek.remaining() == idle.remaining(), "peek says {peek:?}, a cost of 0 {idle:?}");
        ensure!(peek.reset_after() == idle.reset_after(), "peek says {peek:?}, a cost of 0 {idle:?}");
        let after = self.check(&mut peeked, at, 1);
        ensure!(after == check, "check {check:?}, but after a look {after:?}");
        Ok(())
    }

    fn splitting_changes_nothing(&self, before: &A::State, at: u64) -> Result<(), String> {
        if self.oracle.capacity().is_none() {
            return Ok(());
        }
        let whole = self.check(&mut before.clone(), at, 3);
        let mut split = before.clone();
        let parts = [(); 3].map(|()| self.check(&mut split, at, 1));
        if whole.is_allowed() {
            ensure!(parts[2] == whole, "three at once: {whole:?}, one by one: {:?}", parts[2]);
        } else {
            ensure!(!parts[2].is_allowed(), "three at once are refused, one by one let in");
        }
        Ok(())
    }

    fn describe(&self, broken: &str, at: u64, cost: u64) -> String {
        let mut text =
            format!("{broken}\n  at {at}, cost {cost}\n  {:?}\n  {:?}\n", self.algorithm, self.setup);
        for (at, cost, decision) in &self.trail {
            text.push_str(&format!("  at {at}, cost {cost}: {decision:?}\n"));
        }
        text.push_str(&format!("  {:?}\n  {:?}", self.state, self.oracle));
        text
    }
}

fn nanos(span: Option<std::time::Duration>) -> u64 {
    span.map_or(0, |span| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}
