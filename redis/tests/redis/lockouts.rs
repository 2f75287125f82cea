//! Lockouts that an administrator begins and ends, for all processes.

use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tower_throttle::algorithm::{FixedWindow, Lockout};
use tower_throttle::{Quota, RateLimiter};
use tower_throttle_redis::{RedisLimiter, RedisStore};

use crate::patient;
use crate::support::redis_server::RedisServer;

const HOUR: Duration = Duration::from_secs(3_600);

fn log_ins(limit: u64, after: u64) -> Lockout<FixedWindow> {
    FixedWindow::new(Quota::per_hour(limit)).queue(9).block_for(HOUR).after(after)
}

async fn connect(server: &RedisServer) -> RedisStore {
    patient(server).connect().await.unwrap()
}

async fn limiter(server: &RedisServer, limit: u64, after: u64) -> RedisLimiter<Lockout<FixedWindow>> {
    connect(server).await.limiter("log-ins", log_ins(limit, after)).build().unwrap()
}

#[tokio::test]
async fn a_key_is_locked_out_and_let_in_again_for_all_processes() {
    let server = RedisServer::start();
    let (one, other) = (limiter(&server, 5, 3).await, limiter(&server, 5, 3).await);
    assert!(other.check("key").await.unwrap().is_allowed());
    // longer than a lockout by denials
    assert!(one.lock_out("key", 24 * HOUR).await.unwrap());
    for limiter in [&one, &other] {
        let denied = limiter.check("key").await.unwrap();
        assert!(denied.is_locked_out() && denied.retry_after() > Some(23 * HOUR), "{denied:?}");
    }
    assert!(one.lock_out("key", HOUR).await.unwrap(), "instead of the first");
    let denied = other.check("key").await.unwrap();
    assert!(denied.is_locked_out() && denied.retry_after() <= Some(HOUR), "{denied:?}");
    assert!(other.lift_lockout("key").await.unwrap() && !one.lift_lockout("key").await.unwrap());
    let admitted = one.check("key").await.unwrap();
    assert_eq!((admitted.is_allowed(), admitted.remaining()), (true, 3), "the units stay charged");
    assert!(one.lock_out("new", HOUR).await.unwrap() && !one.lock_out("new", Duration::ZERO).await.unwrap());
    assert!(one.check("new").await.unwrap().is_allowed());
}

#[tokio::test]
async fn lifting_forgets_the_counted_denials() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 1, 2).await;
    for _ in 0..2 {
        assert!(!limiter.check("key").await.unwrap().is_locked_out());
    }
    assert!(limiter.lift_lockout("key").await.unwrap());
    assert!(!limiter.check("key").await.unwrap().is_locked_out(), "the first denial again");
    assert!(limiter.check("key").await.unwrap().is_locked_out());
}

#[tokio::test]
async fn a_process_with_another_quota_sees_the_lockout() {
    let server = RedisServer::start();
    let (one, other) = (limiter(&server, 5, 3).await, limiter(&server, 50, 30).await);
    assert!(one.check("key").await.unwrap().is_allowed() && other.check("key").await.unwrap().is_allowed());
    assert!(one.lock_out("key", 24 * HOUR).await.unwrap());
    let denied = other.check("key").await.unwrap();
    assert!(denied.is_locked_out() && denied.retry_after() > Some(23 * HOUR), "{denied:?}");
    assert!(other.lift_lockout("key").await.unwrap());
    assert!(one.check("key").await.unwrap().is_allowed() && other.check("key").await.unwrap().is_allowed());
}

/// The end of the lockout is beyond the times that the server can keep.
#[tokio::test]
async fn a_lockout_for_ever_is_read_by_a_process_with_another_quota_and_lifted() {
    let server = RedisServer::start();
    let (one, other) = (limiter(&server, 5, 3).await, limiter(&server, 50, 30).await);
    assert!(one.lock_out("key", Duration::MAX).await.unwrap());
    for _ in 0..2 {
        for limiter in [&other, &one] {
            let denied = limiter.check("key").await.unwrap();
            assert!(denied.is_locked_out(), "{denied:?}");
        }
    }
    assert!(one.reset("key").await.unwrap());
    assert!(other.check("key").await.unwrap().is_allowed() && one.check("key").await.unwrap().is_allowed());
    assert!(other.lock_out("key", Duration::MAX).await.unwrap());
    assert!(one.check("key").await.unwrap().is_locked_out());
    assert!(one.lift_lockout("key").await.unwrap());
    assert!(other.check("key").await.unwrap().is_allowed());
}

#[tokio::test]
async fn no_call_that_is_decided_meanwhile_is_lost() {
    let server = RedisServer::start();
    let (one, other) = (limiter(&server, 1_000, 9_000).await, limiter(&server, 1_000, 9_000).await);
    let mut calls = JoinSet::new();
    for at in 0..200 {
        calls.spawn(if at % 2 == 0 { one.check("key") } else { other.check("key") });
    }
    for _ in 0..10 {
        assert!(one.lock_out("key", HOUR).await.unwrap());
        assert!(other.lift_lockout("key").await.unwrap());
    }
    let decisions = calls.join_all().await;
    let admitted = decisions.into_iter().filter(|decision| decision.as_ref().unwrap().is_allowed()).count();
    assert_eq!(one.peek("key").await.unwrap().remaining(), 1_000 - admitted as u64);
}

#[tokio::test]
async fn a_call_that_waits_is_denied_in_its_turn() {
    let server = RedisServer::start();
    let quota = Quota::per(1, Duration::from_secs(1)).unwrap();
    let rule = FixedWindow::new(quota).queue(9).block_for(HOUR).after(1);
    let limiter = connect(&server).await.limiter("paced", rule).build().unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
    let call = limiter.acquire("key");
    let waiting = tokio::spawn(async move { call.await.unwrap() });
    while limiter.stats().calls.queued == 0 {
        yield_now().await;
    }
    assert!(limiter.lock_out("key", HOUR).await.unwrap());
    assert!(waiting.await.unwrap().is_locked_out());
}

/// A call that waits is not denied, however few denials begin a lockout.
#[tokio::test]
async fn waiting_is_no_denial() {
    let server = RedisServer::start();
    let quota = Quota::per(1, Duration::from_secs(1)).unwrap();
    let store = connect(&server).await;
    let mut calls = JoinSet::new();
    for after in [1, 3] {
        let rule = FixedWindow::new(quota).queue(9).block_for(HOUR).after(after);
        let limiter = store.limiter(&format!("paced {after}"), rule).build().unwrap();
        for _ in 0..4 {
            calls.spawn(limiter.acquire("key"));
        }
    }
    for decision in calls.join_all().await {
        let decision = decision.unwrap();
        assert!(decision.is_allowed() && decision.delay() < Duration::from_secs(10), "{decision:?}");
    }
}

/// Returns a limiter of one call an hour, for which a call waits. The second denial begins a lockout.
async fn with_waiter(
    store: &RedisStore,
    name: &str,
    places: u64,
) -> (RedisLimiter<Lockout<FixedWindow>>, JoinSet<()>) {
    let rule = FixedWindow::new(Quota::per_hour(1)).queue(places).block_for(24 * HOUR).after(2);
    let limiter = store.limiter(name, rule).build().unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
    let mut waiting = JoinSet::new();
    let call = limiter.acquire("key");
    waiting.spawn(async move { drop(call.await) });
    while limiter.stats().calls.queued == 0 {
        yield_now().await;
    }
    (limiter, waiting)
}

#[tokio::test]
async fn a_call_that_is_refused_although_it_would_wait_is_counted() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let second = Duration::from_secs(1);
    let locked_out = async |limiter: &RedisLimiter<_>, max_wait: Duration| {
        limiter.call("key").max_wait(max_wait).acquire().await.unwrap().is_locked_out()
    };

    let (limiter, _waiting) = with_waiter(&store, "full", 1).await;
    assert!(!locked_out(&limiter, Duration::MAX).await);
    assert!(locked_out(&limiter, Duration::MAX).await, "the second that finds no place");

    let (limiter, _waiting) = with_waiter(&store, "behind", 9).await;
    assert!(!locked_out(&limiter, second / 10).await);
    assert!(locked_out(&limiter, second / 10).await, "the second that has waited too long");

    let rule = FixedWindow::new(Quota::per_hour(1)).queue(9).block_for(24 * HOUR).after(2);
    let limiter = store.limiter("brief", rule).build().unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
    assert!(!locked_out(&limiter, second).await);
    assert!(locked_out(&limiter, second).await, "the second that may not wait for so long");
}

#[tokio::test]
async fn without_redis_the_fallback_locks_out() {
    let server = RedisServer::start();
    // Without a server, a call takes as long as its deadline.
    let store = patient(&server).deadline(Duration::from_secs(1)).connect().await.unwrap();
    let builder = store.limiter("log-ins", log_ins(5, 3));
    let limiter = builder.fallback(RateLimiter::new(log_ins(5, 3))).build().unwrap();
    drop(server);
    assert!(limiter.lock_out("key", HOUR).await.unwrap());
    assert!(limiter.check("key").await.unwrap().is_locked_out());
    assert!(limiter.lift_lockout("key").await.unwrap() && !limiter.lift_lockout("key").await.unwrap());
    assert!(limiter.check("key").await.unwrap().is_allowed());
}
