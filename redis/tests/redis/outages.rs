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

/// Prints and returns the times of these calls, and how many of them failed.
fn summary(name: &str, phase: &str, time: Duration, calls: &[Call]) -> usize {
    let mut took: Vec<_> = calls.iter().map(|call| call.took).collect();
    took.sort_unstable();
    let failed = calls.iter().filter(|call| call.failed).count();
    let rate = calls.len() as f64 / time.as_secs_f64();
    let [p50, p90, p99] = [50, 90, 99].map(|percent| took[took.len() * percent / 100]);
    let (mean, max) = (took.iter().sum::<Duration>() / took.len() as u32, took[took.len() - 1]);
    println!(
        "{name}, {phase}: {rate:.0} calls/s, {failed} of {} failed, mean {mean:?}, p50 {p50:?}, p90 {p90:?}, \
         p99 {p99:?}, max {max:?}",
        calls.len()
    );
    failed
}

/// Makes 200 calls per second for `time`.
async fn load(limiter: &Limiter, time: Duration) -> Vec<Call> {
    let (start, mut ticks, mut calls) = (Instant::now(), interval(5 * MS), Vec::new());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while start.elapsed() < time {
        ticks.tick().await;
        calls.push(tokio::spawn(call(limiter.clone(), calls.len())));
    }
    ended(calls).await
}

async fn ended(calls: Vec<tokio::task::JoinHandle<Call>>) -> Vec<Call> {
    let mut ended = Vec::new();
    for call in calls {
        ended.push(call.await.unwrap());
    }
    ended
}

/// Makes 200 calls per second before, during and after an outage of five seconds, and 100 calls at once `quiet` after
/// its end. Returns how many of the burst failed.
async fn burst_after(
    name: &str,
    server: &mut RedisServer,
    quiet: Duration,
    begin: impl FnOnce(&mut RedisServer),
    end: impl FnOnce(&mut RedisServer),
) -> usize {
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let limiter = store.limiter("test", TokenBucket::new(Quota::per_day(1).burst(BURST))).build().unwrap();
    let (second, outage) = (Duration::from_secs(1), Duration::from_secs(5));
    summary(name, "before", second, &load(&limiter, second).await);
    begin(server);
    summary(name, "outage", outage, &load(&limiter, outage).await);
    end(server);
    sleep(quiet).await;
    let start = Instant::now();
    let burst = (0..100).map(|number| tokio::spawn(call(limiter.clone(), number))).collect();
    let burst = ended(burst).await;
    let failed = summary(name, &format!("burst after {quiet:?}"), start.elapsed(), &burst);
    summary(name, "after", second, &load(&limiter, second).await);
    println!("{:?}", store.stats());
    failed
}

#[tokio::test]
async fn a_burst_after_the_pause_is_decided() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).deadline(1_000 * MS).connect().await.unwrap();
    let limiter = store.limiter("test", TokenBucket::new(Quota::per_day(1).burst(BURST))).build().unwrap();
    let permits = store.permits("permits", 5).build().unwrap();
    let burst = || async {
        let calls = (0..100).map(|number| tokio::spawn(call(limiter.clone(), number))).collect();
        ended(calls).await.iter().filter(|call| call.failed).count()
    };
    server.suspend();
    assert_eq!(burst().await, 100);
    assert!(store.stats().is_circuit_open);
    server.resume();
    sleep(500 * MS).await;
    let (permit, failed) = tokio::join!(permits.try_acquire_permit("a"), burst());
    assert_eq!((permit.unwrap().is_ok(), failed), (true, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures time: .ci/nightly runs it, which needs an idle machine"]
async fn the_first_burst_after_an_outage() {
    let second = Duration::from_secs(1);
    for quiet in [Duration::ZERO, second] {
        let mut server = RedisServer::start();
        let (begin, end) =
            (|server: &mut RedisServer| server.suspend(), |server: &mut RedisServer| server.resume());
        let suspended = burst_after("SIGSTOP 5 s", &mut server, quiet, begin, end).await;
        let mut server = RedisServer::start();
        let killed =
            burst_after("dead port 5 s", &mut server, quiet, RedisServer::kill, RedisServer::restart).await;
        // Right after the outage, the pause of the circuit breaker may not be over.
        assert!(quiet.is_zero() || (suspended, killed) == (0, 0), "{suspended} and {killed} failed");
    }
}
