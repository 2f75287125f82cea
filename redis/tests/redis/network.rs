//! A network that delays, cuts or loses what is sent. Each call ends in time with a named error, and is charged at most
//! once.

use std::time::{Duration, Instant};

use http::{Request, Response};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, SlidingLog, StoredAlgorithm, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::middleware::OnStoreError;
use tower_throttle::{Quota, RateLimitLayer};
use tower_throttle_redis::{RedisErrorKind, RedisLimiter, RedisStore};

use crate::patient;
use crate::proxy::{Fault, Proxy};
use crate::support::redis_server::RedisServer;

const MS: Duration = Duration::from_millis(1);
const LIMIT: u64 = 1_000;

type Limiter<A> = RedisLimiter<A>;

/// A server behind a proxy, a limiter that calls the server through the proxy, and a limiter that calls it directly.
struct Setting<A: StoredAlgorithm> {
    proxy: Proxy,
    store: RedisStore,
    limiter: Limiter<A>,
    direct: Limiter<A>,
    _server: RedisServer,
}

impl<A: StoredAlgorithm> Setting<A> {
    async fn start(algorithm: A, deadline: Duration) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.address()).await;
        let store = RedisStore::builder(&proxy.url()).deadline(deadline).connect_lazily().unwrap();
        let build = |store: RedisStore| store.limiter("test", algorithm.clone()).build().unwrap();
        let limiter = build(store.clone());
        let direct = build(patient(&server).connect().await.unwrap());
        let setting = Self { proxy, store, limiter, direct, _server: server };
        // This call loads the script. Otherwise, the first reply would be that the server does not have the script.
        assert!(setting.direct.check("b").await.is_ok());
        setting.recovers().await;
        setting
    }

    /// Waits until a peek is decided. Returns how long this took.
    async fn recovers(&self) -> Duration {
        let start = Instant::now();
        while let Err(error) = self.limiter.peek("a").await {
            assert!(start.elapsed() < Duration::from_secs(30), "{error}");
            sleep(5 * MS).await;
        }
        start.elapsed()
    }

    async fn used(&self) -> u64 {
        LIMIT - self.direct.peek("a").await.unwrap().remaining()
    }

    /// Makes calls at once. Returns the kinds of their errors. No call may hang.
    async fn fail(&self, calls: usize) -> Vec<RedisErrorKind> {
        let calls: Vec<_> = (0..calls)
            .map(|_| tokio::spawn(timeout(Duration::from_secs(20), self.limiter.check("a"))))
            .collect();
        let mut kinds = Vec::new();
        for call in calls {
            kinds.extend(call.await.unwrap().expect("a call hangs").err().map(|error| error.kind()));
        }
        kinds
    }
}

fn window() -> FixedWindow {
    FixedWindow::new(Quota::per_day(LIMIT))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_delayed_are_waited_for() {
    let setting = Setting::start(window(), Duration::from_secs(20)).await;
    setting.proxy.set(Fault::DelayReplies(50 * MS));
    let start = Instant::now();
    assert!(setting.fail(20).await.is_empty());
    assert!(start.elapsed() >= 50 * MS);
    assert_eq!((setting.used().await, setting.store.stats().late), (20, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_arrive_after_their_deadline_charge_nothing() {
    let setting = Setting::start(TokenBucket::new(Quota::per_day(1).burst(LIMIT)), 200 * MS).await;
    let before = setting.used().await;
    setting.proxy.set(Fault::HoldRequests);
    let kinds = setting.fail(4).await;
    assert_eq!(kinds, [RedisErrorKind::Late; 4]);
    // The server receives the request only now.
    setting.proxy.set(Fault::None);
    setting.recovers().await;
    assert_eq!(setting.used().await, before);
    assert!(setting.limiter.check("a").await.is_ok());
}

async fn swallowed<A: StoredAlgorithm>(algorithm: A, is_charged: bool) {
    let setting = Setting::start(algorithm, 200 * MS).await;
    setting.proxy.set(Fault::SwallowReplies);
    let start = Instant::now();
    assert_eq!(setting.fail(1).await, [RedisErrorKind::Late]);
    assert!(start.elapsed() >= 200 * MS);
    // The server has decided the call in time, but its reply was lost. So the call stays charged, once.
    assert_eq!(setting.used().await, u64::from(is_charged));
    let mut failed = Vec::new();
    while setting.store.stats().circuit_openings == 0 {
        for kind in setting.fail(1).await {
            match kind {
                // The breaker has opened since the count was read. Such a call is not sent.
                RedisErrorKind::Open => assert!(setting.store.stats().circuit_openings > 0),
                kind => failed.push(kind),
            }
        }
    }
    let named = |kind: &RedisErrorKind| matches!(kind, RedisErrorKind::Late | RedisErrorKind::Unreachable);
    assert!(failed.iter().all(named), "{failed:?}");
    let used = setting.used().await;
    assert!(used <= 1 + failed.len() as u64, "{used} of {} calls", 1 + failed.len());
    setting.proxy.set(Fault::None);
    println!("back after {:?}", setting.recovers().await);
    assert_eq!(setting.used().await, used, "no trip is repeated");
    assert!(setting.limiter.check("a").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_lost_is_a_late_call_that_is_charged_once() {
    swallowed(window(), true).await;
}

/// With compare-and-set, the lost reply is that of the trip that reads the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_lost_on_the_way_charges_nothing() {
    swallowed(tower_throttle::algorithm::Tiered::new(window()), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_in_a_reply_fails_its_calls_and_is_made_again() {
    let setting = Setting::start(window(), Duration::from_secs(5)).await;
    let mut calls = 0;
    for bytes in [0, 1, 3, 7, 20] {
        let before = setting.used().await;
        setting.proxy.set(Fault::CutAfter(bytes));
        let start = Instant::now();
        let kinds = setting.fail(1).await;
        // The call fails when the connection ends, long before the deadline.
        assert_eq!(kinds, [RedisErrorKind::Unreachable], "after {bytes} bytes, in {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(4));
        setting.proxy.set(Fault::None);
        setting.recovers().await;
        calls += 1;
        assert_eq!(setting.used().await, before + 1, "it was decided, and is not decided again");
    }
    assert_eq!(calls, setting.used().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_replies_are_lost_layers_answer_as_configured() {
    let setting = Setting::start(SlidingLog::new(Quota::per_day(100)), 100 * MS).await;
    let layer = RateLimitLayer::with_limiter(Global, setting.limiter.clone());
    let hello =
        |_: Request<String>| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) };
    let allow = layer.clone().on_store_error(OnStoreError::Allow).layer(service_fn(hello));
    let reject = layer.layer(service_fn(hello));
    setting.proxy.set(Fault::SwallowReplies);
    for _ in 0..8 {
        let get = || Request::get("/").body(String::new()).unwrap();
        let (allowed, rejected) = (allow.clone().oneshot(get()), reject.clone().oneshot(get()));
        assert_eq!(timeout(Duration::from_secs(20), allowed).await.unwrap().unwrap().status(), 200);
        assert_eq!(timeout(Duration::from_secs(20), rejected).await.unwrap().unwrap().status(), 503);
    }
}
