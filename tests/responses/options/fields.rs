//! Header fields are sent in the configured formats, on the configured responses, and with the configured jitter.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use serde_json::json;
use tower::{ServiceExt, service_fn};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{Decisions, HeaderFormat as Form, HttpResponder, ResetFormat, SendHeaders};
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

use super::{app, ask, is_head_of, late, layer, rejected, reported, with};
use crate::header_parser::{Left, ParsedFields, number};
use crate::reference_service::{Service, behind, limited};
use crate::support::{Answer, Server, VERSIONS, request, send};

#[tokio::test]
async fn fields_are_sent_when_they_are_configured() {
    for (when, on_admission, on_rejection) in [
        (SendHeaders::Always, true, true),
        (SendHeaders::OnRejection, false, true),
        (SendHeaders::Never, false, false),
    ] {
        let both = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
        for [admitted, get, head] in with(HttpResponder::new().headers(both).send_headers(when)).await {
            let are_there = |answer: &Answer| {
                let reported = ParsedFields::read(&answer.headers);
                assert_eq!(reported.is_empty(), !answer.has("x-ratelimit-limit"), "{answer:?}");
                !reported.is_empty()
            };
            assert_eq!((are_there(&admitted), are_there(&get)), (on_admission, on_rejection), "{when:?}");
            assert_eq!(get.retry_after(), 60, "it has a switch of its own");
            is_head_of(&head, &get);
        }
    }
}

/// What a handler is given depends neither on the fields nor on a function that sees the rejections.
#[tokio::test]
async fn a_handler_gets_the_extensions_that_are_configured() {
    let inner = || {
        Service::new(service_fn(async |request: Request<Body>| {
            let is_given = |is_given: bool| if is_given { "yes" } else { "no" };
            let extensions = request.extensions();
            let one = is_given(extensions.get::<Decision>().is_some());
            let all = is_given(extensions.get::<Decisions>().is_some());
            Ok(Response::new(Body::from(format!("{one} {all}"))))
        }))
    };
    for when in [SendHeaders::Always, SendHeaders::Never] {
        let responder = HttpResponder::new().send_headers(when);
        for (responder, given) in [
            (responder, "yes no"),
            (responder.insert_details(true), "yes yes"),
            (responder.insert_extension(false), "no no"),
            (responder.insert_extension(false).insert_details(true), "no yes"),
        ] {
            let observed = layer().responder(responder).on_reject(|_, _: &Request<Body>| {});
            for service in [limited(layer().responder(responder), inner()), limited(observed, inner())] {
                let answer = ask(&service, "text/plain").await;
                assert_eq!((answer.text(), answer.has("ratelimit")), (given, when == SendHeaders::Always));
            }
        }
    }
}

#[tokio::test]
async fn redirects_carry_no_fields() {
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_minute(2))).clock(ManualClock::new()).build();
    let both = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
    let layer =
        RateLimitLayer::with_limiter(Global, limiter.clone()).responder(HttpResponder::new().headers(both));
    let server = Server::start(app().layer(layer)).await;
    let answer = send(server.address, VERSIONS[0], request(Method::GET, "/moved")).await;
    assert_eq!(answer.status, 303);
    assert!(ParsedFields::read(&answer.headers).is_empty() && !answer.has("x-ratelimit-limit"), "{answer:?}");
    let answer = send(server.address, VERSIONS[1], request(Method::GET, "/")).await;
    assert_eq!(ParsedFields::read(&answer.headers).left[0].r, 0, "both were counted");
}

#[tokio::test]
async fn retry_after_can_be_left_out() {
    for [_, get, _] in with(HttpResponder::new().retry_after(false)).await {
        assert_eq!((get.status.as_u16(), ParsedFields::read(&get.headers)), (429, reported(0, 60)));
    }
}

#[tokio::test]
async fn jitter_is_added_upward_and_is_the_same_in_all_fields() {
    const MOST: u64 = 7;
    let both = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
    let responder = HttpResponder::new().headers(both).jitter(Duration::from_secs(MOST));
    let service = limited(layer().responder(responder), behind(HeaderMap::new()));
    let admitted = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(ParsedFields::read(admitted.headers()), reported(0, 60), "only rejections get jitter");
    assert_eq!(number(admitted.headers(), "x-ratelimit-reset"), Some(60));
    let mut waits = BTreeSet::new();
    for n in 0..2_000 {
        let mut request = Request::new(Body::empty());
        if n % 2 == 0 {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        }
        let rejected = service.clone().oneshot(request).await.unwrap();
        let fields = ParsedFields::read(rejected.headers());
        let wait = fields.retry_after.unwrap();
        assert_eq!(fields.left, reported(0, wait).left);
        assert_eq!(number(rejected.headers(), "x-ratelimit-reset"), Some(wait));
        let pushback = rejected.headers().get("grpc-retry-pushback-ms");
        assert_eq!(pushback.is_some(), n % 2 == 0);
        if pushback.is_some_and(|pushback| pushback != "-1") {
            let pushback = number(rejected.headers(), "grpc-retry-pushback-ms").unwrap();
            assert!(pushback <= 60_000, "longer waits stop automatic retries");
            assert_eq!(pushback.div_ceil(1_000), wait);
        } else if pushback.is_some() {
            assert!(wait > 60);
        }
        waits.insert(wait);
    }
    // The probability that the random value is exactly 60 is one in seven billion.
    waits.remove(&60);
    assert_eq!(waits, (61..=60 + MOST).collect());
}

#[tokio::test]
async fn jitter_is_the_same_in_grpc_responses() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_second(1))).clock(clock).build();
    let layer = RateLimitLayer::with_limiter(Global, limiter);
    let layer = layer.responder(HttpResponder::new().jitter(Duration::from_secs(9)));
    let service = limited(layer, behind(HeaderMap::new()));
    let ask = || {
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        service.clone().oneshot(request)
    };
    let _ = ask().await;
    let mut waits = BTreeSet::new();
    for _ in 0..200 {
        let answer = ask().await.unwrap();
        let wait = ParsedFields::read(answer.headers()).retry_after.unwrap();
        let pushback = number(answer.headers(), "grpc-retry-pushback-ms").unwrap();
        assert!((1_000..=10_000).contains(&pushback) && pushback.div_ceil(1_000) == wait);
        waits.insert(pushback);
    }
    assert!(waits.len() > 100, "{waits:?}");
}

#[tokio::test]
async fn a_denial_whose_wait_is_over_reports_a_second_in_all_fields() {
    let legacy = Form::XRateLimit(ResetFormat::DeltaSeconds);
    for (draft, name, value) in [
        (Form::Draft11, "ratelimit", r#""default";r=0;t=1"#),
        (Form::Draft07, "ratelimit", "limit=1, remaining=0, reset=1"),
        (Form::Draft06, "ratelimit-reset", "1"),
    ] {
        let responder = HttpResponder::new().headers([draft, legacy, Form::RetryAfterMs]);
        let answer = late(|layer| limited(layer.responder(responder), behind(HeaderMap::new()))).await;
        let names = [name, "retry-after", "retry-after-ms", "x-ratelimit-reset"];
        let values = names.map(|name| answer.headers.get(name).map_or("", |value| value.to_str().unwrap()));
        assert_eq!((answer.status.as_u16(), values), (429, [value, "1", "1", "1"]));
    }
}

#[tokio::test]
async fn a_hidden_policy_is_not_reported_but_its_wait_is() {
    let legacy = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
    let responder = HttpResponder::new().headers(legacy);
    let answer = rejected(limited(layer().hidden().responder(responder), behind(HeaderMap::new()))).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 60));
    assert!(ParsedFields::read(&answer.headers).is_empty() && !answer.has("x-ratelimit-limit"), "{answer:?}");
    assert_eq!(answer.json()["violated-policies"], json!([]));
    assert!(!answer.text().contains("api"));

    let visible = |limit| {
        let rule = FixedWindow::new(Quota::per_hour(limit));
        let limiter = RateLimiter::builder(rule).clock(ManualClock::new()).build();
        RateLimitLayer::with_limiter(Global, limiter).name("mine")
    };
    // The hidden policy denies the request. The other policy is reported, with its state.
    let layers = layer().hidden().and(visible(5)).responder(responder);
    let answer = rejected(limited(layers, behind(HeaderMap::new()))).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 60));
    let mine = |r| Left { name: "mine".to_owned(), r, t: Some(3_600) };
    assert_eq!(ParsedFields::read(&answer.headers).left, [mine(4)]);
    assert_eq!(answer.json()["violated-policies"], json!([]));
    // The other policy denies the request.
    let layers = visible(1).and(layer().hidden()).responder(responder);
    let answer = rejected(limited(layers, behind(HeaderMap::new()))).await;
    assert_eq!((answer.retry_after(), ParsedFields::read(&answer.headers).left), (3_600, vec![mine(0)]));
    assert_eq!(answer.json()["violated-policies"], json!(["mine"]));
}
