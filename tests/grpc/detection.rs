//! The requests that get gRPC responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tonic::Code;
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{BodyFormat, GrpcMode, HttpResponder};
use tower_throttle::{Quota, RateLimitLayer};

use crate::client::Caller;
use crate::details::{Details, reported};
use crate::frames::{Heard, Says, ask, call, send};
use crate::service::{Echo, METHODS, SAY, builder, limit, serve};

/// A limit of one call an hour, which is used up.
fn used_up() -> RateLimitLayer<Global, TokenBucket> {
    let layer = limit(TokenBucket::new(Quota::per_hour(1)), &ManualClock::new());
    assert!(layer.limiter().check(&()).is_allowed());
    layer
}

macro_rules! rejecting {
    ($responder:expr) => {
        serve!(builder().layer(used_up().responder($responder)).add_service(Echo::default()))
    };
}

const GRPC: [&str; 6] = [
    "application/grpc",
    "application/grpc+proto",
    "application/grpc+json",
    "application/grpc;charset=utf-8",
    "Application/GRPC",
    "APPLICATION/grpc+Proto",
];

const WEB: [&str; 4] = [
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
];

const NEITHER: [Option<&str>; 9] = [
    None,
    Some("application/grpc-webinar; x=y"),
    Some("application/grpc-web-texts"),
    Some("application/json"),
    Some("application/grpcx"),
    Some("application/grp"),
    Some("text/application/grpc"),
    Some("application/x-protobuf"),
    Some(""),
];

#[track_caller]
fn assert_is_grpc(heard: &Heard, content_type: &str) {
    heard.assert_is_trailers_only();
    assert_eq!(heard.header("content-type"), content_type);
    let hour = Duration::from_secs(3_600);
    assert_eq!(reported(&heard.headers), Details::new(Some(hour), &["default"], Some(-1)));
}

#[track_caller]
fn assert_is_http(heard: &Heard) {
    assert_eq!(heard.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(heard.header("content-type"), "application/problem+json");
    assert_eq!(heard.header("retry-after"), "3600");
    let grpc = ["grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-retry-pushback-ms"];
    assert!(!grpc.iter().any(|name| heard.has(name)), "{heard:?}");
}

#[tokio::test]
async fn grpc_callers_are_detected_by_their_content_type() {
    for responder in [HttpResponder::new(), HttpResponder::new().grpc(GrpcMode::ByContentType)] {
        let server = rejecting!(responder);
        for kind in GRPC {
            let heard = send(server.address, call(SAY, Some(kind)), Says::Once).await;
            assert_is_grpc(&heard, "application/grpc");
        }
        for kind in WEB {
            assert_is_grpc(&send(server.address, call(SAY, Some(kind)), Says::Once).await, kind);
        }
        let with_parameters = call(SAY, Some("application/grpc-web+proto;x=y"));
        let heard = send(server.address, with_parameters, Says::Once).await;
        assert_is_grpc(&heard, "application/grpc-web+proto");
        for kind in NEITHER {
            assert_is_http(&send(server.address, call(SAY, kind), Says::Once).await);
        }
    }
}

#[tokio::test]
async fn all_callers_can_get_grpc_responses() {
    let server = rejecting!(HttpResponder::new().grpc(GrpcMode::Always));
    for kind in GRPC.map(Some).into_iter().chain(NEITHER) {
        let heard = send(server.address, call(SAY, kind), Says::Once).await;
        assert_is_grpc(&heard, "application/grpc");
    }
    for kind in WEB {
        assert_is_grpc(&send(server.address, call(SAY, Some(kind)), Says::Once).await, kind);
    }
}

#[tokio::test]
async fn grpc_responses_can_be_off() {
    let server = rejecting!(HttpResponder::new().grpc(GrpcMode::Never));
    for kind in GRPC.into_iter().chain(WEB).map(Some).chain(NEITHER) {
        assert_is_http(&send(server.address, call(SAY, kind), Says::Once).await);
    }
    // This is why gRPC requests need gRPC responses: clients treat a 429 as a server that is down, and many clients
    // then retry immediately.
    let server = rejecting!(HttpResponder::new().grpc(GrpcMode::Never).body(BodyFormat::Empty));
    let mut caller = Caller::connect(server.address).await;
    for method in METHODS {
        assert_eq!(caller.call(method, "abc").await.unwrap_err().code(), Code::Unavailable);
    }
}

#[tokio::test]
async fn a_custom_response_is_not_used_for_grpc_callers() {
    let asked = Arc::new(AtomicUsize::new(0));
    for (grpc, times) in [(GrpcMode::ByContentType, 0), (GrpcMode::Always, 0), (GrpcMode::Never, 1)] {
        asked.store(0, Ordering::SeqCst);
        let counting = asked.clone();
        let responder = HttpResponder::new().grpc(grpc).rejection_response(move |rejection, _| {
            counting.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(Bytes::from_static(b"no"));
            *response.status_mut() = rejection.status();
            response
        });
        let server = rejecting!(responder);
        let heard = ask(server.address, SAY).await;
        assert_eq!((heard.has("grpc-status"), asked.load(Ordering::SeqCst)), (times == 0, times), "{grpc:?}");
        let status = if times == 0 { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        assert_eq!(heard.status, status);
    }
}

/// A call that would be admitted after its `grpc-timeout` is rejected immediately, if its response would be a gRPC
/// response.
#[tokio::test]
async fn a_timeout_applies_to_calls_that_get_grpc_responses() {
    let grpc = Some("application/grpc");
    for (mode, kind, is_rejected) in [
        (GrpcMode::ByContentType, grpc, true),
        (GrpcMode::ByContentType, None, false),
        (GrpcMode::Always, grpc, true),
        (GrpcMode::Always, None, true),
        (GrpcMode::Never, grpc, false),
        (GrpcMode::Never, None, false),
    ] {
        let clock = ManualClock::new();
        let layer = limit(LeakyBucket::new(Quota::per_second(1)).queue(1), &clock);
        assert!(layer.limiter().check(&()).is_allowed());
        let limiter = layer.limiter().clone();
        let layer = layer.responder(HttpResponder::new().grpc(mode));
        let server = serve!(builder().layer(layer).add_service(Echo::default()));
        let mut call = call(SAY, kind);
        call.headers_mut().insert("grpc-timeout", "999m".parse().unwrap());
        let asking = send(server.address, call, Says::Once);
        let admission = async {
            while limiter.queued() == 0 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(1));
            std::future::pending::<()>().await;
        };
        let heard = tokio::select! {
            heard = asking => heard,
            () = admission => unreachable!(),
        };
        assert_eq!(heard.has("retry-after"), is_rejected, "{mode:?} {kind:?}: {heard:?}");
    }
}
