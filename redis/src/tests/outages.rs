//! Calls that arrive when the pause of the circuit breaker is over: they wait for the trial.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance};

use super::faults::swaps;
use super::flights::{begun, settle};
use super::staged::{Mode, Staged};
use super::{limiter, store};
use crate::error::{RedisError, RedisErrorKind};
use crate::in_process::RedisInProcess;
use crate::limiter::RedisLimiter;
use crate::store::RedisStoreBuilder;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::{Decision, Quota, RateLimiter};

const MS: Duration = Duration::from_millis(1);
const DEADLINE: Duration = Duration::from_millis(50);

type Calls = Vec<JoinHandle<Result<Decision, RedisError>>>;

fn window() -> FixedWindow {
    FixedWindow::new(Quota::per_hour(1_000))
}

/// Opens the circuit breaker by five late calls.
async fn open(server: &Staged, limiter: &RedisLimiter<FixedWindow>) {
    server.set(Mode::Hang);
    for _ in 0..5 {
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Late);
    }
    yield_now().await;
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Open);
    server.commands();
}

fn burst(limiter: &RedisLimiter<FixedWindow>) -> Calls {
    (0..100).map(|key| tokio::spawn(limiter.check(&*format!("key-{key}")))).collect()
}

/// Returns the kinds of the errors of these calls.
async fn failed(calls: Calls) -> Vec<RedisErrorKind> {
    let mut failed = Vec::new();
    for call in calls {
        failed.extend(call.await.unwrap().err().map(|error| error.kind()));
    }
    failed
}

#[tokio::test(start_paused = true)]
async fn the_first_burst_after_an_outage_is_decided() {
    for time in [50 * MS, Duration::from_secs(3_600)] {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), window());
        open(&server, &limiter).await;
        server.set(Mode::Serve);
        advance(time).await;
        assert_eq!(failed(burst(&limiter)).await, [], "{time:?} after the outage");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_burst_after_a_server_was_full_is_decided() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), window());
    server.set_full(true);
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
    server.set_full(false);
    advance(50 * MS).await;
    assert_eq!(failed(burst(&limiter)).await, []);
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_trial_fail_as_soon_as_it_fails() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), window());
    open(&server, &limiter).await;
    server.set(Mode::Fail("LOADING"));
    advance(50 * MS).await;
    let start = Instant::now();
    assert_eq!(failed(burst(&limiter)).await, [RedisErrorKind::Open; 100]);
    assert_eq!((start.elapsed(), server.commands().len()), (Duration::ZERO, 1));
    assert_eq!(failed(burst(&limiter)).await, [RedisErrorKind::Open; 100]);
    assert_eq!((start.elapsed(), server.commands().len()), (Duration::ZERO, 0), "the pause has doubled");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_trial_without_a_reply_end_at_their_deadlines() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), window());
    open(&server, &limiter).await;
    advance(50 * MS).await;
    let start = Instant::now();
    let first = burst(&limiter);
    settle().await;
    advance(20 * MS).await;
    let later = burst(&limiter);
    assert_eq!(failed(first).await, [RedisErrorKind::Late; 100]);
    assert_eq!(start.elapsed(), DEADLINE);
    // The trial has ended as well.
    assert_eq!(failed(later).await, [RedisErrorKind::Open; 100]);
    assert_eq!((start.elapsed(), server.commands().len()), (DEADLINE, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_with_a_fallback_are_decided_at_once_in_the_pause_and_at_their_deadlines_in_a_trial() {
    let server = Staged::new();
    let local = RateLimiter::new(window());
    let limiter = swaps(&server).limiter("test", window()).fallback(local.clone()).build().unwrap();
    server.set(Mode::Hang);
    for _ in 0..5 {
        assert!(limiter.check("a").await.unwrap().is_allowed());
    }
    yield_now().await;
    let start = Instant::now();
    assert_eq!(failed(burst(&limiter)).await, []);
    assert_eq!((start.elapsed(), local.len()), (Duration::ZERO, 101));
    advance(50 * MS).await;
    let start = Instant::now();
    assert_eq!(failed(burst(&limiter)).await, []);
    assert_eq!(start.elapsed(), DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn a_trial_goes_on_if_the_call_that_began_it_is_not_polled_any_more() {
    for is_full in [false, true] {
        for is_dropped in [false, true] {
            let server = Staged::new();
            let limiter = limiter(&swaps(&server), window());
            if is_full {
                server.set_full(true);
                assert!(limiter.check("a").await.is_err());
                server.set_full(false);
            } else {
                open(&server, &limiter).await;
            }
            server.set(Mode::Serve);
            advance(50 * MS).await;
            let kept = begun(limiter.check("a"));
            let kept = if is_dropped { None } else { Some(kept) };
            assert_eq!(failed(burst(&limiter)).await, [], "{is_full}, {is_dropped}");
            drop(kept);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_burst_of_leases_after_an_outage_is_decided() {
    let server = RedisInProcess::new(MS);
    let bucket = TokenBucket::new(Quota::per_hour(1_000));
    let limiter = server.connect().limiter("test", bucket).lease(10).build().unwrap();
    server.set_running(false);
    for _ in 0..5 {
        assert!(limiter.check("a").await.is_err());
    }
    yield_now().await;
    server.set_running(true);
    advance(1_000 * MS).await;
    let calls = (0..100).map(|key| tokio::spawn(limiter.check(&*format!("key-{key}")))).collect();
    assert_eq!(failed(calls).await, []);
}

#[test]
fn a_trial_whose_runtime_ends_is_made_by_the_next_call_that_waits() {
    let runtime = || Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (first, second): (Runtime, Runtime) = (runtime(), runtime());
    let (server, limiter) = second.block_on(async {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), window());
        open(&server, &limiter).await;
        advance(50 * MS).await;
        (server, limiter)
    });
    let _trial = first.spawn(limiter.check("a"));
    first.block_on(async {
        advance(1_000 * MS).await;
        settle().await;
    });
    assert_eq!(server.commands().len(), 1);
    let waiting = second.block_on(async {
        let waiting = burst(&limiter);
        settle().await;
        waiting
    });
    assert_eq!(server.commands().len(), 0);
    server.set(Mode::Serve);
    drop(first);
    assert_eq!(second.block_on(failed(waiting)), []);
}

#[test]
fn a_trial_whose_runtime_ends_before_it_begins_is_made_by_the_next_call_that_waits() {
    let runtime = || Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (first, second): (Runtime, Runtime) = (runtime(), runtime());
    let (server, limiter) = second.block_on(async {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), window());
        open(&server, &limiter).await;
        server.set(Mode::Serve);
        (server, limiter)
    });
    first.block_on(advance(1_000 * MS));
    let _kept = {
        let _context = first.enter();
        begun(limiter.check("a"))
    };
    let waiting = second.block_on(async {
        let waiting = burst(&limiter);
        settle().await;
        waiting
    });
    assert_eq!(server.commands().len(), 0, "the task of the trial is not polled");
    drop(first);
    assert_eq!(second.block_on(failed(waiting)), []);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_notices_the_end_of_its_trial_only_after_the_pause_is_decided_and_so_are_the_others() {
    let server = Staged::new();
    let settings = |store: RedisStoreBuilder| store.without_scripts().deadline(500 * MS);
    let limiter = limiter(&store(server.clone(), settings), window());
    open(&server, &limiter).await;
    advance(50 * MS).await;
    server.set(Mode::Fail("LOADING"));
    let late = begun(limiter.check("a"));
    settle().await;
    assert_eq!(server.commands().len(), 1, "the trial has failed");
    server.set(Mode::Serve);
    advance(150 * MS).await;
    let start = Instant::now();
    let late = tokio::spawn(late);
    yield_now().await;
    assert_eq!(failed(burst(&limiter)).await, []);
    assert_eq!(failed(vec![late]).await, []);
    assert_eq!(start.elapsed(), Duration::ZERO);
}
