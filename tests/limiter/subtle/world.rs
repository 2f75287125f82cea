//! Operations on one key that can be replayed from the start.

use super::*;

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Advance(u64),
    Back(u64),
    Check(u64),
    Enter(u64, bool),
    Drop(usize),
    Refund(u64),
    Reset,
    Replace(usize),
    Settle,
}

/// The method that makes a call with priority. It is [`RateLimiter::acquire_n`] if the algorithm has no priority.
pub(super) type WithPriority<A> = fn(&RateLimiter<A>, &str, u64) -> Acquire<A>;

pub(super) fn acquire_with_priority<A: Algorithm>(
    limiter: &RateLimiter<A>,
    key: &str,
    cost: u64,
) -> Acquire<A> {
    limiter.call(key).cost(cost).priority().acquire()
}

pub(super) struct World<A: Algorithm> {
    pub(super) with_priority: WithPriority<A>,
    pub(super) clock: ManualClock,
    pub(super) at: u64,
    pub(super) limiter: RateLimiter<A>,
    pub(super) hands: Vec<(u64, u64, PolledByHand<Acquire<A>>)>,
    pub(super) spins: bool,
}

impl<A: Algorithm> World<A> {
    pub(super) fn new(rule: &A, with_priority: WithPriority<A>) -> Self {
        let (clock, limiter) = on(rule.clone());
        Self { with_priority, clock, at: 0, limiter, hands: Vec::new(), spins: false }
    }
    pub(super) fn settle(&mut self) {
        for _ in 0..4 {
            for (_, _, hand) in &mut self.hands {
                let before = hand.polls;
                // Like `run`, but with a maximum number of polls.
                while hand.is_pending() && hand.alarm.rang() {
                    hand.poll();
                    if hand.polls > before + 20 {
                        self.spins = true;
                        return;
                    }
                }
            }
        }
    }
    pub(super) fn go(&mut self, rules: &[A], op: Op) -> Option<Decision> {
        match op {
            Op::Advance(by) => {
                self.at += by;
                self.clock.set(Duration::from_nanos(self.at));
            }
            Op::Back(by) => {
                self.at = self.at.saturating_sub(by);
                self.clock.set(Duration::from_nanos(self.at));
            }
            Op::Check(cost) => return Some(self.limiter.check_n("k", cost)),
            Op::Enter(cost, priority) => {
                let call = if priority {
                    (self.with_priority)(&self.limiter, "k", cost)
                } else {
                    self.limiter.acquire_n("k", cost)
                };
                let mut hand = PolledByHand::new(call);
                if hand.poll() {
                    return hand.output;
                }
                self.hands.push((self.at, cost, hand));
            }
            Op::Drop(n) if !self.hands.is_empty() => {
                let n = n % self.hands.len();
                self.hands[n].2.abandon();
            }
            Op::Drop(_) => {}
            Op::Refund(cost) => self.limiter.refund("k", cost),
            Op::Reset => self.limiter.reset("k"),
            Op::Replace(n) => self.limiter.replace(rules[n].clone()),
            Op::Settle => self.settle(),
        }
        None
    }
    pub(super) fn replay(rules: &[A], ops: &[Op], with_priority: WithPriority<A>) -> Self {
        let mut world = Self::new(&rules[0], with_priority);
        for op in ops {
            let _ = world.go(rules, *op);
        }
        world
    }
    pub(super) fn allows(mut self, rules: &[A], by: u64, op: Op) -> bool {
        self.settle();
        // The waiters must be released on time, because a window charges a late release later.
        let near = by.min(400);
        for _ in 0..near {
            let _ = self.go(rules, Op::Advance(1));
            self.settle();
        }
        let _ = self.go(rules, Op::Advance(by - near));
        self.settle();
        self.go(rules, op).is_none_or(|decision| decision.is_allowed())
    }
}
