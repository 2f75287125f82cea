//! HTTP callers and gRPC callers of a closed limiter get a response, over sockets as well.

use std::convert::Infallible;
use std::future::ready;
#[cfg(feature = "axum")]
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use tower::{Layer, Service, service_fn};
#[cfg(feature = "axum")]
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};

use super::{Now, limiter, quota};
use crate::support::PolledByHand;

type Asks = Request<()>;

fn answers(_: Asks) -> std::future::Ready<Result<Response<Empty<Bytes>>, Infallible>> {
    ready(Ok(Response::new(Empty::new())))
}

#[test]
fn http_callers_get_503_and_grpc_callers_unavailable() {
    let clock = ManualClock::new();
    let queue = limiter(LeakyBucket::new(quota()).queue(9), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(9)), &clock);
    let ask = |content_type: &str| Request::builder().header("content-type", content_type).body(()).unwrap();
    let mut alone = RateLimitLayer::with_limiter(Global, queue.clone()).layer(service_fn(answers));
    let mut joined = RateLimitLayer::with_limiter(Global, bucket.clone())
        .and(RateLimitLayer::with_limiter(Global, queue.clone()))
        .layer(service_fn(answers));
    assert_eq!(alone.call(ask("text/plain")).now().unwrap().status(), 200);
    let mut http = [PolledByHand::new(alone.call(ask("text/plain")))];
    let mut http_joined = [PolledByHand::new(joined.call(ask("text/plain")))];
    let mut grpc = [PolledByHand::new(alone.call(ask("application/grpc")))];
    let mut grpc_joined = [PolledByHand::new(joined.call(ask("application/grpc+proto")))];
    assert!(!http[0].poll() && !http_joined[0].poll() && !grpc[0].poll() && !grpc_joined[0].poll());
    queue.close();
    let mut all = Vec::new();
    for call in http.iter_mut().chain(&mut grpc) {
        assert!(call.run());
        all.push(call.output.take().unwrap().unwrap());
    }
    for call in http_joined.iter_mut().chain(&mut grpc_joined) {
        assert!(call.run());
        all.push(call.output.take().unwrap().unwrap());
    }
    // New calls are denied, too.
    for content_type in ["text/plain", "application/grpc"] {
        all.push(alone.call(ask(content_type)).now().unwrap());
        all.push(joined.call(ask(content_type)).now().unwrap());
    }
    for (answer, is_grpc) in all.into_iter().zip([false, true, false, true, false, false, true, true]) {
        let headers = answer.headers();
        for field in ["ratelimit", "ratelimit-policy"] {
            assert!(!headers.contains_key(field), "{headers:?}");
        }
        // For HTTP callers, `Retry-After` is a hint, because it is not known when a server will be available again.
        assert_eq!(headers.contains_key("retry-after"), !is_grpc, "{headers:?}");
        if is_grpc {
            assert_eq!((answer.status().as_u16(), &headers["grpc-status"]), (200, &"14".parse().unwrap()));
            assert_eq!(headers["content-type"], "application/grpc");
        } else {
            assert_eq!(answer.status(), 503);
            assert_eq!(headers["content-type"], "application/problem+json");
            let body = answer.into_body().collect().now().unwrap().to_bytes();
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["status"], 503, "{problem}");
        }
    }
    assert_eq!(bucket.peek(&()).remaining(), 9);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn queued_requests_are_answered_over_sockets_and_the_server_goes_on() {
    use crate::support::{self, Server, VERSIONS, request, send};
    use axum::{Router, routing::get};
    for version in VERSIONS {
        let bucket = LeakyBucket::new(quota()).queue(9);
        let limiter = RateLimiter::builder(bucket).clock(ManualClock::new()).build();
        let app = Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(RateLimitLayer::with_limiter(Global, limiter.clone()))
            .route("/free", get(|| async {}));
        let server = Server::start(app).await;
        let address = server.address;
        assert_eq!(support::get(address, version, "/").await.status, 200);
        let calls: Vec<_> = (0..6)
            .map(|call| {
                let mut request = request(http::Method::GET, "/");
                if call % 2 == 1 {
                    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
                }
                tokio::spawn(send(address, version, request))
            })
            .collect();
        let all = async {
            while limiter.queued() < 6 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all).await.expect("all wait");
        limiter.close();
        for (at, call) in calls.into_iter().enumerate() {
            let answer =
                tokio::time::timeout(Duration::from_secs(20), call).await.expect("an answer").unwrap();
            assert!(!answer.has("ratelimit"), "{answer:?}");
            assert_eq!(answer.has("retry-after"), at % 2 == 0, "{answer:?}");
            if at % 2 == 1 {
                assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "14"));
            } else {
                assert_eq!((answer.status.as_u16(), &answer.json()["status"]), (503, &503.into()));
            }
        }
        assert_eq!(support::get(address, version, "/").await.status, 503);
        assert_eq!(support::get(address, version, "/free").await.status, 200);
    }
}
