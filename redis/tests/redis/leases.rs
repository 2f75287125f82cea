//! Eight processes with leases of one bucket. Each process has a connection of its own.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};
use tower_throttle_redis::{RedisErrorKind, RedisStore};

use crate::cluster::keys_of_nodes;
use crate::patient;
use crate::support::redis_server::{RedisCluster, RedisServer, Reply};

const BUCKET: TokenBucket = TokenBucket::new(Quota::per_second(1_000).burst(200));

#[tokio::test]
async fn processes_with_leases_admit_no_more_than_one_bucket() {
    let server = RedisServer::start();
    let stores = [(); 8].map(|()| patient(&server).connect_lazily().unwrap());
    let limiters = stores.each_ref().map(|store| store.limiter("api", BUCKET).lease(25).build().unwrap());
    let start = Instant::now();
    let processes = limiters.map(|limiter| {
        tokio::spawn(async move {
            let mut admitted = 0;
            while start.elapsed() < Duration::from_secs(2) {
                admitted += u64::from(limiter.check("a").await.unwrap().is_allowed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            admitted
        })
    });
    let mut admitted = 0;
    for process in processes {
        admitted += process.await.unwrap();
    }
    let possible = 200 + start.elapsed().as_millis() as u64;
    assert!(admitted <= possible, "{admitted} of {possible}");
    assert!(admitted > 200, "{admitted}");
    let trips: u64 = stores.iter().map(|store| store.stats().trips).sum();
    assert!(trips < admitted, "{trips} trips for {admitted} calls");
    let ttl = server.call(&["PTTL", "throttle:{a}:api:lease/1000/1000000000/200"]);
    assert!(matches!(ttl, Reply::Integer(1..=4_000)), "{ttl:?}");
}

async fn hello(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, std::io::Error> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::test]
async fn a_layer_spends_leased_units_without_trips() {
    let server = RedisServer::start();
    let store = patient(&server).connect().await.unwrap();
    let bucket = TokenBucket::new(Quota::per_hour(100));
    let limiter = store.limiter("api", bucket).lease(20).build().unwrap();
    let before = store.stats().trips;
    let service = RateLimitLayer::with_limiter(Global, limiter).layer(service_fn(hello));
    let mut admitted = 0;
    for _ in 0..120 {
        let response = service.clone().oneshot(Request::new(Full::default())).await.unwrap();
        admitted += u64::from(response.status() == 200);
    }
    assert_eq!(admitted, 100, "the only process gets all units");
    let trips = store.stats().trips - before;
    assert!(trips < 40, "{trips}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_follow_a_slot_that_moves_and_lose_no_unit() {
    let cluster = RedisCluster::start();
    let bucket = TokenBucket::new(Quota::per_day(1).burst(50_000));
    let limiters = [(); 2].map(|()| {
        let store = RedisStore::cluster(cluster.urls()).deadline(Duration::from_secs(20));
        store.connect_lazily().unwrap().limiter("test", bucket.clone()).lease(10).build().unwrap()
    });
    let [[key], ..] = keys_of_nodes(&cluster, 1).map(|keys| <[String; 1]>::try_from(keys).unwrap());
    let text = format!("throttle:{{{key}}}:test");
    let mut calls = 0;
    let mut call = async |count: usize| {
        for call in 0..count {
            assert!(limiters[call / 25 % 2].check(key.as_str()).await.unwrap().is_allowed());
            calls += 1;
        }
    };
    call(100).await;
    for (source, target) in [(0, 1), (1, 2), (2, 0)] {
        let slot = cluster.begin_to_move(&text, source, target);
        call(100).await;
        cluster.move_keys(&slot, source, target);
        call(100).await;
        cluster.finish_moving(&slot, source, target);
        call(100).await;
    }
    let [first, second] = limiters;
    drop(first);
    let start = Instant::now();
    while second.peek(key.as_str()).await.unwrap().remaining() != 50_000 - calls {
        assert!(start.elapsed() < Duration::from_secs(10), "the units of the first are returned");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(cluster.nodes.iter().all(|node| node.info("errorstats").contains("MOVED")));
}

#[tokio::test]
async fn returned_units_do_not_close_the_circuit_breaker_of_a_full_server() {
    let server = RedisServer::start();
    let store = patient(&server).connect().await.unwrap();
    let limiter =
        store.limiter("api", TokenBucket::new(Quota::per_day(1).burst(200))).lease(25).build().unwrap();
    for _ in 0..8 {
        assert!(limiter.check("a").await.unwrap().is_allowed());
    }
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    assert_eq!(limiter.check("b").await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
    assert!(store.stats().is_circuit_open);
    drop(limiter);
    let start = Instant::now();
    while server.call(&["HLEN", "throttle:{a}:api:lease/1/86400000000000/200"]) != Reply::Integer(1) {
        assert!(start.elapsed() < Duration::from_secs(10), "the units are returned");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The reply may arrive later.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(store.stats().is_circuit_open, "the server still refuses all calls");
}
