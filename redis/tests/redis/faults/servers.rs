//! A server that stops, restarts or is far away fails calls in time, and is used again afterwards.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_throttle_redis::{RedisError, RedisErrorKind, RedisStore};

use super::{Limiter, MS, build, limiter, patient_limiter, used};
use crate::support::redis_server::RedisServer;

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
async fn what_a_server_says_when_it_refuses_a_connection_is_in_the_error() {
    let path = std::env::temp_dir().join(format!("tower-throttle-refused-{}", std::process::id()));
    let server = RedisServer::with(&["--maxclients", "1", "--unixsocket", path.to_str().unwrap()]);
    let _only_client = server.connect();
    let mut urls = vec![server.url()];
    if cfg!(unix) {
        urls.push(format!("redis+unix://{}", path.display()));
    }
    for url in urls {
        // The server may refuse before or after the client has sent something.
        for _ in 0..20 {
            let error = RedisStore::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), RedisErrorKind::Unreachable);
            assert!(error.to_string().contains("ERR max number of clients reached"), "{url}: {error}");
        }
    }
    let _ = std::fs::remove_file(path);
}

/// In protected mode, a server refuses connections from other machines.
#[tokio::test]
async fn a_line_that_refuses_a_connection_is_not_taken_for_a_reply() {
    for (line, says) in [
        (
            "-DENIED Redis is running in protected mode because no password is set\r\n",
            "DENIED Redis is running",
        ),
        // Redis before 7.2 does not know two commands that are sent at the beginning.
        ("-ERR unknown subcommand 'SETINFO'\r\n-ERR unknown subcommand 'SETINFO'\r\n", ""),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut client, line.as_bytes()).unwrap();
        });
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Unreachable);
        assert_eq!(error.to_string().contains("refused the connection"), !says.is_empty(), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        server.join().unwrap();
    }
}
