//! Callers that are forbidden are rejected and charged nothing, and exempt callers are not limited.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::advance;
use tower::{ServiceBuilder, ServiceExt};
use tower_http::decompression::{DecompressionBody, RequestDecompressionLayer};
use tower_throttle::RateLimitLayer;
use tower_throttle::key::{
    Bearer, ClientIp, Cookie, Global, GrpcHealth, GrpcReflection, MissingKey, Networks, Paths, PeerIp,
    Preflight, TrustedProxies, first_of,
};

use super::{Http, ask, at_once, from, get, statuses, with, with_peer};

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

#[tokio::test(start_paused = true)]
async fn an_address_is_blocked_for_a_time() {
    let blocked = Networks::new(["6.6.6.6"]).unwrap();
    let layer = RateLimitLayer::new(PeerIp::new().deny(blocked.clone()), at_once(9));
    blocked.insert_for(IpAddr::from([7, 7, 7, 7]), Duration::from_secs(3_600)).unwrap();
    blocked.insert_for("unix", Duration::from_secs(3_600)).unwrap();
    assert_eq!(statuses!(layer, from("6.6.6.6"), from("7.7.7.7"), from("7.7.7.8")), [403, 403, 200]);
    advance(Duration::from_nanos(3_600_000_000_000 - 1)).await;
    assert_eq!(statuses!(layer, from("6.6.6.6"), from("7.7.7.7")), [403, 403]);
    advance(Duration::from_nanos(1)).await;
    assert_eq!(statuses!(layer, from("6.6.6.6"), from("7.7.7.7")), [403, 200]);
    blocked.remove("6.6.6.6").unwrap();
    blocked.insert("7.7.0.0/16").unwrap();
    assert_eq!(statuses!(layer, from("6.6.6.6"), from("7.7.7.7")), [200, 403]);
    // The later end counts.
    blocked.insert_for("9.9.9.9", Duration::from_secs(10)).unwrap();
    blocked.insert_for("9.9.9.9", Duration::from_secs(5)).unwrap();
    advance(Duration::from_secs(7)).await;
    assert_eq!(statuses!(layer, from("9.9.9.9"), from("7.7.7.7")), [403, 403]);
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

/// As in a health check by the proxy itself. The docs of `allow` say that the same holds for what it forwards.
#[tokio::test]
async fn a_trusted_proxy_without_the_header_is_the_caller_that_a_list_may_exempt() {
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::cidrs(["10.0.0.5"]).unwrap());
    let by = |header: &str| with(from("10.0.0.5"), "x-forwarded-for", header);
    let layer = RateLimitLayer::new(by_client.clone(), at_once(1));
    assert_eq!(statuses!(layer, from("10.0.0.5"), from("10.0.0.5"), by("1.2.3.4")), [200, 429, 200]);
    let layer = RateLimitLayer::new(by_client.allow(Networks::private()), at_once(1));
    assert_eq!(statuses!(layer, from("10.0.0.5"), from("10.0.0.5"), by("1.2.3.4")), [200; 3]);
    assert_eq!(statuses!(layer, by("1.2.3.4"), by("10.9.9.9"), by("10.9.9.9")), [429, 200, 200]);
}

/// The layer outside wraps each body, and removes the length of those that it decompresses.
#[tokio::test]
async fn a_preflight_is_exempt_inside_of_a_layer_that_decompresses_unless_it_has_a_body() {
    let layer = RateLimitLayer::new(Global, at_once(2)).unless(Preflight);
    let answer = |_: Request<DecompressionBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from("hello")))
    };
    let service =
        ServiceBuilder::new().layer(RequestDecompressionLayer::new()).layer(&layer).service_fn(answer);
    let ask = async |encoding: Option<&str>, body: &'static [u8]| {
        let mut request = Request::options("/")
            .header("origin", "https://a.example")
            .header("access-control-request-method", "PUT")
            .header("content-length", body.len());
        if let Some(encoding) = encoding {
            request = request.header("content-encoding", encoding);
        }
        service.clone().oneshot(request.body(Full::from(body)).unwrap()).await.unwrap().status().as_u16()
    };
    for _ in 0..4 {
        assert_eq!(ask(None, b"").await, 200);
    }
    assert_eq!(layer.limiter().len(), 0);
    // The gzip of nothing: that it has no bytes shows only when it is read.
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
    assert_eq!([ask(Some("gzip"), gzip).await, ask(None, b"call").await], [200; 2]);
    assert_eq!(
        [ask(Some("gzip"), gzip).await, ask(None, b"call").await, ask(None, b"").await],
        [429, 429, 200]
    );
}
