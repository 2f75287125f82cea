//! The layer in front of the limiter.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::key::{FromFn, from_fn};
use tower_throttle::middleware::{PolicyReport, Rejection, Responder};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer};

use crate::case::Env;
use crate::tested::{Subject, TestedLimiter};

list! {
    a_layer_admits_the_limit_and_rejects_the_rest
    a_layer_and_its_limiter_share_units
    a_request_that_is_not_limited_charges_nothing
    a_layer_holds_requests_if_the_algorithm_does
    a_layer_reports_the_replaced_algorithm
}

/// A service that returns the request as its response.
#[derive(Clone, Copy)]
struct Echo;

impl Service<String> for Echo {
    type Response = String;
    type Error = Infallible;
    type Future = Ready<Result<String, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: String) -> Self::Future {
        ready(Ok(request))
    }
}

fn by_text() -> FromFn<impl Fn(&String) -> Option<String> + Clone + Send + Sync + 'static> {
    from_fn(|request: &String| (request != "free").then(|| request.clone()))
}

/// Sends a request. Returns whether it was admitted.
async fn ask<S>(service: &mut S, request: &str) -> bool
where
    S: Service<String, Response = String, Error = Error<Infallible>>,
{
    poll_fn(|cx| service.poll_ready(cx)).await.unwrap_or_else(|error| panic!("{error}"));
    match service.call(request.to_owned()).await {
        Ok(answer) => {
            assert_eq!(answer, request);
            true
        }
        Err(Error::Limited(decision)) => {
            assert!(decision.retry_after().is_some());
            false
        }
        Err(error) => panic!("the limiter failed: {error}"),
    }
}

async fn a_layer_admits_the_limit_and_rejects_the_rest<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(3)));
    let layer = RateLimitLayer::with_limiter(by_text(), limiter.limiter).responder(ErrorResponder);
    let (mut one, mut other) = (layer.layer(Echo), layer.layer(Echo));
    assert!(ask(&mut one, "a").await);
    assert!(ask(&mut other, "a").await);
    assert!(ask(&mut one, "a").await);
    assert!(!ask(&mut one, "a").await);
    assert!(!ask(&mut other, "a").await);
    assert!(ask(&mut other, "b").await);
}

async fn a_layer_and_its_limiter_share_units<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(3)));
    let layer = RateLimitLayer::with_limiter(by_text(), limiter.limiter.clone()).responder(ErrorResponder);
    let mut service = layer.layer(Echo);
    assert!(ask(&mut service, "a").await);
    assert_eq!(limiter.exhaust("a").await.0, 2);
    assert!(!ask(&mut service, "a").await);
    limiter.reset("a").await;
    assert!(ask(&mut service, "a").await);
}

async fn a_request_that_is_not_limited_charges_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(3)));
    let layer = RateLimitLayer::with_limiter(by_text(), limiter.limiter.clone()).responder(ErrorResponder);
    let mut service = layer.layer(Echo);
    for _ in 0..5 {
        assert!(ask(&mut service, "free").await);
    }
    assert_eq!(limiter.exhaust("free").await.0, 3);
    assert!(ask(&mut service, "free").await);
}

async fn a_layer_holds_requests_if_the_algorithm_does<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(LeakyBucket::new(Quota::per_second(20)).queue(5));
    let layer = RateLimitLayer::with_limiter(by_text(), limiter.limiter).responder(ErrorResponder);
    let mut service = layer.layer(Echo);
    let start = tokio::time::Instant::now();
    for number in 0_u32..4 {
        assert!(ask(&mut service, "a").await);
        assert!(start.elapsed() >= std::time::Duration::from_millis(50) * number, "{number}");
    }
}

/// Answers with the quota of the limit that decided the call.
#[derive(Clone, Copy)]
struct Reported;

impl<Req, Res> Responder<Req, Res, Infallible> for Reported {
    type Response = u64;
    type Error = Infallible;

    fn map_response(&self, reports: &[PolicyReport<'_>], _: Res) -> u64 {
        reports[0].policy().quota
    }

    fn map_error(&self, error: Infallible) -> Infallible {
        error
    }

    fn reject(&self, _: &Req, rejection: Rejection<'_>) -> Result<u64, Infallible> {
        Ok(rejection.policies().first().map_or(0, |report| report.policy().quota))
    }
}

async fn a_layer_reports_the_replaced_algorithm<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(10))).limiter;
    let layer = RateLimitLayer::with_limiter(by_text(), limiter.clone()).responder(Reported);
    let mut service = layer.layer(Echo);
    let mut ask = async || service.call("a".to_owned()).await.unwrap_or_else(|error| match error {});
    assert_eq!(ask().await, 10);
    for quota in [20, 30, 1] {
        limiter.replace(TokenBucket::new(Quota::per_hour(quota)));
        assert_eq!([ask().await, ask().await], [quota; 2]);
    }
}
