//! Joint calls on one key.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::faults::swaps;
use super::limiter;
use super::staged::{Mode, Staged};
use crate::error::{RedisError, RedisErrorKind};
use crate::joint::InRedis;
use crate::limiter::RedisLimiter;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, Smooth, StoredAlgorithm, Tiered, TokenBucket};
use tower_throttle::limiter::{Attempt, Limiter};
use tower_throttle::store_support::{AllDecisions, JointKind, JointLimiter, JointOutcome};
use tower_throttle::{Quota, RateLimiter};

const MS: Duration = Duration::from_millis(1);

fn enforced<A: StoredAlgorithm>(cost: u64) -> Attempt<'static, A> {
    Attempt::new(cost)
}

fn shadow<A: StoredAlgorithm>(cost: u64) -> Attempt<'static, A> {
    Attempt::new(cost).with_shadow()
}

/// Decides a joint call on `key` of one limiter, with a part for each of `attempts`.
pub(super) async fn decide<A: StoredAlgorithm>(
    limit: &RedisLimiter<A>,
    key: &str,
    attempts: impl IntoIterator<Item = Attempt<'static, A>>,
) -> Result<AllDecisions, RedisError> {
    let parts = attempts.into_iter().map(|attempt| Some(limit.joint_part(key, attempt)));
    match InRedis::decide(&mut parts.collect::<Vec<_>>(), &mut |_, _| {}) {
        JointOutcome::Pending(decided, _) => decided.await,
        _ => panic!("no denial is remembered"),
    }
}

#[tokio::test(start_paused = true)]
async fn of_limits_that_queue_requests_only_buckets_can_be_joined() {
    /// Returns whether the limit can be joined.
    async fn works<A: StoredAlgorithm>(algorithm: A) -> bool {
        let limit = limiter(&swaps(&Staged::new()), algorithm);
        let info = limit.info();
        let attempt = Attempt::new(1);
        let attempt = if info.holds_requests() { attempt.wait() } else { attempt };
        match decide(&limit, "a", [attempt]).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), RedisErrorKind::Algorithm);
                false
            }
        }
    }
    let quota = Quota::per_second(5);
    let (bucket, window) = (TokenBucket::new(quota), FixedWindow::new(quota));
    let queued = bucket.clone().queue(3);
    assert!(works(queued.clone()).await);
    assert!(works(LeakyBucket::new(quota)).await);
    assert!(!works(window.clone().queue(3)).await);
    assert!(!works(Smooth::bursty(quota)).await);
    assert!(works(Smooth::bursty(quota).queue(0)).await);
    assert!(!works((queued.clone(), window.clone().queue(3))).await);
    assert!(!works(Tiered::new(queued.clone())).await);
    assert!(!works(queued.block_for(1_000 * MS).after(3)).await);
    assert!(works((bucket.clone(), window)).await);
    assert!(works(Tiered::new(bucket.clone())).await);
    assert!(works(bucket.block_for(1_000 * MS).after(3)).await);
}

#[tokio::test(start_paused = true)]
async fn a_part_in_shadow_mode_neither_charges_nor_denies_the_parts_of_its_key() {
    let server = Staged::new();
    let limit = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(3)));
    for left in [2, 1, 0] {
        let attempts = [shadow(5), enforced(1)].map(Attempt::with_reservation);
        let decided = decide(&limit, "a", attempts).await.unwrap();
        let decided: Vec<_> = decided.into_iter().flatten().collect();
        assert_eq!(decided.iter().map(|one| one.is_shadow).collect::<Vec<_>>(), [true, false]);
        for one in decided {
            let (decision, reservation) = one.decided.into_parts();
            assert!(decision.is_allowed() && decision.remaining() == left, "{decision:?}");
            assert_eq!(reservation.is_empty(), one.is_shadow, "the part in shadow mode was not charged");
        }
    }
    let decided = decide(&limit, "a", [enforced(1), shadow(5)]).await.unwrap();
    let decided: Vec<_> = decided.into_iter().collect();
    assert!(
        !decided[0].as_ref().unwrap().decided.decision().is_allowed() && decided[1].is_none(),
        "{decided:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_late_after_a_reply_do_not_open_the_breaker() {
    let server = Staged::new();
    let store = swaps(&server);
    let limit = limiter(&store, FixedWindow::new(Quota::per_hour(3)));
    server.set(Mode::Hold);
    let call = |key: &'static str| {
        let limit = limit.clone();
        tokio::spawn(async move { decide(&limit, key, [enforced(1), enforced(1)]).await.map(drop) })
    };
    let calls = ["a", "b", "c", "d", "e", "f", "g"].map(call);
    tokio::time::sleep(MS).await;
    // The calls read the states, and write them too late.
    server.resume();
    server.set(Mode::Hang);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), RedisErrorKind::Late);
    }
    assert_eq!((store.stats().late, store.stats().circuit_openings), (7, 0));
    server.set(Mode::Serve);
    assert!(decide(&limit, "a", [enforced(1)]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_joint_denial_closes_a_breaker_that_waits_for_a_write() {
    let server = Staged::new();
    let store = swaps(&server);
    let limit = limiter(&store, FixedWindow::new(Quota::per_hour(3)));
    assert!(decide(&limit, "a", [enforced(2)]).await.is_ok());
    server.set_full(true);
    assert_eq!(decide(&limit, "a", [enforced(1)]).await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
    tokio::time::advance(400 * MS).await;
    assert!(decide(&limit, "a", [enforced(2)]).await.is_ok(), "a denial needs no write");
    assert!(store.stats().is_circuit_open, "the probe failed");
    server.set_full(false);
    tokio::time::advance(400 * MS).await;
    let texts = server.texts();
    let decided = decide(&limit, "a", [enforced(2)]).await.unwrap();
    assert!(!decided.into_iter().flatten().next().unwrap().decided.decision().is_allowed());
    assert!(!store.stats().is_circuit_open, "the state was written as it is");
    assert_eq!(server.texts(), texts);
}

/// A request takes its place before a bucket is charged, as a call alone does.
#[tokio::test(start_paused = true)]
async fn of_requests_at_once_only_those_that_find_places_are_charged() {
    let bucket = LeakyBucket::new(Quota::per_hour(1)).queue(5);
    let limit = swaps(&Staged::new()).limiter("test", bucket).max_queued(1).build().unwrap();
    for key in ["a", "b"] {
        assert!(limit.check(key).await.unwrap().is_allowed());
    }
    let mut calls = JoinSet::new();
    for (key, parts) in [("a", 2), ("a", 1), ("b", 1)] {
        let limit = limit.clone();
        calls.spawn(async move { decide(&limit, key, (0..parts).map(|_| enforced(1))).await.unwrap() });
    }
    for _ in 0..2 {
        let denied = timeout(MS, calls.join_next()).await.expect("it finds no place").unwrap().unwrap();
        let decision = *denied.into_iter().flatten().next().unwrap().decided.decision();
        assert!(decision.is_queue_full(), "{decision:?}");
    }
    let resets = ["a", "b"].map(|key| limit.peek(key));
    let mut hours = Vec::new();
    for peek in resets {
        hours.push(peek.await.unwrap().reset_after().as_secs().div_ceil(3_600));
    }
    assert_eq!(hours, [3, 1], "only the request that waits is charged");
    assert!(timeout(MS, calls.join_next()).await.is_err(), "its two parts share one place");
    calls.join_next().await.unwrap().unwrap();
    assert!(limit.acquire("b").await.unwrap().is_allowed(), "the place is free again");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_in_the_fallback_keeps_no_place() {
    let server = Staged::new();
    let bucket = || LeakyBucket::new(Quota::per_hour(1)).queue(5);
    let limit = swaps(&server).limiter("test", bucket()).max_queued(1);
    let limit = limit.fallback(RateLimiter::new(bucket())).build().unwrap();
    server.set(Mode::Hang);
    assert!(decide(&limit, "a", [enforced(1)]).await.is_ok());
    let waiting = limit.clone();
    let waiting = tokio::spawn(async move { decide(&waiting, "a", [enforced(1)]).await.map(drop) });
    tokio::time::sleep(1_000 * MS).await;
    server.set(Mode::Serve);
    assert!(limit.check("a").await.unwrap().is_allowed());
    assert!(timeout(MS, limit.acquire("a")).await.is_err(), "it finds a place");
    assert!(!waiting.is_finished());
}
