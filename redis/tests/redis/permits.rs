//! Permits of several processes. Each process has a connection of its own.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::RateLimitLayer;
use tower_throttle::key::Global;
use tower_throttle::limiter::Permit;
use tower_throttle_redis::{
    RedisErrorKind, RedisPermits, RedisPermitsBuilder, RedisStore, RedisStoreBuilder,
};

use crate::support::redis_server::{Connection, RedisServer, Reply};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Returns a builder of a store whose deadline suits permits that expire after `lease`.
pub(crate) fn leasing(url: &str, lease: Duration) -> RedisStoreBuilder {
    RedisStore::builder(url).deadline(lease / 4)
}

/// Returns a limiter of `limit` calls, whose permits expire after `lease`.
pub(crate) fn limiter(store: &RedisStore, lease: Duration, limit: u64) -> RedisPermits {
    store.permits("exports", limit).lease(lease).build().unwrap()
}

/// Returns limiters of two processes, which `builder` configures.
pub(crate) async fn two(
    server: &RedisServer,
    lease: Duration,
    builder: impl Fn(&RedisStore) -> RedisPermitsBuilder,
) -> [RedisPermits; 2] {
    let mut limiters = Vec::new();
    for _ in 0..2 {
        let store = leasing(&server.url(), lease).connect().await.unwrap();
        limiters.push(builder(&store).lease(lease).build().unwrap());
    }
    limiters.try_into().unwrap()
}

/// Returns the number of calls that are queued.
pub(crate) fn waiting(server: &mut Connection) -> u64 {
    held_and_waiting(server).1
}

/// Returns the number of units that are held, and the number of calls that are queued.
fn held_and_waiting(server: &mut Connection) -> (u64, u64) {
    let numbers = match server.call(&["HGET", "throttle:{a}:exports:p", "s"]) {
        Reply::Text(text) => String::from_utf8(text).unwrap(),
        _ => return (0, 0),
    };
    let number = |index| numbers.split(' ').nth(index).unwrap().parse().unwrap();
    (number(2), number(3))
}

pub(crate) async fn acquire(limiter: &RedisPermits) -> Permit {
    timeout(Duration::from_secs(20), limiter.acquire_permit("a")).await.expect("in time").unwrap().unwrap()
}

/// Starts a call that waits for a permit. Returns when the call is in the queue.
pub(crate) async fn begin_to_wait(limiter: &RedisPermits, server: &RedisServer) -> JoinHandle<Permit> {
    let (limiter, mut side) = (limiter.clone(), server.connect());
    let call = tokio::spawn(async move { acquire(&limiter).await });
    while waiting(&mut side) == 0 {
        sleep(MS).await;
    }
    call
}

/// Waits until `limiter` has `left` free permits.
pub(crate) async fn until_left(limiter: &RedisPermits, left: u64) {
    let start = Instant::now();
    while limiter.peek("a").await.unwrap().remaining() != left {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", limiter.peek("a").await);
        sleep(2 * MS).await;
    }
}

#[tokio::test]
async fn processes_share_permits_and_hand_them_over() {
    let server = RedisServer::start();
    let [one, other] = two(&server, Duration::from_secs(20), |store| store.permits("exports", 2)).await;
    let first = one.try_acquire_permit("a").await.unwrap().unwrap();
    let second = acquire(&other).await;
    assert!(first.fencing_token() < second.fencing_token());
    let denied = one.try_acquire_permit("a").await.unwrap().unwrap_err();
    assert_eq!((denied.decision().limit(), denied.decision().remaining()), (2, 0));
    assert!(denied.decision().retry_after().is_none() && !denied.decision().never_fits());
    let denied = other.call("a").cost(3).permit().await.unwrap().unwrap_err();
    assert!(denied.decision().never_fits());
    let free = other.call("a").cost(0).permit().await.unwrap().unwrap();
    assert!(free.is_empty(), "a call without units needs no permit");
    let next = begin_to_wait(&other, &server).await;
    assert_eq!(one.peek("a").await.unwrap().remaining(), 0);
    let released = Instant::now();
    drop(first);
    let third = next.await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
    assert!(second.fencing_token() < third.fencing_token());
    drop((second, third));
    until_left(&one, 2).await;
    assert!(matches!(server.call(&["PTTL", "throttle:{a}:exports:p"]), Reply::Integer(1..=20_001)));
}

/// As during a deployment that changes the limit.
#[tokio::test]
async fn a_waiter_gets_its_permit_by_the_limit_of_its_own_process() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(20);
    let mut limiters = Vec::new();
    for limit in [1, 3] {
        limiters.push(limiter(&leasing(&server.url(), lease).connect().await.unwrap(), lease, limit));
    }
    let (small, large) = (&limiters[0], &limiters[1]);
    let held = [acquire(large).await, acquire(large).await];
    let next = begin_to_wait(small, &server).await;
    let mut side = server.connect();
    // Each of these calls makes a trip of the process with the larger limit.
    for _ in 0..3 {
        assert!(
            large.try_acquire_permit("a").await.unwrap().is_err(),
            "no call overtakes the one that waits"
        );
    }
    assert_eq!(held_and_waiting(&mut side), (2, 1));
    let [first, second] = held;
    drop(first);
    while held_and_waiting(&mut side).0 > 1 {
        sleep(MS).await;
    }
    assert!(large.try_acquire_permit("a").await.unwrap().is_err());
    assert_eq!(held_and_waiting(&mut side), (1, 1), "the second call of a process with a limit of one");
    drop(second);
    let third = next.await.unwrap();
    assert_eq!(held_and_waiting(&mut side), (1, 0));
    let others = [acquire(large).await, acquire(large).await];
    drop((third, others));
    until_left(large, 3).await;
}

#[tokio::test]
async fn a_permit_is_renewed_while_it_is_held() {
    let server = RedisServer::start();
    let [one, other] = two(&server, Duration::from_millis(600), |store| store.permits("exports", 1)).await;
    let permit = acquire(&one).await;
    assert!(timeout(Duration::from_millis(1_500), permit.lost()).await.is_err());
    assert!(other.try_acquire_permit("a").await.unwrap().is_err());
    drop(permit);
    until_left(&other, 1).await;
}

#[tokio::test]
async fn dropped_waiters_leave_the_queue_and_the_queue_is_bounded() {
    let server = RedisServer::start();
    let builder = |store: &RedisStore| store.permits("exports", 1).queue(2);
    let [one, other] = two(&server, Duration::from_secs(20), builder).await;
    let permit = acquire(&one).await;
    let mut waiters: Vec<_> = [&one, &other]
        .map(|limiter| {
            let limiter = limiter.clone();
            tokio::spawn(async move { acquire(&limiter).await })
        })
        .into();
    let mut side = server.connect();
    while waiting(&mut side) < 2 {
        sleep(MS).await;
    }
    let full = other.acquire_permit("a").await.unwrap().unwrap_err();
    assert_eq!(full.decision().remaining(), 0);
    let first = waiters.remove(0);
    first.abort();
    let _ = first.await;
    let late = one.call("a").max_wait(50 * MS).acquire_permit().await.unwrap().unwrap_err();
    assert!(!late.decision().never_fits());
    drop(permit);
    let second = waiters.remove(0).await.unwrap();
    drop(second);
    until_left(&one, 1).await;
    assert_eq!(server.call(&["HLEN", "throttle:{a}:exports:p"]), Reply::Integer(1), "no records are left");
}

#[tokio::test]
async fn permits_are_held_until_they_are_dropped_also_after_their_limiter() {
    let server = RedisServer::start();
    let [one, other] = two(&server, Duration::from_millis(600), |store| store.permits("exports", 5)).await;
    let three = one.call("a").cost(3).permit().await.unwrap().unwrap();
    let single = acquire(&one).await;
    drop(one);
    sleep(Duration::from_millis(1_200)).await;
    assert_eq!(other.peek("a").await.unwrap().remaining(), 1);
    drop(single);
    until_left(&other, 2).await;
    drop(three);
    until_left(&other, 5).await;
}

#[tokio::test]
async fn a_closed_limiter_denies_its_waiters_and_keeps_its_permits() {
    let server = RedisServer::start();
    let [one, other] = two(&server, Duration::from_secs(20), |store| store.permits("exports", 1)).await;
    let permit = acquire(&one).await;
    let waiting = tokio::spawn(one.acquire_permit("a"));
    let mut side = server.connect();
    while self::waiting(&mut side) == 0 {
        sleep(MS).await;
    }
    let start = Instant::now();
    one.close();
    assert!(waiting.await.unwrap().unwrap().unwrap_err().decision().is_closed());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let trips = one.stats().store.trips;
    assert!(one.try_acquire_permit("b").await.unwrap().unwrap_err().decision().is_closed());
    assert!(one.peek("b").await.unwrap().is_closed());
    let calls = one.stats().calls;
    assert_eq!((calls.admitted, calls.queued, calls.closed, calls.ended()), (1, 1, 2, 3));
    assert!(one.stats().store.trips <= trips + 1, "only the waiter leaves the queue");
    // The permit is held, and another process is not affected.
    assert!(other.try_acquire_permit("a").await.unwrap().is_err());
    let next = begin_to_wait(&other, &server).await;
    drop(permit);
    drop(next.await.unwrap());
    assert_eq!(other.stats().calls.ended(), 2);
}

#[tokio::test]
async fn a_layer_holds_its_permit_until_the_end_of_the_body() {
    let server = RedisServer::start();
    let [one, other] = two(&server, Duration::from_secs(20), |store| store.permits("exports", 1)).await;
    let hello =
        async |_: Request<Full<Bytes>>| Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::from("hello")));
    let call = async |limiter: &RedisPermits| {
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
        layer.layer(service_fn(hello)).oneshot(Request::new(Full::default())).await.unwrap()
    };
    let response = call(&one).await;
    assert_eq!(response.status(), 200);
    let rejected = call(&other).await;
    assert_eq!((rejected.status().as_u16(), rejected.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    let start = Instant::now();
    while call(&other).await.status() != 200 {
        assert!(start.elapsed() < Duration::from_secs(20));
        sleep(2 * MS).await;
    }
}

#[tokio::test]
async fn a_limiter_that_cannot_work_is_not_built() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(1);
    let store = leasing(&server.url(), lease).connect().await.unwrap();
    let build = |name, limit| store.permits(name, limit).lease(lease).build();
    let none = build("exports", 0).unwrap_err();
    assert_eq!(none.kind(), RedisErrorKind::Config);
    assert!(none.to_string().contains("at least 1"), "{none}");
    assert_eq!(build("", 1).unwrap_err().kind(), RedisErrorKind::Name);
    let _one = build("exports", 1).unwrap();
    let other = build("exports", 2).unwrap_err();
    assert_eq!(other.kind(), RedisErrorKind::Name);
    assert!(other.to_string().contains("Concurrency 1 at a time is not Concurrency 2 at a time"), "{other}");
    assert!(build("exports", 1).is_ok());
    let slow = RedisStore::builder(&server.url()).deadline(Duration::from_secs(3)).connect().await.unwrap();
    let slow = slow.permits("exports", 1).build().unwrap_err();
    assert_eq!(slow.kind(), RedisErrorKind::Config);
    assert!(slow.to_string().contains("`lease`"), "{slow}");
}
