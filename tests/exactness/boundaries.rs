//! Boundary values: quotas from 1 per 292 years to `u64::MAX` per nanosecond, bursts and costs of `u64::MAX`,
//! and clocks that show their first reading or their last. Also the counts above which a key takes more memory.
//!
//! Nothing may panic, wrap or be admitted for free. These tests also run without overflow checks, because the exact
//! models detect a wrap. See `.ci/run`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, LeakyBucket, Smooth};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::oracle::cases::{
    bucket, counter, fixed, fixed_window, leaky, leaky_bucket, log, paced, sliced, sliding_counter,
    sliding_log, sliding_window, smooth, token_bucket,
};
use crate::oracle::checker::first_broken;
use crate::oracle::config::Rule;
use crate::oracle::model::Oracle;
use crate::oracle::scenario::Setup;
use crate::support::{Random, scaled};

fn holds<A: Algorithm, O: Oracle>(build: impl Fn(&Rule) -> A, oracle: impl Fn(&Setup) -> O) {
    holds_for(Setup::extreme, build, oracle);
}

fn holds_for<A: Algorithm, O: Oracle>(
    setup: impl Fn(u64, &mut Random) -> Setup,
    build: impl Fn(&Rule) -> A,
    oracle: impl Fn(&Setup) -> O,
) {
    if let Some((seed, broken)) = first_broken(scaled(5_000), setup, build, oracle) {
        panic!("sequence {seed}: {broken}");
    }
}

#[test]
fn a_token_bucket_is_exact_at_all_ends() {
    holds(token_bucket, bucket);
    let idle = |setup: &Setup| bucket(setup).empty_until(setup.start - setup.created_at);
    holds(|rule| token_bucket(rule).start_empty(), idle);
}

#[test]
fn a_fixed_window_is_exact_at_all_ends() {
    holds(fixed_window, fixed);
}

#[test]
fn a_sliding_window_is_exact_at_all_ends() {
    holds(sliding_window, sliced);
}

#[test]
fn a_sliding_log_is_exact_at_all_ends() {
    holds(sliding_log, log);
}

#[test]
fn a_sliding_counter_is_exact_at_all_ends() {
    holds(sliding_counter, counter);
}

#[test]
fn a_leaky_bucket_is_exact_at_all_ends() {
    holds(leaky_bucket, leaky);
}

#[test]
fn a_smooth_limiter_is_exact_at_all_ends() {
    holds(smooth, paced);
}

/// Returns setups whose limits are around `count`.
fn around(count: u64) -> impl Fn(u64, &mut Random) -> Setup {
    move |seed, random| {
        let mut setup = Setup::any(seed, random);
        setup.rule.limit = count - 2 + random.below(5);
        setup.rule.slices = random.within(1..=14);
        (setup.refunds, setup.replaces) = (true, true);
        setup.max_debt = Some(random.one_of(&[0, 1, count, 1 << 53]));
        setup
    }
}

#[test]
fn a_sliding_window_is_exact_where_its_counts_get_more_memory() {
    for count in [1 << 16, 1 << 17] {
        holds_for(around(count), sliding_window, sliced);
    }
}

type Call = Pin<Box<dyn Future<Output = Decision>>>;

fn poll(call: &mut Call) -> Option<bool> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => Some(decision.is_allowed()),
        Poll::Pending => None,
    }
}

const HOUR: u64 = 3_600_000_000_000;

/// Asserts that one call is admitted at once, three calls wait, and all other calls are denied. The three calls wait
/// until an hour has passed, or until the clock ends.
fn a_queue_is_exact_at<A: Algorithm>(algorithm: A, start: u64) {
    let clock = ManualClock::new();
    clock.set(Duration::from_nanos(start));
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    let mut calls: Vec<Call> = (0..9).map(|_| Box::pin(limiter.acquire("key")) as Call).collect();
    let mut reported = || -> Vec<_> { calls.iter_mut().map(poll).collect() };
    let what = format!("{limiter:?} at {start}");
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(reported(), [yes, None, None, None, no, no, no, no, no], "{what}");
    calls.drain(4..);
    let _passed = calls.remove(0);
    let mut waiting = || calls.iter_mut().all(|call| poll(call).is_none());
    assert!(waiting(), "{what}");
    // One nanosecond before the hour has passed or, if the clock ends earlier, at the clock's last reading.
    clock.set(Duration::from_nanos(start.saturating_add(HOUR - 1)));
    assert!(waiting(), "{what}, at the end of the hour or of time");
    clock.set(Duration::from_nanos(u64::MAX - 1));
    let passed = calls.iter_mut().filter_map(poll).count();
    assert_eq!(passed == 0, start > u64::MAX - HOUR, "{what}, shortly before the end of time");
    clock.set(Duration::MAX);
    assert!(!limiter.check("key").is_allowed() || passed > 0, "{what}, at the end of time");
}

#[test]
fn saturated_clock_admits_no_queued_call_for_free() {
    let hourly = Quota::per_hour(1);
    for start in [0, 1, u64::MAX / 2, u64::MAX - 2 * HOUR, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
        a_queue_is_exact_at(LeakyBucket::new(hourly).queue(3), start);
        a_queue_is_exact_at(Smooth::bursty(hourly).queue(3), start);
        a_queue_is_exact_at(Smooth::warming_up(hourly, Duration::from_secs(1)).queue(3), start);
    }
}

/// Charges that take longer to refill than any clock runs still count.
#[test]
fn the_rest_of_an_endless_debt_is_not_dropped() {
    fn holds<A: Algorithm>(algorithm: A) {
        for start in [0, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let clock = ManualClock::new();
            clock.set(Duration::from_nanos(start));
            let limiter = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).build();
            let what = format!("{limiter:?} at {start}");
            assert!(limiter.check_n("key", u64::MAX).is_allowed(), "{what}");
            for refund in [1, u64::MAX / 2, u64::MAX / 4] {
                limiter.refund("key", refund);
                assert!(!limiter.check("key").is_allowed(), "{what}, {refund} given back");
            }
            for now in [0, u64::MAX, 5, start] {
                clock.set(Duration::from_nanos(now));
                assert!(!limiter.check("key").is_allowed(), "{what}, the clock set to {now}");
            }
            limiter.replace(algorithm.clone());
            assert!(!limiter.check("key").is_allowed(), "{what}, its algorithm replaced by itself");
            limiter.reset("key");
            assert!(limiter.check("key").is_allowed(), "{what}, forgotten");
        }
    }
    for quota in [Quota::per_day(1), Quota::per(1, Duration::from_nanos(i64::MAX as u64)).unwrap()] {
        holds(LeakyBucket::new(quota));
        holds(Smooth::bursty(quota));
        holds(Smooth::warming_up(quota, Duration::from_secs(1)));
        holds(Smooth::warming_up(quota, Duration::MAX).cold_factor(1_000.0));
    }
}

/// An admission reports how many more calls pass at once. Exactly this number of calls then passes.
#[test]
fn the_remaining_units_of_a_limit_with_a_queue_are_true() {
    fn holds<A: Algorithm>(algorithm: A, start: u64, cost: u64, behind: u64) {
        let clock = ManualClock::new();
        clock.set(Duration::from_nanos(start));
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let what = format!("{limiter:?} at {start}, {behind} ns behind");
        let mut calls: Vec<Call> = vec![Box::pin(limiter.acquire_n("key", cost))];
        // The clock may be behind the latest reading of the key.
        let _ = limiter.check_n("key", 0);
        clock.set(Duration::from_nanos(start.saturating_sub(behind)));
        let Poll::Ready(first) = calls[0].as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("the first must wait: {what}");
        };
        assert!(first.is_allowed(), "{what}");
        for n in 0..=first.remaining() {
            let mut call: Call = Box::pin(limiter.acquire("key"));
            let passes = poll(&mut call) == Some(true);
            assert_eq!(passes, n < first.remaining(), "{what}, {n} of {}", first.remaining());
            calls.push(call);
        }
    }
    let patience = [
        Duration::ZERO,
        Duration::from_nanos(2 * HOUR),
        Duration::MAX - Duration::from_secs(1),
        Duration::MAX,
    ];
    for start in [0, 1, u64::MAX - 3 * HOUR, u64::MAX - HOUR, u64::MAX - 1, u64::MAX] {
        for (max_wait, cost, behind) in
            patience.iter().flat_map(|wait| SITUATIONS.map(|(cost, by)| (*wait, cost, by)))
        {
            let quota = Quota::per_hour(1);
            holds(LeakyBucket::new(quota).queue(5).max_wait(max_wait), start, cost, behind);
            holds(Smooth::bursty(quota).queue(5).max_wait(max_wait), start, cost, behind);
            let warming = Smooth::warming_up(quota, Duration::from_secs(1));
            holds(warming.queue(5).max_wait(max_wait), start, cost, behind);
            let quick = Smooth::bursty(Quota::per_second(3));
            holds(quick.queue(5).max_wait(max_wait), start, cost, behind);
        }
    }
}

/// The charge that is made first, and the time by which the clock is then set back.
const SITUATIONS: [(u64, u64); 4] = [(1, 0), (0, 0), (0, 1), (1, 1)];
