//! The counts of the calls that are made without a layer, and of those of layers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::faults::swaps;
use super::flights::{begun, settle};
use super::limiter;
use super::staged::{Mode, Staged};
use crate::in_process::RedisInProcess;
use tower_throttle::Quota;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{AlgorithmInfo, FixedWindow, TokenBucket};
use tower_throttle::limiter::{Acquired, Attempt, Limiter, LimiterFor};
use tower_throttle::stats::CallStats;

const MS: Duration = Duration::from_millis(1);

/// Returns the numbers of calls that were admitted, denied, cancelled and queued, and the number of all calls.
fn counts(calls: &CallStats) -> [u64; 5] {
    [calls.admitted, calls.denied, calls.cancelled, calls.queued, calls.ended()]
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_their_outcomes() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(3)).queue(1));
    let clone = limiter.clone();
    assert!(limiter.check_n("a", 2).await.unwrap().is_allowed());
    assert!(clone.try_acquire_permit("a").await.unwrap().is_ok());
    assert!(!limiter.check("a").await.unwrap().is_allowed(), "by the server");
    assert!(!limiter.call("a").max_wait(MS).acquire().await.unwrap().is_allowed());
    assert_eq!(counts(&limiter.stats().calls), [2, 2, 0, 0, 4]);
    // These are not counted.
    let _ = limiter.peek("a").await.unwrap();
    drop(limiter.check("a"));
    limiter.refund("a", 1).await.unwrap();
    assert!(limiter.check("a").await.unwrap().is_allowed());
    limiter.reset("b").await.unwrap();
    assert_eq!(counts(&limiter.stats().calls), [3, 2, 0, 0, 5]);
    // A call that waits is counted when it begins to wait, and when it ends.
    let waiting = tokio::spawn(limiter.acquire("a"));
    settle().await;
    assert_eq!(counts(&limiter.stats().calls), [3, 2, 0, 1, 5]);
    let full = limiter.acquire("a").await.unwrap();
    assert!(full.is_queue_full());
    assert_eq!((limiter.stats().calls.queue_full, limiter.stats().calls.queued), (1, 1));
    waiting.abort();
    let _ = waiting.await;
    assert_eq!(counts(&limiter.stats().calls), [3, 2, 1, 1, 7]);
    let admitted = tokio::spawn(limiter.acquire("a"));
    assert_eq!(admitted.await.unwrap().unwrap().delay().as_secs(), 3_600);
    assert_eq!(counts(&limiter.stats().calls), [4, 2, 1, 2, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_has_no_outcome_and_one_that_is_dropped_is_cancelled() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), TokenBucket::new(Quota::per_hour(3)));
    server.set(Mode::Hang);
    assert!(limiter.check("a").await.is_err());
    assert_eq!((limiter.stats().calls.ended(), limiter.stats().store.late), (0, 1));
    drop(begun(limiter.check("a")));
    assert!(timeout(MS, limiter.acquire("a")).await.is_err());
    assert_eq!(counts(&limiter.stats().calls), [0, 0, 2, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn calls_of_layers_and_of_the_fallback_are_counted_once() {
    let server = Staged::new();
    let local = RateLimiter::new(FixedWindow::new(Quota::per_hour(1)));
    let window = FixedWindow::new(Quota::per_hour(1));
    let limiter = swaps(&server).limiter("test", window).fallback(local).build().unwrap();
    let layer = async |attempt: Attempt<'static, FixedWindow>| {
        let acquired = LimiterFor::acquire(&limiter, "a", attempt);
        match acquired {
            Acquired::Ready(decision, _) => decision.is_allowed(),
            Acquired::Pending(wait) => wait.await.unwrap().decision().is_allowed(),
        }
    };
    assert!(layer(Attempt::new(1)).await);
    assert!(!layer(Attempt::new(1)).await);
    assert!(!layer(Attempt::new(1).with_shadow()).await);
    let calls = limiter.stats().calls;
    assert_eq!((calls.admitted, calls.denied, calls.shadow_denied, calls.ended()), (1, 1, 1, 3));
    server.set(Mode::Fail("ERR"));
    assert!(limiter.check("b").await.unwrap().is_allowed());
    assert!(!limiter.check("b").await.unwrap().is_allowed());
    let stats = limiter.stats();
    assert_eq!((counts(&stats.calls), stats.store.fallbacks), ([2, 2, 0, 0, 5], 2));
}

#[tokio::test(start_paused = true)]
async fn calls_that_leases_decide_are_counted() {
    let server = RedisInProcess::new(MS);
    let bucket = TokenBucket::new(Quota::per_hour(10));
    let limiter = server.connect().limiter("api", bucket).lease(5).build().unwrap();
    for _ in 0..12 {
        let _ = limiter.check("a").await.unwrap();
    }
    assert_eq!(counts(&limiter.stats().calls), [10, 2, 0, 0, 12]);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_algorithm_decides_the_calls_that_begin_later() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(3)));
    let quota = |info: Arc<AlgorithmInfo>| info.quotas()[0].quota;
    assert_eq!(quota(limiter.info()), 3);
    server.set(Mode::Hold);
    let attempt = Attempt::new(1);
    let Acquired::Pending(under_way) = LimiterFor::acquire(&limiter, "a", attempt) else {
        panic!("the call makes a trip");
    };
    let under_way = tokio::spawn(under_way);
    settle().await;
    limiter.replace(FixedWindow::new(Quota::per_hour(7)));
    assert_eq!((limiter.algorithm(), quota(limiter.info())), (FixedWindow::new(Quota::per_hour(7)), 7));
    assert_eq!((limiter.generation(), limiter.info().generation()), (1, 1));
    server.resume();
    // The trip of the first call began before.
    assert_eq!(under_way.await.unwrap().unwrap().decision().limit(), 3);
    assert_eq!(limiter.check("a").await.unwrap().limit(), 7);
}
