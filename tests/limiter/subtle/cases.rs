//! Single cases that once failed.

use super::*;

#[test]
fn a_denied_call_of_another_tier_releases_only_one_waiter_per_slot() {
    let fast = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let slow = LeakyBucket::new(Quota::per_second(1)).queue(0);
    let (clock, limiter) = on(Tiered::new(fast.clone()));
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    clock.advance(ms(100));
    assert!(!now(limiter.call("k").tier(&slow).acquire()).is_allowed());
    let left = line.iter_mut().filter_map(poll).count();
    assert_eq!(left, 1, "one slot has passed");
}

#[test]
fn a_denied_check_of_another_tier_delays_no_waiter() {
    let fast = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let slow = LeakyBucket::new(Quota::per_second(1)).queue(0);
    let (clock, limiter) = on(Tiered::new(fast.clone()));
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    assert!(!limiter.call("k").tier(&slow).check().is_allowed());
    clock.advance(ms(100));
    let left = line.iter_mut().filter_map(poll).count();
    assert_eq!(left, 1, "one slot has passed");
}

#[test]
fn retry_after_is_exact_if_a_call_needs_the_window_after_the_borrowed_one() {
    let (clock, limiter) = on(FixedWindow::new(Quota::per_second(4)).priority(50));
    assert!(limiter.check_n("k", 4).is_allowed());
    let mut held = waits(limiter.call("k").cost(2).priority().acquire());
    let denied = limiter.check_n("k", 3);
    let peeked = limiter.peek_n("k", 3);
    println!("{denied:?} {peeked:?}");
    clock.advance(secs(1));
    assert!(poll(&mut held).is_some());
    clock.advance(ms(999));
    assert!(!limiter.check_n("k", 3).is_allowed());
    clock.advance(ms(1));
    assert!(limiter.peek_n("k", 3).is_allowed());
    assert_eq!(denied.retry_after(), Some(secs(2)));
}

#[test]
fn an_ordinary_call_waits_for_the_window_after_one_that_is_borrowed_as_a_whole() {
    let (_clock, limiter) = on(FixedWindow::new(Quota::per_second(1)).priority(100));
    assert!(limiter.check("k").is_allowed());
    let _held = waits(limiter.call("k").priority().acquire());
    assert_eq!(limiter.check("k").retry_after(), Some(secs(2)));
    assert_eq!(now(limiter.acquire("k")).retry_after(), Some(secs(2)));
}

#[test]
fn a_waiter_that_costs_more_than_the_new_limit_does_not_block_the_key() {
    let (clock, limiter) = on(FixedWindow::new(Quota::per_second(10)).priority(50));
    assert!(limiter.check_n("k", 10).is_allowed());
    let mut held = waits(limiter.call("k").cost(5).priority().acquire());
    limiter.replace(FixedWindow::new(Quota::per_second(4)).priority(50));
    clock.advance(secs(100));
    println!("{:?}", poll(&mut held));
    println!("{:?}", limiter.check("k"));
    clock.advance(secs(100));
    println!("{:?}", limiter.check("k"));
    assert!(limiter.check("k").is_allowed(), "the key is locked");
}

#[test]
fn a_cancelled_call_does_not_end_a_lockout() {
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(1).block_for(secs(5)).after(1);
    let (clock, limiter) = on(rule);
    assert!(now(limiter.acquire("k")).is_allowed());
    let held = waits(limiter.acquire("k"));
    clock.advance(ms(100));
    let refused = limiter.check("k");
    assert_eq!(refused.retry_after(), Some(secs(5)));
    drop(held);
    assert_eq!(limiter.peek("k").retry_after(), Some(secs(5)));
}

#[test]
fn a_call_released_during_a_lockout_reports_no_remaining_units() {
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(3).block_for(secs(5)).after(1);
    let (clock, limiter) = on(rule);
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    assert_eq!(now(limiter.acquire("k")).retry_after(), Some(secs(5)));
    clock.advance(ms(100));
    let first = poll(&mut line[0]).unwrap();
    assert!(!now(limiter.acquire("k")).is_allowed());
    assert_eq!((first.remaining(), first.reset_after()), (0, ms(4_900)));
}

#[test]
fn a_peek_that_would_begin_a_lockout_reports_the_present_state() {
    let (_clock, limiter) = on(FixedWindow::new(Quota::per_second(5)).block_for(secs(5)).after(1));
    assert_eq!(limiter.check_n("k", 2).remaining(), 3);
    let peek = limiter.peek_n("k", 4);
    assert_eq!(peek.retry_after(), Some(secs(5)));
    assert_eq!((peek.remaining(), peek.reset_after()), (3, secs(1)));
}

/// Asserts that a cost of `one` tier counts in the `other`. Both admit a call each 100 ms.
fn a_cost_counts_in_another_tier<A: Algorithm + PartialEq>(one: A, other: A) {
    let (clock, limiter) = on(Tiered::new(one.clone()));
    assert!(limiter.call("k").tier(&one).check().is_allowed());
    clock.advance(ms(50));
    assert!(!limiter.call("k").tier(&other).check().is_allowed());
    clock.advance(ms(50));
    assert!(limiter.call("k").cost(5).tier(&other).check().is_allowed());
    clock.advance(ms(100));
    assert_eq!(limiter.call("k").tier(&one).check().retry_after(), Some(ms(400)), "five intervals were used");
}

#[test]
fn a_cost_in_one_leaky_tier_counts_in_the_other() {
    let tier = |places| LeakyBucket::new(Quota::per_second(10)).queue(places);
    a_cost_counts_in_another_tier(tier(0), tier(1));
}

#[test]
fn a_cost_in_one_smooth_tier_counts_in_the_other() {
    let tier = |places| Smooth::bursty(Quota::per_second(10)).queue(places);
    a_cost_counts_in_another_tier(tier(0), tier(1));
}

#[test]
fn units_of_a_tier_that_is_a_tuple_count_in_each_member() {
    let rule =
        |second, day| (TokenBucket::new(Quota::per_second(second)), FixedWindow::new(Quota::per_day(day)));
    let (free, paid) = (rule(10, 100), rule(100, 1_000));
    let (_clock, limiter) = on(Tiered::new(free.clone()));
    assert!(limiter.call("k").tier(&free).check().is_allowed());
    assert!(limiter.call("k").cost(90).tier(&paid).check().is_allowed());
    _clock.advance(secs(1));
    // 91 units were used today since the first call with `free`.
    assert_eq!(limiter.call("k").tier(&free).check().remaining(), 8);
}

#[test]
fn replacing_the_default_tier_keeps_its_used_units() {
    let small = TokenBucket::new(Quota::per_hour(10));
    let (_clock, limiter) = on(Tiered::new(TokenBucket::new(Quota::per_hour(1_000))));
    assert!(limiter.check_n("k", 900).is_allowed());
    let _ = limiter.call("k").tier(&small).check();
    limiter.replace(Tiered::new(TokenBucket::new(Quota::per_hour(1_001))));
    assert_eq!(limiter.peek("k").remaining(), 101);
}

#[test]
fn a_call_of_cost_0_in_another_tier_leaves_a_fresh_tier_fresh() {
    let minute = FixedWindow::new(Quota::per_minute(10));
    let hour = FixedWindow::new(Quota::per_hour(100));
    let other = FixedWindow::new(Quota::per_hour(101));
    let (clock, limiter) = on(Tiered::new(minute.clone()));
    assert!(limiter.call("k").cost(10).tier(&minute).check().is_allowed());
    clock.advance(secs(59));
    assert!(limiter.call("k").cost(50).tier(&hour).check().is_allowed());
    clock.advance(secs(1));
    assert!(limiter.call("k").tier(&minute).peek().is_allowed());
    let _ = limiter.call("k").cost(0).tier(&other).check();
    let peek = limiter.call("k").tier(&minute).peek();
    assert!(peek.is_allowed(), "a call of another tier that cost nothing changed it: {peek:?}");
}

#[test]
fn a_call_of_cost_0_in_another_tier_leaves_a_full_bucket_full() {
    let free = TokenBucket::new(Quota::per_second(10));
    let day = TokenBucket::new(Quota::per_day(1_000));
    let other = TokenBucket::new(Quota::per_day(1_001));
    let (clock, limiter) = on(Tiered::new(free.clone()));
    assert!(limiter.call("k").tier(&free).check().is_allowed());
    assert!(limiter.call("k").cost(500).tier(&day).check().is_allowed());
    clock.advance(secs(60));
    assert_eq!(limiter.call("k").tier(&free).peek().remaining(), 10);
    let _ = limiter.call("k").cost(0).tier(&other).check();
    assert_eq!(limiter.call("k").tier(&free).peek().remaining(), 10);
}

#[test]
fn an_undo_after_the_clock_was_set_back_takes_no_units_from_the_present_window() {
    let rule = FixedWindow::new(Quota::per_second(2));
    let hour = Nanos(3_600_000_000_000);
    let mut state = rule.new_state(hour, hour);
    assert!(rule.check(&mut state, hour, 2).is_allowed());
    assert!(!rule.check(&mut state, Nanos(0), 1).is_allowed());
    assert!(rule.check(&mut state, Nanos(1_000_000_000), 2).is_allowed());
    rule.refund(&mut state, Nanos(1_000_000_000), 2, Some(hour));
    assert!(
        !rule.check(&mut state, Nanos(1_000_000_000), 1).is_allowed(),
        "those belong to the window before"
    );
}

#[test]
fn remaining_counts_calls_with_priority_that_can_be_queued() {
    let (_clock, limiter) = on(FixedWindow::new(Quota::per_second(4)).priority(50));
    let first = now(limiter.call("k").priority().acquire());
    let mut more = 0;
    let mut line = Vec::new();
    for _ in 0..10 {
        let mut call = Box::pin(limiter.call("k").priority().acquire());
        match poll(&mut call) {
            Some(decision) => more += u64::from(decision.is_allowed()),
            None => {
                more += 1;
                line.push(call);
            }
        }
    }
    assert_eq!((first.limit(), first.remaining()), (6, more));
}

#[test]
fn nine_more_tiers_do_not_make_the_first_forget_its_units() {
    let big = FixedWindow::new(Quota::per_hour(100));
    let small: Vec<_> = (1..=9).map(|n| FixedWindow::new(Quota::per_hour(n))).collect();
    let (_clock, limiter) = on(Tiered::new(big.clone()));
    assert!(limiter.check_n("k", 100).is_allowed());
    for rule in &small {
        let _ = limiter.call("k").tier(rule).check();
    }
    println!("after nine refused calls: {:?}", limiter.call("k").tier(&big).peek());
    assert!(!limiter.call("k").tier(&big).peek().is_allowed());
}

#[test]
fn a_denied_call_of_a_smaller_tier_does_not_block_a_waiter_with_priority() {
    let big = FixedWindow::new(Quota::per_second(10)).priority(50);
    let small = FixedWindow::new(Quota::per_second(2)).priority(50);
    let (clock, limiter) = on(Tiered::new(big.clone()));
    assert!(limiter.check_n("k", 10).is_allowed());
    let mut held = waits(limiter.call("k").cost(5).priority().acquire());
    assert!(!limiter.call("k").tier(&small).check().is_allowed());
    clock.advance(secs(1));
    assert!(poll(&mut held).is_some(), "a refused call of another tier has locked the queue");
}

#[test]
fn a_lockout_in_tiers_counts_denials_while_calls_are_queued() {
    let rule =
        |rate, places| LeakyBucket::new(Quota::per_second(rate)).queue(places).block_for(secs(5)).after(2);
    let (fast, slow) = (rule(10, 1), rule(1, 0));
    let (_clock, limiter) = on(Tiered::new(fast.clone()));
    assert!(now(limiter.acquire("k")).is_allowed());
    let _held = waits(limiter.acquire("k"));
    for _ in 0..5 {
        assert!(!now(limiter.call("k").tier(&slow).acquire()).is_allowed());
    }
    let last = now(limiter.call("k").tier(&slow).acquire());
    assert_eq!(last.retry_after(), Some(secs(5)), "refused six times");
}

#[test]
fn a_call_of_cost_0_in_a_lockout_of_a_tuple_reports_the_limit_with_the_fewest_units() {
    let rule = (TokenBucket::new(Quota::per_second(9)), FixedWindow::new(Quota::per_hour(2)));
    let rule = rule.block_for(secs(5)).after(1);
    let mut state = rule.new_state(Nanos(0), Nanos(0));
    assert!(rule.check(&mut state, Nanos(0), 2).is_allowed());
    let denied = rule.check(&mut state, Nanos(0), 1);
    let nothing = rule.check(&mut state, Nanos(0), 0);
    println!("{denied:?} {nothing:?} {:?}", effective_window(&rule, &nothing));
    assert_eq!((nothing.limit_index(), nothing.limit()), (1, 2));
}

#[test]
fn a_call_of_cost_0_in_a_lockout_reports_the_rest_of_the_lockout_as_its_window() {
    let rule = TokenBucket::new(Quota::per_second(9)).block_for(secs(5)).after(1);
    let mut state = rule.new_state(Nanos(0), Nanos(0));
    assert!(!rule.check(&mut state, Nanos(0), 10).is_allowed());
    let nothing = rule.check(&mut state, Nanos(0), 0);
    assert_eq!(effective_window(&rule, &nothing), Some(secs(5)), "{nothing:?}");
}
