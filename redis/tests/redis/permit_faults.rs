//! Permits while the network or the server fails, or while a slot of a cluster moves.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tower_throttle_redis::{RedisErrorKind, RedisStore};

use crate::permits::{MS, acquire, begin_to_wait, leasing, limiter, two, until_left};
use crate::proxy::{Fault, Proxy};
use crate::support::redis_server::{RedisCluster, RedisServer, Reply};

#[tokio::test]
async fn a_permit_that_cannot_be_renewed_is_lost_before_another_call_gets_it() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await;
    let lease = Duration::from_millis(800);
    let one = limiter(&leasing(&proxy.url(), lease).connect().await.unwrap(), lease, 1);
    let other = limiter(&leasing(&server.url(), lease).connect().await.unwrap(), lease, 1);
    let permit = acquire(&one).await;
    proxy.set(Fault::HoldRequests);
    let lost = async {
        permit.lost().await;
        Instant::now()
    };
    let next = async {
        let next = acquire(&other).await;
        (next, Instant::now())
    };
    let (lost, (next, taken)) = tokio::join!(lost, next);
    assert!(lost < taken, "{:?}", lost - taken);
    assert!(permit.fencing_token() < next.fencing_token());
    // The return of a lost permit does not take the permit from the call that holds it now.
    proxy.set(Fault::None);
    drop(permit);
    sleep(Duration::from_millis(300)).await;
    assert!(other.try_acquire_permit("a").await.unwrap().is_err());
    drop(next);
}

#[tokio::test]
async fn a_server_that_has_lost_its_data_ends_permits_and_keeps_waiters() {
    let server = RedisServer::start();
    let [one, other] = two(&server, Duration::from_millis(900), |store| store.permits("exports", 1)).await;
    let first = acquire(&one).await;
    let next = begin_to_wait(&other, &server).await;
    server.call(&["FLUSHALL"]).ok();
    timeout(Duration::from_secs(5), first.lost()).await.expect("the permit is lost");
    let second = next.await.unwrap();
    assert!(first.fencing_token() < second.fencing_token());
    drop(first);
    assert!(one.try_acquire_permit("a").await.unwrap().is_err());
}

#[tokio::test]
async fn foreign_values_are_errors_and_stay() {
    let server = RedisServer::start();
    let store = leasing(&server.url(), Duration::from_secs(1)).connect().await.unwrap();
    let exports = limiter(&store, Duration::from_secs(1), 1);
    for foreign in
        [&["SET", "throttle:{a}:exports:p", "1"][..], &["HSET", "throttle:{a}:exports:p", "name", "1"]]
    {
        server.call(foreign);
        let error = exports.try_acquire_permit("a").await.unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Foreign, "{foreign:?}: {error}");
        assert!(error.to_string().contains("\"exports\", Concurrency 1 at a time"), "{error}");
        assert_eq!(server.call(&["DEL", "throttle:{a}:exports:p"]), Reply::Integer(1));
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_error_in_time_and_returned_permits_follow() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await;
    let store = RedisStore::builder(&proxy.url()).deadline(500 * MS).connect().await.unwrap();
    let lease = Duration::from_secs(20);
    let one = limiter(&store, lease, 1);
    let other = limiter(&leasing(&server.url(), lease).connect().await.unwrap(), lease, 1);
    let permit = acquire(&one).await;
    proxy.set(Fault::SwallowReplies);
    let start = Instant::now();
    for _ in 0..5 {
        assert!(one.try_acquire_permit("b").await.is_err());
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(permit);
    sleep(Duration::from_millis(200)).await;
    proxy.set(Fault::None);
    // All permits are available again long before they expire, even those of calls whose replies were lost.
    until_left(&other, 1).await;
    let start = Instant::now();
    while other.peek("b").await.unwrap().remaining() != 1 {
        assert!(start.elapsed() < Duration::from_secs(10));
        sleep(5 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_waiters_follow_a_slot_that_moves() {
    let cluster = RedisCluster::start();
    let limiters = [(); 2].map(|()| {
        let store = RedisStore::cluster(cluster.urls()).deadline(Duration::from_secs(5));
        limiter(&store.connect_lazily().unwrap(), Duration::from_secs(20), 1)
    });
    let [one, other] = limiters;
    let permit = acquire(&one).await;
    let key = "throttle:{a}:exports:p";
    let from = cluster.node_of(key);
    let to = (from + 1) % 3;
    let next = begin_to_wait(&other, &cluster.nodes[from]).await;
    let slot = cluster.begin_to_move(key, from, to);
    cluster.move_keys(&slot, from, to);
    assert!(one.try_acquire_permit("a").await.unwrap().is_err(), "while the slot moves");
    cluster.finish_moving(&slot, from, to);
    drop(permit);
    drop(next.await.unwrap());
    until_left(&one, 1).await;
}

#[tokio::test]
async fn a_returned_permit_does_not_close_the_circuit_breaker_of_a_full_server() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(20);
    let store = leasing(&server.url(), lease).connect().await.unwrap();
    let exports = limiter(&store, lease, 5);
    let held = [acquire(&exports).await, acquire(&exports).await];
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let error = exports.try_acquire_permit("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::OutOfMemory, "{error}");
    assert!(store.stats().is_circuit_open);
    let [first, second] = held;
    drop(first);
    let start = Instant::now();
    while server.call(&["HLEN", "throttle:{a}:exports:p"]) != Reply::Integer(2) {
        assert!(start.elapsed() < Duration::from_secs(10), "the permit is returned");
        sleep(MS).await;
    }
    // The reply may arrive later.
    sleep(200 * MS).await;
    assert!(store.stats().is_circuit_open, "the server still refuses all calls");
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    while exports.try_acquire_permit("a").await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "a new permit closes it");
        sleep(MS).await;
    }
    assert!(!store.stats().is_circuit_open);
    drop(second);
}
