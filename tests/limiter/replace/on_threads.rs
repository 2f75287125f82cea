//! While threads make calls, a new limit admits exactly the difference, and each call is decided by one algorithm.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

use super::{limiter, with_each_kind};
use crate::support::Random;

const THREADS: usize = 8;

fn frozen<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    limiter(algorithm, &ManualClock::new())
}

/// Makes calls from eight threads while `replacing` runs in another thread. Returns the number of admitted calls for
/// each key.
fn hammered<A: Algorithm>(
    limiter: &RateLimiter<A>,
    keys: usize,
    replacing: impl FnOnce() + Send,
) -> Vec<u64> {
    let counts: Vec<_> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    let (start, done) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (counts, start, done) = (&counts, &start, &done);
            scope.spawn(move || {
                start.wait();
                // Each thread makes one more round after the last replacement, so that no unit is left.
                let mut last = false;
                while !last {
                    last = done.load(Ordering::SeqCst);
                    for n in 0..keys {
                        let key = (n + thread * keys / THREADS) % keys;
                        while limiter.check(&key).is_allowed() {
                            counts[key].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        start.wait();
        replacing();
        done.store(true, Ordering::SeqCst);
    });
    counts.into_iter().map(AtomicU64::into_inner).collect()
}

fn raised<A: Algorithm>(rule: impl Fn(Quota) -> A + Sync) {
    for _ in 0..10 {
        let limiter = frozen(rule(Quota::per_hour(100)));
        let counts = hammered(&limiter, 40, || {
            thread::yield_now();
            limiter.replace(rule(Quota::per_hour(150)));
        });
        assert_eq!(counts, [150; 40], "{limiter:?}");
    }
}

#[test]
fn a_limit_raised_under_eight_threads_admits_the_difference_to_each_key() {
    with_each_kind!(raised);
}

fn raised_again_and_again<A: Algorithm>(rule: impl Fn(Quota) -> A + Sync) {
    let limiter = frozen(rule(Quota::per_hour(1)));
    let counts = hammered(&limiter, 25, || {
        // Several threads set each limit once. The largest limit is set last.
        thread::scope(|scope| {
            let (limiter, rule) = (&limiter, &rule);
            for _ in 0..3 {
                scope
                    .spawn(move || (1..=200).for_each(|limit| limiter.replace(rule(Quota::per_hour(limit)))));
            }
        });
        limiter.replace(rule(Quota::per_hour(200)));
    });
    // A lower limit in between cuts the used units, so more units than the last limit can be admitted. But in the end,
    // each key has used up the last limit.
    assert!(counts.iter().all(|count| *count >= 200), "{counts:?}");
    assert!((0..25_usize).all(|key| limiter.peek(&key).remaining() == 0));

    let limiter = frozen(rule(Quota::per_hour(1)));
    let counts =
        hammered(&limiter, 25, || (1..=300).for_each(|limit| limiter.replace(rule(Quota::per_hour(limit)))));
    assert_eq!(counts, [300; 25], "{limiter:?}");
}

#[test]
fn three_hundred_replacements_under_eight_threads_are_exact() {
    with_each_kind!(raised_again_and_again);
}

fn lowered<A: Algorithm>(rule: impl Fn(Quota) -> A + Sync) {
    for _ in 0..10 {
        let limiter = frozen(rule(Quota::per_hour(150)));
        let counts = hammered(&limiter, 40, || limiter.replace(rule(Quota::per_hour(100))));
        assert!(counts.iter().all(|count| (100..=150).contains(count)), "{counts:?} of {limiter:?}");
        assert!((0..40_usize).all(|key| limiter.peek(&key).remaining() == 0));
    }
}

#[test]
fn a_limit_lowered_under_eight_threads_admits_no_more_than_the_old_and_no_less_than_the_new() {
    with_each_kind!(lowered);
}

#[test]
fn each_call_is_decided_by_one_algorithm_and_after_the_return_by_the_new_one() {
    let limiter = frozen(FixedWindow::new(Quota::per_hour(1_000_000)));
    let (settled, done) = (AtomicU64::new(1_000_000), AtomicBool::new(false));
    thread::scope(|scope| {
        let (limiter, settled, done) = (&limiter, &settled, &done);
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(thread as u64);
                while !done.load(Ordering::Relaxed) {
                    let least = settled.load(Ordering::SeqCst);
                    let limit = limiter.check(&random.below(500)).limit();
                    let most = limiter.algorithm().policy().quota.max(settled.load(Ordering::SeqCst) + 1);
                    assert!((least..=most).contains(&limit), "{limit}, between {least} and {most}");
                }
            });
        }
        for limit in 1_000_001..1_000_400 {
            limiter.replace(FixedWindow::new(Quota::per_hour(limit)));
            assert_eq!(limiter.algorithm().policy().quota, limit);
            settled.store(limit, Ordering::SeqCst);
        }
        done.store(true, Ordering::Relaxed);
    });
}
