//! A day at full load (a tenth of a day in `.ci/run`), thirty days without calls, and then exactly one burst.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::support::scaled;

/// Makes calls for a day. The limit is five a second, and twice as many calls arrive.
const QUOTA: Quota = Quota::per_minute(300).burst(25);
const TICK: Duration = Duration::from_millis(100);

fn ticks_a_day() -> u64 {
    scaled(864_000)
}

/// Returns the number of units of a day.
fn a_day() -> u64 {
    scaled(300 * 24 * 60)
}

fn thirty_days() -> Duration {
    Duration::from_secs(30 * 86_400)
}

fn limiter<A: Algorithm>(algorithm: A) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(algorithm).clock(clock.clone()).build(), clock)
}

/// Checks how many calls are admitted during the day, and how many are admitted at once after the thirty days.
fn checked<A: Algorithm>(algorithm: A, day: RangeInclusive<u64>, burst: u64) {
    let (limiter, clock) = limiter(algorithm);
    let mut admitted = 0;
    for _ in 0..=ticks_a_day() {
        admitted += u64::from(limiter.check("key").is_allowed());
        clock.advance(TICK);
    }
    assert!(day.contains(&admitted), "{admitted} in a day, {day:?} due: {limiter:?}");
    clock.advance(thirty_days());
    assert_eq!(limiter.peek("key").remaining(), burst, "{limiter:?}");
    let at_once = (0..=1_000).take_while(|_| limiter.check("key").is_allowed()).count() as u64;
    assert_eq!(at_once, burst, "{limiter:?}");
    assert!(!limiter.check("key").is_allowed());
}

fn exactly(number: u64) -> RangeInclusive<u64> {
    number..=number
}

#[test]
fn a_bucket_has_its_burst_again() {
    checked(TokenBucket::new(QUOTA), exactly(25 + a_day()), 25);
    checked(TokenBucket::new(QUOTA).start_empty(), exactly(a_day()), 25);
}

#[test]
fn a_window_has_its_limit_again() {
    // The last call belongs to another day.
    checked(FixedWindow::new(QUOTA), exactly(a_day() + 1), 300);
    checked(FixedWindow::new(QUOTA).aligned(), exactly(a_day() + 1), 300);
    checked(SlidingLog::new(QUOTA), exactly(a_day() + 1), 300);
}

#[test]
fn a_window_of_slices_has_its_limit_again() {
    // A unit becomes available again up to a slice late. A slice is a tenth or a thousandth of the period.
    checked(SlidingWindow::new(QUOTA), a_day() * 10 / 11..=a_day() + 1, 300);
    checked(SlidingWindow::new(QUOTA).slices(1_000), a_day() * 1_000 / 1_001..=a_day() + 1, 300);
}

#[test]
fn a_window_of_two_counts_has_its_limit_again() {
    checked(SlidingCounter::new(QUOTA), a_day() * 9 / 10..=a_day() + 300, 300);
}

#[test]
fn a_leaky_bucket_that_is_checked_admits_one() {
    checked(LeakyBucket::new(QUOTA), exactly(a_day() + 1), 1);
}

/// The limiter stores one second, which is five units. Another call is admitted at the expense of the call after it.
#[test]
fn a_smooth_limiter_that_is_checked_has_what_it_stores_and_one() {
    checked(Smooth::bursty(QUOTA), exactly(a_day() + 1), 6);
    // The limiter is cold at first, and cold again after the thirty days.
    checked(Smooth::warming_up(QUOTA, Duration::from_secs(4)), a_day() - 50..=a_day(), 1);
}

type Call = Pin<Box<dyn Future<Output = Decision>>>;

fn poll(call: &mut Call) -> Option<Decision> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => Some(decision),
        Poll::Pending => None,
    }
}

/// Checks a queue that is full all day. After thirty days, only one waiter is admitted at once. After thirty more days,
/// exactly `burst` calls are admitted at once, and 25 calls are queued.
fn acquired<A: Algorithm>(algorithm: A, burst: usize) {
    let (limiter, clock) = limiter(algorithm);
    let mut line: VecDeque<Call> = VecDeque::new();
    let mut admitted = 0;
    for _ in 0..=ticks_a_day() {
        while line.front_mut().is_some_and(|first| poll(first).is_some()) {
            line.pop_front();
            admitted += 1;
        }
        let mut call: Call = Box::pin(limiter.acquire("key"));
        match poll(&mut call) {
            Some(decision) => admitted += u64::from(decision.is_allowed()),
            None => line.push_back(call),
        }
        clock.advance(TICK);
    }
    assert_eq!(admitted, a_day() + 1, "{limiter:?}");
    assert_eq!(line.len(), 25, "{limiter:?}");

    clock.advance(thirty_days());
    // Missed slots are lost, so one waiter is admitted, and the others follow one by one.
    for last in (0..25).rev() {
        let left = line.iter_mut().filter_map(poll).filter(Decision::is_allowed).count();
        assert_eq!(left, 1, "{limiter:?}");
        line.pop_front();
        assert_eq!(line.len(), last);
        clock.advance(TICK * 2);
    }
    clock.advance(thirty_days());
    let mut calls: Vec<Call> = (0..100).map(|_| Box::pin(limiter.acquire("key")) as Call).collect();
    let reported: Vec<_> = calls.iter_mut().map(poll).collect();
    let (passed, rest) = reported.split_at(burst);
    let (waiting, denied) = rest.split_at(25);
    assert!(
        passed.iter().all(|reported| reported.is_some_and(|decision| decision.is_allowed())),
        "{passed:?}"
    );
    assert!(waiting.iter().all(Option::is_none), "{waiting:?}");
    assert!(
        denied.iter().all(|reported| reported.is_some_and(|decision| !decision.is_allowed())),
        "{denied:?}"
    );
}

#[test]
fn a_leaky_bucket_admits_one_and_its_queue_waits() {
    acquired(LeakyBucket::new(QUOTA), 1);
}

#[test]
fn a_smooth_limiter_admits_what_it_stores_and_one_and_its_queue_waits() {
    acquired(Smooth::bursty(QUOTA), 6);
}
