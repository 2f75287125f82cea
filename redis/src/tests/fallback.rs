//! The local limiter that decides while Redis fails.

use std::time::Duration;

use super::faults::swaps;
use super::flights::settle;
use super::staged::{Mode, Staged};
use crate::limiter::RedisLimiter;
use tower_throttle::Quota;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, StoredAlgorithm};
use tower_throttle::limiter::Attempt;

fn with_fallback<A: StoredAlgorithm>(
    server: &Staged,
    algorithm: A,
    local: RateLimiter<A>,
) -> RedisLimiter<A> {
    swaps(server).limiter("test", algorithm).fallback(local).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_fallback_decides_what_redis_cannot() {
    let server = Staged::new();
    let local = RateLimiter::new(FixedWindow::new(Quota::per_hour(1)));
    let limiter = with_fallback(&server, FixedWindow::new(Quota::per_hour(5)), local.clone());
    assert_eq!(limiter.check("a").await.unwrap().remaining(), 4);
    assert_eq!(local.len(), 0, "it is asked only if Redis fails");
    server.set(Mode::Hang);
    assert_eq!(limiter.check("a").await.unwrap().remaining(), 0);
    assert!(!limiter.check("a").await.unwrap().is_allowed());
    assert!(!limiter.call("a").max_wait(Duration::ZERO).acquire().await.unwrap().is_allowed());
    assert_eq!(limiter.peek("b").await.unwrap().limit(), 1);
    assert!(limiter.reset("a").await.unwrap() && !limiter.reset("b").await.unwrap());
    assert!(limiter.check("a").await.unwrap().is_allowed(), "the fallback was reset");
    assert!(!limiter.check("a").await.unwrap().is_allowed());
    limiter.refund("a", 1).await.unwrap();
    assert!(limiter.check("a").await.unwrap().is_allowed(), "the fallback got the unit back");
    server.set(Mode::Serve);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(limiter.check("a").await.unwrap().remaining(), 3);
    // Either has used something: the fallback, and then only Redis.
    assert!(local.reset("throttle:{a}:test") && limiter.reset("a").await.unwrap());
    assert!(!limiter.reset("a").await.unwrap());
    assert!(local.check("throttle:{a}:test").is_allowed() && limiter.reset("a").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_fallback_knows_a_key_by_its_text_without_the_kind() {
    let server = Staged::new();
    server.set(Mode::Hang);
    let window = || FixedWindow::new(Quota::per_hour(20));
    let local = RateLimiter::new(window());
    let limiter = with_fallback(&server, window(), local.clone());
    let left = || local.peek("throttle:{a}:test").remaining();
    assert!(limiter.check("a").await.unwrap().is_allowed());
    assert_eq!(left(), 19);
    assert!(limiter.acquire("a").await.unwrap().is_allowed());
    assert_eq!((left(), limiter.peek("a").await.unwrap().remaining()), (18, 18));
    limiter.charge("a", 3).await.unwrap();
    assert_eq!(left(), 15);
    limiter.refund("a", 2).await.unwrap();
    assert_eq!(left(), 17);
    let decided = super::joined::decide(&limiter, "a", [Attempt::new(4)]).await.unwrap();
    assert!(decided.into_iter().all(|one| one.is_some()));
    assert_eq!(left(), 13);
    limiter.reset("a").await.unwrap();
    assert_eq!((left(), local.len()), (20, 0));
}

#[tokio::test(start_paused = true)]
async fn the_time_that_a_call_has_waited_for_redis_counts_in_the_fallback() {
    const SECOND: Duration = Duration::from_secs(1);
    let window = || FixedWindow::new(Quota::per(1, 10 * SECOND).unwrap()).queue(5);
    for (max_wait, is_admitted) in [(15, false), (17, true)] {
        for is_of_call in [true, false] {
            let server = Staged::new();
            let local = if is_of_call { window() } else { window().max_wait(max_wait * SECOND) };
            let local = RateLimiter::new(local);
            let limiter = with_fallback(&server, window(), local.clone());
            assert!(limiter.check("a").await.unwrap().is_allowed());
            let call = limiter.call("a");
            let call = if is_of_call { call.max_wait(max_wait * SECOND) } else { call };
            let waiting = tokio::spawn(call.acquire());
            settle().await;
            tokio::time::advance(6 * SECOND).await;
            // The fallback can admit the call 16 seconds after its arrival.
            assert!(local.check("throttle:{a}:test").is_allowed());
            server.set(Mode::Fail("OOM command not allowed when used memory > 'maxmemory'."));
            let decision = waiting.await.unwrap().unwrap();
            assert_eq!(decision.is_allowed(), is_admitted, "{max_wait}, {is_of_call}: {decision:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_by_the_fallback_does_not_wait() {
    let server = Staged::new();
    let bucket = || LeakyBucket::new(Quota::per_hour(1)).queue(5);
    let limiter = with_fallback(&server, bucket(), RateLimiter::new(bucket()));
    server.set(Mode::Hang);
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let start = tokio::time::Instant::now();
    assert!(!limiter.check("a").await.unwrap().is_allowed());
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
