//! Reports of several limits to clients. Each policy is reported once, with a name of its own, and the longest wait is
//! reported.

use std::collections::HashSet;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tower::ServiceExt;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{Answer, Item, Random};

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

async fn ask(app: &Router) -> Answer {
    Answer::read(app.clone().oneshot(Request::new(Body::empty())).await.unwrap()).await
}

/// Returns the name, quota and window of each policy, in order.
fn policies(answer: &Answer) -> Vec<(String, u64, u64)> {
    let items = answer.items("ratelimit-policy").into_iter();
    let policies: Vec<_> = items.map(|item| (item.name.clone(), item.get("q"), item.get("w"))).collect();
    let names: HashSet<_> = policies.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), policies.len(), "a name twice: {answer:?}");
    policies
}

/// Returns the name, the remaining units, and the window of each reported limit.
fn left(answer: &Answer) -> Vec<(String, u64, Option<u64>)> {
    let items = answer.items("ratelimit").into_iter();
    items.map(|item| (item.name.clone(), item.get("r"), item.parameters.get("t").copied())).collect()
}

fn violated(answer: &Answer) -> Vec<String> {
    let violated = &answer.json()["violated-policies"];
    violated.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[cfg(feature = "axum")]
fn named<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

#[tokio::test]
async fn a_tuple_reports_all_its_limits_and_the_state_of_the_nearest() {
    let clock = ManualClock::new();
    let three = (
        TokenBucket::new(Quota::per_second(4)),
        FixedWindow::new(Quota::per_minute(6)),
        SlidingLog::new(Quota::per_hour(9)),
    );
    let layer = RateLimitLayer::with_limiter(Global, limiter(three, &clock)).name("api");
    let app = app().layer(layer);
    let all =
        [("api", 4, 1), ("api-2", 6, 60), ("api-3", 9, 3_600)].map(|(name, q, w)| (name.to_owned(), q, w));
    for remains in [3, 2, 1] {
        let answer = ask(&app).await;
        assert_eq!(answer.status, 200);
        assert_eq!(policies(&answer), all);
        assert_eq!(left(&answer), [("api".to_owned(), remains, Some(1))]);
    }
    clock.advance(Duration::from_secs(1));
    for remains in [2, 1, 0] {
        let answer = ask(&app).await;
        assert_eq!(policies(&answer), all);
        // Three of the six units of the minute were used a second ago.
        assert_eq!(left(&answer), [("api-2".to_owned(), remains, Some(59))]);
    }
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 59));
    assert_eq!(policies(&answer), all);
    assert_eq!(left(&answer), [("api-2".to_owned(), 0, Some(59))]);
    assert_eq!(violated(&answer), ["api-2"]);
    clock.advance(Duration::from_secs(59));
    for _ in 0..3 {
        assert_eq!(ask(&app).await.status, 200);
    }
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 3_540));
    assert_eq!(left(&answer), [("api-3".to_owned(), 0, Some(3_540))]);
    clock.advance(Duration::from_secs(3_540));
    assert_eq!(ask(&app).await.status, 200);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn joined_layers_each_report_their_own_limit_under_their_own_name() {
    use crate::support::{self, Server, Version};
    use tower_throttle::key::PeerIp;

    let clock = ManualClock::new();
    let (ip, all) = (
        limiter(TokenBucket::new(Quota::per_second(3)), &clock),
        limiter(FixedWindow::new(Quota::per_minute(5)), &clock),
    );
    let by_ip = RateLimitLayer::with_limiter(PeerIp::new(), ip.clone()).name("per ip");
    let layers = by_ip.and(RateLimitLayer::with_limiter(Global, all.clone()).name("all"));
    let server = Server::start(app().layer(layers)).await;
    let call = async || support::get(server.address, Version::Http1, "/").await;
    let both = [("per ip", 3, 1), ("all", 5, 60)].map(|(name, q, w)| (name.to_owned(), q, w));
    let of_both = |ip: u64, t_ip: u64, all: u64, t_all: u64| {
        [("per ip".to_owned(), ip, Some(t_ip)), ("all".to_owned(), all, Some(t_all))]
    };
    for n in 1..=3 {
        let answer = call().await;
        assert_eq!((answer.status.as_u16(), policies(&answer)), (200, both.to_vec()));
        assert_eq!(left(&answer), of_both(3 - n, 1, 5 - n, 60));
    }
    // The address has no units left, and the limit of all callers has some. Each limit is reported with its own state.
    let answer = call().await;
    assert_eq!((answer.status.as_u16(), policies(&answer)), (429, both.to_vec()));
    assert_eq!(left(&answer), of_both(0, 1, 2, 60));
    assert_eq!((answer.retry_after(), violated(&answer)), (1, named(["per ip"])));
    clock.advance(Duration::from_secs(1));
    assert_eq!(left(&call().await), of_both(2, 1, 1, 59));
    assert_eq!(left(&call().await), of_both(1, 1, 0, 59));
    let answer = call().await;
    assert_eq!((answer.status.as_u16(), answer.retry_after(), violated(&answer)), (429, 59, named(["all"])));
    assert!(ip.check_n(&std::net::IpAddr::from([127, 0, 0, 1]), 0).is_allowed());
    // Both limits deny the request. The rejection reports the longest wait, and names both limits.
    let layers =
        RateLimitLayer::with_limiter(Global, limiter(FixedWindow::new(Quota::per_minute(1)), &clock))
            .name("a")
            .and(
                RateLimitLayer::with_limiter(Global, limiter(FixedWindow::new(Quota::per_hour(1)), &clock))
                    .name("b"),
            );
    let app = app().layer(layers);
    assert_eq!(ask(&app).await.status, 200);
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 3_600));
    assert_eq!(violated(&answer), ["a", "b"]);
}

#[tokio::test]
async fn policies_without_a_name_are_numbered_however_they_are_joined() {
    let quota = |limit| TokenBucket::new(Quota::per_minute(limit));
    let layer = |limit| RateLimitLayer::new(Global, quota(limit));
    let pair = |limit| RateLimitLayer::new(Global, (quota(limit), quota(limit + 1)));
    let apps = [
        app().layer(layer(1).and(layer(2)).and(layer(3)).and(layer(4))),
        app().layer(layer(1).and(layer(2).and(layer(3).and(layer(4))))),
        app().layer(layer(1).and(layer(2)).and(layer(3).and(layer(4)))),
        app().layer(pair(1).and(pair(3))),
        app().layer(layer(1).and(pair(2)).and(layer(4))),
        app().layer(layer(1).and(pair(2).and(layer(4)))),
    ];
    for app in apps {
        let reported = policies(&ask(&app).await);
        let expected = [("default", 1), ("default-2", 2), ("default-3", 3), ("default-4", 4)];
        assert_eq!(reported, expected.map(|(name, q)| (name.to_owned(), q, 60)));
    }
}

#[tokio::test]
async fn no_name_appears_twice() {
    let long = "x".repeat(256);
    let taken = format!("{}-2", "x".repeat(254));
    let cases: [([&str; 4], [&str; 4]); 6] = [
        (["x", "x", "x", "x"], ["x", "x-2", "x-3", "x-4"]),
        (["x", "x-2", "x", "y"], ["x", "x-2", "x-3", "y"]),
        (["x-2", "x", "x", "x-2"], ["x-2", "x", "x-3", "x-2-2"]),
        ([&long, &long, "y", "y"], [&long, &taken, "y", "y-2"]),
        ([&long, &taken, "y", "default"], [&long, &taken, "y", "default"]),
        (["a\"b", "a\"b", "a\\", "a\\"], ["a\"b", "a\"b-2", "a\\", "a\\-2"]),
    ];
    for (given, reported) in cases {
        let layer = |at: usize| {
            RateLimitLayer::new(Global, TokenBucket::new(Quota::per_minute(at as u64 + 1))).name(given[at])
        };
        let app = app().layer(layer(0).and(layer(1)).and(layer(2)).and(layer(3)));
        let answer = ask(&app).await;
        let names: Vec<_> = policies(&answer).into_iter().map(|(name, q, _)| (name, q)).collect();
        let numbered = |at: usize| (reported[at].to_owned(), at as u64 + 1);
        assert_eq!(names, [0, 1, 2, 3].map(numbered), "{given:?}");
        let remains: Vec<_> = left(&answer).into_iter().map(|(name, r, _)| (name, r + 1)).collect();
        assert_eq!(remains, names);
    }
}

/// Asserts that a call that waits for the reported time is admitted, and that a call a second earlier is not.
async fn obeyed<A: Algorithm, B: Algorithm>(rules: impl Fn(Quota, Quota) -> (A, B)) {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut quota = || {
            let period = Duration::from_millis(1 + random.below(100_000));
            Quota::per(1 + random.below(6), period).unwrap()
        };
        let (a, b) = rules(quota(), quota());
        let clock = ManualClock::new();
        let apps = [
            app().layer(
                RateLimitLayer::with_limiter(Global, limiter(a.clone(), &clock))
                    .and(RateLimitLayer::with_limiter(Global, limiter(b.clone(), &clock))),
            ),
            app().layer(RateLimitLayer::with_limiter(Global, limiter((a.clone(), b.clone()), &clock))),
        ];
        for _ in 0..30 {
            clock.advance(Duration::from_millis(random.below(2_000)));
            let answers = [ask(&apps[0]).await, ask(&apps[1]).await];
            assert_eq!(answers[0].status, answers[1].status, "seed {seed}: {a:?}, {b:?}");
            if answers[0].status == 200 {
                continue;
            }
            let waits = answers.each_ref().map(Answer::retry_after);
            assert_eq!(waits[0], waits[1], "seed {seed}");
            if waits[0] > 1 {
                clock.advance(Duration::from_secs(waits[0] - 1));
                assert_eq!(ask(&apps[0]).await.status, 429, "seed {seed}: {a:?}, {b:?}");
                assert_eq!(ask(&apps[1]).await.status, 429, "seed {seed}: {a:?}, {b:?}");
            }
            clock.advance(Duration::from_secs(waits[0].min(1)));
            assert_eq!(ask(&apps[0]).await.status, 200, "seed {seed}: {a:?}, {b:?}");
            assert_eq!(ask(&apps[1]).await.status, 200, "seed {seed}: {a:?}, {b:?}");
        }
    }
}

#[tokio::test]
async fn a_wait_that_is_obeyed_ends_with_an_admission() {
    obeyed(|a, b| (TokenBucket::new(a), FixedWindow::new(b))).await;
    obeyed(|a, b| (SlidingWindow::new(a), SlidingLog::new(b))).await;
    obeyed(|a, b| (SlidingCounter::new(a), TokenBucket::new(b))).await;
    obeyed(|a, b| (FixedWindow::new(a).aligned(), LeakyBucket::new(b).queue(0))).await;
}

#[tokio::test]
async fn a_cost_that_fits_one_limit_only_gets_no_wait() {
    let clock = ManualClock::new();
    let small = limiter(FixedWindow::new(Quota::per_minute(2)), &clock);
    let large = limiter(FixedWindow::new(Quota::per_minute(9)), &clock);
    let five = |_: &Request<Body>| 5_u64;
    let layers = RateLimitLayer::with_limiter(Global, large.clone())
        .cost(five)
        .and(RateLimitLayer::with_limiter(Global, small).cost(five).name("small"));
    let app = app().layer(layers);
    assert!(large.check_n(&(), 9).is_allowed());
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), answer.has("retry-after")), (429, false), "{answer:?}");
    assert_eq!(left(&answer), [("default".to_owned(), 0, Some(60)), ("small".to_owned(), 2, None)]);
    let answer = ask(&app).await;
    assert_eq!(policies(&answer).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_queued_call_reports_both_limits() {
    let line = LeakyBucket::new(Quota::per_second(10)).queue(3);
    let layers = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_minute(60)))
        .name("budget")
        .and(RateLimitLayer::new(Global, line).name("line"));
    let app = app().layer(layers);
    let calls = tokio::join!(ask(&app), ask(&app), ask(&app));
    for (n, answer) in [calls.0, calls.1, calls.2].iter().enumerate() {
        assert_eq!(answer.status, 200);
        let names: Vec<_> = left(answer).into_iter().map(|(name, r, _)| (name, r)).collect();
        assert_eq!(names[0], ("budget".to_owned(), 59 - n as u64));
        assert_eq!(names[1].0, "line");
        assert_eq!(policies(answer).len(), 2);
    }
}

#[tokio::test]
async fn a_layer_that_does_not_limit_a_request_reports_nothing() {
    let clock = ManualClock::new();
    let window = |limit| limiter(FixedWindow::new(Quota::per_minute(limit)), &clock);
    let nobody = from_fn(|_: &Request<Body>| None::<()>);
    let layer = |limit| RateLimitLayer::with_limiter(Global, window(limit));
    let app_of_one = app().layer(RateLimitLayer::with_limiter(nobody, window(1)).and(layer(2)).and(layer(3)));
    for (status, two, three) in [(200, 1, 2), (200, 0, 1), (429, 0, 1)] {
        let answer = ask(&app_of_one).await;
        assert_eq!(answer.status, status);
        assert_eq!(policies(&answer), [("default-2".to_owned(), 2, 60), ("default-3".to_owned(), 3, 60)]);
        let reported: Vec<_> = left(&answer).into_iter().map(|(name, r, _)| (name, r)).collect();
        assert_eq!(reported, [("default-2".to_owned(), two), ("default-3".to_owned(), three)]);
    }
    let app_of_none = app().layer(
        RateLimitLayer::with_limiter(nobody, window(1)).and(RateLimitLayer::with_limiter(nobody, window(1))),
    );
    for _ in 0..3 {
        let answer = ask(&app_of_none).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
    }
}

#[test]
fn an_item_is_read_as_it_is_written() {
    // This is a test of the helper that the other tests use.
    let item = Item::read(r#""a\"b";q=1;w=2"#);
    assert_eq!((item.name.as_str(), item.get("q"), item.get("w")), ("a\"b", 1, 2));
}
