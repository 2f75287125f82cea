//! Requests over one connection or many, to one route or many, use the budget of their limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode};
use axum::routing::get;
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{assert_denied, hello, per_ip};
use crate::support::{self, Client1, Client2, Server, VERSIONS, Version, at_once, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_a_burst_passes_and_the_rest_gets_the_time_to_retry() {
    const BURST: usize = 20;
    let mut reported = Vec::new();
    for version in VERSIONS {
        let clock = ManualClock::new();
        // One token is refilled every ten seconds.
        let quota = Quota::per_minute(6).burst(BURST as u64);
        let server = Server::start(hello().layer(per_ip(quota, &clock))).await;

        let answers = at_once(server.address, version, "/", BURST + 10).await;
        let (passed, denied): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.status == StatusCode::OK);
        assert_eq!((passed.len(), denied.len()), (BURST, 10), "{version:?}");
        for answer in &denied {
            assert_denied(answer, "default", (BURST as u64, 200), 10);
        }
        // Each admitted call was charged one unit.
        let mut left: Vec<_> = passed.iter().map(|answer| answer.items("ratelimit")[0].get("r")).collect();
        left.sort_unstable();
        assert_eq!(left, (0..BURST as u64).collect::<Vec<_>>(), "{version:?}");
        for answer in &passed {
            assert_eq!(answer.text(), "hello");
            assert!(!answer.has("retry-after"));
            assert_eq!(answer.header("ratelimit-policy"), format!("\"default\";q={BURST};w=200"));
        }

        let wait = Duration::from_secs(denied[0].retry_after());
        clock.advance(wait - Duration::from_nanos(1));
        let early = support::get(server.address, version, "/").await;
        assert_denied(&early, "default", (BURST as u64, 200), 1);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(support::get(server.address, version, "/").await.status, StatusCode::OK, "{version:?}");
        assert_eq!(
            support::get(server.address, version, "/").await.status,
            StatusCode::TOO_MANY_REQUESTS,
            "{version:?}"
        );
        reported.push((denied[0].reported(), denied[0].body.clone(), early.reported()));
    }
    assert_eq!(reported[0], reported[1], "both versions say the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_retry_after_is_served() {
    for version in VERSIONS {
        // The layer is configured as in an app, with the real clock.
        let app = hello().layer(RateLimitLayer::per_ip(Quota::per_second(1).burst(5)));
        let server = Server::start(app).await;
        let answers = at_once(server.address, version, "/", 15).await;
        let denied: Vec<_> = answers.iter().filter(|answer| answer.status != StatusCode::OK).collect();
        assert_eq!(denied.len(), 10, "{version:?}");
        for answer in denied {
            assert_denied(answer, "default", (5, 5), 1);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(support::get(server.address, version, "/").await.status, StatusCode::OK, "{version:?}");
    }
}

#[tokio::test]
async fn one_connection_is_limited_like_many() {
    let clock = ManualClock::new();
    let server = Server::start(hello().layer(per_ip(Quota::per_minute(3), &clock))).await;
    let mut client = Client1::http1(server.address).await;
    for left in [2, 1, 0] {
        let answer = client.send(request(Method::GET, "/")).await;
        assert_eq!(answer.header("ratelimit"), format!("\"default\";r={left};t={}", 20 * left.max(1)));
    }
    // A denial does not close the connection, and is not charged.
    for _ in 0..50 {
        assert_denied(&client.send(request(Method::GET, "/")).await, "default", (3, 60), 20);
    }
    clock.advance(Duration::from_secs(20));
    assert_eq!(client.send(request(Method::GET, "/")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn one_layer_over_a_thousand_routes_has_one_budget() {
    const ROUTES: usize = 1_000;
    let layer = per_ip(Quota::per_minute(ROUTES as u64 - 1), &ManualClock::new());
    let mut app = Router::new();
    for n in 0..ROUTES {
        app = app.route(&format!("/{n}"), get(|| async { "hello" }));
    }
    let server = Server::start(app.layer(layer.clone())).await;
    let mut client = Client2::http2(server.address).await;
    for n in 0..ROUTES - 1 {
        let answer = client.send(request(Method::GET, &format!("/{n}"))).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.items("ratelimit")[0].get("r") as usize, ROUTES - 2 - n);
    }
    for path in ["/999", "/0", "/500"] {
        let answer = client.send(request(Method::GET, path)).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    assert_eq!(layer.limiter().len(), 1);
}

#[tokio::test]
async fn separate_layers_have_separate_budgets() {
    let clock = ManualClock::new();
    let app = Router::new()
        .route("/a", get(|| async {}).layer(per_ip(Quota::per_minute(1), &clock)))
        .route("/b", get(|| async {}).layer(per_ip(Quota::per_minute(1), &clock)));
    let server = Server::start(app).await;
    for (path, status) in [("/a", 200), ("/b", 200), ("/a", 429), ("/b", 429)] {
        assert_eq!(support::get(server.address, Version::Http1, path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_path_without_a_route_is_limited_too() {
    let server = Server::start(hello().layer(per_ip(Quota::per_minute(1), &ManualClock::new()))).await;
    assert_eq!(support::get(server.address, Version::Http1, "/nowhere").await.status, 404);
    assert_eq!(support::get(server.address, Version::Http1, "/nowhere").await.status, 429);
}

#[tokio::test]
async fn a_limiter_is_shared_between_layers() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(2)));
    let app = Router::new()
        .route("/a", get(|| async {}).layer(RateLimitLayer::with_limiter(Global, limiter.clone()).name("a")))
        .route("/b", get(|| async {}).layer(RateLimitLayer::with_limiter(Global, limiter.clone()).name("b")));
    let server = Server::start(app).await;
    let mut client = Client1::http1(server.address).await;
    let a = client.send(request(Method::GET, "/a")).await;
    let b = client.send(request(Method::GET, "/b")).await;
    assert_eq!(a.items("ratelimit")[0].name, "a");
    assert_eq!((b.items("ratelimit")[0].name.as_str(), b.items("ratelimit")[0].get("r")), ("b", 0));
    assert!(!limiter.check(&()).is_allowed());
    assert_eq!(client.send(request(Method::GET, "/a")).await.status, 429);
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_place_in_the_queue() {
    for version in VERSIONS {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::per_second(1)).queue(2);
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
        let served = Arc::new(AtomicUsize::new(0));
        let handler = {
            let served = served.clone();
            move || async move { served.fetch_add(1, Ordering::SeqCst) + 1 }
        };
        let app = Router::new()
            .route("/", get(async move || handler().await.to_string()))
            .layer(RateLimitLayer::with_limiter(Global, limiter.clone()));
        let server = Server::start(app).await;
        let waiting = async |calls: u64| {
            // Waits until `calls` calls are queued. Each of them adds one second to the wait that a peek reports.
            let wait = Some(Duration::from_secs(calls + 1));
            while limiter.peek(&()).retry_after() != wait {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };

        assert_eq!(support::get(server.address, version, "/").await.text(), "1");
        let spawn = || tokio::spawn(async move { support::get(server.address, version, "/").await });
        let leaves = spawn();
        waiting(1).await;
        let stays = spawn();
        waiting(2).await;
        assert_eq!(support::get(server.address, version, "/").await.status, 429);
        leaves.abort();
        waiting(1).await;
        let comes = spawn();
        waiting(2).await;
        clock.advance(Duration::from_secs(1));
        assert_eq!(stays.await.unwrap().text(), "2", "{version:?}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(comes.await.unwrap().text(), "3", "{version:?}");
        assert_eq!(served.load(Ordering::SeqCst), 3);
    }
}
