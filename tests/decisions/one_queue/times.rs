//! Waits are exact with several clocks and with late waiters.

use tower_throttle::algorithm::*;

use super::{MS, NANOSECOND, on, per, poll, waits};

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
