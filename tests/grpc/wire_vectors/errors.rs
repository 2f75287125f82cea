//! Closed limiters, failed stores and missing keys have a status of their own.

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use http_body_util::Empty;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::RateLimitLayer;
use tower_throttle::algorithm::{AlgorithmInfo, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Bearer, Global, Header, KeyError, KeyExtractor, PeerIp};
use tower_throttle::limiter::{Acquired, Attempt, Decided, Limiter, LimiterFor};
use tower_throttle::stats::LimiterStats;

use super::{per, rejection, request, second, through};
use crate::details::reported;
use crate::frames::{ask, one};
use crate::service::{Echo, SAY, builder, limit, serve};

/// Asserts the code and the message. If there are details, they must agree.
fn assert_is(headers: &HeaderMap, code: u64, message: &str) {
    assert_eq!(one(headers, "grpc-status"), Some(code.to_string().as_str()), "{headers:?}");
    let status = tonic::Status::from_header_map(headers).unwrap();
    assert_eq!(status.message(), message);
    if let Some(details) = one(headers, "grpc-status-details-bin") {
        assert_eq!(details, crate::protobuf::base64(&crate::protobuf::status(code, message, &[])));
    }
    for absent in ["grpc-retry-pushback-ms", "retry-after", "ratelimit", "ratelimit-policy"] {
        assert!(!headers.contains_key(absent), "{headers:?}");
    }
}

#[tokio::test]
async fn a_limiter_that_was_closed_is_unavailable() {
    let layer = limit(per(1, Duration::from_secs(1)), &ManualClock::new());
    let other = limit(per(1, Duration::from_secs(1)), &ManualClock::new());
    // The same is true of a limiter that has just denied a call.
    reported(&second!(layer.clone()));
    layer.limiter().close();
    let server = serve!(builder().layer(layer.clone()).add_service(Echo::default()));
    let heard = ask(server.address, SAY).await;
    heard.assert_is_trailers_only();
    assert_is(&heard.headers, 14, "shutting down");
    let response = through(&other.and(layer)).await;
    assert_is(response.headers(), 14, "shutting down");
}

/// A store whose calls always fail.
#[derive(Clone, Debug)]
struct Broken(TokenBucket);

impl Limiter for Broken {
    type Algorithm = TokenBucket;
    type Error = std::io::Error;
    type Wait = Pin<Box<dyn Future<Output = Result<Decided, std::io::Error>> + Send>>;

    fn info(&self) -> Arc<AlgorithmInfo> {
        AlgorithmInfo::of(&self.0)
    }

    fn stats(&self) -> LimiterStats {
        LimiterStats::default()
    }

    fn close(&self) {}
}

impl<K: ?Sized> LimiterFor<K> for Broken {
    fn acquire(&self, _: &K, _: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
        Acquired::Pending(Box::pin(async { Err(std::io::Error::other("50% of the store is gone")) }))
    }
}

#[tokio::test]
async fn a_store_that_fails_is_unavailable() {
    let limiter = Broken(per(1, Duration::from_secs(1)));
    let response = through(&RateLimitLayer::with_limiter(Global, limiter)).await;
    assert!(response.body().is_end_stream());
    // Nothing of the store's error is reported.
    assert_is(response.headers(), 14, "rate limiter unavailable");
}

/// A key extractor that forbids every request.
#[derive(Clone, Debug)]
struct Forbidding(&'static str);

impl<Req> KeyExtractor<Req> for Forbidding {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        Err(KeyError::forbidden(self.0))
    }
}

#[tokio::test]
async fn callers_without_a_key_get_the_reason() {
    let key = Header::new("x-api-key").unwrap();
    let layer = RateLimitLayer::new(key, per(1, Duration::from_secs(1)));
    let twice = [("x-api-key", "a"), ("x-api-key", "b")];
    let mut request = request();
    for (name, value) in twice {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let service = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
    let response = layer.layer(service).oneshot(request).await.unwrap();
    assert!(response.body().is_end_stream());
    assert_is(response.headers(), 3, "the request does not identify its client in a valid form");

    // The response does not say what the server lacks.
    let layer = RateLimitLayer::new(PeerIp::new(), per(1, Duration::from_secs(1)));
    assert_is(through(&layer).await.headers(), 13, "the server cannot identify the client of this request");

    let layer = RateLimitLayer::new(Bearer::new().required(), per(1, Duration::from_secs(1)));
    let response = through(&layer).await;
    assert!(!response.headers().contains_key("www-authenticate"));
    assert_is(response.headers(), 16, "send a bearer token");

    let strange = "no: 100% \u{fc}\n";
    let layer = RateLimitLayer::new(Forbidding(strange), per(1, Duration::from_secs(1)));
    let response = through(&layer).await;
    assert_eq!(one(response.headers(), "grpc-message"), Some("no: 100%25 %C3%BC%0A"));
    assert_is(response.headers(), 7, strange);
}
