//! Stores that follow the sentinels under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::{interval, sleep};
use tower_throttle::Quota;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle_redis::{RedisLimiter, RedisStore, RedisStoreBuilder};

use crate::failover::Group;
use crate::support::redis_server::RedisServer;

const MS: Duration = Duration::from_millis(1);
const LIMIT: u64 = 1_000_000;

type Limiter = RedisLimiter<FixedWindow>;

fn limiter(store: &RedisStore) -> Limiter {
    store.limiter("test", FixedWindow::new(Quota::per_day(LIMIT))).build().unwrap()
}

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    failed: AtomicU64,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    async fn check(&self, limiter: &Limiter) {
        let has_failed = limiter.check("a").await.is_err();
        self.failed.fetch_add(u64::from(has_failed), Ordering::Relaxed);
    }

    /// Makes 200 calls per second, until the load ends.
    async fn check_often(self: Arc<Self>, limiter: Limiter) {
        let (mut ticks, mut calls) = (interval(5 * MS), Vec::new());
        while self.goes_on() {
            ticks.tick().await;
            let (load, limiter) = (Arc::clone(&self), limiter.clone());
            calls.push(tokio::spawn(async move { load.check(&limiter).await }));
        }
        for call in calls {
            call.await.unwrap();
        }
    }
}

fn require_a_replica(server: &RedisServer) {
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]).ok();
}

/// The sentinels and the replicas cannot reach the master any more, since they log in as the default user. The store
/// still can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_cut_off_and_refuses_to_write_is_left_once_there_is_another() {
    let group = Group::start();
    for server in group.replicas.iter().chain([&group.master]) {
        server
            .call(&["ACL", "SETUSER", "app", "on", ">secret", "allkeys", "allchannels", "allcommands"])
            .ok();
    }
    require_a_replica(&group.master);
    let like = ::redis::Client::open("redis://app:secret@127.0.0.1").unwrap();
    let sentinels = group.urls().map(|url| ::redis::Client::open(url).unwrap());
    let store = RedisStoreBuilder::from_sentinel_clients(sentinels, "mymaster", &like);
    let limiter = limiter(&store.connect().await.unwrap());
    let load = Arc::new(Load::default());
    let calls = tokio::spawn(Arc::clone(&load).check_often(limiter.clone()));
    sleep(100 * MS).await;
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    let mut side = group.master.connect();
    side.call(&["AUTH", "app", "secret"]).ok();
    side.call(&["ACL", "SETUSER", "default", "off"]).ok();
    let start = Instant::now();
    for kind in ["replica", "pubsub", "normal"] {
        side.call(&["CLIENT", "KILL", "TYPE", kind, "USER", "default"]);
    }
    group.replicas[0].until_role("master");
    let replaced = start.elapsed();
    let mut used = 0;
    while used < 100 {
        sleep(50 * MS).await;
        assert!(start.elapsed() < 20_000 * MS, "{:?}", limiter.check("a").await);
        used = group.replicas[0].calls_of("psetex");
    }
    let took = start.elapsed();
    load.stop.store(true, Ordering::Relaxed);
    calls.await.unwrap();
    let failed = load.failed.load(Ordering::Relaxed);
    println!("replaced after {replaced:?}, a hundred calls there after {took:?}, {failed} failed");
    assert!(took < replaced + 5_000 * MS, "{replaced:?}, {took:?}, {failed} failed");
}
