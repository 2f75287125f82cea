//! A rejection has the configured body or a custom response, and reports the policies that denied the call.

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version as HttpVersion};
use serde_json::json;
use tower::ServiceExt;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::limiter::OnFull;
use tower_throttle::middleware::{
    BodyFormat, GrpcMode, HeaderFormat as Form, HttpResponder, Rejection, RequestHead, ResetFormat,
};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{MINUTE, ask, is_head_of, layer, once, rejected, rejection, reported, with};
use crate::generators::name;
use crate::header_parser::ParsedFields;
use crate::reference_service::{behind, limited};
use crate::support::{Answer, Random};

#[tokio::test]
async fn by_default_a_rejection_is_a_problem_and_all_fields_are_there() {
    for [admitted, get, head] in with(HttpResponder::new()).await {
        assert_eq!(ParsedFields::read(&admitted.headers), reported(0, 60));
        assert_eq!((get.status.as_u16(), ParsedFields::read(&get.headers)), (429, rejection()));
        let problem = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "violated-policies": ["api"],
        });
        assert_eq!(get.json(), problem);
        is_head_of(&head, &get);
        assert!(!get.has("x-ratelimit-limit") && !get.has("x-ratelimit-reset"));
    }
}

#[tokio::test]
async fn a_body_can_be_plain_text_or_empty() {
    for [_, get, head] in with(HttpResponder::new().body(BodyFormat::PlainText)).await {
        assert_eq!((get.status.as_u16(), get.text()), (429, "rate limit exceeded\n"));
        assert_eq!(get.header("content-type"), "text/plain; charset=utf-8");
        assert_eq!(ParsedFields::read(&get.headers), rejection());
        is_head_of(&head, &get);
    }
    for [_, get, head] in with(HttpResponder::default().body(BodyFormat::Empty)).await {
        assert_eq!((get.status.as_u16(), get.text()), (429, ""));
        assert!(!get.has("content-type"));
        assert_eq!(ParsedFields::read(&get.headers), rejection());
        is_head_of(&head, &get);
    }
}

/// A custom response.
fn own<T>(body: T) -> Response<T> {
    Response::builder().status(420).header(CONTENT_TYPE, "text/x-calm").body(body).unwrap()
}

#[tokio::test]
async fn a_custom_response_can_have_any_body_and_gets_the_fields() {
    let text = "enhance your calm";
    let mut all = with(HttpResponder::new().rejection_response(move |_, _| own(text))).await;
    all.extend(with(HttpResponder::new().rejection_response(move |_, _| own(text.to_owned()))).await);
    all.extend(with(HttpResponder::new().rejection_response(move |_, _| own(Bytes::from(text)))).await);
    all.extend(
        with(HttpResponder::new().rejection_response(move |_, _| own(text.as_bytes().to_vec()))).await,
    );
    #[cfg(feature = "axum")]
    all.extend(with(HttpResponder::new().rejection_response(move |_, _| own(Body::from(text)))).await);
    for [admitted, get, head] in all {
        assert_eq!(ParsedFields::read(&admitted.headers), reported(0, 60));
        assert_eq!((get.status.as_u16(), get.text()), (420, text));
        assert_eq!(get.header("content-type"), "text/x-calm");
        assert_eq!(ParsedFields::read(&get.headers), rejection());
        is_head_of(&head, &get);
    }
    for [_, get, head] in with(HttpResponder::new().rejection_response(|_, _| own(()))).await {
        assert_eq!((get.status.as_u16(), get.text()), (420, ""));
        assert_eq!(ParsedFields::read(&get.headers), rejection());
        is_head_of(&head, &get);
    }
}

#[tokio::test]
async fn fields_that_a_response_has_set_itself_stay_and_occur_once() {
    let answer = |_: &Rejection<'_>, _: &RequestHead<'_>| {
        Response::builder()
            .status(StatusCode::SERVICE_UNAVAILABLE)
            .header(RETRY_AFTER, "7")
            .header("ratelimit-policy", r#""api";q=9;w=9"#)
            .header("ratelimit", r#""api";r=8;t=7"#)
            .header("x-ratelimit-limit", "9")
            .header("x-ratelimit-remaining", "8")
            .header("x-ratelimit-reset", "7")
            .body("")
            .unwrap()
    };
    let both = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
    for [_, get, _] in with(HttpResponder::new().headers(both).rejection_response(answer)).await {
        assert_eq!(get.status, 503);
        for (name, value) in [
            ("retry-after", "7"),
            ("ratelimit-policy", r#""api";q=9;w=9"#),
            ("ratelimit", r#""api";r=8;t=7"#),
            ("x-ratelimit-limit", "9"),
            ("x-ratelimit-remaining", "8"),
            ("x-ratelimit-reset", "7"),
        ] {
            assert_eq!(get.header(name), value);
        }
    }
    // A field that reports a policy of another name does not suppress the layer's own field.
    let other = |_: &Rejection<'_>, _: &RequestHead<'_>| {
        Response::builder().header("ratelimit-policy", r#""api-x";q=9;w=9"#).body("").unwrap()
    };
    for [_, get, _] in with(HttpResponder::new().rejection_response(other)).await {
        let names: Vec<_> =
            ParsedFields::read(&get.headers).policies.into_iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["api-x", "api"]);
    }
}

#[tokio::test]
async fn a_rejection_that_redirects_has_no_fields() {
    let to_the_waiting_room = |_: &Rejection<'_>, _: &RequestHead<'_>| {
        Response::builder().status(StatusCode::SEE_OTHER).header("location", "/wait").body("").unwrap()
    };
    for [_, get, _] in with(HttpResponder::new().rejection_response(to_the_waiting_room)).await {
        assert_eq!(get.status, 303);
        assert!(ParsedFields::read(&get.headers).is_empty(), "{get:?}");
    }
}

#[tokio::test]
async fn a_custom_response_receives_the_reason_and_all_of_the_request_but_the_body() {
    let answer = |rejection: &Rejection<'_>, head: &RequestHead<'_>| {
        assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejection.retry_after(), Some(MINUTE));
        let [report] = rejection.policies() else { panic!("one policy: {rejection:?}") };
        assert_eq!((report.name(), report.decision().is_allowed()), ("api", false));
        assert!([HttpVersion::HTTP_11, HttpVersion::HTTP_2].contains(&head.version()));
        assert!(head.extensions().get::<std::net::SocketAddr>().is_none());
        assert!(head.headers().get("x-absent").is_none());
        Response::new(format!("{} {}", head.method(), head.uri().path()))
    };
    for [_, get, _] in with(HttpResponder::new().rejection_response(answer)).await {
        assert_eq!((get.status.as_u16(), get.text()), (200, "GET /"));
    }
}

#[tokio::test]
async fn grpc_callers_get_a_grpc_status_whatever_the_custom_response() {
    let grpc = || {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        request
    };
    let asked = async |responder: HttpResponder<_>| {
        let service = limited(layer().responder(responder), behind(HeaderMap::new()));
        for _ in 0..2 {
            let _ = service.clone().oneshot(grpc()).await;
        }
        Answer::read(service.oneshot(grpc()).await.unwrap()).await
    };
    let own =
        || HttpResponder::new().rejection_response(|_: &Rejection<'_>, _: &RequestHead<'_>| own("calm"));
    let answer = asked(own()).await;
    assert_eq!((answer.status.as_u16(), answer.header("grpc-status"), answer.text()), (200, "8", ""));
    assert_eq!(ParsedFields::read(&answer.headers), rejection());
    let answer = asked(own().grpc(GrpcMode::Never)).await;
    assert_eq!((answer.status.as_u16(), answer.text(), answer.has("grpc-status")), (420, "calm", false));
}

#[tokio::test]
async fn a_problem_is_json_whatever_the_names() {
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let names = [name(&mut random), name(&mut random)];
        let [a, b] = names.each_ref().map(|name| RateLimitLayer::with_limiter(Global, once()).name(name));
        let answer = rejected(limited(a.and(b), behind(HeaderMap::new()))).await;
        let names = crate::generators::distinct(&names);
        let problem = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "violated-policies": names,
        });
        assert_eq!(answer.json(), problem);
    }
}

#[tokio::test]
async fn a_closed_limiter_is_a_server_error() {
    let layer = layer();
    layer.limiter().close();
    for (format, content_type) in [
        (BodyFormat::ProblemJson, Some("application/problem+json")),
        (BodyFormat::PlainText, Some("text/plain; charset=utf-8")),
        (BodyFormat::Empty, None),
    ] {
        let responder = HttpResponder::new().body(format);
        let service = limited(layer.clone().responder(responder), behind(HeaderMap::new()));
        let answer = rejected(service).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap()), content_type);
        assert_eq!(
            ParsedFields::read(&answer.headers),
            ParsedFields { retry_after: Some(1), ..ParsedFields::default() }
        );
        if format == BodyFormat::ProblemJson {
            let problem = json!({
                "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "title": "Temporary Reduced Capacity",
                "status": 503,
                "violated-policies": ["api"],
            });
            assert_eq!(answer.json(), problem);
        }
    }
}

/// That the server cannot decide is more urgent to know than that the request would not fit.
#[tokio::test]
async fn a_limiter_that_cannot_decide_is_reported_before_a_cost_that_never_fits() {
    let closed = once();
    closed.close();
    let full = RateLimiter::builder(FixedWindow::new(Quota::per_minute(1)))
        .clock(ManualClock::new())
        .max_keys(1)
        .on_full(OnFull::Reject)
        .build();
    assert!(full.check(&0).is_allowed());
    for limiter in [closed, full] {
        let unavailable = || {
            let key = from_fn(|_: &Request<Body>| Some(1));
            RateLimitLayer::with_limiter(key, limiter.clone()).name("unavailable")
        };
        for responder in [
            HttpResponder::new(),
            HttpResponder::new()
                .never_fits_status(StatusCode::PAYLOAD_TOO_LARGE)
                .never_fits_body(BodyFormat::Empty),
        ] {
            for content_type in ["text/plain", "application/grpc"] {
                let alone = limited(unavailable().responder(responder), behind(HeaderMap::new()));
                let expected = ask(&alone, content_type).await;
                let too_large = layer().cost(|_: &Request<Body>| 2);
                let [first, second] = [unavailable(), unavailable()];
                let first = first.and(too_large.clone()).responder(responder);
                let second = too_large.and(second).responder(responder);
                let answer = ask(&limited(first, behind(HeaderMap::new())), content_type).await;
                let last = ask(&limited(second, behind(HeaderMap::new())), content_type).await;
                assert_eq!(
                    [&answer, &last].map(|answer| format!("{answer:?}")),
                    [(); 2].map(|()| format!("{expected:?}"))
                );
                let is_grpc = content_type == "application/grpc";
                let (status, code) = if is_grpc { (200, Some("14")) } else { (503, None) };
                let answered = answer.headers.get("grpc-status").map(|code| code.to_str().unwrap());
                assert_eq!((answer.status.as_u16(), answered), (status, code));
            }
        }
    }
}
