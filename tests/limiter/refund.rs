//! Refunds. A refund gives back no more than was charged, and nothing that is already available again.

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimiter};

use crate::support::{Random, TickingClock};

/// Returns one limiter on a clock that stands still, and one on a clock that advances at each reading.
fn limiters<A: Algorithm>(algorithm: &A) -> [(RateLimiter<A>, TickingClock); 2] {
    TickingClock::both().map(|clock| {
        clock.set(Duration::from_secs(1_000));
        (RateLimiter::builder(algorithm.clone()).clock(clock.clone()).build(), clock)
    })
}

#[test]
fn a_charge_just_made_is_refunded_in_full() {
    fn holds<A: Algorithm>(algorithm: A) {
        for (limiter, clock) in limiters(&algorithm) {
            for pause in [0, 1, 137, 250, 999, 1_000, 1_333, 2_500] {
                clock.advance(Duration::from_millis(pause));
                let before = limiter.peek("key");
                let taken = 3.min(before.remaining());
                assert!(limiter.check_n("key", taken).is_allowed());
                limiter.refund("key", taken);
                assert_eq!(limiter.peek("key").remaining(), before.remaining(), "after {pause} ms");
                assert!(limiter.check("key").is_allowed(), "after {pause} ms");
            }
        }
    }
    let quota = Quota::per_second(10);
    holds(FixedWindow::new(quota));
    holds(FixedWindow::new(quota).aligned());
    holds(SlidingWindow::new(quota));
    holds(SlidingCounter::new(quota));
    holds(SlidingLog::new(quota));
    holds(TokenBucket::new(quota));
}

#[test]
fn a_key_never_has_more_than_a_fresh_one() {
    fn holds<A: Algorithm>(algorithm: A) {
        for (limiter, clock) in limiters(&algorithm) {
            let most = limiter.peek("other").remaining();
            for _ in 0..20 {
                let _ = limiter.check_n("key", 2);
                limiter.refund("key", u64::MAX);
                assert_eq!(limiter.peek("key").remaining(), most);
                clock.advance(Duration::from_millis(77));
            }
            let kept = limiter.len();
            limiter.refund("never seen", 5);
            assert!(limiter.len() <= kept, "a refund stores no key");
        }
    }
    let quota = Quota::per_second(10);
    holds(FixedWindow::new(quota));
    holds(SlidingWindow::new(quota));
    holds(SlidingCounter::new(quota));
    holds(SlidingLog::new(quota));
    holds(TokenBucket::new(quota));
    holds(LeakyBucket::new(quota));
}

#[test]
fn a_refund_after_the_window_has_ended_changes_nothing() {
    fn holds<A: Algorithm>(algorithm: A) {
        for (limiter, clock) in limiters(&algorithm) {
            assert!(limiter.check_n("key", 10).is_allowed());
            clock.advance(Duration::from_secs(3));
            limiter.refund("key", 10);
            assert_eq!(limiter.peek("key").remaining(), 10);
            assert!(limiter.check_n("key", 10).is_allowed());
            assert!(!limiter.check("key").is_allowed());
        }
    }
    let quota = Quota::per_second(10);
    holds(FixedWindow::new(quota));
    holds(SlidingWindow::new(quota));
    holds(SlidingCounter::new(quota));
    holds(SlidingLog::new(quota));
    holds(TokenBucket::new(quota));
}

/// The oldest units are given back first. The remaining units count until their own time.
#[test]
fn the_newest_units_remain_charged() {
    for (limiter, clock) in limiters(&SlidingLog::new(Quota::per_second(4))) {
        for _ in 0..4 {
            assert!(limiter.check("key").is_allowed());
            clock.advance(Duration::from_millis(100));
        }
        limiter.refund("key", 2);
        assert_eq!(limiter.peek("key").remaining(), 2);
        // The units that were charged at 200 and 300 ms count until 1,200 and 1,300 ms.
        clock.set(Duration::from_millis(1_000_000 + 1_199));
        assert_eq!(limiter.peek("key").remaining(), 2);
        clock.advance(Duration::from_millis(1));
        assert_eq!(limiter.peek("key").remaining(), 3);
        clock.advance(Duration::from_millis(100));
        assert_eq!(limiter.peek("key").remaining(), 4);
    }
}

/// No span of one period has more than the limit, of the units that were charged and not given back.
#[test]
fn sliding_windows_stay_strict_with_any_refund() {
    fn holds(algorithm: impl Algorithm) {
        let mut random = Random::new(0);
        for _ in 0..500 {
            let mut now = 1_000_000;
            let mut state = algorithm.new_state(Nanos(now), Nanos(now));
            // The units that were admitted and not given back. The refund may be for any of them.
            let mut kept: Vec<u64> = Vec::new();
            for _ in 0..64 {
                now += random.below(400);
                if random.below(4) == 0 {
                    algorithm.refund(&mut state, Nanos(now), 1, None);
                    let counted = kept.iter().filter(|hit| now - **hit < 1_000).count();
                    if counted > 0 {
                        let meant = random.below(counted as u64) as usize;
                        kept.remove(kept.len() - 1 - meant);
                    }
                } else if algorithm.check(&mut state, Nanos(now), 1).is_allowed() {
                    kept.push(now);
                }
                let counted = kept.iter().filter(|hit| now - **hit < 1_000).count();
                assert!(counted <= 5, "{counted} within one period at {now}");
            }
        }
    }
    let quota = Quota::per(5, Duration::from_nanos(1_000)).unwrap();
    holds(SlidingLog::new(quota));
    holds(SlidingWindow::new(quota));
    holds(SlidingWindow::new(quota).slices(3));
}

#[tokio::test(start_paused = true)]
async fn after_a_refund_waiters_are_admitted_sooner() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)));
    let heavy = limiter.acquire_n("key", 5).await;
    assert!(heavy.is_allowed());
    let waiting = tokio::spawn(limiter.acquire("key"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    limiter.refund("key", 3);
    assert_eq!(waiting.await.unwrap().delay(), Duration::from_millis(200));

    let paced = RateLimiter::new(Smooth::bursty(Quota::per_second(10)));
    assert!(paced.acquire_n("key", 5).await.is_allowed());
    paced.refund("key", 4);
    assert_eq!(paced.acquire("key").await.delay(), Duration::from_millis(100));
}

/// A key that was never used counts as idle since the limiter was built. A denied call takes nothing, so it makes no
/// difference to a refund.
#[test]
fn under_a_bucket_that_starts_empty_a_refund_does_the_same_before_and_after_a_denied_call() {
    let bucket = TokenBucket::new(Quota::per_second(1).burst(100)).start_empty();
    for on_full in [OnFull::EvictLeastUsed, OnFull::Reject] {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(bucket.clone()).clock(clock.clone()).on_full(on_full).build();
        clock.advance(Duration::from_secs(50));
        assert!(!limiter.check_n("denied", 51).is_allowed());
        for key in ["denied", "never used"] {
            assert_eq!(limiter.peek(key).remaining(), 50, "{key}");
            limiter.refund(key, 49);
            assert_eq!(limiter.peek(key).remaining(), 99, "{key}");
            limiter.refund(key, 49);
            assert_eq!(limiter.peek(key).remaining(), 100, "{key}: never above the burst");
        }
        // Once the bucket of a new key is full, a refund of such a key changes nothing, and needs no place.
        clock.advance(Duration::from_secs(50));
        let len = limiter.len();
        limiter.refund("new", 1);
        assert_eq!((limiter.peek("new").remaining(), limiter.len()), (100, len));
    }
}

#[test]
fn a_bucket_that_starts_empty_and_was_filled_early_by_a_refund_is_not_evicted() {
    let bucket = TokenBucket::new(Quota::per_second(1).burst(60)).start_empty();
    let clock = ManualClock::new();
    // The table has one shard. New keys sweep the shard.
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).max_keys(100).build();
    clock.advance(Duration::from_secs(10));
    assert!(limiter.check_n("key", 10).is_allowed());
    limiter.refund("key", 60);
    assert_eq!(limiter.peek("key").remaining(), 60);
    // Calls for other keys sweep the table. They remove keys that are full and have not been used for a while.
    clock.advance(Duration::from_secs(15));
    for other in 0..20 {
        assert!(limiter.check(&other).is_allowed());
    }
    assert_eq!(limiter.peek("key").remaining(), 60, "one never seen has 25");
    // When the bucket of a fresh key would be full as well, the key is removed.
    clock.advance(Duration::from_secs(60));
    for other in 20..60 {
        assert!(limiter.check(&other).is_allowed());
    }
    assert!(limiter.len() <= 42, "{}", limiter.len());
}
