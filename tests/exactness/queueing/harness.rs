//! A limiter, with a naive queue and a naive algorithm as its model. Every operation is made on both.

use std::collections::VecDeque;
use std::time::Duration;

use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, RateLimiter};

use super::line::{Fate, Line, Slip, Waiter};
use crate::support::{PolledByHand, Random};

/// The method by which a denied call is tried again.
#[derive(Clone, Copy, Debug)]
enum Method {
    Check,
    Acquire,
    /// The call has left the queue, displaced or at its deadline. It can be queued again when it would displace no
    /// other call.
    Left,
}

pub(crate) struct World<A: Algorithm> {
    pub(crate) limiter: RateLimiter<A>,
    clock: ManualClock,
    pub(crate) line: Line,
    pub(crate) now: u64,
    /// The calls, in the order of `line.waiting`.
    calls: VecDeque<PolledByHand<Acquire<A>>>,
    /// The step of the clock, in nanoseconds.
    unit: u64,
    /// `true` if time advances by large steps, so that no call is polled at its scheduled time.
    late: bool,
    pub(crate) passed: Vec<(u64, u64)>,
    /// `true` once units were given back, by a refund or a reset.
    pub(crate) refunded: bool,
    /// `true` if refunds are made. They are made only if the algorithm starts full. Otherwise, a refund could give back
    /// units that no call has taken.
    refunds: bool,
    pub(crate) seen: Seen,
    pub(crate) log: Vec<String>,
}

/// The numbers of events that occurred, so that a test that tests nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) waited: u64,
    pub(crate) denied: u64,
    pub(crate) displaced: u64,
    pub(crate) reported: u64,
    /// The calls that were denied while their key was paused.
    pub(crate) paused: u64,
    /// The calls that had waited too long, because of a pause or a charge.
    pub(crate) late: u64,
}

impl<A: Algorithm> Drop for World<A> {
    fn drop(&mut self) {
        if std::thread::panicking() && self.line.slip == Slip::None {
            eprintln!("{:?}\n{:?}\n  {}", self.limiter, self.line.patience, self.log.join("\n  "));
        }
    }
}

impl<A: Algorithm> World<A> {
    pub(crate) fn new(rule: A, line: Line, unit: u64, late: bool) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).max_queued(line.total).build();
        let (calls, passed) = (VecDeque::new(), Vec::new());
        let (log, seen) = (Vec::new(), Seen::default());
        let (refunded, refunds) = (false, line.rule.starts_full());
        Self { limiter, clock, line, now: 0, calls, unit, late, passed, refunded, refunds, seen, log }
    }

    pub(crate) fn step(&mut self, random: &mut Random) {
        let most = self.line.rule.capacity().min(4);
        match random.below(25) {
            0..7 => self.acquire(random.within(1..=most), random),
            7 => self.acquire(random.within(0..=most + 1), random),
            8 => self.check(random.within(0..=most + 1), random),
            9 => self.look(),
            10 | 11 if !self.calls.is_empty() => {
                let at = random.below(self.calls.len() as u64) as usize;
                self.log.push(format!("at {}: number {at} leaves the queue", self.now));
                self.calls.remove(at);
                self.line.waiting.remove(at);
                self.settle();
            }
            12 if self.refunds && random.one_in(2) => {
                let cost = random.within(1..=3);
                self.log.push(format!("at {}: refund {cost}", self.now));
                self.limiter.refund("key", cost);
                self.line.rule.refund(cost);
                self.refunded = true;
                self.settle();
            }
            13 => {
                let duration = random.below(8) * random.below(8) * self.unit / 2;
                self.log.push(format!("at {}: pause {duration}", self.now));
                assert_eq!(self.limiter.pause("key", Duration::from_nanos(duration)), duration > 0);
                self.line.pause(duration, self.now);
                self.settle();
            }
            22 => {
                let cost = random.within(1..=3);
                self.log.push(format!("at {}: charge {cost}", self.now));
                self.limiter.charge("key", cost);
                self.line.charge(cost, self.now);
                self.settle();
            }
            23 if random.one_in(3) => {
                self.log.push(format!("at {}: reset", self.now));
                let was_used = self.limiter.reset("key");
                assert!(was_used || !self.line.is_paused(self.now));
                self.line.reset(self.now);
                self.refunded = true;
                self.settle();
            }
            // The queue and the pause stay as they are.
            24 => {
                self.log.push(format!("at {}: replace", self.now));
                self.limiter.replace(self.limiter.algorithm());
                self.settle();
            }
            // Advances to the nanosecond of a scheduled time, or to the nanosecond before it.
            14 | 15 => self.advance(self.line.next(self.now).map_or(self.now, |at| at.max(self.now))),
            16 => self.advance(self.line.next(self.now).map_or(self.now, |at| (at - 1).max(self.now))),
            _ => self.advance(self.now + random.below(12) * self.unit + random.below(2)),
        }
        assert_eq!(self.limiter.queued(), self.calls.len());
    }

    /// Admits all waiters, and checks that all of them are woken.
    pub(crate) fn end(&mut self) {
        while let Some(next) = self.line.next(self.now) {
            self.advance(next);
        }
        assert_eq!(self.limiter.queued(), 0);
    }

    fn advance(&mut self, to: u64) {
        while !self.late {
            match self.line.next(self.now) {
                Some(next) if next < to => self.set(next),
                _ => break,
            }
        }
        self.set(to);
    }

    fn set(&mut self, to: u64) {
        self.log.push(format!("clock {to}"));
        self.now = to;
        self.clock.set(Duration::from_nanos(to));
        self.settle();
    }

    /// Admits the waiters whose scheduled times have come, and checks that no other call is ready.
    fn settle(&mut self) {
        // The calls are polled in any order, as long as any of them is woken.
        while self.calls.iter().any(PolledByHand::is_woken) {
            self.calls.iter_mut().for_each(|call| {
                call.run();
            });
        }
        let (mut reported, mut denials) = (Vec::new(), Vec::new());
        loop {
            let before = self.line.waiting.clone();
            let Some(at) = self.line.admit(self.now) else {
                // If several calls are admitted at one instant, each reports the state after all of them.
                for remaining in reported.drain(..) {
                    assert_eq!(remaining, self.remaining(), "after having waited");
                }
                let Some(late) = self.line.late(self.now) else { break };
                let waiter = self.line.waiting.remove(late).unwrap();
                let denied = self.calls.remove(late).unwrap().output;
                let denied = denied.unwrap_or_else(|| panic!("number {late} waits too long at {}", self.now));
                assert!(!denied.is_allowed(), "number {late} has waited too long");
                assert_eq!(denied.delay().as_nanos(), u128::from(self.now - waiter.arrived));
                self.seen.late += 1;
                denials.push((denied, waiter));
                continue;
            };
            let Waiter { cost, arrived, .. } = before[at];
            self.passed.push((self.now, cost));
            let call = self.calls.remove(at).unwrap();
            let decision = call.output.unwrap_or_else(|| panic!("the first is late at {}", self.now));
            assert!(decision.is_allowed());
            assert_eq!(decision.delay().as_nanos(), u128::from(self.now - arrived), "held so long");
            reported.push(decision.remaining());
            self.seen.waited += 1;
        }
        assert!(self.calls.iter().all(PolledByHand::is_pending), "a call is early at {}", self.now);
        // If several calls are late at one instant, the first is denied while the others still wait.
        if let [(denied, waiter)] = denials[..] {
            assert_eq!(denied.remaining(), self.remaining(), "after having waited too long");
            self.is_true(denied, waiter, Method::Left, &mut Random::new(self.now));
        }
    }

    fn remaining(&self) -> u64 {
        if self.is_held() { 0 } else { self.line.rule.units(self.now) }
    }

    fn is_held(&self) -> bool {
        !self.line.waiting.is_empty() || self.line.is_paused(self.now)
    }

    /// Calls `acquire`.
    fn acquire(&mut self, cost: u64, random: &mut Random) {
        let max_wait = random.one_in(6).then(|| random.below(12) * self.unit);
        let asked = self.limiter.call("key").cost(cost);
        let asked = max_wait.map_or(asked.clone(), |max_wait| asked.max_wait(Duration::from_nanos(max_wait)));
        let mut call = PolledByHand::new(asked.acquire());
        call.poll();
        self.log.push(format!("at {}: acquire {cost} within {max_wait:?}: {:?}", self.now, call.output));
        let waiter = Waiter { cost, arrived: self.now, max_wait };
        let fate = self.line.fate(waiter);
        match (fate, call.output) {
            (Fate::Passes, Some(decision)) => {
                assert!(decision.is_allowed() && decision.delay().is_zero(), "should pass");
                if cost > 0 {
                    self.line.rule.take(cost, self.now);
                    self.passed.push((self.now, cost));
                }
                assert_eq!(decision.remaining(), self.remaining());
            }
            (Fate::Waits, None) => {
                self.line.join(waiter);
                self.calls.push_back(call);
            }
            (Fate::Displaces, _) => {
                let mut oldest = self.calls.pop_front().unwrap();
                let displaced = self.line.waiting.pop_front().unwrap();
                assert!(oldest.run(), "the oldest should be displaced, and woken");
                let reported = oldest.output.unwrap();
                self.log.push(format!("displaced, {displaced:?}: {reported:?}"));
                assert!(!reported.is_allowed());
                assert_eq!(reported.delay().as_nanos(), u128::from(self.now - displaced.arrived));
                self.seen.displaced += 1;
                // The calls behind the displaced waiter may be admitted now, and so may the new call.
                self.line.join(waiter);
                self.calls.push_back(call);
                self.settle();
                assert_eq!(reported.remaining(), self.remaining(), "as the displaced call was told");
                self.is_true(reported, displaced, Method::Left, random);
            }
            (Fate::Denied, Some(decision)) => {
                assert!(!decision.is_allowed() && decision.delay().is_zero(), "should be denied");
                assert_eq!(decision.remaining(), self.remaining());
                self.is_true(decision, waiter, Method::Acquire, random);
                self.seen.denied += 1;
            }
            other => panic!("{other:?} for {cost} at {}", self.now),
        }
    }

    fn check(&mut self, cost: u64, random: &mut Random) {
        let peek = self.limiter.peek_n("key", cost);
        let decision = self.limiter.check_n("key", cost);
        self.log.push(format!("at {}: check {cost}: {decision:?}", self.now));
        assert_eq!((peek.is_allowed(), peek.retry_after()), (decision.is_allowed(), decision.retry_after()));
        let passes = cost == 0 || !self.is_held() && self.line.rule.fits(cost);
        assert_eq!(decision.is_allowed(), passes);
        match passes {
            true if cost > 0 => {
                self.line.rule.take(cost, self.now);
                self.passed.push((self.now, cost));
            }
            true => {}
            false => {
                let call = Waiter { cost, arrived: self.now, max_wait: None };
                self.is_true(decision, call, Method::Check, random);
            }
        }
        assert_eq!(decision.remaining(), self.remaining(), "by check");
        let zero = self.limiter.peek_n("key", 0).reset_after();
        assert_eq!(zero, self.limiter.check_n("key", 0).reset_after());
    }

    fn look(&mut self) {
        let peek = self.limiter.peek("key");
        self.log.push(format!("at {}: peek: {peek:?}", self.now));
        assert_eq!(peek.is_allowed(), !self.is_held() && self.line.rule.fits(1));
        assert_eq!(peek.remaining(), self.remaining());
    }

    /// Asserts that the call is denied at every instant before its `retry_after`, and not at this instant, if no other
    /// calls arrive. If the call could displace a waiter, `retry_after` is only an upper bound.
    fn is_true(&mut self, decision: Decision, call: Waiter, method: Method, random: &mut Random) {
        let cost = call.cost;
        if cost > self.line.rule.capacity() {
            assert_eq!(decision.retry_after(), None, "never fits");
            return;
        }
        let reported = decision.retry_after().expect("time heals it").as_nanos() as u64;
        let denied = |after: u64| {
            let mut line = self.line.clone();
            line.go(self.now, self.now + after);
            let again = Waiter { arrived: self.now + after, ..call };
            match method {
                Method::Check => {
                    let is_paused = line.is_paused(self.now + after);
                    is_paused || !line.waiting.is_empty() || !line.rule.fits(cost)
                }
                Method::Acquire => line.fate(again) == Fate::Denied,
                Method::Left => {
                    line.patience.drops_oldest = false;
                    line.fate(again) == Fate::Denied
                }
            }
        };
        assert!(reported > 0 || matches!(method, Method::Left), "to be retried at once");
        assert!(!denied(reported), "denied at {reported}, as reported, by {method:?} of {cost}");
        self.seen.reported += 1;
        self.seen.paused += u64::from(self.line.is_paused(self.now));
        // Other calls may leave the queue before their scheduled times.
        let may_be_early = (0..self.line.waiting.len()).any(|at| self.line.deadline(at).is_some());
        if may_be_early || matches!(method, Method::Acquire) && self.line.patience.drops_oldest {
            return;
        }
        let all = random.one_in(40) && reported < 300;
        let mut tried =
            if all { (0..reported).collect() } else { vec![0, reported / 2, reported.saturating_sub(1)] };
        let mut at = self.now;
        let mut line = self.line.clone();
        while let Some(next) = line.next(at).filter(|next| *next < self.now + reported) {
            tried.extend([next - self.now, (next - self.now).saturating_sub(1)]);
            line.go(at, next);
            at = next;
        }
        tried.push(random.below(reported.max(1)));
        for early in tried.into_iter().filter(|early| *early < reported) {
            assert!(
                denied(early),
                "admitted after {early}, before {reported} as reported, by {method:?} of {cost}"
            );
        }
    }
}
