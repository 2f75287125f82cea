//! Limits that are switched off by `enabled`.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{Concurrency, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::key::{Global, Header, Networks, PeerIp};
use tower_throttle::middleware::{ResponseBody, Shadow};
use tower_throttle::stats::{CallStats, KeyStats, Timeline, TopKeys};
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

use crate::keys::{Http, ask, at_once, from, get, statuses, with};

#[tokio::test]
async fn a_limit_that_is_not_enabled_admits_everything_and_counts_nothing() {
    let (timeline, top, shadow) = (Timeline::new(), TopKeys::new(), Shadow::on());
    let layer = RateLimitLayer::new(Header::new("x-api-key").unwrap(), at_once(1))
        .cost(|_: &Http| -> u64 { panic!("the cost is not asked for") })
        .timeline(&timeline)
        .enabled(false)
        .on_reject(top.watch(&Header::new("x-api-key").unwrap()));
    let in_shadow = layer.clone().shadow(&shadow);
    for layer in [layer, in_shadow] {
        for _ in 0..3 {
            let answer = ask(&layer, with(get("/"), "x-api-key", "one")).await;
            assert_eq!((answer.status, &*answer.body), (200, "hello"));
            assert!(!answer.headers.contains_key("ratelimit"));
        }
        let stats = layer.stats();
        assert_eq!(
            (stats.name.as_str(), stats.calls, stats.keys),
            ("default", CallStats::default(), KeyStats::default())
        );
        assert!(layer.limiter().is_empty());
    }
    assert!(timeline.recent().iter().all(|(_, second)| second.admitted == 0));
    assert_eq!((top.list().len(), shadow.denied()), (0, 0));
}

#[tokio::test]
async fn a_limit_that_is_not_enabled_needs_no_key() {
    let deny = Networks::new(["192.0.2.0/24"]).unwrap();
    let layer = RateLimitLayer::new(PeerIp::new().deny(deny), at_once(9));
    assert_eq!(statuses!(layer, get("/"), from("192.0.2.7")), [500, 403]);
    let layer = layer.enabled(false);
    assert_eq!(statuses!(layer, get("/"), from("192.0.2.7")), [200, 200]);
    let by_header = RateLimitLayer::new(Header::new("x-api-key").unwrap(), at_once(9));
    let two = || with(with(get("/"), "x-api-key", "a"), "x-api-key", "b");
    assert_eq!(statuses!(by_header, two()), [400]);
    assert_eq!(statuses!(by_header.enabled(false), two()), [200]);
}

#[tokio::test]
async fn a_limit_that_is_not_enabled_neither_queues_nor_holds_a_permit() {
    let queue = RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_hour(1))).enabled(false);
    assert_eq!(statuses!(queue, get("/"), get("/"), get("/")), [200; 3]);
    queue.limiter().close();
    assert_eq!(statuses!(queue, get("/")), [200]);

    let in_progress = RateLimitLayer::new(Global, Concurrency::per_key(1)).enabled(false);
    let service = in_progress.layer(service_fn(hello));
    let held = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(service.oneshot(get("/")).await.unwrap().status(), 200);
    drop(held);
}

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::test]
async fn the_last_call_of_enabled_counts_and_the_type_stays_the_same() {
    let layer = || RateLimitLayer::new(Global, at_once(1));
    for (layer, expected) in [
        (layer(), [200, 429]),
        (layer().enabled(true), [200, 429]),
        (layer().enabled(false), [200, 200]),
        (layer().enabled(false).enabled(true), [200, 429]),
    ] {
        assert_eq!(statuses!(layer, get("/"), get("/")), expected);
    }
}

#[tokio::test]
async fn a_service_that_is_not_http_keeps_its_error_type() {
    let layer = RateLimitLayer::new(Global, at_once(1)).responder(ErrorResponder).enabled(false);
    let service = layer.layer(service_fn(|job: u32| async move { Ok::<_, Infallible>(job) }));
    for job in 0..3 {
        let answer: Result<u32, tower_throttle::middleware::Error<Infallible>> =
            service.clone().oneshot(job).await;
        assert_eq!(answer.unwrap(), job);
    }
}

/// Returns the names of the policies that a response reports.
async fn reported<L>(layer: &L) -> String
where
    L: Layer<tower::util::BoxCloneSyncService<Http, Response<Full<Bytes>>, Infallible>>,
    L::Service: tower::Service<Http, Response = Response<ResponseBody<Full<Bytes>>>>,
    <L::Service as tower::Service<Http>>::Error: std::fmt::Debug,
{
    let answer = ask(layer, get("/")).await;
    let items = answer.headers.get_all("ratelimit").iter().map(|item| item.to_str().unwrap());
    let names: Vec<_> =
        items.map(|item| item.split(';').next().unwrap().trim_matches('"').to_owned()).collect();
    format!("{} {}", answer.status, names.join(" "))
}

#[tokio::test]
async fn before_and_the_policy_is_switched_and_the_others_keep_their_numbers() {
    let limit = |units| RateLimitLayer::new(Global, FixedWindow::new(Quota::per_day(units)));
    let layer = limit(1).enabled(false).and(limit(3)).and(limit(2));
    assert_eq!(reported(&layer).await, "200 default-2 default-3");
    assert_eq!(reported(&layer).await, "200 default-2 default-3");
    assert_eq!(ask(&layer, get("/")).await.status, 429);
    let admitted: Vec<_> =
        layer.stats().into_iter().map(|policy| (policy.name, policy.calls.admitted)).collect();
    assert_eq!(
        admitted,
        [("default".to_owned(), 0), ("default-2".to_owned(), 2), ("default-3".to_owned(), 2)]
    );

    // The second policy of a pair, and one in shadow mode.
    let layer = limit(9).and(limit(1).shadow(&Shadow::on()).enabled(false));
    for _ in 0..3 {
        assert_eq!(reported(&layer).await, "200 default");
    }
    assert_eq!(layer.stats()[1].calls, CallStats::default());
}

#[tokio::test]
async fn on_joined_layers_all_policies_that_are_joined_so_far_are_switched() {
    let limit = |units| RateLimitLayer::new(Global, FixedWindow::new(Quota::per_day(units)));
    let pair = || limit(1).and(RateLimitLayer::new(PeerIp::new(), TokenBucket::new(Quota::per_day(1))));
    let layer = pair().enabled(false).and(limit(2));
    assert_eq!(reported(&layer).await, "200 default-3");
    assert_eq!(reported(&layer).await, "200 default-3");
    assert_eq!(ask(&layer, get("/")).await.status, 429);

    let layer = pair().and(limit(1)).enabled(false);
    for _ in 0..3 {
        assert_eq!(reported(&layer).await, "200 ");
    }
    assert!(layer.stats().iter().all(|policy| policy.calls == CallStats::default()));
    // `true` changes nothing, so no policy that was switched off is switched on again by a later flag.
    assert_eq!(statuses!(layer.enabled(true), from("192.0.2.7"), from("192.0.2.7")), [200, 200]);
    let layer = limit(1).enabled(false).and(limit(3)).enabled(true);
    assert_eq!(statuses!(layer, get("/"), get("/"), get("/"), get("/")), [200, 200, 200, 429]);
    assert_eq!(statuses!(limit(1).and(pair()).enabled(false), get("/"), get("/")), [200, 200]);
}

#[tokio::test]
async fn a_joined_limit_that_is_not_enabled_does_not_queue() {
    let queue =
        RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_hour(1)).max_wait(Duration::from_secs(9)));
    let layer = RateLimitLayer::new(Global, at_once(2)).and(queue.enabled(false));
    assert_eq!(statuses!(layer, get("/"), get("/"), get("/")), [200, 200, 429]);
}
