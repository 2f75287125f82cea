//! The checker, which makes random operations on an algorithm and on its model.

use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::Nanos;

use super::config::Rule;
use super::model::{Oracle, Verdict};
use super::operation::Act;
use super::scenario::{Reported, Setup, next_cost};
use crate::support::Random;

pub(crate) const STEPS: usize = 64;

/// Returns an error about a broken promise, unless the condition is true. The caller adds the sequence of operations.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(super) use ensure;

pub(super) struct Sequence<'a, A: Algorithm, O> {
    pub(super) setup: &'a Setup,
    build: &'a dyn Fn(&Rule) -> A,
    rule: Rule,
    pub(super) algorithm: A,
    pub(super) oracle: O,
    pub(super) state: A::State,
    /// A copy of the state that gets only the calls that change a key. It gets no denials, no peeks and no calls of
    /// cost 0.
    quiet: A::State,
    /// The calls that were admitted and not settled yet: the cost, and the key's latest reading.
    admitted: Vec<(u64, u64)>,
    now: u64,
    pub(super) reported: Reported,
    pub(super) random: Random,
    trail: Vec<(u64, Act, Decision)>,
}

/// Runs `sequences` sequences. Returns the number of the first sequence that breaks a promise, and a description.
pub(crate) fn first_broken<A: Algorithm, O: Oracle>(
    sequences: u64,
    setup: impl Fn(u64, &mut Random) -> Setup,
    build: impl Fn(&Rule) -> A,
    oracle: impl Fn(&Setup) -> O,
) -> Option<(u64, String)> {
    (0..sequences).find_map(|seed| {
        let mut random = Random::new(seed);
        let setup = setup(seed, &mut random);
        run(&setup, &build, oracle(&setup), random).err().map(|broken| (seed, broken))
    })
}

/// Runs one sequence. Returns an error that says which promise was broken, and how.
pub(crate) fn run<A: Algorithm, O: Oracle>(
    setup: &Setup,
    build: &dyn Fn(&Rule) -> A,
    oracle: O,
    random: Random,
) -> Result<(), String> {
    let (rule, algorithm) = (setup.rule.clone(), build(&setup.rule));
    let state = algorithm.new_state(Nanos(setup.created_at), Nanos(setup.start));
    let quiet = state.clone();
    let (now, reported, trail) = (setup.start, Reported::default(), Vec::with_capacity(STEPS));
    let admitted = Vec::new();
    let mut run = Sequence {
        setup,
        build,
        rule,
        algorithm,
        oracle,
        state,
        quiet,
        admitted,
        now,
        reported,
        random,
        trail,
    };
    for step in 0..STEPS {
        let most = run.oracle.capacity().unwrap_or(run.rule.limit);
        let at = match step {
            0 => run.now,
            _ => setup.next_time(&mut run.random, &run.rule, run.now, run.reported),
        };
        let act = setup.next_act(&mut run.random, &run.rule, most, run.reported);
        run.step(at, &act).map_err(|broken| run.describe(&broken, at, &act))?;
        if run.oracle.is_beyond() {
            break;
        }
    }
    Ok(())
}

impl<A: Algorithm, O: Oracle> Sequence<'_, A, O> {
    fn step(&mut self, at: u64, act: &Act) -> Result<(), String> {
        if at < self.now {
            // The copy must observe each reading of the clock before a step back. Otherwise it could not detect the
            // step.
            let _ = self.algorithm.check(&mut self.quiet, Nanos(self.now), 0);
            let _ = self.algorithm.check(&mut self.quiet, Nanos(at), 0);
        }
        self.now = at;
        self.oracle.observe(at);
        match act {
            Act::Call(cost) => return self.call(at, *cost),
            Act::Look(cost) => return self.look(at, *cost),
            Act::Refund(units) => {
                self.algorithm.refund(&mut self.state, Nanos(at), *units, None);
                self.algorithm.refund(&mut self.quiet, Nanos(at), *units, None);
                self.oracle.refund(*units);
            }
            Act::Charge(cost, max_debt) => self.charge(at, *cost, *max_debt)?,
            Act::Settle { call, actual, max_debt } => {
                if self.admitted.is_empty() {
                    return self.call(at, *actual);
                }
                let (cost, charged_at) = self.admitted.swap_remove(*call as usize % self.admitted.len());
                match cost.checked_sub(*actual) {
                    // A call that is dropped is undone as a whole. Another call is settled.
                    Some(_) if call % 2 == 0 => self.undo(at, cost, charged_at),
                    Some(_) => self.refund_settled(at, cost, *actual, charged_at),
                    None => self.charge(at, actual - cost, *max_debt)?,
                }
            }
            Act::Replace(rule) => {
                let algorithm = (self.build)(rule);
                for state in [&mut self.state, &mut self.quiet] {
                    algorithm.migrate(state, &self.algorithm, Nanos(at));
                }
                (self.algorithm, self.rule) = (algorithm, (**rule).clone());
                self.oracle.replace(rule);
                // With the new period, the clock may be more than a period behind the latest reading.
                self.oracle.observe(at);
                let _ = self.algorithm.check(&mut self.quiet, Nanos(at), 0);
            }
        }
        let most = self.oracle.capacity().unwrap_or(self.rule.limit);
        let cost = next_cost(&mut self.random, most, self.reported);
        self.look(at, cost)
    }

    fn charge(&mut self, at: u64, cost: u64, max_debt: u64) -> Result<(), String> {
        let max_debt = if O::BOUNDS_DEBT { max_debt } else { u64::MAX };
        let charged = self.algorithm.charge(&mut self.state, Nanos(at), cost, max_debt);
        let _ = self.algorithm.charge(&mut self.quiet, Nanos(at), cost, max_debt);
        let expected = self.oracle.charge(cost, max_debt);
        ensure!(charged == expected, "{charged} units were charged instead of {expected}");
        Ok(())
    }

    fn undo(&mut self, at: u64, cost: u64, charged_at: u64) {
        self.algorithm.refund(&mut self.state, Nanos(at), cost, Some(Nanos(charged_at)));
        self.algorithm.refund(&mut self.quiet, Nanos(at), cost, Some(Nanos(charged_at)));
        // The clock may have been set back to before the charge. Nothing is then given back.
        if let Some(ago) = self.oracle.clock().latest.checked_sub(charged_at) {
            self.oracle.undo(cost, ago);
        }
    }

    fn refund_settled(&mut self, at: u64, charged: u64, actual: u64, charged_at: u64) {
        for state in [&mut self.state, &mut self.quiet] {
            self.algorithm.refund_settled(state, Nanos(at), charged, actual, Nanos(charged_at));
        }
        if let Some(ago) = self.oracle.clock().latest.checked_sub(charged_at) {
            self.oracle.refund_settled(charged, actual, ago);
        }
    }

    fn call(&mut self, at: u64, cost: u64) -> Result<(), String> {
        let before = self.state.clone();
        let decision = self.algorithm.check(&mut self.state, Nanos(at), cost);
        self.take_note(at, Act::Call(cost), decision);
        self.verdict_is_right(&decision, cost)?;
        if decision.is_allowed() {
            self.oracle.admit(cost);
            self.admitted.push((cost, self.oracle.clock().latest));
        }
        self.denials_spent_nothing(&decision, at, cost)?;
        self.its_reports_are_true(&decision, at, cost)?;
        self.peeking_agrees_with_calling(&before, at, cost)?;
        self.splitting_changes_nothing(&before, at)
    }

    fn look(&mut self, at: u64, cost: u64) -> Result<(), String> {
        let decision = self.algorithm.peek(&mut self.state, Nanos(at), cost);
        self.take_note(at, Act::Look(cost), decision);
        let quiet = self.algorithm.peek(&mut self.quiet.clone(), Nanos(at), cost);
        ensure!(quiet == decision, "a caller without denied calls gets {quiet:?}");
        self.verdict_is_right(&decision, cost)?;
        self.its_reports_are_true(&decision, at, cost)?;
        let state = self.state.clone();
        self.peeking_agrees_with_calling(&state, at, cost)
    }

    fn take_note(&mut self, at: u64, act: Act, decision: Decision) {
        self.trail.push((at, act, decision));
        self.reported = Reported {
            retry: nanos(decision.retry_after()),
            reset: nanos(Some(decision.reset_after())),
            remaining: decision.remaining(),
        };
    }

    fn verdict_is_right(&self, decision: &Decision, cost: u64) -> Result<(), String> {
        let allowed = decision.is_allowed();
        match self.oracle.verdict(cost) {
            Verdict::Deny => ensure!(!allowed, "admitted early"),
            Verdict::Admit => ensure!(allowed, "denied what the rule admits"),
            Verdict::Either => {}
        }
        let limit = self.oracle.limit();
        ensure!(limit.contains(&decision.limit()), "the limit should be {limit:?}");
        ensure!(decision.delay().is_zero(), "`check` never waits");
        Ok(())
    }

    fn denials_spent_nothing(&mut self, decision: &Decision, at: u64, cost: u64) -> Result<(), String> {
        let mut quiet = self.quiet.clone();
        let answer = self.algorithm.check(&mut quiet, Nanos(at), cost);
        ensure!(answer == *decision, "a caller without denied calls gets {answer:?}");
        if decision.is_allowed() && cost > 0 {
            self.quiet = quiet;
        } else if !decision.is_allowed() {
            let again = self.algorithm.check(&mut self.state, Nanos(at), cost);
            ensure!(again == *decision, "denied again at the same instant: {again:?}");
        }
        Ok(())
    }

    fn describe(&self, broken: &str, at: u64, act: &Act) -> String {
        let mut text = format!("{broken}\n  at {at}, {act:?}\n  {:?}\n  {:?}\n", self.algorithm, self.setup);
        for (at, act, decision) in &self.trail {
            text.push_str(&format!("  at {at}, {act:?}: {decision:?}\n"));
        }
        text.push_str(&format!("  {:?}\n  {:?}", self.state, self.oracle));
        text
    }
}

pub(super) fn nanos(span: Option<std::time::Duration>) -> u64 {
    span.map_or(0, |span| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}
