//! Waiters stay queued in order when the algorithm is replaced, and are admitted at the new rate.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Attempt;
use tower_throttle::{Quota, RateLimiter};

use super::{MS, SECOND, limiter, with_each_kind};
use crate::support::calls::acquire;
use crate::support::{PolledByHand, Random, ends_within, patient, waits};

/// Queues five calls at ten a second. After 50 ms, the rate changes. Returns when each call is admitted, in
/// milliseconds.
async fn leave_at<A: Algorithm>(old: A, new: A) -> Vec<u128> {
    let limiter = RateLimiter::new(old);
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..6 {
        let call = limiter.acquire("key");
        calls.spawn(async move {
            assert!(patient(call).await.is_allowed());
            (n, start.elapsed().as_millis())
        });
        tokio::task::yield_now().await;
    }
    sleep_until(start + MS * 50).await;
    limiter.replace(new);
    let mut left = calls.join_all().await;
    left.sort_unstable();
    left.into_iter().map(|(_, at)| at).collect()
}

fn queue(limit: u64) -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(limit)).queue(20)
}

#[tokio::test(start_paused = true)]
async fn waiters_are_admitted_at_the_new_rate_when_it_is_raised() {
    // Half of the first call's interval is left.
    assert_eq!(leave_at(queue(10), queue(100)).await, [0, 55, 65, 75, 85, 95]);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_admitted_at_the_new_rate_when_it_is_lowered() {
    assert_eq!(leave_at(queue(10), queue(1)).await, [0, 550, 1_550, 2_550, 3_550, 4_550]);
}

#[tokio::test(start_paused = true)]
async fn waiters_stay_queued_though_the_queue_is_shorter() {
    assert_eq!(leave_at(queue(10), queue(20).queue(1)).await, [0, 75, 125, 175, 225, 275]);
    assert_eq!(leave_at(queue(10), queue(20).queue(0).max_wait(MS)).await, [0, 75, 125, 175, 225, 275]);
}

#[tokio::test(start_paused = true)]
async fn an_equal_algorithm_changes_nothing_for_waiters() {
    assert_eq!(leave_at(queue(10), queue(10)).await, [0, 100, 200, 300, 400, 500]);
    let smooth = || Smooth::bursty(Quota::per_second(10)).queue(20);
    assert_eq!(leave_at(smooth(), smooth()).await, [0, 100, 200, 300, 400, 500]);
}

#[tokio::test(start_paused = true)]
async fn smooth_waits_at_the_new_rate_too() {
    let smooth = |limit| Smooth::bursty(Quota::per_second(limit)).queue(20);
    assert_eq!(leave_at(smooth(10), smooth(100)).await, [0, 55, 65, 75, 85, 95]);
    assert_eq!(leave_at(smooth(10), smooth(1)).await, [0, 550, 1_550, 2_550, 3_550, 4_550]);
}

/// The rate is raised and lowered at random times, and some calls are cancelled. The calls are admitted in order, and
/// none is forgotten.
#[tokio::test(start_paused = true)]
async fn waiters_are_admitted_in_order_at_any_rates() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let limiter = RateLimiter::new(queue(10).queue(100));
        let (start, mut calls) = (Instant::now(), JoinSet::new());
        for n in 0..40 {
            let call = limiter.acquire("key");
            let patience = if n % 4 == 3 { MS * random.below(3_000) as u32 } else { Duration::MAX };
            calls.spawn(async move {
                let left = tokio::time::timeout(patience, patient(call)).await;
                (n, left.is_ok_and(|decision| decision.is_allowed()), start.elapsed())
            });
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            tokio::time::sleep(MS * random.below(200) as u32).await;
            limiter.replace(queue(1 + random.below(50)).queue(100));
        }
        let mut left = calls.join_all().await;
        left.retain(|(n, passed, _)| {
            assert!(*passed || n % 4 == 3, "seed {seed}: {n} was lost");
            *passed
        });
        left.sort_unstable();
        assert!(left.is_sorted_by_key(|(.., at)| *at), "seed {seed}: {left:?}");
        for pair in left.windows(2) {
            assert!(pair[1].2 - pair[0].2 >= MS * 20, "seed {seed}: {left:?}");
        }
    }
}

/// Slots that are overdue when the algorithm is replaced belong to the calls that wait for these slots.
#[test]
fn an_equal_algorithm_takes_no_slots_that_are_overdue() {
    let leave = |replaced: bool| {
        let clock = ManualClock::new();
        let limiter = limiter(queue(10), &clock);
        assert!(limiter.check(&()).is_allowed());
        let mut line: Vec<_> = (0..4).map(|_| PolledByHand::new(limiter.acquire(&()))).collect();
        assert!(line.iter_mut().all(|call| !call.poll()));
        // No call was polled in the meantime, so the timers of the calls are late.
        clock.advance(MS * 250);
        if replaced {
            limiter.replace(queue(10));
        }
        let mut left = Vec::new();
        for ms in 250..1_000 {
            for (n, call) in line.iter_mut().enumerate().filter(|(_, call)| call.is_pending()) {
                for _ in 0..10 {
                    if call.is_pending() && call.alarm.rang() && call.poll() {
                        left.push((n, ms));
                    }
                }
            }
            clock.advance(MS);
        }
        left
    };
    assert_eq!(leave(true), leave(false));
}

/// A call whose rate was lowered sleeps until it is admitted, and is not polled again and again.
#[test]
fn waiters_sleep_on_when_the_rate_is_lowered() {
    let clock = ManualClock::new();
    let limiter = limiter(queue(10), &clock);
    assert!(limiter.check(&()).is_allowed());
    let mut line: Vec<_> = (0..4).map(|_| PolledByHand::new(limiter.acquire(&()))).collect();
    assert!(line.iter_mut().all(|call| !call.poll()));
    clock.advance(MS * 50);
    limiter.replace(queue(1));
    let mut left = Vec::new();
    for ms in (50..5_000).step_by(10) {
        for (n, call) in line.iter_mut().enumerate().filter(|(_, call)| call.is_pending()) {
            let before = call.polls;
            while call.is_pending() && call.alarm.rang() {
                assert!(call.polls - before < 50, "call {n} spins at {ms} ms");
                if call.poll() {
                    left.push((n, ms));
                }
            }
        }
        clock.advance(MS * 10);
    }
    assert_eq!(left, [(0, 550), (1, 1_550), (2, 2_550), (3, 3_550)]);
}

/// A waker that asks for the algorithm. A waker may run any code, whichever call wakes it.
struct Asks {
    limiter: RateLimiter<LeakyBucket>,
    times: AtomicU64,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        assert!(format!("{:?}", self.limiter).contains("LeakyBucket"));
        let _ = self.limiter.algorithm().policy();
        let _ = self.limiter.peek(&());
        if self.times.fetch_add(1, Ordering::SeqCst) == 0 {
            self.limiter.replace(queue(7));
        }
    }
}

#[test]
fn a_waker_may_ask_for_the_algorithm() {
    ends_within(Duration::from_secs(20), || {
        let limiter = limiter(queue(10), &ManualClock::new());
        limiter.replace(queue(1));
        assert!(limiter.check(&()).is_allowed());
        let asks = Arc::new(Asks { limiter: limiter.clone(), times: AtomicU64::new(0) });
        let waker = Waker::from(asks.clone());
        let mut call = Box::pin(limiter.acquire(&()));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        limiter.replace(queue(1_000));
        assert!(asks.times.load(Ordering::SeqCst) > 0, "its scheduled time has moved up");
    });
}

/// A tuple with a window that has priority queues no call.
#[test]
fn waiters_stay_queued_though_the_new_algorithm_queues_no_call() {
    let (clock, quota) = (ManualClock::new(), Quota::per_second(1));
    let other = FixedWindow::new(Quota::per_minute(100));
    let limiter = limiter((FixedWindow::new(quota).queue(3), other.clone().queue(3)), &clock);
    assert!(limiter.check("key").is_allowed());
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("key")));
    assert!(calls.iter_mut().all(|call| !call.poll()));
    limiter.replace((FixedWindow::new(quota).queue(3), other.priority(10)));
    let is_denied = || {
        let mut call = PolledByHand::new(limiter.acquire("key"));
        let denied = call.poll() && !limiter.peek("key").is_allowed() && !limiter.check("key").is_allowed();
        assert!(denied, "a call overtakes the waiters");
    };
    is_denied();
    for at in 0..2 {
        clock.advance(SECOND);
        assert!(calls[at].poll() && !calls[at + 1].poll(), "{at}");
        is_denied();
    }
    drop(calls);
    clock.advance(SECOND);
    assert!(limiter.check("key").is_allowed());
}

/// As with any other replacement, the wait was compared with its maximum when the call arrived.
#[test]
fn an_algorithm_that_queues_no_call_admits_waiters_at_its_own_rate() {
    let (clock, quota) = (ManualClock::new(), Quota::per_second(1));
    let other = FixedWindow::new(Quota::per_minute(100)).queue(3);
    let limiter = limiter((FixedWindow::new(quota).queue(3).max_wait(3 * SECOND), other.clone()), &clock);
    assert!(limiter.check("key").is_allowed());
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("key")));
    assert!(calls.iter_mut().all(|call| !call.run()));
    let slow = FixedWindow::new(Quota::per(1, 10 * SECOND).unwrap());
    limiter.replace((slow, other.priority(10)));
    assert_eq!(limiter.peek("key").retry_after(), Some(40 * SECOND), "behind three waiters");
    clock.advance(9 * SECOND);
    assert!(calls.iter_mut().all(|call| !call.run()));
    clock.advance(SECOND);
    let [_, second, third] = &mut calls;
    // The first call keeps its place until it is due, although its task is busy with something else.
    assert!(!second.run() && !third.run());
    clock.advance(10 * SECOND);
    assert!(second.run() && !third.run());
    clock.advance(10 * SECOND);
    assert!(third.run());
    for call in calls {
        assert!(call.output.is_none_or(|decision| decision.is_allowed()));
    }
}

/// It is not known when a call in progress ends, so no call waits longer than its maximum for that.
#[test]
fn an_algorithm_that_queues_no_call_denies_waiters_whose_wait_is_unknown_at_their_maximum() {
    let clock = ManualClock::new();
    let window = FixedWindow::new(Quota::per_minute(100)).queue(3);
    let calls = Concurrency::per_key(1).max_wait(3 * SECOND);
    let limiter = limiter((calls.clone(), window.clone()), &clock);
    let _in_progress = limiter.try_acquire_permit("key").unwrap();
    let mut waiter = PolledByHand::new(limiter.acquire_permit("key"));
    assert!(!waiter.run());
    limiter.replace((calls, window.priority(10)));
    assert_eq!(limiter.peek("key").retry_after(), None);
    clock.advance(3 * SECOND - Duration::from_nanos(1));
    assert!(!waiter.run());
    clock.advance(Duration::from_nanos(1));
    assert!(waiter.run() && waiter.output.unwrap().is_err());
}

#[test]
fn a_tier_that_queues_no_call_does_not_overtake_waiters() {
    let (clock, quota) = (ManualClock::new(), Quota::per_second(1));
    let window = FixedWindow::new(Quota::per_minute(100)).queue(3);
    let base = (FixedWindow::new(quota).queue(3), window.clone());
    let tier = (FixedWindow::new(Quota::per_second(9)).queue(3), window.priority(10));
    let limiter = limiter(Tiered::new(base), &clock);
    assert!(limiter.check("key").is_allowed());
    let mut waiter = PolledByHand::new(limiter.acquire("key"));
    assert!(!waiter.poll());
    let mut call = PolledByHand::new(limiter.call("key").tier(&tier).acquire());
    assert!(call.poll());
    assert!(!limiter.call("key").tier(&tier).check().is_allowed());
    clock.advance(SECOND);
    assert!(waiter.poll());
    assert!(limiter.call("key").tier(&tier).check().is_allowed());
}

/// A waiter that costs more than the new algorithm ever has is charged all that it has. What other calls have used
/// since is not given back when the waiter is settled.
fn settles_dear<A: Algorithm>(rule: impl Fn(Quota) -> A) {
    for wait in [500, 1_000, 1_500, 2_000] {
        let clock = ManualClock::new();
        let limiter = limiter(rule(Quota::per_second(20)), &clock);
        assert!(limiter.check_n("key", 20).is_allowed());
        let mut dear = waits(acquire(&limiter, "key", Attempt::new(20).with_reservation()));
        limiter.replace(rule(Quota::per_second(10)));
        while !dear.poll() {
            clock.advance(MS * 100);
        }
        let (decision, reservation) = dear.output.take().unwrap();
        assert!(decision.is_allowed());
        clock.advance(MS * wait);
        let free = limiter.peek("key").remaining();
        assert!(limiter.check_n("key", free).is_allowed());
        let used = limiter.peek("key");
        let settled = reservation.settle(0).unwrap();
        assert_eq!(settled.remaining(), used.remaining(), "after {free}");
    }
}

#[test]
fn a_dear_waiter_gives_nothing_back() {
    with_each_kind!(settles_dear);
}
