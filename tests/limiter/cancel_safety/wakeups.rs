//! Waiters are woken in the tasks where they are, although calls before them moved or were cancelled.

use std::task::Waker;

use tokio::time::advance;
use tower_throttle::RateLimiter;

use super::{INTERVAL, MS, bucket, thousand_a_second, waiting};
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
        // The call before it has been admitted by then.
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
async fn a_waiter_that_another_call_admits_is_woken_at_once() {
    let limiter = RateLimiter::new(thousand_a_second());
    assert!(limiter.check(&()).is_allowed());
    let mut line = [(); 6].map(|()| waiting(&limiter));
    line[1].abandon();
    line[2].abandon();
    // The calls behind the cancelled ones were woken. The task of the first call is stuck.
    assert_eq!(line.each_mut().map(|call| call.alarm.rang()), [false, false, true, true, false, false]);
    advance(MS * 3).await;
    assert!(!limiter.check(&()).is_allowed());
    // Three calls are admitted. The last call is now the first waiter, and its timer is early enough.
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

#[test]
fn a_custom_alarm_is_counted() {
    // A test of the helper for these tests. The alarm is counted when it is woken, and only then.
    let alarm = Alarm::new();
    assert!(!alarm.rang());
    Waker::from(alarm.clone()).wake();
    assert!(alarm.rang() && !alarm.rang() && alarm.times() == 1);
}
