//! The trips of settlements: those that fail, those that are open, and those of closed limiters and of other threads.

use std::time::Duration;

use tokio::time::{Instant, advance};

use super::faults::swaps;
use super::flights::{begun, settle};
use super::limiter;
use super::staged::{Mode, Staged};
use crate::joint::InRedis;
use crate::limiter::RedisLimiter;
use crate::store::RedisStore;
use tower_throttle::Quota;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{FixedWindow, Tiered, TokenBucket};
use tower_throttle::limiter::{Attempt, Reservation};
use tower_throttle::store_support::{JointKind, JointLimiter, JointOutcome};

const MS: Duration = Duration::from_millis(1);

fn window() -> FixedWindow {
    FixedWindow::new(Quota::per_hour(10))
}

async fn reserved(limiter: &RedisLimiter<FixedWindow>, key: &str, cost: u64) -> Reservation {
    limiter.call(key).cost(cost).reserve().await.unwrap().unwrap()
}

/// Returns the units that were charged, refunded and not charged, and the number of settlements that failed.
fn counts(limiter: &RedisLimiter<FixedWindow>) -> [u64; 4] {
    let stats = limiter.stats();
    [stats.units.charged, stats.units.refunded, stats.units.uncharged, stats.store.settle_errors]
}

async fn left(limiter: &RedisLimiter<FixedWindow>, key: &str) -> u64 {
    limiter.peek(key).await.unwrap().remaining()
}

#[tokio::test(start_paused = true)]
async fn settlements_that_fail_are_counted_for_the_limiter_and_its_store() {
    let server = Staged::new();
    let store = swaps(&server);
    let (first, other) = (limiter(&store, window()), store.limiter("other", window()).build().unwrap());
    let calls = [reserved(&first, "a", 2).await, reserved(&first, "b", 2).await];
    let late = reserved(&other, "c", 2).await;
    server.set(Mode::Fail("ERR"));
    for (reservation, actual) in calls.into_iter().zip([1, 5]) {
        assert!(reservation.settle(actual).is_none());
    }
    settle().await;
    assert_eq!(counts(&first), [0, 0, 3, 2], "a refund that failed is no use of units");
    server.set(Mode::Hang);
    late.settle(1);
    settle().await;
    assert_eq!(counts(&other), [0, 0, 0, 0], "it has the deadline of the store");
    advance(51 * MS).await;
    settle().await;
    assert_eq!((counts(&other), store.stats().settle_errors), ([0, 0, 0, 1], 3));
    // A charge has a caller, who gets the error.
    server.set(Mode::Fail("ERR"));
    assert!(first.charge("a", 4).await.is_err());
    assert_eq!((counts(&first), store.stats().settle_errors), ([0, 0, 7, 2], 3));
    server.set(Mode::Serve);
    advance(Duration::from_secs(1)).await;
    assert_eq!([left(&first, "a").await, left(&first, "b").await, left(&other, "c").await], [8, 8, 8]);
}

#[test]
fn a_settlement_whose_runtime_has_ended_is_counted_as_failed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (store, limiter, reservation) = runtime.block_on(async {
        let store = swaps(&Staged::new());
        let limiter = limiter(&store, window());
        let reservation = reserved(&limiter, "a", 2).await;
        (store, limiter, reservation)
    });
    drop(runtime);
    reservation.settle(5);
    assert_eq!((counts(&limiter), store.stats().settle_errors), ([0, 0, 3, 1], 1));
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(other.block_on(store.flush(Duration::ZERO)), 0);
}

/// Settles calls while the server holds their trips.
async fn held(server: &Staged, store: &RedisStore) -> [RedisLimiter<FixedWindow>; 2] {
    let limiters = ["one", "two"].map(|name| store.limiter(name, window()).build().unwrap());
    let mut calls = Vec::new();
    for limiter in &limiters {
        for key in ["a", "a", "b"] {
            calls.push(reserved(limiter, key, 1).await);
        }
    }
    server.set(Mode::Hold);
    for call in calls {
        call.settle(2);
    }
    settle().await;
    limiters
}

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_the_settlements_of_all_limiters() {
    let server = Staged::new();
    let store = swaps(&server);
    assert_eq!(store.flush(Duration::ZERO).await, 0);
    let [one, two] = held(&server, &store).await;
    let dropped = begun(store.flush(Duration::from_secs(1)));
    let start = Instant::now();
    assert_eq!(store.flush(10 * MS).await, 6);
    assert_eq!(start.elapsed(), 10 * MS);
    drop(dropped);
    let flushed = tokio::spawn({
        let store = store.clone();
        async move { store.flush(Duration::MAX).await }
    });
    settle().await;
    assert!(!flushed.is_finished());
    server.resume();
    assert_eq!(flushed.await.unwrap(), 0);
    assert_eq!([counts(&one), counts(&two)], [[3, 0, 0, 0]; 2]);
    assert_eq!([left(&one, "a").await, left(&one, "b").await, left(&two, "a").await], [6, 8, 6]);
}

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_charges_that_were_not_sent_and_tells_how_many_are_left() {
    let server = Staged::new();
    let store = swaps(&server);
    let [one, two] = held(&server, &store).await;
    let start = Instant::now();
    assert_eq!(store.flush(Duration::from_secs(60)).await, 6);
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert_eq!((counts(&one), counts(&two), store.stats().settle_errors), ([0; 4], [0; 4], 0));
    server.resume();
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    assert_eq!([counts(&one), counts(&two)], [[3, 0, 0, 0]; 2]);
    assert!(start.elapsed() <= Duration::from_millis(60_900), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_settles_its_calls_and_charges() {
    let store = swaps(&Staged::new());
    let [closed, other] = [limiter(&store, window()), limiter(&store, window())];
    let calls = [reserved(&closed, "a", 4).await, reserved(&closed, "a", 1).await];
    let [less, more] = calls;
    closed.close();
    less.settle(1);
    more.settle(3);
    closed.charge("a", 2).await.unwrap();
    assert_eq!(store.flush(Duration::from_secs(1)).await, 0);
    assert_eq!((counts(&closed), left(&other, "a").await), ([4, 3, 0, 0], 4));
    assert!(closed.check("a").await.unwrap().is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_call_is_settled_from_a_thread_without_a_runtime() {
    let store = swaps(&Staged::new());
    let limiter = limiter(&store, window());
    let call = reserved(&limiter, "a", 1).await;
    advance(Duration::from_secs(10)).await;
    std::thread::spawn(|| call.settle(4)).join().unwrap();
    assert_eq!(store.flush(Duration::from_secs(1)).await, 0);
    assert_eq!((counts(&limiter), left(&limiter, "a").await), ([3, 0, 0, 0], 6));
}

#[tokio::test(start_paused = true)]
async fn a_charge_has_the_tier_of_its_call() {
    let tiers = [5, 20].map(|limit| Tiered::new(TokenBucket::new(Quota::per_hour(limit))));
    let paid = TokenBucket::new(Quota::per_hour(20));
    let server = Staged::new();
    let memory = RateLimiter::new(tiers[0].clone());
    let local = RateLimiter::new(tiers[0].clone());
    let redis = swaps(&server).limiter("test", tiers[0].clone()).fallback(local.clone()).build().unwrap();
    memory.call("a").tier(&paid).cost(30).charge();
    redis.call("a").tier(&paid).cost(30).charge().await.unwrap();
    let after = [redis.peek("a").await.unwrap(), redis.call("a").tier(&paid).peek().await.unwrap()];
    assert_eq!(after, [memory.peek("a"), memory.call("a").tier(&paid).peek()]);
    assert!(after[1].retry_after() > Some(Duration::from_secs(1_700)), "{after:?}");
    server.set(Mode::Fail("ERR"));
    redis.call("b").tier(&paid).cost(30).charge().await.unwrap();
    memory.call("b").tier(&paid).cost(30).charge();
    let text = tower_throttle::limiter::KeyText::new("test").of("b");
    assert_eq!(local.call(&text).tier(&paid).peek(), memory.call("b").tier(&paid).peek());
    assert_eq!(redis.stats().units, memory.stats().units);
}

#[tokio::test(start_paused = true)]
async fn a_charge_that_is_dropped_is_counted_by_whether_it_was_sent() {
    let server = Staged::new();
    let store = swaps(&server);
    let limiter = limiter(&store, window());
    drop(limiter.charge("a", 1));
    assert_eq!(counts(&limiter), [0; 4], "it has not begun");
    drop(begun(limiter.charge("a", 2)));
    settle().await;
    assert_eq!((counts(&limiter), server.commands().len()), ([0, 0, 2, 0], 0));
    server.set(Mode::Hold);
    let sent = begun(limiter.charge("a", 4));
    settle().await;
    drop(sent);
    server.resume();
    assert_eq!(store.flush(Duration::from_secs(1)).await, 0);
    assert_eq!((counts(&limiter), left(&limiter, "a").await), ([4, 0, 2, 0], 6));
}

#[tokio::test(start_paused = true)]
async fn parts_of_joint_calls_are_settled_and_counted_like_single_calls() {
    let server = Staged::new();
    let store = swaps(&server);
    let local = RateLimiter::new(window());
    let build = || store.limiter("test", window()).fallback(local.clone());
    let limiter = build().max_debt(3).build().unwrap();
    let decide = async || {
        let attempts = [2, 1].map(|cost| Attempt::new(cost).with_reservation());
        let mut parts = attempts.map(|attempt| Some(limiter.joint_part("a", attempt)));
        let decided = match InRedis::decide(&mut parts, &mut |_, _| {}) {
            JointOutcome::Pending(decided, _) => decided.await.unwrap(),
            _ => panic!("no denial is remembered"),
        };
        decided.into_iter().flatten().map(|one| one.decided.into_parts().1).collect::<Vec<_>>()
    };
    for (reservation, actual) in decide().await.into_iter().zip([1, 20]) {
        reservation.settle(actual);
    }
    assert_eq!(store.flush(Duration::from_secs(1)).await, 0);
    assert_eq!(counts(&limiter), [11, 1, 8, 0]);
    server.set(Mode::Fail("ERR"));
    for (reservation, actual) in decide().await.into_iter().zip([1, 20]) {
        assert!(reservation.settle(actual).is_some(), "the fallback settles at once");
    }
    assert_eq!((local.stats().units.charged, local.stats().units.refunded), (19, 1));
    assert_eq!(counts(&limiter), [30, 2, 8, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_denial_after_a_charge_tells_the_wait_in_debt() {
    let server = Staged::new();
    let store = super::store(server.clone(), super::settings(false, Duration::from_secs(60)));
    let limiter = limiter(&store, TokenBucket::new(Quota::per_second(1)));
    let call = limiter.call("a").reserve().await.unwrap().unwrap();
    let wait = async || limiter.check("a").await.unwrap().retry_after().unwrap();
    assert_eq!(wait().await, Duration::from_secs(1));
    call.settle(11);
    settle().await;
    assert_eq!(wait().await, Duration::from_secs(11));
    limiter.charge("a", 10).await.unwrap();
    assert_eq!(wait().await, Duration::from_secs(21));
    server.commands();
    assert_eq!((wait().await, server.commands().len()), (Duration::from_secs(21), 0), "it is remembered");
}

/// The state of a bucket has the units of calls that wait.
#[tokio::test(start_paused = true)]
async fn a_settlement_gives_back_no_units_of_calls_that_wait() {
    let bucket = || TokenBucket::new(Quota::per_second(1).burst(5));
    let memory = RateLimiter::new(bucket());
    let redis = limiter(&swaps(&Staged::new()), bucket());
    let here = memory.call("a").cost(5).reserve().unwrap();
    let there = redis.call("a").cost(5).reserve().await.unwrap().unwrap();
    advance(Duration::from_secs(1)).await;
    let waiting = [tokio::spawn(memory.acquire_n("a", 5)), tokio::spawn(memory.acquire_n("a", 1))];
    let queued = [tokio::spawn(redis.acquire_n("a", 5)), tokio::spawn(redis.acquire_n("a", 1))];
    settle().await;
    here.settle(0);
    there.settle(0);
    settle().await;
    let peeked = redis.peek("a").await.unwrap();
    assert_eq!((peeked.remaining(), peeked.retry_after()), (0, memory.peek("a").retry_after()));
    for call in waiting {
        assert!(call.await.unwrap().is_allowed());
    }
    for call in queued {
        assert!(call.await.unwrap().unwrap().is_allowed());
    }
}
