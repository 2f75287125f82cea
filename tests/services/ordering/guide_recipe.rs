//! The stack that the guide recommends, and the effects of each layer's place that the guide describes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, http};
use http_body_util::{BodyExt, Full};
use tower::{ServiceBuilder, ServiceExt};
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tower_throttle::RateLimitLayer;
use tower_throttle::key::{Extension, PeerIp};

use crate::support::{Answer, Client1, Server, VERSIONS, Version, request, send};
use crate::{HERE, Limiter, left, limiter, panics};

#[derive(Clone)]
struct User {
    id: u64,
}

/// A middleware that inserts the user of the request's token, and rejects requests without a valid token.
async fn sign_in(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(header::AUTHORIZATION).and_then(|line| line.to_str().ok());
    match token.and_then(|token| token.strip_prefix("Bearer user-")?.parse().ok()) {
        Some(id) => {
            request.extensions_mut().insert(User { id });
            next.run(request).await
        }
        None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

pub(crate) fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(HeaderValue::from_static("https://app.example"))
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE])
        // what a page's script may read
        .expose_headers(["ratelimit", "ratelimit-policy", "retry-after"].map(HeaderName::from_static))
}

/// A record of the requests and responses at one place in a stack.
#[derive(Clone, Default)]
struct Probe {
    requests: Arc<AtomicUsize>,
    statuses: Arc<Mutex<Vec<u16>>>,
}

impl Probe {
    fn on(&self, app: Router) -> Router {
        let probe = self.clone();
        app.layer(from_fn(move |request: Request, next: Next| {
            let probe = probe.clone();
            async move {
                probe.requests.fetch_add(1, Ordering::SeqCst);
                let response = next.run(request).await;
                probe.statuses.lock().unwrap().push(response.status().as_u16());
                response
            }
        }))
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn statuses(&self) -> Vec<u16> {
        self.statuses.lock().unwrap().clone()
    }
}

fn routes() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/long", get(|| async { "hello ".repeat(1_000) }))
        .route("/slow", get(std::future::pending::<()>))
        .route("/upload", post(|body: Bytes| async move { body.len().to_string() }))
}

fn by_address(limiter: &Limiter) -> RateLimitLayer<PeerIp, tower_throttle::algorithm::FixedWindow> {
    RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone()).name("address")
}

type ByUser = Extension<User, fn(&User) -> u64>;

fn by_user(limiter: &Limiter) -> RateLimitLayer<ByUser, tower_throttle::algorithm::FixedWindow> {
    RateLimitLayer::with_limiter(ByUser::new(|user| user.id), limiter.clone()).name("user")
}

struct Stack {
    app: Router,
    address: Limiter,
    user: Limiter,
    outside: Probe,
    inside: Probe,
}

impl Stack {
    /// Builds the stack of the guide.
    fn new(address: u64, user: u64) -> Self {
        let [address, user] = [address, user].map(limiter);
        let [outside, inside] = [Probe::default(), Probe::default()];
        let (by_address, by_user) = (by_address(&address), by_user(&user));
        let app = inside.on(routes()).layer(
            ServiceBuilder::new()
                .layer(TraceLayer::new_for_http())
                .layer(cors())
                .layer(by_address)
                .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(10)))
                .layer(from_fn(sign_in))
                .layer(by_user)
                .layer(RequestBodyLimitLayer::new(64 * 1_024))
                .layer(CompressionLayer::new()),
        );
        Self { app: outside.on(app), address, user, outside, inside }
    }

    async fn start(&self) -> Server {
        Server::start(self.app.clone()).await
    }

    fn left(&self, user: u64) -> (u64, u64) {
        (left(&self.address, &HERE), left(&self.user, &user))
    }
}

/// The stack in the guide is the stack that is tested here.
#[test]
fn the_order_is_that_of_the_guide() {
    let layers = |text: &str, begin: &str, end: &str| -> Vec<String> {
        let text = &text[text.find(begin).unwrap()..];
        let lines = text[..text.find(end).unwrap()].lines().map(str::trim);
        lines.filter(|line| line.starts_with('.')).map(|line| line.replace("cors()", "cors")).collect()
    };
    let (guide, tested) = (include_str!("../../../src/guide/ordering.md"), include_str!("guide_recipe.rs"));
    let order = layers(guide, "ServiceBuilder::new()\n", ");\n```");
    assert_eq!(order.len(), 8);
    assert_eq!(order, layers(tested, "ServiceBuilder::new()\n", ");\n        Self"));
    let cors = layers(guide, "CorsLayer::new()\n", ";\nlet");
    assert_eq!(cors.len(), 4);
    assert_eq!(cors, layers(tested, "CorsLayer::new()\n", "\n}\n"));
}

type Lines<'a> = &'a [(&'static str, &'static str)];

fn asking(method: Method, path: &str, lines: Lines<'_>) -> http::Request<Full<Bytes>> {
    let mut request = request(method, path);
    for (name, value) in lines {
        request.headers_mut().append(*name, HeaderValue::from_static(value));
    }
    request
}

const ORIGIN: (&str, &str) = ("origin", "https://app.example");
const ANNA: (&str, &str) = ("authorization", "Bearer user-1");
const BERT: (&str, &str) = ("authorization", "Bearer user-2");

fn preflight() -> http::Request<Full<Bytes>> {
    let lines = [
        ORIGIN,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    asking(Method::OPTIONS, "/upload", &lines)
}

/// Returns whether a page of the test's origin may read the response and its header fields.
fn is_readable(answer: &Answer) -> bool {
    let allowed = answer.has("access-control-allow-origin");
    if allowed {
        assert_eq!(answer.header("access-control-allow-origin"), ORIGIN.1);
        assert_eq!(answer.header("access-control-expose-headers"), "ratelimit,ratelimit-policy,retry-after");
    }
    allowed
}

#[tokio::test]
async fn preflights_are_answered_with_or_without_units_left_and_not_counted() {
    for version in VERSIONS {
        let stack = Stack::new(2, 9);
        let server = stack.start().await;
        for left in [1, 0] {
            for _ in 0..10 {
                let answer = send(server.address, version, preflight()).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                assert_eq!(answer.header("access-control-allow-origin"), ORIGIN.1);
                assert_eq!(answer.header("access-control-allow-methods"), "GET,POST");
                assert_eq!(answer.header("access-control-allow-headers"), "authorization,content-type");
                assert!(!answer.has("ratelimit"), "{answer:?}");
            }
            let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN, ANNA])).await;
            assert_eq!((answer.status, stack.left(1)), (StatusCode::OK, (left, 7 + left)));
        }
        // tower-http's layer treats each `OPTIONS` request as a preflight.
        for options in [preflight(), request(Method::OPTIONS, "/")] {
            assert_eq!(send(server.address, version, options).await.status, 200);
        }
        assert_eq!(send(server.address, version, request(Method::GET, "/")).await.status, 429);
    }
}

#[tokio::test]
async fn rejections_are_readable_for_pages_and_seen_by_tracing() {
    for (address, user, name) in [(1, 9, "address"), (9, 1, "user")] {
        for version in VERSIONS {
            let stack = Stack::new(address, user);
            let server = stack.start().await;
            for (status, inside) in [(200, 1), (429, 1), (429, 1)] {
                let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN, ANNA])).await;
                assert_eq!(answer.status, status);
                assert!(is_readable(&answer), "{answer:?}");
                assert_eq!(answer.has("retry-after"), status == 429, "{answer:?}");
                assert!(answer.items("ratelimit").iter().any(|item| item.name == name), "{answer:?}");
                assert_eq!(stack.inside.requests(), inside);
            }
            assert_eq!(stack.outside.statuses(), [200, 429, 429]);
        }
    }
}

#[tokio::test]
async fn guessed_tokens_are_rejected_before_one_more_is_checked() {
    let stack = Stack::new(5, 9);
    let server = stack.start().await;
    let mut client = Client1::http1(server.address).await;
    for _ in 0..5 {
        let answer = client.send(asking(Method::GET, "/", &[("authorization", "Bearer guessed")])).await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.items("ratelimit")[0].name, "address");
    }
    // From now on, even the right token is not checked.
    let answer = client.send(asking(Method::GET, "/", &[ANNA])).await;
    assert_eq!(
        (answer.status, answer.json()["violated-policies"][0].as_str()),
        (StatusCode::TOO_MANY_REQUESTS, Some("address"))
    );
    assert_eq!((stack.inside.requests(), stack.left(1)), (0, (0, 9)));
}

#[tokio::test]
async fn each_user_has_a_budget_and_rejected_calls_use_up_that_of_their_address() {
    let stack = Stack::new(9, 2);
    let server = stack.start().await;
    let mut client = Client1::http1(server.address).await;
    let mut ask = async |user| client.send(asking(Method::GET, "/", &[user])).await.status.as_u16();
    for (user, status) in
        [(ANNA, 200), (ANNA, 200), (ANNA, 429), (BERT, 200), (ANNA, 429), (BERT, 200), (BERT, 429)]
    {
        assert_eq!(ask(user).await, status, "{user:?}");
    }
    assert_eq!(stack.left(1), (2, 0));
    assert_eq!(stack.left(2), (2, 0));
    assert_eq!(stack.left(3), (2, 2));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_counted_and_a_rejection_comes_first() {
    for version in VERSIONS {
        let stack = Stack::new(9, 2);
        let server = stack.start().await;
        for status in [413, 413, 429] {
            let mut upload = asking(Method::POST, "/upload", &[ANNA]);
            *upload.body_mut() = Full::from(vec![0; 64 * 1_024 + 1]);
            let answer = send(server.address, version, upload).await;
            assert_eq!(answer.status, status, "{version:?}");
            assert_eq!(answer.items("ratelimit").len(), 2, "{answer:?}");
        }
        assert_eq!((stack.inside.requests(), stack.left(1)), (0, (6, 0)));
    }
}

#[tokio::test]
async fn responses_are_compressed_and_rejections_are_not() {
    for version in VERSIONS {
        let stack = Stack::new(9, 1);
        let server = stack.start().await;
        let lines: Lines<'_> = &[ANNA, ("accept-encoding", "gzip")];
        let answer = send(server.address, version, asking(Method::GET, "/long", lines)).await;
        assert_eq!((answer.status, answer.header("content-encoding")), (StatusCode::OK, "gzip"));
        assert!(answer.body.len() < 600 && answer.items("ratelimit").len() == 2, "{answer:?}");
        let answer = send(server.address, version, asking(Method::GET, "/long", lines)).await;
        assert_eq!((answer.status, answer.has("content-encoding")), (StatusCode::TOO_MANY_REQUESTS, false));
        assert_eq!(answer.json()["violated-policies"][0], "user");
    }
}

/// Returns a request with the address that a server would insert.
pub(crate) fn from_here(path: &str) -> Request {
    let mut request = Request::get(path).body(Body::empty()).unwrap();
    request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from((HERE, 4_711))));
    request
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_too_slow_times_out_with_the_fields_of_the_outer_layers() {
    let stack = Stack::new(9, 9);
    let mut request = from_here("/slow");
    request.headers_mut().insert("authorization", HeaderValue::from_static(ANNA.1));
    let begin = tokio::time::Instant::now();
    let answer = Answer::read(stack.app.clone().oneshot(request).await.unwrap()).await;
    assert_eq!((answer.status, begin.elapsed().as_secs()), (StatusCode::GATEWAY_TIMEOUT, 10));
    assert_eq!(
        answer.items("ratelimit").iter().map(|item| item.name.as_str()).collect::<Vec<_>>(),
        ["address"]
    );
    // Both limits have counted the request.
    assert_eq!(stack.left(1), (8, 8));
}

// The following tests have the layers in another order.

#[tokio::test]
async fn with_cors_inside_preflights_cost_units_and_rejections_cannot_be_read() {
    for version in VERSIONS {
        let address = limiter(3);
        let server = Server::start(routes().layer(cors()).layer(by_address(&address))).await;
        let get = || asking(Method::GET, "/", &[ORIGIN]);
        assert_eq!(send(server.address, version, preflight()).await.status, 200);
        assert_eq!(left(&address, &HERE), 2);
        assert!(is_readable(&send(server.address, version, get()).await));
        assert_eq!(send(server.address, version, preflight()).await.status, 200);
        for refused in [preflight(), get()] {
            let answer = send(server.address, version, refused).await;
            assert_eq!((answer.status, is_readable(&answer)), (StatusCode::TOO_MANY_REQUESTS, false));
        }
    }
}

#[tokio::test]
async fn with_cors_inside_preflights_can_be_left_uncounted_but_rejections_cannot_be_read() {
    for version in VERSIONS {
        let address = limiter(1);
        let layer = by_address(&address).unless(tower_throttle::key::Preflight);
        let server = Server::start(routes().layer(cors()).layer(layer)).await;
        for (status, readable) in [(200, true), (429, false)] {
            assert_eq!(send(server.address, version, preflight()).await.status, 200);
            let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN])).await;
            assert_eq!((answer.status.as_u16(), is_readable(&answer)), (status, readable), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn with_tracing_inside_rejections_are_not_seen() {
    let probe = Probe::default();
    let server = Server::start(probe.on(routes()).layer(by_address(&limiter(1)))).await;
    for status in [200, 429, 429] {
        assert_eq!(send(server.address, Version::Http1, request(Method::GET, "/")).await.status, status);
    }
    assert_eq!(probe.statuses(), [200]);
}

#[tokio::test]
async fn with_auth_outside_the_limit_by_address_guesses_are_never_rejected() {
    let address = limiter(5);
    let server = Server::start(routes().layer(by_address(&address)).layer(from_fn(sign_in))).await;
    let mut client = Client1::http1(server.address).await;
    for _ in 0..50 {
        let answer = client.send(asking(Method::GET, "/", &[("authorization", "Bearer guessed")])).await;
        assert_eq!((answer.status, answer.has("ratelimit")), (StatusCode::UNAUTHORIZED, false));
    }
    assert_eq!(left(&address, &HERE), 5);
}

#[tokio::test]
async fn with_the_limit_by_user_outside_of_auth_no_request_has_a_key() {
    let user = limiter(2);
    let server = Server::start(routes().layer(from_fn(sign_in)).layer(by_user(&user))).await;
    for (name, status) in [(ANNA, 500), (BERT, 500)] {
        let answer = send(server.address, Version::Http1, asking(Method::GET, "/", &[name])).await;
        assert_eq!(answer.status, status, "{name:?}");
    }
    assert_eq!([left(&user, &1_u64), left(&user, &2_u64)], [2, 2]);
}

#[tokio::test]
async fn with_the_limit_on_bodies_outside_a_body_that_is_too_large_is_not_counted() {
    let address = limiter(2);
    let server =
        Server::start(routes().layer(by_address(&address)).layer(RequestBodyLimitLayer::new(10))).await;
    for version in VERSIONS {
        let mut upload = request(Method::POST, "/upload");
        *upload.body_mut() = Full::from("eleven bytes");
        assert_eq!(send(server.address, version, upload).await.status, 413, "{version:?}");
    }
    assert_eq!(left(&address, &HERE), 2);
}

#[tokio::test]
async fn with_compression_outside_rejections_are_compressed_too() {
    let app = routes().layer(by_address(&limiter(1))).layer(CompressionLayer::new());
    let server = Server::start(app).await;
    for status in [200, 429] {
        let asked = asking(Method::GET, "/long", &[("accept-encoding", "gzip")]);
        let answer = send(server.address, Version::Http1, asked).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-encoding")), (status, "gzip"));
        assert!(answer.has("ratelimit"));
    }
}

#[tokio::test]
async fn catch_panic_belongs_outside_of_the_limits_and_inside_of_cors() {
    use tower_http::catch_panic::CatchPanicLayer;
    let routes = || Router::new().route("/", get(panics));
    for version in VERSIONS {
        let [inside, outside] = [limiter(2), limiter(2)];
        let app = routes().layer(by_address(&inside)).layer(CatchPanicLayer::new()).layer(cors());
        let server = Server::start(app).await;
        for (status, left_then) in [(500, 1), (500, 0), (429, 0)] {
            let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN])).await;
            assert_eq!((answer.status.as_u16(), is_readable(&answer)), (status, true), "{answer:?}");
            assert_eq!(left(&inside, &HERE), left_then);
        }
        let app = routes().layer(by_address(&outside)).layer(cors()).layer(CatchPanicLayer::new());
        let server = Server::start(app).await;
        let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN])).await;
        assert_eq!((answer.status.as_u16(), is_readable(&answer)), (500, false), "{answer:?}");
    }
}

#[tokio::test]
async fn bodies_of_rejected_uploads_are_not_read_by_a_limit_on_them() {
    let stack = Stack::new(1, 1);
    let polled = Arc::new(AtomicUsize::new(0));
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let counted = polled.clone();
        let body = Full::from("body").map_frame(move |frame| {
            counted.fetch_add(1, Ordering::SeqCst);
            frame
        });
        let mut upload = from_here("/upload");
        *upload.method_mut() = Method::POST;
        upload.headers_mut().insert("authorization", HeaderValue::from_static(ANNA.1));
        *upload.body_mut() = Body::new(body);
        assert_eq!(stack.app.clone().oneshot(upload).await.unwrap().status(), status);
        assert_eq!(polled.load(Ordering::SeqCst), 1);
    }
}
