//! Encrypted connections. The server has a certificate that no system trusts.

use std::time::Duration;

use redis::{Client, TlsCertificates};
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingLog};
use tower_throttle_redis::{RedisErrorKind, RedisStore, RedisStoreBuilder};

use crate::support::redis_server::{RedisServer, free_port};

const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certificates/localhost.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certificates/localhost.key");

pub(crate) fn server() -> (RedisServer, String) {
    let port = free_port();
    let server = RedisServer::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        CERTIFICATE,
        "--tls-key-file",
        KEY,
        "--tls-auth-clients",
        "no",
    ]);
    (server, format!("rediss://localhost:{port}"))
}

pub(crate) fn trusting(url: &str) -> RedisStoreBuilder {
    let root_cert = Some(std::fs::read(CERTIFICATE).unwrap());
    let client = Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert }).unwrap();
    RedisStoreBuilder::from_client(client).deadline(Duration::from_secs(20))
}

#[tokio::test]
async fn calls_are_decided_over_an_encrypted_connection() {
    let (server, url) = server();
    let store = trusting(&url).connect().await.unwrap();
    let window = store.limiter("window", FixedWindow::new(Quota::per_day(5)));
    let log = store.limiter("log", SlidingLog::new(Quota::per_day(5)));
    let (window, log) = (window.build().unwrap(), log.build().unwrap());
    let mut admitted = [0, 0];
    for _ in 0..8 {
        admitted[0] += u64::from(window.check("a").await.unwrap().is_allowed());
        admitted[1] += u64::from(log.check("a").await.unwrap().is_allowed());
    }
    assert_eq!(admitted, [5, 5]);
    // The connection is closed, and the new connection is encrypted, too.
    server.call(&["CLIENT", "KILL", "TYPE", "normal"]);
    let start = std::time::Instant::now();
    while window.peek("a").await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(window.peek("a").await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn an_untrusted_certificate_and_ports_with_and_without_encryption_are_named_errors() {
    let (server, url) = server();
    let unreachable = async |builder: RedisStoreBuilder| {
        let error = builder.connect().await.unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), RedisErrorKind::Unreachable, "{error}");
        error.to_string()
    };
    let patient = |url: &str| RedisStore::builder(url).deadline(Duration::from_secs(20));
    let untrusted = unreachable(patient(&url)).await;
    assert!(untrusted.contains("the certificate of Redis is not accepted"), "{untrusted}");
    assert!(!untrusted.contains("check the address") && untrusted.contains("localhost:"), "{untrusted}");
    let without = unreachable(patient(&url.replace("rediss:", "redis:"))).await;
    assert!(without.contains("use `rediss://`"), "{without}");
    let plain = trusting(&format!("rediss://localhost:{}", server.port()));
    let plain = unreachable(plain.deadline(Duration::from_secs(1))).await;
    assert!(plain.contains("use `redis://`"), "{plain}");
}
