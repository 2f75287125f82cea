//! The layer fits above and below each of tower's layers.

use std::time::Duration;

use tokio::task::JoinSet;
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, ServiceBuilder, ServiceExt};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::limits::{allows, denies, every_limit, queues, rounds, slow};
use super::{Probe, plain};

#[test]
fn a_limited_service_fits_between_two_whose_errors_are_boxed() {
    // tower's own middleware requires this of an error if a timeout or a buffer is inside of the limiter.
    fn boxes<E: Into<BoxError>>(error: E) -> String {
        error.into().to_string()
    }
    assert_eq!(boxes(Error::Inner(std::io::Error::other("plain"))), "plain");
    assert_eq!(boxes(Error::Inner(BoxError::from("boxed"))), "boxed");
}

fn all_forty(limit: &str, (passed, rejected): (usize, usize), calls: usize) {
    let expected = if limit.ends_with("denies") { (1, 39) } else { (40, 0) };
    assert_eq!((passed, rejected), expected, "{limit}");
    assert_eq!(calls, passed, "{limit}: a rejected call does not reach the service behind");
}

#[tokio::test(start_paused = true)]
async fn alone_it_calls_the_readied_instance() {
    every_limit!(|limit, probe| ServiceBuilder::new().layer(limit).service(probe), all_forty);
}

#[tokio::test(start_paused = true)]
async fn it_works_above_a_limit_of_one_call_in_flight() {
    every_limit!(
        |limit, probe| ServiceBuilder::new().layer(limit).layer(ConcurrencyLimitLayer::new(1)).service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn it_works_below_a_limit_of_one_call_in_flight() {
    every_limit!(
        |limit, probe| ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(1)).layer(limit).service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn it_works_above_a_buffer() {
    for bound in [1, 8] {
        every_limit!(
            |limit, probe| ServiceBuilder::new()
                .map_err(plain)
                .layer(limit)
                .layer(BufferLayer::new(bound))
                .service(probe),
            all_forty
        );
    }
}

#[tokio::test(start_paused = true)]
async fn it_works_below_a_buffer() {
    for bound in [1, 8] {
        every_limit!(
            |limit, probe| ServiceBuilder::new().layer(BufferLayer::new(bound)).layer(limit).service(probe),
            all_forty
        );
    }
}

#[tokio::test(start_paused = true)]
async fn it_works_between_buffers_and_limits_of_calls_in_flight() {
    every_limit!(
        |limit, probe| ServiceBuilder::new()
            .layer(ConcurrencyLimitLayer::new(1))
            .layer(BufferLayer::new(2))
            .map_err(plain)
            .layer(limit)
            .layer(BufferLayer::new(2))
            .layer(ConcurrencyLimitLayer::new(1))
            .service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn it_works_between_timeouts_that_are_not_reached() {
    every_limit!(
        |limit, probe| ServiceBuilder::new()
            .layer(BufferLayer::new(64))
            .layer(TimeoutLayer::new(Duration::from_secs(10)))
            .map_err(plain)
            .layer(limit)
            .layer(TimeoutLayer::new(Duration::from_secs(10)))
            .service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn beside_load_shedding_no_call_waits() {
    every_limit!(
        |limit, probe| ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(ConcurrencyLimitLayer::new(1))
            .layer(limit)
            .service(probe),
        |limit: &str, (passed, rejected): (usize, usize), calls: usize| {
            // The calls that are made one after another are all admitted. Of the calls at once, only the first is
            // admitted, while it is in flight.
            let expected = if limit.ends_with("denies") { (1, 39) } else { (21, 19) };
            assert_eq!((passed, rejected), expected, "{limit}");
            assert_eq!(calls, passed, "{limit}");
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_timeout_above_frees_the_slots_of_the_calls_it_cancels() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(100);
    let limiter = RateLimiter::new(bucket);
    let probe = Probe::new();
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(Duration::from_millis(250)))
        .layer(RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder))
        .service(probe.clone());
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let service = service.clone();
        calls.spawn(async move { service.oneshot(String::new()).await.is_ok() });
    }
    let passed = calls.join_all().await.into_iter().filter(|passed| *passed).count();
    // The calls are admitted at 0, 100 and 200 ms.
    assert_eq!((passed, probe.calls()), (3, 3));
    assert_eq!(limiter.peek(&()).retry_after(), Some(Duration::from_millis(50)));
}
