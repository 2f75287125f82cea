//! Waiters are admitted at their exact times, and in order, whatever their costs and tiers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower_throttle::algorithm::*;
use tower_throttle::{Quota, RateLimiter};

use super::{MS, call, denied, on, use_up, waits};
use crate::queueing::{ns, quota};
use crate::support::{self, PolledByHand};

#[test]
fn a_bucket_of_burst_b_admits_the_kth_of_many_calls_after_k_minus_b_intervals() {
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
        assert_eq!(denied(&limiter, "key", 1).retry_after(), Some(MS * 200));
    }
    let mut denial = Some(MS * 200);
    for nth in 0..12 {
        clock.advance(MS * 200 - ns(1));
        assert_eq!(denied(&limiter, "key", 1).retry_after(), denial.map(|_| ns(1)));
        assert!(!paced[nth].run(), "number {nth} is early");
        clock.advance(ns(1));
        assert!(paced[nth].run(), "number {nth} is late");
        assert_eq!(paced[nth].output.unwrap().delay(), MS * 200 * (nth as u32 + 1));
        // Another call takes the place of the admitted call.
        paced.push(waits(&limiter, "key", 1));
        denial = Some(MS * 200);
    }
}

/// Makes `count` calls for one key at one instant, each in a task. Returns the times at which they are admitted.
async fn at_one_instant<A: Algorithm>(rule: A, count: usize) -> Vec<Duration> {
    let limiter = RateLimiter::new(rule);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for nth in 0..count {
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

/// The timer has ticks of a millisecond. No call is admitted before its slot, or later than the tick after its slot.
#[tokio::test(start_paused = true)]
async fn queued_calls_are_admitted_at_the_first_tick_from_their_slots_on() {
    // With the largest rate, each tick has ten thousand slots. With the smallest, two of three slots are between ticks.
    for (limit, calls) in [(5_000, 1_001), (10_000_000, 100_001), (3, 301)] {
        let quota = Quota::per_second(limit);
        let bucket = at_one_instant(TokenBucket::new(quota.burst(1)).queue(calls as u64), calls).await;
        let leaky = at_one_instant(LeakyBucket::new(quota).queue(calls as u64), calls).await;
        for (nth, at) in (0_u128..).zip(&leaky) {
            let slot = (nth * 1_000_000_000).div_ceil(limit.into());
            assert_eq!(at.as_nanos(), slot.next_multiple_of(1_000_000), "number {nth} at {limit}/s");
        }
        assert_eq!(bucket, leaky, "{limit}/s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_of_three_a_second_does_not_drift_in_an_hour() {
    async fn look<A: Algorithm>(rule: A, burst: u64) {
        const CALLS: u32 = 3 * 3_600;
        let limiter = RateLimiter::new(rule);
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
            assert_eq!(at.as_millis(), u128::from(exact), "number {nth} of {limiter:?}");
        }
    }
    let three = Quota::per_second(3);
    look(TokenBucket::new(three.burst(1)).queue(6), 1).await;
    look(TokenBucket::new(three.burst(2)).queue(6), 2).await;
    look(LeakyBucket::new(three).queue(6), 1).await;
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_wait_for_each_other() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)).queue(3));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for (key, nth) in (0..200).flat_map(|key| (0..4).map(move |nth| (key, nth))) {
        let acquire = limiter.acquire(&key);
        calls.spawn(async move { (nth, acquire.await.is_allowed(), start.elapsed()) });
    }
    for (nth, passes, at) in calls.join_all().await {
        assert_eq!((passes, at), (true, MS * 100 * nth));
    }
    assert!(limiter.len() <= 200);
}

#[test]
fn a_fixed_window_admits_as_many_waiters_as_its_limit_at_each_window() {
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
fn tiers_share_one_queue_in_order() {
    let free = TokenBucket::new(quota(1, 100)).queue(5);
    let paid = TokenBucket::new(quota(10, 100)).queue(5);
    let (limiter, clock) = on(Tiered::new(free.clone()));
    use_up(&limiter, "key");
    let mut first = waits(&limiter, "key", 1);
    let mut second = PolledByHand::new(limiter.call("key").tier(&paid).acquire());
    second.poll();
    let mut third = waits(&limiter, "key", 1);
    assert!(!limiter.call("key").tier(&paid).check().is_allowed(), "no call overtakes");
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

/// If a call is the first call of the key in a tier, the state of this tier begins when the call joins the queue.
#[test]
fn a_call_that_waits_in_a_new_tier_waits_by_its_rate() {
    let (free, paid) = (TokenBucket::new(quota(1, 100)), TokenBucket::new(quota(1, 10)));
    let (limiter, clock) = on(Tiered::new(free));
    use_up(&limiter, "key");
    let mut of_paid = support::waits(limiter.call("key").tier(&paid).acquire());
    clock.set(ns(9));
    assert!(!of_paid.run());
    clock.set(ns(10));
    assert!(of_paid.run() && of_paid.output.unwrap().is_allowed());
}

/// The clock is set back by less than one of the periods, and by more than the other. So from then on, the members of a
/// tuple have different times, and so have a lockout and its algorithm.
#[test]
fn a_wait_is_exact_though_the_members_have_different_times() {
    fn look<A: Algorithm>(rule: A) {
        for back in [5, 50, 150] {
            let (limiter, clock) = on(rule.clone());
            clock.set(ns(1_000));
            use_up(&limiter, "key");
            clock.set(ns(1_003 - back));
            let of_first = limiter.peek("key").retry_after().unwrap();
            let mut first = waits(&limiter, "key", 1);
            let denied = limiter.check("key");
            assert_eq!(denied, limiter.peek("key"), "{rule:?}");
            // The waiter must be admitted on time, since a late admission would delay the others.
            clock.advance(of_first - ns(1));
            assert!(!first.run(), "{rule:?}, {back} back: too early");
            clock.advance(ns(1));
            assert!(first.run(), "{rule:?}, {back} back: too late");
            clock.advance(denied.retry_after().unwrap() - of_first - ns(1));
            assert!(!limiter.check("key").is_allowed(), "{rule:?}, {back} back: too early");
            clock.advance(ns(1));
            assert!(limiter.check("key").is_allowed(), "{rule:?}, {back} back: too late");
        }
    }
    let (short, long) = (quota(1, 10), quota(3, 100));
    look((FixedWindow::new(short), FixedWindow::new(long)));
    look((FixedWindow::new(long), TokenBucket::new(short)));
    look((TokenBucket::new(long), SlidingLog::new(short)));
    look((LeakyBucket::new(short), SlidingWindow::new(long)));
    look((TokenBucket::new(short), TokenBucket::new(long)));
    look(TokenBucket::new(quota(10, 100).burst(1)).block_for(MS).after(1_000));
    look((FixedWindow::new(short), FixedWindow::new(long)).block_for(MS).after(1_000));
}

#[test]
fn an_admitted_call_reports_when_the_key_is_fresh_after_all_that_are_queued() {
    let (limiter, clock) = on(LeakyBucket::new(quota(1, 10)).queue(3));
    let first = call(&limiter, "key", 1).output.unwrap();
    assert_eq!(first.reset_after(), ns(10));
    let mut line: Vec<_> = (0..3).map(|_| waits(&limiter, "key", 1)).collect();
    clock.set(ns(10));
    assert!(line[0].run());
    let second = line[0].output.unwrap();
    assert_eq!((second.remaining(), second.reset_after()), (0, ns(30)), "two calls are queued");
    for (call, at) in line[1..].iter_mut().zip([20, 30]) {
        clock.set(ns(at));
        assert!(call.run());
    }
    clock.set(ns(40));
    let fresh = limiter.peek("key");
    assert_eq!((fresh.remaining(), fresh.reset_after()), (1, Duration::ZERO));
}
