//! Queues of a `TokenBucket` at the ends of the number range, against numbers that cannot overflow.

use std::collections::VecDeque;
use std::time::Duration;

use num_bigint::BigInt;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use super::{SECOND, ns, quota};
use crate::support::{PolledByHand, Random};

const HALF: u64 = 1 << 63;

/// A bucket in grains. A nanosecond brings `limit` grains, and a token has `period` grains.
#[derive(Clone)]
struct Exact {
    limit: BigInt,
    period: BigInt,
    burst: BigInt,
    at: BigInt,
    missing: BigInt,
}

impl Exact {
    fn new(limit: u64, period: u64, burst: u64) -> Self {
        let (at, missing) = (BigInt::ZERO, BigInt::ZERO);
        Self { limit: limit.into(), period: period.into(), burst: burst.into(), at, missing }
    }

    fn advance(&mut self, at: &BigInt) {
        if *at > self.at {
            self.missing = (&self.missing + &self.at - at).max(BigInt::ZERO);
            self.at = at.clone();
        }
    }

    /// Returns when a call may be admitted.
    fn due(&self, cost: u64) -> BigInt {
        let spare = (&self.burst - cost) * &self.period;
        &self.at + (&self.missing - spare).max(BigInt::ZERO)
    }

    fn leave(&mut self, cost: u64) -> BigInt {
        let due = self.due(cost);
        self.advance(&due);
        self.missing += &self.period * cost;
        due
    }

    fn reading(&self, at: &BigInt) -> BigInt {
        (at + &self.limit - 1) / &self.limit
    }

    fn remaining(&self) -> BigInt {
        (&self.burst * &self.period - &self.missing) / &self.period
    }
}

#[test]
fn a_queued_call_is_charged_in_full_though_what_is_missing_and_its_cost_exceed_u64_max() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(quota(u64::MAX, SECOND).burst(u64::MAX)).queue(10);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    assert!(limiter.check_n("key", u64::MAX).is_allowed());
    let mut call = PolledByHand::new(limiter.acquire_n("key", u64::MAX));
    assert!(!call.poll());
    clock.set(Duration::from_secs(1));
    assert!(call.run());
    assert_eq!(limiter.peek("key").remaining(), 0);
    clock.set(Duration::from_millis(1_500));
    assert_eq!(limiter.peek("key").remaining(), u64::MAX / 2);
}

#[test]
fn max_wait_is_kept_though_the_queued_costs_exceed_u64_max() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(quota(u64::MAX, SECOND).burst(u64::MAX));
    let bucket = bucket.queue(10).max_wait(Duration::from_millis(2_500));
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    assert!(limiter.check_n("key", u64::MAX).is_allowed());
    let mut calls: Vec<_> = (0..2).map(|_| PolledByHand::new(limiter.acquire_n("key", u64::MAX))).collect();
    assert!(!calls.iter_mut().any(PolledByHand::poll));
    let mut third = PolledByHand::new(limiter.acquire_n("key", u64::MAX));
    assert!(third.poll(), "it would wait 3 s");
    assert_eq!(third.output.unwrap().retry_after(), Some(Duration::from_millis(500)));
    clock.set(Duration::from_secs(1));
    assert!(calls[0].run() && !calls[1].run());
    clock.set(Duration::from_secs(2));
    assert!(calls[1].run());
}

#[test]
fn queued_calls_are_admitted_when_the_exact_bucket_says_at_all_ends() {
    type Call = PolledByHand<Acquire<TokenBucket>>;
    let mut waited = 0;
    for seed in 0..3_000 {
        let random = &mut Random::new(seed);
        let limit = random.one_of(&[1, 3, SECOND, HALF, u64::MAX - 1, u64::MAX]);
        let period = random.one_of(&[1, 10, SECOND, 60 * SECOND, i64::MAX as u64]);
        let burst = random.one_of(&[1, 7, 1 << 62, HALF, HALF + 1, u64::MAX - 1, u64::MAX]);
        let max_wait = random.one_of(&[1, period, period.saturating_mul(2), u64::MAX - 1, u64::MAX]);
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(quota(limit, period).burst(burst)).queue(6).max_wait(ns(max_wait));
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
        let mut exact = Exact::new(limit, period, burst);
        let mut queue: VecDeque<(u64, Call)> = VecDeque::new();
        let mut now = 0_u64;
        for step in 0..24 {
            let what = format!("seed {seed}, step {step}, at {now}: {limiter:?}, {} wait", queue.len());
            match random.below(6) {
                0..4 => {
                    let cost = random.one_of(&[1, 7, 1 << 62, HALF, burst / 2 + 1, burst]).min(burst);
                    let mut then = exact.clone();
                    queue.iter().for_each(|(cost, _)| {
                        then.leave(*cost);
                    });
                    let due = then.reading(&then.due(cost)).max(now.into());
                    let mut call = PolledByHand::new(limiter.acquire_n("key", cost));
                    call.poll();
                    let passes = queue.is_empty() && due == BigInt::from(now);
                    let in_time =
                        max_wait == u64::MAX || due <= BigInt::from(u128::from(now) + u128::from(max_wait));
                    let in_time = in_time && (max_wait == u64::MAX || due < BigInt::from(u64::MAX));
                    match call.output {
                        Some(decision) if passes => {
                            assert!(decision.is_allowed(), "{cost} passes: {what}");
                            exact.leave(cost);
                        }
                        Some(decision) => {
                            assert!(!decision.is_allowed(), "{cost} waits until {due}: {what}");
                            assert!(!in_time || queue.len() == 6, "{cost} waits until {due}: {what}");
                        }
                        None => {
                            assert!(!passes && in_time, "{cost} is denied, or passes, at {due}: {what}");
                            queue.push_back((cost, call));
                            waited += 1;
                        }
                    }
                }
                4 => now = now.saturating_add(random.one_of(&[0, 1, 2, 1_000_000])),
                _ => {
                    let Some((cost, _)) = queue.front() else { continue };
                    let due = exact.reading(&exact.due(*cost));
                    now = u64::try_from(due).unwrap_or(u64::MAX).max(now);
                }
            }
            clock.set(ns(now));
            while let Some((cost, call)) = queue.front_mut() {
                let due = exact.reading(&exact.due(*cost));
                call.poll();
                if due > BigInt::from(now) {
                    assert!(call.is_pending(), "it leaves at {due}: {what}");
                    break;
                }
                assert!(call.output.is_some_and(|decision| decision.is_allowed()), "since {due}: {what}");
                exact.leave(*cost);
                queue.pop_front();
            }
            exact.advance(&(&exact.limit * now));
            if queue.is_empty() && now < u64::MAX {
                assert_eq!(BigInt::from(limiter.peek("key").remaining()), exact.remaining(), "{what}");
            }
        }
    }
    assert!(waited > 5_000, "{waited}");
}
