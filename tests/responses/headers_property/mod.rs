//! Every reported field can be parsed, and is true, for random names, quotas and states.

mod checked_calls;
mod world;

use std::thread;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Response};
use tower_throttle::algorithm::QuotaPolicy;
use tower_throttle::clock::ManualClock;
use tower_throttle::middleware::HttpResponder;
use tower_throttle::{Decision, Quota};

use crate::generators::{Kind, Rule, name, nanos};
use crate::header_parser::{Left, ParsedFields};
use crate::reference_service::{FORMS, Plan, behind};
use crate::support::{PolledByHand, Random, scaled};
use world::{World, ask};

const CASES: u64 = 100_000;
const THREADS: u64 = 4;

/// Calls that are decided immediately.
fn immediate(random: &mut Random) {
    let mut world = World::any(random);
    let mut left = 0;
    for _ in 0..1 + random.below(6) {
        world.pass_time(random);
        if random.one_in(3) {
            world.end_a_body(random);
        }
        let cost = world.cost(random);
        left = world.call(cost);
    }
    // Exactly the reported number of calls is admitted.
    if left <= 30 {
        for n in 0..left {
            let remaining = world.call(1);
            assert_eq!(remaining, left - n - 1);
            assert_eq!(world.open.last().unwrap().1, world.levels.len());
        }
    }
}

/// Calls that are queued, or rejected because the queue is full.
fn queued(random: &mut Random) {
    let clock = ManualClock::new();
    let kind = random.one_of(&[Kind::LeakyBucket, Kind::Bursty, Kind::WarmingUp]);
    let quota =
        Quota::per(1 + random.below(20), Duration::from_nanos(1 + random.below(100_000_000_000))).unwrap();
    let rule = Rule { quota, ..Rule::any(random, kind, true) };
    let name = name(random);
    let plan = Plan {
        form: FORMS[0],
        rules: vec![rule],
        names: vec![Some(name.clone())],
        hidden: vec![false],
        responder: HttpResponder::new(),
    };
    let (mut service, _) = plan.build(behind(HeaderMap::new()), &clock);
    let reference = rule.reference(&clock);
    let mut calls = Vec::new();
    for _ in 0..4 + random.below(10) {
        if random.one_in(3) {
            let interval = nanos(quota.period()) / quota.limit();
            clock.advance(Duration::from_nanos(random.below(2 * interval + 2)));
        } else {
            let cost = 1 + random.below(2);
            calls.push((ask(&mut service, cost), PolledByHand::new(reference.acquire(cost))));
        }
        calls.retain_mut(|(call, expected)| {
            let ended = call.poll();
            assert_eq!(ended, expected.poll());
            if ended {
                let response = call.output.take().unwrap().unwrap();
                let decision = expected.output.take().unwrap();
                assert_reported(rule, &name, &response, &decision, || reference.peek(1).retry_after());
            }
            !ended
        });
    }
}

fn assert_reported(
    rule: Rule,
    name: &str,
    response: &Response<Body>,
    decision: &Decision,
    next: impl FnOnce() -> Option<Duration>,
) {
    let reported = ParsedFields::read(response.headers());
    assert_eq!(response.status().as_u16(), if decision.is_allowed() { 200 } else { 429 });
    assert_eq!(reported.policies, [rule.policy(name)]);
    // The slot behind a call that has waited may be that of the next call of the queue.
    let next = match decision.delay().is_zero() {
        true => next(),
        false => QuotaPolicy::new(1, Duration::ZERO).effective_window(decision),
    };
    let t = rule.t(decision, || next);
    let is_spent = decision.is_allowed() && decision.remaining() == 0;
    let left = Left { name: name.to_owned(), r: decision.remaining(), t };
    match is_spent && rule.places > 0 && next < Some(Duration::from_secs(1)) {
        true => assert_eq!(reported.left, []),
        false => assert_eq!(reported.left, [left]),
    }
    assert!(t >= Some(1));
    let wait = if decision.is_allowed() { None } else { t };
    assert_eq!(reported.retry_after, wait);
    if decision.is_allowed() {
        assert_eq!(response.extensions().get(), Some(decision));
    }
}

/// Runs `count` cases. A failure prints its seed.
fn cases(count: u64, case: fn(&mut Random)) {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for seed in (thread..count).step_by(THREADS as usize) {
                    let reported = FailingSeed(seed);
                    case(&mut Random::new(seed));
                    drop(reported);
                }
            });
        }
    });
}

struct FailingSeed(u64);

impl Drop for FailingSeed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("with seed {}", self.0);
        }
    }
}

#[test]
fn all_reported_fields_parse_and_are_true() {
    cases(scaled(CASES), immediate);
}

#[test]
fn fields_are_true_for_queued_calls_and_for_a_full_queue() {
    cases(scaled(CASES) / 5, queued);
}
