//! Keys through the layer: users, routes, callers that are exempt or forbidden, and requests without a key.

use std::convert::Infallible;
use std::net::IpAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, Tiered, TokenBucket};
use tower_throttle::key::{
    Bearer, ClientIp, Cookie, Extension, Global, GrpcHealth, GrpcReflection, Header, KeyError, KeyExtractor,
    Method, MissingKey, Networks, Paths, PeerIp, Preflight, TrustedProxies, first_of,
};
use tower_throttle::stats::KeyStats;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

pub(crate) type Http = Request<Full<Bytes>>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

pub(crate) fn get(path: &str) -> Http {
    Request::get(path).body(Full::default()).unwrap()
}

/// Returns a request from a peer.
pub(crate) fn from(peer: &str) -> Http {
    with_peer(get("/"), peer)
}

pub(crate) fn with_peer(mut request: Http, peer: &str) -> Http {
    request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
    request
}

pub(crate) fn with(mut request: Http, name: &'static str, value: &str) -> Http {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

/// Returns a limit that admits `limit` calls at once, and no more calls while the test runs.
pub(crate) fn at_once(limit: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_day(limit))
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

pub(crate) async fn ask<L>(layer: &L, request: Http) -> Answer
where
    L: Layer<tower::util::BoxCloneSyncService<Http, Response<Full<Bytes>>, Infallible>>,
    L::Service: Service<Http, Response = Response<tower_throttle::middleware::ResponseBody<Full<Bytes>>>>,
    <L::Service as Service<Http>>::Error: std::fmt::Debug,
{
    let service = layer.layer(tower::util::BoxCloneSyncService::new(service_fn(hello)));
    let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// Returns the statuses of requests, one after another.
macro_rules! statuses {
    ($layer:expr, $($request:expr),+ $(,)?) => {{
        let layer = &$layer;
        [$($crate::keys::ask(layer, $request).await.status),+]
    }};
}
pub(crate) use statuses;

#[tokio::test]
async fn a_request_without_a_key_is_rejected_and_the_body_names_nothing() {
    let layer = RateLimitLayer::per_ip(Quota::per_second(1));
    let answer = ask(&layer, get("/")).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    assert!(!answer.body.contains("into_make_service_with_connect_info"), "{}", answer.body);
    assert!(answer.headers.get("retry-after").is_none() && answer.headers.get("ratelimit").is_none());
    assert_eq!(layer.limiter().len(), 0);
    let counts = layer.stats().keys;
    assert_eq!((counts.rejected, counts.shared, counts.unlimited, counts.forbidden), (1, 0, 0, 0));
}

#[tokio::test]
async fn calls_without_a_key_may_share_one_budget_or_pass() {
    let shared = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Shared);
    assert_eq!(
        statuses!(shared, get("/"), get("/"), from("1.2.3.4"), from("1.2.3.4"), from("5.6.7.8")),
        [200, 429, 200, 429, 200]
    );
    let pass = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Pass);
    let answer = ask(&pass, get("/")).await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers.get("ratelimit").is_none(), "it was not limited");
    assert_eq!(statuses!(pass, get("/"), get("/"), from("1.2.3.4"), from("1.2.3.4")), [200, 200, 200, 429]);
    // The clones of a layer share their counts.
    let (shared, pass) = (shared.clone().name("other").stats().keys, pass.stats().keys);
    assert_eq!((shared.rejected, shared.shared, shared.unlimited), (0, 2, 0));
    assert_eq!((pass.rejected, pass.shared, pass.unlimited), (0, 0, 3));
}

#[tokio::test]
async fn each_joined_layer_has_its_own_policy_for_missing_keys() {
    let all = || RateLimitLayer::new(Global, at_once(2));
    let rejects = RateLimitLayer::new(PeerIp::new(), at_once(1));
    let watched = rejects.clone();
    assert_eq!(statuses!(all().and(rejects), get("/"), get("/")), [500, 500]);
    assert_eq!(watched.stats().keys.rejected, 2);
    let passes = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Pass);
    assert_eq!(statuses!(all().and(passes), get("/"), get("/"), get("/")), [200, 200, 429]);
    let shares = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Shared);
    assert_eq!(statuses!(all().and(shares), get("/"), get("/"), from("1.2.3.4")), [200, 429, 200]);
}

#[tokio::test]
async fn callers_without_a_key_are_limited_by_the_limiters_own_algorithm() {
    let layer = RateLimitLayer::new(PeerIp::new(), Tiered::new(at_once(1)))
        .tier(|_: &Http, _| at_once(3))
        .missing_key(MissingKey::Shared);
    assert_eq!(statuses!(layer, get("/"), get("/")), [200, 429]);
    let known = || from("1.2.3.4");
    assert_eq!(statuses!(layer, known(), known(), known(), known()), [200, 200, 200, 429]);
}

#[tokio::test]
async fn a_key_that_the_layer_finds_is_the_same_to_the_limiter() {
    let limiter = RateLimiter::new(at_once(1));
    let by_ip = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone());
    assert_eq!(statuses!(by_ip, from("1.2.3.4"), from("1.2.3.4")), [200, 429]);
    assert!(!limiter.check(&IpAddr::from([1, 2, 3, 4])).is_allowed());
    limiter.reset(&IpAddr::from([1, 2, 3, 4]));
    assert_eq!(ask(&by_ip, from("1.2.3.4")).await.status, 200);

    let limiter = RateLimiter::new(at_once(1));
    let token = || with(get("/"), "authorization", "Bearer t0ken");
    let by_token = RateLimitLayer::with_limiter(Bearer::new(), limiter.clone());
    assert_eq!(statuses!(by_token, token(), token()), [200, 429]);
    limiter.reset(&Bearer::new().key("t0ken"));
    assert_eq!(ask(&by_token, token()).await.status, 200);

    let limiter = RateLimiter::new(at_once(1));
    let header = || with(get("/"), "x-api-key", "4711");
    let by_header = RateLimitLayer::with_limiter(Header::new("x-api-key").unwrap(), limiter.clone());
    assert_eq!(statuses!(by_header, header(), header()), [200, 429]);
    limiter.reset(&Header::new("x-api-key").unwrap().key(&"4711".parse().unwrap()));
    assert_eq!(ask(&by_header, header()).await.status, 200);

    let limiter = RateLimiter::new(at_once(1));
    let cookie = || with(get("/"), "cookie", "a=b; session=4711");
    let by_cookie = RateLimitLayer::with_limiter(Cookie::new("session").unwrap(), limiter.clone());
    assert_eq!(statuses!(by_cookie, cookie(), cookie()), [200, 429]);
    limiter.reset(&Cookie::new("session").unwrap().key("4711"));
    assert_eq!(ask(&by_cookie, cookie()).await.status, 200);
}

#[tokio::test]
async fn a_forbidden_caller_is_rejected_before_anything_is_counted() {
    let denied = Networks::new(["6.6.0.0/16"]).unwrap();
    let layer =
        RateLimitLayer::new(PeerIp::new().deny(denied.clone()), at_once(1)).missing_key(MissingKey::Pass);
    let answer = ask(&layer, from("6.6.6.6")).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&problem["status"], &problem["title"]), (&403.into(), &"Forbidden".into()));
    assert!(!answer.body.contains("6.6"), "{}", answer.body);
    assert!(answer.headers.get("retry-after").is_none() && answer.headers.get("ratelimit").is_none());
    assert_eq!(layer.limiter().len(), 0);
    assert_eq!(layer.stats().keys.forbidden, 1);

    let grpc = ask(&layer, with(from("::ffff:6.6.6.6"), "content-type", "application/grpc")).await;
    assert_eq!((grpc.status, grpc.headers["grpc-status"].as_bytes()), (200, &b"7"[..]));

    // The layer is joined with a layer that would count the request.
    let all = RateLimitLayer::new(Global, at_once(1));
    let watched = all.clone();
    assert_eq!(statuses!(all.and(layer), from("6.6.6.6"), from("6.6.6.6"), from("1.2.3.4")), [403, 403, 200]);
    assert_eq!(watched.limiter().check(&()).remaining(), 0);

    // The networks are replaced by others while the layer is in use.
    let layer = RateLimitLayer::new(PeerIp::new().deny(denied.clone()), at_once(1));
    denied.replace(Networks::new(["7.7.7.7"]).unwrap());
    assert_eq!(statuses!(layer, from("6.6.6.6"), from("7.7.7.7")), [200, 403]);
}

#[tokio::test]
async fn a_deny_list_cannot_be_bypassed_by_headers() {
    let peer = || PeerIp::new().deny(Networks::new(["6.6.6.6"]).unwrap());
    let token = |peer: &str| with(from(peer), "authorization", "Bearer abc");
    let layer = RateLimitLayer::new(first_of((Bearer::new(), peer())), at_once(1));
    assert_eq!(statuses!(layer, token("6.6.6.6"), token("1.2.3.4"), token("5.6.7.8")), [403, 200, 429]);
    let layer = RateLimitLayer::new(Bearer::new().or(Cookie::new("id").unwrap()).or(peer()), at_once(1));
    assert_eq!(statuses!(layer, token("6.6.6.6"), token("1.2.3.4")), [403, 200]);
    let layer = RateLimitLayer::new(peer(), at_once(1)).unless(Paths::new(["/health"]));
    let health = |peer: &str| with_peer(get("/health"), peer);
    assert_eq!(
        statuses!(layer, health("6.6.6.6"), health("1.2.3.4"), get("/health"), get("/")),
        [403, 200, 200, 500]
    );
    // Two lines of this field are an error, but the caller is forbidden in any case.
    let twice = || with(token("6.6.6.6"), "authorization", "Bearer abc");
    let layer =
        RateLimitLayer::new(first_of((Bearer::new(), peer())), at_once(1)).missing_key(MissingKey::Pass);
    assert_eq!(ask(&layer, twice()).await.status, 403);
}

#[tokio::test]
async fn forbidden_by_a_joined_layer_takes_precedence_over_a_missing_key() {
    let denies = || RateLimitLayer::new(PeerIp::new().deny(Networks::new(["6.6.6.6"]).unwrap()), at_once(1));
    let by_token = || RateLimitLayer::new(Bearer::new(), at_once(1)).missing_key(MissingKey::Pass);
    let twice = || with(with(from("6.6.6.6"), "authorization", "Bearer a"), "authorization", "Bearer b");
    assert_eq!(ask(&denies().and(by_token()), twice()).await.status, 403);
    assert_eq!(ask(&by_token().and(denies()), twice()).await.status, 403);
    let all = by_token().missing_key(MissingKey::Reject);
    assert_eq!(ask(&all.and(denies()), twice()).await.status, 403);
}

#[tokio::test]
async fn services_that_are_not_http_get_an_error() {
    struct Closed;
    impl KeyExtractor<u32> for Closed {
        type Key = ();
        fn extract(&self, request: &u32) -> Result<Option<()>, KeyError> {
            if *request == 6 { Err(KeyError::forbidden("no sixes")) } else { Ok(Some(())) }
        }
    }
    let layer = RateLimitLayer::new(Closed, at_once(1)).responder(ErrorResponder);
    let service = layer.layer(service_fn(|n: u32| async move { Ok::<_, Infallible>(n) }));
    let error = service.oneshot(6).await.unwrap_err();
    assert_eq!(error.to_string(), "the caller is not served");
    assert!(matches!(error, tower_throttle::Error::Key(key) if key.is_forbidden()));
}

#[tokio::test]
async fn some_requests_are_not_limited() {
    let preflight = || {
        let request = Request::options("/").header("origin", "https://a.example");
        request.header("access-control-request-method", "PUT").body(Full::default()).unwrap()
    };
    let layer = RateLimitLayer::new(Global, at_once(1))
        .unless(Preflight)
        .unless(Paths::new(["/health"]))
        .unless(GrpcHealth)
        .unless(GrpcReflection)
        .unless(|request: &Http| request.headers().contains_key("x-internal"));
    for _ in 0..3 {
        let health = get("/grpc.health.v1.Health/Check");
        let reflection = get("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
        let internal = with(get("/"), "x-internal", "yes");
        assert_eq!(
            statuses!(layer, preflight(), get("/health"), health, reflection, internal),
            [200, 200, 200, 200, 200]
        );
    }
    assert!(layer.limiter().is_empty());
    assert_eq!(statuses!(layer, get("/"), get("/"), get("/health/"), get("/health")), [200, 429, 429, 200]);

    let office = Networks::new(["10.0.0.0/8"]).unwrap();
    let layer = RateLimitLayer::new(PeerIp::new().allow(office), at_once(1));
    assert_eq!(
        statuses!(layer, from("10.1.1.1"), from("::ffff:10.1.1.1"), from("1.2.3.4"), from("1.2.3.4")),
        [200, 200, 200, 429]
    );
}

#[tokio::test]
async fn users_are_distinguished_before_addresses_are() {
    #[derive(Clone)]
    struct User(u64);
    let signed_in = |id: u64, peer: &str| {
        let mut request = from(peer);
        request.extensions_mut().insert(User(id));
        request
    };
    let token = |token: &str, peer: &str| with(from(peer), "authorization", token);
    let by_user = first_of((Extension::<User, _>::new(|user| user.0), Bearer::new(), PeerIp::new()));
    let layer = RateLimitLayer::new(by_user, at_once(1));
    assert_eq!(
        statuses!(
            layer,
            signed_in(1, "1.2.3.4"),
            signed_in(2, "1.2.3.4"),
            signed_in(1, "5.6.7.8"),
            token("Bearer abc", "1.2.3.4"),
            token("Bearer abd", "1.2.3.4"),
            token("bearer abc", "5.6.7.8"),
            from("1.2.3.4"),
            token("Basic abc", "1.2.3.4"),
            from("5.6.7.8"),
        ),
        [200, 200, 429, 200, 200, 429, 200, 429, 200]
    );
}

#[tokio::test]
async fn parts_of_a_key_stay_apart() {
    let header = |name| Header::new(name).unwrap();
    let layer = RateLimitLayer::new((header("x-a"), header("x-b")), at_once(1));
    let request = |a: &str, b: &str| with(with(get("/"), "x-a", a), "x-b", b);
    assert_eq!(
        statuses!(
            layer,
            request("a", "bc"),
            request("ab", "c"),
            request("abc", ""),
            request("", "abc"),
            with(get("/"), "x-a", "abc"),
            with(get("/"), "x-b", "abc"),
            request("a", "bc"),
        ),
        [200, 200, 200, 200, 200, 200, 429]
    );
    // The parts of a key are hashed separately.
    let limiter = RateLimiter::new(at_once(1));
    assert!(limiter.check(&("a", "bc")).is_allowed());
    assert!(limiter.check(&("ab", "c")).is_allowed());
    assert!(!limiter.check(&("a", "bc")).is_allowed());
}

#[tokio::test]
async fn reading_and_writing_may_have_a_budget_each() {
    let layer = RateLimitLayer::new((PeerIp::new(), Method::by_safety()), at_once(1));
    let ask =
        |method: &str| with_peer(Request::builder().method(method).body(Full::default()).unwrap(), "1.2.3.4");
    assert_eq!(statuses!(layer, ask("GET"), ask("HEAD"), ask("POST"), ask("ANY")), [200, 429, 200, 429]);
    let layer = RateLimitLayer::new(Method::new(), at_once(1));
    assert_eq!(
        statuses!(layer, ask("GET"), ask("HEAD"), ask("POST"), ask("ONE"), ask("TWO"), ask("PUT")),
        [200, 429, 200, 200, 429, 200]
    );
}

#[tokio::test]
async fn two_prefixes_at_once_are_two_layers() {
    let by_site = PeerIp::new().ipv6_prefix(48).ipv4_prefix(24);
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(1))
        .and(RateLimitLayer::new(by_site, at_once(2)).name("site"));
    assert_eq!(
        statuses!(
            layer,
            from("2001:db8:1:1::1"),
            from("2001:db8:1:1::2"),
            from("2001:db8:1:2::1"),
            from("2001:db8:1:3::1"),
            from("2001:db8:2:1::1"),
        ),
        [200, 429, 200, 429, 200]
    );
}

#[tokio::test]
async fn proxies_may_be_replaced_while_requests_go_on() {
    let proxies = TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap();
    let layer = RateLimitLayer::new(ClientIp::x_forwarded_for(proxies.clone()), at_once(1));
    let behind = |peer: &str, client: &str| with(from(peer), "x-forwarded-for", client);
    assert_eq!(
        statuses!(
            layer,
            behind("10.0.0.1", "1.2.3.4"),
            behind("10.0.0.2", "1.2.3.4"),
            behind("192.0.2.1", "5.6.7.8"),
            behind("192.0.2.1", "9.9.9.9"),
        ),
        [200, 429, 200, 429]
    );
    proxies.replace(TrustedProxies::cidrs(["192.0.2.0/24"]).unwrap());
    assert_eq!(
        statuses!(
            layer,
            behind("10.0.0.1", "7.7.7.7"),
            behind("10.0.0.1", "8.8.8.8"),
            behind("192.0.2.1", "5.6.7.8"),
            behind("192.0.2.1", "5.6.7.8"),
        ),
        [200, 429, 200, 429]
    );
    proxies.replace(TrustedProxies::hops(2).unwrap());
    assert_eq!(
        statuses!(layer, behind("10.0.0.1", "3.3.3.3, 9.9.9.9"), behind("10.0.0.1", "3.3.3.3")),
        [200, 400]
    );
}

#[test]
fn what_a_caller_sent_is_not_printed() {
    let request = with(with(get("/"), "authorization", "Bearer secret"), "cookie", "session=secret");
    let request = with(request, "x-api-key", "secret");
    let keys = (Bearer::new(), Cookie::new("session").unwrap(), Header::new("x-api-key").unwrap());
    let shown = format!("{:?} {keys:?}", keys.extract(&request).unwrap().unwrap());
    assert!(!shown.contains("secret"), "{shown}");
    let broken = with(get("/"), "x-forwarded-for", "secret");
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::hops(1).unwrap());
    let error = by_client.resolve(&broken).unwrap_err();
    assert!(error.to_string().contains("x-forwarded-for"), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

#[test]
fn counts_begin_at_zero() {
    let layer = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_second(1)));
    assert_eq!(layer.stats().keys, KeyStats::default());
}

#[cfg(feature = "axum")]
mod routes {
    use super::*;

    use axum::Router;
    use axum::routing::any;
    use tower_throttle::key::Route;

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
        for path in
            ["/login/", "//login", "/%6cogin", "/login%00", "/./login", "/login;x", "/service/x", "/x"]
        {
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
}
