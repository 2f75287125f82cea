//! The number of trips, as the server counts the commands.

use std::time::Duration;

use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingCounter, SlidingWindow, TokenBucket};

use crate::patient;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn one_script_decides_a_call_with_several_limits() {
    let server = RedisServer::start();
    let store = patient(&server).remember_denials(Duration::ZERO).connect().await.unwrap();
    let limits = (
        TokenBucket::new(Quota::per_second(1_000)),
        (
            FixedWindow::new(Quota::per_hour(100)),
            SlidingWindow::new(Quota::per_hour(70)),
            SlidingCounter::new(Quota::per_day(60)),
        ),
    );
    let limiter = store.limiter("api", limits).build().unwrap();
    assert!(limiter.check("a").await.unwrap().is_allowed(), "the server learns the script");
    let (evalsha, eval) = (server.calls_of("evalsha"), server.calls_of("eval"));
    let mut admitted = 1;
    for _ in 0..99 {
        admitted += u64::from(limiter.check("a").await.unwrap().is_allowed());
    }
    assert_eq!(admitted, 60);
    assert_eq!((server.calls_of("evalsha") - evalsha, server.calls_of("eval") - eval), (99, 0));
}

#[tokio::test]
async fn remembered_denials_and_calls_of_one_moment_cost_no_trips() {
    let server = RedisServer::start();
    // The time is so long that it does not end, even if the machine stalls.
    let store = patient(&server).remember_denials(Duration::from_secs(600)).connect().await.unwrap();
    let limiter = store.limiter("api", FixedWindow::new(Quota::per_hour(300))).build().unwrap();
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let before = server.calls_of("evalsha");
    let calls: Vec<_> = (0..1_000).map(|_| tokio::spawn(limiter.check("a"))).collect();
    let mut admitted = 1;
    for call in calls {
        admitted += u64::from(call.await.unwrap().unwrap().is_allowed());
    }
    assert_eq!(admitted, 300);
    let trips = server.calls_of("evalsha") - before;
    assert!(trips <= 8, "{trips} trips for 1,000 calls");
    let before = server.calls_of("evalsha");
    for _ in 0..100 {
        assert!(!limiter.check("a").await.unwrap().is_allowed());
    }
    assert_eq!(server.calls_of("evalsha") - before, 0);
}

#[tokio::test]
async fn a_script_that_was_flushed_is_sent_again() {
    let server = RedisServer::start();
    let store = patient(&server).connect().await.unwrap();
    let limiter = store.limiter("api", TokenBucket::new(Quota::per_hour(300))).build().unwrap();
    for round in 1..4 {
        assert_eq!(limiter.check("a").await.unwrap().remaining(), 300 - round);
        server.call(&["SCRIPT", "FLUSH"]).ok();
    }
}
