//! Queues that are replayed: what a limiter reports is compared with what it does later.

use super::*;

/// Operations on one key that can be replayed from the start.
#[derive(Clone, Copy, Debug)]
enum Op {
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

struct World<A: Algorithm> {
    with_priority: WithPriority<A>,
    clock: ManualClock,
    at: u64,
    limiter: RateLimiter<A>,
    hands: Vec<PolledByHand<Acquire<A>>>,
    spins: bool,
}

impl<A: Algorithm> World<A> {
    fn new(rule: &A, with_priority: WithPriority<A>) -> Self {
        let clock = ManualClock::new();
        let limiter = limiter(rule.clone(), &clock);
        Self { with_priority, clock, at: 0, limiter, hands: Vec::new(), spins: false }
    }

    fn settle(&mut self) {
        for _ in 0..4 {
            for hand in &mut self.hands {
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

    fn go(&mut self, rules: &[A], op: Op) -> Option<Decision> {
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
                self.hands.push(hand);
            }
            Op::Drop(n) if !self.hands.is_empty() => {
                let n = n % self.hands.len();
                self.hands[n].abandon();
            }
            Op::Drop(_) => {}
            Op::Refund(cost) => self.limiter.refund("k", cost),
            Op::Reset => _ = self.limiter.reset("k"),
            Op::Replace(n) => self.limiter.replace(rules[n].clone()),
            Op::Settle => self.settle(),
        }
        None
    }

    fn replay(rules: &[A], ops: &[Op], with_priority: WithPriority<A>) -> Self {
        let mut world = Self::new(&rules[0], with_priority);
        for op in ops {
            let _ = world.go(rules, *op);
        }
        world
    }

    fn allows(mut self, rules: &[A], by: u64, op: Op) -> bool {
        self.settle();
        // The waiters must be admitted on time, because a window charges a late one later.
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

#[derive(Clone, Copy, Default)]
struct Acts {
    back: bool,
    refund: bool,
    replace: bool,
    drop: bool,
    max_cost: u64,
    late: bool,
}

/// Asserts that decisions on calls that may wait are true, that nothing spins, and that no call waits for ever.
fn lines<A: Algorithm>(
    name: &str,
    make: impl Fn(&mut Random) -> Vec<A>,
    acts: Acts,
    with_priority: WithPriority<A>,
) {
    for seed in 0..scaled(SEEDS) {
        let r = &mut Random::new(seed);
        let rules = make(r);
        let mut world = World::new(&rules[0], with_priority);
        let mut ops: Vec<Op> = Vec::new();
        let mut reported = Vec::new();
        let mut bad: Option<(&str, String)> = None;
        for _ in 0..r.within(1..=25) {
            let op = match r.below(24) {
                0..6 => Op::Advance(r.one_of(&[1, 2, 5, 9, 30, 100, 999])),
                6 if acts.back => Op::Back(r.one_of(&[1, 3, 20, 500, 1 << 20])),
                7 if acts.refund => Op::Refund(r.within(0..=4)),
                8 if acts.refund => Op::Reset,
                9 if acts.replace => Op::Replace(r.below(rules.len() as u64) as usize),
                10 if acts.drop => Op::Drop(r.below(9) as usize),
                11..15 => Op::Check(r.within(0..=acts.max_cost)),
                15..18 => Op::Enter(r.within(0..=acts.max_cost), false),
                _ => Op::Enter(r.within(0..=acts.max_cost), true),
            };
            ops.push(op);
            let decision = world.go(&rules, op);
            reported.push(format!("{op:?} at {}: {decision:?}", world.at));
            if world.spins {
                bad = Some(("spins", String::new()));
                break;
            }
            if let Some(decision) = decision {
                if let Op::Check(0) | Op::Enter(0, _) = op
                    && !decision.is_allowed()
                {
                    bad = Some(("cost 0", String::new()));
                    break;
                }
                if let Some(wait) = decision.retry_after() {
                    let wait = nanos(wait);
                    let at = |by: u64| World::replay(&rules, &ops, with_priority).allows(&rules, by, op);
                    if wait == 0 || at(wait - 1) || at(wait / 2) {
                        bad = Some(("retry late", format!("{wait}")));
                        break;
                    }
                    if !at(wait) {
                        bad = Some(("retry early", format!("{wait}")));
                        break;
                    }
                }
                let again = match op {
                    Op::Check(_) => Op::Check(1),
                    Op::Enter(_, priority) => Op::Enter(1, priority),
                    _ => unreachable!(),
                };
                if !matches!(op, Op::Check(0)) && decision.remaining() < 50 {
                    let mut copy = World::replay(&rules, &ops, with_priority);
                    let more = (0..60)
                        .take_while(|_| copy.go(&rules, again).is_some_and(|decision| decision.is_allowed()))
                        .count() as u64;
                    if more != decision.remaining() {
                        bad = Some(("remaining", format!("{} not {more}", decision.remaining())));
                        break;
                    }
                }
            }
            if !acts.late || r.one_in(2) {
                ops.push(Op::Settle);
                let _ = world.go(&rules, Op::Settle);
                if world.spins {
                    bad = Some(("spins", String::new()));
                    break;
                }
            }
        }
        if bad.is_none() {
            world.settle();
            for _ in 0..400 {
                let _ = world.go(&rules, Op::Advance(50_011));
                world.settle();
            }
            if world.spins {
                bad = Some(("spins", String::new()));
            }
            let left = world.hands.iter().filter(|hand| hand.is_pending()).count();
            if left > 0 {
                bad = Some(("asleep", format!("{left} wait for ever")));
            }
        }
        assert!(bad.is_none(), "{name} seed {seed}: {bad:?}\n  {rules:?}\n  {}", reported.join("\n  "));
    }
}

fn prio<A: Algorithm>(make: impl Fn(Quota) -> A, r: &mut Random) -> Vec<A> {
    let limit = r.within(1..=6);
    (0..2).map(|_| make(Quota::per(limit, Duration::from_nanos(r.one_of(&[7, 10, 100]))).unwrap())).collect()
}

const EACH: Acts = Acts { back: true, refund: true, replace: true, drop: true, max_cost: 3, late: true };

#[test]
fn reports_of_queues_are_true() {
    lines(
        "leaky",
        |r| {
            let places = r.within(0..=4);
            (0..2).map(|_| LeakyBucket::new(quota(r)).queue(places)).collect()
        },
        EACH,
        RateLimiter::acquire_n,
    );
    lines(
        "lockout of a leaky bucket",
        |r| {
            let places = r.within(0..=4);
            (0..2).map(|_| block(LeakyBucket::new(quota(r)).queue(places), r)).collect()
        },
        EACH,
        RateLimiter::acquire_n,
    );
    lines(
        "counter with priority",
        |r| {
            let percent = r.one_of(&[34, 50]);
            prio(|quota| SlidingCounter::new(quota).priority(percent), r)
        },
        Acts { max_cost: 1, ..Acts::default() },
        acquire_with_priority,
    );
}
