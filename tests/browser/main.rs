//! Tests of what the script of a page can read of a limit's responses, in headless Chromium. The page has one origin,
//! and calls a server with another origin.
#![cfg(feature = "axum")]

mod cached;
mod chromium;
mod shown;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn};
use axum::routing::{get, put};
use chromium::Page;
use serde_json::{Value, json};
use support::Server;
use tower_http::cors::CorsLayer;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{PeerIp, Preflight};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

type Limit = RateLimitLayer<PeerIp, FixedWindow>;

/// A limit of two calls an hour, on a clock that stands still.
fn limit() -> Limit {
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_hour(2))).clock(ManualClock::new()).build();
    RateLimitLayer::with_limiter(PeerIp::new(), limiter)
}

/// The CORS layer of the guide, for a page at `origin`.
fn cors(origin: &str) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(HeaderValue::try_from(origin).unwrap())
        .allow_methods([Method::GET, Method::PUT])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE])
        // what a page's script may read
        .expose_headers(["ratelimit", "ratelimit-policy", "retry-after"].map(HeaderName::from_static))
}

/// The number of preflights that arrived, and the number of all other requests.
#[derive(Clone, Debug, Default)]
struct Came {
    preflights: Arc<AtomicUsize>,
    others: Arc<AtomicUsize>,
}

impl Came {
    fn counts(&self) -> (usize, usize) {
        (self.preflights.load(Ordering::SeqCst), self.others.load(Ordering::SeqCst))
    }
}

/// Starts a service for pages, with a limit and CORS in the given order.
async fn service(layered: impl FnOnce(Router) -> Router) -> (Server, Came) {
    let came = Came::default();
    let count = {
        let came = came.clone();
        move |request: Request, next: Next| {
            let count = if request.method() == Method::OPTIONS { &came.preflights } else { &came.others };
            count.fetch_add(1, Ordering::SeqCst);
            next.run(request)
        }
    };
    let routes =
        Router::new().route("/items", get(|| async { "items" })).route("/item", put(|| async { "put" }));
    (Server::start(layered(routes).layer(from_fn(count))).await, came)
}

/// A fetch without a preflight, made `times` times.
fn simple(server: &Server, times: usize) -> Value {
    json!({ "url": format!("http://{}/items", server.address), "times": times, "init": {} })
}

/// A fetch with a preflight, because of its method and its headers.
fn preflighted(server: &Server, times: usize) -> Value {
    let headers = json!({ "authorization": "Bearer user-1", "content-type": "application/json" });
    let init = json!({ "method": "PUT", "headers": headers, "body": "{}" });
    json!({ "url": format!("http://{}/item", server.address), "times": times, "init": init })
}

/// Returns the parts of a response that the script can read.
fn read(answer: &Value) -> (u64, [Option<&str>; 3]) {
    let field = |name: &str| answer["headers"][name].as_str();
    (answer["status"].as_u64().unwrap_or(0), ["ratelimit", "ratelimit-policy", "retry-after"].map(field))
}

const POLICY: Option<&str> = Some("\"default\";q=2;w=3600");

fn reported(left: u64) -> Option<&'static str> {
    Some(["\"default\";r=0;t=3600", "\"default\";r=1;t=3600"][left as usize])
}

/// Asserts that the script sees a failed fetch and nothing else.
fn assert_opaque(answer: &Value) {
    assert_eq!(answer, &json!({ "error": "TypeError: Failed to fetch" }));
}

#[tokio::test]
async fn with_cors_outside_a_page_reads_the_rejection_and_preflights_are_not_counted() {
    let page = Page::new().await;
    let limit = limit();
    let (server, came) = service(|routes| routes.layer(limit.clone()).layer(cors(&page.origin))).await;
    let (other, other_came) = service(|routes| routes.layer(self::limit()).layer(cors(&page.origin))).await;
    let answers = page.fetches(&[preflighted(&server, 4), simple(&server, 1), simple(&other, 3)]).await;
    for (at, left) in [(0, 1), (1, 0)] {
        assert_eq!(read(&answers[at]), (200, [reported(left), POLICY, None]), "{:?}", answers[at]);
        assert_eq!(answers[at]["text"], "put");
    }
    for at in [2, 3, 4] {
        let answer = &answers[at];
        assert_eq!(read(answer), (429, [reported(0), POLICY, Some("3600")]), "{answer:?}");
        let problem: Value = serde_json::from_str(answer["text"].as_str().unwrap()).unwrap();
        assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["default"])));
        assert_eq!(answer["headers"]["content-type"], "application/problem+json");
    }
    // A browser caches the result of a preflight for some seconds.
    let (preflights, others) = came.counts();
    assert!(preflights > 0 && others == 5, "{came:?}");
    let statuses: Vec<_> = answers[5..].iter().map(|answer| answer["status"].as_u64().unwrap()).collect();
    assert_eq!((statuses, other_came.counts()), (vec![200, 200, 429], (0, 3)));
}

#[tokio::test]
async fn a_page_does_not_see_fields_that_are_not_exposed() {
    let page = Page::new().await;
    let hiding = cors(&page.origin).expose_headers([header::ETAG]);
    let (server, _) = service(|routes| routes.layer(limit()).layer(hiding)).await;
    let answers = page.fetches(&[simple(&server, 3)]).await;
    let statuses = answers.iter().map(read).collect::<Vec<_>>();
    assert_eq!(statuses, [(200, [None; 3]), (200, [None; 3]), (429, [None; 3])]);
}

#[tokio::test]
async fn with_cors_inside_a_page_sees_a_network_error() {
    let page = Page::new().await;
    // These preflights are not cached.
    let forgotten = || cors(&page.origin).max_age(std::time::Duration::ZERO);
    let (server, came) = service(|routes| routes.layer(forgotten()).layer(limit())).await;
    let (other, _) = service(|routes| routes.layer(forgotten()).layer(limit())).await;
    let (unless, unless_came) =
        service(|routes| routes.layer(forgotten()).layer(limit().unless(Preflight))).await;
    let answers = page.fetches(&[preflighted(&server, 2), simple(&other, 3), preflighted(&unless, 3)]).await;
    // The first preflight and the request after it have used up the limit, so the second preflight was rejected, and
    // the second request was not sent.
    assert_eq!(read(&answers[0]), (200, [reported(0), POLICY, None]));
    assert_opaque(&answers[1]);
    assert_eq!(came.counts(), (2, 1));

    assert_eq!([read(&answers[2]).0, read(&answers[3]).0], [200, 200]);
    assert_opaque(&answers[4]);

    // If preflights are exempt, scripts still cannot read the rejections.
    assert_eq!([read(&answers[5]).0, read(&answers[6]).0], [200, 200]);
    assert_opaque(&answers[7]);
    assert_eq!(unless_came.counts(), (3, 3));
}
