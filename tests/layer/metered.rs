//! Calls of metered layers are settled exactly once, by what their meters say.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, Tiered,
    TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::{OnClose, Permit};
use tower_throttle::middleware::{PolicyReport, Rejection, Responder, SendHeaders, Shadow, Unmetered};
use tower_throttle::{HttpResponder, Meter, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, on_threads};

type Limiter = RateLimiter<TokenBucket>;

/// A body of pieces, the last of which may be an error.
#[derive(Default)]
struct Pieces(VecDeque<io::Result<Bytes>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(self.0.pop_front().map(|piece| piece.map(Frame::data)))
    }
}

fn pieces(count: usize) -> Pieces {
    Pieces((0..count).map(|_| Ok(Bytes::from_static(b"piece"))).collect())
}

/// A limiter of 1,000 units an hour, whose clock stands still.
fn limiter() -> Limiter {
    RateLimiter::builder(TokenBucket::new(Quota::per_hour(1_000))).clock(ManualClock::new()).build()
}

fn used(limiter: &Limiter) -> u64 {
    1_000 - limiter.peek(&()).remaining()
}

/// A metered layer whose estimate is `estimate`.
macro_rules! metered {
    ($limiter:expr, $estimate:expr) => {
        RateLimitLayer::with_limiter(Global, $limiter.clone())
            .cost(move |_: &Request<()>| $estimate)
            .metered()
    };
}

/// Calls the service that `layer` limits, whose handler passes the meter to `handle`.
async fn call<L, B>(
    layer: &L,
    handle: impl Fn(Meter) -> Result<Response<Pieces>, io::Error> + Clone + Send + 'static,
) -> Result<Response<B>, io::Error>
where
    L: Layer<tower::util::BoxCloneService<Request<()>, Response<Pieces>, io::Error>>,
    L::Service: Service<Request<()>, Response = Response<B>, Error = io::Error>,
{
    let inner = service_fn(move |request: Request<()>| {
        let answer = handle(Meter::of(request.extensions()));
        async move { answer }
    });
    layer.layer(tower::util::BoxCloneService::new(inner)).oneshot(Request::new(())).await
}

fn streams(meter: &Meter, units: u64) -> Result<Response<Pieces>, io::Error> {
    meter.add(units);
    Ok(Response::new(pieces(3)))
}

#[tokio::test]
async fn every_end_of_a_call_settles_it_once() {
    type End = fn(PolledByHand<Pin<Box<dyn Future<Output = Option<u64>>>>>) -> Option<u64>;
    let by_poll: End = |mut future| {
        future.poll();
        future.output.flatten()
    };
    // What the handler does after it has counted 30 units, and what happens to the response.
    for name in ["end", "failure", "half", "never", "error", "dropped", "panic"] {
        let limiter = limiter();
        let layer = metered!(limiter, 10);
        let seen = limiter.clone();
        let inner = service_fn(move |request: Request<()>| {
            let (meter, seen) = (Meter::of(request.extensions()), seen.clone());
            async move {
                assert_eq!(used(&seen), 10, "the estimate counts until the end");
                meter.add(10);
                meter.add(20);
                match name {
                    "error" => return Err(io::Error::other("no answer")),
                    "panic" => panic!("as handlers do"),
                    "dropped" => std::future::pending::<()>().await,
                    _ => {}
                }
                let mut body = pieces(2);
                if name == "failure" {
                    body.0.push_back(Err(io::Error::other("the source has failed")));
                }
                Ok(Response::new(body))
            }
        });
        let service = layer.layer(inner);
        let counted = limiter.clone();
        let whole = async move {
            let mut body = service.oneshot(Request::new(())).await.ok()?.into_body();
            assert_eq!(used(&counted), 10);
            match name {
                "half" => drop(body.frame().await),
                "never" => {}
                _ => {
                    while let Some(Ok(_)) = body.frame().await {
                        assert_eq!(used(&counted), 10);
                    }
                    // The body is not dropped yet.
                    return Some(used(&counted));
                }
            }
            drop(body);
            Some(used(&counted))
        };
        let future = PolledByHand::new(Box::pin(whole) as Pin<Box<dyn Future<Output = _>>>);
        let at_end = catch_unwind(AssertUnwindSafe(|| by_poll(future))).ok().flatten();
        let has_response = !matches!(name, "error" | "dropped" | "panic");
        assert_eq!(at_end, has_response.then_some(30), "{name}");
        assert_eq!(used(&limiter), 30, "{name}");
        let units = limiter.stats().units;
        assert_eq!((units.charged, units.refunded, units.uncharged), (20, 0, 0), "{name}");
    }
}

#[tokio::test]
async fn a_call_costs_what_its_meter_says() {
    // The estimate, what the handler does with the meter, and the cost.
    type Count = fn(&Meter);
    let cases: [(u64, Count, u64); 7] = [
        (10, |meter| meter.add(4), 4),
        (10, |meter| meter.set(0), 0),
        (10, |meter| meter.add(0), 0),
        (10, |_| {}, 10),
        (10, |meter| meter.set(70), 70),
        (0, |meter| meter.add(5), 5),
        (10, |meter| (0..7).for_each(|_| meter.add(3)), 21),
    ];
    for (number, (estimate, count, cost)) in cases.into_iter().enumerate() {
        let limiter = limiter();
        let counts = move |meter: Meter| {
            count(&meter);
            Ok(Response::new(pieces(1)))
        };
        drop(call(&metered!(limiter, estimate), counts).await.unwrap());
        assert_eq!(used(&limiter), cost, "case {number}");
    }
}

#[tokio::test]
async fn nested_layers_and_joined_policies_share_a_meter() {
    for is_nested in [true, false] {
        let [calls, words, bytes] = [(); 3].map(|()| limiter());
        let words_layer = metered!(words, 5).name("words");
        let bytes_layer = metered!(bytes, 100).name("bytes");
        let calls_layer = RateLimitLayer::with_limiter(Global, calls.clone()).name("calls");
        let handle = |meter: Meter| {
            meter.add(7);
            meter.for_policy("bytes").add(500);
            meter.for_policy("unknown").add(900);
            assert_eq!((meter.units(), meter.for_policy("bytes").units()), (7, 500));
            Ok(Response::new(pieces(1)))
        };
        match is_nested {
            true => {
                let layers = tower::ServiceBuilder::new()
                    .layer(words_layer)
                    .layer(calls_layer)
                    .layer(bytes_layer)
                    .service(tower::util::BoxCloneService::new(service_fn(move |request: Request<()>| {
                        let answer: Result<_, io::Error> = handle(Meter::of(request.extensions()));
                        async move { answer }
                    })));
                drop(layers.oneshot(Request::new(())).await.unwrap());
            }
            false => {
                let layer = words_layer.and(calls_layer).and(bytes_layer);
                drop(call(&layer, handle).await.unwrap());
            }
        }
        assert_eq!([&calls, &words, &bytes].map(used), [1, 7, 507], "{is_nested}");
    }
}

#[tokio::test]
async fn policies_of_one_name_count_the_same() {
    let [outer, inner] = [(); 2].map(|()| limiter());
    let service = tower::ServiceBuilder::new()
        .layer(metered!(outer, 1).name("tokens"))
        .layer(metered!(inner, 2).name("tokens"))
        .service(service_fn(|request: Request<()>| async move {
            let tokens = Meter::of(request.extensions()).for_policy("tokens");
            streams(&tokens, 40)
        }));
    drop(service.oneshot(Request::new(())).await.unwrap());
    assert_eq!([&outer, &inner].map(used), [40, 40]);
}

#[tokio::test]
async fn without_a_metered_policy_that_charged_the_call_a_meter_charges_nothing() {
    let handle = |meter: Meter| streams(&meter, 80);
    let limited = limiter();
    let unmetered = RateLimitLayer::with_limiter(Global, limited.clone());
    drop(call(&unmetered, handle).await.unwrap());
    assert_eq!(used(&limited), 1);

    let exempt = metered!(limited, 10).unless(|_: &Request<()>| true);
    drop(call(&exempt, handle).await.unwrap());
    assert_eq!(used(&limited), 1);

    limited.charge(&(), 999);
    let shadow = Shadow::on();
    drop(call(&metered!(limited, 10).shadow(&shadow), handle).await.unwrap());
    assert_eq!((used(&limited), shadow.denied()), (1_000, 1));
    assert_eq!(limited.stats().units.charged, 999);
}

#[tokio::test]
async fn units_that_are_counted_after_the_end_are_charged_at_once() {
    for uses_meter in [true, false] {
        let limiter = limiter();
        let (sender, meters) = std::sync::mpsc::channel();
        let handle = move |meter: Meter| {
            if uses_meter {
                meter.add(20);
            }
            sender.send(meter).unwrap();
            Ok(Response::new(pieces(0)))
        };
        drop(call(&metered!(limiter, 10), handle).await.unwrap());
        let meter = meters.recv().unwrap();
        let settled = if uses_meter { 20 } else { 10 };
        assert_eq!(used(&limiter), settled);
        meter.add(5);
        meter.clone().add(6);
        assert_eq!(used(&limiter), settled + 11);
        let counted = meter.units();
        meter.set(counted + 9);
        assert_eq!(used(&limiter), settled + 20);
        // A lower count refunds nothing, and units up to the largest count are not charged again.
        meter.set(counted);
        meter.add(9);
        assert_eq!(used(&limiter), settled + 20);
        meter.add(1);
        assert_eq!(used(&limiter), settled + 21);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_queued_is_settled_by_its_meter() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(10)).queue(5));
    assert!(limiter.check_n(&(), 10).is_allowed());
    let layer = metered!(limiter, 5);
    let before = tokio::time::Instant::now();
    let response = call(&layer, |meter| streams(&meter, 25)).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(500));
    drop(response);
    assert_eq!(limiter.stats().units.charged, 20);
    assert_eq!(limiter.peek(&()).retry_after(), Some(Duration::from_millis(2_100)));
}

#[tokio::test]
async fn a_cost_that_the_head_tells_replaces_the_count_until_then() {
    let limiter = limiter();
    let layer = metered!(limiter, 10).settle(|response: &Response<Pieces>| {
        let is_free = response.headers().contains_key("x-free");
        is_free.then_some(0)
    });
    let (sender, meters) = std::sync::mpsc::channel();
    let free = move |meter: Meter| {
        meter.add(40);
        sender.send(meter).unwrap();
        Ok(Response::builder().header("x-free", "1").body(pieces(1)).unwrap())
    };
    let response = call(&layer, free).await.unwrap();
    assert_eq!(used(&limiter), 0);
    meters.recv().unwrap().add(3);
    assert_eq!(used(&limiter), 3);
    drop(response);
    assert_eq!(used(&limiter), 3);
    drop(call(&layer, |meter| streams(&meter, 50)).await.unwrap());
    assert_eq!(used(&limiter), 53);
}

#[tokio::test]
async fn the_tier_of_a_call_is_settled() {
    let [small, large] = [100, 1_000].map(|limit| FixedWindow::new(Quota::per_hour(limit)));
    let limiter = RateLimiter::builder(Tiered::new(small)).clock(ManualClock::new()).build();
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone())
        .cost(|_: &Request<()>| 10)
        .metered()
        .tier(move |_: &Request<()>, _: &()| large.clone());
    drop(call(&layer, |meter| streams(&meter, 250)).await.unwrap());
    let next = call(&layer, |meter| streams(&meter, 1)).await.unwrap();
    let reported = next.headers()["ratelimit"].to_str().unwrap();
    assert!(reported.contains(";r=740;"), "{reported}");
}

/// A responder that keeps permits until the test drops them.
#[derive(Clone, Default)]
struct KeepsPermits(Arc<Mutex<Vec<Permit>>>);

impl Responder<Request<()>, Response<Pieces>, io::Error> for KeepsPermits {
    type Response = Response<Pieces>;
    type Error = io::Error;

    fn hold_permit(&self, response: Response<Pieces>, permit: Permit) -> Response<Pieces> {
        self.0.lock().unwrap().push(permit);
        response
    }

    fn map_response(&self, _: &[PolicyReport<'_>], response: Response<Pieces>) -> Response<Pieces> {
        response
    }

    fn map_error(&self, error: io::Error) -> io::Error {
        error
    }

    fn reject(&self, _: &Request<()>, _: Rejection<'_>) -> Result<Response<Pieces>, io::Error> {
        Err(io::Error::other("rejected"))
    }
}

#[tokio::test]
async fn the_permit_of_a_responder_settles_the_call() {
    let (limiter, kept) = (limiter(), KeepsPermits::default());
    let layer = metered!(limiter, 10).responder(kept.clone());
    drop(call(&layer, |meter| streams(&meter, 30)).await.unwrap());
    assert_eq!(used(&limiter), 10);
    kept.0.lock().unwrap().clear();
    assert_eq!(used(&limiter), 30);
}

#[tokio::test]
async fn a_closed_limiter_counts_the_units_that_it_does_not_charge() {
    let limiter = limiter();
    let response = call(&metered!(limiter, 10), |meter| streams(&meter, 30)).await.unwrap();
    limiter.close();
    drop(response);
    let units = limiter.stats().units;
    assert_eq!((units.charged, units.uncharged), (0, 20));
}

/// Nothing is charged, and the responder reports nothing, but what runs inside the layer has one meter.
#[tokio::test]
async fn a_request_has_a_meter_even_if_its_limiter_is_closed_and_admits_all() {
    let rule = TokenBucket::new(Quota::per_hour(1_000));
    let limiter = RateLimiter::builder(rule).on_close(OnClose::Allow).build();
    limiter.close();
    let silent = HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false);
    let service = metered!(limiter, 10).responder(silent).layer(service_fn(async |request: Request<()>| {
        streams(&Meter::of(request.extensions()), 30)?;
        let outer = Meter::of(request.extensions());
        Ok::<_, io::Error>(Response::new(outer.units().to_string()))
    }));
    let body = service.oneshot(Request::new(())).await.unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "30");
}

/// Threads count while the response ends: each unit is charged once.
#[test]
fn units_that_are_counted_during_the_end_are_charged_once() {
    for round in 0..200 {
        let limiter = limiter();
        let (sender, meters) = std::sync::mpsc::channel();
        let layer = metered!(limiter, 1).responder(HttpResponder::new());
        let handle = move |meter: Meter| {
            sender.send(meter).unwrap();
            Ok::<_, Infallible>(Response::new(pieces(0)))
        };
        let mut service = layer.layer(service_fn(move |request: Request<()>| {
            let answer = handle(Meter::of(request.extensions()));
            async move { answer }
        }));
        let response = Mutex::new(Some(service.call(Request::new(()))));
        let mut future = Box::pin(response.lock().unwrap().take().unwrap());
        let Poll::Ready(Ok(response)) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("the service answers at once")
        };
        let (meter, response) = (meters.recv().unwrap(), Mutex::new(Some(response)));
        meter.add(1);
        on_threads(3, |thread| match thread {
            0 => drop(response.lock().unwrap().take()),
            _ => (0..20).for_each(|_| meter.add(2)),
        });
        assert_eq!((used(&limiter), meter.units()), (81, 81), "round {round}");
    }
}

/// A layer between two metered layers may call the inner one more than once. Each of them charges each unit once.
#[tokio::test]
async fn a_call_that_is_retried_below_an_outer_layer_charges_each_unit_once() {
    use std::future::{Ready, ready};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Clone)]
    struct Once(bool);

    impl<B, E> tower::retry::Policy<Request<()>, Response<B>, E> for Once {
        type Future = Ready<()>;

        fn retry(&mut self, _: &mut Request<()>, result: &mut Result<Response<B>, E>) -> Option<Ready<()>> {
            let is_failure = result.as_ref().is_ok_and(|response| response.status() == 503);
            (is_failure && !std::mem::replace(&mut self.0, true)).then(|| ready(()))
        }

        fn clone_request(&mut self, request: &Request<()>) -> Option<Request<()>> {
            Some(request.clone())
        }
    }

    let ([outer, inner], attempts) = ([(); 2].map(|()| limiter()), Arc::new(AtomicU32::new(0)));
    let counted = attempts.clone();
    let service = tower::ServiceBuilder::new()
        .layer(metered!(outer, 1).name("outer"))
        .layer(tower::retry::RetryLayer::new(Once(false)))
        .layer(metered!(inner, 1).name("inner"))
        .service(service_fn(move |request: Request<()>| {
            let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            let mut answer = streams(&Meter::of(request.extensions()), 10).unwrap();
            if is_first {
                *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
            }
            async move { Ok::<_, io::Error>(answer) }
        }));
    drop(service.oneshot(Request::new(())).await.unwrap());
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    assert_eq!([&outer, &inner].map(used), [20, 20]);
}

/// A client whose calls are limited reads the response after the layer has returned it.
/// The permit ends with the head of the response, because the responder does not hold it. So the estimate is kept or
/// refunded, and each unit is charged when it is counted.
#[tokio::test]
async fn with_a_responder_that_holds_no_permit_units_are_charged_when_the_client_reads() {
    for (unmetered, kept) in [(Unmetered::Keep, 100), (Unmetered::Refund, 0)] {
        let limiter = limiter();
        let layer = metered!(limiter, 100).unmetered(unmetered).responder(tower_throttle::ErrorResponder);
        let service =
            layer.layer(service_fn(async |_: Request<()>| Ok::<_, io::Error>(Response::new(pieces(3)))));
        let (meter, mut request) = (Meter::new(), Request::new(()));
        request.extensions_mut().insert(meter.clone());
        let mut body = service.clone().oneshot(request).await.unwrap().into_body();
        assert_eq!(used(&limiter), kept);
        for read in 1..=3 {
            body.frame().await.unwrap().unwrap();
            meter.add(10);
            assert_eq!(used(&limiter), kept + 10 * read);
        }
        // The same meter is used for another call.
        let mut request = Request::new(());
        request.extensions_mut().insert(meter.clone());
        drop(service.oneshot(request).await.unwrap());
        meter.add(10);
        assert_eq!(used(&limiter), 2 * kept + 40);
    }
}

/// Returns a request with a clone of the meter.
fn with_meter(meter: &Meter) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(meter.clone());
    request
}

/// Neither a count nor an algorithm overflows.
#[tokio::test]
async fn a_meter_may_count_as_many_units_as_there_are() {
    async fn counts<A: Algorithm>(algorithm: A) {
        let limiter = RateLimiter::builder(algorithm).clock(ManualClock::new()).build();
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).cost(|_: &Request<()>| 1).metered();
        let service =
            layer.layer(service_fn(async |_: Request<()>| Ok::<_, io::Error>(Response::new(pieces(0)))));
        let meter = Meter::new();
        let first = service.clone().oneshot(with_meter(&meter)).await.unwrap();
        meter.add(1 << 40);
        drop(first);
        let charged = limiter.stats().units.charged;
        meter.set(u64::MAX);
        meter.add(u64::MAX);
        assert_eq!(meter.units(), u64::MAX - 1);
        let units = limiter.stats().units;
        assert_eq!(u128::from(units.charged) + u128::from(units.uncharged), u128::from(u64::MAX - 2));
        assert!(charged > 0 && units.charged >= charged, "{units:?}");
        let mut next = PolledByHand::new(Box::pin(service.clone().oneshot(with_meter(&meter))));
        next.poll();
        if let Some(response) = &next.output {
            assert_eq!(response.as_ref().unwrap().status(), 429);
        }
    }
    let quota = Quota::per_second(5);
    counts(TokenBucket::new(quota)).await;
    counts(FixedWindow::new(quota)).await;
    counts(SlidingWindow::new(quota)).await;
    counts(SlidingCounter::new(quota)).await;
    counts(SlidingLog::new(quota)).await;
    counts(LeakyBucket::new(quota)).await;
    counts(Smooth::bursty(quota)).await;
    counts(FixedWindow::new(quota).block_for(Duration::from_secs(60)).after(2)).await;
    counts((TokenBucket::new(quota), FixedWindow::new(quota))).await;
    counts(Tiered::new(TokenBucket::new(quota))).await;
}

/// Policies of one name may be nested: the outer one begins a call before the inner one does.
#[tokio::test]
async fn nested_policies_of_one_name_charge_each_unit_of_calls_one_after_another_once() {
    let [outer, inner] = [(); 2].map(|()| limiter());
    let service = tower::ServiceBuilder::new().layer(metered!(outer, 1)).layer(metered!(inner, 2)).service(
        service_fn(|request: Request<()>| async move { streams(&Meter::of(request.extensions()), 10) }),
    );
    let meter = Meter::new();
    for call in 1..=3 {
        drop(service.clone().oneshot(with_meter(&meter)).await.unwrap());
        assert_eq!([&outer, &inner].map(used), [10 * call; 2], "call {call}");
    }
    meter.add(5);
    assert_eq!([&outer, &inner].map(used), [35; 2]);
}

/// A client that counts all its calls with one meter keeps it as long as it runs.
#[tokio::test]
async fn a_meter_of_many_calls_keeps_only_those_of_which_it_can_still_charge_units() {
    let limiter =
        RateLimiter::builder(TokenBucket::new(Quota::per_hour(1 << 40))).clock(ManualClock::new()).build();
    let service = metered!(limiter, 1)
        .layer(service_fn(async |_: Request<()>| Ok::<_, io::Error>(Response::new(pieces(0)))));
    let meter = Meter::new();
    for call in 0..20_000 {
        let response = service.clone().oneshot(with_meter(&meter)).await.unwrap();
        meter.add(2);
        drop(response);
        assert_eq!(limiter.stats().units.charged, call + 1);
    }
    meter.add(7);
    assert_eq!(limiter.stats().units.charged, 20_007);
}
