//! A peer at a Unix socket has no address.

use std::fs;
use std::path::PathBuf;

use tokio::net::UnixListener;
use tonic::Code;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Endpoint;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{MissingKey, Networks, PeerIp};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::Task;
use crate::{Caller, Echo, builder, is_used_up, per_ip};

/// A server at a Unix socket, which is stopped on drop.
struct Socket {
    path: PathBuf,
    _serving: Task,
}

impl Socket {
    fn start(name: &str, layer: RateLimitLayer<PeerIp, TokenBucket>) -> Self {
        let path = std::env::temp_dir().join(format!("tower-throttle-{}-{name}.sock", std::process::id()));
        let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        let serving = builder().layer(layer).add_service(Echo::default()).serve_with_incoming(incoming);
        Self { path, _serving: Task::spawn(async move { serving.await.unwrap() }) }
    }

    async fn caller(&self) -> Caller {
        Caller::at(Endpoint::from_shared(format!("unix://{}", self.path.display())).unwrap()).await
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[tokio::test]
async fn over_a_unix_socket_no_caller_has_an_address() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
    let server = Socket::start("rejected", layer.clone());
    let mut caller = server.caller().await;
    for _ in 0..2 {
        let status = caller.echo("ab").await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "the server cannot identify the client of this request");
        assert!(!status.metadata().contains_key("retry-after"), "{status:?}");
    }
    let counts = layer.stats().keys;
    assert_eq!((counts.rejected, counts.shared, counts.unlimited, counts.forbidden), (2, 0, 0, 0));
}

#[tokio::test]
async fn over_a_unix_socket_all_may_be_limited_as_one() {
    let layer = per_ip(Quota::per_hour(2), &ManualClock::new()).missing_key(MissingKey::Shared);
    let server = Socket::start("shared", layer.clone());
    for _ in 0..2 {
        assert!(server.caller().await.echo("ab").await.is_ok());
    }
    let status = server.caller().await.echo("ab").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let counts = layer.stats().keys;
    assert_eq!((counts.rejected, counts.shared, counts.unlimited, counts.forbidden), (0, 3, 0, 0));
    // No caller with an address shares this budget.
    assert!(!is_used_up(&layer, [127, 0, 0, 1]));
}

#[tokio::test]
async fn over_a_unix_socket_no_caller_is_limited_or_served_by_name() {
    let unix = || Networks::new(["unix"]).unwrap();
    let layer = |key| {
        let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_hour(1))).clock(ManualClock::new());
        RateLimitLayer::with_limiter(key, limiter.build())
    };
    let allowing = layer(PeerIp::new().allow(unix()));
    let server = Socket::start("allowed", allowing.clone());
    for _ in 0..3 {
        assert!(server.caller().await.echo("ab").await.is_ok());
    }
    let denying = layer(PeerIp::new().deny(unix()));
    let server = Socket::start("denied", denying.clone());
    assert_eq!(server.caller().await.echo("ab").await.unwrap_err().code(), Code::PermissionDenied);
    let counts = [allowing, denying].map(|layer| layer.stats().keys);
    assert_eq!(counts.map(|counts| (counts.rejected, counts.forbidden)), [(0, 0), (0, 1)]);
}

#[tokio::test]
async fn over_a_unix_socket_all_may_pass() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new()).missing_key(MissingKey::Pass);
    let server = Socket::start("passed", layer.clone());
    for _ in 0..3 {
        assert!(server.caller().await.echo("ab").await.is_ok());
    }
    assert_eq!(layer.stats().keys.unlimited, 3);
}
