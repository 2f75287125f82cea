//! The stack that the guide recommends, and the effects of each layer's place that the guide describes.

mod other_orders;
mod recommended;

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
use http_body_util::Full;
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tower_throttle::RateLimitLayer;
use tower_throttle::key::{Extension, PeerIp};

use crate::support::{Answer, Server, request};
use crate::{HERE, Limiter, left, limiter};

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

/// Returns a request with the address that a server would insert.
pub(crate) fn from_here(path: &str) -> Request {
    let mut request = Request::get(path).body(Body::empty()).unwrap();
    request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from((HERE, 4_711))));
    request
}
