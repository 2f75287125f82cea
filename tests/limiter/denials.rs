//! Repeated denials. If the clock never steps back, they are decided without a lock.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::thread;
use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::{Clock, ManualClock, Nanos};
use tower_throttle::limiter::OnClose;
use tower_throttle::limiter::OnFull;
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::support::Random;

/// A clock that only advances.
#[derive(Clone, Debug)]
struct Forward(ManualClock);

impl Clock for Forward {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn is_monotonic(&self) -> bool {
        true
    }

    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep_until(deadline)
    }
}

fn forward<A: Algorithm>(algorithm: A) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1));
    (RateLimiter::builder(algorithm).clock(Forward(clock.clone())).build(), clock)
}

/// Returns a limiter of one call an hour. The call of the key `a` was admitted, and further calls of `a` were denied.
fn denied<A: Algorithm>(algorithm: A) -> (RateLimiter<A>, ManualClock) {
    let (limiter, clock) = forward(algorithm);
    assert!(limiter.check("a").is_allowed());
    (0..3).for_each(|_| assert!(!limiter.check("a").is_allowed()));
    (limiter, clock)
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(1))
}

#[test]
fn a_unit_that_comes_back_is_available_at_once() {
    let (limiter, _) = denied(bucket());
    limiter.refund("a", 1);
    assert!(limiter.check("a").is_allowed() && !limiter.check("a").is_allowed());
    limiter.reset("a");
    assert!(limiter.check("a").is_allowed() && !limiter.check("a").is_allowed());
    limiter.replace(TokenBucket::new(Quota::per_hour(2)));
    assert!(limiter.check("a").is_allowed() && !limiter.check("a").is_allowed());
    let calls = limiter.stats().calls;
    assert_eq!((calls.admitted, calls.denied), (4, 6));
}

#[test]
fn a_limiter_that_is_closed_says_so_at_once() {
    for on_close in [OnClose::Reject, OnClose::Allow] {
        let clock = Forward(ManualClock::new());
        let limiter = RateLimiter::builder(bucket()).clock(clock).on_close(on_close).build();
        (0..3).for_each(|_| _ = limiter.check("a"));
        limiter.close();
        let decision = limiter.check("a");
        assert_eq!(
            (decision.is_allowed(), decision.is_closed()),
            (on_close == OnClose::Allow, on_close == OnClose::Reject)
        );
    }
}

#[test]
fn other_costs_and_keys_are_decided_by_the_algorithm() {
    let (limiter, _) = denied(bucket());
    assert!(limiter.check_n("a", 0).is_allowed());
    assert!(limiter.check_n("a", 2).never_fits());
    assert!(!limiter.check("a").never_fits());
    assert!(limiter.check("b").is_allowed());
}

#[tokio::test]
async fn a_call_that_can_wait_is_queued_after_denials() {
    let (limiter, clock) = denied(bucket());
    let queued = tokio::spawn(limiter.acquire("a"));
    tokio::task::yield_now().await;
    assert_eq!(limiter.stats().store.waiting, 1);
    assert_eq!(limiter.check("a").retry_after(), Some(Duration::from_secs(7_200)), "behind the queue");
    clock.advance(Duration::from_secs(3_600));
    assert!(queued.await.unwrap().is_allowed());
    assert!(!limiter.check("a").is_allowed());
}

#[test]
fn a_key_with_frequent_denials_is_not_evicted_for_new_ones() {
    let clock = ManualClock::new();
    let builder = RateLimiter::builder(bucket()).clock(Forward(clock.clone())).max_keys(64);
    let limiter = builder.on_full(OnFull::EvictLeastUsed).build();
    assert!(limiter.check("a").is_allowed());
    for new in 0..2_000 {
        clock.advance(Duration::from_micros(40));
        assert!(!limiter.check("a").is_allowed(), "after {new} new keys");
        assert!(limiter.check(&new).is_allowed());
    }
}

/// Makes the same calls to a limiter whose clock may step back. This limiter decides each call while the key is locked.
fn compare<A: Algorithm>(algorithm: A) {
    let ((limiter, clock), plain) = (forward(algorithm.clone()), ManualClock::new());
    plain.set(Duration::from_secs(1));
    let locked = RateLimiter::builder(algorithm).clock(plain.clone()).build();
    let mut random = Random::new(16);
    for at in 0..30_000 {
        let key = random.below(3);
        match random.below(12) {
            0 => {
                let most = 1 << random.below(30);
                let step = Duration::from_nanos(random.below(most));
                clock.advance(step);
                plain.advance(step);
            }
            1 => [&limiter, &locked].into_iter().for_each(|limiter| limiter.refund(&key, 1)),
            2 if random.below(20) == 0 => {
                [&limiter, &locked].into_iter().for_each(|limiter| _ = limiter.reset(&key));
            }
            3 => {
                let cost = random.below(4);
                assert_eq!(limiter.check_n(&key, cost), locked.check_n(&key, cost), "call {at}");
            }
            4 => assert_eq!(limiter.peek(&key), locked.peek(&key), "call {at}"),
            _ => assert_eq!(check(&limiter, &key), check(&locked, &key), "call {at}"),
        }
    }
    assert_eq!(limiter.stats(), locked.stats());
}

fn check<A: Algorithm>(limiter: &RateLimiter<A>, key: &impl Hash) -> (Decision, Option<Duration>, Duration) {
    let decision = limiter.check(key);
    (decision, decision.retry_after(), decision.reset_after())
}

#[test]
fn decisions_are_those_of_a_limiter_that_locks_each_key() {
    let quota = Quota::per(7, Duration::from_micros(300)).unwrap();
    compare(TokenBucket::new(quota.burst(3)));
    compare(FixedWindow::new(quota));
    compare(FixedWindow::new(quota).aligned());
    compare(SlidingWindow::new(quota));
    compare(SlidingCounter::new(quota));
    compare(SlidingLog::new(quota));
    compare(LeakyBucket::new(quota));
    compare((TokenBucket::new(quota), FixedWindow::new(quota)));
    compare(TokenBucket::new(quota).block_for(Duration::from_micros(500)).after(5));
}

#[test]
fn denials_of_more_threads_than_have_numbers_are_all_counted() {
    const THREADS: u64 = 100;
    const CALLS: u64 = 200;
    let (limiter, _) = denied(bucket());
    for _ in 0..3 {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..CALLS).for_each(|_| assert!(!limiter.check("a").is_allowed())));
            }
        });
    }
    assert_eq!(limiter.stats().calls.denied, 3 + 3 * THREADS * CALLS);
}
