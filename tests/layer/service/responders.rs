//! Custom responders make the responses of the layer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{PolicyReport, Rejection, Responder};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{by_user, shout};

/// A responder whose response shows the reports that the responder got.
#[derive(Clone)]
struct Telling;

impl<E> Responder<String, String, E> for Telling {
    type Response = String;
    type Error = E;

    fn map_response(&self, reports: &[PolicyReport<'_>], response: String) -> String {
        format!("{response}, {}", said(reports))
    }

    fn map_error(&self, error: E) -> E {
        error
    }

    fn reject(&self, request: &String, rejection: Rejection<'_>) -> Result<String, E> {
        match rejection {
            Rejection::Limited(reports) => Ok(format!("not {request}, {}", said(reports))),
            other => panic!("{other:?}"),
        }
    }
}

fn said(reports: &[PolicyReport<'_>]) -> String {
    let said = reports.iter().map(|report| {
        let (policy, decision) = (report.policy(), report.decision());
        let window = report.window().map(|window| window.as_secs());
        format!(
            "{}: {} per {:?}, {} left, {window:?}",
            report.name(),
            policy.quota,
            policy.window,
            decision.remaining()
        )
    });
    said.collect::<Vec<_>>().join(" and ")
}

#[tokio::test]
async fn a_custom_responder_makes_the_responses() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_minute(1))).clock(clock).build();
    let layer = RateLimitLayer::with_limiter(by_user(), limiter).name("mine").responder(Telling);
    let service = layer.layer(service_fn(shout));
    let call = |line: &str| service.clone().oneshot(line.to_owned());
    assert_eq!(call("ann").await.unwrap(), "ANN, mine: 1 per 60s, 0 left, Some(60)");
    assert_eq!(call("ann").await.unwrap(), "not ann, mine: 1 per 60s, 0 left, Some(60)");
    assert_eq!(call("root").await.unwrap(), "ROOT, ");
}

/// A responder that counts the calls of `max_wait`, and allows no wait.
#[derive(Clone, Default)]
struct Impatient(Arc<AtomicUsize>);

impl<Req, Res, Err> Responder<Req, Res, Err> for Impatient {
    type Response = Res;
    type Error = Error<Err>;

    fn max_wait(&self, _: &Req) -> Option<Duration> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Some(Duration::ZERO)
    }

    fn map_response(&self, _: &[PolicyReport<'_>], response: Res) -> Res {
        response
    }

    fn map_error(&self, error: Err) -> Error<Err> {
        Error::Inner(error)
    }

    fn reject(&self, request: &Req, rejection: Rejection<'_>) -> Result<Res, Error<Err>> {
        ErrorResponder.reject(request, rejection)
    }
}

#[tokio::test(start_paused = true)]
async fn a_responder_is_asked_for_the_maximum_wait_only_if_requests_can_be_queued() {
    let window = FixedWindow::new(Quota::per_hour(1));
    let bucket = TokenBucket::new(Quota::per_hour(1));
    let queue = bucket.clone().queue(9);
    let tiers = Tiered::new(bucket.clone());
    macro_rules! assert_asked {
        ($layer:expr, $asks:expr) => {{
            let asked = Impatient::default();
            let service = $layer.responder(asked.clone()).layer(service_fn(shout));
            assert!(service.clone().oneshot("ann".to_owned()).await.is_ok());
            assert!(matches!(service.oneshot("ann".to_owned()).await, Err(Error::Limited(_))));
            assert_eq!(asked.0.load(Ordering::SeqCst), $asks);
        }};
    }
    assert_asked!(RateLimitLayer::new(by_user(), window.clone()), 0);
    assert_asked!(RateLimitLayer::new(by_user(), bucket.clone()), 0);
    assert_asked!(RateLimitLayer::new(by_user(), queue.clone()), 2);
    assert_asked!(RateLimitLayer::new(by_user(), tiers).tier(move |_: &String, _| queue.clone()), 2);
    let both = || RateLimitLayer::new(by_user(), window.clone());
    assert_asked!(both().and(RateLimitLayer::new(Global, bucket.clone())), 0);
    assert_asked!(both().and(RateLimitLayer::new(Global, bucket.queue(9))), 2);
}

/// Whether the inner future was dropped.
#[derive(Clone, Default)]
struct Dropped(Arc<AtomicBool>);

/// An inner future whose response says whether the future was dropped.
struct Held(Dropped);

impl Future for Held {
    type Output = Result<Dropped, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(self.0.clone()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::SeqCst);
    }
}

/// A responder whose response is the name of the conversion, and whether the inner future was dropped before.
#[derive(Clone)]
struct AfterDrop {
    passes: bool,
}

impl Responder<(), Dropped, Infallible> for AfterDrop {
    type Response = (&'static str, bool);
    type Error = Infallible;

    const PASS: Option<fn(Poll<Result<Dropped, Infallible>>) -> Poll<Result<Self::Response, Infallible>>> =
        Some(|polled| polled.map_ok(|inner| ("passed", inner.0.load(Ordering::SeqCst))));

    fn passes(&self) -> bool {
        self.passes
    }

    fn map_response(&self, _: &[PolicyReport<'_>], inner: Dropped) -> Self::Response {
        ("mapped", inner.0.load(Ordering::SeqCst))
    }

    fn map_error(&self, error: Infallible) -> Infallible {
        error
    }

    fn reject(&self, (): &(), rejection: Rejection<'_>) -> Result<Self::Response, Infallible> {
        panic!("{rejection:?}")
    }
}

#[tokio::test]
async fn the_inner_future_is_dropped_before_its_response_is_converted() {
    let answer = |passes| {
        let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(1)));
        let layer = layer.responder(AfterDrop { passes });
        layer.layer(service_fn(|(): ()| Held(Dropped::default()))).oneshot(())
    };
    assert_eq!([answer(true).await, answer(false).await], [Ok(("passed", true)), Ok(("mapped", true))]);
}
