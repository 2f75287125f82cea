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
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{LeakyBucket, SlidingWindow, Tiered};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::waiting;
use crate::support::{PolledByHand, Random, scaled};

const MICROSECOND: Duration = Duration::from_micros(1);

/// A call that waits until it is admitted, or is cancelled after some polls.
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
fn on_many_threads_each_slot_is_used_although_calls_are_cancelled() {
    for (seed, impatient) in (0..scaled(20)).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (mut admitted, next) = stress(seed, 300, impatient);
        admitted.sort_by_key(Decision::delay);
        for (n, decision) in (0..).zip(&admitted) {
            assert!(
                decision.is_allowed() && decision.delay() >= MICROSECOND * n,
                "seed {seed}: {n} is early"
            );
        }
        if impatient {
            assert!(admitted.len() >= 150 && admitted.len() < 300, "seed {seed}: {}", admitted.len());
            assert!(next <= MICROSECOND, "seed {seed}: {next:?}");
        } else {
            // All slots are used, including the slot of this instant, and no others.
            assert_eq!((admitted.len(), next), (300, MICROSECOND), "seed {seed}");
        }
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
        let mut denied = PolledByHand::new(limiter.acquire(&()));
        assert!(denied.poll() && !denied.output.unwrap().is_allowed(), "the queue is full");
    });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _context = other.enter();
    let mut line: Vec<_> = (0..10).map(|_| waiting(&limiter)).collect();
    let mut denied = PolledByHand::new(limiter.acquire(&()));
    assert!(denied.poll() && !denied.output.unwrap().is_allowed());
    line.clear();
    assert!(limiter.peek(&()).retry_after().unwrap() <= Duration::from_secs(3_600));
}

/// Tasks on two threads, while algorithms are replaced, keys are reset, and calls are cancelled. All tasks end.
#[test]
fn queues_lose_no_wakeup_while_algorithms_are_replaced_and_keys_are_reset() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let leaky = |rate| LeakyBucket::new(Quota::per_second(rate)).queue(10_000);
        let queue = RateLimiter::new(Tiered::new(leaky(10_000)));
        let lends = RateLimiter::new(SlidingWindow::new(Quota::per_second(2_000)).priority(100));
        let stack = RateLimitLayer::with_limiter(Global, queue.clone())
            .and(RateLimitLayer::with_limiter(Global, lends.clone()).priority(|(): &()| true))
            .responder(ErrorResponder);
        let service = stack.layer(service_fn(async |()| Ok::<_, ()>(())));
        let mut tasks = JoinSet::new();
        for n in 0..1_500_u64 {
            let (queue, lends, mut service) = (queue.clone(), lends.clone(), service.clone());
            tasks.spawn(async move {
                let r = &mut Random::new(n);
                match r.below(12) {
                    0 => {
                        let _ = timeout(Duration::from_micros(r.below(50_000)), queue.acquire(&())).await;
                    }
                    1 => queue.replace(Tiered::new(leaky(r.within(8_000..=20_000)))),
                    2 => lends.replace(
                        SlidingWindow::new(Quota::per_second(r.within(1_900..=2_500)))
                            .slices(r.within(1..=20) as usize)
                            .priority(100),
                    ),
                    3 => {
                        queue.refund(&(), 3);
                        lends.refund(&(), 1);
                    }
                    4 => {
                        if r.one_in(10) {
                            queue.reset(&());
                            lends.reset(&());
                        }
                    }
                    5 | 6 => {
                        let _ = timeout(Duration::from_micros(r.below(90_000)), service.call(())).await;
                    }
                    7 => {
                        let _ = lends.call(&()).cost(r.within(1..=5)).priority().acquire().await;
                    }
                    8 => {
                        let _ = service.call(()).await;
                    }
                    9 => {
                        let _ = queue.call(&()).tier(&leaky(r.within(8_000..=9_000))).acquire().await;
                    }
                    _ => {
                        let _ = queue.acquire(&()).await;
                    }
                }
            });
            if n % 8 == 0 {
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
        }
        let mut ended = 0;
        while let Ok(Some(done)) = timeout(Duration::from_secs(15), tasks.join_next()).await {
            done.unwrap();
            ended += 1;
        }
        assert_eq!(ended, 1_500);
    });
}
