//! Keys that are built by an extractor's `key(..)` reach the state of requests through the layer.

use std::net::IpAddr;

use tower_throttle::RateLimitLayer;
use tower_throttle::key::{
    Bearer, ClientIp, Cookie, Extension, Global, GrpcMethod, GrpcService, Header, Host, Method, PeerIp,
    TrustedProxies, first_of, from_fn,
};

use crate::keys::{Http, at_once, from, get, statuses, with, with_peer};

#[derive(Clone)]
struct User {
    id: u64,
}

fn signed_in(id: u64) -> Http {
    let mut request = from("192.0.2.1");
    request.extensions_mut().insert(User { id });
    request
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Asserts that a limit that is used up is free again after the key that the extractor builds was reset.
macro_rules! assert_reaches {
    ($extractor:expr, $key:expr, $request:expr) => {{
        let extractor = $extractor;
        let layer = RateLimitLayer::new(extractor.clone(), at_once(1));
        assert_eq!(statuses!(layer, $request, $request), [200, 429]);
        let build = $key;
        assert_eq!(layer.limiter().peek(&build(&extractor)).remaining(), 0, "{}", stringify!($key));
        layer.limiter().reset(&build(&extractor));
        assert_eq!(statuses!(layer, $request, $request), [200, 429], "reset");
        layer.limiter().refund(&build(&extractor), 1);
        assert_eq!(statuses!(layer, $request, $request), [200, 429], "refund");
        assert_eq!(layer.limiter().len(), 1, "one key, by either way");
    }};
}

#[tokio::test]
async fn of_addresses() {
    let peer = || with_peer(get("/"), "2001:db8:1:2:3:4:5:6");
    assert_reaches!(PeerIp::new(), |by: &PeerIp| by.key(ip("2001:db8:1:2::1")), peer());
    assert_reaches!(PeerIp::new().ipv6_prefix(48), |by: &PeerIp| by.key(ip("2001:db8:1::1")), peer());
    let client = || ClientIp::x_forwarded_for(TrustedProxies::cidrs(["192.0.2.1"]).unwrap());
    let behind = || with(from("192.0.2.1"), "x-forwarded-for", "198.51.100.7");
    assert_reaches!(client(), |by: &ClientIp| by.key(ip("198.51.100.7")), behind());
    assert_reaches!(client(), |by: &ClientIp| by.key(ip("::ffff:198.51.100.7")), behind());
}

#[tokio::test]
async fn of_what_callers_send() {
    let token = || with(get("/"), "authorization", "Bearer t0ken");
    assert_reaches!(Bearer::new(), |by: &Bearer| by.key("t0ken"), token());
    let cookie = || with(get("/"), "cookie", "a=b; session=4711");
    assert_reaches!(Cookie::new("session").unwrap(), |by: &Cookie| by.key("4711"), cookie());
    let header = || with(get("/"), "x-api-key", "4711");
    assert_reaches!(
        Header::new("x-api-key").unwrap(),
        |by: &Header| by.key(&"4711".parse().unwrap()),
        header()
    );
}

#[tokio::test]
async fn of_what_is_asked_for() {
    let host = |name| with(get("/"), "host", name);
    let hosts = || Host::known(["a.example"]);
    assert_reaches!(hosts(), |by: &Host| by.key("A.example."), host("a.example:80"));
    assert_reaches!(hosts(), |by: &Host| by.key("unknown.example"), host("other.example"));
    assert_reaches!(Method::new(), |by: &Method| by.key(&http::Method::HEAD), get("/"));
    assert_reaches!(Method::by_safety(), |by: &Method| by.key(&http::Method::OPTIONS), get("/"));
    let services = || GrpcService::known(["a.A"]);
    assert_reaches!(services(), |by: &GrpcService| by.key("a.A"), get("/a.A/X"));
    assert_reaches!(services(), |by: &GrpcService| by.key("b.B"), get("/c.C/X"));
    let methods = || GrpcMethod::known(["/a.A/X"]);
    assert_reaches!(methods(), |by: &GrpcMethod| by.key("/a.A/X"), get("/a.A/X"));
    assert_reaches!(methods(), |by: &GrpcMethod| by.key("/a.A/Y"), get("/a.A/Z"));
    assert_reaches!(Global, |_: &Global| (), get("/"));
    let by_path = from_fn(|request: &Http| Some(request.uri().path().to_owned()));
    assert_reaches!(by_path, |_: &_| "/path", get("/path"));
}

#[tokio::test]
async fn of_extensions() {
    let by_user = Extension::<User, _>::new(|user| user.id);
    assert_reaches!(by_user.clone(), |_: &_| by_user.key(&User { id: 42 }), signed_in(42));
    assert_reaches!(by_user.clone(), |_: &_| 42_u64, signed_in(42));
    let or_shared = by_user.clone().or_shared();
    assert_reaches!(
        or_shared.clone(),
        |_: &_| or_shared.first_key(|users| users.key(&User { id: 42 })),
        signed_in(42)
    );
    assert_reaches!(or_shared.clone(), |_: &_| or_shared.second_key(|_| ()), get("/"));
}

#[tokio::test]
async fn of_one_extractor_or_another() {
    let token = || with(from("192.0.2.1"), "authorization", "Bearer t0ken");
    let by_user = Extension::<User, _>::new(|user: &User| user.id);
    let any = first_of((by_user, Bearer::new(), PeerIp::new()));
    assert_reaches!(any.clone(), |_: &_| any.first_key(|users| users.key(&User { id: 42 })), signed_in(42));
    assert_reaches!(
        any.clone(),
        |_: &_| any.second_key(|others| others.first_key(|tokens| tokens.key("t0ken"))),
        token()
    );
    assert_reaches!(
        any.clone(),
        |_: &_| any.second_key(|others| others.second_key(|peers| peers.key(ip("192.0.2.1")))),
        from("192.0.2.1")
    );
    // An extractor builds the same key whether it is the first of several extractors, the last, or alone.
    let cookie = || Cookie::new("id").unwrap();
    let request = || with(get("/"), "cookie", "id=4711");
    let (first, last) = (cookie().or(Global), Bearer::new().or(cookie()));
    assert_reaches!(first.clone(), |_: &_| first.first_key(|cookie| cookie.key("4711")), request());
    assert_reaches!(last.clone(), |_: &_| last.second_key(|cookie| cookie.key("4711")), request());
    let header = Header::new("x-api-key").unwrap().or(Bearer::new()).or(Global);
    let key = || with(get("/"), "x-api-key", "4711");
    assert_reaches!(
        header.clone(),
        |_: &_| header.first_key(|either| either.first_key(|header| header.key(&"4711".parse().unwrap()))),
        key()
    );
    assert_reaches!(
        header.clone(),
        |_: &_| header.first_key(|either| either.second_key(|tokens| tokens.key("t0ken"))),
        token()
    );
    assert_reaches!(header.clone(), |_: &_| header.second_key(|_| ()), get("/"));
}

#[tokio::test]
async fn of_tuples() {
    let request = || with(from("192.0.2.1"), "authorization", "Bearer t0ken");
    let (peer, token) = (PeerIp::new(), Bearer::new());
    assert_reaches!(
        (peer.clone(), token, Method::by_safety()),
        |_: &_| (peer.key(ip("192.0.2.1")), token.key("t0ken"), Method::by_safety().key(&http::Method::GET)),
        request()
    );
    // A layer with `unless` has the keys of the extractor that it was given.
    let layer = RateLimitLayer::new(peer.clone(), at_once(1)).unless(|_: &Http| false);
    assert_eq!(statuses!(layer, request(), request()), [200, 429]);
    layer.limiter().reset(&peer.key(ip("192.0.2.1")));
    assert_eq!(statuses!(layer, request()), [200]);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn of_routes() {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::any;
    use tower::ServiceExt;
    use tower_throttle::key::Route;

    let layer = RateLimitLayer::new(Route::new(), at_once(1));
    let app = Router::new().route("/users/{id}", any(|| async { "hello" })).layer(layer.clone());
    let ask = async |path: &str| {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!([ask("/users/1").await, ask("/users/2").await], [200, 429]);
    layer.limiter().reset(&Route::new().key("/users/{name}"));
    assert_eq!(ask("/users/3").await, 429);
    layer.limiter().reset(&Route::new().key("/users/{id}"));
    assert_eq!(ask("/users/3").await, 200);
}
