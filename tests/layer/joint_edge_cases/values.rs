//! Debug output shows no key, and decisions with the same values are equal.

use tower::{Layer, Service};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

use super::{hourly, limiter};

#[test]
fn debug_output_shows_no_key() {
    let clock = ManualClock::new();
    let secret = "sesame-9f31";
    let (first, second) = (
        limiter(LeakyBucket::new(hourly(5)), &clock),
        limiter(Tiered::new(TokenBucket::new(hourly(5))), &clock),
    );
    let by_line = from_fn(|line: &String| Some(line.clone()));
    let layers = RateLimitLayer::with_limiter(by_line, first.clone())
        .and(
            RateLimitLayer::with_limiter(by_line, second.clone())
                .tier(|_: &String, _: &String| TokenBucket::new(hourly(7))),
        )
        .responder(ErrorResponder);
    let mut service = layers.clone().layer(Quiet);
    let passed = service.call(secret.to_owned());
    let waits = service.call(secret.to_owned());
    let mut said =
        vec![format!("{layers:?}"), format!("{service:?}"), format!("{passed:?}"), format!("{waits:?}")];
    said.push(format!("{first:?} {second:?} {:?}", first.acquire(secret)));
    said.push(format!("{:?} {:?}", first.peek(secret), second.check_n(secret, 9)));
    for said in said {
        assert!(!said.contains(secret), "{said}");
        assert!(said.len() < 4_000, "{said}");
    }
}

#[derive(Clone, Debug)]
struct Quiet;

impl Service<String> for Quiet {
    type Response = ();
    type Error = ();
    type Future = std::future::Ready<Result<(), ()>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), ()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: String) -> Self::Future {
        std::future::ready(Ok(()))
    }
}

#[test]
fn decisions_with_the_same_values_are_equal() {
    let clock = ManualClock::new();
    // A unit becomes available every half second. One limiter computes in its own grains, and the other in nanoseconds.
    let alone = limiter(TokenBucket::new(Quota::per_second(2)), &clock);
    let pair = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_hour(1_000)));
    let (pair, swapped) = (limiter(pair.clone(), &clock), limiter((pair.1, pair.0), &clock));
    for _ in 0..2 {
        let _ = (alone.check(&()), pair.check(&()), swapped.check(&()));
    }
    let (one, two, other) = (alone.check(&()), pair.check(&()), swapped.check(&()));
    assert_eq!((one.retry_after(), one.limit()), (two.retry_after(), two.limit()));
    assert_eq!(two.retry_after(), other.retry_after());
    assert_eq!((two.limit_index(), other.limit_index()), (0, 1));
    assert_ne!(two, other, "they tell of another limit");
    assert_eq!(two, pair.peek(&()));
    assert_eq!(two, pair.check(&()));
    assert_eq!(pair.peek_n(&(), 0), pair.check_n(&(), 0));
}
