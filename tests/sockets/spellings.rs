//! One caller has one budget, however it spells what identifies it. HTTP/2 passes on white space that HTTP/1.1 removes.

use axum::Router;
use axum::routing::any;
use http::{HeaderName, HeaderValue, Method, Request};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Bearer, Cookie, GrpcMethod, Header, KeyExtractor};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{Server, VERSIONS, Version, request, send};

/// Asserts that all spellings have one budget of a single unit, or are answered with 400 if they are `invalid`.
async fn assert_one_budget<K>(key: K, name: &'static str, spellings: &[&str], invalid: &[&str])
where
    K: KeyExtractor<Request<axum::body::Body>, Key: std::hash::Hash + Clone + Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build();
    let layer = RateLimitLayer::with_limiter(key, limiter.clone());
    let server = Server::start(Router::new().fallback(any(|| async {})).layer(layer)).await;
    let status = |version: Version, spelling: &str| {
        let (address, spelling) = (server.address, spelling.to_owned());
        async move {
            let path = if name == "path" { &*spelling } else { "/" };
            let mut request = request(Method::POST, path);
            if name != "path" {
                let value = HeaderValue::from_bytes(spelling.as_bytes()).unwrap();
                request.headers_mut().insert(HeaderName::from_static(name), value);
            }
            send(address, version, request).await.status.as_u16()
        }
    };
    assert_eq!(status(Version::Http2, spellings[0]).await, 200, "{name}: {:?}", spellings[0]);
    for version in VERSIONS {
        for spelling in spellings {
            assert_eq!(status(version, spelling).await, 429, "{name}, {version:?}: {spelling:?}");
        }
        for spelling in invalid {
            assert_eq!(status(version, spelling).await, 400, "{name}, {version:?}: {spelling:?}");
        }
    }
    assert_eq!(limiter.len(), 1, "{name}");
}

#[tokio::test]
async fn a_caller_gets_no_new_budget_by_another_spelling() {
    let bearer =
        ["Bearer secret", "bearer secret", "Bearer\tsecret", "Bearer  \t secret ", " Bearer secret\t"];
    let words = ["Bearer secret 0", "Bearer secret 1", "Bearer secret\t2", "Bearer secret\u{a0}3"];
    assert_one_budget(Bearer::new(), "authorization", &bearer, &words).await;
    let cookies = [
        "id=secret",
        " id = secret ",
        "a=b;\tid=secret",
        "id=\"secret\"",
        "%69d=%73ecret",
        r#"id="\163ecret""#,
    ];
    assert_one_budget(Cookie::new("id").unwrap(), "cookie", &cookies, &[]).await;
    let header = Header::new("x-api-key").unwrap();
    assert_one_budget(header, "x-api-key", &["secret", " secret", "secret  ", "\tsecret \t"], &[]).await;
    let method = GrpcMethod::known(["/a.A/X"]);
    assert_one_budget(method, "path", &["/a.A/X", "/a.A/X?", "/a.A/X?0", "/a.A/X?1"], &[]).await;
}
