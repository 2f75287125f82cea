//! Limits of calls in progress. There are never more calls in progress than the limit, and each call releases what it
//! held, however it ends.

mod basic;
mod ends_of_calls;
mod headers;
mod model;
mod threads;

use std::any::Any;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, QueueOverflow, SlidingLog, Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, OwnAlgorithm, PolledByHand, Random, limiter, scaled};

const MS: Duration = Duration::from_millis(1);

/// A value that a call holds until it ends.
type Holder = Box<dyn Any>;
type Call = Pin<Box<dyn Future<Output = Result<Holder, ()>>>>;

/// A request with a key, and its cost.
type Asks = Request<(u64, u64)>;

fn answers(_: Asks) -> std::future::Ready<Result<Response<Empty<Bytes>>, Infallible>> {
    ready(Ok(Response::new(Empty::new())))
}

fn kept<B: 'static>(answer: Result<Response<B>, Infallible>) -> Result<Holder, ()> {
    let Ok(response) = answer;
    if response.status() == 200 { Ok(Box::new(response)) } else { Err(()) }
}

/// Starts a call through the layer. The call holds its response.
fn layered(limiter: &RateLimiter<Concurrency>, key: u64, cost: u64) -> Call {
    let layer =
        RateLimitLayer::with_limiter(from_fn(|request: &Asks| Some(request.body().0)), limiter.clone())
            .cost(|request: &Asks| request.body().1);
    let call = layer.layer(service_fn(answers)).call(Request::new((key, cost)));
    Box::pin(async move { kept(call.await) })
}

fn acquired<A: Algorithm>(limiter: &RateLimiter<A>, key: u64) -> Call {
    let call = limiter.acquire_permit(&key);
    Box::pin(async move { call.await.map(|permit| Box::new(permit) as Holder).map_err(drop) })
}
