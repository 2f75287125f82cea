//! A layer queues requests if its algorithm is configured to, and passes them on when all its limits admit them.

use std::convert::Infallible;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::*;
use tower_throttle::key::from_fn;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::MS;

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
