//! The options of the responder, over HTTP/1.1 and HTTP/2.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::response::Redirect;
use axum::routing::any;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version as HttpVersion};
use serde_json::json;
use tower::ServiceExt;
use tower_throttle::algorithm::{Concurrency, FixedWindow};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{
    BodyFormat, GrpcMode, HeaderFormat as Form, HttpResponder, Rejection, RequestHead, ResetFormat,
    Responder, SendHeaders,
};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::generators::name;
use crate::header_parser::{Left, ParsedFields, Policy, number};
use crate::reference_service::{Service, behind, limited};
use crate::support::{Answer, Random, Server, VERSIONS, request, send};

const MINUTE: Duration = Duration::from_secs(60);

/// One call a minute, on a clock that stands still.
fn once() -> RateLimiter<FixedWindow> {
    RateLimiter::builder(FixedWindow::new(Quota::per_minute(1))).clock(ManualClock::new()).build()
}

fn layer() -> RateLimitLayer<Global, FixedWindow> {
    RateLimitLayer::with_limiter(Global, once()).name("api")
}

fn app() -> Router {
    let redirect = || async { Redirect::to("/elsewhere") };
    Router::new().route("/", any(|| async { "hello" })).route("/moved", any(redirect))
}

/// Returns the fields with which `layer` reports its limit. There is one item.
fn reported(r: u64, t: u64) -> ParsedFields {
    let policy = Policy { name: "api".to_owned(), q: 1, w: Some(60), qu: None };
    let left = Left { name: "api".to_owned(), r, t: Some(t) };
    ParsedFields { policies: vec![policy], left: vec![left], retry_after: None }
}

fn refusal() -> ParsedFields {
    ParsedFields { retry_after: Some(60), ..reported(0, 60) }
}

/// Returns the response to an admitted call, and the rejections of a `GET` and of a `HEAD` request, over each version
/// of HTTP.
async fn answers(app: Router) -> Vec<[Answer; 3]> {
    let server = Server::start(app).await;
    let mut answers = Vec::new();
    let admitted = send(server.address, VERSIONS[0], request(Method::GET, "/")).await;
    assert_eq!(admitted.status, 200);
    for version in VERSIONS {
        let [get, head] = [Method::GET, Method::HEAD].map(|method| request(method, "/"));
        let get = send(server.address, version, get).await;
        let head = send(server.address, version, head).await;
        answers.push([admitted.clone(), get, head]);
    }
    answers
}

/// Asserts that the response to `HEAD` equals the response to `GET`, without the body and with the length of the body.
fn is_head_of(head: &Answer, get: &Answer) {
    assert_eq!((head.status, head.body.len()), (get.status, 0));
    let others = |headers: &HeaderMap| {
        let mut headers = headers.clone();
        headers.remove("date");
        headers.remove("content-length");
        headers
    };
    assert_eq!(others(&head.headers), others(&get.headers));
    // Over HTTP/2, a response that ends with its headers needs no length.
    let length = number(&get.headers, "content-length").unwrap_or(0);
    assert_eq!(length, get.body.len() as u64);
    assert_eq!(number(&head.headers, "content-length").unwrap_or(0), length, "{head:?}");
}

async fn with<R>(responder: R) -> Vec<[Answer; 3]>
where
    R: Responder<
            Request<Body>,
            Response<Body>,
            std::convert::Infallible,
            Response = Response<tower_throttle::middleware::ResponseBody<Body>>,
            Error = std::convert::Infallible,
        >,
    R: Clone + Send + Sync + 'static,
{
    let service = tower::ServiceBuilder::new().layer(layer().responder(responder)).service(app());
    answers(Router::new().fallback_service(service)).await
}

#[tokio::test]
async fn by_default_a_rejection_is_a_problem_and_all_fields_are_there() {
    for [admitted, get, head] in with(HttpResponder::new()).await {
        assert_eq!(ParsedFields::read(&admitted.headers), reported(0, 60));
        assert_eq!((get.status.as_u16(), ParsedFields::read(&get.headers)), (429, refusal()));
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
        assert_eq!(ParsedFields::read(&get.headers), refusal());
        is_head_of(&head, &get);
    }
    for [_, get, head] in with(HttpResponder::default().body(BodyFormat::Empty)).await {
        assert_eq!((get.status.as_u16(), get.text()), (429, ""));
        assert!(!get.has("content-type"));
        assert_eq!(ParsedFields::read(&get.headers), refusal());
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
        assert_eq!(ParsedFields::read(&get.headers), refusal());
        is_head_of(&head, &get);
    }
    for [_, get, head] in with(HttpResponder::new().rejection_response(|_, _| own(()))).await {
        assert_eq!((get.status.as_u16(), get.text()), (420, ""));
        assert_eq!(ParsedFields::read(&get.headers), refusal());
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
    let answer = |refusal: &Rejection<'_>, head: &RequestHead<'_>| {
        assert_eq!(refusal.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refusal.retry_after(), Some(MINUTE));
        let [report] = refusal.policies() else { panic!("one policy: {refusal:?}") };
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
    assert_eq!(ParsedFields::read(&answer.headers), refusal());
    let answer = asked(own().grpc(GrpcMode::Never)).await;
    assert_eq!((answer.status.as_u16(), answer.text(), answer.has("grpc-status")), (420, "calm", false));
}

#[tokio::test]
async fn fields_come_in_the_configured_formats() {
    let legacy = |answer: &Answer| {
        ["limit", "remaining", "reset"].map(|part| answer.header(&format!("x-ratelimit-{part}")).to_owned())
    };
    for [admitted, get, _] in with(HttpResponder::new().headers([])).await {
        assert!(ParsedFields::read(&admitted.headers).is_empty() && !admitted.has("x-ratelimit-limit"));
        let only_the_wait = ParsedFields { retry_after: Some(60), ..ParsedFields::default() };
        assert_eq!(ParsedFields::read(&get.headers), only_the_wait);
        assert!(!get.has("x-ratelimit-limit"));
    }
    let delta = Form::XRateLimit(ResetFormat::DeltaSeconds);
    for [admitted, get, head] in with(HttpResponder::new().headers([delta])).await {
        assert!(
            ParsedFields::read(&admitted.headers).is_empty() && ParsedFields::read(&get.headers).is_empty()
        );
        assert_eq!(
            (legacy(&admitted), legacy(&get)),
            (["1", "0", "60"].map(str::to_owned), ["1", "0", "60"].map(str::to_owned))
        );
        is_head_of(&head, &get);
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = now();
    for [_, get, _] in
        with(HttpResponder::new().headers([Form::Draft11, Form::XRateLimit(ResetFormat::EpochSeconds)])).await
    {
        assert_eq!(ParsedFields::read(&get.headers), refusal());
        let reset = number(&get.headers, "x-ratelimit-reset").unwrap();
        // The value is rounded up.
        assert!((before + 60..=now() + 61).contains(&reset), "{before}: {reset}");
        assert!(get.has("date"), "clients compare the two");
    }
}

#[tokio::test]
async fn calls_in_progress_have_no_time_in_any_format() {
    let legacy = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
    let layer =
        RateLimitLayer::new(Global, Concurrency::per_key(1)).responder(HttpResponder::new().headers(legacy));
    let service = limited(layer, behind(HeaderMap::new()));
    let ask = || service.clone().oneshot(Request::new(Body::empty()));
    let open = ask().await.unwrap();
    let refused = ask().await.unwrap();
    for (answer, status) in [(&open, 200), (&refused, 429)] {
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["ratelimit-policy"], r#""default";q=1;qu="concurrent-requests""#);
        assert_eq!(answer.headers()["ratelimit"], r#""default";r=0"#);
        assert_eq!(
            (&answer.headers()["x-ratelimit-limit"], &answer.headers()["x-ratelimit-remaining"]),
            (&HeaderValue::from(1), &HeaderValue::from(0))
        );
        assert!(!answer.headers().contains_key("x-ratelimit-reset"), "{answer:?}");
        // The value is a hint, because it is not known when the other call ends.
        let hint = (status == 429).then_some(&HeaderValue::from_static("1")).cloned();
        assert_eq!(answer.headers().get("retry-after"), hint.as_ref(), "{answer:?}");
    }
}

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
        let refused = service.clone().oneshot(request).await.unwrap();
        let fields = ParsedFields::read(refused.headers());
        let wait = fields.retry_after.unwrap();
        assert_eq!(fields.left, reported(0, wait).left);
        assert_eq!(number(refused.headers(), "x-ratelimit-reset"), Some(wait));
        let pushback = refused.headers().get("grpc-retry-pushback-ms");
        assert_eq!(pushback.is_some(), n % 2 == 0);
        if pushback.is_some_and(|pushback| pushback != "-1") {
            let pushback = number(refused.headers(), "grpc-retry-pushback-ms").unwrap();
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

/// Returns the rejection by an app with `layers`.
async fn refused(service: Service) -> Answer {
    loop {
        let answer = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        if answer.status() != 200 {
            return Answer::read(answer).await;
        }
    }
}

#[tokio::test]
async fn a_hidden_policy_is_not_reported_but_its_wait_is() {
    let legacy = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
    let responder = HttpResponder::new().headers(legacy);
    let answer = refused(limited(layer().hidden().responder(responder), behind(HeaderMap::new()))).await;
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
    let answer = refused(limited(layers, behind(HeaderMap::new()))).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 60));
    let mine = |r| Left { name: "mine".to_owned(), r, t: Some(3_600) };
    assert_eq!(ParsedFields::read(&answer.headers).left, [mine(4)]);
    assert_eq!(answer.json()["violated-policies"], json!([]));
    // The other policy denies the request.
    let layers = visible(1).and(layer().hidden()).responder(responder);
    let answer = refused(limited(layers, behind(HeaderMap::new()))).await;
    assert_eq!((answer.retry_after(), ParsedFields::read(&answer.headers).left), (3_600, vec![mine(0)]));
    assert_eq!(answer.json()["violated-policies"], json!(["mine"]));
}

#[tokio::test]
async fn a_problem_is_json_whatever_the_names() {
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let names = [name(&mut random), name(&mut random)];
        let [a, b] = names.each_ref().map(|name| RateLimitLayer::with_limiter(Global, once()).name(name));
        let answer = refused(limited(a.and(b), behind(HeaderMap::new()))).await;
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
        let answer = refused(service).await;
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
