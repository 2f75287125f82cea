//! In axum apps, the route of a request can be its key.

use axum::Router;
use axum::routing::any;
use http::Request;
use tower::{Layer, ServiceExt};
use tower_throttle::RateLimitLayer;
use tower_throttle::key::{Global, Paths, Route};

use super::at_once;

#[tokio::test]
async fn a_route_is_reported_as_it_was_written() {
    let hello = || any(|| async { "hello" });
    let inner = Router::new().route("/deep/{id}", hello());
    let layer = RateLimitLayer::new(Route::new(), at_once(1));
    let app = Router::new()
        .route("/login", hello())
        .route("/users/{id}", hello())
        .nest("/nested", inner)
        .nest_service("/service", hello())
        .fallback(|| async { "fallback" })
        .layer(layer);
    let ask = async |path: &str| {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(ask("/login").await, 200);
    assert_eq!(ask("/login?x").await, 429);
    assert_eq!(ask("/users/1").await, 200);
    assert_eq!(ask("/users/2").await, 429);
    assert_eq!(ask("/nested/deep/1").await, 200);
    assert_eq!(ask("/nested/deep/2").await, 429);
    // All requests that match no route share one key.
    assert_eq!(ask("/Login").await, 200);
    for path in ["/login/", "//login", "/%6cogin", "/login%00", "/./login", "/login;x", "/service/x", "/x"] {
        assert_eq!(ask(path).await, 429, "{path}");
    }
}

#[tokio::test]
async fn paths_are_as_sent_wherever_the_layer_is() {
    // The exempt path is `/login`, and not every path that ends in `/login`.
    let hello = || any(|| async { "hello" });
    let layer = || RateLimitLayer::new(Global, at_once(1)).unless(Paths::new(["/login", "/v1/api/me"]));
    let limited = |router: Router| router.layer(layer());
    let routes = || Router::new().route("/login", hello()).route("/me", hello());
    let ask = async |app: &Router, path: &str| {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for app in [
        Router::new().nest("/api", limited(routes())),
        Router::new().nest_service("/api", limited(routes())),
        limited(Router::new().nest("/api", routes())),
        limited(Router::new().nest_service("/api", routes())),
    ] {
        assert_eq!(ask(&app, "/api/login").await, 200);
        assert_eq!(ask(&app, "/api/login").await, 429);
    }
    let app = Router::new().nest("/v1", Router::new().nest("/api", limited(routes())));
    for status in [200, 200] {
        assert_eq!(ask(&app, "/v1/api/me?query").await, status);
    }
    assert_eq!(ask(&app, "/v1/api/login").await, 200);
    assert_eq!(ask(&app, "/v1/api/login").await, 429);
    let app = limited(routes());
    for status in [200, 200] {
        assert_eq!(ask(&app, "/login").await, status);
    }
    // The layer is around a whole router, which has not seen the request yet.
    let service = layer().layer(routes());
    for path in ["/login", "/login", "/me"] {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200, "{path}");
    }
}

#[tokio::test]
async fn around_a_whole_router_no_route_has_matched_yet() {
    let app = Router::new().route("/a", any(|| async { "a" })).route("/b", any(|| async { "b" }));
    let service = RateLimitLayer::new(Route::new(), at_once(1)).layer(app);
    let ask = async |path: &str| {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        service.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!([ask("/a").await, ask("/b").await], [200, 429]);
}
