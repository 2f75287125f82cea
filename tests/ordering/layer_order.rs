//! The order of layers, the routes to which each layer applies, and the requests that share a budget.

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use tower::ServiceBuilder;
use tower_throttle::RateLimitLayer;
use tower_throttle::key::{Global, Route};

use crate::support::{self, Answer, Server, VERSIONS, Version, request, send};
use crate::{left, limit, limiter, panics};

async fn ask(server: &Server, path: &str) -> Answer {
    support::get(server.address, Version::Http1, path).await
}

async fn status(server: &Server, path: &str) -> u16 {
    ask(server, path).await.status.as_u16()
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// Returns the names of the policies that denied the request.
fn denied_by(answer: &Answer) -> String {
    assert_eq!(answer.status, 429, "{answer:?}");
    answer.json()["violated-policies"].to_string()
}

#[tokio::test]
async fn the_last_layer_of_a_router_is_outermost_and_the_first_of_a_service_builder() {
    let layers = || [limit(1).name("inner"), limit(1).name("outer")];
    let [inner, outer] = layers();
    let bottom_up = hello().layer(inner).layer(outer);
    let [inner, outer] = layers();
    let top_down = hello().layer(ServiceBuilder::new().layer(outer).layer(inner));
    let [inner, outer] = layers();
    let each = hello().layer(ServiceBuilder::new().layer(inner)).layer(ServiceBuilder::new().layer(outer));
    for app in [bottom_up, top_down, each] {
        let server = Server::start(app).await;
        // A response passes the inner layer first.
        let answer = ask(&server, "/").await;
        let items = answer.items("ratelimit");
        assert_eq!(items.iter().map(|item| item.name.as_str()).collect::<Vec<_>>(), ["inner", "outer"]);
        // Both layers would deny the request, and the outer layer rejects it.
        assert_eq!(denied_by(&ask(&server, "/").await), "[\"outer\"]");
    }
}

#[tokio::test]
async fn a_layer_counts_calls_without_a_route_and_a_route_layer_does_not() {
    for (layered, counts) in [
        (hello().layer(limit(2)), true),
        (hello().route_layer(limit(2)), false),
        // The same is true with a custom fallback.
        (hello().fallback(|| async { StatusCode::NOT_FOUND }).layer(limit(2)), true),
        (hello().fallback(|| async { StatusCode::NOT_FOUND }).route_layer(limit(2)), false),
    ] {
        let server = Server::start(layered).await;
        for at in 0..5 {
            let answer = ask(&server, "/nowhere").await;
            let status = if counts && at >= 2 { 429 } else { 404 };
            assert_eq!((answer.status.as_u16(), answer.has("ratelimit")), (status, counts), "{answer:?}");
        }
        assert_eq!(status(&server, "/").await, if counts { 429 } else { 200 });
    }
}

#[tokio::test]
async fn both_count_a_method_that_a_route_does_not_have() {
    for layered in [hello().layer(limit(2)), hello().route_layer(limit(2))] {
        let server = Server::start(layered).await;
        for status in [405, 405, 429] {
            let answer = send(server.address, Version::Http1, request(Method::POST, "/")).await;
            assert_eq!((answer.status.as_u16(), answer.has("ratelimit")), (status, true), "{answer:?}");
        }
        assert_eq!(status(&server, "/").await, 429);
    }
}

#[tokio::test]
async fn neither_covers_routes_that_are_added_later() {
    for layered in [hello().layer(limit(1)), hello().route_layer(limit(1))] {
        let server = Server::start(layered.route("/later", get(|| async {}))).await;
        assert_eq!(status(&server, "/").await, 200);
        for _ in 0..3 {
            assert_eq!(status(&server, "/later").await, 200);
        }
        assert_eq!(status(&server, "/").await, 429);
    }
}

#[tokio::test]
async fn a_layer_without_routes_covers_calls_without_a_route() {
    let server = Server::start(Router::new().layer(limit(1)).route("/", get(|| async {}))).await;
    for path_status in [("/", 200), ("/", 200), ("/nowhere", 404), ("/nowhere", 429), ("/", 200)] {
        assert_eq!(status(&server, path_status.0).await, path_status.1);
    }
}

#[test]
#[should_panic(expected = "route_layer")]
fn a_route_layer_without_routes_panics() {
    let _: Router = Router::new().route_layer(limit(1));
}

#[tokio::test]
async fn both_see_a_route_as_its_full_nested_pattern() {
    let items =
        || Router::new().route("/items/{id}", get(|| async {})).route("/users/{id}", get(|| async {}));
    let by_route = || RateLimitLayer::with_limiter(Route::new(), limiter(1));
    for route_layer in [false, true] {
        let app = Router::new().nest("/a", items()).nest("/b", items()).merge(items());
        let app = if route_layer { app.route_layer(by_route()) } else { app.layer(by_route()) };
        let server = Server::start(app).await;
        for path in ["/a/items/", "/b/items/", "/items/", "/users/", "/a/users/"] {
            assert_eq!(status(&server, &format!("{path}1")).await, 200, "{path}");
            assert_eq!(status(&server, &format!("{path}2")).await, 429, "{path}");
        }
        // Requests without a route share one key, or are not limited.
        assert_eq!(status(&server, "/nowhere").await, 404);
        assert_eq!(status(&server, "/elsewhere").await, if route_layer { 404 } else { 429 });
    }
}

#[tokio::test]
async fn nested_services_and_fallbacks_and_whole_apps_have_no_pattern() {
    let items =
        || Router::new().route("/items/{id}", get(|| async {})).route("/users/{id}", get(|| async {}));
    let by_route = || RateLimitLayer::with_limiter(Route::new(), limiter(1));
    for app in [
        Router::new().nest_service("/a", items()).nest_service("/b", items()).layer(by_route()),
        Router::new()
            .fallback_service(Router::new().nest("/a", items()).nest("/b", items()))
            .layer(by_route()),
    ] {
        let server = Server::start(app).await;
        assert_eq!(status(&server, "/a/items/1").await, 200);
        for path in ["/a/items/1", "/a/users/1", "/b/items/1", "/nowhere"] {
            assert_eq!(status(&server, path).await, 429, "{path}");
        }
    }
}

#[tokio::test]
async fn all_routes_under_one_layer_and_all_of_its_clones_have_one_budget() {
    let layer = limit(4);
    let routes = || Router::new().route("/a", get(|| async {})).route("/b", get(|| async {}));
    let one = Server::start(routes().layer(layer.clone())).await;
    let other = Server::start(routes().route_layer(layer.clone())).await;
    for (server, path) in [(&one, "/a"), (&one, "/b"), (&other, "/a"), (&other, "/b")] {
        assert_eq!(status(server, path).await, 200);
    }
    for (server, path) in [(&one, "/a"), (&one, "/b"), (&other, "/a"), (&other, "/b")] {
        assert_eq!(status(server, path).await, 429);
    }
    // Each new layer has a budget of its own.
    assert_eq!(status(&Server::start(routes().layer(limit(4))).await, "/a").await, 200);
}

/// The site of the guide, where sign-ins have a second limit.
fn logins() -> (RateLimitLayer<Global, tower_throttle::algorithm::FixedWindow>, crate::Limiter, crate::Limiter)
{
    let [all, logins] = [limiter(6), limiter(2)];
    (RateLimitLayer::with_limiter(Global, logins.clone()).name("logins"), all, logins)
}

#[tokio::test]
async fn of_two_layers_the_outer_one_is_charged_for_calls_that_the_inner_one_rejects() {
    for version in VERSIONS {
        let (layer, all, logins) = logins();
        let outer = RateLimitLayer::with_limiter(Global, all.clone());
        let app = hello().route("/login", post(|| async { "welcome" }).layer(layer)).layer(outer.clone());
        let site = Server::start(app).await;
        let api = Server::start(Router::new().route("/items", get(|| async { "items" })).layer(outer)).await;
        let login = || send(site.address, version, request(Method::POST, "/login"));
        for status in [200, 200, 429, 429] {
            assert_eq!(login().await.status, status);
        }
        assert_eq!((left(&all, &()), left(&logins, &())), (2, 0));
        assert_eq!(denied_by(&login().await), "[\"logins\"]");
        assert_eq!(support::get(api.address, version, "/items").await.status, 200);
        // A client has retried rejected sign-ins, and has used up the budget of the rest of the site.
        assert_eq!(denied_by(&support::get(site.address, version, "/").await), "[\"default\"]");
        assert_eq!(denied_by(&login().await), "[\"default\"]");
        assert_eq!(support::get(api.address, version, "/items").await.status, 429);
    }
}

#[tokio::test]
async fn of_two_limits_in_one_layer_neither_is_charged_for_calls_that_the_other_denies() {
    for version in VERSIONS {
        let (layer, all, logins) = logins();
        let outer = RateLimitLayer::with_limiter(Global, all.clone());
        let login = post(|| async { "welcome" }).layer(outer.clone().and(layer));
        let app = hello().layer(outer).route("/login", login);
        let site = Server::start(app).await;
        let login = || send(site.address, version, request(Method::POST, "/login"));
        for status in [200, 200, 429, 429, 429, 429, 429, 429] {
            assert_eq!(login().await.status, status);
        }
        assert_eq!((left(&all, &()), left(&logins, &())), (4, 0));
        for status in [200, 200, 200, 200, 429] {
            assert_eq!(support::get(site.address, version, "/").await.status, status);
        }
    }
}

/// Accepts only one password.
async fn check_password(request: Request, next: Next) -> Result<Response, StatusCode> {
    match request.uri().query() {
        Some("right") => Ok(next.run(request).await),
        _ => Err(StatusCode::UNAUTHORIZED),
    }
}

#[tokio::test]
async fn settling_by_status_goes_outside_of_the_layer_that_sets_it() {
    let layer = |limiter: &crate::Limiter| {
        RateLimitLayer::with_limiter(Global, limiter.clone())
            .settle(|response: &Response| u64::from(response.status() == StatusCode::UNAUTHORIZED))
    };
    let failed = limiter(3);
    let outside = Server::start(hello().layer(from_fn(check_password)).layer(layer(&failed))).await;
    for _ in 0..10 {
        assert_eq!(status(&outside, "/?right").await, 200);
    }
    assert_eq!(left(&failed, &()), 3);
    for code in [401, 401, 401, 429] {
        assert_eq!(status(&outside, "/?wrong").await, code);
    }
    assert_eq!(status(&outside, "/?right").await, 429);

    let failed = limiter(3);
    let inside = Server::start(hello().layer(layer(&failed)).layer(from_fn(check_password))).await;
    for _ in 0..10 {
        assert_eq!(status(&inside, "/?wrong").await, 401);
        assert_eq!(status(&inside, "/?right").await, 200);
    }
    assert_eq!(left(&failed, &()), 3);
}

#[tokio::test]
async fn a_panic_or_timeout_further_out_costs_the_initial_charge() {
    use std::time::Duration;
    use tower_http::catch_panic::CatchPanicLayer;
    use tower_http::timeout::TimeoutLayer;

    let free = limiter(9);
    let layer = RateLimitLayer::with_limiter(Global, free.clone()).settle(|_: &Response| 0);
    let soon = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(1));
    let app = hello()
        .route("/panics", get(panics))
        .route("/slow", get(std::future::pending::<()>))
        .layer(layer.clone())
        .layer(ServiceBuilder::new().layer(CatchPanicLayer::new()))
        .layer(soon);
    let server = Server::start(app).await;
    for (path, code, left_then) in [("/panics", 500, 8), ("/slow", 504, 7), ("/panics", 500, 6)] {
        assert_eq!((status(&server, path).await, left(&free, &())), (code, left_then), "{path}");
    }
    // Inside of the limit, each of these layers makes an ordinary response.
    let app = Router::new()
        .route("/panics", get(panics))
        .route("/slow", get(std::future::pending::<()>))
        .layer(CatchPanicLayer::new())
        .layer(soon)
        .layer(layer);
    let server = Server::start(app).await;
    for (path, code) in [("/panics", 500), ("/slow", 504)] {
        assert_eq!((status(&server, path).await, left(&free, &())), (code, 6), "{path}");
    }
}
