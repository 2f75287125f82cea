//! The memory that Redis needs for a key, as the chapter on many machines says it. `cargo test -p tower-throttle-redis
//! --test redis -- --nocapture the_sizes_of` prints the figures.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{sleep, timeout};
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, StateWriter,
    StoredAlgorithm, Tiered, TokenBucket,
};
use tower_throttle::clock::Nanos;
use tower_throttle_redis::RedisErrorKind;

use crate::permits::{acquire, leasing, limiter, waiting};
use crate::support::redis_server::{RedisServer, Reply};
use crate::{connect, set, value};

/// Returns the bytes that a key takes, with its name.
fn size(server: &RedisServer, key: &str) -> i64 {
    match server.call(&["MEMORY", "USAGE", key, "SAMPLES", "0"]) {
        Reply::Integer(bytes) => bytes,
        other => panic!("{key}: {other:?}"),
    }
}

/// Returns the bytes that the row with this text has in the guide's table.
fn row(text: &str) -> i64 {
    let guide = include_str!("../../src/guide/many_machines.md");
    let bytes = |line: &str| {
        let cell = line.strip_prefix("| ")?.strip_prefix(text)?.strip_prefix(" | ")?.strip_suffix(" |")?;
        cell.replace(',', "").parse().ok()
    };
    guide.lines().find_map(bytes).unwrap_or_else(|| panic!("no row {text}"))
}

/// Prints the bytes of a key, and returns whether they are what the guide says. Other servers and versions need less,
/// apart from Valkey.
fn is_in_guide(server: &RedisServer, text: &str, bytes: i64) -> bool {
    let figure = row(text);
    println!("{text}: {bytes} bytes, in the guide {figure}");
    let more = if server.info("server").contains("valkey_version") { 8 } else { 0 };
    (figure / 2..=figure + more).contains(&bytes)
}

/// Returns whether the size of a key is what the guide says, after `calls` calls that were spread evenly over the last
/// 50 minutes.
async fn is_size_in_guide<A: StoredAlgorithm>(
    server: &RedisServer,
    text: &str,
    algorithm: A,
    calls: u64,
) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let spread = 3_000_000_000_000;
    let mut state = algorithm.new_state(Nanos::ZERO, Nanos(now - spread));
    for call in 1..=calls {
        let _ = algorithm.check(&mut state, Nanos(now - spread + spread / calls * call - 7_777), 1);
    }
    let mut numbers = StateWriter::default();
    algorithm.write_state(&state, &mut numbers);
    let key = format!("throttle:{{user-42}}:login:{}", A::kind());
    set(server, &key, &value(&algorithm.unit(), numbers.as_bytes()));
    assert_eq!(server.call(&["PEXPIRE", &key, "3600000"]), Reply::Integer(1));
    let limiter = connect(server).await.limiter("login", algorithm).build().unwrap();
    assert!(limiter.peek("user-42").await.unwrap().limit() > 0, "the value is a state");
    is_in_guide(server, text, size(server, &key))
}

#[tokio::test]
async fn the_sizes_of_keys_are_those_of_the_table_in_the_guide() {
    let server = RedisServer::start();
    let quota = Quota::per_hour(100);
    let bucket = || TokenBucket::new(quota);
    let day = Duration::from_secs(86_400);
    let mut all = true;
    all &= is_size_in_guide(&server, "`FixedWindow`", FixedWindow::new(quota), 50).await;
    all &= is_size_in_guide(&server, "`TokenBucket`", bucket(), 200).await;
    all &= is_size_in_guide(&server, "`LeakyBucket`", LeakyBucket::new(quota), 50).await;
    all &= is_size_in_guide(&server, "`SlidingCounter`", SlidingCounter::new(quota), 50).await;
    all &= is_size_in_guide(&server, "`Smooth`", Smooth::bursty(quota), 50).await;
    all &= is_size_in_guide(&server, "`SlidingWindow`, all ten slices in use", SlidingWindow::new(quota), 99)
        .await;
    all &=
        is_size_in_guide(&server, "`SlidingLog`, 10 calls in the window", SlidingLog::new(quota), 10).await;
    all &=
        is_size_in_guide(&server, "`SlidingLog`, 100 calls in the window", SlidingLog::new(quota), 100).await;
    all &= is_size_in_guide(
        &server,
        "a pair of a `TokenBucket` and a `FixedWindow`",
        (bucket(), FixedWindow::new(quota)),
        50,
    )
    .await;
    all &= is_size_in_guide(&server, "`Lockout` of a `TokenBucket`", bucket().block_for(day).after(500), 300)
        .await;
    let window = SlidingWindow::new(quota).block_for(day).after(500);
    all &= is_size_in_guide(&server, "`Lockout` of a `SlidingWindow`", window, 200).await;
    all &=
        is_size_in_guide(&server, "`Tiered` of a `TokenBucket`, one tier in use", Tiered::new(bucket()), 50)
            .await;
    let leases = connect(&server).await.limiter("login", bucket()).lease(10).build().unwrap();
    for _ in 0..3 {
        assert!(leases.check("user-42").await.unwrap().is_allowed());
    }
    let key = "throttle:{user-42}:login:lease/100/3600000000000/100";
    all &= is_in_guide(&server, "a `TokenBucket` with leases, one process", size(&server, key));
    assert!(all, "the figures in the guide are others");
}

#[tokio::test]
async fn the_sizes_of_permits_and_waiters_are_bounded() {
    // More than Redis keeps in the compact form of a small hash.
    const MANY: u64 = 600;
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limiter = store.permits("exports", MANY).lease(Duration::from_secs(60)).queue(MANY).build().unwrap();
    let key = "throttle:{a}:exports:p";
    let mut permits = Vec::new();
    for _ in 0..MANY {
        permits.push(acquire(&limiter).await);
    }
    let all = size(&server, key);
    let mut side = server.connect();
    let waiters: Vec<_> = (0..MANY)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire_permit("a").await })
        })
        .collect();
    while waiting(&mut side) < MANY {
        sleep(Duration::from_millis(1)).await;
    }
    let with_waiters = size(&server, key);
    let permit = all / MANY.cast_signed();
    let waiter = (with_waiters - all) / MANY.cast_signed();
    println!("a permit: {permit} bytes, a waiter: {waiter} bytes");
    assert!(permit < 200 && waiter < 250, "a permit: {permit} bytes, a waiter: {waiter} bytes");
    waiters.iter().for_each(|waiter| waiter.abort());
}

#[tokio::test]
async fn on_a_full_server_calls_that_only_read_fail_as_well_and_permits_are_lost_after_their_lease() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(2);
    let store = leasing(&server.url(), lease).connect().await.unwrap();
    let window = store.limiter("api", FixedWindow::new(Quota::per_day(5))).build().unwrap();
    assert!(window.check("a").await.unwrap().is_allowed());
    let exports = limiter(&store, lease, 1);
    let permit = acquire(&exports).await;
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    assert_eq!(window.check("a").await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
    // After each pause of the circuit breaker, one call is sent, and a call that only reads succeeds.
    let mut failed = 0;
    for _ in 0..100 {
        failed += u64::from(window.peek("a").await.is_err());
    }
    assert!(failed > 50, "{failed} of 100");
    timeout(Duration::from_secs(20), permit.lost()).await.expect("the permit cannot be renewed");
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    drop(permit);
}

#[tokio::test]
async fn a_full_server_that_evicts_by_the_time_to_live_evicts_permits_first() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = store.limiter("api", FixedWindow::new(Quota::per_day(5))).build().unwrap();
    for caller in 0..1_000 {
        assert!(window.check(&caller).await.unwrap().is_allowed());
    }
    let exports = store.permits("exports", 1).lease(Duration::from_secs(60)).build().unwrap();
    let mut held = Vec::new();
    for caller in 0..10 {
        held.push(exports.try_acquire_permit(&caller).await.unwrap().unwrap());
    }
    let window_size = size(&server, "throttle:{#0}:api:f");
    let used: i64 = {
        let memory = server.info("memory");
        let line = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().trim().parse().unwrap()
    };
    for (name, value) in [
        ("maxmemory-policy", "volatile-ttl"),
        ("maxmemory-samples", "64"),
        ("maxmemory", &(used - 220 * window_size).to_string()),
    ] {
        server.call(&["CONFIG", "SET", name, value]).ok();
    }
    assert!(window.check(&0).await.is_ok());
    let Reply::List(names) = server.call(&["KEYS", "*"]) else { panic!("no list") };
    let names: Vec<_> = names.into_iter().map(Reply::text).collect();
    let permits = names.iter().filter(|name| name.ends_with(":exports:p")).count();
    println!("{permits} of 10 permits and {} of 1,000 windows are left", names.len() - permits);
    assert!(
        permits == 0 && names.len() > 500,
        "{permits} of 10 permits and {} windows",
        names.len() - permits
    );
}
