//! Joined layers with limits on different keys, which are decided together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};
use tower_throttle::key::{Global, StoreKey, from_fn};
use tower_throttle::middleware::{OnStoreError, Rejection, Shadow};
use tower_throttle::store::redis::RedisStore;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::redis_server::{RedisCluster, RedisServer};
use crate::{connect, patient};

type Http = Request<Full<Bytes>>;
type App = BoxCloneService<Http, (u16, HeaderMap), BoxError>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, BoxError> {
    Ok(Response::new(Full::from("hello")))
}

fn get(key: &str) -> Http {
    Request::get("/").header("x-api-key", key).body(Full::default()).unwrap()
}

fn key_of(request: &Http) -> Option<String> {
    Some(request.headers()["x-api-key"].to_str().unwrap().to_owned())
}

macro_rules! limiter {
    ($store:expr, $name:expr, $algorithm:expr) => {
        RateLimiter::builder($algorithm).name($name).store($store).build().unwrap()
    };
}

/// A layer with a limit for each caller.
macro_rules! each {
    ($store:expr, $algorithm:expr) => {
        RateLimitLayer::with_limiter(from_fn(key_of), limiter!($store.clone(), "each", $algorithm))
            .name("each")
    };
}

/// A layer with a limit for all callers.
macro_rules! all {
    ($store:expr, $algorithm:expr) => {
        RateLimitLayer::with_limiter(Global, limiter!($store.clone(), "all", $algorithm)).name("all")
    };
}

macro_rules! app {
    ($layer:expr) => {
        App::new(
            $layer.layer(service_fn(hello)).map_response(|response: Response<_>| {
                (response.status().as_u16(), response.headers().clone())
            }),
        )
    };
}

async fn status(app: &App, key: &str) -> u16 {
    app.clone().oneshot(get(key)).await.unwrap().0
}

fn day(limit: u64) -> Quota {
    Quota::per_day(limit)
}

#[tokio::test]
async fn one_script_decides_a_request_and_a_denial_charges_nothing() {
    let server = RedisServer::start();
    let store = patient(&server).remember_denials(Duration::ZERO).connect().await.unwrap();
    let layer = each!(store, TokenBucket::new(day(5)))
        .and(all!(store, (SlidingWindow::new(day(8)), FixedWindow::new(day(100)))));
    let app = app!(layer.clone());
    assert_eq!(status(&app, "a").await, 200, "the server learns the script");
    let before = (server.calls_of("evalsha"), server.calls_of("eval"));
    let mut admitted = vec![1, 0, 0];
    for (caller, key) in [(0, "a"), (1, "b"), (2, "c")] {
        for _ in 0..6 {
            let (status, headers) = app.clone().oneshot(get(key)).await.unwrap();
            assert!(status == 200 || status == 429, "{status}");
            admitted[caller] += u64::from(status == 200);
            let limits: Vec<_> = headers.get_all("ratelimit").iter().collect();
            assert_eq!(limits.len(), 2, "both limits are reported: {limits:?}");
        }
    }
    assert_eq!(admitted, [5, 3, 0]);
    let after = (server.calls_of("evalsha"), server.calls_of("eval"));
    assert_eq!((after.0 - before.0, after.1 - before.1), (18, 0), "one trip for each request");
    let [each, all] = &layer.stats()[..] else { panic!() };
    assert_eq!((each.calls.admitted, each.calls.denied, each.calls.denied_by_others), (8, 2, 9));
    assert_eq!((all.calls.admitted, all.calls.denied, all.calls.denied_by_others), (8, 9, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_apps_admit_exactly_what_both_limits_allow() {
    let server = RedisServer::start();
    macro_rules! exact {
        ($prefix:expr, $each:expr, $all:expr) => {{
            let (mut apps, mut limiters) = (Vec::new(), None);
            for _ in 0..2 {
                let store = patient(&server).prefix($prefix).remember_denials(Duration::ZERO);
                let store = store.connect().await.unwrap();
                let limits = (limiter!(store.clone(), "each", $each), limiter!(store, "all", $all));
                let each = RateLimitLayer::with_limiter(from_fn(key_of), limits.0.clone());
                let layer = each.and(RateLimitLayer::with_limiter(Global, limits.1.clone()).name("all"));
                let app: axum::Router =
                    axum::Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(layer);
                apps.push(app);
                limiters = Some(limits);
            }
            let get = |call: usize| {
                let key = format!("key-{}", call % 10);
                Request::get("/").header("x-api-key", key).body(axum::body::Body::empty()).unwrap()
            };
            let calls: Vec<_> =
                (0..400).map(|call| tokio::spawn(apps[call / 10 % 2].clone().oneshot(get(call)))).collect();
            let mut admitted = 0;
            for call in calls {
                match call.await.unwrap().unwrap().status().as_u16() {
                    200 => admitted += 1,
                    429 => {}
                    other => panic!("{other}"),
                }
            }
            let (each, all) = limiters.unwrap();
            let mut used = 0;
            for key in 0..10 {
                used += 15 - each.peek(&StoreKey::Key(format!("key-{key}"))).await.unwrap().remaining();
            }
            let left = all.peek(&StoreKey::Key(())).await.unwrap().remaining();
            assert_eq!((admitted, used, left), (100, 100, 0), "{}", $prefix);
        }};
    }
    fn key_of(request: &axum::extract::Request) -> Option<String> {
        Some(request.headers()["x-api-key"].to_str().unwrap().to_owned())
    }
    exact!("script", FixedWindow::new(day(15)), TokenBucket::new(day(100)));
    exact!(
        "windows",
        SlidingWindow::new(day(15)),
        (SlidingWindow::new(day(100)), FixedWindow::new(day(500)))
    );
    // A `SlidingLog` has no script.
    exact!("swap", SlidingLog::new(day(15)), FixedWindow::new(day(100)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_the_keys_need_one_slot() {
    let cluster = RedisCluster::start();
    let builder = || RedisStore::cluster(cluster.urls()).deadline(Duration::from_secs(10));
    let layer = |store: &RedisStore| {
        each!(store, FixedWindow::new(day(5))).and(all!(store, FixedWindow::new(day(7))))
    };
    let errors = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&errors);
    let observed =
        layer(&builder().connect().await.unwrap()).on_reject(move |rejection: &Rejection<'_>, _: &Http| {
            if let Rejection::Store(error) = rejection {
                seen.lock().unwrap().push(format!("{error:?}"));
            }
        });
    assert_eq!(status(&app!(observed), "a").await, 503);
    let errors = errors.lock().unwrap().clone();
    assert!(errors.len() == 1 && errors[0].contains("one_slot"), "{errors:?}");
    let app = app!(layer(&builder().one_slot("app").prefix("slot").connect().await.unwrap()));
    let trips = || cluster.nodes.iter().map(|node| node.calls_of("evalsha")).sum::<u64>();
    assert_eq!(status(&app, "a").await, 200);
    let (before, mut admitted) = (trips(), 1);
    for call in 0..11 {
        admitted += u64::from(status(&app, if call < 5 { "a" } else { "b" }).await == 200);
    }
    assert_eq!(admitted, 7);
    assert!(trips() - before <= 11, "one trip for each request");
    // All limits of one caller are in one slot, even without this setting.
    let store = builder().prefix("own").connect().await.unwrap();
    let layer = each!(store, FixedWindow::new(day(5)));
    let writes =
        RateLimitLayer::with_limiter(from_fn(key_of), limiter!(store, "writes", FixedWindow::new(day(2))));
    let app = app!(layer.and(writes));
    assert_eq!([status(&app, "a").await, status(&app, "a").await, status(&app, "a").await], [200, 200, 429]);
}

#[tokio::test]
async fn remembered_denials_cost_no_trips() {
    let server = RedisServer::start();
    let store = patient(&server).remember_denials(Duration::from_secs(600)).connect().await.unwrap();
    let layer = each!(store, FixedWindow::new(day(1))).and(all!(store, FixedWindow::new(day(3))));
    let app = app!(layer.clone());
    assert_eq!([status(&app, "a").await, status(&app, "a").await], [200, 429]);
    let before = server.calls_of("evalsha");
    for _ in 0..10 {
        assert_eq!(status(&app, "a").await, 429);
    }
    assert_eq!(server.calls_of("evalsha"), before);
    let [each, all] = &layer.stats()[..] else { panic!() };
    assert_eq!((each.calls.denied, all.calls.denied_by_others, all.calls.ended()), (11, 11, 12));
    assert_eq!(status(&app, "b").await, 200, "another caller is not affected");
}

#[tokio::test]
async fn shadow_mode_adds_no_trip_and_denies_nothing() {
    let server = RedisServer::start();
    let (store, shadow) = (connect(&server).await, Shadow::new());
    let layer =
        each!(store, FixedWindow::new(day(5))).and(all!(store, FixedWindow::new(day(2))).shadow(&shadow));
    let app = app!(layer.clone());
    assert_eq!(status(&app, "a").await, 200);
    let before = server.calls_of("evalsha");
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(status(&app, "a").await);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    assert_eq!(server.calls_of("evalsha") - before, 5);
    assert_eq!(shadow.denied(), 3);
    let all = &layer.stats()[1].calls;
    assert_eq!((all.admitted, all.shadow_denied, all.denied), (2, 3, 0));
}

#[tokio::test]
async fn policies_of_one_limiter_and_key_are_charged_together() {
    let server = RedisServer::start();
    let limiter = limiter!(connect(&server).await, "each", FixedWindow::new(day(5)));
    let layer = || RateLimitLayer::with_limiter(from_fn(key_of), limiter.clone());
    let app = app!(layer().and(layer().cost(|_: &Http| 2)));
    assert_eq!([status(&app, "a").await, status(&app, "a").await], [200, 429]);
    assert_eq!(limiter.peek(&StoreKey::Key("a".to_owned())).await.unwrap().remaining(), 2);
}

#[tokio::test]
async fn a_bucket_queues_requests_and_a_cancelled_one_gives_all_back() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = limiter!(store.clone(), "all", FixedWindow::new(day(10)));
    let bucket = || LeakyBucket::new(Quota::per(1, Duration::from_millis(300)).unwrap()).queue(5);
    let layer = each!(store, bucket()).and(RateLimitLayer::with_limiter(Global, window.clone()).name("all"));
    let app = app!(layer.clone());
    let start = std::time::Instant::now();
    assert_eq!(status(&app, "a").await, 200);
    let cancelled = tokio::time::timeout(Duration::from_millis(100), status(&app, "a")).await;
    assert!(cancelled.is_err(), "it is queued");
    let left = async || window.peek(&StoreKey::Key(())).await.unwrap().remaining();
    let patience = std::time::Instant::now();
    while left().await != 9 {
        assert!(patience.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(status(&app, "a").await, 200);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    assert_eq!(left().await, 8);
    let calls = &layer.stats()[0].calls;
    assert_eq!((calls.admitted, calls.queued, calls.cancelled), (2, 1, 1));
    // In joined layers with Redis, a window cannot queue requests.
    let queued = FixedWindow::new(day(1)).queue(3);
    let app = app!(
        RateLimitLayer::with_limiter(Global, limiter!(store.clone(), "queued", queued))
            .and(each!(store, bucket()))
    );
    assert_eq!(status(&app, "b").await, 503);
}

#[tokio::test]
async fn a_request_that_another_limit_denies_was_not_queued() {
    let server = RedisServer::start();
    let store = patient(&server).remember_denials(Duration::ZERO).connect().await.unwrap();
    let bucket = LeakyBucket::new(Quota::per_hour(1)).queue(5);
    let layer = each!(store, bucket).and(all!(store, FixedWindow::new(day(1))));
    let app = app!(layer.clone());
    assert_eq!([status(&app, "a").await, status(&app, "a").await], [200, 429]);
    let calls = &layer.stats()[0].calls;
    assert_eq!((calls.admitted, calls.queued, calls.denied_by_others), (1, 0, 1));
}

#[tokio::test]
async fn a_request_is_settled_by_its_response() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = limiter!(store.clone(), "each", FixedWindow::new(day(10)));
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), window.clone())
        .cost(|_: &Http| 5)
        .settle(|_: &Response<Full<Bytes>>| Some(2));
    let app = app!(layer.and(all!(store, FixedWindow::new(day(7)))));
    assert_eq!(status(&app, "a").await, 200);
    let start = std::time::Instant::now();
    while window.peek(&StoreKey::Key("a".to_owned())).await.unwrap().remaining() != 8 {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_503_or_no_limit_or_the_fallbacks() {
    let mut server = RedisServer::start();
    let store = patient(&server).deadline(Duration::from_millis(50)).connect().await.unwrap();
    let window = |limit| FixedWindow::new(day(limit));
    let layer = each!(store, window(5)).and(all!(store, window(7)));
    let allow = each!(store, window(5)).on_store_error(OnStoreError::Allow);
    let (reject, half) = (app!(layer.clone()), app!(allow.clone().and(all!(store, window(7)))));
    let allow = app!(allow.and(all!(store, window(7)).on_store_error(OnStoreError::Allow)));
    let local = |limit| store.clone().fallback(RateLimiter::new(window(limit)));
    let local_each = RateLimitLayer::with_limiter(from_fn(key_of), limiter!(local(2), "each", window(5)));
    let local_all = RateLimitLayer::with_limiter(Global, limiter!(local(3), "all", window(7))).name("all");
    let local = local_each.and(local_all);
    let fallback = app!(local.clone());
    assert_eq!([status(&reject, "a").await, status(&fallback, "a").await], [200, 200]);
    server.kill();
    for _ in 0..10 {
        assert_eq!(
            [status(&reject, "a").await, status(&half, "a").await, status(&allow, "a").await],
            [503, 503, 200]
        );
    }
    let mut statuses = Vec::new();
    for key in ["a", "a", "a", "b", "b"] {
        statuses.push(status(&fallback, key).await);
    }
    assert_eq!(statuses, [200, 200, 429, 200, 429]);
    let [each, all] = local.stats().try_into().unwrap();
    assert_eq!((each.calls.admitted, each.calls.denied, each.calls.denied_by_others), (4, 1, 1));
    assert_eq!((all.calls.admitted, all.calls.denied, all.calls.denied_by_others), (4, 1, 1));
    assert_eq!(layer.stats()[1].store_errors, 10);
}
