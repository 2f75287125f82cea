//! On many threads, and at the end of a runtime, cancelled calls leave no waiter behind and no slot unused.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, Quota, RateLimiter};

use super::waiting;
use crate::support::{PolledByHand, Random, scaled};

const MICROSECOND: Duration = Duration::from_micros(1);

/// A call that waits until it is released, or is cancelled after some polls.
struct Patient {
    call: Pin<Box<Acquire<LeakyBucket>>>,
    polls: u64,
    entered: Option<Arc<AtomicUsize>>,
    /// The number of all polls, and the number of tasks that have ended.
    seen: Arc<[AtomicUsize; 2]>,
}

impl Drop for Patient {
    fn drop(&mut self) {
        self.seen[1].fetch_add(1, Ordering::SeqCst);
    }
}

impl Future for Patient {
    type Output = Option<Decision>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Decision>> {
        let polled = self.call.as_mut().poll(cx);
        self.seen[0].fetch_add(1, Ordering::SeqCst);
        if let Some(entered) = self.entered.take() {
            entered.fetch_add(1, Ordering::SeqCst);
        }
        match (polled, self.polls) {
            (Poll::Ready(decision), _) => Poll::Ready(Some(decision)),
            (Poll::Pending, 0) => Poll::Ready(None),
            (Poll::Pending, _) => {
                self.polls -= 1;
                Poll::Pending
            }
        }
    }
}

/// Lets many tasks on several threads wait for one key, while another thread moves the clock by one interval at a time,
/// to the last slot. Returns the decisions of the calls that were not cancelled, and how long a new call would then
/// have to wait.
fn stress(seed: u64, tasks: usize, impatient: bool) -> (Vec<Decision>, Duration) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    // With these intervals, no call is overdue by more than 5 ms, even if a thread is late.
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1_000_000)).queue(1_000);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let (entered, seen) =
        (Arc::new(AtomicUsize::new(0)), Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
    let mut random = Random::new(seed);
    let mut calls = JoinSet::new();
    for _ in 0..tasks {
        let polls = match impatient && random.one_in(3) {
            true => 1 + random.below(tasks as u64),
            false => u64::MAX,
        };
        let call = Box::pin(limiter.acquire(&()));
        let call = Patient { call, polls, entered: Some(entered.clone()), seen: seen.clone() };
        calls.spawn_on(call, runtime.handle());
    }
    // All calls arrive at one instant.
    while entered.load(Ordering::SeqCst) < tasks {
        thread::yield_now();
    }
    let moving = thread::spawn({
        let clock = clock.clone();
        let mut random = Random::new(!seed);
        move || {
            for _ in 1..tasks {
                let polls = seen[0].load(Ordering::SeqCst);
                clock.advance(MICROSECOND);
                // The time limit of an hour is in the time of the clock, which advances only after a poll. So the hour
                // cannot be over before the tasks were polled, even on a busy machine.
                while seen[0].load(Ordering::SeqCst) == polls && seen[1].load(Ordering::SeqCst) < tasks {
                    thread::yield_now();
                }
                for _ in 0..random.below(200) {
                    thread::yield_now();
                }
            }
        }
    });
    let joined = runtime.block_on(async { timeout(Duration::from_secs(60), calls.join_all()).await });
    let decisions = joined.unwrap_or_else(|_| panic!("seed {seed}: a call is stuck"));
    moving.join().unwrap();
    let admitted = decisions.into_iter().flatten().collect();
    (admitted, limiter.peek(&()).retry_after().unwrap_or_default())
}

#[test]
fn on_many_threads_as_many_calls_are_released_as_there_are_slots() {
    for seed in 0..scaled(20) {
        let (mut admitted, next) = stress(seed, 300, false);
        admitted.sort_by_key(Decision::delay);
        assert_eq!(admitted.len(), 300);
        for (n, decision) in (0..).zip(&admitted) {
            assert!(
                decision.is_allowed() && decision.delay() >= MICROSECOND * n,
                "seed {seed}: {n} is early"
            );
        }
        // All slots are used, including the slot of this instant, and no others.
        assert_eq!(next, MICROSECOND, "seed {seed}");
    }
}

#[test]
fn on_many_threads_cancelled_calls_leave_no_waiter_behind() {
    for seed in 0..scaled(20) {
        let (mut admitted, next) = stress(seed, 300, true);
        admitted.sort_by_key(Decision::delay);
        assert!(admitted.len() >= 150 && admitted.len() < 300, "seed {seed}: {}", admitted.len());
        for (n, decision) in (0..).zip(&admitted) {
            assert!(
                decision.is_allowed() && decision.delay() >= MICROSECOND * n,
                "seed {seed}: {n} is early"
            );
        }
        assert!(next <= MICROSECOND, "seed {seed}: {next:?}");
    }
}

#[test]
fn a_runtime_that_ends_cancels_its_waiters() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_hour(1)).queue(10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        assert!(limiter.acquire(&()).await.is_allowed());
        for _ in 0..10 {
            tokio::spawn(limiter.acquire(&()));
        }
        tokio::task::yield_now().await;
        let mut refused = PolledByHand::new(limiter.acquire(&()));
        assert!(refused.poll() && !refused.output.unwrap().is_allowed(), "the queue is full");
    });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _context = other.enter();
    let mut line: Vec<_> = (0..10).map(|_| waiting(&limiter)).collect();
    let mut refused = PolledByHand::new(limiter.acquire(&()));
    assert!(refused.poll() && !refused.output.unwrap().is_allowed());
    line.clear();
    assert!(limiter.peek(&()).retry_after().unwrap() <= Duration::from_secs(3_600));
}
