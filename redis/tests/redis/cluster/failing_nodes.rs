//! A master that fails concerns only its keys, and wrong addresses are named errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_throttle_redis::{RedisErrorKind, RedisStore};

use super::{MS, keys_of_nodes, limiter};
use crate::support::redis_server::{RedisCluster, RedisServer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_concerns_only_its_keys() {
    concerns_only_its_keys(RedisServer::kill, RedisServer::restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_suspended_concerns_only_its_keys() {
    concerns_only_its_keys(|server| server.suspend(), |server| server.resume()).await;
}

async fn concerns_only_its_keys(fail: fn(&mut RedisServer), repair: fn(&mut RedisServer)) {
    let mut cluster = RedisCluster::with(&["--cluster-require-full-coverage", "no"]);
    let deadline = Duration::from_secs(1);
    let store = RedisStore::cluster(cluster.urls()).deadline(deadline).connect().await.unwrap();
    let limiter = limiter(&store, 100_000);
    let keys = keys_of_nodes(&cluster, 5);
    let [dead, rest @ ..] = &keys;
    for key in keys.iter().flatten() {
        assert!(limiter.check(key.as_str()).await.unwrap().is_allowed());
    }
    fail(&mut cluster.nodes[0]);
    let (stop, mut tasks) = (Arc::new(AtomicBool::new(false)), Vec::new());
    for key in rest.iter().flatten().cloned() {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let (mut calls, mut longest) = (0, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                assert!(limiter.check(key.as_str()).await.unwrap().is_allowed());
                calls += 1;
                longest = longest.max(start.elapsed());
                sleep(MS).await;
            }
            (key, calls, longest)
        }));
    }
    // The calls for the keys of this master fail at the deadline, and later calls fail at once.
    let (mut kinds, start) = (Vec::new(), Instant::now());
    let (mut at_once, mut longest) = (0, Duration::ZERO);
    while start.elapsed() < Duration::from_secs(3) {
        let calls = dead.iter().map(|key| {
            let call = limiter.check(key.as_str());
            tokio::spawn(async move {
                let start = Instant::now();
                (call.await.unwrap_err().kind(), start.elapsed())
            })
        });
        for call in calls.collect::<Vec<_>>() {
            let (kind, took) = call.await.unwrap();
            longest = longest.max(took);
            at_once += usize::from(kind == RedisErrorKind::Open);
            kinds.push(kind);
        }
        sleep(MS).await;
    }
    let named = |kind: &RedisErrorKind| {
        matches!(kind, RedisErrorKind::Unreachable | RedisErrorKind::Late | RedisErrorKind::Open)
    };
    assert!(kinds.iter().all(named), "{kinds:?}");
    assert!(at_once > 0, "the circuit breaker of that node has opened");
    assert_eq!(store.stats().circuit_openings, 1, "and no other has");
    assert!(store.stats().is_circuit_open);
    assert!(
        longest < 5 * deadline,
        "a call took {longest:?}, with a deadline of {deadline:?} on a busy machine"
    );
    println!("of a dead master: {} calls, {at_once} at once, longest {longest:?}", kinds.len());
    repair(&mut cluster.nodes[0]);
    cluster.join(0);
    let start = Instant::now();
    for key in dead {
        while limiter.check(key.as_str()).await.is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", limiter.check(key.as_str()).await);
            sleep(5 * MS).await;
        }
        assert!(
            limiter.peek(key.as_str()).await.unwrap().remaining() >= 99_998,
            "no call that failed is charged"
        );
    }
    println!("used again after {:?}", start.elapsed());
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        let (key, calls, longest) = task.await.unwrap();
        println!("{key}: {calls} calls, longest {longest:?}");
        assert!(calls > 10);
        let used = 100_000 - limiter.peek(key.as_str()).await.unwrap().remaining();
        assert_eq!(used, calls + 1, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_addresses_and_servers_are_named_errors() {
    let no_urls: [&str; 0] = [];
    let connected = |urls: Vec<String>| async move {
        let error = RedisStore::cluster(urls).connect().await.unwrap_err();
        (error.kind(), error.to_string())
    };
    let lazy = RedisStore::cluster(no_urls).connect_lazily().unwrap_err();
    assert_eq!(lazy.kind(), RedisErrorKind::Config);
    assert!(lazy.to_string().contains("at least one"), "{lazy}");
    for url in ["not a url", "redis://127.0.0.1:1/3", "unix:///tmp/redis.sock"] {
        let (kind, text) = connected(vec![url.to_owned()]).await;
        assert_eq!(kind, RedisErrorKind::Config, "{url}: {text}");
    }
    let (kind, text) =
        connected(vec!["redis://127.0.0.1:1".to_owned(), "redis://127.0.0.1:2".to_owned()]).await;
    assert_eq!(kind, RedisErrorKind::Unreachable, "{text}");
    let single = RedisServer::start();
    let (kind, text) = connected(vec![single.url()]).await;
    assert_eq!(kind, RedisErrorKind::Config, "{text}");
    assert!(text.contains("RedisStore::connect"), "{text}");
    let locked = RedisServer::with(&["--requirepass", "secret"]);
    assert_eq!(connected(vec![locked.url()]).await.0, RedisErrorKind::Auth);
    // One node that can be reached is enough.
    let cluster = RedisCluster::start();
    let urls = ["redis://127.0.0.1:1".to_owned(), cluster.nodes[1].url()];
    let found = RedisStore::cluster(&urls).deadline(Duration::from_secs(20)).connect().await;
    assert!(limiter(&found.unwrap(), 3).check("a").await.is_ok());
    // A node of a cluster cannot be used as a single server, and the error says so.
    let node = RedisStore::builder(&cluster.nodes[0].url()).deadline(Duration::from_secs(20));
    let limiter = limiter(&node.connect_lazily().unwrap(), 3);
    let key = &keys_of_nodes(&cluster, 1)[1][0];
    let error = limiter.check(key.as_str()).await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Moved);
    assert!(error.to_string().contains("RedisStore::cluster"), "{error}");
}
