//! Calls that share a trip, cancelled calls, remembered denials and calls that wait.

use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::staged::{Mode, Staged};
use super::{limiter, settings, store};
use crate::error::RedisError;
use crate::frame::Frame;
use crate::script::Unpacked;
use crate::store::RedisStore;
use tower_throttle::Decision;
use tower_throttle::Quota;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, Lockout, Tiered, TokenBucket};

const MS: Duration = Duration::from_millis(1);

fn swaps(server: &Staged) -> RedisStore {
    store(server.clone(), settings(false, Duration::ZERO))
}

pub(super) async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_arrive_during_a_trip_are_decided_together_in_order() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(10)));
    server.set(Mode::Hold);
    let calls: Vec<_> = [3, 4, 5, 2, 1, 1].map(|cost| tokio::spawn(limiter.check_n("a", cost))).into();
    settle().await;
    assert_eq!(server.commands().len(), 1, "one trip for all");
    server.resume();
    let mut remaining = Vec::new();
    for call in calls {
        let decision = call.await.unwrap().unwrap();
        remaining.push((decision.is_allowed(), decision.remaining()));
    }
    assert_eq!(remaining, [(true, 7), (true, 3), (false, 3), (true, 1), (true, 0), (false, 0)]);
    assert_eq!(server.commands().len(), 3, "one to write the first, two for the five others");
}

/// Returns the deadline, the frame and the other numbers in a script's argument.
fn unpacked(word: &str) -> (u64, Frame, Vec<u64>) {
    let mut unpacked = Unpacked::from(word);
    let deadline = unpacked.next().unwrap();
    let frame = Frame { head: unpacked.eight().unwrap(), tail: unpacked.string().unwrap() };
    (deadline, frame, unpacked.collect())
}

#[tokio::test(start_paused = true)]
async fn a_script_gets_the_costs_of_a_trip_in_order() {
    let server = Staged::new();
    let limiter = limiter(
        &store(server.clone(), settings(true, Duration::ZERO)),
        FixedWindow::new(Quota::per_hour(10)),
    );
    server.set(Mode::Answer(server.done()));
    let calls: Vec<_> = [3, 4, 5].map(|cost| tokio::spawn(limiter.check_n("a", cost))).into();
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
    let commands = server.commands();
    let (_, frame, numbers) = unpacked(&commands[0][4]);
    assert_eq!((frame, &*numbers), (Frame::new("f:10/3600000000000"), &[10, 3_600_000_000, 0, 3][..]));
    let (deadline, _, numbers) = unpacked(&commands[1][4]);
    assert_eq!(numbers, [10, 3_600_000_000, 0, 4, 5]);
    assert_eq!(deadline, server.micros() + 50_000, "no caller waits longer");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_charges_nothing_and_blocks_no_other() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(10)));
    drop(limiter.check_n("a", 9));
    settle().await;
    assert!(server.commands().is_empty(), "it was never polled");
    server.set(Mode::Hold);
    let [on_its_way, waiting, other] = [5, 4, 1].map(|cost| tokio::spawn(limiter.check_n("a", cost)));
    settle().await;
    on_its_way.abort();
    waiting.abort();
    settle().await;
    server.resume();
    assert!(other.await.unwrap().is_ok());
    settle().await;
    assert_eq!(limiter.peek("a").await.unwrap().remaining(), 9);
}

#[tokio::test(start_paused = true)]
async fn different_keys_do_not_wait_for_each_other() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(10)));
    server.set(Mode::Hold);
    let held = tokio::spawn(limiter.check("a"));
    settle().await;
    server.set(Mode::Serve);
    assert!(limiter.check("b").await.is_ok());
    server.resume();
    assert!(held.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_remembered_until_one_unit_is_there() -> Result<(), RedisError> {
    let server = Staged::new();
    let store = store(server.clone(), settings(false, Duration::from_secs(1)));
    let limiter = limiter(&store, TokenBucket::new(Quota::per_second(10).burst(1)));
    assert!(limiter.check("a").await?.is_allowed());
    assert!(!limiter.check("a").await?.is_allowed());
    server.commands();
    for left in [100, 60, 20] {
        let denial = limiter.check("a").await?;
        assert_eq!((denial.is_allowed(), denial.retry_after()), (false, Some(left * MS)));
        tokio::time::advance(40 * MS).await;
    }
    assert!(server.commands().is_empty(), "no trips");
    assert!(limiter.check("a").await?.is_allowed());
    assert!(!limiter.check("a").await?.is_allowed());
    limiter.reset("a").await?;
    assert!(limiter.check("a").await?.is_allowed(), "a reset is seen at once");
    assert!(!limiter.check("a").await?.is_allowed());
    limiter.replace(TokenBucket::new(Quota::per_second(10).burst(2)));
    assert!(limiter.check("a").await?.is_allowed(), "a replaced algorithm is seen at once");
    Ok(())
}

/// A denied call adds its tier to the key, so that its `retry_after` is true.
#[tokio::test(start_paused = true)]
async fn a_denial_is_not_remembered_for_tiers_that_are_new_to_the_key() -> Result<(), RedisError> {
    let server = Staged::new();
    let store = store(server.clone(), settings(false, Duration::from_secs(1)));
    let slow = Tiered::new(TokenBucket::new(Quota::per_hour(10)));
    let fast = TokenBucket::new(Quota::per_second(10));
    let (limiter, memory) = (limiter(&store, slow.clone()), RateLimiter::new(slow));
    let is_same = async |key, tier: Option<&TokenBucket>, cost| {
        let (mut redis, mut here) = (limiter.call(key).cost(cost), memory.call(key).cost(cost));
        if let Some(tier) = tier {
            (redis, here) = (redis.tier(tier), here.tier(tier));
        }
        let shown = |decision: Decision| {
            let wait = decision.retry_after().map(|wait| wait.as_micros().div_ceil(1_000));
            (decision.is_allowed(), wait)
        };
        let redis = shown(redis.check().await.unwrap());
        assert_eq!(redis, shown(here.check()));
        redis
    };
    is_same("a", None, 10).await;
    assert!(!is_same("a", None, 1).await.0);
    tokio::time::advance(10 * MS).await;
    assert_eq!(is_same("a", Some(&fast), 1).await, (false, Some(100)));
    server.commands();
    tokio::time::advance(50 * MS).await;
    assert_eq!(is_same("a", Some(&fast), 1).await, (false, Some(50)));
    assert!(server.commands().is_empty(), "now the key has the tier, and its denial is remembered");
    tokio::time::advance(50 * MS).await;
    assert!(is_same("a", Some(&fast), 1).await.0);

    // The default tier may be the new one.
    is_same("b", Some(&fast), 10).await;
    assert!(!is_same("b", Some(&fast), 1).await.0);
    assert!(!is_same("b", None, 1).await.0);
    tokio::time::advance(2_000 * MS).await;
    assert_eq!(is_same("b", None, 1).await, (false, Some(358_000)));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_remembered_for_a_second_and_not_if_denials_count() -> Result<(), RedisError> {
    let server = Staged::new();
    let store = store(server.clone(), settings(false, Duration::from_secs(1)));
    let window = FixedWindow::new(Quota::per_hour(1));
    let plain = limiter(&store, window.clone());
    let _ = (plain.check("a").await?, plain.check("a").await?);
    server.commands();
    tokio::time::advance(Duration::from_millis(1_001)).await;
    assert!(!plain.check("a").await?.is_allowed());
    assert_eq!(server.commands().len(), 1);
    drop(plain);

    let lockout: Lockout<_> =
        tower_throttle::algorithm::Algorithm::block_for(window, Duration::from_secs(7_200)).after(2);
    let lockout = limiter(&store, lockout);
    for _ in 0..2 {
        assert!(lockout.check("b").await?.retry_after() <= Some(Duration::from_secs(3_600)));
    }
    assert_eq!(
        lockout.check("b").await?.retry_after(),
        Some(Duration::from_secs(7_200)),
        "each denial was counted"
    );
    Ok(())
}

async fn delays(calls: Vec<tokio::task::JoinHandle<Result<Decision, RedisError>>>) -> Vec<Option<u128>> {
    let mut delays = Vec::new();
    for call in calls {
        let decision = call.await.unwrap().unwrap();
        delays.push(decision.is_allowed().then(|| decision.delay().as_millis()));
    }
    delays
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_bucket_are_given_their_times() {
    let server = Staged::new();
    let store = swaps(&server);
    let bucket = limiter(&store, LeakyBucket::new(Quota::per_second(10)).queue(2));
    let start = Instant::now();
    let calls = (0..4).map(|_| tokio::spawn(bucket.acquire("a"))).collect();
    assert_eq!(delays(calls).await, [Some(0), Some(100), Some(200), None]);
    assert_eq!(start.elapsed(), 200 * MS);
    let cancelled = tokio::spawn(bucket.acquire("a"));
    settle().await;
    cancelled.abort();
    settle().await;
    assert_eq!(bucket.acquire("a").await.unwrap().delay(), 100 * MS, "its place was given back");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_window_wait_in_order() {
    let server = Staged::new();
    let store = swaps(&server);
    let window = limiter(&store, FixedWindow::new(Quota::per_second(2)).queue(3));
    let start = Instant::now();
    let calls: Vec<_> = (0..6).map(|_| tokio::spawn(window.acquire("a"))).collect();
    let delays: Vec<_> =
        delays(calls).await.into_iter().map(|delay| delay.map(|delay| delay / 1_000)).collect();
    assert_eq!(delays, [Some(0), Some(0), Some(1), Some(1), Some(2), None]);
    assert_eq!(start.elapsed().as_secs(), 2);
    assert!(window.check("a").await.unwrap().is_allowed());
    assert!(!window.call("a").max_wait(10 * MS).acquire().await.unwrap().is_allowed());
}

/// Makes a call and polls it once.
pub(super) fn begun<F: Future>(call: F) -> std::pin::Pin<Box<F>> {
    let mut call = Box::pin(call);
    let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the reply is not there yet");
    call
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_charges_nothing() -> Result<(), RedisError> {
    let server = Staged::new();
    let store = swaps(&server);
    let window = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    for is_answered in [false, true] {
        server.set(Mode::Hold);
        let call = begun(window.check_n("a", 2));
        if is_answered {
            // Another call moves the trip to a task, so the reply is sent, although the first call is not polled.
            let other = tokio::spawn(window.peek("a"));
            settle().await;
            server.resume();
            assert_eq!(other.await.unwrap()?.remaining(), 3);
        }
        drop(call);
        server.resume();
        settle().await;
        assert_eq!(window.peek("a").await?.remaining(), 5);
    }
    assert_eq!(window.check_n("a", 5).await?.remaining(), 0, "one whose reply is taken is charged");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_polled_delays_no_other() -> Result<(), RedisError> {
    let server = Staged::new();
    let store = swaps(&server);
    let window = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    server.set(Mode::Hold);
    let idle = begun(window.check("a"));
    server.resume();
    let start = Instant::now();
    for left in [3, 2] {
        assert_eq!(window.check("a").await?.remaining(), left);
    }
    assert_eq!((start.elapsed(), idle.await?.remaining()), (Duration::ZERO, 4));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn calls_that_arrive_during_a_trip_do_not_need_its_call() -> Result<(), RedisError> {
    let server = Staged::new();
    let store = swaps(&server);
    let window = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    server.set(Mode::Hold);
    let first = begun(window.check("a"));
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(window.check("a"))).collect();
    settle().await;
    server.resume();
    for (call, left) in calls.into_iter().zip([3, 2, 1]) {
        assert_eq!(call.await.unwrap()?.remaining(), left);
    }
    assert_eq!(first.await?.remaining(), 4);
    assert_eq!(server.commands().len(), 4, "two trips of two commands");
    Ok(())
}
