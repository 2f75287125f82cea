//! `acquire` takes part in tokio's cooperative scheduling.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Builder;
use tower_throttle::algorithm::{Algorithm, Concurrency, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

/// Returns a limiter that is never used up, on a clock that stands still.
fn plenty() -> RateLimiter<TokenBucket> {
    RateLimiter::builder(TokenBucket::new(Quota::per_day(u64::MAX))).clock(ManualClock::new()).build()
}

/// Two tasks make calls in a loop. Returns the number of calls that were made until a sleep of 10 ms ended, or `None`
/// if it did not end before `MOST` calls.
fn calls_until_a_sleep_ends<A: Algorithm>(limiter: &RateLimiter<A>) -> Option<u64> {
    const MOST: u64 = 1_000_000;
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let (calls, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    runtime.block_on(async {
        for _ in 0..2 {
            let (limiter, calls, ended) = (limiter.clone(), calls.clone(), ended.clone());
            tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) && calls.fetch_add(1, Ordering::Relaxed) < MOST {
                    let _ = limiter.acquire("key").await;
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        ended.store(true, Ordering::Relaxed);
    });
    Some(calls.load(Ordering::Relaxed)).filter(|calls| *calls < MOST)
}

#[test]
fn two_tasks_that_are_admitted_at_once_let_a_sleep_end() {
    assert!(calls_until_a_sleep_ends(&plenty()).is_some());
}

#[test]
fn two_tasks_that_are_denied_at_once_let_a_sleep_end() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_day(1)).queue(0));
    assert!(calls_until_a_sleep_ends(&limiter).is_some());
}

/// Polls a future once, and drops it.
fn once<F: Future>(cx: &mut Context<'_>, future: F) -> Poll<F::Output> {
    pin!(future).poll(cx)
}

#[test]
fn a_call_without_budget_has_charged_nothing_and_is_polled_again() {
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let limiter = plenty();
        let mut charged = 0;
        std::future::poll_fn(|cx| {
            while once(cx, limiter.acquire("key")).is_ready() {
                charged += 1;
                assert!(charged < 100_000, "no budget is consumed");
            }
            // The task has no budget left. The call that was dropped was not charged, and a further call takes no place
            // in the queue.
            assert_eq!(limiter.peek("key").remaining(), u64::MAX - charged);
            let held = RateLimiter::new(Concurrency::per_key(1));
            let _permit = held.try_acquire_permit("key").unwrap();
            assert!(once(cx, held.acquire_permit("key")).is_pending());
            assert_eq!(held.queued(), 0);
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
        // The waker is called, so the task is polled again, with a new budget.
        let (mut polls, mut calls) = (0, 0);
        let mut acquire = pin!(limiter.acquire("key"));
        let decision = std::future::poll_fn(|cx| {
            polls += 1;
            while polls == 1 && once(cx, limiter.acquire("key")).is_ready() {
                calls += 1;
            }
            acquire.as_mut().poll(cx)
        })
        .await;
        assert_eq!((polls, calls > 0, decision.is_allowed()), (2, true, true));
    });
}

#[test]
fn outside_a_runtime_there_is_no_budget() {
    let limiter = plenty();
    let cx = &mut Context::from_waker(Waker::noop());
    assert!((0..10_000).all(|_| once(cx, limiter.acquire("key")).is_ready()));
}
