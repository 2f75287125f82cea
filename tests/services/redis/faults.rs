//! A server that stops, restarts, fails, or has values of other programs. Calls fail in time with a named error, and
//! succeed soon after the fault.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::store::redis::{RedisError, RedisErrorKind, RedisLimit, RedisStore};
use tower_throttle::{Quota, RateLimiter};

use crate::support::redis_server::{RedisServer, Reply};
use crate::{connect, patient};

const MS: Duration = Duration::from_millis(1);

type Limiter = RateLimiter<TokenBucket, RedisLimit<TokenBucket>>;

/// Returns a limiter that never denies a call, with the default deadline.
async fn limiter(server: &RedisServer) -> (RedisStore, Limiter) {
    build(RedisStore::connect(&server.url()).await.unwrap())
}

async fn patient_limiter(server: &RedisServer) -> Limiter {
    build(connect(server).await).1
}

fn build(store: RedisStore) -> (RedisStore, Limiter) {
    let bucket = TokenBucket::new(Quota::per_day(10).burst(100_000));
    let limiter = RateLimiter::builder(bucket).name("test").store(store.clone()).build().unwrap();
    (store, limiter)
}

/// Makes a call every 5 ms during this time. Returns the failures, and the time of the slowest call.
async fn call_for(limiter: &Limiter, time: Duration) -> (usize, usize, Duration) {
    let (start, mut calls) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let limiter = limiter.clone();
        calls.push(tokio::spawn(async move {
            let start = Instant::now();
            let result = limiter.check("a").await;
            (result.is_err(), start.elapsed())
        }));
        sleep(5 * MS).await;
    }
    let (all, mut failed, mut longest) = (calls.len(), 0, Duration::ZERO);
    for call in calls {
        let (is_err, took) = call.await.unwrap();
        failed += usize::from(is_err);
        longest = longest.max(took);
    }
    (all, failed, longest)
}

/// Waits until a call succeeds. Returns how long this took.
async fn recovers(limiter: &Limiter) -> Duration {
    let start = Instant::now();
    while limiter.check("a").await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", limiter.check("a").await);
        sleep(5 * MS).await;
    }
    start.elapsed()
}

async fn used(limiter: &Limiter) -> u64 {
    loop {
        match limiter.peek("a").await {
            Ok(decision) => return 100_000 - decision.remaining(),
            // On a busy machine, a call may take longer than the deadline.
            Err(_) => sleep(5 * MS).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_suspended_fails_calls_in_time_and_charges_none_later() {
    let server = RedisServer::start();
    let (store, limiter) = limiter(&server).await;
    recovers(&limiter).await;
    let before = used(&limiter).await;
    server.suspend();
    let (all, failed, longest) = call_for(&limiter, 800 * MS).await;
    assert_eq!(failed, all);
    assert!(longest < 5_000 * MS, "a call took {longest:?}, with a deadline of 50 ms on a busy machine");
    assert!(store.stats().circuit_openings >= 1);
    server.resume();
    // The calls that the server receives now are too late, and charge nothing.
    assert_eq!(used(&limiter).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_restarted_empty_is_used_again() {
    let mut server = RedisServer::start();
    let (_, limiter) = limiter(&server).await;
    while limiter.check_n("a", 1_000).await.is_err() {}
    server.kill();
    let (all, failed, _) = call_for(&limiter, 300 * MS).await;
    assert_eq!(failed, all);
    server.restart();
    recovers(&limiter).await;
    assert!(used(&limiter).await < 1_000, "it was empty");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_clients_are_late_and_charged_nothing() {
    let server = RedisServer::start();
    let (_, limiter) = limiter(&server).await;
    recovers(&limiter).await;
    let before = used(&limiter).await;
    // This command pauses scripts, because they may write. It does not pause the test's own commands.
    server.call(&["CLIENT", "PAUSE", "600000", "WRITE"]).ok();
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Late);
    server.call(&["CLIENT", "UNPAUSE"]).ok();
    assert_eq!(used(&limiter).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_killed_is_made_again() {
    let server = RedisServer::start();
    let (_, limiter) = limiter(&server).await;
    for _ in 0..3 {
        recovers(&limiter).await;
        server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    recovers(&limiter).await;
}

#[tokio::test]
async fn a_full_server_and_a_replica_are_named() {
    let server = RedisServer::start();
    let limiter = patient_limiter(&server).await;
    recovers(&limiter).await;
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
    // If the machine has stalled, the circuit breaker may already allow a call again.
    let kind = limiter.check("a").await.unwrap_err().kind();
    assert!(matches!(kind, RedisErrorKind::Open | RedisErrorKind::OutOfMemory), "{kind:?}");
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    recovers(&limiter).await;
    server.call(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::ReadOnly);
    server.call(&["REPLICAOF", "NO", "ONE"]).ok();
    recovers(&limiter).await;
}

/// Starts a server that accepts connections, and forwards each of them to another server after a delay.
fn slow_to_connect(server: &RedisServer, delay: Duration) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, to) = (format!("redis://{}", listener.local_addr().unwrap()), server.address());
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                let Ok(mut there) = std::net::TcpStream::connect(to) else { return };
                let (mut from, mut back) = (there.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut back));
                let _ = std::io::copy(&mut client, &mut there);
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_far_away_is_reached_with_a_longer_connect_timeout() {
    let server = RedisServer::start();
    let url = slow_to_connect(&server, 600 * MS);
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Unreachable);
    assert!(error.to_string().contains("connect_timeout"), "{error}");
    let builder = RedisStore::builder(&url).connect_timeout(Duration::from_secs(20));
    let (_, limiter) = build(builder.connect_lazily().unwrap());
    // Calls fail at their deadlines, but the attempt to connect continues.
    recovers(&limiter).await;
    // A deadline that is longer is also the time limit for connecting.
    assert!(connect_within(&url, Duration::from_secs(20)).await.is_ok());
}

async fn connect_within(url: &str, deadline: Duration) -> Result<RedisStore, RedisError> {
    RedisStore::builder(url).deadline(deadline).connect().await
}

#[tokio::test]
async fn a_user_who_lacks_a_permission_is_named() {
    let server = RedisServer::start();
    let url = format!("redis://limited:secret@{}", server.address());
    for rules in [&["+@all", "-evalsha"], &["+@all", "-time"], &["+@all", "-get"]] {
        let mut command = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*"];
        command.extend(rules);
        server.call(&command).ok();
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Permission, "{rules:?}: {error}");
    }
}

#[tokio::test]
async fn the_permissions_that_the_error_names_suffice() {
    let server = RedisServer::start();
    let allow = |commands: &[&str]| {
        let mut command = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~throttle:*"];
        command.extend(commands);
        server.call(&command).ok();
    };
    let mut commands = vec!["+evalsha", "+eval", "+time", "+get", "+psetex", "+del"];
    allow(&commands);
    let url = format!("redis://limited:secret@{}", server.address());
    let store = || RedisStore::builder(&url).deadline(Duration::from_secs(10));
    let bucket = || TokenBucket::new(Quota::per_day(100));
    let scripts = build(store().connect().await.unwrap()).1;
    assert!(scripts.check("a").await.unwrap().is_allowed());
    let swaps = [(); 2].map(|()| store().without_scripts().prefix("throttle:swap"));
    let mut calls = Vec::new();
    for store in swaps {
        let limiter = build(store.connect().await.unwrap()).1;
        calls.extend((0..20).map(|_| tokio::spawn(limiter.check("a"))));
    }
    for call in calls {
        assert!(call.await.unwrap().unwrap().is_allowed());
    }
    let leases = async || {
        let store = store().prefix("throttle:lease").connect().await.unwrap().lease(10);
        RateLimiter::builder(bucket()).name("test").store(store).build().unwrap()
    };
    let limiter = leases().await;
    let error = limiter.check("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Permission);
    commands.extend(["+exists", "+hmget", "+hgetall", "+hset", "+hdel", "+pexpire"]);
    allow(&commands);
    let named = error.to_string();
    for command in &commands {
        assert!(named.contains(&command[1..].to_uppercase()), "{command}: {named}");
    }
    let limiter = leases().await;
    for _ in 0..4 {
        assert!(limiter.check("a").await.unwrap().is_allowed());
    }
    // The value is now one whose lease may have expired, as the next trip finds.
    let key = "throttle:lease:{a}:test";
    let value = server.call(&["HGET", key, "s"]).text();
    let (value, _) = value.rsplit_once(' ').unwrap();
    server.call(&["HSET", key, "s", &format!("{value} 1")]);
    leases().await.refund("a", 1).await.unwrap();
    limiter.reset("a").await.unwrap();
}

#[tokio::test]
async fn values_of_others_are_errors_and_stay_as_they_are() {
    let server = RedisServer::start();
    let limiter = patient_limiter(&server).await;
    let swaps = build(patient(&server).without_scripts().connect().await.unwrap()).1;
    let key = "throttle:{a}:test";
    let own = "1 t:10/86400000000000/100000";
    let values = [
        String::new(),
        "hello".to_owned(),
        String::from("\u{0}\u{1}"),
        format!("{own} 99999999999999999999999 1700000000000000"),
        format!("{own} -5 1700000000000000"),
        format!("{own} 5 99999999999999999999999"),
        format!("{own} 5 1700000000000000 "),
        format!("{own} 5"),
        own.replacen('1', "2", 1) + " 5 1700000000000000",
        "1 f:5/3600000000000 1700000000000000 0 1".to_owned(),
    ];
    for value in &values {
        server.call(&["SET", key, value]).ok();
        for _ in 0..3 {
            for limiter in [&limiter, &swaps] {
                assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Foreign, "{value}");
                assert_eq!(limiter.reset("a").await.unwrap_err().kind(), RedisErrorKind::Foreign, "{value}");
            }
        }
        assert_eq!(server.call(&["GET", key]).text(), *value);
        server.call(&["DEL", key]);
    }
    server.call(&["RPUSH", key, "x"]);
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Foreign);
    assert_eq!(server.call(&["LLEN", key]), Reply::Integer(1));
    server.call(&["DEL", key]);
    // A value of this crate without an expiry gets one, and a time in the far future is corrected.
    server.call(&["SET", key, &format!("{own} 0 8000000000000000")]).ok();
    assert!(limiter.check("a").await.unwrap().is_allowed());
    assert!(matches!(server.call(&["PTTL", key]), Reply::Integer(1..)));
    assert_eq!(used(&limiter).await, 1);
    let long = "k".repeat(1 << 20);
    assert!(limiter.check(long.as_str()).await.is_ok());
}

#[tokio::test]
async fn a_clock_ahead_by_more_than_a_period_denies_no_longer_than_that() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = FixedWindow::new(Quota::per_minute(1));
    let limiter = RateLimiter::builder(window).name("test").store(store).build().unwrap();
    // The window is full, and was written by a server whose clock was an hour ahead.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    let text = format!("1 f:1/60000000000 {} 0 1", now + 3_600_000_000);
    server.call(&["SET", "throttle:{a}:test", &text]).ok();
    let denial = limiter.check("a").await.unwrap();
    assert!(denial.retry_after() <= Some(Duration::from_secs(60)), "{denial:?}");
    let text = server.call(&["GET", "throttle:{a}:test"]).text();
    let last: u128 = text.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(last < now + 60_000_000, "the denial was written: {text}");
    assert!(matches!(server.call(&["PTTL", "throttle:{a}:test"]), Reply::Integer(1..=60_010)));
}
