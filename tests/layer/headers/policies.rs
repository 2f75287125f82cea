//! Each limit reports its state under a name of its own.

use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{app, ask, left, limiter, policies};
use crate::support::{Answer, Item};

fn violated(answer: &Answer) -> Vec<String> {
    let violated = &answer.json()["violated-policies"];
    violated.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// A tuple names the limit with the longest wait.
#[tokio::test]
async fn a_429_names_each_policy_that_denies_and_reports_the_longest_wait() {
    let clock = ManualClock::new();
    let window = |limit, quota: Quota| FixedWindow::new(Quota::per(limit, quota.period()).unwrap());
    let (minute, hour) = (Quota::per_minute(1), Quota::per_hour(1));
    let tuple = limiter((window(1, minute), window(1, hour)), &clock);
    let [one, nine] = [1, 9].map(|limit| limiter(window(limit, minute), &clock));
    let layers = RateLimitLayer::with_limiter(Global, one).name("a");
    let layers = layers.and(RateLimitLayer::with_limiter(Global, nine).name("b"));
    let app = app().layer(layers.and(RateLimitLayer::with_limiter(Global, tuple).name("c")));
    assert_eq!(ask(&app).await.status, 200);
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 3_600));
    assert_eq!(violated(&answer), ["a", "c-2"]);
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
