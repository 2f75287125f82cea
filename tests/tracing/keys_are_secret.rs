//! The key of a call is in nothing that an operator or a caller can see.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::key::{Header, PeerIp};
use tower_throttle::{Quota, RateLimitLayer};

use crate::Log;

/// In this test, each key contains a known string. The string must not be in anything that an operator or a caller can
/// see.
#[cfg(feature = "metrics")]
#[tokio::test]
async fn a_key_is_in_no_event_header_body_count_or_metric() {
    use http_body_util::BodyExt;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tower_throttle::HttpResponder;
    use tower_throttle::key::{Bearer, Cookie};
    use tower_throttle::stats::{Timeline, TopKeys};

    const KEYS: [&str; 4] =
        ["recognisable-token", "recognisable-key", "recognisable-session", "203.0.113.77"];

    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (log, _logging) = Log::start();
    let (top, timeline) = (TopKeys::new(), Timeline::new());
    let bucket = || TokenBucket::new(Quota::per_hour(1));
    let details = || HttpResponder::new().insert_details(true);
    let by_token = RateLimitLayer::new(Bearer::new(), bucket()).name("token").responder(details());
    let by_token = by_token.timeline(&timeline).on_reject(top.watch(&Bearer::new()));
    let by_key = RateLimitLayer::new(Header::new("x-api-key").unwrap(), bucket()).name("key");
    let joined = by_key.and(RateLimitLayer::new(Cookie::new("session").unwrap(), bucket()).name("session"));
    let by_ip =
        RateLimitLayer::new(PeerIp::new(), LeakyBucket::new(Quota::per_second(100)).queue(1)).name("ip");
    let hello = service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("hello")))
    });
    let request = |[authorization, key, cookie]: [&str; 3]| {
        let mut request = Request::new(Full::default());
        for (name, value) in [("authorization", authorization), ("x-api-key", key), ("cookie", cookie)] {
            if !value.is_empty() {
                request.headers_mut().insert(name, value.parse().unwrap());
            }
        }
        let peer: SocketAddr = "203.0.113.77:4711".parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    };
    let all = ["Bearer recognisable-token", "recognisable-key", "session=recognisable-session"];
    let mut seen = String::new();
    let mut statuses = Vec::new();
    // One request is admitted, one is denied, and one lacks one of its keys. Callers without a key share a budget.
    for headers in [all, all, ["", all[1], all[2]], [all[0], "", all[2]], [all[0], all[1], ""]] {
        let answers = [
            by_token.layer(hello).oneshot(request(headers)).await.unwrap().map(BodyExt::boxed_unsync),
            joined.layer(hello).oneshot(request(headers)).await.unwrap().map(BodyExt::boxed_unsync),
            by_ip.layer(hello).oneshot(request(headers)).await.unwrap().map(BodyExt::boxed_unsync),
        ];
        for answer in answers {
            let (head, body) = answer.into_parts();
            statuses.push(head.status.as_u16());
            let body = body.collect().await.unwrap().to_bytes();
            seen += &format!("{head:?} {}\n", String::from_utf8_lossy(&body));
        }
    }
    assert_eq!(statuses[..6], [200, 200, 200, 429, 429, 200], "{statuses:?}");
    // Two tokens are a mistake of the client, which is logged, too.
    let mut two_tokens = request(all);
    two_tokens.headers_mut().append("authorization", all[0].parse().unwrap());
    let (head, body) = by_token.layer(hello).oneshot(two_tokens).await.unwrap().into_parts();
    assert_eq!(head.status, 400);
    let body = body.collect().await.unwrap().to_bytes();
    seen += &format!("{head:?} {}\n", String::from_utf8_lossy(&body));
    by_token.record_metrics();
    joined.record_metrics();
    by_ip.record_metrics();
    seen += &page.render();
    seen += &format!("{:?} {:?} {:?}\n", by_token.stats(), joined.stats(), by_ip.stats());
    seen += &format!("{top:?} {:?} {timeline:?}\n", top.list());
    seen += &format!("{by_token:?} {joined:?} {by_ip:?} {:?}\n", by_token.limiter());
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        log.contains("tower-throttle: denied") && seen.contains("tower_throttle_calls_total"),
        "{log} {seen}"
    );
    for key in KEYS {
        assert!(!log.contains(key), "{key} is in the log: {log}");
        assert!(!seen.contains(key), "{key} can be seen: {seen}");
    }
}
