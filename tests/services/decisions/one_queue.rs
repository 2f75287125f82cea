//! The difficult cases of a queue for any algorithm: several clocks, late waiters, the end of the clock, cancelled
//! calls, denials that count, totals, and tiers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::algorithm::*;
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, Quota, RateLimiter};

type Queued<A> = Pin<Box<Acquire<A>>>;

const MS: Duration = Duration::from_millis(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn on<A: Algorithm>(algorithm: A) -> (ManualClock, RateLimiter<A>) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).max_queued(20_000).build();
    (clock, limiter)
}

fn poll<A: Algorithm>(call: &mut Queued<A>) -> Option<Decision> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => Some(decision),
        Poll::Pending => None,
    }
}

fn waits<A: Algorithm>(call: Acquire<A>) -> Queued<A> {
    let mut call = Box::pin(call);
    assert_eq!(poll(&mut call), None, "it should wait");
    call
}

fn per(limit: u64, period: Duration) -> Quota {
    Quota::per(limit, period).unwrap()
}

/// The clock is set back by less than one of the periods, and by more than the other. So from then on, the members of a
/// tuple have different times, and so have a lockout and its algorithm.
#[test]
fn a_wait_is_exact_though_the_members_have_different_times() {
    fn is_exact<A: Algorithm>(algorithm: A) {
        for back in [5, 50, 150].map(|ms| ms * MS) {
            let (clock, limiter) = on(algorithm.clone());
            clock.set(1_000 * MS);
            while limiter.check("key").is_allowed() {}
            clock.set(1_003 * MS - back);
            let of_first = limiter.peek("key").retry_after().unwrap();
            let mut call = waits(limiter.acquire("key"));
            let refused = limiter.check("key");
            assert_eq!(refused, limiter.peek("key"), "{algorithm:?}");
            // The waiter must be released on time, since a late release would delay the others.
            clock.advance(of_first - NANOSECOND);
            assert_eq!(poll(&mut call), None, "{algorithm:?}, {back:?}: too late by a nanosecond");
            clock.advance(NANOSECOND);
            assert!(poll(&mut call).unwrap().is_allowed(), "{algorithm:?}, {back:?}: too early");
            clock.advance(refused.retry_after().unwrap() - of_first - NANOSECOND);
            assert!(!limiter.check("key").is_allowed(), "{algorithm:?}, {back:?}: too late by a nanosecond");
            clock.advance(NANOSECOND);
            assert!(limiter.check("key").is_allowed(), "{algorithm:?}, {back:?}: too early");
        }
    }
    let (short, long) = (per(1, 10 * MS), per(3, 100 * MS));
    is_exact((FixedWindow::new(short), FixedWindow::new(long)));
    is_exact((FixedWindow::new(long), TokenBucket::new(short)));
    is_exact((TokenBucket::new(long), SlidingLog::new(short)));
    is_exact((LeakyBucket::new(short), SlidingWindow::new(long)));
    is_exact((TokenBucket::new(short), TokenBucket::new(long)));
    is_exact(TokenBucket::new(per(10, 100 * MS).burst(1)).block_for(3_600_000 * MS).after(1_000));
    is_exact((FixedWindow::new(short), FixedWindow::new(long)).block_for(3_600_000 * MS).after(1_000));
}

/// If a waiter of a window is released late, it is charged to the window in which it is released. So the next waiters
/// wait longer, as their decisions report.
#[test]
fn a_waiter_that_leaves_late_delays_those_behind_it() {
    let (clock, limiter) = on(FixedWindow::new(per(1, 100 * MS)));
    assert!(limiter.check("key").is_allowed());
    let mut calls = [(); 2].map(|()| waits(limiter.acquire("key")));
    assert_eq!(limiter.check("key").retry_after(), Some(300 * MS));
    clock.advance(150 * MS);
    assert!(poll(&mut calls[0]).is_some());
    assert_eq!(limiter.peek("key").retry_after(), Some(200 * MS));
    assert_eq!(limiter.check("key").retry_after(), Some(200 * MS));
    clock.advance(100 * MS - NANOSECOND);
    assert!(poll(&mut calls[1]).is_none());
    clock.advance(NANOSECOND);
    assert!(poll(&mut calls[1]).is_some());
}

/// Some slots are after the end of the clock. As many calls are queued as the decision reports.
#[test]
fn at_the_end_of_the_clock_as_many_calls_wait_as_was_reported() {
    let hour = Duration::from_secs(3_600);
    for before in [0, 1, 30 * 60, 3_600, 90 * 60, 7_200, 4 * 3_600].map(Duration::from_secs) {
        let (clock, limiter) = on(LeakyBucket::new(Quota::per_hour(1)).queue(5).max_wait(2 * hour));
        clock.set(Duration::from_nanos(u64::MAX) - before);
        let first = limiter.acquire("key");
        let mut first = Box::pin(first);
        let mut reported = poll(&mut first).unwrap().remaining();
        let mut calls = Vec::new();
        loop {
            let mut call = Box::pin(limiter.acquire("key"));
            match poll(&mut call) {
                None => calls.push(call),
                Some(refused) => {
                    assert!(!refused.is_allowed());
                    assert_eq!(reported, 0, "{before:?} before the end");
                    break;
                }
            }
            reported = reported.checked_sub(1).unwrap_or_else(|| panic!("{before:?} before the end"));
        }
    }
}

/// An algorithm that counts how often its methods are called.
#[derive(Clone, Debug)]
struct Counted<A> {
    inner: A,
    asked: Arc<AtomicU64>,
}

impl<A> Counted<A> {
    fn ask(&self) -> &A {
        self.asked.fetch_add(1, Ordering::Relaxed);
        &self.inner
    }
}

impl<A: Algorithm> Algorithm for Counted<A> {
    type State = A::State;

    const UNDO_BY_COPY: bool = A::UNDO_BY_COPY;
    const ADDS_UP: bool = A::ADDS_UP;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> A::State {
        self.inner.new_state(created_at, now)
    }
    fn last_update(&self, state: &A::State) -> Nanos {
        self.inner.last_update(state)
    }
    fn check(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        self.ask().check(state, now, cost)
    }
    fn peek(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        self.ask().peek(state, now, cost)
    }
    fn refund(&self, state: &mut A::State, now: Nanos, cost: u64) {
        self.ask().refund(state, now, cost);
    }
    fn migrate(&self, state: &mut A::State, old: &Self, now: Nanos) {
        self.ask().migrate(state, &old.inner, now);
    }
    fn is_fresh(&self, state: &A::State, now: Nanos) -> bool {
        self.inner.is_fresh(state, now)
    }
    fn policy(&self) -> QuotaPolicy {
        self.inner.policy()
    }
    fn queue_config(&self) -> Option<QueueConfig> {
        self.inner.queue_config()
    }
    fn ready_at(&self, state: &mut A::State, now: Nanos, cost: u64) -> Option<Nanos> {
        self.ask().ready_at(state, now, cost)
    }
    fn admit_queued(&self, state: &mut A::State, now: Nanos, arrived: Nanos, cost: u64) -> Option<Nanos> {
        self.ask().admit_queued(state, now, arrived, cost)
    }
    fn project(&self, state: &mut A::State, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        self.ask().project(state, now, arrived, cost)
    }
    fn queue_capacity(&self, state: &mut A::State, now: Nanos, max_wait: u64) -> u64 {
        self.ask().queue_capacity(state, now, max_wait)
    }
}

/// Makes one more call behind `length` waiters, cancels it, and checks that the waiters behind a cancelled call move
/// up. Returns how often the methods of the algorithm were called.
fn asked_for_one_that_is_cancelled<A: Algorithm>(inner: A, length: usize) -> u64 {
    let asked = Arc::new(AtomicU64::new(0));
    let (clock, limiter) = on(Counted { inner, asked: Arc::clone(&asked) });
    while limiter.check("key").is_allowed() {}
    let mut calls: Vec<_> = (0..length).map(|_| waits(limiter.acquire("key"))).collect();
    let wait = limiter.check("key").retry_after().unwrap();
    let mut most = 0;
    for _ in 0..20 {
        clock.advance(NANOSECOND);
        asked.store(0, Ordering::Relaxed);
        let before_last = calls.remove(calls.len() / 2);
        drop(before_last);
        calls.push(waits(limiter.acquire("key")));
        most = most.max(asked.load(Ordering::Relaxed));
    }
    assert_eq!(limiter.check("key").retry_after(), Some(wait - 20 * NANOSECOND));
    most
}

#[test]
fn a_cancelled_call_of_a_bucket_costs_the_same_behind_ten_thousand() {
    let quota = per(1, 10 * MS);
    for length in [10, 10_000] {
        let bucket = asked_for_one_that_is_cancelled(TokenBucket::new(quota), length);
        let leaky = asked_for_one_that_is_cancelled(LeakyBucket::new(quota).queue(20_000), length);
        assert!(bucket <= 30 && leaky <= 30, "{bucket} and {leaky} with {length} waiters");
    }
}

/// The projection of a window is computed only once for each cancelled call.
#[test]
fn a_cancelled_call_of_a_window_recomputes_the_projection_once() {
    let length = 1_000;
    let asked = asked_for_one_that_is_cancelled(FixedWindow::new(per(1, 10 * MS)), length);
    assert!(asked <= 2 * length as u64, "{asked} for {length} waiters");
}

/// If a release is undone, the state is as before, even if the release has taken permits from a store.
#[test]
fn those_behind_a_dropped_release_leave_as_if_it_had_never_come() {
    fn leave<A: Algorithm>(algorithm: A, first: u32) {
        let (clock, limiter) = on(algorithm);
        while limiter.check("key").is_allowed() {}
        let [dropped, mut second, mut third] = [(); 3].map(|()| waits(limiter.acquire("key")));
        clock.advance(first * MS);
        assert!(!limiter.check("key").is_allowed(), "this releases the first");
        drop(dropped);
        assert!(poll(&mut second).is_some());
        clock.advance(50 * MS - NANOSECOND);
        assert!(poll(&mut third).is_none());
        clock.advance(NANOSECOND);
        assert!(poll(&mut third).is_some());
    }
    let quota = per(1, 50 * MS);
    leave(TokenBucket::new(quota), 50);
    leave(LeakyBucket::new(quota).queue(5), 50);
    leave(Smooth::bursty(quota).queue(5), 50);
    leave(Tiered::new(TokenBucket::new(quota)), 50);
    leave(TokenBucket::new(quota).block_for(MS).after(1_000), 50);
    leave(FixedWindow::new(quota), 50);
    leave(SlidingLog::new(quota), 50);
    leave((TokenBucket::new(quota), SlidingLog::new(quota)), 50);
}

#[test]
fn the_builder_and_the_trait_agree_on_the_queue() {
    let bucket = TokenBucket::new(Quota::per_second(1)).queue(3);
    assert_eq!(bucket.queue_config().map(|queue| queue.places()), Some(3));
}

/// The queue denies the second call. The lockout counts this denial, but does not count a denied peek.
#[test]
fn a_refusal_of_the_queue_counts_for_a_lockout() {
    let algorithm = LeakyBucket::new(per(1, 100 * MS)).queue(1).block_for(1_000 * MS).after(2);
    let (clock, limiter) = on(algorithm);
    assert!(limiter.check("key").is_allowed());
    let mut call = waits(limiter.acquire("key"));
    for _ in 0..5 {
        let _ = limiter.peek("key");
    }
    let refused = poll(&mut Box::pin(limiter.acquire("key"))).unwrap();
    assert_eq!(refused.retry_after(), Some(100 * MS));
    let refused = poll(&mut Box::pin(limiter.acquire("key"))).unwrap();
    assert_eq!(refused.retry_after(), Some(1_000 * MS));
    clock.advance(100 * MS);
    assert!(poll(&mut call).unwrap().is_allowed(), "it was queued before the lockout");
    let barred = poll(&mut Box::pin(limiter.acquire("key"))).unwrap();
    assert_eq!(barred.retry_after(), Some(900 * MS), "it may not wait");
}

/// A waiter takes a place in the total of all keys, and the length of its wait is unknown.
#[test]
fn waiters_for_a_permit_count_in_the_total() {
    let (_clock, limiter) = on(Concurrency::per_key(1).total(2).queue(5));
    let held = limiter.try_acquire_permit("a").unwrap();
    let mut queued = waits(limiter.acquire("a"));
    let refused = limiter.check("b");
    assert!(!refused.is_allowed() && !refused.never_fits());
    assert_eq!(refused.retry_after(), None);
    drop(held);
    assert!(poll(&mut queued).unwrap().is_allowed());
    limiter.release("a", 1);
    assert!(limiter.check("b").is_allowed());
}

/// Each queued call is released by the tier that it has chosen, in the order of arrival.
#[test]
fn a_queued_call_leaves_by_its_own_tier() {
    let free = TokenBucket::new(per(1, 100 * MS));
    let paid = TokenBucket::new(per(1, 10 * MS));
    let (clock, limiter) = on(Tiered::new(free.clone()));
    assert!(limiter.tier(&free).check("key").is_allowed());
    assert!(!limiter.tier(&paid).check("key").is_allowed(), "what is used counts for all tiers");
    let mut of_paid = waits(limiter.tier(&paid).acquire("key"));
    let mut of_free = waits(limiter.tier(&free).acquire("key"));
    let mut last = waits(limiter.tier(&paid).acquire("key"));
    clock.advance(10 * MS);
    assert!(poll(&mut of_paid).is_some());
    assert!(poll(&mut of_free).is_none());
    assert!(poll(&mut last).is_none(), "no call overtakes another");
    // The bucket of the free tier was charged for the paid call, but by no more than its burst.
    clock.advance(100 * MS);
    assert!(poll(&mut of_free).is_some());
    clock.advance(10 * MS);
    assert!(poll(&mut last).is_some());
}

/// If a call is the first call of the key in a tier, the state of this tier begins when the call joins the queue.
#[test]
fn a_call_that_waits_in_a_new_tier_waits_by_its_rate() {
    let (free, paid) = (TokenBucket::new(per(1, 100 * MS)), TokenBucket::new(per(1, 10 * MS)));
    let (clock, limiter) = on(Tiered::new(free));
    assert!(limiter.check("key").is_allowed());
    let mut of_paid = waits(limiter.tier(&paid).acquire("key"));
    clock.advance(5 * MS);
    assert!(poll(&mut of_paid).is_none());
    clock.advance(5 * MS);
    assert!(poll(&mut of_paid).unwrap().is_allowed());
}

/// A call whose slot is more than a period ahead must not look like a step back of the clock.
#[test]
fn a_tier_lets_no_call_wait_longer_than_its_maximum() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(20).max_wait(1_500 * MS);
    let (clock, limiter) = on(Tiered::new(bucket));
    let mut accepted: Vec<_> = (0..20).map(|_| Box::pin(limiter.acquire("key"))).collect();
    let mut waiting = Vec::new();
    let mut admitted = 0;
    for mut call in accepted.drain(..) {
        match poll(&mut call) {
            Some(decision) => admitted += u64::from(decision.is_allowed()),
            None => waiting.push(call),
        }
    }
    assert_eq!((admitted, waiting.len()), (1, 15));
    for _ in 0..15 {
        clock.advance(100 * MS);
        waiting.retain_mut(|call| poll(call).is_none());
    }
    assert!(waiting.is_empty(), "a call waits longer");
}
