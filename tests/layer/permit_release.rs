//! The permit of a call is released once, whatever other limits decide.

use std::convert::Infallible;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{Concurrency, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::OwnAlgorithm;

/// Returns an algorithm that counts releases, and may panic in a release.
fn door(left: Arc<AtomicU64>, is_fragile: bool) -> OwnAlgorithm<Concurrency> {
    OwnAlgorithm::new(Concurrency::per_key(9), move |method| {
        if method == "release" {
            left.fetch_add(1, Ordering::SeqCst);
            assert!(!is_fragile, "the door is broken");
        }
    })
}

#[test]
fn a_call_is_released_once() {
    let left = Arc::new(AtomicU64::new(0));
    let limiter = RateLimiter::new(door(Arc::clone(&left), false));
    drop(limiter.try_acquire_permit("user:42").unwrap());
    assert_eq!(left.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_permit_is_released_though_another_limit_panics_on_release() {
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let layer = RateLimitLayer::new(Global, door(Arc::default(), true))
        .and(RateLimitLayer::with_limiter(Global, limiter.clone()))
        .responder(ErrorResponder);
    let mut service = layer.layer(service_fn(|(): ()| async { Ok::<_, Infallible>(()) }));
    let mut call = Box::pin(service.ready().await.unwrap().call(()));
    let end = catch_unwind(AssertUnwindSafe(|| {
        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }));
    assert!(end.is_err(), "the first limit panics when the call is over");
    drop(catch_unwind(AssertUnwindSafe(|| drop(call))));
    assert!(limiter.try_acquire_permit(&()).is_ok(), "the second is not held for ever");
}

#[test]
fn a_permit_is_released_though_a_panic_follows_the_inner_response() {
    struct Fragile(bool);

    impl Future for Fragile {
        type Output = Result<(), Infallible>;

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Ready(Ok(()))
        }
    }

    impl Drop for Fragile {
        fn drop(&mut self) {
            assert!(!mem::take(&mut self.0), "the inner future is broken");
        }
    }

    for is_inner_broken in [false, true] {
        let limiter = RateLimiter::new(Concurrency::per_key(1));
        let settled = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(9)))
            .settle(move |(): &()| (!is_inner_broken).then(|| panic!("the cost is unknown")));
        let layer =
            RateLimitLayer::with_limiter(Global, limiter.clone()).and(settled).responder(ErrorResponder);
        let mut service = layer.layer(service_fn(|(): ()| Fragile(is_inner_broken)));
        let mut call = Box::pin(service.call(()));
        let end = catch_unwind(AssertUnwindSafe(|| {
            let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }));
        assert!(end.is_err());
        assert!(limiter.try_acquire_permit(&()).is_ok(), "free, though the future is not dropped");
        drop(call);
    }
}
