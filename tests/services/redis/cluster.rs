//! Limits in a cluster. They are exact over all nodes and while slots move. If a master fails, only calls for its keys
//! fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::store::redis::{RedisErrorKind, RedisLimit, RedisStore, RedisStoreBuilder};
use tower_throttle::{Quota, RateLimiter};

use crate::support::redis_server::{RedisCluster, RedisServer, Reply};

const MS: Duration = Duration::from_millis(1);

type Limiter = RateLimiter<FixedWindow, RedisLimit<FixedWindow>>;

/// Returns a builder of a store whose deadline is so long that a busy machine keeps it.
fn patient(cluster: &RedisCluster) -> RedisStoreBuilder {
    RedisStore::cluster(cluster.urls()).deadline(Duration::from_secs(20))
}

fn limiter(store: &RedisStore, limit: u64) -> Limiter {
    let window = FixedWindow::new(Quota::per_day(limit));
    RateLimiter::builder(window).name("test").store(store.clone()).build().unwrap()
}

fn text_of(key: &str) -> String {
    format!("throttle:{{{key}}}:test")
}

/// Returns some keys of each node.
pub(crate) fn keys_of_nodes(cluster: &RedisCluster, each: usize) -> [Vec<String>; 3] {
    let mut keys = [const { Vec::new() }; 3];
    for key in (0..).map(|number| format!("key-{number}")) {
        let of_node = &mut keys[cluster.node_of(&text_of(&key))];
        if of_node.len() < each {
            of_node.push(key);
        }
        if keys.iter().all(|keys| keys.len() == each) {
            break;
        }
    }
    keys
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
    let mut asked = 0;
    for (source, target) in [(0, 1), (1, 2), (2, 0), (0, 1)] {
        for key in &from {
            let before = calls.iter().map(|calls| calls.load(Ordering::Relaxed)).sum::<u64>();
            let slot = cluster.begin_to_move(&text_of(key), source, target);
            // Calls are made while the slot moves, before and after its key has moved.
            let enough = |more| {
                let calls = Arc::clone(&calls);
                async move {
                    while calls.iter().map(|calls| calls.load(Ordering::Relaxed)).sum::<u64>() < before + more
                    {
                        sleep(MS).await;
                    }
                }
            };
            enough(20).await;
            cluster.move_key(&text_of(key), source, target);
            enough(60).await;
            cluster.finish_moving(&slot, source, target);
            enough(80).await;
        }
    }
    for node in &cluster.nodes {
        asked += node.calls_of("asking");
        assert!(node.info("errorstats").contains("errorstat_MOVED"));
    }
    assert!(asked > 0, "some calls were made while a slot was on its way");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_script_is_sent_again_to_the_node_that_needs_it() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster).connect().await.unwrap();
    let bucket = TokenBucket::new(Quota::per_day(1).burst(100));
    let limiter = RateLimiter::builder(bucket).name("test").store(store.clone()).build().unwrap();
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
