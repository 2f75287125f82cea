//! The memory that Redis needs for a key, as the chapter on many machines says it. `cargo test -p tower-throttle-redis
//! --test redis -- --nocapture the_sizes_of` prints the figures.

use std::time::Duration;

use tokio::time::sleep;
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use crate::connect;
use crate::permits::{acquire, waiting};
use crate::support::redis_server::{RedisServer, Reply};

/// Returns the bytes that a key takes, with its name.
fn size(server: &RedisServer, key: &str) -> i64 {
    match server.call(&["MEMORY", "USAGE", key, "SAMPLES", "0"]) {
        Reply::Integer(bytes) => bytes,
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test]
async fn the_sizes_of_keys_are_below_200_bytes() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let assert_small = |name: &str, kind: &str| {
        let key = format!("throttle:{{user-42}}:{name}:{kind}");
        assert_eq!(key.len(), 26);
        let bytes = size(&server, &key);
        println!("{name}: {bytes} bytes");
        assert!(bytes < 200, "{name}: {bytes} bytes");
    };
    let quota = Quota::per_hour(100);
    let bucket = store.limiter("token", TokenBucket::new(quota)).build().unwrap();
    assert!(bucket.check("user-42").await.unwrap().is_allowed());
    assert_small("token", "t");
    let window = store.limiter("fixed", FixedWindow::new(quota)).build().unwrap();
    assert!(window.check("user-42").await.unwrap().is_allowed());
    assert_small("fixed", "f");
    // Ten slices of 200 ms.
    let quota = Quota::per(100, Duration::from_secs(2)).unwrap();
    let window = store.limiter("slide", SlidingWindow::new(quota)).build().unwrap();
    for _ in 0..10 {
        assert!(window.check("user-42").await.unwrap().is_allowed());
        sleep(Duration::from_millis(190)).await;
    }
    assert_small("slide", "w");
}

#[tokio::test]
async fn the_sizes_of_permits_and_waiters_are_bounded() {
    // More than Redis keeps in the compact form of a small hash.
    const MANY: u64 = 600;
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limiter = store.permits("exports", MANY).lease(Duration::from_secs(60)).queue(MANY).build().unwrap();
    let key = "throttle:{a}:exports:p";
    let mut permits = Vec::new();
    for _ in 0..MANY {
        permits.push(acquire(&limiter).await);
    }
    let all = size(&server, key);
    let mut side = server.connect();
    let waiters: Vec<_> = (0..MANY)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire_permit("a").await })
        })
        .collect();
    while waiting(&mut side) < MANY {
        sleep(Duration::from_millis(1)).await;
    }
    let with_waiters = size(&server, key);
    let permit = all / MANY.cast_signed();
    let waiter = (with_waiters - all) / MANY.cast_signed();
    println!("a permit: {permit} bytes, a waiter: {waiter} bytes");
    assert!(permit < 200 && waiter < 250, "a permit: {permit} bytes, a waiter: {waiter} bytes");
    waiters.iter().for_each(|waiter| waiter.abort());
}
