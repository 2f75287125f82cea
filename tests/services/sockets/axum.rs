//! The layer in axum apps, over real sockets, with HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{any, get, post};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tower::ServiceExt;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Extension, Global, Header, KeyExtractor, PeerIp, from_fn};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{
    self, Answer, Client1, Client2, Item, Server, VERSIONS, Version, at_once, read_until, request, send,
};

/// A layer with a token bucket for each address, on a clock that the test advances.
fn per_ip(quota: Quota, clock: &ManualClock) -> RateLimitLayer<PeerIp, TokenBucket> {
    let limiter = RateLimiter::builder(TokenBucket::new(quota)).clock(clock.clone()).build();
    RateLimitLayer::with_limiter(PeerIp::new(), limiter)
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// Asserts the whole response to a denied request, over both versions.
fn assert_denied(answer: &Answer, name: &str, (q, w): (u64, u64), retry_after: u64) {
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{answer:?}");
    assert_eq!(answer.retry_after(), retry_after, "{answer:?}");
    let policy = Item::read(answer.header("ratelimit-policy"));
    assert_eq!((policy.name.as_str(), policy.get("q"), policy.get("w")), (name, q, w));
    assert_eq!(policy.parameters.len(), 2, "{policy:?}");
    let limit = Item::read(answer.header("ratelimit"));
    assert_eq!((limit.name.as_str(), limit.get("r"), limit.get("t")), (name, 0, retry_after));
    assert_eq!(limit.parameters.len(), 2, "{limit:?}");
    let problem = answer.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!([name]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_a_burst_passes_and_the_rest_gets_the_time_to_retry() {
    const BURST: usize = 20;
    let mut reported = Vec::new();
    for version in VERSIONS {
        let clock = ManualClock::new();
        // One token is refilled every ten seconds.
        let quota = Quota::per_minute(6).burst(BURST as u64);
        let server = Server::start(hello().layer(per_ip(quota, &clock))).await;

        let answers = at_once(server.address, version, "/", BURST + 10).await;
        let (passed, denied): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.status == StatusCode::OK);
        assert_eq!((passed.len(), denied.len()), (BURST, 10), "{version:?}");
        for answer in &denied {
            assert_denied(answer, "default", (BURST as u64, 200), 10);
        }
        // Each admitted call was charged one unit.
        let mut left: Vec<_> = passed.iter().map(|answer| answer.items("ratelimit")[0].get("r")).collect();
        left.sort_unstable();
        assert_eq!(left, (0..BURST as u64).collect::<Vec<_>>(), "{version:?}");
        for answer in &passed {
            assert_eq!(answer.text(), "hello");
            assert!(!answer.has("retry-after"));
            assert_eq!(answer.header("ratelimit-policy"), format!("\"default\";q={BURST};w=200"));
        }

        let wait = Duration::from_secs(denied[0].retry_after());
        clock.advance(wait - Duration::from_nanos(1));
        let early = support::get(server.address, version, "/").await;
        assert_denied(&early, "default", (BURST as u64, 200), 1);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(support::get(server.address, version, "/").await.status, StatusCode::OK, "{version:?}");
        assert_eq!(
            support::get(server.address, version, "/").await.status,
            StatusCode::TOO_MANY_REQUESTS,
            "{version:?}"
        );
        reported.push((denied[0].reported(), denied[0].body.clone(), early.reported()));
    }
    assert_eq!(reported[0], reported[1], "both versions say the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_retry_after_is_served() {
    for version in VERSIONS {
        // The layer is configured as in an app, with the real clock.
        let app = hello().layer(RateLimitLayer::per_ip(Quota::per_second(1).burst(5)));
        let server = Server::start(app).await;
        let answers = at_once(server.address, version, "/", 15).await;
        let denied: Vec<_> = answers.iter().filter(|answer| answer.status != StatusCode::OK).collect();
        assert_eq!(denied.len(), 10, "{version:?}");
        for answer in denied {
            assert_denied(answer, "default", (5, 5), 1);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(support::get(server.address, version, "/").await.status, StatusCode::OK, "{version:?}");
    }
}

#[tokio::test]
async fn one_connection_is_limited_like_many() {
    let clock = ManualClock::new();
    let server = Server::start(hello().layer(per_ip(Quota::per_minute(3), &clock))).await;
    let mut client = Client1::http1(server.address).await;
    for left in [2, 1, 0] {
        let answer = client.send(request(Method::GET, "/")).await;
        assert_eq!(answer.header("ratelimit"), format!("\"default\";r={left};t={}", 20 * left.max(1)));
    }
    // A denial does not close the connection, and is not charged.
    for _ in 0..50 {
        assert_denied(&client.send(request(Method::GET, "/")).await, "default", (3, 60), 20);
    }
    clock.advance(Duration::from_secs(20));
    assert_eq!(client.send(request(Method::GET, "/")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn without_the_peers_address_the_status_is_500_and_the_body_names_nothing() {
    for version in VERSIONS {
        let app = hello().layer(RateLimitLayer::per_ip(Quota::per_second(1)));
        let server = Server::start_without_peers(app).await;
        for _ in 0..3 {
            let answer = support::get(server.address, version, "/").await;
            assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
            // The log says what to change, and the body does not. See tests/services/tracing.rs.
            assert_eq!(answer.json()["detail"], "the server cannot identify the client of this request");
            for field in ["retry-after", "ratelimit", "ratelimit-policy"] {
                assert!(!answer.has(field), "{answer:?}");
            }
        }
    }
}

#[tokio::test]
async fn mock_connect_info_is_used_as_the_peer() {
    let app = |peer: [u8; 4]| {
        let clock = ManualClock::new();
        let layer = per_ip(Quota::per_minute(1), &clock);
        hello().layer(layer).layer(MockConnectInfo(SocketAddr::from((peer, 4711))))
    };
    let app = app([192, 0, 2, 1]);
    let call = || async { app.clone().oneshot(Request::new(Body::empty())).await.unwrap().status() };
    assert_eq!(call().await, StatusCode::OK);
    assert_eq!(call().await, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_mocked_peer_does_not_hide_a_real_one() {
    let layer = per_ip(Quota::per_minute(1), &ManualClock::new());
    let mocked =
        hello().layer(layer.clone()).layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
    let server = Server::start(mocked).await;
    assert_eq!(support::get(server.address, Version::Http1, "/").await.status, StatusCode::OK);
    // The budget of the peer that connected was used.
    assert!(!layer.limiter().check(&std::net::IpAddr::from([127, 0, 0, 1])).is_allowed());
    assert!(layer.limiter().check(&std::net::IpAddr::from([192, 0, 2, 1])).is_allowed());
}

#[tokio::test]
async fn one_layer_over_a_thousand_routes_has_one_budget() {
    const ROUTES: usize = 1_000;
    let layer = per_ip(Quota::per_minute(ROUTES as u64 - 1), &ManualClock::new());
    let mut app = Router::new();
    for n in 0..ROUTES {
        app = app.route(&format!("/{n}"), get(|| async { "hello" }));
    }
    let server = Server::start(app.layer(layer.clone())).await;
    let mut client = Client2::http2(server.address).await;
    for n in 0..ROUTES - 1 {
        let answer = client.send(request(Method::GET, &format!("/{n}"))).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.items("ratelimit")[0].get("r") as usize, ROUTES - 2 - n);
    }
    for path in ["/999", "/0", "/500"] {
        let answer = client.send(request(Method::GET, path)).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    assert_eq!(layer.limiter().len(), 1);
}

#[tokio::test]
async fn separate_layers_have_separate_budgets() {
    let clock = ManualClock::new();
    let app = Router::new()
        .route("/a", get(|| async {}).layer(per_ip(Quota::per_minute(1), &clock)))
        .route("/b", get(|| async {}).layer(per_ip(Quota::per_minute(1), &clock)));
    let server = Server::start(app).await;
    for (path, status) in [("/a", 200), ("/b", 200), ("/a", 429), ("/b", 429)] {
        assert_eq!(support::get(server.address, Version::Http1, path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_path_without_a_route_is_limited_too() {
    let server = Server::start(hello().layer(per_ip(Quota::per_minute(1), &ManualClock::new()))).await;
    assert_eq!(support::get(server.address, Version::Http1, "/nowhere").await.status, 404);
    assert_eq!(support::get(server.address, Version::Http1, "/nowhere").await.status, 429);
}

#[tokio::test]
async fn redirects_carry_no_fields_but_all_other_responses_do() {
    let app = Router::new()
        .route(
            "/status/{code}",
            get(|axum::extract::Path(code): axum::extract::Path<u16>| async move {
                StatusCode::from_u16(code).unwrap()
            }),
        )
        .route("/away", get(|| async { Redirect::to("/status/200") }))
        .layer(per_ip(Quota::per_minute(100), &ManualClock::new()));
    let server = Server::start(app).await;
    for code in [300, 301, 302, 303, 307, 308, 399] {
        let answer = support::get(server.address, Version::Http1, &format!("/status/{code}")).await;
        assert_eq!(answer.status, code);
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
    }
    assert!(!support::get(server.address, Version::Http2, "/away").await.has("ratelimit"));
    for code in [200, 204, 299, 304, 400, 404, 429, 500, 503] {
        let answer = support::get(server.address, Version::Http1, &format!("/status/{code}")).await;
        assert_eq!(answer.status, code);
        assert!(answer.has("ratelimit") && answer.has("ratelimit-policy"), "{answer:?}");
        assert!(!answer.has("retry-after"), "{answer:?}");
    }
}

#[tokio::test]
async fn the_fields_of_an_inner_limiter_stay_and_those_of_the_outer_are_added() {
    let clock = ManualClock::new();
    let app = hello()
        .layer(per_ip(Quota::per_minute(2), &clock).name("inner"))
        .layer(per_ip(Quota::per_hour(3), &clock).name("outer"));
    for version in VERSIONS {
        clock.advance(Duration::from_secs(3_600));
        let server = Server::start(app.clone()).await;
        let names = |answer: &Answer, field: &str| {
            answer.items(field).into_iter().map(|item| item.name).collect::<Vec<_>>()
        };
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(names(&answer, "ratelimit"), ["inner", "outer"]);
        assert_eq!(names(&answer, "ratelimit-policy"), ["inner", "outer"]);

        support::get(server.address, version, "/").await;
        // The inner limiter denies the request, and its response passes through the outer limiter.
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(answer.status, 429);
        assert_eq!(names(&answer, "ratelimit"), ["inner", "outer"]);
        assert_eq!(answer.retry_after(), 30);
        assert_eq!(answer.json()["violated-policies"], serde_json::json!(["inner"]));

        // The outer limiter denies the request, so the inner limiter is not called.
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(answer.status, 429);
        assert_eq!(names(&answer, "ratelimit"), ["outer"]);
        assert_eq!(answer.retry_after(), 1_200);
    }
}

#[tokio::test]
async fn fields_that_an_inner_service_sets_are_left_alone() {
    let app = Router::new()
        .route(
            "/",
            get(|| async {
                let own = [("retry-after", "77"), ("ratelimit", "\"own\";r=1"), ("content-type", "text/x")];
                (StatusCode::SERVICE_UNAVAILABLE, own, "busy").into_response()
            }),
        )
        .layer(per_ip(Quota::per_minute(9), &ManualClock::new()));
    let server = Server::start(app).await;
    let answer = support::get(server.address, Version::Http1, "/").await;
    assert_eq!(answer.header("retry-after"), "77");
    assert_eq!(answer.header("content-type"), "text/x");
    assert_eq!(answer.text(), "busy");
    let names: Vec<_> = answer.items("ratelimit").into_iter().map(|item| item.name).collect();
    assert_eq!(names, ["own", "default"]);
}

/// A body that records each poll.
struct Watched(Arc<AtomicBool>);

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.store(true, Ordering::SeqCst);
        Poll::Ready(None)
    }
}

fn upload() -> Router {
    Router::new().route("/", post(|body: Bytes| async move { format!("{} bytes", body.len()) }))
}

#[tokio::test]
async fn the_body_of_a_rejected_upload_is_never_polled() {
    let app = upload().layer(RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(1))));
    for (polled, status) in [(true, StatusCode::OK), (false, StatusCode::TOO_MANY_REQUESTS)] {
        let watch = Arc::new(AtomicBool::new(false));
        let request = Request::post("/").body(Body::new(Watched(watch.clone()))).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(watch.load(Ordering::SeqCst), polled, "{status}");
    }
}

#[tokio::test]
async fn a_rejected_upload_gets_no_100_continue() {
    let app = upload().layer(per_ip(Quota::per_hour(1), &ManualClock::new()));
    let server = Server::start(app).await;
    let ask = || async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n").await;
        (stream, answer)
    };
    let (mut stream, answer) = ask().await;
    assert!(answer.starts_with("HTTP/1.1 100 "), "{answer}");
    stream.write_all(b"abc").await.unwrap();
    let answer = read_until(&mut stream, "3 bytes").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    let (_stream, answer) = ask().await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

#[tokio::test]
async fn an_upload_that_is_rejected_midway_gets_its_response() {
    for version in VERSIONS {
        let app = upload().layer(per_ip(Quota::per_hour(1), &ManualClock::new()));
        let server = Server::start(app).await;
        let upload = || {
            let mut upload = request(Method::POST, "/");
            *upload.body_mut() = Full::from(vec![b'x'; 1 << 20]);
            upload
        };
        assert_eq!(send(server.address, version, upload()).await.text(), "1048576 bytes");
        assert_eq!(send(server.address, version, upload()).await.status, 429, "{version:?}");
    }
}

#[tokio::test]
async fn a_head_request_gets_the_same_head_as_a_get() {
    for version in VERSIONS {
        let app = hello().layer(per_ip(Quota::per_minute(2), &ManualClock::new()));
        let server = Server::start(app).await;
        let call = |method| send(server.address, version, request(method, "/"));

        let head = call(Method::HEAD).await;
        assert_eq!((head.status, head.header("ratelimit")), (StatusCode::OK, "\"default\";r=1;t=30"));
        assert_eq!(call(Method::GET).await.text(), "hello");
        let (get, head) = (call(Method::GET).await, call(Method::HEAD).await);
        assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(head.reported(), get.reported());
        assert_eq!(head.header("content-length"), get.body.len().to_string());
        assert!(head.body.is_empty());
    }
}

#[tokio::test]
async fn a_header_is_a_key_and_its_absence_is_one_too() {
    let layer = RateLimitLayer::new(Header::new("X-Api-Key").unwrap(), TokenBucket::new(Quota::per_hour(1)));
    for version in VERSIONS {
        let server = Server::start(hello().layer(layer.clone())).await;
        let call = async |keys: &[&str]| {
            let mut request = request(Method::GET, "/");
            for key in keys {
                request.headers_mut().append("x-api-key", key.parse().unwrap());
            }
            send(server.address, version, request).await
        };
        let name = format!("{version:?}");
        assert_eq!(call(&[&name]).await.status, 200);
        assert_eq!(call(&[&name]).await.status, 429);
        assert_eq!(call(&[&format!("other {name}")]).await.status, 200);
        // All callers without the header share one budget, whatever their connections.
        assert_eq!(call(&[]).await.status, if version == Version::Http1 { 200 } else { 429 });
        assert_eq!(call(&[]).await.status, 429);
        // Two values of the header are an error.
        let answer = call(&["secret", "secret"]).await;
        assert_eq!(answer.status, 400);
        assert!(!answer.text().contains("x-api-key") && !answer.text().contains("secret"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_tuple_is_one_key_of_several_parts() {
    let key = (PeerIp::new(), Header::new("x-api-key").unwrap());
    let app = hello().layer(RateLimitLayer::new(key, TokenBucket::new(Quota::per_hour(1))));
    let call = async |peer: u8, key: &'static str| {
        let mut request = Request::get("/").header("x-api-key", key).body(Body::empty()).unwrap();
        request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, peer], 4711)));
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for (peer, key, status) in
        [(1, "a", 200), (1, "a", 429), (1, "b", 200), (2, "a", 200), (2, "a", 429), (1, "b", 429)]
    {
        assert_eq!(call(peer, key).await, status, "{peer} {key}");
    }
}

#[derive(Clone)]
struct User {
    id: u64,
}

#[tokio::test]
async fn an_extension_that_an_outer_layer_fills_is_a_key() {
    // Callers without the extension have no key, unless the layer is configured to let them share one.
    let by_user = Extension::<User, _>::new(|user| user.id);
    assert_eq!(statuses_of_users(by_user.clone()).await, [200, 429, 200, 500, 500, 200]);
    assert_eq!(statuses_of_users(by_user.or_shared()).await, [200, 429, 200, 200, 429, 200]);
}

/// Returns the statuses of calls by the users 1, 1, 2, none, none and 3, with a limit of one call per user.
async fn statuses_of_users<K>(key: K) -> Vec<u16>
where
    K: KeyExtractor<Request<Body>> + Clone + Send + Sync + 'static,
{
    use axum::middleware::{Next, from_fn as middleware};

    let app = hello().layer(RateLimitLayer::new(key, TokenBucket::new(Quota::per_hour(1)))).layer(
        middleware(async |mut request: Request<Body>, next: Next| {
            let id = request.headers().get("x-user").and_then(|id| id.to_str().ok()?.parse().ok());
            if let Some(id) = id {
                request.extensions_mut().insert(User { id });
            }
            next.run(request).await
        }),
    );
    let server = Server::start(app).await;
    let mut client = Client1::http1(server.address).await;
    let mut statuses = Vec::new();
    for user in [Some(1), Some(1), Some(2), None, None, Some(3)] {
        let mut request = request(Method::GET, "/");
        if let Some(user) = user {
            request.headers_mut().insert("x-user", user.into());
        }
        statuses.push(client.send(request).await.status.as_u16());
    }
    statuses
}

#[tokio::test]
async fn a_key_of_none_is_not_limited_and_carries_no_fields() {
    let but_health =
        from_fn(|request: &Request<Body>| (request.uri().path() != "/health").then_some("everyone"));
    let app = hello()
        .route("/health", get(|| async { "fine" }))
        .layer(RateLimitLayer::new(but_health, TokenBucket::new(Quota::per_hour(1))));
    let server = Server::start(app).await;
    let mut client = Client2::http2(server.address).await;
    for _ in 0..20 {
        let answer = client.send(request(Method::GET, "/health")).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "fine"));
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
    }
    assert_eq!(client.send(request(Method::GET, "/")).await.status, 200);
    assert_eq!(client.send(request(Method::GET, "/")).await.status, 429);
}

#[tokio::test]
async fn a_cost_is_a_function_of_the_request() {
    // The type of the body is inferred, both here and in the layer of a route.
    let layer = per_ip(Quota::per_minute(10), &ManualClock::new()).cost(|request: &Request<_>| match request
        .uri()
        .path()
    {
        "/export" => 6,
        "/health" => 0,
        "/never" => 11,
        _ => 1,
    });
    let app = Router::new().fallback(any(|| async {})).layer(layer);
    let server = Server::start(app).await;
    let mut client = Client1::http1(server.address).await;
    let mut call = async |path| client.send(request(Method::GET, path)).await;
    assert_eq!(call("/export").await.header("ratelimit"), "\"default\";r=4;t=24");
    let denied = call("/export").await;
    assert_eq!((denied.status.as_u16(), denied.retry_after()), (429, 12));
    assert_eq!(denied.header("ratelimit"), "\"default\";r=4;t=12");
    assert_eq!(call("/").await.header("ratelimit"), "\"default\";r=3;t=18");
    for _ in 0..3 {
        assert_eq!(call("/").await.status, 200);
    }
    assert_eq!(call("/").await.status, 429);
    assert_eq!(call("/health").await.header("ratelimit"), "\"default\";r=0;t=6");
    // Waiting does not help.
    let never = call("/never").await;
    assert_eq!((never.status.as_u16(), never.has("retry-after")), (429, false));
    assert_eq!(never.header("ratelimit"), "\"default\";r=0");
}

#[tokio::test]
async fn a_cost_is_inferred_around_a_method_router_too() {
    let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(5)))
        .cost(|request: &Request<_>| request.uri().path().len() as u64);
    let app: Router = Router::new().route("/abcd", get(|| async {}).layer(layer));
    let call = || async { app.clone().oneshot(Request::get("/abcd").body(Body::empty()).unwrap()).await };
    assert_eq!(call().await.unwrap().status(), 200);
    assert_eq!(call().await.unwrap().status(), 429);
}

#[test]
#[should_panic(expected = "printable ASCII")]
fn a_name_that_no_field_can_carry_panics() {
    let _ = RateLimitLayer::per_ip(Quota::per_second(1)).name("a\nb");
}

#[test]
fn a_name_from_outside_the_program_is_validated() {
    let layer = || RateLimitLayer::per_ip(Quota::per_second(1));
    for name in ["a\nb", "a\rb", "", "\u{7f}", "Zürich", &"x".repeat(257)] {
        let error = layer().try_name(name).unwrap_err().to_string();
        assert!(error.contains("printable ASCII") && !error.contains('\n'), "{error}");
    }
    for name in [" ", "login", "a\"b\\c", &"x".repeat(256)] {
        assert!(layer().try_name(name).is_ok(), "{name}");
    }
}

#[tokio::test]
async fn a_name_is_quoted_in_fields_and_bodies() {
    let name = r#"log"in \ "sign up""#;
    let layer = per_ip(Quota::per_minute(1), &ManualClock::new()).name(name);
    for version in VERSIONS {
        layer.limiter().reset(&std::net::IpAddr::from([127, 0, 0, 1]));
        let server = Server::start(hello().layer(layer.clone())).await;
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(answer.header("ratelimit-policy"), r#""log\"in \\ \"sign up\"";q=1;w=60"#);
        assert_eq!(Item::read(answer.header("ratelimit")).name, name);
        assert_denied(&support::get(server.address, version, "/").await, name, (1, 60), 60);
    }
}

#[tokio::test]
async fn the_largest_quota_is_reported_in_fifteen_digits() {
    let app = hello().layer(per_ip(Quota::per_day(u64::MAX), &ManualClock::new()));
    let server = Server::start(app).await;
    let answer = support::get(server.address, Version::Http1, "/").await;
    assert_eq!(Item::read(answer.header("ratelimit-policy")).get("q"), 999_999_999_999_999);
    assert_eq!(Item::read(answer.header("ratelimit")).get("r"), 999_999_999_999_999);
}

#[tokio::test]
async fn a_limiter_is_shared_between_layers() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(2)));
    let app = Router::new()
        .route("/a", get(|| async {}).layer(RateLimitLayer::with_limiter(Global, limiter.clone()).name("a")))
        .route("/b", get(|| async {}).layer(RateLimitLayer::with_limiter(Global, limiter.clone()).name("b")));
    let server = Server::start(app).await;
    let mut client = Client1::http1(server.address).await;
    let a = client.send(request(Method::GET, "/a")).await;
    let b = client.send(request(Method::GET, "/b")).await;
    assert_eq!(a.items("ratelimit")[0].name, "a");
    assert_eq!((b.items("ratelimit")[0].name.as_str(), b.items("ratelimit")[0].get("r")), ("b", 0));
    assert!(!limiter.check(&()).is_allowed());
    assert_eq!(client.send(request(Method::GET, "/a")).await.status, 429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_upload_arrives_whole() {
    for version in VERSIONS {
        let bucket = LeakyBucket::new(Quota::per_second(20)).queue(3);
        let server = Server::start(upload().layer(RateLimitLayer::new(Global, bucket))).await;
        let mut uploads = tokio::task::JoinSet::new();
        for n in 0..4_usize {
            let mut upload = request(Method::POST, "/");
            *upload.body_mut() = Full::from(vec![b'x'; (1 << 20) + n]);
            uploads.spawn(async move { (n, send(server.address, version, upload).await) });
        }
        for (n, answer) in uploads.join_all().await {
            assert_eq!(answer.text(), format!("{} bytes", (1 << 20) + n), "{version:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_queue_slot() {
    for version in VERSIONS {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::per_second(1)).queue(2);
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
        let served = Arc::new(AtomicUsize::new(0));
        let handler = {
            let served = served.clone();
            move || async move { served.fetch_add(1, Ordering::SeqCst) + 1 }
        };
        let app = Router::new()
            .route("/", get(async move || handler().await.to_string()))
            .layer(RateLimitLayer::with_limiter(Global, limiter.clone()));
        let server = Server::start(app).await;
        let waiting = async |calls: u64| {
            // Waits until `calls` calls are queued. Each of them adds one second to the wait that a peek reports.
            let wait = Some(Duration::from_secs(calls + 1));
            while limiter.peek(&()).retry_after() != wait {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };

        assert_eq!(support::get(server.address, version, "/").await.text(), "1");
        let spawn = || tokio::spawn(async move { support::get(server.address, version, "/").await });
        let leaves = spawn();
        waiting(1).await;
        let stays = spawn();
        waiting(2).await;
        assert_eq!(support::get(server.address, version, "/").await.status, 429);
        leaves.abort();
        waiting(1).await;
        let comes = spawn();
        waiting(2).await;
        clock.advance(Duration::from_secs(1));
        assert_eq!(stays.await.unwrap().text(), "2", "{version:?}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(comes.await.unwrap().text(), "3", "{version:?}");
        assert_eq!(served.load(Ordering::SeqCst), 3);
    }
}

/// Tests the example of the README, which allows five failed log-ins a minute. Successful log-ins are free.
#[tokio::test]
async fn correct_passwords_are_free_and_exactly_five_failures_are_admitted() {
    let logins = RateLimitLayer::new(PeerIp::new(), FixedWindow::new(Quota::per_minute(5)))
        .settle(|response: &axum::response::Response| u64::from(!response.status().is_success()));
    let app = Router::new()
        .route("/right", get(|| async { "welcome" }))
        .route("/wrong", get(|| async { StatusCode::UNAUTHORIZED }))
        .layer(logins);
    let server = Server::start(app).await;
    let mut client = Client1::http1(server.address).await;
    for login in 0..20 {
        let answer = client.send(request(Method::GET, "/right")).await;
        assert_eq!(answer.status, StatusCode::OK, "log-in {login}: {answer:?}");
        assert_eq!(Item::read(answer.header("ratelimit")).get("r"), 5, "log-in {login}: {answer:?}");
    }
    for left in (0..5).rev() {
        let answer = client.send(request(Method::GET, "/wrong")).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{left} left: {answer:?}");
        assert_eq!(Item::read(answer.header("ratelimit")).get("r"), left, "{answer:?}");
    }
    for path in ["/wrong", "/right"] {
        let answer = client.send(request(Method::GET, path)).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{answer:?}");
    }
}
