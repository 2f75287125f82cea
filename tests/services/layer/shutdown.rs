//! A closed limiter answers queued calls and new calls at once, and leaves nothing behind.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::OnClose;
use tower_throttle::store::OnFull;
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::PolledByHand;

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

fn quota() -> Quota {
    Quota::per_hour(1)
}

trait Now: Future + Sized {
    /// Polls the future once, and returns its output.
    fn now(self) -> Self::Output {
        let mut hand = PolledByHand::new(self);
        assert!(hand.poll(), "it waits");
        hand.output.unwrap()
    }
}

impl<F: Future> Now for F {}

/// Asserts that a decision says that the limiter is closed, and nothing else.
fn assert_closed(decision: &Decision) {
    assert!(decision.is_closed() && !decision.is_allowed(), "{decision:?}");
    assert_eq!((decision.retry_after(), decision.remaining()), (None, 0), "{decision:?}");
}

macro_rules! service {
    ($layer:expr) => {
        $layer.responder(ErrorResponder).layer(service_fn(|()| ready(Ok::<(), Infallible>(()))))
    };
}

fn limited(answer: Result<(), Error<Infallible>>) -> Decision {
    match answer {
        Err(Error::Limited(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

/// Checks that three queued calls are answered when a clone of the limiter is closed, and that new calls are answered,
/// too. The queued calls are made by `acquire`, by `acquire_permit`, and in a layer that queues.
fn answers_all<A: Algorithm>(rule: A, waits_in_a_layer: bool) {
    let clock = ManualClock::new();
    let limiter = limiter(rule.clone(), &clock);
    let held = limiter.try_acquire_permit("a").unwrap();
    let mut acquire = PolledByHand::new(limiter.acquire("a"));
    let mut permit = PolledByHand::new(limiter.acquire_permit("a"));
    assert!(!acquire.poll() && !permit.poll(), "{rule:?}");
    let by_key = tower_throttle::key::from_fn(|(): &()| Some("a"));
    let mut service = service!(RateLimitLayer::with_limiter(by_key, limiter.clone()));
    let mut call = PolledByHand::new(service.call(()));
    assert_eq!(!call.poll(), waits_in_a_layer, "{rule:?}");
    assert_eq!(limiter.queued(), if waits_in_a_layer { 3 } else { 2 });

    limiter.clone().close();
    assert_eq!(limiter.queued(), 0);
    assert!(acquire.is_woken() && permit.is_woken(), "{rule:?}");
    assert!(acquire.run() && permit.run());
    assert_closed(&acquire.output.unwrap());
    assert_closed(permit.output.unwrap().unwrap_err().decision());
    if waits_in_a_layer {
        assert!(call.run());
        assert_closed(&limited(call.output.take().unwrap()));
    }
    for key in ["a", "b"] {
        assert_closed(&limiter.check(key));
        assert_closed(&limiter.check_n(key, 9));
        assert_closed(&limiter.peek(key));
        assert_closed(&limiter.peek_n(key, u64::MAX));
        assert_closed(limiter.try_acquire_permit(key).unwrap_err().decision());
        assert_closed(&limiter.acquire(key).now());
        assert_closed(&limiter.acquire_n(key, 7).now());
        assert_closed(limiter.acquire_permit(key).now().unwrap_err().decision());
        // A call of cost 0 is always admitted.
        assert!(limiter.check_n(key, 0).is_allowed() && limiter.peek_n(key, 0).is_allowed());
        assert!(limiter.acquire_n(key, 0).now().is_allowed());
    }
    assert_closed(&limited(service.call(()).now()));
    // The limiter stays closed as time passes, if its algorithm is replaced, and if it is closed again.
    limiter.close();
    clock.advance(Duration::from_secs(1_000_000));
    limiter.replace(rule.clone());
    limiter.reset("a");
    limiter.refund("a", 1);
    assert_closed(&limiter.check("a"));
    assert_closed(&limiter.clone().acquire("c").now());
    drop(held);
    assert_closed(&limiter.check("a"));
    assert_eq!(limiter.queued(), 0);
}

#[test]
fn queued_and_new_calls_are_answered_with_every_algorithm() {
    let leaky = || LeakyBucket::new(quota()).queue(9);
    let one = || Concurrency::per_key(1).total(9).queue(9);
    answers_all(leaky(), true);
    answers_all(Smooth::bursty(quota()).queue(9), true);
    answers_all(TokenBucket::new(quota()).queue(9), true);
    answers_all(FixedWindow::new(quota()).queue(9), true);
    answers_all(SlidingWindow::new(quota()).queue(9), true);
    answers_all(SlidingLog::new(quota()).queue(9), true);
    answers_all(SlidingCounter::new(quota()).queue(9), true);
    answers_all(one(), true);
    answers_all(one().max_wait(Duration::from_secs(1)), true);
    answers_all((leaky(), one()), true);
    answers_all((TokenBucket::new(quota()).queue(9), FixedWindow::new(quota()).queue(9)), true);
    answers_all((one(), TokenBucket::new(Quota::per_hour(50)).queue(9), one()), true);
    answers_all(Tiered::new(leaky()), true);
    answers_all(one().block_for(Duration::from_secs(9)).after(500), true);
    answers_all((leaky(), one()).block_for(Duration::from_secs(9)).after(500), true);
    // These algorithms do not queue calls in a layer. Only `acquire` queues calls.
    let patient = |limit| Quota::per_hour(limit).burst(2);
    let rule = TokenBucket::new(patient(2));
    let clock = ManualClock::new();
    let limiter = limiter(rule, &clock);
    assert!(limiter.check_n("a", 2).is_allowed());
    let mut waits = PolledByHand::new(limiter.acquire("a"));
    assert!(!waits.poll());
    limiter.close();
    assert!(waits.run());
    assert_closed(&waits.output.unwrap());
}

/// A call that waits in one of two queues is answered when either limiter is closed. The charge of the other limit is
/// refunded.
#[test]
fn a_call_rejected_on_close_has_charged_no_joined_limit() {
    for close_the_line in [true, false] {
        let clock = ManualClock::new();
        let line = limiter(LeakyBucket::new(quota()).queue(9), &clock);
        let bucket = limiter(TokenBucket::new(Quota::per_hour(5)), &clock);
        let one = limiter(Concurrency::per_key(3).total(3), &clock);
        let other = limiter(LeakyBucket::new(Quota::per_minute(1)).queue(9), &clock);
        let mut service = service!(
            RateLimitLayer::with_limiter(Global, bucket.clone())
                .and(RateLimitLayer::with_limiter(Global, line.clone()))
                .and(RateLimitLayer::with_limiter(Global, one.clone()))
                .and(RateLimitLayer::with_limiter(Global, other.clone()))
        );
        assert!(service.call(()).now().is_ok());
        let mut calls = [(); 2].map(|()| PolledByHand::new(service.call(())));
        calls.iter_mut().for_each(|call| assert!(!call.poll()));
        assert_eq!((bucket.peek(&()).remaining(), one.peek(&()).remaining()), (2, 1));
        if close_the_line {
            line.close();
        } else {
            other.close();
        }
        for call in &mut calls {
            assert!(call.run(), "it is answered");
            assert_closed(&limited(call.output.take().unwrap()));
        }
        assert_eq!((bucket.peek(&()).remaining(), one.peek(&()).remaining()), (4, 3));
        assert_eq!((line.queued(), other.queued()), (0, 0));
        // New calls are denied and charge no key, whatever the other limits would decide.
        assert_closed(&limited(service.call(()).now()));
        assert_eq!((bucket.peek(&()).remaining(), one.peek(&()).remaining()), (4, 3));
        let _all = [(); 3].map(|()| one.try_acquire_permit(&()).unwrap());
        assert_closed(&limited(service.call(()).now()));
        assert!(bucket.check_n(&(), 4).is_allowed());
        assert_closed(&limited(service.call(()).now()));
    }
}

/// A call whose scheduled time has come before the limiter is closed stays admitted.
#[test]
fn calls_admitted_before_stay_admitted() {
    let clock = ManualClock::new();
    let limiter = limiter(LeakyBucket::new(Quota::per_second(1)).queue(9), &clock);
    assert!(limiter.check("a").is_allowed());
    let [mut first, mut second] = [(); 2].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert!(!first.poll() && !second.poll());
    clock.advance(Duration::from_secs(1));
    // The scheduled time of the first call has come, but the call has not been polled.
    limiter.close();
    assert!(first.run() && first.output.unwrap().is_allowed());
    assert!(second.run());
    assert_closed(&second.output.unwrap());
}

#[test]
fn permits_stay_valid_and_are_released() {
    let rule = Concurrency::per_key(2).total(2);
    let limiter = RateLimiter::new(rule.clone());
    // This limiter has the same total.
    let other = RateLimiter::new(rule);
    let [first, second] = [(); 2].map(|()| limiter.try_acquire_permit("a").unwrap());
    limiter.close();
    assert!(other.try_acquire_permit("a").is_err());
    drop(first);
    let third = other.try_acquire_permit("a").unwrap();
    assert!(other.try_acquire_permit("b").is_err());
    drop(second);
    assert!(other.try_acquire_permit("b").is_ok());
    drop(third);
}

#[test]
fn on_close_allow_admits_without_counting() {
    fn passes<A: Algorithm>(rule: A) {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).on_close(OnClose::Allow).build();
        let _held = limiter.try_acquire_permit("a").unwrap();
        let mut waits = PolledByHand::new(limiter.acquire("a"));
        assert!(!waits.poll());
        limiter.close();
        // Waiters are denied, too.
        assert!(waits.run() && waits.output.unwrap().is_closed());
        let before = limiter.peek("a");
        let mut all = Vec::new();
        let by_key = tower_throttle::key::from_fn(|(): &()| Some("a"));
        let mut service = service!(RateLimitLayer::with_limiter(by_key, limiter.clone()));
        let other = RateLimiter::new(Concurrency::per_key(99));
        let mut joined = service!(
            RateLimitLayer::with_limiter(by_key, other.clone())
                .and(RateLimitLayer::with_limiter(by_key, limiter.clone()))
        );
        for _ in 0..30 {
            assert!(limiter.check("a").is_allowed() && limiter.check_n("b", u64::MAX).is_allowed());
            assert!(limiter.peek("a").is_allowed() && limiter.peek_n("a", u64::MAX).is_allowed());
            assert!(limiter.acquire("a").now().is_allowed());
            all.push(limiter.try_acquire_permit("a").unwrap());
            all.push(limiter.acquire_permit("a").now().unwrap());
            assert!(service.call(()).now().is_ok());
            assert!(joined.call(()).now().is_ok());
        }
        assert_eq!(limiter.peek("a"), before);
        drop(all);
        assert_eq!(limiter.peek("a"), before, "what was not counted is not given back");
        assert_eq!(other.peek("a").remaining(), 99);
        assert_eq!(limiter.len(), 1);
    }
    passes(LeakyBucket::new(quota()).queue(9));
    passes(TokenBucket::new(quota()).queue(9));
    passes(SlidingWindow::new(quota()).queue(9));
    passes(Concurrency::per_key(1).queue(9));
    passes((Concurrency::per_key(1).total(8).queue(9), TokenBucket::new(Quota::per_hour(9)).queue(9)));
}

/// Calls arrive while the limiter is closed. No call is left waiting.
#[test]
fn closing_while_calls_arrive_leaves_no_waiter_behind() {
    const THREADS: usize = 8;
    for round in 0..20 {
        let rule = Concurrency::per_key(1).total(1_000).queue(1_000);
        let one = RateLimiter::builder(rule).clock(ManualClock::new()).build();
        let line = LeakyBucket::new(quota()).queue(10_000);
        let line = RateLimiter::builder(line).clock(ManualClock::new()).build();
        let (start, entered) = (Barrier::new(THREADS + 1), AtomicUsize::new(0));
        let calls: Vec<PolledByHand<Pin<Box<dyn Future<Output = bool> + Send>>>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (one, line, start, entered) = (&one, &line, &start, &entered);
                    scope.spawn(move || {
                        let both = RateLimitLayer::with_limiter(Global, one.clone())
                            .and(RateLimitLayer::with_limiter(Global, line.clone()));
                        let mut service = service!(both);
                        let mut calls = Vec::new();
                        start.wait();
                        for n in 0..60 {
                            let call: Pin<Box<dyn Future<Output = bool> + Send>> = match (n + thread) % 3 {
                                0 => {
                                    let call = one.acquire_permit(&(n % 5));
                                    Box::pin(async move {
                                        call.await.is_err_and(|denied| denied.decision().is_closed())
                                    })
                                }
                                1 => {
                                    let call = line.acquire(&(n % 5));
                                    Box::pin(async move { call.await.is_closed() })
                                }
                                _ => {
                                    let call = service.call(());
                                    Box::pin(async move { call.await.is_err() })
                                }
                            };
                            let mut call = PolledByHand::new(call);
                            call.poll();
                            entered.fetch_add(1, Ordering::SeqCst);
                            calls.push(call);
                        }
                        calls
                    })
                })
                .collect();
            start.wait();
            while entered.load(Ordering::SeqCst) < round * 20 {
                std::hint::spin_loop();
            }
            one.close();
            line.close();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for mut call in calls {
            assert!(call.run(), "round {round}: left waiting");
        }
        assert_eq!((one.queued(), line.queued()), (0, 0));
        assert_closed(&one.check(&0));
    }
}

/// When a limiter is closed whose key table is full, the waiters of its shared buckets are denied, and so are all later
/// calls.
#[test]
fn closing_in_a_full_table_answers_waiters_of_shared_buckets() {
    let rule = Concurrency::per_key(1).queue(9);
    let limiter = RateLimiter::builder(rule)
        .clock(ManualClock::new())
        .max_keys(1)
        .on_full(OnFull::ShareBuckets)
        .build();
    let permits: Vec<_> = (0..50).filter_map(|key| limiter.try_acquire_permit(&key).ok()).collect();
    let mut waits = PolledByHand::new(limiter.acquire(&0));
    assert!(!waits.poll());
    limiter.close();
    assert!(waits.run() && waits.output.unwrap().is_closed());
    (0..60).for_each(|key| assert_closed(&limiter.check(&key)));
    drop(permits);
    (0..60).for_each(|key| assert_closed(&limiter.acquire(&key).now()));
}

// ---- responses to callers ----

type Asks = Request<()>;

fn answers(_: Asks) -> std::future::Ready<Result<Response<Empty<Bytes>>, Infallible>> {
    ready(Ok(Response::new(Empty::new())))
}

#[test]
fn http_callers_get_503_and_grpc_callers_unavailable() {
    let clock = ManualClock::new();
    let queue = limiter(LeakyBucket::new(quota()).queue(9), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(9)), &clock);
    let ask = |content_type: &str| Request::builder().header("content-type", content_type).body(()).unwrap();
    let mut alone = RateLimitLayer::with_limiter(Global, queue.clone()).layer(service_fn(answers));
    let mut joined = RateLimitLayer::with_limiter(Global, bucket.clone())
        .and(RateLimitLayer::with_limiter(Global, queue.clone()))
        .layer(service_fn(answers));
    assert_eq!(alone.call(ask("text/plain")).now().unwrap().status(), 200);
    let mut http = [PolledByHand::new(alone.call(ask("text/plain")))];
    let mut http_joined = [PolledByHand::new(joined.call(ask("text/plain")))];
    let mut grpc = [PolledByHand::new(alone.call(ask("application/grpc")))];
    let mut grpc_joined = [PolledByHand::new(joined.call(ask("application/grpc+proto")))];
    assert!(!http[0].poll() && !http_joined[0].poll() && !grpc[0].poll() && !grpc_joined[0].poll());
    queue.close();
    let mut all = Vec::new();
    for call in http.iter_mut().chain(&mut grpc) {
        assert!(call.run());
        all.push(call.output.take().unwrap().unwrap());
    }
    for call in http_joined.iter_mut().chain(&mut grpc_joined) {
        assert!(call.run());
        all.push(call.output.take().unwrap().unwrap());
    }
    // New calls are denied, too.
    for content_type in ["text/plain", "application/grpc"] {
        all.push(alone.call(ask(content_type)).now().unwrap());
        all.push(joined.call(ask(content_type)).now().unwrap());
    }
    for (answer, is_grpc) in all.into_iter().zip([false, true, false, true, false, false, true, true]) {
        let headers = answer.headers();
        for field in ["ratelimit", "ratelimit-policy"] {
            assert!(!headers.contains_key(field), "{headers:?}");
        }
        // For HTTP callers, `Retry-After` is a hint, because it is not known when a server will be available again.
        assert_eq!(headers.contains_key("retry-after"), !is_grpc, "{headers:?}");
        if is_grpc {
            assert_eq!((answer.status().as_u16(), &headers["grpc-status"]), (200, &"14".parse().unwrap()));
            assert_eq!(headers["content-type"], "application/grpc");
        } else {
            assert_eq!(answer.status(), 503);
            assert_eq!(headers["content-type"], "application/problem+json");
            let body = answer.into_body().collect().now().unwrap().to_bytes();
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["status"], 503, "{problem}");
        }
    }
    assert_eq!(bucket.peek(&()).remaining(), 9);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn queued_requests_are_answered_over_sockets_and_the_server_goes_on() {
    use crate::support::{self, Server, VERSIONS, request, send};
    use axum::{Router, routing::get};
    for version in VERSIONS {
        let bucket = LeakyBucket::new(quota()).queue(9);
        let limiter = RateLimiter::builder(bucket).clock(ManualClock::new()).build();
        let app = Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(RateLimitLayer::with_limiter(Global, limiter.clone()))
            .route("/free", get(|| async {}));
        let server = Server::start(app).await;
        let address = server.address;
        assert_eq!(support::get(address, version, "/").await.status, 200);
        let calls: Vec<_> = (0..6)
            .map(|call| {
                let mut request = request(http::Method::GET, "/");
                if call % 2 == 1 {
                    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
                }
                tokio::spawn(send(address, version, request))
            })
            .collect();
        let all = async {
            while limiter.queued() < 6 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all).await.expect("all wait");
        limiter.close();
        for (at, call) in calls.into_iter().enumerate() {
            let answer =
                tokio::time::timeout(Duration::from_secs(20), call).await.expect("an answer").unwrap();
            assert!(!answer.has("ratelimit"), "{answer:?}");
            assert_eq!(answer.has("retry-after"), at % 2 == 0, "{answer:?}");
            if at % 2 == 1 {
                assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "14"));
            } else {
                assert_eq!((answer.status.as_u16(), &answer.json()["status"]), (503, &503.into()));
            }
        }
        assert_eq!(support::get(address, version, "/").await.status, 503);
        assert_eq!(support::get(address, version, "/free").await.status, 200);
    }
}
