//! A full queue denies new calls or displaces the oldest waiter, and a place that was left is free again.

use std::time::Duration;

use tower_throttle::algorithm::*;

use super::{call, denied, few, on, use_up, waits};
use crate::queueing::{ns, quota};

#[test]
fn the_newest_displaces_the_oldest_which_learns_when_a_call_can_be_admitted() {
    let rule = TokenBucket::new(quota(1, 10)).queue(2).overflow(QueueOverflow::DropOldest);
    let (limiter, clock) = on(rule);
    use_up(&limiter, "key");
    clock.set(ns(3));
    let mut line: Vec<_> = (0..2).map(|_| waits(&limiter, "key", 1)).collect();
    clock.set(ns(4));
    for nth in 2..6 {
        // The oldest waiter is displaced, so no new call is denied.
        line.push(waits(&limiter, "key", 1));
        assert!(line[nth - 2].run());
        let reported = line[nth - 2].output.unwrap();
        assert_eq!(
            (reported.is_allowed(), reported.retry_after(), reported.remaining()),
            (false, Some(ns(6)), 0)
        );
        assert_eq!(reported.delay(), if nth < 4 { ns(1) } else { ns(0) });
        assert_eq!(limiter.queued(), 2);
    }
    for (left, turn) in [(4, 10), (5, 20)] {
        clock.set(ns(turn - 1));
        assert!(!line[left].run());
        clock.set(ns(turn));
        assert!(line[left].run() && line[left].output.unwrap().is_allowed());
    }
}

#[test]
fn the_oldest_is_displaced_only_for_one_that_is_then_in_time() {
    let rule = LeakyBucket::new(quota(1, 10)).queue(3).max_wait(ns(30)).overflow(QueueOverflow::DropOldest);
    let (limiter, clock) = on(rule.clone());
    use_up(&limiter, "key");
    let mut line: Vec<_> = (0..3).map(|_| waits(&limiter, "key", 1)).collect();
    let mut newest = waits(&limiter, "key", 1);
    assert!(line[0].run() && !line[0].output.unwrap().is_allowed());
    clock.set(ns(30));
    assert!(newest.run() && newest.output.unwrap().is_allowed());
    // The calls have different costs. A new call would be admitted after both waiters, at 50 ns. If it displaces the
    // oldest waiter, it is admitted at 40 ns. At 10 ns a place is free, but until 20 ns, an admission at 50 ns is too
    // late.
    let (limiter, clock) = on(rule.queue(2));
    use_up(&limiter, "key");
    let mut line: Vec<_> = [1, 3].map(|cost| waits(&limiter, "key", cost)).into();
    for (now, retry) in [(0, 20), (9, 11), (10, 10), (19, 1)] {
        clock.set(ns(now));
        assert_eq!(denied(&limiter, "key", 1).retry_after(), Some(ns(retry)), "at {now}");
        assert_eq!(line[0].run(), now >= 10, "no call is displaced for nothing");
    }
    clock.set(ns(20));
    assert!(line.iter_mut().all(|call| call.run() && call.output.unwrap().is_allowed()));
    let _in_time = waits(&limiter, "key", 1);
}

#[test]
fn with_costs_calls_behind_the_oldest_are_admitted_when_it_is_displaced() {
    let (limiter, clock) =
        on(TokenBucket::new(quota(1, 10).burst(4)).queue(3).overflow(QueueOverflow::DropOldest));
    assert!(limiter.check_n("key", 2).is_allowed());
    let mut line: Vec<_> = [4, 1, 4].map(|cost| waits(&limiter, "key", cost)).into();
    let mut newest = waits(&limiter, "key", 2);
    assert!(line[0].run() && !line[0].output.unwrap().is_allowed());
    // Two tokens are available, and the second call takes one of them.
    assert!(line[1].run() && line[1].output.unwrap().is_allowed(), "asleep, or delayed by no call");
    assert!(!line[2].run() && !newest.run());
    clock.set(ns(30));
    assert!(line[2].run() && !newest.run());
    clock.set(ns(50));
    assert!(newest.run());
}

#[test]
fn with_zero_capacity_or_max_wait_no_call_waits_or_is_displaced() {
    fn look<A: Algorithm>(name: &str, rule: A) {
        let (limiter, clock) = on(rule);
        use_up(&limiter, "key");
        let wait = limiter.peek("key").retry_after().unwrap();
        assert_eq!(denied(&limiter, "key", 1).retry_after(), Some(wait), "{name}");
        clock.set(wait - ns(1));
        assert_eq!(denied(&limiter, "key", 1).retry_after(), Some(ns(1)), "{name}");
        clock.set(wait);
        assert!(call(&limiter, "key", 1).output.unwrap().is_allowed(), "{name}");
        assert_eq!(limiter.queued(), 0);
    }
    let two = quota(2, 100);
    macro_rules! of {
        ($rule:expr) => {{
            look(stringify!($rule), $rule.queue(0));
            look(stringify!($rule), $rule.max_wait(Duration::ZERO));
            look(stringify!($rule), $rule.queue(0).overflow(QueueOverflow::DropOldest));
            look(stringify!($rule), $rule.max_wait(Duration::ZERO).overflow(QueueOverflow::DropOldest));
            look(stringify!($rule), ($rule.queue(0), FixedWindow::new(quota(9, 100))));
        }};
    }
    of!(TokenBucket::new(two));
    of!(FixedWindow::new(two));
    of!(FixedWindow::new(two).aligned());
    of!(SlidingWindow::new(two));
    of!(SlidingLog::new(two));
    of!(SlidingCounter::new(two));
    of!(LeakyBucket::new(two));
}

#[test]
fn waiters_are_bounded_over_all_keys_and_a_place_is_free_again_however_it_was_left() {
    let rule = || SlidingLog::new(quota(1, 10)).queue(5);
    let (limiter, _clock) = few(rule(), 0);
    use_up(&limiter, "a");
    assert_eq!(denied(&limiter, "a", 1).retry_after(), Some(ns(10)));
    let (limiter, clock) = few(rule(), 1);
    use_up(&limiter, "a");
    use_up(&limiter, "b");
    let mut one = waits(&limiter, "a", 1);
    assert_eq!(limiter.queued(), 1);
    // A call finds no place, in the queue of the same key or of another key.
    assert!(denied(&limiter, "a", 1).retry_after().is_some());
    assert_eq!(denied(&limiter, "b", 1).retry_after(), Some(ns(10)), "when it would pass without waiting");
    assert_eq!(limiter.queued(), 1, "a denial takes no place");
    // The place is free again after the call was cancelled.
    one.abandon();
    let mut one = waits(&limiter, "b", 1);
    // The place is free again after the call was admitted.
    clock.set(ns(10));
    assert!(one.run());
    let mut one = waits(&limiter, "b", 1);
    // The place is free again after the call was admitted, even if it has not been polled yet.
    clock.set(ns(20));
    use_up(&limiter, "b");
    let two = waits(&limiter, "b", 1);
    assert_eq!(limiter.queued(), 1);
    assert!(one.run());
    drop(two);
    assert_eq!(limiter.queued(), 0);
    // The place of a waiter is free again after a reset of the key.
    let mut one = waits(&limiter, "b", 1);
    limiter.reset("b");
    assert!(one.run());
    assert_eq!(limiter.queued(), 0);
    drop(waits(&limiter, "b", 1));
    assert_eq!(limiter.queued(), 0);
}

#[test]
fn a_displaced_call_leaves_its_place_to_the_newest() {
    let (limiter, clock) =
        few(FixedWindow::new(quota(1, 10)).queue(2).overflow(QueueOverflow::DropOldest), 2);
    use_up(&limiter, "a");
    let mut line: Vec<_> = (0..6).map(|_| waits(&limiter, "a", 1)).collect();
    assert_eq!(limiter.queued(), 2);
    assert!(line[..4].iter_mut().all(|call| call.run() && !call.output.unwrap().is_allowed()));
    // There is no place for a call of another key.
    use_up(&limiter, "b");
    assert!(denied(&limiter, "b", 1).retry_after().is_some());
    clock.set(ns(10));
    assert!(line[4].run() && !line[5].run());
    use_up(&limiter, "b");
    drop(waits(&limiter, "b", 1));
    clock.set(ns(20));
    assert!(line[5].run());
    assert_eq!(limiter.queued(), 0);
}
