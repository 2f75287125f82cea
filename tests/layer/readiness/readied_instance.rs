//! The instance that is ready is the one that is called, and a call charges nothing earlier.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, Networks, PeerIp};
use tower_throttle::{Error, ErrorResponder, HttpResponder, Quota, RateLimitLayer, RateLimiter};

use super::limits::{allows, denies, queues};
use super::{Probe, plain};
use crate::keys::{Http, from, get};
use crate::support::PolledByHand;

#[tokio::test(start_paused = true)]
async fn the_instance_that_was_readied_is_the_one_that_is_called() {
    let probe = Probe::new();
    let notes = probe.shared.clone();
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(2);
    let mut service = RateLimitLayer::new(Global, bucket).responder(ErrorResponder).layer(probe);

    // The call is admitted at once, so this instance is called, and not a clone.
    service.ready().await.unwrap().call(String::new()).await.unwrap();
    assert_eq!((notes.called.lock().unwrap().clone(), service.get_ref().number), (vec![0], 0));
    // The call is queued. The future takes the instance that is ready, and a clone that is not ready replaces it.
    let waits = service.ready().await.unwrap().call(String::new());
    assert_eq!((service.get_ref().number, service.get_ref().ready), (1, false));
    let waits_too = service.ready().await.unwrap().call(String::new());
    assert_eq!((service.get_ref().number, service.get_ref().ready), (2, false));
    // The call is denied, so a clone that is not ready replaces the instance, which is dropped with what it reserved.
    assert!(service.ready().await.unwrap().call(String::new()).await.is_err());
    assert_eq!((service.get_ref().number, service.get_ref().ready), (3, false));
    let (first, second) = tokio::join!(waits, waits_too);
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(*notes.called.lock().unwrap(), [0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn queued_calls_reach_the_service_in_order() {
    let probe = Probe::new();
    let service = ServiceBuilder::new()
        .map_err(plain)
        .layer(RateLimitLayer::new(Global, queues()).responder(ErrorResponder))
        .layer(BufferLayer::new(100))
        .service(probe.clone());
    let start = Instant::now();
    let mut calls = JoinSet::new();
    let served = Arc::new(Mutex::new(Vec::new()));
    for n in 0..30_u128 {
        let served = served.clone();
        let noted = service.clone().map_result(move |answer: Result<String, BoxError>| {
            // The call was in flight for three milliseconds.
            served.lock().unwrap().push((n, start.elapsed().as_millis() - 3));
            answer
        });
        calls.spawn(noted.oneshot(String::new()));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!(*served.lock().unwrap(), (0..30).map(|n| (n, n * 10)).collect::<Vec<_>>());
    assert_eq!(probe.shared.most_running.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn poll_ready_charges_nothing() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_hour(1))).clock(clock).build();
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let mut service = layer.layer(Probe::new());
    for _ in 0..100 {
        service.ready().await.unwrap();
    }
    assert!(limiter.is_empty() && limiter.peek(&()).remaining() == 1);
    assert!(service.call(String::new()).await.is_ok());
    for _ in 0..100 {
        service.ready().await.unwrap();
    }
    assert!(matches!(service.call(String::new()).await, Err(Error::Limited(_))));
}

#[tokio::test]
async fn a_client_that_was_denied_and_keeps_its_service_blocks_nobody() {
    let layer = RateLimitLayer::new(Global, denies()).responder(ErrorResponder);
    let service =
        ServiceBuilder::new().layer(layer).layer(ConcurrencyLimitLayer::new(1)).service(Probe::new());
    let mut first = service.clone();
    assert!(first.ready().await.unwrap().call(String::new()).await.is_ok());
    let denied = first.ready().await.unwrap().call(String::new());
    // The only permit is free as soon as the call is denied, before the denial is read.
    let mut second = service.clone();
    assert!(PolledByHand::new(second.ready()).poll());
    assert!(denied.await.is_err());
    // A client that only asks whether it may call keeps the permit, as with any service.
    assert!(!PolledByHand::new(first.ready()).poll());
    drop(second);
    assert!(PolledByHand::new(first.ready()).poll());
}

/// Whatever the reason of the rejection is, and whatever the responder.
#[tokio::test]
async fn no_rejection_keeps_what_the_inner_service_has_reserved() {
    let hello = |_: Http| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) };
    let denied = Networks::new(["10.0.0.9"]).unwrap();
    let limit = || RateLimitLayer::new(PeerIp::new().deny(denied.clone()), denies());
    let closed = limit();
    closed.limiter().close();
    let used_up = limit();
    assert!(used_up.limiter().check(&IpAddr::from([10, 0, 0, 1])).is_allowed());
    let joined = RateLimitLayer::new(Global, allows()).and(used_up.clone());
    let drained = used_up.clone().responder(HttpResponder::new().drain(9, Duration::from_secs(1)));
    macro_rules! blocks_nobody {
        ($layer:expr, $request:expr, $status:expr) => {{
            let limited = ServiceBuilder::new().layer($layer).layer(ConcurrencyLimitLayer::new(1));
            let service = limited.service(service_fn(hello));
            let mut first = service.clone();
            let answer = first.ready().await.unwrap().call($request).await.unwrap();
            assert_eq!(answer.status(), $status);
            let mut second = service.clone();
            assert!(PolledByHand::new(second.ready()).poll(), "{}", $status);
            drop(first);
        }};
    }
    blocks_nobody!(used_up, from("10.0.0.1"), 429);
    blocks_nobody!(joined, from("10.0.0.1"), 429);
    blocks_nobody!(drained, from("10.0.0.1").map(|_| Full::from("body")), 429);
    blocks_nobody!(limit(), get("/"), 500);
    blocks_nobody!(limit(), from("10.0.0.9"), 403);
    blocks_nobody!(closed, from("10.0.0.1"), 503);
}

#[tokio::test]
async fn the_inner_future_is_dropped_when_it_is_ready_and_not_later() {
    let layer = RateLimitLayer::new(Global, allows()).responder(ErrorResponder);
    let service =
        ServiceBuilder::new().layer(layer).layer(ConcurrencyLimitLayer::new(1)).service(Probe::new());
    let (mut first, mut second) = (service.clone(), service);
    let mut call = std::pin::pin!(first.ready().await.unwrap().call(String::new()));
    assert!(call.as_mut().await.is_ok());
    // The future still exists, but the permit of the inner layer has been released.
    assert!(PolledByHand::new(second.ready()).poll());
}

#[tokio::test]
async fn a_service_that_is_not_ready_stays_so_and_wakes_once() {
    let (mut service, mut handle) = tower_test::mock::spawn_with(|mock: tower_test::mock::Mock<(), ()>| {
        RateLimitLayer::new(Global, allows()).responder(ErrorResponder).layer(mock)
    });
    handle.allow(0);
    assert_pending(&mut service);
    handle.allow(1);
    assert!(service.is_woken());
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
}

fn assert_pending<S: Service<()>>(service: &mut tower_test::mock::Spawn<S>) {
    for _ in 0..3 {
        assert!(service.poll_ready().is_pending());
        assert!(!service.is_woken());
    }
}
