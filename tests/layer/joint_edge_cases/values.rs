//! Extreme costs, a missing key, values that must not be printed, and decisions that are equal.

use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingCounter, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, KeyError, KeyExtractor, from_fn};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer};

use super::{ask, hourly, limiter, served};

#[test]
fn extreme_costs_are_denied_by_all_or_fit() {
    let clock = ManualClock::new();
    let most = Quota::per(u64::MAX, Duration::from_secs(1)).unwrap();
    let (first, second) = (limiter(FixedWindow::new(most), &clock), limiter(TokenBucket::new(most), &clock));
    for (costs, passes) in
        [([u64::MAX, u64::MAX], true), ([1, 1], false), ([0, 0], true), ([u64::MAX, 0], false)]
    {
        let layer = RateLimitLayer::with_limiter(Global, first.clone()).cost(move |(): &()| costs[0]);
        let layers =
            layer.and(RateLimitLayer::with_limiter(Global, second.clone()).cost(move |(): &()| costs[1]));
        assert_eq!(ask(&mut served!(layers), ()).is_ok(), passes, "{costs:?}");
    }
    // Two charges of the largest cost on one key are more than the largest cost. The sum must not wrap around.
    let one = limiter(SlidingCounter::new(most), &clock);
    let layer = RateLimitLayer::with_limiter(Global, one.clone()).cost(|(): &()| u64::MAX - 1);
    let mut twice = served!(layer.clone().and(layer.clone()));
    // The sum of both costs saturates at the largest possible cost.
    assert!(ask(&mut twice, ()).is_ok());
    assert_eq!(one.peek(&()).remaining(), 0);
}

#[derive(Clone)]
struct NoKey;

impl KeyExtractor<u8> for NoKey {
    type Key = ();

    fn extract(&self, at: &u8) -> Result<Option<()>, KeyError> {
        if *at == 1 { Err(KeyError::new("say who you are")) } else { Ok(Some(())) }
    }
}

#[test]
fn a_call_without_a_key_for_one_is_charged_by_none() {
    let clock = ManualClock::new();
    let window = || limiter(FixedWindow::new(hourly(3)), &clock);
    let limiters = [window(), window(), window()];
    let layer = |at: usize| RateLimitLayer::with_limiter(Global, limiters[at].clone());
    let mut service =
        served!(layer(0).and(RateLimitLayer::with_limiter(NoKey, limiters[1].clone())).and(layer(2)));
    assert!(ask(&mut service, 0).is_ok());
    assert!(matches!(ask(&mut service, 1), Err(Error::Key(_))));
    assert_eq!(limiters.each_ref().map(|limiter| limiter.peek(&()).remaining()), [2, 2, 2]);
}

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
