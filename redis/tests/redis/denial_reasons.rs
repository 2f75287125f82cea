//! A denial says whether a lockout or a full queue is its reason, as with state in memory.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, Lockout, StoredAlgorithm, Tiered, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::middleware::Rejection;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer};
use tower_throttle_redis::{RedisLimiter, RedisPermits, RedisStore};

use crate::patient;
use crate::support::redis_server::RedisServer;

const HOUR: Quota = Quota::per_hour(1);
const NONE: [&str; 0] = [];
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the reasons that a decision states.
fn reasons(decision: &Decision) -> Vec<&'static str> {
    let all = [(decision.is_locked_out(), "locked out"), (decision.is_queue_full(), "queue full")];
    let reasons: Vec<_> = all.into_iter().filter_map(|(is_reason, name)| is_reason.then_some(name)).collect();
    assert!(reasons.is_empty() || !decision.is_allowed(), "{decision:?}");
    reasons
}

async fn connect(server: &RedisServer) -> RedisStore {
    patient(server).connect().await.unwrap()
}

fn limiter<A: StoredAlgorithm>(store: &RedisStore, name: &str, algorithm: A) -> RedisLimiter<A> {
    store.limiter(name, algorithm).build().unwrap()
}

fn permits(store: &RedisStore, places: u64) -> RedisPermits {
    store.permits("permits", 1).queue(places).lease(Duration::from_secs(100)).build().unwrap()
}

/// One call an hour. The second denial within an hour locks the key out for a day.
fn log_in() -> Lockout<FixedWindow> {
    FixedWindow::new(HOUR).block_for(Duration::from_secs(86_400)).after(2)
}

async fn locks_out<A: StoredAlgorithm>(store: &RedisStore, name: &str, algorithm: A) {
    let limiter = limiter(store, name, algorithm);
    assert!(limiter.check("key").await.unwrap().is_allowed());
    assert_eq!(reasons(&limiter.peek("key").await.unwrap()), NONE);
    assert_eq!(reasons(&limiter.check("key").await.unwrap()), NONE, "the first denial");
    assert_eq!(
        reasons(&limiter.peek("key").await.unwrap()),
        ["locked out"],
        "a call would begin the lockout"
    );
    assert_eq!(reasons(&limiter.check("key").await.unwrap()), ["locked out"], "the denial that begins it");
    assert_eq!(reasons(&limiter.check("key").await.unwrap()), ["locked out"]);
    assert_eq!(reasons(&limiter.peek("key").await.unwrap()), ["locked out"]);
    let denied = limiter.try_acquire_permit("key").await.unwrap().unwrap_err();
    assert_eq!(reasons(denied.decision()), ["locked out"]);
    let acquired = limiter.call("key").max_wait(Duration::from_secs(1)).acquire().await.unwrap();
    assert_eq!(reasons(&acquired), ["locked out"]);
}

#[tokio::test]
async fn a_denial_says_that_the_key_is_locked_out() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let day = || TokenBucket::new(Quota::per_day(1));
    locks_out(&store, "alone", log_in()).await;
    locks_out(&store, "tiered", Tiered::new(log_in())).await;
    locks_out(&store, "first", (log_in(), day())).await;
    locks_out(&store, "second", (day(), log_in())).await;
}

/// Makes a limiter's first calls, which wait, and then a call that finds no free place.
macro_rules! assert_fills {
    ($limiter:expr, $waiting:expr) => {{
        let limiter = $limiter;
        let _first = limiter.try_acquire_permit("key").await.unwrap().unwrap();
        let mut waiting = Vec::new();
        for _ in 0..$waiting {
            let call = limiter.acquire_permit("key");
            waiting.push(tokio::spawn(async move { call.await.unwrap() }));
            yield_now().await;
        }
        let denied = limiter.acquire_permit("key").await.unwrap().unwrap_err();
        assert_eq!(reasons(denied.decision()), ["queue full"], "{denied:?}");
        let denied = limiter.try_acquire_permit("key").await.unwrap().unwrap_err();
        assert_eq!(reasons(denied.decision()), NONE, "it would not wait");
        assert_eq!(reasons(&limiter.peek("key").await.unwrap()), NONE, "it would not wait");
        assert!(waiting.iter().all(|call| !call.is_finished()));
        waiting.iter().for_each(JoinHandle::abort);
    }};
}

#[tokio::test]
async fn a_denial_says_that_the_queue_is_full() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    assert_fills!(limiter(&store, "leaky", LeakyBucket::new(HOUR).queue(1)), 1);
    assert_fills!(limiter(&store, "bucket", TokenBucket::new(HOUR).queue(1)), 1);
    assert_fills!(limiter(&store, "window", FixedWindow::new(HOUR).queue(1)), 1);
    let bucket = TokenBucket::new(HOUR).queue(1);
    assert_fills!(store.limiter("leased", bucket).lease(1).build().unwrap(), 1);
    assert_fills!(permits(&store, 1), 1);
}

#[tokio::test]
async fn as_many_calls_wait_as_all_keys_together_may() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    macro_rules! assert_bounded {
        ($limiter:expr) => {{
            let limiter = $limiter.build().unwrap();
            for key in ["a", "b"] {
                assert!(limiter.check(key).await.unwrap().is_allowed());
            }
            let until_queued = async |calls| {
                while limiter.stats().calls.queued < calls {
                    yield_now().await;
                }
            };
            let first = tokio::spawn(limiter.acquire("a"));
            until_queued(1).await;
            let denied = timeout(PATIENCE, limiter.acquire("b")).await.expect("it finds no place").unwrap();
            assert_eq!(reasons(&denied), ["queue full"], "{denied:?}");
            assert!(!first.is_finished());
            first.abort();
            assert!(first.await.is_err());
            let next = tokio::spawn(limiter.acquire("b"));
            until_queued(2).await;
            next.abort();
        }};
    }
    assert_bounded!(store.limiter("leaky", LeakyBucket::new(HOUR).queue(5)).max_queued(1));
    assert_bounded!(store.limiter("bucket", TokenBucket::new(HOUR)).max_queued(1));
    assert_bounded!(store.limiter("window", FixedWindow::new(HOUR)).max_queued(1));
    assert_bounded!(store.limiter("tiers", Tiered::new(FixedWindow::new(HOUR))).max_queued(1));
    assert_bounded!(store.limiter("leased", TokenBucket::new(HOUR)).max_queued(1).lease(1));
}

/// A call takes its place before a bucket is charged, since a charge cannot be given back after a later one.
#[tokio::test]
async fn a_call_that_finds_no_place_is_not_charged() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limiter = store.limiter("leaky", LeakyBucket::new(HOUR).queue(5)).max_queued(1).build().unwrap();
    let mut calls = JoinSet::new();
    for key in ["a", "b"] {
        assert!(limiter.check(key).await.unwrap().is_allowed());
    }
    for key in ["a", "a", "a", "b", "b"] {
        let call = limiter.acquire(key);
        calls.spawn(async move { call.await.unwrap() });
    }
    for _ in 0..4 {
        let ended = timeout(PATIENCE, calls.join_next()).await.expect("four find no place");
        let denied = ended.unwrap().unwrap();
        assert_eq!(reasons(&denied), ["queue full"], "{denied:?}");
        let wait = denied.retry_after().unwrap();
        assert!(wait <= 2 * HOUR.period() && denied.reset_after() >= wait, "{denied:?}");
    }
    let mut resets = Vec::new();
    for key in ["a", "b"] {
        resets.push(limiter.peek(key).await.unwrap().reset_after().as_secs().div_ceil(3_600));
        let brief = limiter.call(key).max_wait(Duration::from_secs(1)).acquire().await.unwrap();
        assert_eq!(reasons(&brief), NONE, "it would not wait");
        assert_eq!(reasons(&limiter.acquire(key).await.unwrap()), ["queue full"]);
    }
    resets.sort_unstable();
    assert_eq!(resets, [1, 2], "only the call that waits is charged");
    assert_eq!(limiter.stats().calls.queue_full, 6);
}

#[tokio::test]
async fn a_call_that_may_not_wait_is_not_denied_by_its_queue() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    macro_rules! assert_none {
        ($limiter:expr) => {{
            let limiter = $limiter;
            let _first = limiter.try_acquire_permit("key").await.unwrap().unwrap();
            let denied = limiter.acquire_permit("key").await.unwrap().unwrap_err();
            assert_eq!(reasons(denied.decision()), NONE);
        }};
    }
    let second = Duration::from_secs(1);
    assert_none!(limiter(&store, "leaky 0", LeakyBucket::new(HOUR).queue(0)));
    assert_none!(limiter(&store, "bucket 0", TokenBucket::new(HOUR).queue(0)));
    assert_none!(limiter(&store, "window 0", FixedWindow::new(HOUR).queue(0)));
    assert_none!(limiter(&store, "leaky", LeakyBucket::new(HOUR).queue(1).max_wait(second)));
    assert_none!(limiter(&store, "bucket", TokenBucket::new(HOUR).queue(1).max_wait(second)));
    assert_none!(limiter(&store, "window", FixedWindow::new(HOUR).queue(1).max_wait(second)));
    assert_none!(permits(&store, 0));
}

#[tokio::test]
async fn the_decisions_of_joined_layers_say_why_they_deny() {
    type Seen = Arc<Mutex<Vec<(String, Vec<&'static str>)>>>;
    let server = RedisServer::start();
    let store = connect(&server).await;
    let seen = Seen::default();
    let record = seen.clone();
    let queued = limiter(&store, "queued", LeakyBucket::new(HOUR).queue(1));
    let layer = RateLimitLayer::with_limiter(Global, limiter(&store, "log-in", log_in()))
        .name("log-in")
        .and(RateLimitLayer::with_limiter(Global, queued.clone()).name("queued"))
        .responder(ErrorResponder)
        .on_reject(move |rejection: &Rejection<'_>, _: &()| {
            let reports = rejection.policies().iter();
            let denials = reports.filter(|report| !report.decision().is_allowed());
            let reasons = denials.map(|report| (report.name().to_owned(), reasons(report.decision())));
            *record.lock().unwrap() = reasons.collect();
        });
    let service = layer.layer(service_fn(async |_: ()| Ok::<_, Infallible>(())));
    let call = async || {
        let admitted = service.clone().oneshot(()).await.is_ok();
        (admitted, std::mem::take(&mut *seen.lock().unwrap()))
    };
    let denied = |name: &str, reasons: &[&'static str]| (name.to_owned(), reasons.to_vec());
    assert_eq!(call().await, (true, vec![]));
    let waiting = queued.acquire(&tower_throttle::key::StoreKey::Key(()));
    let waiting = tokio::spawn(async move { waiting.await.unwrap() });
    yield_now().await;
    let (log_in, queue) = (|reasons| denied("log-in", reasons), denied("queued", &["queue full"]));
    while queued.peek(&tower_throttle::key::StoreKey::Key(())).await.unwrap().reset_after() < HOUR.period() {}
    assert_eq!(call().await, (false, vec![log_in(&[]), queue.clone()]));
    assert_eq!(call().await, (false, vec![log_in(&["locked out"]), queue.clone()]));
    assert_eq!(call().await, (false, vec![log_in(&["locked out"]), queue]));
    let [log_in, queue] = &layer.stats()[..] else { panic!() };
    assert_eq!((log_in.calls.denied, log_in.calls.queue_full), (3, 0));
    assert_eq!((queue.calls.denied, queue.calls.queue_full), (0, 3));
    waiting.abort();
}
