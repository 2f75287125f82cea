//! Failovers to a replica, by Redis Sentinel and in a cluster. The tests count the calls that are admitted
//! again because the replica has missed earlier ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_throttle::Quota;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle_redis::{RedisErrorKind, RedisLimiter, RedisStore, RedisStoreBuilder};

use crate::sentinels::FakeSentinel;
use crate::support::redis_server::{RedisCluster, RedisServer};

const MS: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// The limit of each key.
const LIMIT: u64 = 100;
const KEYS: usize = 5;

type Limiter = RedisLimiter<FixedWindow>;

/// A master and its replicas, watched by three sentinels.
pub(crate) struct Group {
    pub(crate) master: RedisServer,
    pub(crate) replicas: Vec<RedisServer>,
    pub(crate) sentinels: [RedisServer; 3],
}

impl Group {
    /// Starts a master and one replica. The sentinels ask and tell each other more often than by default, so that a
    /// test need not wait for what they do every ten seconds, or only after eight. Servers before Redis 7.0 cannot.
    pub(crate) fn start() -> Self {
        Self::with(1, &["INFO-PERIOD", "500", "ASK-PERIOD", "250", "PUBLISH-PERIOD", "250"])
    }

    /// Starts a master, and sentinels with the default periods.
    pub(crate) fn of(replicas: usize) -> Self {
        Self::with(replicas, &[])
    }

    fn with(replicas: usize, periods: &[&str]) -> Self {
        let master = RedisServer::start();
        let all = format!("slaves={replicas},sentinels=3");
        let replicas = (0..replicas).map(|_| master.replica()).collect();
        let sentinels = [(); 3].map(|()| RedisServer::sentinel(&master));
        for sentinel in &sentinels {
            sentinel.call(&[&["SENTINEL", "DEBUG"], periods].concat());
        }
        let start = Instant::now();
        let knows_all = |sentinel: &RedisServer| {
            let info = sentinel.info("sentinel");
            info.contains("status=ok") && info.contains(&all)
        };
        while !sentinels.iter().all(knows_all) {
            assert!(start.elapsed() < PATIENCE, "{}", sentinels[0].info("sentinel"));
            std::thread::sleep(10 * MS);
        }
        Self { master, replicas, sentinels }
    }

    pub(crate) fn urls(&self) -> [String; 3] {
        self.sentinels.each_ref().map(RedisServer::url)
    }
}

fn limiter(store: &RedisStore) -> Limiter {
    let window = FixedWindow::new(Quota::per_day(LIMIT));
    store.limiter("test", window).build().unwrap()
}

/// Makes up to `calls` calls for a key. Returns the number of admitted calls. Calls that fail are made again.
async fn admitted(limiter: &Limiter, key: &str, calls: u64) -> u64 {
    let (mut admitted, start) = (0, Instant::now());
    for _ in 0..calls {
        loop {
            match limiter.check(key).await {
                Ok(decision) => {
                    admitted += u64::from(decision.is_allowed());
                    break;
                }
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            sleep(5 * MS).await;
        }
    }
    admitted
}

/// Charges 40 units of each key, cuts off the replica, charges the rest of the units, and kills the master.
async fn lose_60(limiter: &Limiter, keys: &[String], master: &mut RedisServer, replica: &RedisServer) {
    for key in keys {
        assert_eq!(admitted(limiter, key, 40).await, 40);
    }
    let copied = || replica.call(&["DBSIZE"]) == master.call(&["DBSIZE"]);
    let start = Instant::now();
    while !copied() || master.call(&["WAIT", "1", "1000"]) != crate::support::redis_server::Reply::Integer(1)
    {
        assert!(start.elapsed() < PATIENCE);
    }
    replica.suspend();
    master.call(&["CLIENT", "KILL", "TYPE", "replica"]);
    for key in keys {
        assert_eq!(admitted(limiter, key, 70).await, 60);
    }
    master.kill();
    replica.resume();
}

/// Makes calls until the limiter uses another master. Returns how long this took.
async fn recovers(limiter: &Limiter, key: &str) -> Duration {
    let start = Instant::now();
    while let Err(error) = limiter.peek(key).await {
        assert!(start.elapsed() < PATIENCE, "{error}");
        sleep(5 * MS).await;
    }
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_the_replica_that_takes_over_and_what_it_missed_is_admitted_again() {
    let mut group = Group::start();
    let builder = RedisStore::sentinel(group.urls(), "mymaster").deadline(500 * MS);
    // The replica takes over before a process forgets a denial.
    let limiter = limiter(&builder.remember_denials(Duration::ZERO).connect().await.unwrap());
    let keys: Vec<_> = (0..KEYS).map(|key| format!("key-{key}")).collect();
    lose_60(&limiter, &keys, &mut group.master, &group.replicas[0]).await;
    let took = recovers(&limiter, &keys[0]).await;
    for key in &keys {
        assert_eq!(admitted(&limiter, key, LIMIT).await, 60, "the charges that the replica had missed");
    }
    println!("a killed master: decided again after {took:?}, 60 of {LIMIT} units of each key admitted twice");
    // The former master comes back, and the sentinels make it a replica.
    group.master.restart();
    assert_eq!(admitted(&limiter, &keys[0], 1).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_of_sentinels_admits_at_most_one_more_limit_per_key() {
    let group = Group::start();
    let builder = RedisStore::sentinel(group.urls(), "mymaster").deadline(500 * MS);
    let limiter = limiter(&builder.connect().await.unwrap());
    let load = Load::start(&limiter, (0..KEYS).map(|key| format!("key-{key}")).collect());
    sleep(50 * MS).await;
    group.sentinels[0].call(&["SENTINEL", "FAILOVER", "mymaster"]).ok();
    group.replicas[0].until_role("master");
    group.master.until_role("slave");
    let admitted = load.end(&limiter).await;
    println!("a planned failover of sentinels: {admitted:?} admitted of {LIMIT}");
    assert!(admitted.iter().all(|admitted| (LIMIT..=2 * LIMIT).contains(admitted)), "{admitted:?}");
}

/// Calls for some keys, which are made without pause during a failover.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<u64>>,
    keys: Vec<String>,
}

impl Load {
    fn start(limiter: &Limiter, keys: Vec<String>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let task = |key: &String| {
            let (limiter, key, stop) = (limiter.clone(), key.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut admitted = 0;
                while !stop.load(Ordering::Relaxed) {
                    admitted +=
                        u64::from(limiter.check(&*key).await.is_ok_and(|decision| decision.is_allowed()));
                    sleep(5 * MS).await;
                }
                admitted
            })
        };
        let tasks = keys.iter().map(task).collect();
        Self { stop, tasks, keys }
    }

    /// Ends the load and uses up the keys. Returns the number of admitted calls for each key, in total.
    async fn end(self, limiter: &Limiter) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for (task, key) in self.tasks.into_iter().zip(&self.keys) {
            all.push(task.await.unwrap() + admitted(limiter, key, LIMIT).await);
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_names_and_sentinels_are_named_errors() {
    let no_urls: [&str; 0] = [];
    let kind = |builder: RedisStoreBuilder| async {
        let error = builder.connect().await.unwrap_err();
        (error.kind(), error.to_string())
    };
    assert_eq!(kind(RedisStore::sentinel(no_urls, "mymaster")).await.0, RedisErrorKind::Config);
    let like = ::redis::Client::open("redis://127.0.0.1:1").unwrap();
    let no_clients = RedisStoreBuilder::from_sentinel_clients([], "mymaster", &like);
    assert_eq!(kind(no_clients).await.0, RedisErrorKind::Config);
    assert_eq!(kind(RedisStore::sentinel(["not a url"], "mymaster")).await.0, RedisErrorKind::Config);
    let gone = "redis://127.0.0.1:1";
    assert_eq!(kind(RedisStore::sentinel([gone], "mymaster")).await.0, RedisErrorKind::Unreachable);
    let server = RedisServer::start();
    let sentinel = RedisServer::sentinel(&server);
    let patient = |urls: &[&str], name: &str| RedisStore::sentinel(urls, name).deadline(20_000 * MS);
    let (wrong, text) = kind(patient(&[gone, &sentinel.url()], "other")).await;
    assert_eq!(wrong, RedisErrorKind::Config);
    assert!(text.contains("\"other\""), "{text}");
    // A server that is no sentinel does not know the command.
    assert_eq!(kind(patient(&[&server.url()], "mymaster")).await.0, RedisErrorKind::Config);
    // One sentinel that replies is enough, even if others hang.
    let hangs = RedisServer::sentinel(&server);
    hangs.suspend();
    let store = patient(&[&hangs.url(), gone, &sentinel.url()], "mymaster").connect().await.unwrap();
    assert_eq!(admitted(&limiter(&store), "a", 3).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_names_a_replica_delays_nothing() {
    let group = Group::start();
    let stale = FakeSentinel::start(0, &group.replicas[0]).await;
    let mut urls = vec![stale.url()];
    urls.extend(group.urls());
    for _ in 0..20 {
        let store = RedisStore::sentinel(&urls, "mymaster").deadline(20_000 * MS).connect().await.unwrap();
        assert_eq!(admitted(&limiter(&store), "a", 1).await, 1);
    }
    let kind = RedisStore::sentinel(&urls[..1], "mymaster").connect().await.unwrap_err().kind();
    assert_eq!(kind, RedisErrorKind::Unreachable, "it names no master");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_no_sentinel_knows_opens_the_circuit_breaker() {
    let server = RedisServer::start();
    let sentinel = RedisServer::sentinel(&server);
    let builder = RedisStore::sentinel([sentinel.url()], "other").deadline(200 * MS);
    let store = builder.connect_lazily().unwrap();
    let limiter = limiter(&store);
    let start = Instant::now();
    while !store.stats().is_circuit_open {
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Config);
        assert!(start.elapsed() < PATIENCE);
    }
    let error = limiter.check("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Open);
    assert!(error.to_string().contains("\"other\""), "{error}");
    // The name may be added to the sentinel later.
    let port = server.address().port().to_string();
    sentinel.call(&["SENTINEL", "MONITOR", "other", "127.0.0.1", &port, "1"]).ok();
    recovers(&limiter, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_cluster_takes_over_and_what_it_missed_is_admitted_again() {
    let mut cluster = RedisCluster::with(&["--cluster-require-full-coverage", "no"]);
    let replica = cluster.replica_of(0);
    let store = RedisStore::cluster(cluster.urls()).deadline(500 * MS).connect().await.unwrap();
    let limiter = limiter(&store);
    let keys = crate::cluster::keys_of_nodes(&cluster, KEYS);
    for key in keys[1..].iter().flatten() {
        assert_eq!(admitted(&limiter, key, 110).await, LIMIT);
    }
    lose_60(&limiter, &keys[0], &mut cluster.nodes[0], &replica).await;
    let took = recovers(&limiter, &keys[0][0]).await;
    for key in &keys[0] {
        assert_eq!(admitted(&limiter, key, LIMIT).await, 60, "the charges that the replica had missed");
    }
    for key in keys[1..].iter().flatten() {
        assert_eq!(admitted(&limiter, key, 10).await, 0, "the keys of other masters are not affected");
    }
    println!("a killed master of a cluster: decided again after {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_in_a_cluster_is_exact() {
    let cluster = RedisCluster::with(&["--cluster-require-full-coverage", "no"]);
    let replica = cluster.replica_of(0);
    let store = RedisStore::cluster(cluster.urls()).deadline(20_000 * MS).connect().await.unwrap();
    let limiter = limiter(&store);
    let load = Load::start(&limiter, crate::cluster::keys_of_nodes(&cluster, KEYS)[0].clone());
    sleep(50 * MS).await;
    replica.call(&["CLUSTER", "FAILOVER"]).ok();
    replica.until_role("master");
    cluster.nodes[0].until_role("slave");
    // The former master stopped writing before its replica took over.
    assert_eq!(load.end(&limiter).await, [LIMIT; KEYS]);
}
