//! Calls in progress are counted for a key and in the total, also if they were queued, refunded or replaced.

use super::*;
use crate::support::waits;

#[test]
fn queued_calls_follow_the_current_limit() {
    let limiter = limiter(Concurrency::per_key(2).queue(9), &ManualClock::new());
    let [first, second] = [(); 2].map(|()| limiter.try_acquire_permit("a").unwrap());
    let mut line = [(); 2].map(|()| PolledByHand::new(limiter.acquire_permit("a")));
    line.iter_mut().for_each(|call| assert!(!call.poll()));
    limiter.replace(Concurrency::per_key(1).queue(9));
    drop(first);
    assert!(!line[0].run(), "another is in progress");
    drop(second);
    assert!(line[0].run() && !line[1].run());
    // With a larger limit, a waiter is admitted at once.
    limiter.replace(Concurrency::per_key(2).queue(9));
    assert!(line[1].run());
}

#[test]
fn a_refund_takes_nothing_from_a_permit() {
    let limiter = RateLimiter::new(Concurrency::per_key(1).total(1));
    let first = limiter.try_acquire_permit("a").unwrap();
    limiter.refund("a", 1);
    assert!(
        limiter.try_acquire_permit("a").is_err() && limiter.try_acquire_permit("b").is_err(),
        "one is in progress"
    );
    drop(first);
    let second = limiter.try_acquire_permit("b").unwrap();
    assert!(limiter.try_acquire_permit("c").is_err());
    drop(second);

    let both = RateLimiter::new((TokenBucket::new(Quota::per_hour(9)), Concurrency::per_key(1)));
    let first = both.try_acquire_permit("a").unwrap();
    both.refund("a", 1);
    assert!(both.try_acquire_permit("a").is_err(), "the call was free, but it is not over");
    drop(first);
    let _second = both.try_acquire_permit("a").unwrap();
    assert!(both.try_acquire_permit("a").is_err());
}

#[test]
fn a_reset_keeps_calls_in_progress_and_nothing_else() {
    /// `most` is the number of calls that a new key admits.
    fn keeps<A: Algorithm>(algorithm: A, most: u64) {
        let limiter = limiter(algorithm, &ManualClock::new());
        let left = || limiter.peek("a").remaining();
        for replaced in [false, true] {
            if replaced {
                limiter.replace(limiter.algorithm());
            }
            let held = [(); 2].map(|()| limiter.try_acquire_permit("a").unwrap());
            drop(limiter.try_acquire_permit("a").unwrap());
            limiter.reset("a");
            assert_eq!(left(), 3, "two of five are in progress");
            let third = limiter.try_acquire_permit("a").unwrap();
            assert_eq!(left(), 2);
            drop((held, third));
            limiter.reset("a");
            assert_eq!(left(), most);
        }
    }
    // With a limit of three, a rate that was charged for the calls in progress would show. With a limit of nine, a
    // reset that loses them would.
    for (limit, most) in [(3, 3), (9, 5)] {
        let quota = Quota::per_hour(limit);
        let both = (TokenBucket::new(quota), Concurrency::per_key(5));
        keeps(both.clone(), most);
        keeps((FixedWindow::new(quota), both.clone()), most);
        keeps((Concurrency::per_key(7).total(9), both.clone()), most);
        keeps(both.clone().block_for(MS).after(5), most);
        keeps((both.clone().block_for(MS).after(5), FixedWindow::new(quota)), most);
        keeps(Tiered::new(both.clone()), most);
        keeps((Tiered::new(both.clone()), SlidingLog::new(quota)), most);
    }
    keeps(Concurrency::per_key(5), 5);

    let small = (TokenBucket::new(Quota::per_hour(4)), Concurrency::per_key(5));
    let large = (TokenBucket::new(Quota::per_hour(30)), Concurrency::per_key(6));
    let limiter = limiter(Tiered::new(small.clone()), &ManualClock::new());
    let mut held = vec![limiter.try_acquire_permit("a").unwrap()];
    held.push(limiter.call("a").tier(&large).permit().unwrap());
    limiter.reset("a");
    let left = || [&small, &large].map(|tier| limiter.call("a").tier(tier).peek().remaining());
    assert_eq!(left(), [3, 4]);
    held.pop();
    assert_eq!(left(), [4, 5]);
    held.pop();
    assert_eq!(left(), [4, 6]);
}

#[test]
fn the_units_of_a_cost_are_held_until_the_permit_is_dropped() {
    let limiter = RateLimiter::new(Concurrency::per_key(3).total(4));
    let permit = |key: &'static str, cost| limiter.call(key).cost(cost).permit();
    let [two, one] = [2, 1].map(|cost| permit("a", cost).unwrap());
    assert!(permit("a", 1).is_err() && permit("b", 2).is_err());
    assert!(permit("b", 0).unwrap().is_empty());
    drop(two);
    assert_eq!(limiter.peek("a").remaining(), 2);
    drop(one);
    assert_eq!((limiter.peek("a").remaining(), limiter.peek("b").remaining()), (3, 3));
    let all: Vec<_> = (0..9).filter_map(|key| limiter.try_acquire_permit(&key).ok()).collect();
    assert_eq!(all.len(), 4);
}

#[test]
fn a_call_leaves_the_total_that_it_entered_though_it_was_replaced() {
    let limiter = RateLimiter::new(Concurrency::per_key(5));
    let old = limiter.try_acquire_permit("a").unwrap();
    limiter.replace(Concurrency::per_key(5).total(1));
    let _new = limiter.try_acquire_permit("b").unwrap();
    drop(old);
    assert!(limiter.try_acquire_permit("c").is_err(), "one is in progress that counts");

    let first = Concurrency::per_key(5).total(1);
    let limiter = RateLimiter::new(first.clone());
    let old = limiter.try_acquire_permit("a").unwrap();
    limiter.replace(Concurrency::per_key(5));
    drop(old);
    limiter.replace(first);
    assert!(limiter.try_acquire_permit("a").is_ok(), "no call is in progress");
}

#[test]
fn displacing_the_oldest_makes_room_in_the_total_as_well() {
    let rule = Concurrency::per_key(1).total(2).queue(1).overflow(QueueOverflow::DropOldest);
    let limiter = limiter(rule, &ManualClock::new());
    let held = limiter.try_acquire_permit("a").unwrap();
    let [mut oldest, mut newest] = [(); 2].map(|()| PolledByHand::new(limiter.acquire_permit("a")));
    assert!(!oldest.poll() && !newest.poll());
    assert!(oldest.run() && oldest.output.unwrap().is_err());
    drop(held);
    assert!(newest.run() && newest.output.unwrap().is_ok());
}

#[test]
fn no_call_overtakes_a_queued_one() {
    let limiter = limiter(Concurrency::per_key(2).queue(5), &ManualClock::new());
    let [first, second] = [(); 2].map(|()| limiter.try_acquire_permit("a").unwrap());
    let mut line = [(); 3].map(|()| PolledByHand::new(limiter.acquire_permit("a")));
    line.iter_mut().for_each(|call| assert!(!call.poll()));
    assert!(limiter.try_acquire_permit("a").is_err() && limiter.try_acquire_permit("b").is_ok());
    drop(second);
    // The permit is reserved for the first waiter, although this waiter has not been polled yet.
    assert!(limiter.try_acquire_permit("a").is_err());
    assert!(!line[1].run() && line[0].run());
    line[1].abandon();
    drop(first);
    assert!(line[2].run());
    // The second waiter was cancelled, so the third waiter gets the permit of the first call.
    assert!(limiter.try_acquire_permit("a").is_err());
    drop(line);
    assert!(limiter.try_acquire_permit("a").is_ok());
}

#[test]
fn a_wait_that_is_too_long_ends_with_a_denial_without_retry_after() {
    let clock = ManualClock::new();
    let limiter = limiter(Concurrency::per_key(1).queue(5).max_wait(MS * 100), &clock);
    let held = limiter.try_acquire_permit("a").unwrap();
    let mut first = PolledByHand::new(limiter.acquire_permit("a"));
    assert!(!first.poll());
    clock.advance(MS * 60);
    let mut second = PolledByHand::new(limiter.acquire_permit("a"));
    assert!(!second.poll());
    clock.advance(MS * 40 - Duration::from_nanos(1));
    assert!(!first.run() && !second.run());
    clock.advance(Duration::from_nanos(1));
    assert!(first.run() && !second.run());
    let denied = first.output.unwrap().unwrap_err();
    let denial = denied.decision();
    assert_eq!((denial.is_allowed(), denial.is_closed(), denial.retry_after()), (false, false, None));
    assert_eq!(denial.delay(), MS * 100);
    drop(held);
    assert!(second.run() && second.output.unwrap().is_ok());
}

/// The units of calls in progress are released, whether the limit is inside of a lockout or around one.
#[test]
fn a_lockout_around_a_tuple_of_them_gives_permits_back() {
    let clock = ManualClock::new();
    let rule = (TokenBucket::new(Quota::per_second(1).burst(100)), Concurrency::per_key(1).total(1));
    let limiter = limiter(rule.block_for(Duration::from_secs(5)).after(2), &clock);
    let held = limiter.try_acquire_permit("a").unwrap();
    assert!(limiter.try_acquire_permit("a").is_err());
    let denied = limiter.try_acquire_permit("a").unwrap_err();
    assert_eq!(denied.decision().retry_after(), None, "the end of the first call is unknown");
    drop(held);
    assert_eq!(
        limiter.try_acquire_permit("a").unwrap_err().decision().retry_after(),
        Some(Duration::from_secs(5))
    );
    clock.advance(Duration::from_secs(5));
    let held = limiter.try_acquire_permit("a").unwrap();
    assert!(limiter.try_acquire_permit("b").is_err());
    drop(held);
    assert!(limiter.try_acquire_permit("b").is_ok());
}

/// Two joined layers have the same limiter and the same key. One call counts twice, and both units are released at its
/// end.
#[test]
fn a_call_that_counts_twice_in_one_limiter_is_released_twice() {
    let limiter = RateLimiter::new(Concurrency::per_key(4).total(5));
    let both = RateLimitLayer::with_limiter(Global, limiter.clone())
        .and(RateLimitLayer::with_limiter(Global, limiter.clone()))
        .layer(service_fn(answers));
    let call = || {
        let call = both.clone().call(Request::new((0, 1)));
        let mut call = PolledByHand::new(Box::pin(async move { kept(call.await) }));
        assert!(call.poll());
        call.output.unwrap()
    };
    let (first, second) = (call().unwrap(), call().unwrap());
    assert!(call().is_err() && limiter.peek(&()).remaining() == 0);
    drop(first);
    assert_eq!(limiter.peek(&()).remaining(), 2);
    drop(second);
    assert_eq!((limiter.peek(&()).remaining(), limiter.peek(&1).remaining()), (4, 4));
}

/// A waiter takes a place in the total of all keys, and the length of its wait is unknown.
#[test]
fn waiters_for_a_permit_count_in_the_total() {
    let limiter = limiter(Concurrency::per_key(1).total(2).queue(5), &ManualClock::new());
    let held = limiter.try_acquire_permit("a").unwrap();
    let mut queued = waits(limiter.acquire_permit("a"));
    let denied = limiter.try_acquire_permit("b").unwrap_err();
    assert!(!denied.decision().never_fits());
    assert_eq!(denied.decision().retry_after(), None);
    drop(held);
    assert!(queued.run());
    drop(queued.output.take().unwrap().unwrap());
    assert!(limiter.try_acquire_permit("b").is_ok());
}
