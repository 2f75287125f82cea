//! What others can observe of a layer's decisions: functions that are called with rejections, extensions, and counts.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::util::BoxCloneService;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, Header, PeerIp, from_fn};
use tower_throttle::middleware::{Decisions, Rejected, Rejection};
use tower_throttle::stats::{Slice, Timeline};
use tower_throttle::{Decision, ErrorResponder, HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::keys::{Http, at_once, from, get, with};
use crate::support::PolledByHand;

type Seen = Arc<Mutex<Vec<String>>>;

/// Returns a line about a rejection, with the status and the names of the policies that denied the request.
fn line(rejection: &Rejection<'_>) -> String {
    let denied: Vec<_> =
        rejection.policies().iter().filter(|report| !report.decision().is_allowed()).collect();
    let names: Vec<_> = denied.iter().map(|report| report.name()).collect();
    format!("{} {}", rejection.status().as_u16(), names.join("+"))
}

/// Returns a function that records each rejection with the path of the request.
fn recorder(seen: &Seen) -> impl Fn(&Rejection<'_>, &Http) + Clone + use<> {
    let seen = seen.clone();
    move |rejection, request| {
        seen.lock().unwrap().push(format!("{} {}", line(rejection), request.uri().path()));
    }
}

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::test]
async fn each_rejection_is_observed_and_no_admission() {
    let seen = Seen::default();
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(1)).name("ip").on_reject(recorder(&seen));
    let service = layer.layer(service_fn(hello));
    let plain = RateLimitLayer::new(PeerIp::new(), at_once(1)).name("ip").layer(service_fn(hello));
    for request in [from("1.2.3.4"), from("1.2.3.4"), get("/no-key")] {
        let expected = plain.clone().oneshot(request.clone()).await.unwrap();
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!((answer.status(), answer.headers()), (expected.status(), expected.headers()));
    }
    assert_eq!(*seen.lock().unwrap(), ["429 ip /", "500  /no-key"]);
}

#[tokio::test]
async fn rejections_of_joined_layers_and_of_grpc_are_observed() {
    let seen = Seen::default();
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(9))
        .name("ip")
        .and(RateLimitLayer::new(Global, at_once(1)).name("all").hidden())
        .on_reject(recorder(&seen));
    let service = layer.layer(service_fn(hello));
    let grpc = || with(from("1.2.3.4"), "content-type", "application/grpc");
    assert!(!service.clone().oneshot(grpc()).await.unwrap().headers().contains_key("grpc-status"));
    assert_eq!(service.oneshot(grpc()).await.unwrap().headers()["grpc-status"], "8");
    assert_eq!(*seen.lock().unwrap(), ["429 all /"], "also a policy that is hidden from callers");
}

#[tokio::test]
async fn joined_layers_call_the_function_of_the_first_and_that_of_the_result() {
    let [first, result] = [Seen::default(), Seen::default()];
    let limit = |name| RateLimitLayer::new(Global, at_once(1)).name(name);
    let joined = limit("a").on_reject(recorder(&first)).and(limit("b")).on_reject(recorder(&result));
    let service = joined.layer(service_fn(hello));
    for status in [200, 429] {
        assert_eq!(service.clone().oneshot(get("/")).await.unwrap().status(), status);
    }
    for seen in [first, result] {
        assert_eq!(*seen.lock().unwrap(), ["429 a+b /"]);
    }
}

#[tokio::test]
async fn rejections_of_services_that_are_not_http_are_observed() {
    let seen = Seen::default();
    let recorded = seen.clone();
    let layer =
        RateLimitLayer::new(from_fn(|job: &u32| Some(job % 10)), TokenBucket::new(Quota::per_hour(1)))
            .responder(ErrorResponder)
            .on_reject(move |rejection: &Rejection<'_>, job: &u32| {
                recorded.lock().unwrap().push(format!("{} {job}", line(rejection)));
            });
    let service = layer.layer(service_fn(|job: u32| async move { Ok::<_, Infallible>(job) }));
    assert_eq!(service.clone().oneshot(7).await.unwrap(), 7);
    assert!(service.clone().oneshot(17).await.is_err());
    assert_eq!(*seen.lock().unwrap(), ["429 default 17"]);
}

/// Returns the details in the extensions of a request, as names and remaining units.
async fn decisions(request: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    let decisions = request.extensions().get::<Decisions>();
    let parts: Vec<_> = decisions.map_or(Vec::new(), |decisions| {
        decisions.iter().map(|(name, decision)| format!("{name}={}", decision.remaining())).collect()
    });
    Ok(Response::new(Full::from(parts.join(" "))))
}

async fn text(response: Response<impl hyper::body::Body<Data = Bytes, Error: std::fmt::Debug>>) -> String {
    use http_body_util::BodyExt;
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_handler_finds_the_decisions_of_all_policies_by_name() {
    let details = || HttpResponder::new().insert_details(true);
    let joined = RateLimitLayer::new(PeerIp::new(), at_once(9))
        .name("ip")
        .and(RateLimitLayer::new(Global, FixedWindow::new(Quota::per_day(5))).name("all").hidden())
        .responder(details());
    let outer = RateLimitLayer::new(Global, at_once(3)).name("outer").responder(details());
    let service = outer.layer(joined.layer(service_fn(decisions)));
    let answer = service.oneshot(from("1.2.3.4")).await.unwrap();
    assert_eq!(text(answer).await, "outer=2 ip=8 all=4");
    let quiet = RateLimitLayer::new(Global, at_once(3)).layer(service_fn(decisions));
    assert_eq!(text(quiet.oneshot(get("/")).await.unwrap()).await, "", "off by default");
}

/// That a limiter is closed is more urgent to know than that the request would not fit another one.
#[tokio::test]
async fn of_several_denials_the_response_has_that_of_a_closed_limiter() {
    let details = || HttpResponder::new().insert_details(true);
    let closed = || {
        let layer = RateLimitLayer::new(Global, at_once(9)).name("closed");
        layer.limiter().close();
        layer
    };
    let small = || RateLimitLayer::new(Global, at_once(1)).name("small").cost(|_: &Http| 2);
    let [first, last] = [
        closed().and(small()).responder(details()).layer(service_fn(hello)).oneshot(get("/")).await,
        small().and(closed()).responder(details()).layer(service_fn(hello)).oneshot(get("/")).await,
    ]
    .map(|response| response.unwrap().extensions().get::<Rejected>().unwrap().policy().to_owned());
    assert_eq!([first, last], ["closed", "closed"]);
}

#[tokio::test]
async fn the_response_to_a_denied_request_has_the_policy_and_the_decision() {
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(9))
        .name("ip")
        .and(RateLimitLayer::new(Global, at_once(1)).name("all").hidden())
        .responder(HttpResponder::new().insert_details(true));
    let service = layer.layer(service_fn(hello));
    let rejected = |response: &Response<_>| {
        let rejected = response.extensions().get::<Rejected>()?;
        Some((rejected.policy().to_owned(), *rejected.decision()))
    };
    let admitted = service.clone().oneshot(from("1.2.3.4")).await.unwrap();
    assert_eq!(rejected(&admitted), None);
    let denied = service.clone().oneshot(from("1.2.3.4")).await.unwrap();
    let (policy, decision): (String, Decision) = rejected(&denied).unwrap();
    assert_eq!((policy.as_str(), decision.is_allowed(), decision.limit()), ("all", false, 1));
    let grpc = with(from("1.2.3.4"), "content-type", "application/grpc");
    assert!(rejected(&service.clone().oneshot(grpc).await.unwrap()).is_some());
    let no_key = service.oneshot(get("/")).await.unwrap();
    assert_eq!((no_key.status().as_u16(), rejected(&no_key)), (500, None));
}

/// The counts of a policy contain the policy's name, and nothing of the callers.
#[tokio::test]
async fn the_counts_of_a_layer_name_no_key() {
    let layer = RateLimitLayer::new(Header::new("x-api-key").unwrap(), at_once(1)).name("by key");
    let service = layer.layer(service_fn(hello));
    for key in ["recognisable", "recognisable", "recognisable-2"] {
        let request: Request<_> = with(get("/"), "x-api-key", key);
        let _ = service.clone().oneshot(request).await.unwrap();
    }
    let stats = layer.stats();
    assert_eq!((stats.calls.admitted, stats.calls.denied, stats.calls.ended()), (2, 1, 3));
    let shown = format!("{stats:?} {:?}", layer.limiter().stats());
    assert!(shown.contains("by key") && !shown.contains("recognisable"), "{shown}");
}

/// A timeline counts the decisions of a policy and the responses of the inner service, each in its own second.
#[tokio::test]
async fn a_timeline_counts_decisions_and_responses_by_the_second() {
    let clock = ManualClock::new();
    let last_minute = Timeline::new().clock(clock.clone());
    let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_hour(4))).clock(clock.clone()).build();
    let layer = RateLimitLayer::with_limiter(Global, limiter)
        .responder(ErrorResponder)
        .timeline(&last_minute)
        .unless(|millis: &u64| *millis == 0);
    let working = clock.clone();
    let service = layer.layer(service_fn(move |millis: u64| {
        working.advance(Duration::from_millis(millis));
        std::future::ready(if millis == 13 { Err("unlucky") } else { Ok(()) })
    }));
    for millis in [20, 13, 0] {
        let _ = service.clone().oneshot(millis).await;
    }
    clock.set(Duration::from_secs(7));
    for millis in [50, 1_500, 40, 40] {
        let _ = service.clone().oneshot(millis).await;
    }
    let seconds: Vec<_> = last_minute.recent();
    let lines: Vec<_> = seconds
        .iter()
        .map(|(start, second)| {
            let Slice { admitted, denied, successes, errors, .. } = *second;
            let (sum, min) = (second.response_time(), second.min_response_time());
            format!("{start:?}: {admitted} {denied} {successes} {errors} {sum:?} {min:?}")
        })
        .collect();
    assert_eq!(
        lines,
        ["0ns: 2 0 1 1 33ms Some(13ms)", "7s: 2 0 1 0 50ms Some(50ms)", "8s: 0 2 1 0 1.5s Some(1.5s)"]
    );
    assert_eq!(last_minute.total().admitted, layer.stats().calls.admitted);
}

#[tokio::test]
async fn a_timeline_counts_waits_and_borrowed_units_alone_and_joined() {
    for is_joined in [false, true] {
        let clock = ManualClock::new();
        let timeline = Timeline::new().clock(clock.clone());
        let window = FixedWindow::new(Quota::per_second(4)).priority(50);
        let limiter = RateLimiter::builder(window).clock(clock.clone()).build();
        let layer = RateLimitLayer::with_limiter(Global, limiter)
            .cost(|cost: &u64| *cost)
            .priority(|_: &u64| true)
            .timeline(&timeline)
            .responder(ErrorResponder);
        let inner = service_fn(|_: u64| std::future::ready(Ok::<_, Infallible>(())));
        let other = RateLimiter::builder(FixedWindow::new(Quota::per_hour(9))).clock(clock.clone()).build();
        let other = RateLimitLayer::with_limiter(Global, other);
        let service = match is_joined {
            true => BoxCloneService::new(layer.and(other).layer(inner)),
            false => BoxCloneService::new(layer.layer(inner)),
        };
        let mut calls = [4, 2, 1].map(|cost| PolledByHand::new(service.clone().oneshot(cost)));
        assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, true], "{is_joined}");
        clock.set(Duration::from_secs(1));
        assert!(calls[1].poll());
        let total = timeline.total();
        assert_eq!((total.admitted, total.denied, total.queued, total.borrowed), (2, 1, 1, 2), "{is_joined}");
        assert_eq!((total.successes, total.errors), (2, 0));
    }
}

/// An algorithm that ignores priority lends no units of a later window, so a request that waits has borrowed nothing.
#[tokio::test]
async fn a_request_with_ignored_priority_borrows_nothing_alone_and_joined() {
    for is_joined in [false, true] {
        let clock = ManualClock::new();
        let timeline = Timeline::new().clock(clock.clone());
        let line = LeakyBucket::new(Quota::per_second(1));
        let limiter = RateLimiter::builder(line.queue(5)).clock(clock.clone()).build();
        let layer = RateLimitLayer::with_limiter(Global, limiter)
            .priority(|_: &u64| true)
            .timeline(&timeline)
            .responder(ErrorResponder);
        let inner = service_fn(|_: u64| std::future::ready(Ok::<_, Infallible>(())));
        let other = RateLimiter::builder(FixedWindow::new(Quota::per_hour(9))).clock(clock.clone()).build();
        let other = RateLimitLayer::with_limiter(Global, other);
        let service = match is_joined {
            true => BoxCloneService::new(layer.and(other).layer(inner)),
            false => BoxCloneService::new(layer.layer(inner)),
        };
        let mut calls = [1, 2].map(|call| PolledByHand::new(service.clone().oneshot(call)));
        assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false], "{is_joined}");
        clock.set(Duration::from_secs(1));
        assert!(calls[1].poll());
        let total = timeline.total();
        assert_eq!((total.admitted, total.queued, total.borrowed), (2, 1, 0), "{is_joined}");
    }
}
