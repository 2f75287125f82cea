//! Waiters are woken in the tasks where they are, although calls before them moved, were cancelled, or are not polled.

use std::task::Waker;

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceExt};
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, RateLimitLayer, RateLimiter};

use super::{INTERVAL, MS, Slow, bucket, thousand_a_second, waiting};
use crate::support::{Alarm, PolledByHand};

#[tokio::test(start_paused = true)]
async fn a_waiter_that_moves_to_another_task_is_woken_there() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let mut calls = [(); 3].map(|()| waiting(&limiter));
    let old = calls.each_mut().map(PolledByHand::moves);
    for call in &mut calls {
        assert!(!call.poll());
    }
    let before = old.each_ref().map(|alarm| alarm.times());
    for call in &mut calls {
        // The call before it has been released by then.
        advance(INTERVAL).await;
        assert!(call.alarm.rang(), "it missed its wakeup");
        assert!(call.poll());
    }
    assert_eq!(old.map(|alarm| alarm.times()), before, "the old task is left in peace");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_moves_up_is_woken_where_it_is() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    second.moves();
    assert!(!second.poll());
    first.abandon();
    assert!(!second.run());
    advance(INTERVAL).await;
    assert!(second.run());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_released_by_another_call_is_woken_at_once() {
    let limiter = RateLimiter::new(thousand_a_second());
    assert!(limiter.check(&()).is_allowed());
    let mut line = [(); 6].map(|()| waiting(&limiter));
    line[1].abandon();
    line[2].abandon();
    // The calls behind the cancelled ones were woken. The task of the first call is stuck.
    assert_eq!(line.each_mut().map(|call| call.alarm.rang()), [false, false, true, true, false, false]);
    advance(MS * 3).await;
    assert!(!limiter.check(&()).is_allowed());
    // Three calls are released. The last call is now the first waiter, and its timer is early enough.
    assert_eq!(line.each_mut().map(|call| call.alarm.rang()), [true, false, false, true, true, false]);
    for call in [0, 3, 4] {
        assert!(line[call].poll());
    }
    assert!(!line[5].poll());
    advance(MS).await;
    assert!(line[5].run());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_never_polled_is_not_queued() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let unpolled = limiter.acquire(&());
    assert_eq!(limiter.acquire(&()).await.delay(), INTERVAL);
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_never_polled_delays_no_other_waiter() {
    let limiter = RateLimiter::new(bucket());
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let mut service = layer.layer(Slow::default());
    assert!(limiter.check(&()).is_allowed());
    let unpolled = service.ready().await.unwrap().call(());
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for n in 2..10 {
        let acquire = limiter.acquire(&());
        calls.spawn(async move {
            assert!(acquire.await.is_allowed());
            // The timer of the next call releases it before its slot is overdue by as much as a stall may last.
            assert_eq!(start.elapsed(), INTERVAL * n);
        });
    }
    calls.join_all().await;
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_task_is_stuck_delays_no_other_waiter() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let start = Instant::now();
    // The call is polled only once.
    let stuck = waiting(&limiter);
    let mut leaves = waiting(&limiter);
    let mut calls = JoinSet::new();
    for n in 2..10 {
        let acquire = limiter.acquire(&());
        calls.spawn(async move {
            assert!(acquire.await.is_allowed());
            (n, start.elapsed())
        });
    }
    sleep(MS * 50).await;
    leaves.abandon();
    let mut seen = calls.join_all().await;
    seen.sort_unstable();
    // The stuck call is released three milliseconds after its scheduled time, by the timer of the next call.
    assert_eq!(seen, (2..10).map(|n| (n, INTERVAL * n)).collect::<Vec<_>>());
    drop(stuck);
}

#[test]
fn a_custom_alarm_is_counted() {
    // A test of the helper for these tests. The alarm is counted when it is woken, and only then.
    let alarm = Alarm::new();
    assert!(!alarm.rang());
    Waker::from(alarm.clone()).wake();
    assert!(alarm.rang() && !alarm.rang() && alarm.times() == 1);
}
