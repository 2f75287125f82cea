//! Permits of a limiter of one's own.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::RateLimitLayer;
use tower_throttle::algorithm::{Algorithm, Concurrency};
use tower_throttle::key::from_fn;
use tower_throttle::limiter::{Acquired, Attempt, Denied, LimiterFor, Permit};

use crate::support::own_limiter::{BoxFuture, Down};
use crate::support::{OwnLimiter, PolledByHand};

fn acquire<A: Algorithm>(
    limiter: &OwnLimiter<A>,
    key: &str,
) -> BoxFuture<Result<Result<Permit, Denied>, Down>> {
    let Acquired::Pending(wait) = limiter.acquire(key, Attempt::new(1).wait()) else { unreachable!() };
    Box::pin(async move {
        let (decision, reservation) = wait.await?.into_parts();
        Ok(Permit::decided(decision, reservation))
    })
}

async fn remaining(limiter: &OwnLimiter<Concurrency>) -> u64 {
    limiter.peek("a", Attempt::new(1)).await.unwrap().remaining()
}

#[tokio::test(start_paused = true)]
async fn permits_are_released_when_dropped() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = OwnLimiter::new(Concurrency::per_key(2));
    let first = acquire(&limiter, "a").await??;
    let second = acquire(&limiter, "a").await??;
    let denied = acquire(&limiter, "a").await?.unwrap_err();
    assert_eq!(denied.to_string(), "rate limit exceeded");
    drop(first);
    assert_eq!(remaining(&limiter).await, 1);
    drop(second);
    assert_eq!(remaining(&limiter).await, 2);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_released_if_its_future_is_dropped_at_any_poll() {
    for polls in 0..3 {
        let limiter = OwnLimiter::new(Concurrency::per_key(1));
        let mut call = PolledByHand::new(acquire(&limiter, "a"));
        for _ in 0..polls {
            if call.poll() {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(call.output.is_some(), polls == 2, "after {polls} polls");
        drop(call);
        tokio::task::yield_now().await;
        assert_eq!(remaining(&limiter).await, 1, "after {polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn the_body_of_the_response_holds_the_permit() {
    let by_path = from_fn(|request: &Request<()>| Some(request.uri().path().to_owned()));
    let layer = RateLimitLayer::with_limiter(by_path, OwnLimiter::new(Concurrency::per_key(1)));
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
    }));
    let ask = async || service.clone().oneshot(Request::new(())).await.unwrap();
    let response = ask().await;
    assert_eq!(ask().await.status(), 429, "the body is not read yet");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(ask().await.status(), 200);
}
