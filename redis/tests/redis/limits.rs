//! Tests of a limiter's methods with state in Redis.

use std::time::{Duration, Instant};

use tower_throttle::Quota;
use tower_throttle::algorithm::{
    FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, StoredAlgorithm, Tiered,
    TokenBucket,
};
use tower_throttle_redis::{RedisError, RedisErrorKind, RedisLimiter, RedisStore};

use crate::support::redis_server::{RedisServer, Reply};
use crate::{connect, patient};

fn build<A: StoredAlgorithm>(store: &RedisStore, name: &str, algorithm: A) -> RedisLimiter<A> {
    store.limiter(name, algorithm).build().unwrap()
}

#[tokio::test]
async fn check_peek_refund_and_reset_keep_their_meaning() -> Result<(), RedisError> {
    let server = RedisServer::start();
    let limiter = build(&connect(&server).await, "login", FixedWindow::new(Quota::per_hour(5)));
    assert_eq!(limiter.check("a").await?.remaining(), 4);
    assert_eq!(limiter.check_n("a", 3).await?.remaining(), 1);
    assert_eq!(limiter.peek("a").await?.remaining(), 1);
    assert!(!limiter.peek_n("a", 2).await?.is_allowed());
    let denied = limiter.check_n("a", 2).await?;
    assert!(!denied.is_allowed() && denied.retry_after() > Some(Duration::from_secs(3_590)));
    assert_eq!(limiter.check("b").await?.remaining(), 4);
    limiter.refund("a", 2).await?;
    assert_eq!(limiter.peek("a").await?.remaining(), 3);
    assert!(limiter.reset("a").await?);
    assert!(!limiter.reset("a").await?, "it is as a new key is");
    assert_eq!(limiter.clone().peek("a").await?.remaining(), 5);
    assert_eq!(server.call(&["GET", "throttle:{a}:login:f"]), Reply::Nil, "a fresh key is deleted");
    assert!(limiter.try_acquire_permit("a").await?.is_ok());
    Ok(())
}

/// A machine with another quota finds the units that were used by its own.
#[tokio::test]
async fn a_reset_says_whether_any_quota_was_used() -> Result<(), RedisError> {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let one = build(&one, "login", FixedWindow::new(Quota::per_hour(5)));
    let other = build(&other, "login", FixedWindow::new(Quota::per_day(50)));
    assert!(one.check("a").await?.is_allowed());
    assert!(other.reset("a").await? && !one.reset("a").await?);
    let leases = |limit| TokenBucket::new(Quota::per_hour(limit));
    let leases = connect(&server).await.limiter("leased", leases(50)).lease(8).build()?;
    assert!(!leases.reset("a").await?);
    assert!(leases.check("a").await?.is_allowed());
    assert!(leases.reset("a").await? && !leases.reset("a").await?);
    Ok(())
}

/// The end of the delay is beyond the times that the server can keep.
#[tokio::test]
async fn a_debt_for_ever_is_read_by_a_process_with_another_quota() -> Result<(), RedisError> {
    let server = RedisServer::start();
    let bucket = |limit| LeakyBucket::new(Quota::per_hour(limit));
    let (one, other) = (connect(&server).await, connect(&server).await);
    let (one, other) = (build(&one, "login", bucket(1)), build(&other, "login", bucket(2)));
    one.charge("a", u64::MAX).await?;
    for _ in 0..2 {
        for limiter in [&other, &one] {
            assert!(!limiter.check("a").await?.is_allowed());
        }
    }
    assert!(other.reset("a").await? && other.check("a").await?.is_allowed());
    Ok(())
}

/// A new key counts as idle since the Unix epoch, so its bucket is full even if the bucket starts empty. A refund adds
/// nothing to such a bucket, and neither does it after a denied call.
#[tokio::test]
async fn a_refund_of_a_key_that_was_never_charged_changes_nothing() -> Result<(), RedisError> {
    let server = RedisServer::start();
    let bucket = TokenBucket::new(Quota::per_hour(100)).start_empty();
    let limiter = build(&connect(&server).await, "login", bucket);
    assert!(!limiter.check_n("denied", 101).await?.is_allowed());
    for key in ["denied", "never used"] {
        assert_eq!(limiter.peek(key).await?.remaining(), 100, "{key}");
        limiter.refund(key, 49).await?;
        assert_eq!(limiter.peek(key).await?.remaining(), 100, "{key}");
    }
    Ok(())
}

async fn admits<A: StoredAlgorithm>(server: &RedisServer, algorithm: A, expected: u64) {
    for scripts in [true, false] {
        let name = format!("{scripts}");
        let stores = [patient(server), patient(server)].map(|builder| match scripts {
            true => builder.connect_lazily().unwrap(),
            false => builder.without_scripts().connect_lazily().unwrap(),
        });
        let limiters = stores.map(|store| build(&store, &name, algorithm.clone()));
        let mut admitted = 0;
        for call in 0..2 * expected {
            let limiter = &limiters[call as usize % 2];
            admitted += u64::from(limiter.check("a").await.unwrap().is_allowed());
        }
        assert_eq!(admitted, expected, "{algorithm:?}, scripts: {scripts}");
        let ttl = server.call(&["PTTL", &format!("throttle:{{a}}:{name}:{}", A::kind())]);
        assert!(matches!(ttl, Reply::Integer(1..)), "{algorithm:?}: {ttl:?}");
        limiters[0].reset("a").await.unwrap();
    }
    server.call(&["FLUSHALL"]).ok();
}

#[tokio::test]
async fn two_stores_share_one_limit_for_each_algorithm() {
    let server = RedisServer::start();
    let quota = Quota::per_hour(20);
    admits(&server, TokenBucket::new(quota), 20).await;
    admits(&server, LeakyBucket::new(quota), 1).await;
    admits(&server, FixedWindow::new(quota), 20).await;
    admits(&server, SlidingWindow::new(quota), 20).await;
    admits(&server, SlidingCounter::new(quota), 20).await;
    admits(&server, SlidingLog::new(quota), 20).await;
    admits(&server, Smooth::warming_up(quota, Duration::from_secs(1)), 1).await;
    admits(&server, (TokenBucket::new(quota), FixedWindow::new(Quota::per_day(15))), 15).await;
    admits(&server, FixedWindow::new(quota).block_for(Duration::from_secs(7_200)).after(3), 20).await;
    // The period is no whole number of microseconds, so no script decides this limit.
    admits(&server, FixedWindow::new(Quota::per(20, Duration::new(3_600, 1)).unwrap()), 20).await;
}

#[tokio::test]
async fn tiers_share_what_was_used() -> Result<(), RedisError> {
    let server = RedisServer::start();
    let (free, paid) = (FixedWindow::new(Quota::per_hour(2)), FixedWindow::new(Quota::per_hour(10)));
    let tiers = build(&connect(&server).await, "api", Tiered::new(free));
    assert_eq!(tiers.check_n("a", 2).await?.remaining(), 0);
    assert!(!tiers.check("a").await?.is_allowed());
    assert_eq!(tiers.call("a").tier(&paid).check().await?.remaining(), 7);
    assert_eq!(tiers.call("a").tier(&paid).peek().await?.remaining(), 7);
    assert!(!tiers.check("a").await?.is_allowed());
    Ok(())
}

#[tokio::test]
async fn a_replaced_quota_keeps_what_was_used_also_for_another_process() -> Result<(), RedisError> {
    let server = RedisServer::start();
    let large = TokenBucket::new(Quota::per_day(1_000).burst(100));
    let small = TokenBucket::new(Quota::per_day(1).burst(100));
    let (one, two) =
        (build(&connect(&server).await, "x", large), build(&connect(&server).await, "x", small.clone()));
    assert!(one.check_n("a", 98).await?.is_allowed());
    assert_eq!(two.peek("a").await?.remaining(), 2);
    assert_eq!(two.check("a").await?.remaining(), 1);
    one.replace(small);
    assert_eq!(one.check("a").await?.remaining(), 0);
    assert!(!two.check("a").await?.is_allowed());
    Ok(())
}

/// It is not known how many units of a call the smaller quota was charged.
#[tokio::test]
async fn what_one_process_gives_back_is_not_given_back_to_the_smaller_quota_of_another()
-> Result<(), RedisError> {
    let server = RedisServer::start();
    let stores = [connect(&server).await, connect(&server).await];
    let window = |limit| FixedWindow::new(Quota::per_hour(limit));
    let (large, small) = (build(&stores[0], "x", window(100)), build(&stores[1], "x", window(10)));
    for key in ["refund", "settlement"] {
        assert!(small.check(key).await?.is_allowed());
        let charged = large.call(key).cost(50).reserve().await?.unwrap();
        assert_eq!(small.peek(key).await?.remaining(), 0);
        if key == "refund" {
            large.refund(key, 50).await?;
        } else {
            charged.settle(0);
            assert_eq!(stores[0].flush(Duration::from_secs(10)).await, 0);
        }
        assert_eq!(large.peek(key).await?.remaining(), 99, "{key}");
        assert_eq!(small.peek(key).await?.remaining(), 0, "{key}");
    }
    Ok(())
}

#[tokio::test]
async fn a_key_that_is_used_up_stays_so_for_a_new_process_with_a_longer_period() -> Result<(), RedisError> {
    let server = RedisServer::start();
    let [short, long] = [Quota::per_second(10), Quota::per_day(10)].map(FixedWindow::new);
    let old = build(&connect(&server).await, "x", short);
    let new = build(&connect(&server).await, "x", long);
    for key in ["a", "b"] {
        assert!(old.check_n(key, 10).await?.is_allowed());
    }
    old.charge("b", 10).await?;
    for key in ["a", "b"] {
        assert!(!new.check(key).await?.is_allowed());
    }
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(old.check("a").await?.is_allowed(), "the old process keeps its own state");
    for key in ["a", "b"] {
        assert!(!new.check(key).await?.is_allowed(), "the units are forgotten");
        assert!(!new.check(key).await?.is_allowed());
    }
    Ok(())
}

#[tokio::test]
async fn calls_of_two_stores_are_paced_by_one_bucket() {
    let server = RedisServer::start();
    let bucket = LeakyBucket::new(Quota::per_second(50)).queue(20);
    let limiters =
        [build(&connect(&server).await, "x", bucket.clone()), build(&connect(&server).await, "x", bucket)];
    let start = Instant::now();
    let calls: Vec<_> = (0..11).map(|call| tokio::spawn(limiters[call % 2].acquire("a"))).collect();
    let mut delays = Vec::new();
    for call in calls {
        delays.push(call.await.unwrap().unwrap().delay());
    }
    assert!(start.elapsed() >= Duration::from_millis(200), "{delays:?}");
    delays.sort();
    // Each call waits 20 ms longer than the call before it, less the time between their arrivals.
    assert!(delays.windows(2).all(|pair| pair[1] - pair[0] <= Duration::from_millis(20)), "{delays:?}");
}

#[tokio::test]
async fn a_wrong_address_or_password_is_a_named_error() {
    let server = RedisServer::with(&["--requirepass", "secret"]);
    let connected = |url: String| async move { RedisStore::connect(&url).await.unwrap_err() };
    let port = server.address().port();
    assert_eq!(connected(format!("redis://127.0.0.1:{port}")).await.kind(), RedisErrorKind::Auth);
    assert_eq!(connected(format!("redis://:wrong@127.0.0.1:{port}")).await.kind(), RedisErrorKind::Auth);
    assert_eq!(connected("redis://127.0.0.1:1".to_owned()).await.kind(), RedisErrorKind::Unreachable);
    assert_eq!(connected("redis://name.invalid".to_owned()).await.kind(), RedisErrorKind::Unreachable);
    assert_eq!(connected("not a url".to_owned()).await.kind(), RedisErrorKind::Config);
    assert!(RedisStore::connect(&format!("redis://:secret@127.0.0.1:{port}/3")).await.is_ok());
    let error = connected(format!("redis://:secret@127.0.0.1:{port}/99")).await;
    assert_eq!(error.kind(), RedisErrorKind::Config, "{error}");
}

#[tokio::test]
async fn a_tuple_of_many_limits_is_decided() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = |limit| FixedWindow::new(Quota::per_hour(limit));
    let five = || (window(9), window(8), window(7), window(6), window(5));
    let fifteen = || (five(), five(), five());
    let one_script = build(&store, "fifteen", fifteen());
    let many = build(&store, "thirty", (fifteen(), fifteen()));
    let before = server.calls_of("evalsha");
    assert!(one_script.check("a").await.unwrap().is_allowed());
    assert_eq!(server.calls_of("evalsha") - before, 1, "one trip reads and writes");
    let mut admitted = 0;
    for _ in 0..8 {
        admitted += u64::from(many.check("a").await.unwrap().is_allowed());
    }
    assert_eq!(admitted, 5);
}

/// Makes calls of two processes with different quotas, of which the first then gets the quota of the second.
async fn shares_what_was_used<A: StoredAlgorithm>(
    server: &RedisServer,
    algorithms: [A; 2],
    limits: [u64; 2],
) {
    let shown = format!("{algorithms:?}");
    let [first, second] = algorithms;
    let (one, other) = (connect(server).await, connect(server).await);
    let (one, other) = (build(&one, "both", first), build(&other, "both", second.clone()));
    for used in 1..=3 {
        assert_eq!(one.check("a").await.unwrap().remaining(), limits[0] - used, "{shown}");
    }
    assert_eq!(other.peek("a").await.unwrap().remaining(), limits[1] - 3, "{shown}");
    assert_eq!(other.check("a").await.unwrap().remaining(), limits[1] - 4, "{shown}");
    assert_eq!(one.check("a").await.unwrap().remaining(), limits[0] - 5, "{shown}");
    one.replace(second);
    assert_eq!(one.peek("a").await.unwrap().remaining(), limits[1] - 5, "{shown}");
    assert_eq!(one.check("a").await.unwrap().remaining(), limits[1] - 6, "{shown}");
    for limiter in [&other, &one] {
        assert!(!limiter.check_n("a", limits[1] - 5).await.unwrap().is_allowed(), "{shown}");
    }
    other.reset("a").await.unwrap();
}

/// The two quotas have units of the same length, so that only the tag tells the values of one from those of the other.
#[tokio::test]
async fn two_processes_share_what_was_used_while_a_quota_replaces_another() {
    let server = RedisServer::start();
    let quotas = [(8, Duration::from_secs(80_000)), (6, Duration::from_secs(70_000))];
    let quotas = quotas.map(|(limit, period)| Quota::per(limit, period).unwrap());
    for quotas in [quotas, [quotas[1], quotas[0]]] {
        let limits = quotas.map(|quota| quota.limit());
        shares_what_was_used(&server, quotas.map(TokenBucket::new), limits).await;
        shares_what_was_used(&server, quotas.map(FixedWindow::new), limits).await;
        shares_what_was_used(&server, quotas.map(SlidingWindow::new), limits).await;
        shares_what_was_used(&server, quotas.map(SlidingCounter::new), limits).await;
        let pair = |quota| (TokenBucket::new(quota), FixedWindow::new(quota));
        shares_what_was_used(&server, quotas.map(pair), limits).await;
    }
}
