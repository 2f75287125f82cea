//! Tests of the layer with state in Redis.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_throttle::key::{StoreKey, from_fn};
use tower_throttle::middleware::OnStoreError;
use tower_throttle::{Meter, Quota, RateLimitLayer};
use tower_throttle_redis::{RedisErrorKind, RedisStore};

use crate::support::redis_server::RedisServer;
use crate::{connect, patient};

type Http = Request<Full<Bytes>>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, std::io::Error> {
    Ok(Response::new(Full::from("hello")))
}

fn get(key: &str) -> Http {
    Request::get("/").header("x-api-key", key).body(Full::default()).unwrap()
}

fn key_of(request: &Http) -> Option<String> {
    Some(request.headers()["x-api-key"].to_str().unwrap().to_owned())
}

#[tokio::test]
async fn two_apps_admit_100_of_400() {
    let server = RedisServer::start();
    let limits = || (TokenBucket::new(Quota::per_day(150)), SlidingWindow::new(Quota::per_day(100)));
    let mut services = Vec::new();
    for _ in 0..2 {
        let limiter = connect(&server).await.limiter("api", limits()).build().unwrap();
        services.push(RateLimitLayer::with_limiter(from_fn(key_of), limiter).layer(service_fn(hello)));
    }
    let calls: Vec<_> =
        (0..400).map(|call| tokio::spawn(services[call % 2].clone().oneshot(get("a")))).collect();
    let (mut admitted, mut rejected) = (0, 0);
    for call in calls {
        match call.await.unwrap().unwrap().status().as_u16() {
            200 => admitted += 1,
            429 => rejected += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((admitted, rejected), (100, 300));
}

#[tokio::test]
async fn a_call_is_settled_by_its_response() {
    let server = RedisServer::start();
    let window = FixedWindow::new(Quota::per_day(10));
    let store = connect(&server).await;
    let limiter = store.limiter("api", window).build().unwrap();
    for (estimate, actual, remaining) in [(5, 2, 8), (1, 4, 4)] {
        let layer = RateLimitLayer::with_limiter(from_fn(key_of), limiter.clone())
            .cost(move |_: &Http| estimate)
            .settle(move |_: &Response<Full<Bytes>>| Some(actual));
        let response = layer.layer(service_fn(hello)).oneshot(get("a")).await.unwrap();
        assert_eq!(response.status(), 200);
        // The layer sends the settlement to the server, and does not wait for the reply.
        assert_eq!(store.flush(Duration::from_secs(10)).await, 0);
        let key = StoreKey::Key("a".to_owned());
        assert_eq!(limiter.peek(&key).await.unwrap().remaining(), remaining);
    }
    let units = limiter.stats().units;
    assert_eq!((units.charged, units.refunded, units.uncharged), (3, 3, 0));
}

#[tokio::test]
async fn an_outage_loses_no_response_and_its_charges_are_made_when_it_is_over() {
    let server = std::sync::Arc::new(std::sync::Mutex::new(RedisServer::start()));
    let builder = patient(&server.lock().unwrap()).deadline(Duration::from_millis(500));
    let store = builder.connect().await.unwrap();
    let limiter = store.limiter("api", FixedWindow::new(Quota::per_day(10))).build().unwrap();
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), limiter)
        .settle(|response: &Response<Full<Bytes>>| response.status().is_success().then_some(4));
    let kills = server.clone();
    let service = layer.layer(service_fn(move |request| {
        // The server ends while the call is in progress.
        kills.lock().unwrap().kill();
        hello(request)
    }));
    let response = service.oneshot(get("a")).await.unwrap();
    assert!(response.status() == 200 && response.headers().contains_key("ratelimit"));
    assert_eq!(store.flush(Duration::from_secs(1)).await, 1);
    server.lock().unwrap().restart();
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    let stats = layer.stats();
    assert_eq!((stats.store_errors, stats.store.settle_errors, store.stats().settle_errors), (0, 0, 0));
    assert_eq!((stats.units.charged, stats.units.uncharged), (3, 0));
}

#[tokio::test]
async fn a_meter_settles_a_call_and_charges_units_that_are_counted_later() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limiter = store.limiter("api", FixedWindow::new(Quota::per_day(10))).build().unwrap();
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), limiter.clone()).metered();
    let service = layer.clone().layer(service_fn(hello));
    let meter = Meter::new();
    let mut request = get("a");
    request.extensions_mut().insert(meter.clone());
    meter.add(3);
    drop(service.oneshot(request).await.unwrap());
    std::thread::spawn(move || meter.add(2)).join().unwrap();
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    assert_eq!(limiter.peek(&StoreKey::Key("a".to_owned())).await.unwrap().remaining(), 5);
    // The estimate was one unit.
    assert_eq!(layer.stats().units.charged, 4);
}

#[tokio::test]
async fn a_layer_reports_the_quota_of_the_algorithm_that_decided() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limiter = store.limiter("api", FixedWindow::new(Quota::per_day(2))).build().unwrap();
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), limiter.clone());
    let service = layer.layer(service_fn(hello));
    let reported = async || {
        let response = service.clone().oneshot(get("a")).await.unwrap();
        let field = |name| response.headers()[name].to_str().unwrap().to_owned();
        (response.status().as_u16(), field("ratelimit-policy"), field("ratelimit"))
    };
    let (status, policy, limit) = reported().await;
    assert!(status == 200 && policy.contains("q=2;") && limit.contains("r=1;"), "{policy}, {limit}");
    limiter.replace(FixedWindow::new(Quota::per_day(9)));
    let (status, policy, limit) = reported().await;
    assert!(status == 200 && policy.contains("q=9;") && limit.contains("r=7;"), "{policy}, {limit}");
    limiter.replace(FixedWindow::new(Quota::per_day(1)));
    // The second denial is remembered, and made without a trip.
    for _ in 0..2 {
        let (status, policy, limit) = reported().await;
        assert!(status == 429 && policy.contains("q=1;") && limit.contains("r=0;"), "{policy}, {limit}");
    }
    let calls = limiter.stats().calls;
    assert_eq!((calls.admitted, calls.denied, calls.ended()), (2, 2, 4));
    assert_eq!(layer.stats().calls, calls);
}

#[tokio::test]
async fn a_closed_limiter_is_503_and_only_in_its_process() {
    let server = RedisServer::start();
    let [one, other] = [connect(&server).await, connect(&server).await]
        .map(|store| store.limiter("api", FixedWindow::new(Quota::per_day(2))).build().unwrap());
    let [closed, open] = [&one, &other].map(|limiter| {
        RateLimitLayer::with_limiter(from_fn(key_of), limiter.clone()).layer(service_fn(hello))
    });
    one.close();
    assert_eq!(closed.oneshot(get("a")).await.unwrap().status(), 503);
    assert_eq!(open.oneshot(get("a")).await.unwrap().status(), 200);
    assert_eq!((one.stats().calls.closed, other.stats().calls.admitted), (1, 1));
}

#[tokio::test]
async fn a_server_that_is_gone_is_503_or_no_limit() {
    let mut server = RedisServer::start();
    let store = patient(&server).deadline(Duration::from_millis(50)).connect().await.unwrap();
    let window = FixedWindow::new(Quota::per_day(10));
    let limiter = store.limiter("api", window).build().unwrap();
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), limiter);
    let allow = layer.clone().on_store_error(OnStoreError::Allow).layer(service_fn(hello));
    let reject = layer.layer(service_fn(hello));
    assert!(allow.clone().oneshot(get("a")).await.unwrap().headers().contains_key("ratelimit"));
    server.kill();
    for _ in 0..20 {
        assert_eq!(reject.clone().oneshot(get("a")).await.unwrap().status(), 503);
        let answer = allow.clone().oneshot(get("a")).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("ratelimit")), (200, false));
    }
}

#[tokio::test]
async fn a_service_that_connects_lazily_starts_without_redis_and_is_limited_when_redis_starts() {
    let mut server = RedisServer::start();
    server.kill();
    let builder = || RedisStore::builder(&server.url());
    assert_eq!(builder().connect().await.unwrap_err().kind(), RedisErrorKind::Unreachable);
    let [allow, reject] = [OnStoreError::Allow, OnStoreError::Reject].map(|treatment| {
        let window = FixedWindow::new(Quota::per_day(2));
        let limiter = builder().connect_lazily().unwrap().limiter("api", window).build().unwrap();
        let layer = RateLimitLayer::with_limiter(from_fn(key_of), limiter).on_store_error(treatment);
        layer.layer(service_fn(hello))
    });
    for _ in 0..20 {
        assert_eq!(allow.clone().oneshot(get("a")).await.unwrap().status(), 200);
        assert_eq!(reject.clone().oneshot(get("a")).await.unwrap().status(), 503);
    }
    server.restart();
    let start = std::time::Instant::now();
    while allow.clone().oneshot(get("a")).await.unwrap().status() != 429 {
        assert!(start.elapsed() < Duration::from_secs(10), "the service is still not limited");
    }
}

#[tokio::test]
async fn a_wrong_password_is_an_error_of_connect_and_is_no_limit_after_connecting_lazily() {
    let server = RedisServer::with(&["--requirepass", "secret"]);
    let builder = || RedisStore::builder(&server.url().replace("//", "//:wrong@"));
    assert!(builder().connect().await.is_err());
    let store = builder().connect_lazily().unwrap();
    let limiter = store.limiter("api", FixedWindow::new(Quota::per_day(2)));
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), limiter.build().unwrap());
    let service = layer.on_store_error(OnStoreError::Allow).layer(service_fn(hello));
    for _ in 0..20 {
        assert_eq!(service.clone().oneshot(get("a")).await.unwrap().status(), 200);
    }
    assert!(store.stats().is_circuit_open);
}
