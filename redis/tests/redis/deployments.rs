//! Deployments that change a limit: old and new processes run at once, under load, each with two stores.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, StoredAlgorithm,
    Tiered, TokenBucket,
};
use tower_throttle::{Decision, Quota, RateLimiter};
use tower_throttle_redis::{RedisError, RedisErrorKind, RedisReply, RedisStore};

use crate::support::redis_server::{RedisServer, Reply};
use crate::{connect, patient};

/// The calls of each phase that each of the two processes makes at once.
const CALLS: usize = 16;
/// The units of each limit. No unit becomes available again during a test.
const UNITS: u64 = 20;

/// Makes a call of a limiter. Returns whether it is admitted.
type Check = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<bool, RedisError>> + Send>>>;
/// Builds the limiter with this name.
type Build = Box<dyn Fn(&RedisStore, &str) -> Check>;

/// A kind of limit, and the number of its calls that one process would admit.
struct Kind {
    name: &'static str,
    limit: u64,
    build: Build,
}

/// The processes of one version, and what became of their calls.
struct Version<'a> {
    kind: &'a Kind,
    processes: [Check; 2],
    admitted: u64,
    errors: Vec<RedisError>,
}

fn quota() -> Quota {
    Quota::per(UNITS, Duration::from_secs(50 * 365 * 86_400)).unwrap()
}

fn check(call: impl Fn() -> RedisReply<Decision> + 'static) -> Check {
    Box::new(move || {
        let call = call();
        Box::pin(async { Ok(call.await?.is_allowed()) })
    })
}

impl Kind {
    fn new<A: StoredAlgorithm>(name: &'static str, algorithm: A) -> Self {
        let alone = RateLimiter::new(algorithm.clone());
        let limit = (0..CALLS * 8).map(|_| u64::from(alone.check("user").is_allowed())).sum();
        let build: Build = Box::new(move |store, name| {
            let limiter = store.limiter(name, algorithm.clone()).build().unwrap();
            check(move || limiter.check("user"))
        });
        Self { name, limit, build }
    }

    fn leases(name: &'static str) -> Self {
        let build: Build = Box::new(|store, name| {
            let limiter = store.limiter(name, TokenBucket::new(quota())).lease(4).build().unwrap();
            check(move || limiter.check("user"))
        });
        Self { name, limit: UNITS, build }
    }

    /// The calls stay in progress.
    fn permits(name: &'static str) -> Self {
        let build: Build = Box::new(|store, name| {
            let limiter = store.permits(name, UNITS).lease(Duration::from_secs(60)).build().unwrap();
            Box::new(move || {
                let call = limiter.try_acquire_permit("user");
                Box::pin(async { Ok(call.await?.map(std::mem::forget).is_ok()) })
            })
        });
        Self { name, limit: UNITS, build }
    }

    fn all() -> Vec<Self> {
        let bucket = || TokenBucket::new(quota());
        let window = || FixedWindow::new(quota());
        let minute = Duration::from_secs(60);
        vec![
            Self::new("a token bucket", bucket()),
            Self::new("a leaky bucket", LeakyBucket::new(quota())),
            Self::new("a fixed window", window()),
            Self::new("a sliding window", SlidingWindow::new(quota())),
            Self::new("a sliding counter", SlidingCounter::new(quota())),
            Self::new("a sliding log", SlidingLog::new(quota())),
            Self::new("a smooth rate", Smooth::bursty(quota())),
            Self::new("a bucket with a lockout", bucket().block_for(minute).after(1_000)),
            Self::new("a window with a lockout", window().block_for(minute).after(1_000)),
            Self::new("tiers", Tiered::new(bucket())),
            Self::new("tiers with a lockout", Tiered::new(bucket()).block_for(minute).after(1_000)),
            Self::new("a pair", (bucket(), window())),
            Self::new("the pair in the other order", (window(), bucket())),
            Self::leases("leases"),
            Self::permits("permits"),
        ]
    }
}

impl<'a> Version<'a> {
    fn start(kind: &'a Kind, stores: &[RedisStore; 2], name: &str) -> Self {
        let processes = [0, 1].map(|process| (kind.build)(&stores[process], name));
        Self { kind, processes, admitted: 0, errors: Vec::new() }
    }
}

/// Makes calls by all processes of these versions at once.
async fn call(versions: &mut [&mut Version<'_>]) {
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        for (index, version) in versions.iter().enumerate() {
            calls.extend(version.processes.iter().map(|check| (index, tokio::spawn(check()))));
        }
    }
    for (index, call) in calls {
        match call.await.unwrap() {
            Ok(is_admitted) => versions[index].admitted += u64::from(is_admitted),
            Err(error) => versions[index].errors.push(error),
        }
    }
}

#[tokio::test]
async fn a_deployment_of_another_kind_of_limit_fails_no_call_and_neither_does_its_rollback() {
    let server = RedisServer::start();
    let kinds = Kind::all();
    let mut stores = Vec::new();
    for _ in &kinds {
        stores.push([connect(&server).await, connect(&server).await]);
    }
    let (mut calls, mut failed) = (0, Vec::new());
    for old in 0..kinds.len() {
        for new in old + 1..kinds.len() {
            let name = format!("api-{old}-{new}");
            let mut old = Version::start(&kinds[old], &stores[old], &name);
            call(&mut [&mut old]).await;
            let mut new = Version::start(&kinds[new], &stores[new], &name);
            call(&mut [&mut old, &mut new]).await;
            call(&mut [&mut new]).await;
            call(&mut [&mut new, &mut old]).await;
            call(&mut [&mut old]).await;
            calls += CALLS * 2 * 7;
            for version in [&old, &new] {
                let Version { kind, admitted, errors, .. } = version;
                let both = format!("{} in {} and {}", kind.name, old.kind.name, new.kind.name);
                failed.extend(errors.iter().map(|error| format!("{both}: {error}")));
                let limit = kind.limit;
                assert!((1..=limit).contains(admitted), "{both}: {admitted} of {limit}");
                // Leases may still be held by the other process.
                if errors.is_empty() && kind.name != "leases" {
                    assert_eq!(*admitted, limit, "{both}");
                }
            }
        }
    }
    println!("{} of {calls} calls failed", failed.len());
    assert!(
        failed.is_empty(),
        "{} of {calls} calls failed: {:#?}",
        failed.len(),
        &failed[..failed.len().min(5)]
    );
}

#[tokio::test]
async fn a_deployment_that_adds_a_lockout_fails_no_call_and_neither_does_one_that_removes_it() {
    let server = RedisServer::start();
    let bucket = TokenBucket::new(Quota::per_day(600));
    let old = connect(&server).await.limiter("api", bucket.clone()).build().unwrap();
    let new = bucket.block_for(Duration::from_secs(60)).after(10);
    let new = connect(&server).await.limiter("api", new).build().unwrap();
    for call in 1..=100 {
        assert_eq!(old.check("user").await.unwrap().remaining(), 600 - call);
        assert_eq!(new.check("user").await.unwrap().remaining(), 600 - call);
    }
    assert_eq!(old.check("user").await.unwrap().remaining(), 499);
}

#[tokio::test]
async fn a_deployment_that_changes_only_numbers_keeps_the_units_that_were_used() {
    let server = RedisServer::start();
    let day = Duration::from_secs(86_400);
    let windows = [FixedWindow::new(Quota::per_day(600)), FixedWindow::new(Quota::per_hour(500)).aligned()];
    let locked = windows.clone().map(|window| window.block_for(day).after(3));
    let stores = [connect(&server).await, connect(&server).await];
    let plain = [0, 1].map(|store| stores[store].limiter("plain", windows[store].clone()).build().unwrap());
    assert_eq!(plain[0].check_n("user", 100).await.unwrap().remaining(), 500);
    assert_eq!(plain[1].check("user").await.unwrap().remaining(), 399);
    let locked = [0, 1].map(|store| stores[store].limiter("locked", locked[store].clone()).build().unwrap());
    for _ in 0..3 {
        assert!(!locked[0].check_n("user", 601).await.unwrap().is_allowed());
    }
    assert!(!locked[1].check("user").await.unwrap().is_allowed(), "the key stays locked out");
}

#[tokio::test]
async fn the_names_in_redis_are_those_that_the_guide_lists() {
    let server = RedisServer::start();
    let store = patient(&server).prefix("shop").connect().await.unwrap();
    let bucket = TokenBucket::new(Quota::per_minute(600).burst(100));
    let limiter = store.limiter("api", bucket.clone()).build().unwrap();
    assert!(limiter.check("user-42").await.unwrap().is_allowed());
    let tiers = Tiered::new((bucket.clone(), FixedWindow::new(Quota::per_day(5)).aligned()));
    let tiers = store.limiter("tiers", tiers.block_for(Duration::from_secs(9)).after(3)).build().unwrap();
    assert!(tiers.check("user-42").await.unwrap().is_allowed());
    let leases = store.limiter("leased", bucket).lease(10).build().unwrap();
    assert!(leases.check("user-42").await.unwrap().is_allowed());
    let permits = store.permits("exports", 1).lease(Duration::from_secs(60)).build().unwrap();
    let _permit = permits.try_acquire_permit("user-42").await.unwrap().unwrap();
    let Reply::List(names) = server.call(&["KEYS", "*"]) else { panic!("no list") };
    let mut names: Vec<_> = names.into_iter().map(Reply::text).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "shop:{user-42}:api:t",
            "shop:{user-42}:exports:p",
            "shop:{user-42}:leased:lease/600/60000000000/100",
            "shop:{user-42}:tiers:b(d((t,f)))",
        ]
    );
}

#[tokio::test]
async fn leases_and_permits_of_a_newer_release_are_errors_that_say_so() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let leases = store.limiter("api", TokenBucket::new(Quota::per_minute(600))).lease(10).build().unwrap();
    let permits = store.permits("exports", 1).lease(Duration::from_secs(60)).build().unwrap();
    let lease_key = "throttle:{a}:api:lease/600/60000000000/600";
    for (key, state, version) in [
        (lease_key, "2 t:600/60000000000/600 0 0 0 0", Some(2)),
        (lease_key, "31", Some(31)),
        (lease_key, "1 t:600/60000000000/600 0 0 0 x", None),
        (lease_key, "2x", None),
        ("throttle:{a}:exports:p", "2 permits 0 0 0 0 0 0 0", Some(2)),
        ("throttle:{a}:exports:p", "31", Some(31)),
        ("throttle:{a}:exports:p", "1 permits", None),
        ("throttle:{a}:exports:p", "", None),
    ] {
        server.call(&["HSET", key, "s", state]);
        let error = match key == lease_key {
            true => leases.check("a").await.unwrap_err(),
            false => permits.try_acquire_permit("a").await.unwrap_err(),
        };
        assert_eq!(error.kind(), RedisErrorKind::Foreign, "{state}: {error}");
        let text = error.to_string();
        let is_newer = text.starts_with("a newer release of tower-throttle-redis has written the value");
        assert_eq!(is_newer, version.is_some(), "{state}: {text}");
        let says =
            version.map_or(format!("the value is \"{state}\""), |version| format!("has version {version}"));
        assert!(text.contains(&says), "{state}: {text}");
        assert_eq!(server.call(&["HGET", key, "s"]), Reply::Text(state.into()), "it stays as it is");
    }
}
