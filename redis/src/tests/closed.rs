//! Limiters that are closed while calls wait, and the calls that are made afterwards.

use std::time::Duration;

use tokio::time::{Instant, advance, sleep};

use super::faults::swaps;
use super::flights::settle;
use super::limiter;
use super::staged::{Mode, Staged};
use crate::call::RedisReply;
use crate::connection::BoxFuture;
use crate::error::RedisError;
use crate::in_process::RedisInProcess;
use crate::joint::InRedis;
use crate::limiter::RedisLimiter;
use crate::store::RedisStore;
use tower_throttle::Decision;
use tower_throttle::Quota;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, StoredAlgorithm, Tiered, TokenBucket};
use tower_throttle::limiter::{Acquired, Attempt, Limiter, LimiterFor};
use tower_throttle::store_support::{AllDecisions, JointKind, JointLimiter, JointOutcome};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Asserts that a call that waits is denied as soon as its limiter is closed.
async fn is_denied_at_once(close: impl FnOnce(), waiting: RedisReply<Decision>) {
    let waiting = tokio::spawn(waiting);
    // The trip of the call ends meanwhile.
    sleep(5 * MS).await;
    assert!(!waiting.is_finished());
    close();
    let start = Instant::now();
    let denied = waiting.await.unwrap().unwrap();
    assert!(denied.is_closed() && denied.retry_after().is_none(), "{denied:?}");
    assert!(start.elapsed() < MS, "{:?}", start.elapsed());
}

/// Closes a limiter of one call an hour while a call waits. Then no call makes a trip.
async fn denies_calls_that_wait<A: StoredAlgorithm>(algorithm: A) {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), algorithm);
    assert!(limiter.acquire("a").await.unwrap().is_allowed());
    let clone = limiter.clone();
    is_denied_at_once(|| clone.close(), limiter.acquire("a")).await;
    settle().await;
    server.commands();
    for closed in [
        limiter.check("a").await.unwrap(),
        limiter.peek("b").await.unwrap(),
        limiter.acquire("b").await.unwrap(),
        *limiter.acquire_permit("b").await.unwrap().unwrap_err().decision(),
    ] {
        assert!(closed.is_closed() && closed.limit() > 0, "{closed:?}");
    }
    let attempt = Attempt::new(1);
    assert!(matches!(
        LimiterFor::acquire(&limiter, "b", attempt),
        Acquired::Ready(denied, reservation) if denied.is_closed() && reservation.is_empty()
    ));
    assert!(server.commands().is_empty(), "a call of a closed limiter makes no trip");
    assert!(limiter.check_n("a", 0).await.unwrap().is_allowed(), "a call of no units is always allowed");
    let calls = limiter.stats().calls;
    assert_eq!((calls.admitted, calls.queued, calls.closed, calls.ended()), (2, 1, 5, 7));
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_denies_calls_that_wait_and_new_calls() {
    let hour = Quota::per_hour(1);
    denies_calls_that_wait(TokenBucket::new(hour)).await;
    denies_calls_that_wait(LeakyBucket::new(hour).queue(3)).await;
    denies_calls_that_wait(FixedWindow::new(hour)).await;
    denies_calls_that_wait(Tiered::new(FixedWindow::new(hour))).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_behind_the_first_of_a_queue_is_denied_as_well() {
    let limiter = limiter(&swaps(&Staged::new()), FixedWindow::new(Quota::per_hour(1)));
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let first = tokio::spawn(limiter.acquire("a"));
    settle().await;
    is_denied_at_once(|| limiter.close(), limiter.acquire("a")).await;
    assert!(first.await.unwrap().unwrap().is_closed());
    assert_eq!((limiter.stats().calls.queued, limiter.stats().calls.closed), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn the_units_of_a_call_that_was_to_be_admitted_are_given_back() {
    let server = Staged::new();
    let bucket = || TokenBucket::new(Quota::per_hour(1));
    let closed = limiter(&swaps(&server), bucket());
    let other = limiter(&swaps(&server), bucket());
    assert!(closed.check("a").await.unwrap().is_allowed());
    is_denied_at_once(|| closed.close(), closed.acquire("a")).await;
    settle().await;
    // Another process is not affected, and waits only for the unit of the first call.
    let wait = other.peek("a").await.unwrap().retry_after().unwrap();
    assert!(wait <= HOUR, "{wait:?}");
    advance(HOUR).await;
    assert!(other.check("a").await.unwrap().is_allowed());
    assert_eq!(Limiter::stats(&other).calls.closed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_trip_is_under_way_is_decided_by_the_trip() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(1)));
    server.set(Mode::Hold);
    let call = tokio::spawn(limiter.acquire("a"));
    settle().await;
    limiter.close();
    server.resume();
    assert!(call.await.unwrap().unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_in_the_fallback_is_denied_and_the_fallback_stays_open() {
    let server = Staged::new();
    let window = || FixedWindow::new(Quota::per_hour(1));
    let local = RateLimiter::new(window());
    let limiter = swaps(&server).limiter("test", window()).fallback(local.clone()).build().unwrap();
    server.set(Mode::Fail("ERR"));
    assert!(limiter.acquire("a").await.unwrap().is_allowed());
    is_denied_at_once(|| limiter.close(), limiter.acquire("a")).await;
    assert_eq!((local.queued(), limiter.stats().calls.queued), (0, 1));
    assert!(local.check("b").is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_with_leases_denies_calls_and_returns_its_units() {
    let server = RedisInProcess::new(MS);
    let bucket = || TokenBucket::new(Quota::per_minute(100));
    let build = |store: RedisStore| store.limiter("api", bucket()).lease(10).build().unwrap();
    let (closed, other) = (build(server.machine().connect()), build(server.machine().connect()));
    for _ in 0..8 {
        assert!(closed.check("a").await.unwrap().is_allowed());
    }
    assert!(other.peek("a").await.unwrap().remaining() < 92, "some units are leased");
    closed.close();
    sleep(10 * MS).await;
    assert_eq!(other.peek("a").await.unwrap().remaining(), 92);
    let trips = server.trips();
    assert!(closed.check("a").await.unwrap().is_closed());
    assert!(closed.peek("a").await.unwrap().is_closed());
    assert!(closed.acquire("b").await.unwrap().is_closed());
    assert_eq!(server.trips(), trips);
    let calls = closed.stats().calls;
    assert_eq!((calls.admitted, calls.closed, calls.ended()), (8, 2, 10));

    let waits = build(server.machine().connect());
    assert!(waits.acquire_n("b", 100).await.unwrap().is_allowed());
    is_denied_at_once(|| waits.close(), waits.acquire_n("b", 50)).await;
}

fn joint<A: StoredAlgorithm>(
    limiters: [(&RedisLimiter<A>, Attempt<'static, A>); 2],
) -> JointOutcome<BoxFuture<Result<AllDecisions, RedisError>>> {
    let mut parts = limiters.map(|(limiter, attempt)| Some(limiter.joint_part("a", attempt)));
    InRedis::decide(&mut parts, &mut |_, _| {})
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_in_shadow_mode_denies_only_in_shadow_mode() {
    let store = swaps(&Staged::new());
    let build = |name| store.limiter(name, FixedWindow::new(Quota::per_hour(2))).build().unwrap();
    let (open, closed) = (build("open"), build("closed"));
    closed.close();
    let call = async || match joint([(&closed, Attempt::new(1).with_shadow()), (&open, Attempt::new(2))]) {
        JointOutcome::Pending(decided, _) => decided.await.unwrap(),
        JointOutcome::Ready(decided) => decided,
        JointOutcome::Reported(_) => unreachable!("a limiter in Redis returns its decisions"),
    };
    let decided = call().await;
    let [in_shadow, admitted] = [0, 1].map(|at| decided[at].as_ref().unwrap());
    assert!(in_shadow.is_shadow && in_shadow.decided.decision().is_closed(), "{in_shadow:?}");
    assert!(admitted.decided.decision().is_allowed());
    let decided = call().await;
    assert!(decided[0].is_none() && !decided[1].as_ref().unwrap().decided.decision().is_allowed());
    let calls = closed.stats().calls;
    assert_eq!((calls.shadow_denied, calls.ended()), (1, 1));
    assert_eq!((open.stats().calls.admitted, open.stats().calls.denied), (1, 1));
}
