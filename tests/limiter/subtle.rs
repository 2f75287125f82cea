//! Combined algorithms, queues, and joint calls. There are single cases that once failed, checks of reports against
//! later calls, queues that are replayed, models computed by hand, and stress tests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::*;
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::{FromFn, from_fn};
use tower_throttle::limiter::Acquire;
use tower_throttle::store::OnFull;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, Random, effective_window, scaled};

type Held<A> = Pin<Box<Acquire<A>>>;

fn on<A: Algorithm>(rule: A) -> (ManualClock, RateLimiter<A>) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
    (clock, limiter)
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn waits<A: Algorithm>(call: Acquire<A>) -> Held<A> {
    let mut call = Box::pin(call);
    assert!(poll(&mut call).is_none(), "it should wait");
    call
}

fn now<A: Algorithm>(call: Acquire<A>) -> Decision {
    poll(&mut Box::pin(call)).expect("decided at once")
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_denied_call_of_another_tier_releases_only_one_waiter_per_slot() {
    let fast = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let slow = LeakyBucket::new(Quota::per_second(1)).queue(0);
    let (clock, limiter) = on(Tiered::new(fast.clone()));
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    clock.advance(ms(100));
    assert!(!now(limiter.tier(&slow).acquire("k")).is_allowed());
    let left = line.iter_mut().filter_map(poll).count();
    assert_eq!(left, 1, "one slot has passed");
}

#[test]
fn a_denied_check_of_another_tier_delays_no_waiter() {
    let fast = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let slow = LeakyBucket::new(Quota::per_second(1)).queue(0);
    let (clock, limiter) = on(Tiered::new(fast.clone()));
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    assert!(!limiter.tier(&slow).check("k").is_allowed());
    clock.advance(ms(100));
    let left = line.iter_mut().filter_map(poll).count();
    assert_eq!(left, 1, "one slot has passed");
}

#[test]
fn retry_after_is_exact_if_a_call_needs_the_window_after_the_borrowed_one() {
    let (clock, limiter) = on(FixedWindow::new(Quota::per_second(4)).priority(50));
    assert!(limiter.check_n("k", 4).is_allowed());
    let mut held = waits(limiter.acquire_with_priority("k", 2));
    let denied = limiter.check_n("k", 3);
    let peeked = limiter.peek_n("k", 3);
    println!("{denied:?} {peeked:?}");
    clock.advance(secs(1));
    assert!(poll(&mut held).is_some());
    clock.advance(ms(999));
    assert!(!limiter.check_n("k", 3).is_allowed());
    clock.advance(ms(1));
    assert!(limiter.peek_n("k", 3).is_allowed());
    assert_eq!(denied.retry_after(), Some(secs(2)));
}

#[test]
fn an_ordinary_call_waits_for_the_window_after_one_that_is_borrowed_as_a_whole() {
    let (_clock, limiter) = on(FixedWindow::new(Quota::per_second(1)).priority(100));
    assert!(limiter.check("k").is_allowed());
    let _held = waits(limiter.acquire_with_priority("k", 1));
    assert_eq!(limiter.check("k").retry_after(), Some(secs(2)));
    assert_eq!(now(limiter.acquire("k")).retry_after(), Some(secs(2)));
}

#[test]
fn a_waiter_that_costs_more_than_the_new_limit_does_not_block_the_key() {
    let (clock, limiter) = on(FixedWindow::new(Quota::per_second(10)).priority(50));
    assert!(limiter.check_n("k", 10).is_allowed());
    let mut held = waits(limiter.acquire_with_priority("k", 5));
    limiter.replace(FixedWindow::new(Quota::per_second(4)).priority(50));
    clock.advance(secs(100));
    println!("{:?}", poll(&mut held));
    println!("{:?}", limiter.check("k"));
    clock.advance(secs(100));
    println!("{:?}", limiter.check("k"));
    assert!(limiter.check("k").is_allowed(), "the key is locked");
}

#[test]
fn a_cancelled_call_does_not_end_a_lockout() {
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(1).block_for(secs(5)).after(1);
    let (clock, limiter) = on(rule);
    assert!(now(limiter.acquire("k")).is_allowed());
    let held = waits(limiter.acquire("k"));
    clock.advance(ms(100));
    let refused = limiter.check("k");
    assert_eq!(refused.retry_after(), Some(secs(5)));
    drop(held);
    assert_eq!(limiter.peek("k").retry_after(), Some(secs(5)));
}

#[test]
fn a_call_released_during_a_lockout_reports_no_remaining_units() {
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(3).block_for(secs(5)).after(1);
    let (clock, limiter) = on(rule);
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    assert_eq!(now(limiter.acquire("k")).retry_after(), Some(secs(5)));
    clock.advance(ms(100));
    let first = poll(&mut line[0]).unwrap();
    assert!(!now(limiter.acquire("k")).is_allowed());
    assert_eq!((first.remaining(), first.reset_after()), (0, ms(4_900)));
}

#[test]
fn a_peek_that_would_begin_a_lockout_reports_the_present_state() {
    let (_clock, limiter) = on(FixedWindow::new(Quota::per_second(5)).block_for(secs(5)).after(1));
    assert_eq!(limiter.check_n("k", 2).remaining(), 3);
    let peek = limiter.peek_n("k", 4);
    assert_eq!(peek.retry_after(), Some(secs(5)));
    assert_eq!((peek.remaining(), peek.reset_after()), (3, secs(1)));
}

#[test]
fn a_cost_in_one_leaky_tier_counts_in_the_other() {
    let a = LeakyBucket::new(Quota::per_second(10)).queue(0);
    let b = LeakyBucket::new(Quota::per_second(10)).queue(1);
    let (clock, limiter) = on(Tiered::new(a.clone()));
    assert!(limiter.tier(&a).check("k").is_allowed());
    clock.advance(ms(50));
    assert!(!limiter.tier(&b).check("k").is_allowed());
    clock.advance(ms(50));
    assert!(limiter.tier(&b).check_n("k", 5).is_allowed());
    clock.advance(ms(100));
    assert_eq!(limiter.tier(&a).check("k").retry_after(), Some(ms(400)), "five intervals were used");
}

#[test]
fn a_cost_in_one_smooth_tier_counts_in_the_other() {
    let a = Smooth::bursty(Quota::per_second(10)).queue(0);
    let b = Smooth::bursty(Quota::per_second(10)).queue(1);
    let (clock, limiter) = on(Tiered::new(a.clone()));
    assert!(limiter.tier(&a).check("k").is_allowed());
    clock.advance(ms(50));
    assert!(!limiter.tier(&b).check("k").is_allowed());
    clock.advance(ms(50));
    assert!(limiter.tier(&b).check_n("k", 5).is_allowed());
    clock.advance(ms(100));
    assert_eq!(limiter.tier(&a).check("k").retry_after(), Some(ms(400)), "five intervals were used");
}

#[test]
fn units_of_a_tier_that_is_a_tuple_count_in_each_member() {
    let rule =
        |second, day| (TokenBucket::new(Quota::per_second(second)), FixedWindow::new(Quota::per_day(day)));
    let (free, paid) = (rule(10, 100), rule(100, 1_000));
    let (_clock, limiter) = on(Tiered::new(free.clone()));
    assert!(limiter.tier(&free).check("k").is_allowed());
    assert!(limiter.tier(&paid).check_n("k", 90).is_allowed());
    _clock.advance(secs(1));
    // 91 units were used today since the first call with `free`.
    assert_eq!(limiter.tier(&free).check("k").remaining(), 8);
}

#[test]
fn replacing_the_default_tier_keeps_its_used_units() {
    let small = TokenBucket::new(Quota::per_hour(10));
    let (_clock, limiter) = on(Tiered::new(TokenBucket::new(Quota::per_hour(1_000))));
    assert!(limiter.check_n("k", 900).is_allowed());
    let _ = limiter.tier(&small).check("k");
    limiter.replace(Tiered::new(TokenBucket::new(Quota::per_hour(1_001))));
    assert_eq!(limiter.peek("k").remaining(), 101);
}

#[test]
fn a_call_of_cost_0_in_another_tier_leaves_a_fresh_tier_fresh() {
    let minute = FixedWindow::new(Quota::per_minute(10));
    let hour = FixedWindow::new(Quota::per_hour(100));
    let other = FixedWindow::new(Quota::per_hour(101));
    let (clock, limiter) = on(Tiered::new(minute.clone()));
    assert!(limiter.tier(&minute).check_n("k", 10).is_allowed());
    clock.advance(secs(59));
    assert!(limiter.tier(&hour).check_n("k", 50).is_allowed());
    clock.advance(secs(1));
    assert!(limiter.tier(&minute).peek("k").is_allowed());
    let _ = limiter.tier(&other).check_n("k", 0);
    let peek = limiter.tier(&minute).peek("k");
    assert!(peek.is_allowed(), "a call of another tier that cost nothing changed it: {peek:?}");
}

#[test]
fn a_call_of_cost_0_in_another_tier_leaves_a_full_bucket_full() {
    let free = TokenBucket::new(Quota::per_second(10));
    let day = TokenBucket::new(Quota::per_day(1_000));
    let other = TokenBucket::new(Quota::per_day(1_001));
    let (clock, limiter) = on(Tiered::new(free.clone()));
    assert!(limiter.tier(&free).check("k").is_allowed());
    assert!(limiter.tier(&day).check_n("k", 500).is_allowed());
    clock.advance(secs(60));
    assert_eq!(limiter.tier(&free).peek("k").remaining(), 10);
    let _ = limiter.tier(&other).check_n("k", 0);
    assert_eq!(limiter.tier(&free).peek("k").remaining(), 10);
}

#[test]
fn an_undo_after_the_clock_was_set_back_takes_no_units_from_the_present_window() {
    let rule = FixedWindow::new(Quota::per_second(2));
    let hour = Nanos(3_600_000_000_000);
    let mut state = rule.new_state(hour, hour);
    assert!(rule.check(&mut state, hour, 2).is_allowed());
    assert!(!rule.check(&mut state, Nanos(0), 1).is_allowed());
    assert!(rule.check(&mut state, Nanos(1_000_000_000), 2).is_allowed());
    rule.undo(&mut state, Nanos(1_000_000_000), 2, hour);
    assert!(
        !rule.check(&mut state, Nanos(1_000_000_000), 1).is_allowed(),
        "those belong to the window before"
    );
}

#[test]
fn remaining_counts_calls_with_priority_that_can_be_queued() {
    let (_clock, limiter) = on(FixedWindow::new(Quota::per_second(4)).priority(50));
    let first = now(limiter.acquire_with_priority("k", 1));
    let mut more = 0;
    let mut line = Vec::new();
    for _ in 0..10 {
        let mut call = Box::pin(limiter.acquire_with_priority("k", 1));
        match poll(&mut call) {
            Some(decision) => more += u64::from(decision.is_allowed()),
            None => {
                more += 1;
                line.push(call);
            }
        }
    }
    assert_eq!((first.limit(), first.remaining()), (6, more));
}

#[test]
fn nine_more_tiers_do_not_make_the_first_forget_its_units() {
    let big = FixedWindow::new(Quota::per_hour(100));
    let small: Vec<_> = (1..=9).map(|n| FixedWindow::new(Quota::per_hour(n))).collect();
    let (_clock, limiter) = on(Tiered::new(big.clone()));
    assert!(limiter.check_n("k", 100).is_allowed());
    for rule in &small {
        let _ = limiter.tier(rule).check("k");
    }
    println!("after nine refused calls: {:?}", limiter.tier(&big).peek("k"));
    assert!(!limiter.tier(&big).peek("k").is_allowed());
}

#[test]
fn a_denied_call_of_a_smaller_tier_does_not_block_a_waiter_with_priority() {
    let big = FixedWindow::new(Quota::per_second(10)).priority(50);
    let small = FixedWindow::new(Quota::per_second(2)).priority(50);
    let (clock, limiter) = on(Tiered::new(big.clone()));
    assert!(limiter.check_n("k", 10).is_allowed());
    let mut held = waits(limiter.acquire_with_priority("k", 5));
    assert!(!limiter.tier(&small).check("k").is_allowed());
    clock.advance(secs(1));
    assert!(poll(&mut held).is_some(), "a refused call of another tier has locked the queue");
}

// ---- joint calls ----

#[derive(Clone, Copy, Debug)]
struct Req(&'static str, bool);

type ByName = FromFn<fn(&Req) -> Option<&'static str>>;

fn layer<A: Algorithm>(limiter: &RateLimiter<A>) -> RateLimitLayer<ByName, A> {
    let key: fn(&Req) -> Option<&'static str> = |request| Some(request.0);
    RateLimitLayer::with_limiter(from_fn(key), limiter.clone())
}

fn answer<S, F>(service: &mut S, request: Req) -> Pin<Box<S::Future>>
where
    S: Service<Req, Future = F>,
    F: Future,
{
    assert!(service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    Box::pin(service.call(request))
}

async fn ok(_: Req) -> Result<(), Infallible> {
    Ok(())
}

#[test]
fn a_joint_call_that_its_own_tier_denies_delays_no_waiter() {
    let fast = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let slow = LeakyBucket::new(Quota::per_second(1)).queue(0);
    let (clock, limiter) = on(Tiered::new(fast.clone()));
    let (_c, other) = on(TokenBucket::new(Quota::per_second(100)));
    let chosen = slow.clone();
    let stack = layer(&limiter)
        .tier(move |_: &Req, _: &&'static str| chosen.clone())
        .and(layer(&other))
        .responder(ErrorResponder);
    let mut service = stack.layer(service_fn(ok));
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    assert!(poll(&mut answer(&mut service, Req("k", true))).unwrap().is_err());
    clock.advance(ms(100));
    assert_eq!(line.iter_mut().filter_map(poll).count(), 1, "one slot has passed");
}

#[test]
fn a_joint_call_that_another_limit_denies_delays_no_waiter() {
    let fast = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let slow = LeakyBucket::new(Quota::per_second(1)).queue(9);
    let (clock, limiter) = on(Tiered::new(fast.clone()));
    let (_c, other) = on(TokenBucket::new(Quota::per_second(1)));
    assert!(other.check("k").is_allowed());
    let chosen = slow.clone();
    let stack = layer(&limiter)
        .tier(move |_: &Req, _: &&'static str| chosen.clone())
        .and(layer(&other))
        .responder(ErrorResponder);
    let mut service = stack.layer(service_fn(ok));
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    assert!(poll(&mut answer(&mut service, Req("k", true))).unwrap().is_err());
    clock.advance(ms(100));
    assert_eq!(line.iter_mut().filter_map(poll).count(), 1, "one slot has passed");
}

#[test]
fn a_cancelled_call_in_two_queues_undoes_the_charge_of_the_queue_that_released_it() {
    let (clock, windows) = on(FixedWindow::new(Quota::per_second(4)).priority(50));
    let slow =
        RateLimiter::builder(LeakyBucket::new(Quota::per_hour(1)).queue(5)).clock(clock.clone()).build();
    assert!(windows.check_n("k", 4).is_allowed());
    assert!(slow.check("k").is_allowed());
    let stack = layer(&windows).priority(|_: &Req| true).and(layer(&slow)).responder(ErrorResponder);
    let mut service = stack.layer(service_fn(ok));
    let mut call = answer(&mut service, Req("k", true));
    assert!(poll(&mut call).is_none());
    clock.advance(secs(1));
    assert!(poll(&mut call).is_none());
    assert_eq!(windows.peek("k").remaining(), 3);
    drop(call);
    assert_eq!(windows.peek("k").remaining(), 4, "the request was given up");
}

#[test]
fn a_joint_call_on_one_lockout_twice_counts_as_one_denial() {
    let (_c, limiter) = on(FixedWindow::new(Quota::per_second(1)).block_for(secs(9)).after(2));
    assert!(limiter.check("k").is_allowed());
    let stack = layer(&limiter).and(layer(&limiter)).responder(ErrorResponder);
    let mut service = stack.layer(service_fn(ok));
    assert!(poll(&mut answer(&mut service, Req("k", true))).unwrap().is_err());
    assert_eq!(limiter.peek("k").retry_after(), Some(secs(9)), "the second would begin it");
    assert_eq!(limiter.peek_n("k", 0).remaining(), 0);
    assert!(
        limiter.peek_n("k", 0).reset_after() <= secs(1),
        "one refusal is no block: {:?}",
        limiter.peek_n("k", 0)
    );
}

// ---- true reports, for any algorithm ----

fn nanos(d: Duration) -> u64 {
    d.as_nanos() as u64
}

const UNIT: u64 = 1_000;

fn quota(r: &mut Random) -> Quota {
    let limit = r.within(1..=6);
    let period = r.one_of(&[1, 3, 7, 10, 100]) * r.one_of(&[1, 10, UNIT]);
    Quota::per(limit, Duration::from_nanos(period.max(2))).unwrap().burst(r.within(1..=6))
}

struct Truth {
    remaining: bool,
    reset: bool,
}

/// Asserts that all that an algorithm reports is true, after any calls.
fn truth<A: Algorithm>(
    name: &str,
    seeds: std::ops::Range<u64>,
    make: impl Fn(&mut Random) -> Vec<A>,
    only: Truth,
) {
    let mut wrong = 0;
    for seed in seeds {
        let r = &mut Random::new(seed);
        let rules = make(r);
        let mut log = Vec::new();
        let mut now = Nanos(r.one_of(&[0, 5, 1 << 40]));
        let mut current = 0;
        let mut state = rules[0].new_state(now, now);
        let mut bad = None;
        'ops: for _ in 0..r.within(1..=40) {
            match r.below(20) {
                0..8 => now = now.saturating_add(r.one_of(&[0, 1, 2, 5, 9, 100, 999, UNIT, 7 * UNIT])),
                8 => now = Nanos(now.0.saturating_sub(r.one_of(&[1, 3, 10, 100, 3 * UNIT, 1 << 30]))),
                9 => {
                    let cost = r.within(0..=7);
                    log.push(format!("refund {cost} at {now:?}"));
                    rules[current].refund(&mut state, now, cost);
                }
                10 => {
                    let next = r.below(rules.len() as u64) as usize;
                    log.push(format!("adapt {current} -> {next} at {now:?}"));
                    rules[next].migrate(&mut state, &rules[current], now);
                    current = next;
                }
                _ => {
                    let cost = r.within(0..=7);
                    let rule = &rules[current];
                    let mut looked = state.clone();
                    let peek = rule.peek(&mut looked, now, cost);
                    let reported = rule.check(&mut state, now, cost);
                    let after = rule.check(&mut looked, now, cost);
                    log.push(format!("check {cost} at {now:?}: {reported:?}"));
                    if after != reported {
                        bad = Some(format!("a look changed it: {after:?}"));
                        break 'ops;
                    }
                    if (peek.is_allowed(), peek.retry_after())
                        != (reported.is_allowed(), reported.retry_after())
                    {
                        bad = Some(format!("peek {peek:?}"));
                        break 'ops;
                    }
                    if cost == 0 && !reported.is_allowed() {
                        bad = Some("cost 0".into());
                        break 'ops;
                    }
                    if let Some(wait) = reported.retry_after() {
                        let wait = nanos(wait);
                        let at =
                            |d: u64| rule.peek(&mut state.clone(), now.saturating_add(d), cost).is_allowed();
                        if wait == 0 || at(wait - 1) || at(wait / 2) || !at(wait) {
                            bad = Some(format!(
                                "retry {wait}: {} {} {}",
                                at(wait.saturating_sub(1)),
                                at(wait / 2),
                                at(wait)
                            ));
                            break 'ops;
                        }
                    }
                    if only.remaining {
                        for reported in [reported, rule.peek(&mut state.clone(), now, 0)] {
                            let mut copy = state.clone();
                            let more = (0..100)
                                .take_while(|_| rule.check(&mut copy, now, 1).is_allowed())
                                .count() as u64;
                            if more != reported.remaining() {
                                bad = Some(format!("remaining {} not {more}", reported.remaining()));
                                break 'ops;
                            }
                        }
                    }
                    if only.reset {
                        let reset = nanos(reported.reset_after());
                        if !rule.is_fresh(&state, now.saturating_add(reset))
                            || reset > 0 && rule.is_fresh(&state, now.saturating_add(reset - 1))
                        {
                            bad = Some(format!("reset {reset}"));
                            break 'ops;
                        }
                    }
                }
            }
        }
        if let Some(bad) = bad {
            wrong += 1;
            if wrong == 1 {
                println!("{name} seed {seed}: {bad}\n  {:?}\n  {}", rules, log.join("\n  "));
            }
        }
    }
    println!("{name}: {wrong} wrong");
    assert_eq!(wrong, 0, "{name}");
}

const ALL: Truth = Truth { remaining: true, reset: true };

fn block<A: Algorithm>(rule: A, r: &mut Random) -> Lockout<A> {
    let rule = Algorithm::block_for(rule, Duration::from_nanos(r.one_of(&[1, 5, 50, 500, 20 * UNIT])))
        .after(r.within(1..=4));
    if r.one_in(3) { rule.extend_on_retry() } else { rule }
}

const N: u64 = 10_000;

#[test]
fn reports_of_a_bucket_and_a_fixed_window_are_true() {
    truth(
        "bucket, fixed",
        0..scaled(N),
        |r| (0..2).map(|_| (TokenBucket::new(quota(r)), FixedWindow::new(quota(r)))).collect(),
        ALL,
    );
}
#[test]
fn reports_of_a_tuple_of_three_windows_are_true() {
    truth(
        "counter, log, sliding",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    (SlidingCounter::new(quota(r)), SlidingLog::new(quota(r)), SlidingWindow::new(quota(r)))
                })
                .collect()
        },
        ALL,
    );
}
#[test]
fn reports_of_a_leaky_bucket_and_an_aligned_window_are_true() {
    truth(
        "leaky, fixed",
        0..scaled(N),
        |r| (0..2).map(|_| (LeakyBucket::new(quota(r)), FixedWindow::new(quota(r)).aligned())).collect(),
        ALL,
    );
}
#[test]
fn reports_of_a_lockout_of_a_fixed_window_are_true() {
    truth(
        "blocking fixed",
        0..scaled(N),
        |r| (0..2).map(|_| block(FixedWindow::new(quota(r)), r)).collect(),
        ALL,
    );
}
#[test]
fn reports_of_a_lockout_of_a_token_bucket_are_true() {
    truth(
        "blocking bucket",
        0..scaled(N),
        |r| (0..2).map(|_| block(TokenBucket::new(quota(r)), r)).collect(),
        ALL,
    );
}
#[test]
fn reports_of_a_lockout_of_a_tuple_are_true() {
    truth(
        "blocking tuple",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    let t = (TokenBucket::new(quota(r)), SlidingLog::new(quota(r)));
                    block(t, r)
                })
                .collect()
        },
        ALL,
    );
}
#[test]
fn reports_of_a_tuple_of_lockouts_are_true() {
    truth(
        "tuple of blocking",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    let a = FixedWindow::new(quota(r));
                    let b = SlidingCounter::new(quota(r));
                    (block(a, r), block(b, r))
                })
                .collect()
        },
        ALL,
    );
}
#[test]
fn reports_of_a_lockout_of_a_leaky_bucket_are_true() {
    truth(
        "blocking leaky",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    let a = LeakyBucket::new(quota(r));
                    block(a, r)
                })
                .collect()
        },
        ALL,
    );
}
#[test]
fn reports_of_a_window_with_priority_are_true() {
    truth(
        "priority",
        0..scaled(N),
        |r| (0..2).map(|_| SlidingWindow::new(quota(r)).slices(3).priority(50)).collect(),
        ALL,
    );
}
#[test]
fn reports_of_a_tiered_algorithm_that_is_replaced_are_true() {
    truth("tiered", 0..scaled(N), |r| (0..2).map(|_| Tiered::new(TokenBucket::new(quota(r)))).collect(), ALL);
}

// ---- queues, replayed ----

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

/// The method that makes a call with priority. It is [`RateLimiter::acquire_n`] if the algorithm has no priority.
type WithPriority<A> = fn(&RateLimiter<A>, &str, u64) -> Acquire<A>;

struct World<A: Algorithm> {
    with_priority: WithPriority<A>,
    clock: ManualClock,
    at: u64,
    limiter: RateLimiter<A>,
    hands: Vec<(u64, u64, PolledByHand<Acquire<A>>)>,
    spins: bool,
}

impl<A: Algorithm> World<A> {
    fn new(rule: &A, with_priority: WithPriority<A>) -> Self {
        let (clock, limiter) = on(rule.clone());
        Self { with_priority, clock, at: 0, limiter, hands: Vec::new(), spins: false }
    }
    fn settle(&mut self) {
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
    fn replay(rules: &[A], ops: &[Op], with_priority: WithPriority<A>) -> Self {
        let mut world = Self::new(&rules[0], with_priority);
        for op in ops {
            let _ = world.go(rules, *op);
        }
        world
    }
    fn allows(mut self, rules: &[A], by: u64, op: Op) -> bool {
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
    let mut kinds = std::collections::BTreeMap::<&str, (u64, String)>::new();
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
            let entry = kinds.entry(kind).or_insert((0, text.clone()));
            entry.0 += 1;
            if text.len() < entry.1.len() {
                entry.1 = text;
            }
        }
    }
    for (kind, (count, text)) in &kinds {
        println!("=== {kind} x {count}\n{text}");
    }
    assert!(kinds.is_empty(), "{name}");
}

fn prio<A: Window>(make: impl Fn(Quota) -> Priority<A>, r: &mut Random) -> Vec<Priority<A>> {
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
        RateLimiter::acquire_with_priority,
    );
}

#[test]
fn a_lockout_in_tiers_counts_denials_while_calls_are_queued() {
    let rule =
        |rate, places| LeakyBucket::new(Quota::per_second(rate)).queue(places).block_for(secs(5)).after(2);
    let (fast, slow) = (rule(10, 1), rule(1, 0));
    let (_clock, limiter) = on(Tiered::new(fast.clone()));
    assert!(now(limiter.acquire("k")).is_allowed());
    let _held = waits(limiter.acquire("k"));
    for _ in 0..5 {
        assert!(!now(limiter.tier(&slow).acquire("k")).is_allowed());
    }
    let last = now(limiter.tier(&slow).acquire("k"));
    assert_eq!(last.retry_after(), Some(secs(5)), "refused six times");
}

#[test]
fn a_call_of_cost_0_in_a_lockout_of_a_tuple_reports_the_limit_with_the_fewest_units() {
    let rule = (TokenBucket::new(Quota::per_second(9)), FixedWindow::new(Quota::per_hour(2)));
    let rule = rule.block_for(secs(5)).after(1);
    let mut state = rule.new_state(Nanos(0), Nanos(0));
    assert!(rule.check(&mut state, Nanos(0), 2).is_allowed());
    let denied = rule.check(&mut state, Nanos(0), 1);
    let nothing = rule.check(&mut state, Nanos(0), 0);
    println!("{denied:?} {nothing:?} {:?}", effective_window(&rule, &nothing));
    assert_eq!((nothing.limit_index(), nothing.limit()), (1, 2));
}

#[test]
fn a_call_of_cost_0_in_a_lockout_reports_the_rest_of_the_lockout_as_its_window() {
    let rule = TokenBucket::new(Quota::per_second(9)).block_for(secs(5)).after(1);
    let mut state = rule.new_state(Nanos(0), Nanos(0));
    assert!(!rule.check(&mut state, Nanos(0), 10).is_allowed());
    let nothing = rule.check(&mut state, Nanos(0), 0);
    assert_eq!(effective_window(&rule, &nothing), Some(secs(5)), "{nothing:?}");
}

/// Runs all operations at once from four threads, with full tables. The test must end without a deadlock.
#[test]
fn four_threads_with_full_tables_end_without_a_deadlock() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let clock = ManualClock::new();
    let limit = 1_000;
    let a = RateLimiter::builder(FixedWindow::new(Quota::per_hour(limit)))
        .clock(clock.clone())
        .max_keys(3)
        .on_full(OnFull::ShareBuckets)
        .build();
    let b = RateLimiter::builder(Tiered::new(SlidingLog::new(Quota::per_hour(limit))))
        .clock(clock.clone())
        .max_keys(2)
        .on_full(OnFull::ShareBuckets)
        .build();
    let c =
        RateLimiter::builder(TokenBucket::new(Quota::per_second(9))).clock(clock.clone()).max_keys(2).build();
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let counts: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (a, b, c, counts, clock) = (a.clone(), b.clone(), c.clone(), &counts, clock.clone());
            scope.spawn(move || {
                let r = &mut Random::new(thread);
                let tier = SlidingLog::new(Quota::per_hour(7));
                let (t2, t1) = (tier.clone(), SlidingLog::new(Quota::per_hour(limit)));
                let one = layer(&a).and(layer(&b)).and(layer(&c)).responder(ErrorResponder);
                let two = layer(&c)
                    .and(
                        layer(&b)
                            .tier(move |q: &Req, _: &&'static str| if q.1 { t1.clone() } else { t2.clone() }),
                    )
                    .and(layer(&a))
                    .and(layer(&a).cost(|q: &Req| u64::from(q.1)))
                    .responder(ErrorResponder);
                let (mut one, mut two) = (one.layer(service_fn(ok)), two.layer(service_fn(ok)));
                for _ in 0..scaled(40_000) {
                    let at = r.below(8) as usize;
                    let key = keys[at];
                    match r.below(20) {
                        0 => c.replace(TokenBucket::new(Quota::per_second(r.within(1..=9)))),
                        1 => c.reset(key),
                        2 => c.refund(key, 3),
                        3 => clock.advance(Duration::from_nanos(r.below(1_000_000))),
                        4 => {
                            let _ = c.check(key);
                        }
                        5 => {
                            let _ = b.tier(&tier).peek(key);
                        }
                        6..13 => {
                            if poll(&mut answer(&mut one, Req(key, true))).unwrap().is_ok() {
                                counts[at].fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        _ => {
                            let both = r.one_in(2);
                            if poll(&mut answer(&mut two, Req(key, both))).unwrap().is_ok() {
                                counts[at].fetch_add(1 + u64::from(both), Ordering::SeqCst);
                            }
                        }
                    }
                }
            });
        }
    });
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    println!("{counts:?} {} {} {}", a.len(), b.len(), c.len());
    assert!(counts.iter().all(|count| *count <= limit));
    assert!(a.len() <= 3 && b.len() <= 2 && c.len() <= 2);
}

/// Asserts that the reports are true if one key is called with several tiers.
fn tiers<A: Algorithm + PartialEq>(name: &str, make: impl Fn(&mut Random) -> A) {
    let mut kinds = std::collections::BTreeMap::<&str, (u64, String)>::new();
    for seed in 0..scaled(N) {
        let r = &mut Random::new(seed);
        let rules: Vec<Tiered<A>> = (0..r.within(1..=11)).map(|_| Tiered::new(make(r))).collect();
        let mut now = Nanos(1 << 30);
        let mut state = rules[0].new_state(now, now);
        let mut log = Vec::new();
        let mut bad = None;
        for _ in 0..r.within(1..=40) {
            match r.below(10) {
                0..3 => now = now.saturating_add(r.one_of(&[1, 5, 30, 100, 999, 7 * UNIT])),
                3 => now = Nanos(now.0.saturating_sub(r.one_of(&[1, 3, 100, 3 * UNIT, 1 << 30]))),
                _ => {
                    let (at, cost) = (r.below(rules.len() as u64) as usize, r.within(0..=7));
                    let rule = &rules[at];
                    let mut looked = state.clone();
                    let peek = rule.peek(&mut looked, now, cost);
                    let reported = rule.check(&mut state, now, cost);
                    let after = rule.check(&mut looked, now, cost);
                    log.push(format!("check {cost} by {at} at {now:?}: {reported:?}"));
                    if after != reported {
                        bad = Some(("look", format!("{after:?}")));
                        break;
                    }
                    if (peek.is_allowed(), peek.retry_after())
                        != (reported.is_allowed(), reported.retry_after())
                    {
                        bad = Some(("peek", format!("{peek:?}")));
                        break;
                    }
                    if let Some(wait) = reported.retry_after() {
                        let wait = nanos(wait);
                        let at =
                            |d: u64| rule.peek(&mut state.clone(), now.saturating_add(d), cost).is_allowed();
                        if wait == 0 || at(wait - 1) || at(wait / 2) || !at(wait) {
                            bad = Some(("retry", format!("{wait} {} {}", at(wait - 1), at(wait))));
                            break;
                        }
                    }
                    let mut copy = state.clone();
                    let more =
                        (0..100).take_while(|_| rule.check(&mut copy, now, 1).is_allowed()).count() as u64;
                    if more != reported.remaining() {
                        bad = Some(("remaining", format!("{} not {more}", reported.remaining())));
                        break;
                    }
                }
            }
        }
        if let Some((kind, bad)) = bad {
            let text = format!("{name} seed {seed}: {kind} {bad}\n  {rules:?}\n  {}", log.join("\n  "));
            let entry = kinds.entry(kind).or_insert((0, text.clone()));
            entry.0 += 1;
            if text.len() < entry.1.len() {
                entry.1 = text;
            }
        }
    }
    for (kind, (count, text)) in &kinds {
        println!("=== {kind} x {count}\n{text}");
    }
    assert!(kinds.is_empty(), "{name}");
}

#[test]
fn reports_of_tiers_are_true() {
    tiers("bucket", |r| TokenBucket::new(quota(r)));
    tiers("fixed", |r| FixedWindow::new(quota(r)));
    tiers("log", |r| SlidingLog::new(quota(r)));
    tiers("counter", |r| SlidingCounter::new(quota(r)));
    tiers("window", |r| SlidingWindow::new(quota(r)).slices(3));
    tiers("tuple", |r| (SlidingLog::new(quota(r)), TokenBucket::new(quota(r))));
    tiers("leaky", |r| LeakyBucket::new(quota(r)));
}
#[test]
fn reports_of_tiers_of_a_lockout_are_true() {
    tiers("blocking fixed", |r| block(FixedWindow::new(quota(r)), r));
}

/// A model of a lockout. It has the key's own time, the number of denials in a window that begins with the first
/// denial, and the end of the lockout.
#[test]
fn a_lockout_agrees_with_a_model() {
    for seed in 0..scaled(N) {
        let r = &mut Random::new(seed);
        let inner = FixedWindow::new(quota(r));
        let window = nanos(inner.policy().window);
        let (duration, after, prolongs) =
            (r.one_of(&[1, 5, 50, 500, 20 * UNIT]), r.within(1..=4), r.one_in(3));
        let rule = inner.clone().block_for(Duration::from_nanos(duration)).after(after);
        let rule = if prolongs { rule.extend_on_retry() } else { rule };
        let mut now = Nanos(1 << 20);
        let (mut state, mut plain) = (rule.new_state(now, now), inner.new_state(now, now));
        let (mut last, mut time) = (now.0, 0_u64);
        let (mut began, mut refused, mut until) = (0, 0, 0);
        let mut log = Vec::new();
        for _ in 0..60 {
            match r.below(12) {
                0..3 => now = now.saturating_add(r.one_of(&[1, 5, 30, 100, 999, 7 * UNIT])),
                3 => now = Nanos(now.0.saturating_sub(r.one_of(&[1, 3, 100, 3 * UNIT]))),
                act => {
                    let (cost, look) = (r.within(0..=7), act == 4);
                    // The key's own time.
                    let mut behind = 0;
                    if now.0 >= last {
                        time += now.0 - last;
                        last = now.0;
                    } else if last - now.0 <= window {
                        behind = last - now.0;
                    } else {
                        last = now.0;
                    }
                    let would = inner.peek(&mut plain, now, cost);
                    let blocked = until > time;
                    let expected = if cost == 0 {
                        None
                    } else if blocked || !would.is_allowed() {
                        let (mut b, mut n, mut u) = (began, refused, until);
                        if blocked {
                            if prolongs {
                                u = time + duration;
                            }
                        } else {
                            if n == 0 || time - b >= window {
                                (b, n) = (time, 0);
                            }
                            n += 1;
                            if n >= after {
                                n = 0;
                                u = time + duration;
                            }
                        }
                        if !look {
                            (began, refused, until) = (b, n, u);
                        }
                        let rest = if u > time { u - time + behind } else { 0 };
                        Some(match would.is_allowed() {
                            true => Some(rest),
                            false => would.retry_after().map(|wait| nanos(wait).max(rest)),
                        })
                    } else {
                        if !look {
                            let _ = inner.check(&mut plain, now, cost);
                        }
                        None
                    };
                    let reported = if look {
                        rule.peek(&mut state, now, cost)
                    } else {
                        rule.check(&mut state, now, cost)
                    };
                    log.push(format!("{cost} {look} {now:?} {reported:?}"));
                    let reported = (!reported.is_allowed()).then(|| reported.retry_after().map(nanos));
                    assert_eq!(reported, expected, "{seed} {rule:?}\n{}", log.join("\n"));
                }
            }
        }
    }
}

/// No span of a period has more units than the limit, even if calls borrow, are cancelled or are late.
#[test]
fn windows_with_priority_are_strict() {
    fn run<A: Window>(name: &str, strict: u64, make: impl Fn(Quota, u8) -> Priority<A>) {
        let mut longest = 0_f64;
        for seed in 0..scaled(N) {
            let r = &mut Random::new(seed);
            let (limit, period) = (r.within(1..=6), r.one_of(&[7, 10, 100]));
            let rule =
                make(Quota::per(limit, Duration::from_nanos(period)).unwrap(), r.one_of(&[10, 34, 50, 100]));
            let rules = [rule];
            let mut world = World::new(&rules[0], RateLimiter::acquire_with_priority);
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

/// A joint call that is denied, or cancelled at once, changes nothing.
#[test]
fn joint_denials_and_drops_change_nothing() {
    fn of<A, B, F: Fn(&mut Random) -> (A, B)>(make: F) -> F {
        make
    }
    macro_rules! run { ($name:literal, $make:expr $(, $priority:ident)?) => {{
        let (name, make) = ($name, of($make));
        let (mut denied, mut waited) = (0, 0);
        let brief = |(a, b, c, d): (Decision, Decision, Decision, Decision)| {
            [a, b, c, d].map(|reported| (reported.is_allowed(), reported.remaining()))
        };
        for seed in 0..scaled(N) {
            let r = &mut Random::new(seed);
            let (a, b) = make(r);
            let clock = ManualClock::new();
            let a = RateLimiter::builder(a).clock(clock.clone()).max_keys(r.one_of(&[1, 2, 100])).build();
            let b = RateLimiter::builder(b).clock(clock.clone()).max_keys(100).build();
            let (c1, c2) = (r.within(0..=3), r.within(0..=3));
            let stack = layer(&a)
                .cost(move |_: &Req| c1)
                .and(layer(&b).cost(move |_: &Req| c2)$(.$priority(|q: &Req| q.1))?)
                .responder(ErrorResponder);
            let mut service = stack.layer(service_fn(ok));
            let mut held = Vec::new();
            for _ in 0..25 {
                clock.advance(Duration::from_nanos(r.one_of(&[0, 0, 1, 5, 30])));
                held.retain_mut(|call| poll(call).is_none() && !r.one_in(8));
                let key = r.one_of(&["x", "y", "z"]);
                let look = || (a.peek(key), b.peek(key), a.peek_n(key, 3), b.peek_n(key, 3));
                let before = look();
                let mut call = answer(&mut service, Req(key, r.one_in(2)));
                match poll(&mut call) {
                    Some(Ok(())) => {}
                    Some(Err(_)) => {
                        denied += 1;
                        assert_eq!(before, look(), "{name} {seed} denied {a:?} {b:?} {c1} {c2}");
                    }
                    None => {
                        waited += 1;
                        if r.one_in(2) {
                            drop(call);
                            assert_eq!(
                                brief(before),
                                brief(look()),
                                "{name} {seed} dropped {a:?} {b:?} {c1} {c2}"
                            );
                        } else {
                            held.push(call);
                        }
                    }
                }
            }
        }
        println!("{name}: {denied} denied, {waited} waited");
    }} }
    run!("bucket, leaky", |r| (TokenBucket::new(quota(r)), LeakyBucket::new(quota(r)).queue(2)));
    run!("log, priority", |r| (SlidingLog::new(quota(r)), FixedWindow::new(quota(r)).priority(50)), priority);
    run!(
        "counter, priority",
        |r| (SlidingCounter::new(quota(r)), SlidingLog::new(quota(r)).priority(50)),
        priority
    );
    run!("window, leaky", |r| (SlidingWindow::new(quota(r)), LeakyBucket::new(quota(r)).queue(2)));
    run!("tuple, leaky", |r| {
        ((FixedWindow::new(quota(r)), TokenBucket::new(quota(r))), LeakyBucket::new(quota(r)).queue(2))
    });
    run!("leaky, leaky", |r| (LeakyBucket::new(quota(r)).queue(2), LeakyBucket::new(quota(r)).queue(1)));
    run!(
        "leaky, priority",
        |r| { (LeakyBucket::new(quota(r)).queue(2), SlidingWindow::new(quota(r)).priority(50)) },
        priority
    );
    // What `Smooth` takes from its store is not refunded, so `Smooth` is not tested here.
    run!("fixed, leaky", |r| (FixedWindow::new(quota(r)).aligned(), LeakyBucket::new(quota(r)).queue(1)));
}

fn wild(r: &mut Random) -> Quota {
    let period = if r.one_in(3) { i64::MAX as u64 } else { r.any_size().min(i64::MAX as u64) };
    let quota =
        Quota::per(if r.one_in(4) { u64::MAX } else { r.any_size() }, Duration::from_nanos(period)).unwrap();
    if r.one_in(2) { quota.burst(if r.one_in(3) { u64::MAX } else { r.any_size() }) } else { quota }
}

/// Asserts that no operation panics, and that a call of cost 0 is admitted.
fn wildly<A: Algorithm>(with_priority: WithPriority<A>, make: impl Fn(&mut Random) -> Vec<A>) {
    for seed in 0..scaled(4_000) {
        let r = &mut Random::new(seed);
        let rules = make(r);
        let clock = ManualClock::new();
        let start = if r.one_in(2) { u64::MAX - r.any_size() } else { r.any_size() };
        clock.set(Duration::from_nanos(start));
        let limiter =
            RateLimiter::builder(rules[0].clone()).clock(clock.clone()).max_keys(r.one_of(&[1, 100])).build();
        let mut held: Vec<PolledByHand<Acquire<A>>> = Vec::new();
        for _ in 0..30 {
            let cost = r.one_of(&[0, 1, 2, u64::MAX, 1 << 40]);
            let key = r.one_of(&["k", "k", "k", "l"]);
            match r.below(14) {
                0 => clock.set(Duration::from_nanos(if r.one_in(3) { u64::MAX } else { r.any_size() })),
                1 => clock.advance(Duration::from_nanos(r.any_size())),
                2 => limiter.refund(key, cost),
                3 => limiter.replace(rules[r.below(rules.len() as u64) as usize].clone()),
                4 => limiter.reset(key),
                5 => held.clear(),
                6 | 7 => {
                    let _ = limiter.check_n(key, cost);
                }
                8 => {
                    let reported = limiter.peek_n(key, cost);
                    assert!(cost > 0 || reported.is_allowed());
                    let _ = effective_window(&rules[0], &reported);
                }
                _ => {
                    let mut hand = PolledByHand::new(if r.one_in(2) {
                        limiter.acquire_n(key, cost)
                    } else {
                        with_priority(&limiter, key, cost)
                    });
                    if !hand.poll() {
                        assert!(cost > 0);
                        held.push(hand);
                    }
                }
            }
            for hand in &mut held {
                if hand.alarm.rang() {
                    hand.poll();
                }
            }
        }
    }
}

#[test]
fn extreme_quotas_never_panic() {
    wildly(RateLimiter::acquire_with_priority, |r| {
        (0..2)
            .map(|_| {
                let a = FixedWindow::new(wild(r));
                a.priority(50)
            })
            .collect()
    });
    wildly(RateLimiter::acquire_with_priority, |r| {
        (0..2).map(|_| SlidingWindow::new(wild(r)).priority(100)).collect()
    });
    wildly(RateLimiter::acquire_with_priority, |r| {
        (0..2).map(|_| SlidingCounter::new(wild(r)).priority(100)).collect()
    });
    wildly(RateLimiter::acquire_with_priority, |r| {
        (0..2).map(|_| SlidingLog::new(wild(r)).priority(30)).collect()
    });
    wildly(RateLimiter::acquire_n, |r| {
        (0..2)
            .map(|_| {
                let a = LeakyBucket::new(wild(r)).queue(5);
                block(a, r)
            })
            .collect()
    });
    wildly(RateLimiter::acquire_n, |r| {
        (0..2)
            .map(|_| {
                let a = Smooth::bursty(wild(r)).queue(5);
                block(a, r)
            })
            .collect()
    });
    wildly(RateLimiter::acquire_n, |r| {
        (0..2)
            .map(|_| {
                let a = Smooth::warming_up(wild(r), secs(3)).queue(5).max_wait(secs(9));
                Tiered::new(a)
            })
            .collect()
    });
    wildly(RateLimiter::acquire_with_priority, |r| {
        (0..2)
            .map(|_| {
                let a = SlidingWindow::new(wild(r)).priority(70);
                Tiered::new(block(a, r))
            })
            .collect()
    });
    wildly(RateLimiter::acquire_n, |r| {
        (0..2)
            .map(|_| {
                let a = (
                    TokenBucket::new(wild(r)),
                    FixedWindow::new(wild(r)).aligned(),
                    LeakyBucket::new(wild(r)),
                );
                Algorithm::block_for(a, Duration::MAX).after(2)
            })
            .collect()
    });
    wildly(RateLimiter::acquire_n, |r| {
        (0..2)
            .map(|_| Tiered::new((TokenBucket::new(wild(r)).start_empty(), SlidingCounter::new(wild(r)))))
            .collect()
    });
}

/// Tasks on two threads, while algorithms are replaced, keys are reset, and calls are cancelled. All tasks end.
#[test]
fn queues_lose_no_wakeup_while_algorithms_are_replaced_and_keys_are_reset() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let leaky = |rate| LeakyBucket::new(Quota::per_second(rate)).queue(10_000);
        let queue = RateLimiter::new(Tiered::new(leaky(10_000)));
        let lends = RateLimiter::new(SlidingWindow::new(Quota::per_second(2_000)).priority(100));
        let stack = layer(&queue).and(layer(&lends).priority(|_: &Req| true)).responder(ErrorResponder);
        let service = stack.layer(service_fn(ok));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..1_500_u64 {
            let (queue, lends, mut service) = (queue.clone(), lends.clone(), service.clone());
            tasks.spawn(async move {
                let r = &mut Random::new(n);
                match r.below(12) {
                    0 => {
                        let _ =
                            tokio::time::timeout(Duration::from_micros(r.below(50_000)), queue.acquire("k"))
                                .await;
                    }
                    1 => queue.replace(Tiered::new(leaky(r.within(8_000..=20_000)))),
                    2 => lends.replace(
                        SlidingWindow::new(Quota::per_second(r.within(1_900..=2_500)))
                            .slices(r.within(1..=20) as usize)
                            .priority(100),
                    ),
                    3 => {
                        queue.refund("k", 3);
                        lends.refund("k", 1);
                    }
                    4 => {
                        if r.one_in(10) {
                            queue.reset("k");
                            lends.reset("k");
                        }
                    }
                    5 | 6 => {
                        let _ = tokio::time::timeout(
                            Duration::from_micros(r.below(90_000)),
                            service.call(Req("k", true)),
                        )
                        .await;
                    }
                    7 => {
                        let _ = lends.acquire_with_priority("k", r.within(1..=5)).await;
                    }
                    8 => {
                        let _ = service.call(Req("k", true)).await;
                    }
                    9 => {
                        let _ = queue.tier(&leaky(r.within(8_000..=9_000))).acquire("k").await;
                    }
                    _ => {
                        let _ = queue.acquire("k").await;
                    }
                }
            });
            if n % 8 == 0 {
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
        }
        let at = std::time::Instant::now();
        let mut ended = 0;
        while let Ok(Some(done)) = tokio::time::timeout(secs(15), tasks.join_next()).await {
            done.unwrap();
            ended += 1;
        }
        println!("{ended} ended, {:?} after the last began", at.elapsed());
        assert_eq!(ended, 1_500);
    });
}
