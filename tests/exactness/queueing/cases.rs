//! Single cases of waiting. Each test is for one promise.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::*;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{ns, quota};
use crate::support::PolledByHand;

const MS: Duration = Duration::from_millis(1);

fn on<A: Algorithm>(rule: A) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(rule).clock(clock.clone()).build(), clock)
}

fn call<A: Algorithm>(limiter: &RateLimiter<A>, key: &str, cost: u64) -> PolledByHand<Acquire<A>> {
    let mut call = PolledByHand::new(limiter.acquire_n(key, cost));
    call.poll();
    call
}

fn waits<A: Algorithm>(limiter: &RateLimiter<A>, key: &str, cost: u64) -> PolledByHand<Acquire<A>> {
    let call = call(limiter, key, cost);
    assert!(call.is_pending(), "{:?}", call.output);
    call
}

fn refused<A: Algorithm>(limiter: &RateLimiter<A>, key: &str, cost: u64) -> Decision {
    let decision = call(limiter, key, cost).output.expect("decided at once");
    assert!(!decision.is_allowed());
    decision
}

fn use_up<A: Algorithm>(limiter: &RateLimiter<A>, key: &str) {
    while limiter.check(key).is_allowed() {}
}

#[test]
fn the_kth_of_many_calls_is_released_from_a_bucket_of_burst_b_after_k_minus_b_intervals() {
    for (limit, period, burst) in [
        (3, 10, 1),
        (3, 10, 4),
        (7, 100, 2),
        (1, 30, 6),
        (7, 2, 1),
        (7, 2, 3),
        (999_999_937, 1_000_000_000, 1),
    ] {
        let (limiter, clock) = on(TokenBucket::new(quota(limit, period).burst(burst)).queue(100));
        let mut calls: Vec<_> = (0..60).map(|_| call(&limiter, "key", 1)).collect();
        let mut left = vec![None; calls.len()];
        for now in 0..60 * period.div_ceil(limit) + 2 {
            clock.set(ns(now));
            for (call, left) in calls.iter_mut().zip(&mut left) {
                if call.run() && left.is_none() {
                    *left = Some(now);
                }
            }
        }
        for (k, left) in (1_u64..).zip(left) {
            let exact = (k.saturating_sub(burst) * period).div_ceil(limit);
            assert_eq!(left, Some(exact), "number {k} of {limit} per {period} ns, burst {burst}");
        }
    }
}

#[test]
fn as_in_nginx_a_burst_passes_at_once_the_next_are_paced_and_the_rest_is_denied_at_once() {
    // This is nginx's `burst=20 delay=8` at 5 requests a second.
    let (limiter, clock) = on(TokenBucket::new(Quota::per_second(5).burst(8)).queue(12));
    let passed = (0..8).map(|_| call(&limiter, "key", 1).output.unwrap());
    assert!(passed.into_iter().all(|decision| decision.is_allowed() && decision.delay().is_zero()));
    let mut paced: Vec<_> = (0..12).map(|_| waits(&limiter, "key", 1)).collect();
    for _ in 0..3 {
        assert_eq!(refused(&limiter, "key", 1).retry_after(), Some(MS * 200));
    }
    let mut refusal = Some(MS * 200);
    for nth in 0..12 {
        clock.advance(MS * 200 - ns(1));
        assert_eq!(refused(&limiter, "key", 1).retry_after(), refusal.map(|_| ns(1)));
        assert!(!paced[nth].run(), "number {nth} is early");
        clock.advance(ns(1));
        assert!(paced[nth].run(), "number {nth} is late");
        assert_eq!(paced[nth].output.unwrap().delay(), MS * 200 * (nth as u32 + 1));
        // Another call takes the place of the released call.
        paced.push(waits(&limiter, "key", 1));
        refusal = Some(MS * 200);
    }
}

async fn thousand(bucket: TokenBucket) -> Vec<Duration> {
    let limiter = RateLimiter::new(bucket);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for nth in 0..1_001 {
        let acquire = limiter.acquire("key");
        calls.spawn(async move {
            assert!(acquire.await.is_allowed());
            (nth, start.elapsed())
        });
    }
    let mut left = calls.join_all().await;
    left.sort_unstable();
    left.into_iter().map(|(_, at)| at).collect()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_queued_for_a_bucket_of_five_thousand_a_second_take_200_ms() {
    let left = thousand(TokenBucket::new(Quota::per_second(5_000).burst(1)).queue(1_000)).await;
    for (nth, at) in (0_u128..).zip(&left) {
        assert_eq!(at.as_nanos(), (nth * 200_000).next_multiple_of(1_000_000), "number {nth}");
    }
    assert_eq!(left[1_000], MS * 200);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_of_three_a_second_does_not_drift_in_an_hour() {
    const CALLS: u32 = 3 * 3_600;
    for burst in [1, 2] {
        let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(3).burst(burst)).queue(6));
        let start = Instant::now();
        let left = Arc::new(Mutex::new(Vec::new()));
        let mut callers = JoinSet::new();
        for _ in 0..6 {
            let (limiter, left) = (limiter.clone(), left.clone());
            callers.spawn(async move {
                while left.lock().unwrap().len() < CALLS as usize {
                    assert!(limiter.acquire("key").await.is_allowed());
                    left.lock().unwrap().push(start.elapsed());
                }
            });
        }
        callers.join_all().await;
        for (nth, at) in (1_u64..).zip(left.lock().unwrap().iter()) {
            let exact = (nth.saturating_sub(burst) * 1_000).div_ceil(3);
            assert_eq!(at.as_millis(), u128::from(exact), "number {nth}, burst {burst}");
        }
    }
}

#[test]
fn a_fixed_window_releases_as_many_waiters_as_its_limit_at_each_window() {
    for (aligned, start, turns) in [(false, 30, [130, 230, 330]), (true, 30, [100, 200, 300])] {
        let rule = FixedWindow::new(quota(3, 100)).queue(9);
        let (limiter, clock) = on(if aligned { rule.aligned() } else { rule });
        clock.set(ns(start));
        use_up(&limiter, "key");
        let mut line: Vec<_> = (0..9).map(|_| waits(&limiter, "key", 1)).collect();
        for (nth, turn) in (1..).zip(turns) {
            clock.set(ns(turn - 1));
            assert_eq!(line.iter_mut().filter_map(|call| call.run().then_some(())).count(), nth * 3 - 3);
            clock.set(ns(turn));
            let gone: Vec<_> = line.iter_mut().map(PolledByHand::run).collect();
            assert!(gone[..nth * 3].iter().all(|gone| *gone) && !gone[nth * 3..].contains(&true), "{gone:?}");
        }
    }
}

#[test]
fn a_call_that_costs_more_than_is_available_delays_cheaper_ones_behind_it() {
    fn look<A: Algorithm>(rule: A) {
        let (limiter, clock) = on(rule);
        assert!(limiter.check_n("key", 2).is_allowed());
        assert_eq!(limiter.peek("key").remaining(), 1);
        let mut heavy = waits(&limiter, "key", 3);
        let mut light = waits(&limiter, "key", 1);
        // One token is available, but neither `acquire` nor `check` may take it.
        assert!(!limiter.check("key").is_allowed());
        assert!(!limiter.peek("key").is_allowed());
        for now in 1..100 {
            clock.set(ns(now));
            let light = light.run();
            assert!(heavy.run() || !light, "at {now}");
        }
        drop(heavy);
        assert!(light.run(), "nothing holds it back any more");
    }
    look(TokenBucket::new(quota(3, 1_000)).queue(5));
    look(FixedWindow::new(quota(3, 1_000)).queue(5));
    look(SlidingWindow::new(quota(3, 1_000)).queue(5));
    look(SlidingLog::new(quota(3, 1_000)).queue(5));
    look(SlidingCounter::new(quota(3, 1_000)).queue(5));
    look((TokenBucket::new(quota(3, 1_000)).queue(5), SlidingLog::new(quota(3, 1_000)).queue(5)));
    look(Tiered::new(TokenBucket::new(quota(3, 1_000)).queue(5)));
}

#[test]
fn the_oldest_is_evicted_for_the_newest_and_learns_when_a_slot_is_free() {
    let rule = TokenBucket::new(quota(1, 10)).queue(2).overflow(QueueOverflow::DropOldest);
    let (limiter, clock) = on(rule);
    use_up(&limiter, "key");
    clock.set(ns(3));
    let mut line: Vec<_> = (0..2).map(|_| waits(&limiter, "key", 1)).collect();
    clock.set(ns(4));
    for nth in 2..6 {
        // The oldest waiter is evicted, so no new call is denied.
        line.push(waits(&limiter, "key", 1));
        assert!(line[nth - 2].run());
        let reported = line[nth - 2].output.unwrap();
        assert_eq!(
            (reported.is_allowed(), reported.retry_after(), reported.remaining()),
            (false, Some(ns(6)), 0)
        );
        assert_eq!(reported.delay(), if nth < 4 { ns(1) } else { ns(0) });
        assert_eq!(limiter.queued(), 2);
    }
    for (left, turn) in [(4, 10), (5, 20)] {
        clock.set(ns(turn - 1));
        assert!(!line[left].run());
        clock.set(ns(turn));
        assert!(line[left].run() && line[left].output.unwrap().is_allowed());
    }
}

#[test]
fn the_oldest_is_evicted_only_for_one_that_is_then_in_time() {
    let rule = LeakyBucket::new(quota(1, 10)).queue(3).max_wait(ns(30)).overflow(QueueOverflow::DropOldest);
    let (limiter, clock) = on(rule.clone());
    use_up(&limiter, "key");
    let mut line: Vec<_> = (0..3).map(|_| waits(&limiter, "key", 1)).collect();
    let mut newest = waits(&limiter, "key", 1);
    assert!(line[0].run() && !line[0].output.unwrap().is_allowed());
    clock.set(ns(30));
    assert!(newest.run() && newest.output.unwrap().is_allowed());
    // The calls have different costs. A new call would be released after both waiters, at 50 ns. If it evicts the
    // oldest waiter, it is released at 40 ns. At 10 ns a place is free, but until 20 ns, a release at 50 ns is too
    // late.
    let (limiter, clock) = on(rule.queue(2));
    use_up(&limiter, "key");
    let mut line: Vec<_> = [1, 3].map(|cost| waits(&limiter, "key", cost)).into();
    for (now, retry) in [(0, 20), (9, 11), (10, 10), (19, 1)] {
        clock.set(ns(now));
        assert_eq!(refused(&limiter, "key", 1).retry_after(), Some(ns(retry)), "at {now}");
        assert_eq!(line[0].run(), now >= 10, "no call is evicted for nothing");
    }
    clock.set(ns(20));
    assert!(line.iter_mut().all(|call| call.run() && call.output.unwrap().is_allowed()));
    let _in_time = waits(&limiter, "key", 1);
}

#[test]
fn with_costs_calls_behind_the_oldest_are_released_when_it_is_evicted() {
    let (limiter, clock) =
        on(TokenBucket::new(quota(1, 10).burst(4)).queue(3).overflow(QueueOverflow::DropOldest));
    assert!(limiter.check_n("key", 2).is_allowed());
    let mut line: Vec<_> = [4, 1, 4].map(|cost| waits(&limiter, "key", cost)).into();
    let mut newest = waits(&limiter, "key", 2);
    assert!(line[0].run() && !line[0].output.unwrap().is_allowed());
    // Two tokens are available, and the second call takes one of them.
    assert!(line[1].run() && line[1].output.unwrap().is_allowed(), "asleep, or delayed by no call");
    assert!(!line[2].run() && !newest.run());
    clock.set(ns(30));
    assert!(line[2].run() && !newest.run());
    clock.set(ns(50));
    assert!(newest.run());
}

#[test]
fn with_zero_capacity_or_max_wait_no_call_waits_or_is_evicted() {
    fn look<A: Algorithm>(name: &str, rule: A) {
        let (limiter, clock) = on(rule);
        use_up(&limiter, "key");
        let wait = limiter.peek("key").retry_after().unwrap();
        assert_eq!(refused(&limiter, "key", 1).retry_after(), Some(wait), "{name}");
        clock.set(wait - ns(1));
        assert_eq!(refused(&limiter, "key", 1).retry_after(), Some(ns(1)), "{name}");
        clock.set(wait);
        assert!(call(&limiter, "key", 1).output.unwrap().is_allowed(), "{name}");
        assert_eq!(limiter.queued(), 0);
    }
    let two = quota(2, 100);
    macro_rules! of {
        ($rule:expr) => {{
            look(stringify!($rule), $rule.queue(0));
            look(stringify!($rule), $rule.max_wait(Duration::ZERO));
            look(stringify!($rule), $rule.queue(0).overflow(QueueOverflow::DropOldest));
            look(stringify!($rule), $rule.max_wait(Duration::ZERO).overflow(QueueOverflow::DropOldest));
            look(stringify!($rule), ($rule.queue(0), FixedWindow::new(quota(9, 100))));
        }};
    }
    of!(TokenBucket::new(two));
    of!(FixedWindow::new(two));
    of!(FixedWindow::new(two).aligned());
    of!(SlidingWindow::new(two));
    of!(SlidingLog::new(two));
    of!(SlidingCounter::new(two));
    of!(LeakyBucket::new(two));
}

fn few<A: Algorithm>(rule: A, max_queued: usize) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(rule).clock(clock.clone()).max_queued(max_queued).build(), clock)
}

#[test]
fn waiters_are_bounded_over_all_keys_and_a_slot_is_free_again_however_it_was_left() {
    let rule = || SlidingLog::new(quota(1, 10)).queue(5);
    let (limiter, _clock) = few(rule(), 0);
    use_up(&limiter, "a");
    assert_eq!(refused(&limiter, "a", 1).retry_after(), Some(ns(10)));
    let (limiter, clock) = few(rule(), 1);
    use_up(&limiter, "a");
    use_up(&limiter, "b");
    let mut one = waits(&limiter, "a", 1);
    assert_eq!(limiter.queued(), 1);
    // A call finds no place, in the queue of the same key or of another key.
    assert!(refused(&limiter, "a", 1).retry_after().is_some());
    assert_eq!(refused(&limiter, "b", 1).retry_after(), Some(ns(10)), "when it would pass without waiting");
    assert_eq!(limiter.queued(), 1, "a refusal takes no place");
    // The place is free again after the call was cancelled.
    one.abandon();
    let mut one = waits(&limiter, "b", 1);
    // The place is free again after the call was released.
    clock.set(ns(10));
    assert!(one.run());
    let mut one = waits(&limiter, "b", 1);
    // The place is free again after the call was released, even if it has not been polled yet.
    clock.set(ns(20));
    use_up(&limiter, "b");
    let two = waits(&limiter, "b", 1);
    assert_eq!(limiter.queued(), 1);
    assert!(one.run());
    drop(two);
    assert_eq!(limiter.queued(), 0);
    // The place of a waiter is free again after a reset of the key.
    let mut one = waits(&limiter, "b", 1);
    limiter.reset("b");
    assert!(one.run());
    assert_eq!(limiter.queued(), 0);
    drop(waits(&limiter, "b", 1));
    assert_eq!(limiter.queued(), 0);
}

#[test]
fn an_evicted_call_leaves_its_slot_to_the_newest() {
    let (limiter, clock) =
        few(FixedWindow::new(quota(1, 10)).queue(2).overflow(QueueOverflow::DropOldest), 2);
    use_up(&limiter, "a");
    let mut line: Vec<_> = (0..6).map(|_| waits(&limiter, "a", 1)).collect();
    assert_eq!(limiter.queued(), 2);
    assert!(line[..4].iter_mut().all(|call| call.run() && !call.output.unwrap().is_allowed()));
    // There is no place for a call of another key.
    use_up(&limiter, "b");
    assert!(refused(&limiter, "b", 1).retry_after().is_some());
    clock.set(ns(10));
    assert!(line[4].run() && !line[5].run());
    use_up(&limiter, "b");
    drop(waits(&limiter, "b", 1));
    clock.set(ns(20));
    assert!(line[5].run());
    assert_eq!(limiter.queued(), 0);
}

#[test]
fn tiers_share_one_queue_in_order() {
    let free = TokenBucket::new(quota(1, 100)).queue(5);
    let paid = TokenBucket::new(quota(10, 100)).queue(5);
    let (limiter, clock) = on(Tiered::new(free.clone()));
    use_up(&limiter, "key");
    let mut first = waits(&limiter, "key", 1);
    let mut second = PolledByHand::new(limiter.tier(&paid).acquire("key"));
    second.poll();
    let mut third = waits(&limiter, "key", 1);
    assert!(!limiter.tier(&paid).check("key").is_allowed(), "no call overtakes");
    let mut left = [None; 3];
    for now in 1..=400 {
        clock.set(ns(now));
        while [&first, &second, &third].iter().any(|call| call.is_woken()) {
            for call in [&mut third, &mut second, &mut first] {
                call.run();
            }
        }
        for (call, left) in [&first, &second, &third].into_iter().zip(&mut left) {
            if call.output.is_some() && left.is_none() {
                *left = Some(now);
            }
        }
    }
    assert!(left.iter().all(Option::is_some), "a call is stuck: {left:?}");
    assert!(left.is_sorted(), "{left:?}");
    assert!(left[2].unwrap() >= 20, "three units of the faster tier: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn with_two_queueing_layers_a_request_passes_when_both_admit_it() {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(2)).queue(20);
    let window = FixedWindow::new(Quota::per_second(4)).queue(20);
    let (bucket, window) = (RateLimiter::new(bucket), RateLimiter::new(window));
    let key = || from_fn(|_: &u32| Some("key"));
    let layer = RateLimitLayer::with_limiter(key(), bucket.clone())
        .and(RateLimitLayer::with_limiter(key(), window.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(|n: u32| async move { Ok::<_, Infallible>(n) }));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for nth in 0..10 {
        let call = service.clone().oneshot(nth);
        calls.spawn(async move { (call.await.unwrap(), start.elapsed().as_millis()) });
    }
    let mut left = calls.join_all().await;
    left.sort_unstable();
    let at: Vec<_> = left.iter().map(|(_, at)| *at).collect();
    assert!(at.is_sorted(), "{at:?}");
    assert_eq!(at[..4], [0, 0, 100, 200]);
    for (nth, at) in at.iter().enumerate() {
        assert!(*at >= nth as u128 / 4 * 1_000, "number {nth} at {at}: four in each second");
    }
    assert!(at[9] <= 2_300, "{at:?}");
    assert_eq!((bucket.queued(), window.queued()), (0, 0));
    // Both limits have been charged once, for ten units.
    assert_eq!(window.peek("key").remaining(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_layer_holds_requests_only_if_its_algorithm_is_configured_to() {
    async fn held<A: Algorithm>(rule: A) -> bool {
        let layer = RateLimitLayer::new(from_fn(|_: &u32| Some("key")), rule).responder(ErrorResponder);
        let service = layer.layer(service_fn(|n: u32| async move { Ok::<_, Infallible>(n) }));
        while tokio::time::timeout(Duration::ZERO, service.clone().oneshot(0))
            .await
            .is_ok_and(|reported| reported.is_ok())
        {}
        let start = Instant::now();
        let passes = service.oneshot(1).await.is_ok();
        assert_eq!(passes, start.elapsed() > Duration::ZERO);
        passes
    }
    let quota = Quota::per_second(2);
    macro_rules! of {
        ($rule:ident) => {
            assert!(!held($rule::new(quota)).await, stringify!($rule));
            assert!(held($rule::new(quota).queue(3)).await, stringify!($rule));
            assert!(held($rule::new(quota).max_wait(MS * 9_999)).await, stringify!($rule));
            assert!(held($rule::new(quota).overflow(QueueOverflow::RejectNew)).await, stringify!($rule));
            assert!(!held($rule::new(quota).queue(0)).await, stringify!($rule));
            assert!(!held(($rule::new(quota), LeakyBucket::new(quota))).await, stringify!($rule));
            assert!(held(($rule::new(quota).queue(3), LeakyBucket::new(quota))).await, stringify!($rule));
        };
    }
    of!(TokenBucket);
    of!(FixedWindow);
    of!(SlidingWindow);
    of!(SlidingCounter);
    of!(SlidingLog);
    assert!(held(LeakyBucket::new(quota)).await && held(Smooth::bursty(quota)).await);
}
