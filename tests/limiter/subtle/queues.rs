//! Queues that are replayed: what a limiter reports is compared with what it does later.

use super::world::*;
use super::*;

#[derive(Clone, Copy, Default)]
struct Acts {
    back: bool,
    refund: bool,
    replace: bool,
    drop: bool,
    max_cost: u64,
    late: bool,
}

fn lines<A: Algorithm>(
    name: &str,
    seeds: std::ops::Range<u64>,
    make: impl Fn(&mut Random) -> Vec<A>,
    acts: Acts,
    with_priority: WithPriority<A>,
) {
    let mut failures = Failures::default();
    for seed in seeds {
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
                if !matches!(op, Op::Enter(_, true) | Op::Check(0)) && decision.remaining() < 50 {
                    let mut copy = World::replay(&rules, &ops, with_priority);
                    let more = (0..60)
                        .take_while(|_| copy.go(&rules, again).is_none_or(|decision| decision.is_allowed()))
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
            let left = world.hands.iter().filter(|(.., hand)| hand.is_pending()).count();
            if left > 0 {
                bad = Some(("asleep", format!("{left} wait for ever")));
            }
        }
        if let Some((kind, bad)) = bad {
            let text = format!("{name} seed {seed}: {kind} {bad}\n  {rules:?}\n  {}", reported.join("\n  "));
            failures.add(kind, text);
        }
    }
    failures.assert_none(name);
}

fn prio<A: Algorithm>(make: impl Fn(Quota) -> A, r: &mut Random) -> Vec<A> {
    let limit = r.within(1..=6);
    (0..2).map(|_| make(Quota::per(limit, Duration::from_nanos(r.one_of(&[7, 10, 100]))).unwrap())).collect()
}

const EACH: Acts = Acts { back: true, refund: true, replace: true, drop: true, max_cost: 3, late: true };

const M: u64 = 10_000;

#[test]
fn reports_of_the_queue_of_a_leaky_bucket_are_true() {
    lines(
        "leaky",
        0..scaled(M),
        |r| {
            let places = r.within(0..=4);
            (0..2).map(|_| LeakyBucket::new(quota(r)).queue(places)).collect()
        },
        EACH,
        RateLimiter::acquire_n,
    );
}

#[test]
fn reports_of_the_queue_of_a_lockout_are_true() {
    lines(
        "b leaky",
        0..scaled(M),
        |r| {
            let places = r.within(0..=4);
            (0..2)
                .map(|_| {
                    let a = LeakyBucket::new(quota(r)).queue(places);
                    block(a, r)
                })
                .collect()
        },
        EACH,
        RateLimiter::acquire_n,
    );
}

#[test]
fn reports_of_the_queue_of_a_counter_with_priority_are_true() {
    lines(
        "p counter plain",
        0..scaled(M),
        |r| {
            let p = r.one_of(&[34, 50]);
            prio(|q| SlidingCounter::new(q).priority(p), r)
        },
        Acts { max_cost: 1, ..Acts::default() },
        acquire_with_priority,
    );
}

/// No span of a period has more units than the limit, even if calls borrow, are cancelled or are late.
#[test]
fn windows_with_priority_are_strict() {
    fn run<A: Algorithm>(name: &str, strict: u64, make: impl Fn(Quota, u8) -> A) {
        let mut longest = 0_f64;
        for seed in 0..scaled(N) {
            let r = &mut Random::new(seed);
            let (limit, period) = (r.within(1..=6), r.one_of(&[7, 10, 100]));
            let rule =
                make(Quota::per(limit, Duration::from_nanos(period)).unwrap(), r.one_of(&[10, 34, 50, 100]));
            let rules = [rule];
            let mut world = World::new(&rules[0], acquire_with_priority);
            let mut left: Vec<(u64, u64)> = Vec::new();
            let late = r.one_in(2);
            for _ in 0..40 {
                let op = match r.below(12) {
                    0..5 => Op::Advance(r.one_of(&[1, 2, 5, 9, 30, 100])),
                    5 => Op::Drop(r.below(9) as usize),
                    6 | 7 => Op::Check(r.within(1..=3)),
                    8 => Op::Enter(r.within(1..=3), false),
                    _ => Op::Enter(r.within(1..=3), true),
                };
                let at = world.at;
                if let Some(decision) = world.go(&rules, op)
                    && decision.is_allowed()
                    && let Op::Check(cost) | Op::Enter(cost, _) = op
                {
                    left.push((at, cost));
                }
                if !late || r.one_in(3) {
                    world.settle();
                }
            }
            for _ in 0..200 {
                let _ = world.go(&rules, Op::Advance(r.one_of(&[1, period])));
                world.settle();
            }
            for (at, cost, hand) in &world.hands {
                assert!(!hand.is_pending(), "{seed}");
                if let Some(decision) = hand.output {
                    assert!(decision.is_allowed());
                    left.push((at + nanos(decision.delay()), *cost));
                    if late || period < 100 {
                        continue;
                    }
                    longest = longest.max(nanos(decision.delay()) as f64 / period as f64);
                }
            }
            left.sort_unstable();
            for (at, _) in &left {
                let held: u64 = left
                    .iter()
                    .filter(|(then, _)| (*at..*at + period).contains(then))
                    .map(|(_, cost)| cost)
                    .sum();
                assert!(
                    held <= limit * strict,
                    "{name} {seed}: {held} of {limit} in {period} from {at}: {left:?} {:?}",
                    rules[0]
                );
            }
        }
        println!("{name}: longest wait {longest} periods");
    }
    run("log", 1, |q, p| SlidingLog::new(q).priority(p));
    run("window", 1, |q, p| SlidingWindow::new(q).slices(3).priority(p));
    run("fixed", 2, |q, p| FixedWindow::new(q).priority(p));
    run("counter", 2, |q, p| SlidingCounter::new(q).priority(p));
}
