//! Connections that ended or were forgotten while no call was made. A server closes idle connections (`timeout`), or
//! restarts. A firewall forgets a connection, and from then on drops its packets without a word.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingLog, TokenBucket};
use tower_throttle_redis::{RedisErrorKind, RedisLimiter, RedisStore};

use crate::failover::Group;
use crate::patient;
use crate::proxy::{Fault, Proxy};
use crate::support::redis_server::{RedisCluster, RedisServer};

const MS: Duration = Duration::from_millis(1);
const LIMIT: u64 = 1_000_000;

type Limiter = RedisLimiter<FixedWindow>;

fn limiter(store: &RedisStore) -> Limiter {
    let window = FixedWindow::new(Quota::per_day(LIMIT));
    store.limiter("test", window).build().unwrap()
}

async fn used(limiter: &Limiter, key: &str) -> u64 {
    LIMIT - limiter.peek(key).await.unwrap().remaining()
}

fn connections(server: &RedisServer) -> u64 {
    let stats = server.info("stats");
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

/// The calls of one run.
#[derive(Debug)]
struct Run {
    /// The number of calls that failed. All of them may have been sent.
    failed: u64,
    /// The number of rounds for which the store made a new connection.
    reconnected: u64,
}

/// Lets `callers` tasks call a server that closes connections which are idle for `timeout` seconds. Each caller has a
/// key of its own. All of them call at the same time, `rounds` times, with a pause before each round. A call may fail
/// only because its connection has ended. Each key must be charged once for each admitted call, and at most once for
/// each call that failed.
async fn idle_rounds(timeout: u64, callers: usize, rounds: u64, pause: Duration, deadline: Duration) -> Run {
    let server = RedisServer::with(&["--timeout", &timeout.to_string()]);
    let store = RedisStore::builder(&server.url()).deadline(deadline).connect().await.unwrap();
    let limiter = limiter(&store);
    // These calls load the script. Otherwise, the first reply would be that the server does not have the script.
    assert!(limiter.check("first").await.is_ok());
    let keys: Vec<_> = (0..callers).map(|caller| format!("key-{caller}")).collect();
    let (mut admitted, mut failed) = (vec![0; callers], vec![0; callers]);
    let mut reconnected = 0;
    for round in 0..rounds {
        sleep(pause).await;
        let before = connections(&server);
        let calls: Vec<_> = keys.iter().map(|key| tokio::spawn(limiter.check(key))).collect();
        for (caller, call) in calls.into_iter().enumerate() {
            match call.await.unwrap() {
                Ok(decision) => {
                    assert!(decision.is_allowed());
                    admitted[caller] += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), RedisErrorKind::Unreachable, "round {round}: {error}");
                    failed[caller] += 1;
                }
            }
        }
        // One further connection is that of `connections` itself.
        reconnected += u64::from(connections(&server) > before + 1);
    }
    for (caller, key) in keys.iter().enumerate() {
        let used = used(&limiter, key).await;
        let most = admitted[caller] + failed[caller];
        assert!((admitted[caller]..=most).contains(&used), "{key}: {used} of {} to {most}", admitted[caller]);
    }
    let run = Run { failed: failed.iter().sum(), reconnected };
    println!("timeout {timeout} s, {rounds} pauses of {pause:?}, {callers} callers: {run:?}");
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_closes_idle_connections_fails_no_call() {
    const ROUNDS: u64 = 2;
    let run = |callers| idle_rounds(1, callers, ROUNDS, 3_000 * MS, 10_000 * MS);
    let (one, five, fifty, many) = tokio::join!(run(1), run(5), run(50), run(200));
    for run in [one, five, fifty, many] {
        assert_eq!((run.failed, run.reconnected), (0, ROUNDS), "{run:?}");
    }
}

/// Redis counts whole seconds, so it closes a connection between one and three seconds after its last command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_meet_the_close_of_their_connection_are_charged_at_most_once() {
    let run = |pause| idle_rounds(1, 20, 2, Duration::from_millis(pause), 10_000 * MS);
    tokio::join!(run(1_500), run(1_800), run(2_000), run(2_200));
}

/// 100 rounds with each number of callers take about nine minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes nine minutes: .ci/nightly runs it"]
async fn a_hundred_rounds_of_idle_connections() {
    let run = |callers, pause| idle_rounds(2, callers, 100, Duration::from_millis(pause), 10_000 * MS);
    let surely_idle = async { tokio::join!(run(1, 5_000), run(5, 5_000), run(50, 5_000), run(200, 5_000)) };
    let racing = async { tokio::join!(run(1, 3_000), run(5, 3_000), run(50, 3_000), run(200, 3_000)) };
    let ((one, five, fifty, many), _) = tokio::join!(surely_idle, racing);
    for run in [one, five, fifty, many] {
        assert_eq!((run.failed, run.reconnected), (0, 100), "{run:?}");
    }
}

/// The end of the connection has arrived, but the runtime had no time to notice it.
#[tokio::test]
async fn a_connection_that_ended_while_the_runtime_was_blocked_fails_no_call() {
    let server = RedisServer::start();
    let limiter = limiter(&patient(&server).connect().await.unwrap());
    for round in 0..10 {
        assert!(limiter.check("a").await.is_ok(), "{round}");
        server.call(&["CLIENT", "KILL", "TYPE", "normal"]);
        std::thread::sleep(20 * MS);
        assert!(limiter.check("a").await.is_ok(), "{round}");
    }
    assert_eq!(used(&limiter, "a").await, 20);
}

#[tokio::test]
async fn a_server_that_has_restarted_fails_no_call() {
    let mut server = RedisServer::start();
    let limiter = limiter(&patient(&server).connect().await.unwrap());
    for round in 0..3 {
        assert!(limiter.check("a").await.is_ok(), "{round}");
        server.restart();
        assert!(limiter.check("a").await.is_ok(), "{round}");
        assert_eq!(used(&limiter, "a").await, 1, "the restart has lost the charge before");
    }
}

/// Ends all connections, and lets the store notice it.
async fn kill_connections<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) {
    for server in servers {
        server.call(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    sleep(20 * MS).await;
}

#[tokio::test]
async fn every_kind_of_trip_survives_the_end_of_an_idle_connection() {
    let server = RedisServer::start();
    let store = patient(&server).connect().await.unwrap();
    let log = store.limiter("log", SlidingLog::new(Quota::per_day(50))).build().unwrap();
    let leased = store.limiter("leased", TokenBucket::new(Quota::per_day(50))).lease(1).build().unwrap();
    let permits = store.permits("permits", 1).lease(Duration::from_secs(60)).build().unwrap();
    for _ in 0..5 {
        kill_connections([&server]).await;
        assert!(log.check("a").await.unwrap().is_allowed(), "a trip that reads and a trip that writes");
        kill_connections([&server]).await;
        log.refund("a", 1).await.unwrap();
        kill_connections([&server]).await;
        assert!(leased.check("a").await.unwrap().is_allowed());
        kill_connections([&server]).await;
        drop(permits.acquire_permit("a").await.unwrap().unwrap());
    }
    assert_eq!(log.peek("a").await.unwrap().remaining(), 50);
}

#[tokio::test]
async fn idle_connections_of_a_cluster_and_to_a_master_of_sentinels_may_end() {
    let (cluster, group) = (RedisCluster::start(), Group::start());
    let patience = Duration::from_secs(10);
    let in_cluster = RedisStore::cluster(cluster.urls()).deadline(patience).connect().await.unwrap();
    let of_sentinels =
        RedisStore::sentinel(group.urls(), "mymaster").deadline(patience).connect().await.unwrap();
    let keys = crate::cluster::keys_of_nodes(&cluster, 1).concat();
    let (in_cluster, of_sentinels) = (limiter(&in_cluster), limiter(&of_sentinels));
    for round in 0..5 {
        for key in &keys {
            assert_eq!(used(&in_cluster, key).await, round);
        }
        assert_eq!(used(&of_sentinels, "a").await, round);
        kill_connections(cluster.nodes.iter().chain([&group.master])).await;
        for key in &keys {
            assert!(in_cluster.check(key).await.unwrap().is_allowed());
        }
        assert!(of_sentinels.check("a").await.unwrap().is_allowed());
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn an_idle_encrypted_connection_may_end() {
    let (server, url) = crate::tls::server();
    let limiter = limiter(&crate::tls::trusting(&url).connect().await.unwrap());
    for _ in 0..5 {
        kill_connections([&server]).await;
        assert!(limiter.check("a").await.is_ok());
    }
    assert_eq!(used(&limiter, "a").await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_a_firewall_forgot_costs_one_late_call() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await;
    let store = RedisStore::builder(&proxy.url()).deadline(1_500 * MS).connect().await.unwrap();
    let (limiter, direct) = (limiter(&store), limiter(&patient(&server).connect().await.unwrap()));
    assert!(direct.check("a").await.is_ok(), "the server has the script");
    assert!(limiter.check("a").await.is_ok());
    for round in 0..2 {
        sleep(1_200 * MS).await;
        proxy.forget();
        let start = Instant::now();
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Late, "round {round}");
        assert!(start.elapsed() >= 1_500 * MS);
        for _ in 0..5 {
            let decision = limiter.check("a").await;
            assert!(decision.is_ok(), "round {round}: {decision:?}");
        }
    }
    assert_eq!(used(&direct, "a").await, 2 + 2 * 5, "the late calls did not reach the server");
    assert_eq!(store.stats().circuit_openings, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_connection_counts_as_one_failure_however_many_calls_it_fails() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await;
    let store = RedisStore::builder(&proxy.url()).deadline(10_000 * MS).connect().await.unwrap();
    let limiter = limiter(&store);
    assert!(limiter.check("a").await.is_ok());
    proxy.set(Fault::HoldRequests);
    let keys: Vec<_> = (0..20).map(|key| format!("key-{key}")).collect();
    let calls: Vec<_> = keys.iter().map(|key| tokio::spawn(limiter.check(key))).collect();
    while proxy.held() < keys.len() as u64 {
        sleep(MS).await;
    }
    proxy.set(Fault::CutAfter(0));
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), RedisErrorKind::Unreachable);
    }
    proxy.set(Fault::None);
    assert_eq!(store.stats().circuit_openings, 0);
    for key in &keys {
        assert!(used(&limiter, key).await <= 1, "the call is not sent again");
    }
}

/// A reply that is late while others arrive says nothing about the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_in_use_is_not_replaced_because_of_one_late_reply() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).deadline(200 * MS).connect().await.unwrap();
    let limiter = limiter(&store);
    let before = connections(&server);
    assert!(limiter.check("a").await.is_ok());
    server.suspend();
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Late);
    server.resume();
    let start = Instant::now();
    while limiter.check("a").await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(connections(&server), before + 1, "that of `connections` itself");
}

/// Replies that no call awaits any more show that the path works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_replies_are_all_late_is_not_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await;
    let store = RedisStore::builder(&proxy.url()).deadline(400 * MS).connect().await.unwrap();
    let limiter = limiter(&store);
    assert!(limiter.check("a").await.is_ok());
    let before = connections(&server);
    proxy.set(Fault::DelayReplies(500 * MS));
    // A fifth late call would open the breaker, which drops the connection.
    for _ in 0..4 {
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Late);
    }
    assert_eq!(store.stats().circuit_openings, 0);
    assert_eq!(connections(&server), before + 1, "that of `connections` itself");
}

/// Returns what the kernel says about the timer of each connection to `port`: its kind, and the time left.
#[cfg(target_os = "linux")]
fn timers(port: u16) -> Vec<(u8, Duration)> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let timer = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (_, remote) = words[2].rsplit_once(':')?;
        let (kind, ticks) = words[5].split_once(':')?;
        let is_open = words[3] == "01" && u16::from_str_radix(remote, 16) == Ok(port);
        let ticks = u64::from_str_radix(ticks, 16).unwrap();
        is_open.then(|| (u8::from_str_radix(kind, 16).unwrap(), Duration::from_millis(10 * ticks)))
    };
    table.lines().skip(1).filter_map(timer).collect()
}

/// The kernel tries an idle connection, so that it notices a path that is gone, and no firewall forgets the connection.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connections_are_kept_alive() {
    const KEEPALIVE: u8 = 2;
    let (cluster, group) = (RedisCluster::start(), Group::start());
    let server = RedisServer::start();
    let of_client = redis::Client::open(server.url()).unwrap();
    let stores = [
        patient(&server).connect().await.unwrap(),
        tower_throttle_redis::RedisStoreBuilder::from_client(of_client).connect().await.unwrap(),
        RedisStore::cluster(cluster.urls()).deadline(10_000 * MS).connect().await.unwrap(),
        RedisStore::sentinel(group.urls(), "mymaster").deadline(10_000 * MS).connect().await.unwrap(),
    ];
    let keys = crate::cluster::keys_of_nodes(&cluster, 1).concat();
    for store in &stores {
        for key in &keys {
            assert!(limiter(store).check(key).await.is_ok());
        }
    }
    // A call that waits for a permit has a connection for messages.
    let permits = stores[0].permits("permits", 1).lease(Duration::from_secs(60)).build().unwrap();
    let held = permits.acquire_permit("a").await.unwrap().unwrap();
    let waits = tokio::spawn(permits.acquire_permit("a"));
    sleep(500 * MS).await;
    let ports = [
        (server.address().port(), 3),
        (cluster.nodes[0].address().port(), 1),
        (group.master.address().port(), 1),
    ];
    for (port, connections) in ports {
        let timers = timers(port);
        let is_kept = |(kind, left): &&(u8, Duration)| *kind == KEEPALIVE && *left <= Duration::from_secs(30);
        assert!(timers.iter().filter(is_kept).count() >= connections, "{timers:?}");
    }
    drop(held);
    drop(waits.await.unwrap().unwrap().unwrap());
}
