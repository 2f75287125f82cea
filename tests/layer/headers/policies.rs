//! Each limit reports its state under a name of its own.

use std::time::Duration;

use tower_throttle::algorithm::{FixedWindow, SlidingLog, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{app, ask, left, limiter, policies};
use crate::support::{Answer, Item};

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
async fn nested_layers_of_one_name_are_all_reported() {
    let pair =
        |limit| (TokenBucket::new(Quota::per_minute(limit)), TokenBucket::new(Quota::per_minute(limit + 1)));
    let layer = |limit| RateLimitLayer::new(Global, TokenBucket::new(Quota::per_minute(limit)));
    // The last layer is the outermost, whose fields are added last.
    let app = app().layer(layer(1)).layer(RateLimitLayer::new(Global, pair(2))).layer(layer(4).name("other"));
    let answer = ask(&app.layer(layer(5).and(layer(6).hidden()))).await;
    let expected = [("default", 1), ("default-2", 2), ("default-3", 3), ("other", 4), ("default-4", 5)];
    assert_eq!(policies(&answer), expected.map(|(name, q)| (name.to_owned(), q, 60)));
    let remains: Vec<_> = left(&answer).into_iter().map(|(name, r, _)| (name, r)).collect();
    let expected = [("default", 0), ("default-2", 1), ("other", 3), ("default-4", 4)];
    assert_eq!(remains, expected.map(|(name, r)| (name.to_owned(), r)));
}

/// Only the 429 of the inner layer has the outer one beside it. The outer one's own has no number.
#[tokio::test]
async fn a_429_of_nested_layers_without_names_shows_which_of_them_it_is_of() {
    let layer = |limit| RateLimitLayer::new(Global, TokenBucket::new(Quota::per_minute(limit)));
    let app = app().layer(layer(1)).layer(layer(2));
    let (inner, outer) = (("default".to_owned(), 1, 60), ("default-2".to_owned(), 2, 60));
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), policies(&answer)), (200, vec![inner.clone(), outer.clone()]));
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), policies(&answer)), (429, vec![inner, outer]));
    assert_eq!(violated(&answer), ["default"]);
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), policies(&answer)), (429, vec![("default".to_owned(), 2, 60)]));
    assert_eq!(violated(&answer), ["default"]);
}

#[tokio::test]
async fn the_name_of_a_limiter_is_the_name_of_its_policy_unless_the_layer_has_another() {
    let named = |name: &str| RateLimiter::builder(TokenBucket::new(Quota::per_minute(9))).name(name).build();
    let layer = |name: &str| RateLimitLayer::with_limiter(Global, named(name));
    let long = "x".repeat(257);
    for (layer, expected) in [
        (layer("api"), "api"),
        (layer("api").name("own"), "own"),
        // Names that no header field can carry.
        (layer("ä"), "default"),
        (layer(""), "default"),
        (layer(&long), "default"),
    ] {
        let answer = ask(&app().layer(layer)).await;
        assert_eq!(policies(&answer), [(expected.to_owned(), 9, 60)]);
    }
    let answer = ask(&app().layer(layer("api").and(layer("api")))).await;
    assert_eq!(policies(&answer).into_iter().map(|(name, ..)| name).collect::<Vec<_>>(), ["api", "api-2"]);
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

#[test]
fn an_item_is_read_as_it_is_written() {
    // This is a test of the helper that the other tests use.
    let item = Item::read(r#""a\"b";q=1;w=2"#);
    assert_eq!((item.name.as_str(), item.get("q"), item.get("w")), ("a\"b", 1, 2));
}
