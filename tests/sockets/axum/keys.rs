//! A request's key and its cost are found in its address, its headers, its extensions, or by a function.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use axum::http::{Method, Request, StatusCode};
use axum::response::Redirect;
use axum::routing::{any, get, post};
use tower::ServiceExt;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Extension, Global, Header, KeyExtractor, PeerIp, from_fn};
use tower_throttle::{Quota, RateLimitLayer};

use super::{hello, per_ip};
use crate::support::{self, Client1, Client2, Item, Server, VERSIONS, Version, request, send};

#[tokio::test]
async fn without_the_peers_address_the_status_is_500_and_the_body_names_nothing() {
    for version in VERSIONS {
        let app = hello().layer(RateLimitLayer::per_ip(Quota::per_second(1)));
        let server = Server::start_without_peers(app).await;
        for _ in 0..3 {
            let answer = support::get(server.address, version, "/").await;
            assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
            // The log says what to change, and the body does not. See tests/tracing/mistakes.rs.
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

/// Tests the example of `RateLimitLayer::settle` and of the guide, which allows five failed sign-ins a minute.
/// Successful sign-ins are free, even if a form answers them with a redirect.
#[tokio::test]
async fn correct_passwords_are_free_and_exactly_five_failures_are_admitted() {
    let logins = RateLimitLayer::new(PeerIp::new(), FixedWindow::new(Quota::per_minute(5)))
        .settle(|response: &axum::response::Response| u64::from(response.status().is_client_error()));
    let app = Router::new()
        .route("/right", get(|| async { "welcome" }))
        .route("/form", post(|| async { Redirect::to("/") }))
        .route("/wrong", get(|| async { StatusCode::UNAUTHORIZED }))
        .layer(logins);
    let server = Server::start(app).await;
    let mut client = Client1::http1(server.address).await;
    for login in 0..20 {
        let answer = client.send(request(Method::POST, "/form")).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "log-in {login}: {answer:?}");
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
