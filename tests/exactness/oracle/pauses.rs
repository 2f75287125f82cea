//! A limiter against the exact models while its key is paused again and again, over random sequences of calls, peeks,
//! refunds, charges, settlements, replacements and resets. The clock advances and steps back.

use std::time::Duration;

use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Reservation;
use tower_throttle::{Decision, RateLimiter};

use super::cases::{
    bucket, counter, fixed, fixed_window, leaky, leaky_bucket, log, paced, sliced, sliding_counter,
    sliding_log, sliding_window, smooth, token_bucket,
};
use super::checker::{STEPS, nanos};
use super::config::{Rule, SECOND};
use super::model::{Oracle, Paused, Verdict};
use super::scenario::{Reported, Setup, next_cost};
use crate::support::{Random, scaled};

const KEY: &str = "key";

/// The number of events, so that a test that tests nothing is noticed.
#[derive(Debug, Default)]
struct Seen {
    /// The calls and peeks that were denied in a pause.
    denied: u64,
    /// Those of them that would be denied at its end as well.
    denied_longer: u64,
    /// How often each of these was done in a pause.
    settled: u64,
    replaced: u64,
    reset: u64,
    stepped_back: u64,
}

/// Makes the numbers so small that no time of a key is beyond the end of the clock.
fn tamed(rule: &Rule) -> Rule {
    let most = |number: u64, most: u64| 1 + number % most;
    Rule {
        limit: most(rule.limit, 1_000),
        period: most(rule.period, 100 * SECOND),
        burst: most(rule.burst, 1_000),
        warm_up: rule.warm_up.map(|warm_up| most(warm_up, 100 * SECOND)),
        ..rule.clone()
    }
}

/// A call that was admitted: its reservation, and what the model knows of it.
struct Admitted {
    reservation: Reservation,
    cost: u64,
    charged_at: u64,
    /// `true` once the key was reset or its algorithm replaced, so that nothing is given back.
    is_forgotten: bool,
}

struct World<'a, A: Algorithm, O> {
    setup: &'a Setup,
    limiter: RateLimiter<A>,
    clock: ManualClock,
    key: Paused<O>,
    /// The model of a key that was never used.
    unused: O,
    rule: Rule,
    now: u64,
    random: Random,
    reported: Reported,
    admitted: Vec<Admitted>,
    seen: &'a mut Seen,
    trail: Vec<String>,
}

impl<A: Algorithm, O> Drop for World<'_, A, O> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}\n  {}", self.setup, self.trail.join("\n  "));
        }
    }
}

impl<A: Algorithm, O: Oracle> World<'_, A, O> {
    fn note(&mut self, what: String) {
        self.trail.push(format!("at {}: {what}", self.now));
    }

    /// Advances the clock, or sets it back.
    fn go(&mut self) {
        let to = self.setup.next_time(&mut self.random, &self.rule, self.now, self.reported);
        self.seen.stepped_back += u64::from(to < self.now && self.key.is_paused());
        self.set(to);
    }

    fn set(&mut self, to: u64) {
        self.now = to;
        self.clock.set(Duration::from_nanos(to));
        self.key.observe(to);
        self.unused.observe(to);
    }

    fn step(&mut self, step: usize, build: &impl Fn(&Rule) -> A) {
        if !self.setup.steps_back {
            // The call is for a new key each time, so that keys are examined and removed.
            let _ = self.limiter.check(&step);
        }
        let most = self.key.rule.capacity().unwrap_or(self.rule.limit);
        let cost = next_cost(&mut self.random, most, self.reported).min(3_000);
        match self.random.below(16) {
            0..=2 => self.pause(),
            3 if self.setup.refunds => {
                self.note(format!("refund {cost}"));
                self.limiter.refund(KEY, cost);
                self.key.rule.refund(cost);
            }
            4 if O::BOUNDS_DEBT => {
                self.note(format!("charge {cost}"));
                let before = self.limiter.stats().units.charged;
                self.limiter.charge(KEY, cost);
                let charged = self.limiter.stats().units.charged - before;
                assert_eq!(charged, self.key.rule.charge(cost, self.max_debt()));
            }
            5 | 6 => self.settle(cost),
            7 if self.setup.replaces => {
                let rule = tamed(&self.rule.another(&mut self.random));
                self.note(format!("replace: {rule:?}"));
                self.limiter.replace(build(&rule));
                for model in [&mut self.key.rule, &mut self.unused] {
                    model.replace(&rule);
                }
                self.rule = rule;
                // With the new period, the clock may be more than a period behind the latest reading.
                self.set(self.now);
                self.admitted.iter_mut().for_each(|call| call.is_forgotten = true);
                self.seen.replaced += u64::from(self.key.is_paused());
            }
            // It is not known which readings a key has observed that was removed.
            8 if !self.setup.steps_back => {
                self.note("reset".to_owned());
                assert!(self.limiter.reset(KEY) || !self.key.is_paused(), "a paused key is not as a new key");
                self.seen.reset += u64::from(self.key.is_paused());
                self.key = Paused::new(self.unused.clone());
                self.admitted.iter_mut().for_each(|call| call.is_forgotten = true);
            }
            9..=11 => self.reserve(cost),
            _ => self.check(cost),
        }
        self.look(cost);
        self.look(1);
    }

    fn max_debt(&self) -> u64 {
        self.setup.max_debt.unwrap_or(0).clamp(1, 1 << 53)
    }

    fn pause(&mut self) {
        let duration = self.setup.next_pause(&mut self.random, &self.rule, self.reported);
        self.note(format!("pause {duration}"));
        let is_paused = self.limiter.pause(KEY, Duration::from_nanos(duration));
        assert_eq!(is_paused, duration > 0);
        self.key.pause(duration);
    }

    fn check(&mut self, cost: u64) {
        let decision = self.limiter.check_n(KEY, cost);
        self.note(format!("check {cost}: {decision:?}"));
        self.decides(decision, cost);
    }

    fn reserve(&mut self, cost: u64) {
        let result = self.limiter.call(KEY).cost(cost).reserve();
        match result {
            Ok(reservation) => {
                self.note(format!("reserve {cost}"));
                assert_ne!(self.verdict(cost), Verdict::Deny, "reserved early");
                self.key.rule.admit(cost);
                let charged_at = self.key.rule.clock().latest;
                self.admitted.push(Admitted { reservation, cost, charged_at, is_forgotten: false });
            }
            Err(denied) => {
                self.note(format!("reserve {cost}: {denied:?}"));
                self.decides(*denied.decision(), cost);
            }
        }
    }

    fn settle(&mut self, actual: u64) {
        if self.admitted.is_empty() {
            return self.check(actual);
        }
        let nth = self.random.below(self.admitted.len() as u64) as usize;
        let Admitted { reservation, cost, charged_at, is_forgotten } = self.admitted.swap_remove(nth);
        let actual = if O::BOUNDS_DEBT { actual } else { actual.min(cost) };
        self.note(format!("settle {cost} at {actual}"));
        let settled = reservation.settle(actual);
        if actual > cost {
            self.key.rule.charge(actual - cost, self.max_debt());
        } else if let Some(ago) = self.key.rule.clock().latest.checked_sub(charged_at)
            && !is_forgotten
        {
            self.key.rule.refund_settled(cost, actual, ago);
        }
        self.seen.settled += u64::from(self.key.is_paused());
        if let Some(decision) = settled {
            self.note(format!("settled: {decision:?}"));
            assert!(decision.is_allowed() && self.remains(&decision));
        }
    }

    fn look(&mut self, cost: u64) {
        let decision = self.limiter.peek_n(KEY, cost);
        self.note(format!("peek {cost}: {decision:?}"));
        self.is_true(&decision, cost);
    }

    /// Returns the decision that must be made on a call.
    fn verdict(&self, cost: u64) -> Verdict {
        if cost > 0 && self.key.is_paused() { Verdict::Deny } else { self.key.rule.verdict(cost) }
    }

    fn decides(&mut self, decision: Decision, cost: u64) {
        let verdict = self.verdict(cost);
        if decision.is_allowed() {
            assert_ne!(verdict, Verdict::Deny, "admitted early");
            self.key.rule.admit(cost);
            assert!(self.remains(&decision), "remaining");
        } else {
            assert_ne!(verdict, Verdict::Admit, "denied what the rule admits");
            self.its_wait_is_true(&decision, cost);
        }
        self.reported = Reported {
            retry: nanos(decision.retry_after()),
            reset: nanos(Some(decision.reset_after())),
            remaining: decision.remaining(),
        };
    }

    fn is_true(&mut self, peek: &Decision, cost: u64) {
        let verdict = self.verdict(cost);
        assert_ne!(verdict, if peek.is_allowed() { Verdict::Deny } else { Verdict::Admit }, "looked wrong");
        assert!(self.remains(peek), "remaining");
        if !peek.is_allowed() {
            self.its_wait_is_true(peek, cost);
        }
    }

    fn remains(&self, decision: &Decision) -> bool {
        let remaining = decision.remaining();
        if self.key.is_paused() { remaining == 0 } else { self.key.rule.remaining().contains(&remaining) }
    }

    /// Asserts that the call is denied until its `retry_after`, and then admitted, if no other call is made meanwhile.
    fn its_wait_is_true(&mut self, decision: &Decision, cost: u64) {
        let (end, left) = self.key.at_end();
        let is_paused = self.key.is_paused();
        let fits = end.capacity().is_none_or(|capacity| cost <= capacity);
        assert_eq!(decision.never_fits(), !fits);
        let reset = u128::from(nanos(Some(decision.reset_after())));
        let (least, most) = end.reset().into_inner();
        assert!((least..=most).contains(&(reset - u128::from(left))), "reset_after");
        let Some(wait) = decision.retry_after() else { return assert!(!fits, "no retry_after") };
        let longer = nanos(Some(wait)).checked_sub(left).expect("the pause is over then");
        let verdict_after = |span: u64| {
            let mut rule = end.clone();
            rule.observe(rule.clock().latest + span);
            rule.verdict(cost)
        };
        assert_ne!(verdict_after(longer), Verdict::Deny, "denied at retry_after");
        if longer > 0 {
            assert_ne!(verdict_after(longer - 1), Verdict::Admit, "admitted before retry_after");
        }
        self.seen.denied += u64::from(is_paused);
        self.seen.denied_longer += u64::from(is_paused && longer > 0);
    }
}

/// Runs random sequences of each algorithm.
fn agrees<A: Algorithm, O: Oracle>(
    setup: impl Fn(u64, &mut Random) -> Setup,
    build: impl Fn(&Rule) -> A,
    oracle: impl Fn(&Setup) -> O,
) {
    let seen = &mut Seen::default();
    for seed in 0..scaled(3_000) {
        let mut random = Random::new(seed);
        let setup = setup(seed, &mut random);
        let setup = &Setup { rule: tamed(&setup.rule), ..setup };
        let clock = ManualClock::new();
        clock.set(Duration::from_nanos(setup.created_at));
        let max_debt = setup.max_debt.unwrap_or(0).clamp(1, 1 << 53);
        let builder = RateLimiter::builder(build(&setup.rule)).clock(clock.clone());
        let mut world = World {
            setup,
            limiter: builder.max_debt(max_debt).build(),
            clock,
            key: Paused::new(oracle(setup)),
            unused: oracle(setup),
            rule: setup.rule.clone(),
            now: setup.start,
            random,
            reported: Reported::default(),
            admitted: Vec::new(),
            seen,
            trail: vec![format!("sequence {seed}")],
        };
        world.set(setup.start);
        // With a pause, the key gets a place in the table. Without other keys, it keeps this place.
        assert!(world.limiter.pause(KEY, Duration::from_nanos(1)));
        world.key.pause(1);
        for step in 0..STEPS {
            world.step(step, &build);
            if world.key.rule.is_beyond() {
                break;
            }
            world.go();
        }
    }
    println!("{seen:?}");
    let Seen { denied, denied_longer, settled, replaced, reset, stepped_back } = *seen;
    let least = [denied, denied_longer, settled, replaced, reset, stepped_back].into_iter().min();
    assert!(least > Some(scaled(300)), "{seen:?}");
}

#[test]
fn a_bucket_that_is_paused_agrees_with_the_exact_model() {
    agrees(Setup::mid_life, token_bucket, bucket);
}

#[test]
fn a_window_that_is_paused_agrees_with_the_exact_model() {
    agrees(Setup::mid_life, fixed_window, fixed);
    agrees(Setup::mid_life, sliding_window, sliced);
    agrees(Setup::mid_life, sliding_log, log);
    agrees(Setup::mid_life, sliding_counter, counter);
}

#[test]
fn a_paced_limiter_that_is_paused_agrees_with_the_exact_model() {
    agrees(Setup::mid_life, leaky_bucket, leaky);
    agrees(|seed, random| Setup::smooth(seed, random, false), smooth, paced);
    agrees(|seed, random| Setup::smooth(seed, random, true), smooth, paced);
}
