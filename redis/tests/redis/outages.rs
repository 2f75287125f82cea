//! Outages under load, with 200 calls per second and the default deadline. These tests measure time, so they need an
//! idle machine.
//!
//! `cargo test --release --all-features --test redis -- --ignored --nocapture --test-threads=1 outages`

use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tower_throttle::Quota;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle_redis::{RedisLimiter, RedisStore};

use crate::support::redis_server::RedisServer;

const MS: Duration = Duration::from_millis(1);
const DEADLINE: Duration = Duration::from_millis(50);
const BURST: u64 = 100_000;
const KEYS: usize = 20;

type Limiter = RedisLimiter<TokenBucket>;

/// A call: when it began, how long it took, and whether it failed.
struct Call {
    began: Instant,
    took: Duration,
    failed: bool,
}

async fn call(limiter: Limiter, number: usize) -> Call {
    let began = Instant::now();
    // This is far longer than the deadline. A call that takes longer is counted as hung.
    let result = timeout(Duration::from_secs(10), limiter.check(&format!("key-{}", number % KEYS))).await;
    Call { began, took: began.elapsed(), failed: result.expect("a call hangs").is_err() }
}

/// Makes 200 calls per second before, during and after an outage. Compares the times of the calls with the promised
/// times.
async fn outage(
    name: &str,
    server: &mut RedisServer,
    time: Duration,
    begin: impl FnOnce(&mut RedisServer),
    end: impl FnOnce(&mut RedisServer),
) -> (Limiter, u64) {
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let bucket = TokenBucket::new(Quota::per_day(1).burst(BURST));
    let limiter = store.limiter("test", bucket).build().unwrap();
    let total = Duration::from_millis(500) + time + Duration::from_secs(3);
    let load = tokio::spawn({
        let limiter = limiter.clone();
        async move {
            let (start, mut ticks, mut calls) = (Instant::now(), interval(5 * MS), Vec::new());
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while start.elapsed() < total {
                ticks.tick().await;
                calls.push(tokio::spawn(call(limiter.clone(), calls.len())));
            }
            calls
        }
    });
    sleep(500 * MS).await;
    begin(server);
    let began = Instant::now();
    sleep(time).await;
    end(server);
    let ended = Instant::now();
    let mut calls = Vec::new();
    for call in load.await.unwrap() {
        calls.push(call.await.unwrap());
    }
    let mut took: Vec<_> =
        calls.iter().filter(|call| (began..ended).contains(&call.began)).map(|call| call.took).collect();
    took.sort_unstable();
    let (p99, max) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    let failed = calls.iter().filter(|call| call.failed).count();
    let last_failure = calls.iter().filter(|call| call.failed).map(|call| call.began + call.took).max();
    let back = last_failure.map(|last| last.saturating_duration_since(ended));
    let stats = store.stats();
    println!(
        "{name}: {} calls, p99 {p99:?}, max {max:?}, {failed} failed, last failure {back:?} after the end, {stats:?}",
        calls.len()
    );
    assert!(failed > 0, "the outage was noticed");
    assert!(p99 <= DEADLINE + 5 * MS, "{name}: p99 {p99:?}");
    assert!(back.unwrap() <= Duration::from_secs(1), "{name}: {back:?}");
    (limiter, calls.iter().filter(|call| !call.failed).count() as u64)
}

async fn used(limiter: &Limiter) -> u64 {
    let mut used = 0;
    for key in 0..KEYS {
        used += BURST - limiter.peek(&format!("key-{key}")).await.unwrap().remaining();
    }
    used
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures time: .ci/nightly runs it, which needs an idle machine"]
async fn a_suspended_server() {
    let mut server = RedisServer::start();
    let (begin, end) =
        (|server: &mut RedisServer| server.suspend(), |server: &mut RedisServer| server.resume());
    let (limiter, admitted) = outage("SIGSTOP 5 s", &mut server, 5_000 * MS, begin, end).await;
    assert_eq!(used(&limiter).await, admitted, "late calls charge nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures time: .ci/nightly runs it, which needs an idle machine"]
async fn paused_clients() {
    let mut server = RedisServer::start();
    let begin = |server: &mut RedisServer| server.call(&["CLIENT", "PAUSE", "2000", "ALL"]).ok();
    let (limiter, admitted) = outage("CLIENT PAUSE 2 s", &mut server, 2_000 * MS, begin, |_| ()).await;
    assert_eq!(used(&limiter).await, admitted, "late calls charge nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures time: .ci/nightly runs it, which needs an idle machine"]
async fn a_server_that_is_killed() {
    let mut server = RedisServer::start();
    outage("kill -9, restarted empty", &mut server, 2_000 * MS, RedisServer::kill, RedisServer::restart)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures time: .ci/nightly runs it, which needs an idle machine"]
async fn a_full_server() {
    let mut server = RedisServer::start();
    let set = |memory: &'static str| {
        move |server: &mut RedisServer| server.call(&["CONFIG", "SET", "maxmemory", memory]).ok()
    };
    let (limiter, admitted) = outage("OOM 2 s", &mut server, 2_000 * MS, set("1"), set("0")).await;
    assert_eq!(used(&limiter).await, admitted);
}
