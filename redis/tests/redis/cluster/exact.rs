//! Limits are exact over all nodes of a cluster, also while slots move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tower_throttle::Quota;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle_redis::{RedisStore, RedisStoreBuilder};

use super::{Limiter, MS, keys_of_nodes, limiter, text_of};
use crate::support::redis_server::{RedisCluster, Reply};

/// Returns a builder of a store whose deadline is so long that a busy machine keeps it.
pub(super) fn patient(cluster: &RedisCluster) -> RedisStoreBuilder {
    RedisStore::cluster(cluster.urls()).deadline(Duration::from_secs(20))
}

/// Makes `calls` calls for each key, from tasks that take turns. Returns the number of admitted calls for each key.
async fn admitted(limiters: &[Limiter], keys: &[String], calls: usize) -> Vec<u64> {
    let mut tasks = Vec::new();
    for key in keys {
        let (limiters, key) = (limiters.to_vec(), key.clone());
        tasks.push(tokio::spawn(async move {
            let calls: Vec<_> = (0..calls)
                .map(|call| tokio::spawn(limiters[call % limiters.len()].check(key.as_str())))
                .collect();
            let mut admitted = 0;
            for call in calls {
                admitted += u64::from(call.await.unwrap().unwrap().is_allowed());
            }
            admitted
        }));
    }
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.push(task.await.unwrap());
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_exact_over_many_keys_on_three_nodes() {
    let cluster = RedisCluster::start();
    // One store gets the URL of a single node, and one store does not connect before its first call.
    let stores = [
        patient(&cluster).connect().await.unwrap(),
        RedisStore::cluster(&cluster.urls()[2..]).deadline(Duration::from_secs(20)).connect().await.unwrap(),
        patient(&cluster).connect_lazily().unwrap(),
    ];
    let limiters = stores.each_ref().map(|store| limiter(store, 7));
    let keys: Vec<_> = (0..90).map(|number| format!("user:{number}")).collect();
    assert_eq!(admitted(&limiters, &keys, 21).await, vec![7; 90]);
    for node in &cluster.nodes {
        assert!(matches!(node.call(&["DBSIZE"]), Reply::Integer(10..)), "keys are spread");
        let errors = node.info("errorstats");
        assert!(!errors.contains("CROSSSLOT"), "{errors}");
    }
    assert!(stores.iter().all(|store| store.stats().trips >= 90 && !store.stats().is_circuit_open));
    limiters[0].reset(keys[0].as_str()).await.unwrap();
    assert_eq!(limiters[2].peek(keys[0].as_str()).await.unwrap().remaining(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slot_is_one_node() {
    let cluster = RedisCluster::start();
    let limiter = limiter(&patient(&cluster).one_slot("app").connect().await.unwrap(), 3);
    for number in 0..20 {
        assert!(limiter.check(&number.to_string()).await.unwrap().is_allowed());
    }
    let sizes: Vec<_> = cluster.nodes.iter().map(|node| node.call(&["DBSIZE"])).collect();
    assert_eq!(sizes.iter().filter(|size| **size == Reply::Integer(20)).count(), 1, "{sizes:?}");
    assert_eq!(sizes.iter().filter(|size| **size == Reply::Integer(0)).count(), 2, "{sizes:?}");
}

/// Moves the slots of all keys by each of these steps, from one node to another. `calls` returns the number of calls
/// that were made, which are made until this function has returned.
pub(super) async fn move_slots(
    cluster: &RedisCluster,
    keys: &[String],
    steps: impl IntoIterator<Item = (usize, usize)>,
    calls: impl Fn() -> u64,
) {
    for (source, target) in steps {
        for key in keys {
            let before = calls();
            let slot = cluster.begin_to_move(&text_of(key), source, target);
            // Calls are made while the slot moves, before and after its key has moved.
            let enough = async |more| {
                while calls() < before + more {
                    sleep(MS).await;
                }
            };
            enough(20).await;
            cluster.move_keys(&slot, source, target);
            enough(60).await;
            cluster.finish_moving(&slot, source, target);
            enough(80).await;
        }
    }
    let asked: u64 = cluster.nodes.iter().map(|node| node.calls_of("asking")).sum();
    assert!(asked > 0, "some calls were made while a slot was on its way");
    assert!(cluster.nodes.iter().all(|node| node.info("errorstats").contains("errorstat_MOVED")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_are_followed_without_an_error() {
    let cluster = RedisCluster::start();
    let stores = [patient(&cluster).connect().await.unwrap(), patient(&cluster).connect().await.unwrap()];
    let limiters = stores.each_ref().map(|store| limiter(store, 100_000));
    let [from, to, _] = keys_of_nodes(&cluster, 4);
    let keys = Arc::new(from.clone());
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicU64::new(0) }; 4]));
    for (key, calls) in from.iter().zip(&*calls) {
        // With this call, each key exists before it is moved.
        assert!(limiters[0].check(key.as_str()).await.unwrap().is_allowed());
        calls.fetch_add(1, Ordering::Relaxed);
    }
    let mut tasks = Vec::new();
    for task in 0..8 {
        let (limiter, keys) = (limiters[task % 2].clone(), Arc::clone(&keys));
        let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let index = task / 2;
                let decision = limiter.check(keys[index].as_str()).await.unwrap();
                assert!(decision.is_allowed());
                calls[index].fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    // Slots move back and forth, so that a process may still use what it has learned before, and so that each node has
    // been asked for moved keys.
    let made = || calls.iter().map(|calls| calls.load(Ordering::Relaxed)).sum();
    move_slots(&cluster, &from, [(0, 1), (1, 2), (2, 0), (0, 1)], made).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    for (key, calls) in from.iter().zip(&*calls) {
        let used = 100_000 - limiters[0].peek(key.as_str()).await.unwrap().remaining();
        assert_eq!(used, calls.load(Ordering::Relaxed), "{key}");
    }
    assert!(limiters[1].check(to[0].as_str()).await.is_ok());
    assert!(stores.iter().all(|store| store.stats().late == 0 && store.stats().circuit_openings == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_script_is_sent_again_to_the_node_that_needs_it() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster).connect().await.unwrap();
    let bucket = TokenBucket::new(Quota::per_day(1).burst(100));
    let limiter = store.limiter("test", bucket).build().unwrap();
    let keys = keys_of_nodes(&cluster, 3);
    for key in keys.iter().flatten() {
        assert!(limiter.check(key.as_str()).await.unwrap().is_allowed());
    }
    for node in &cluster.nodes {
        assert_eq!(node.calls_of("eval"), 2, "one for connecting, and one for the bucket");
        assert!(!node.info("errorstats").contains("MOVED"), "each key was asked of its node at once");
    }
    cluster.nodes[1].call(&["SCRIPT", "FLUSH"]).ok();
    for key in keys.iter().flatten() {
        assert_eq!(limiter.check(key.as_str()).await.unwrap().remaining(), 98);
    }
    let evals = cluster.nodes.each_ref().map(|node| node.calls_of("eval"));
    assert_eq!(evals, [2, 3, 2]);
}
