//! The models of the exactness suite, checked by hand against the definitions of their algorithms.

use crate::oracle::config::{Rule, SECOND};
use crate::oracle::model::{Bucket, Counter, Fixed, Leaky, Oracle, Sliding, Smooth, Verdict};

fn rule(limit: u64, period: u64) -> Rule {
    let (slices, aligned, warm_up, cold_factor) = (4, false, None, 3 << 10);
    Rule { limit, period, burst: limit, slices, aligned, warm_up, cold_factor }
}

/// Returns the remaining units, and the time until the key is fresh.
fn reported(model: &impl Oracle) -> (u64, u128) {
    let (remaining, reset) = (model.remaining(), model.reset());
    assert_eq!(remaining.start(), remaining.end());
    assert_eq!(reset.start(), reset.end());
    (*remaining.start(), *reset.start())
}

/// Returns the first of the next thousand readings at which a call of cost `cost` would be admitted.
fn passes_at(model: &impl Oracle, cost: u64) -> Option<u64> {
    let now = model.clock().latest;
    (now..now + 1_000).find(|at| {
        let mut model = model.clone();
        model.observe(*at);
        model.verdict(cost) == Verdict::Admit
    })
}

fn admit(model: &mut impl Oracle, at: u64, cost: u64) {
    model.observe(at);
    assert_eq!(model.verdict(cost), Verdict::Admit, "{model:?}");
    model.admit(cost);
}

fn replaced<O: Oracle>(model: &O, at: u64, rule: &Rule) -> O {
    let mut model = model.clone();
    model.observe(at);
    model.replace(rule);
    model
}

#[test]
fn a_clock_that_steps_back_stops_time_for_a_period_and_no_longer() {
    let mut window = Fixed::new(&rule(1, 50), 1_000);
    admit(&mut window, 1_000, 1);
    // At the latest reading, behind it, and until the clock is more than a period behind.
    for (at, behind, rest) in [(1_010, 0, 40), (1_000, 10, 50), (970, 40, 80), (960, 50, 90), (959, 0, 40)] {
        let mut window = window.clone();
        window.observe(1_010);
        window.observe(at);
        assert_eq!((window.behind(), reported(&window).1), (behind, rest), "at {at}");
    }
}

#[test]
fn a_bucket_keeps_what_is_missing_as_tokens_up_to_the_new_burst() {
    let mut bucket = Bucket::full(&rule(1, 3), 0);
    bucket = replaced(&bucket, 0, &Rule { burst: 5, ..rule(1, 3) });
    admit(&mut bucket, 0, 2);
    bucket.observe(1);
    // 1 2/3 tokens are missing. In the new bucket, a grain is half a token, so this is rounded up to 2 tokens.
    assert_eq!(reported(&bucket), (3, 5));
    assert_eq!(reported(&replaced(&bucket, 1, &Rule { burst: 5, ..rule(1, 2) })), (3, 4));
    assert_eq!(reported(&replaced(&bucket, 1, &Rule { burst: 9, ..rule(1, 3) })), (7, 5));
    assert_eq!(reported(&replaced(&bucket, 1, &Rule { burst: 1, ..rule(1, 3) })), (0, 3));
    // 2 per 6 ns is the same rate as 1 per 3 ns.
    assert_eq!(reported(&replaced(&bucket, 1, &Rule { burst: 5, ..rule(2, 6) })), (3, 5));
}

#[test]
fn a_bucket_takes_back_the_newest_and_no_more_than_is_missing() {
    let mut bucket = Bucket::full(&rule(4, 40), 0);
    admit(&mut bucket, 0, 3);
    bucket.observe(5);
    bucket.refund(1);
    assert_eq!(reported(&bucket), (2, 15));
    bucket.refund(u64::MAX);
    assert_eq!(reported(&bucket), (4, 0));
    let empty = Bucket::full(&rule(4, 40), 0).empty_until(15);
    assert_eq!(reported(&empty), (1, 25));
}

#[test]
fn a_window_keeps_its_beginning_and_its_count_up_to_the_new_limit() {
    let mut window = Fixed::new(&rule(4, 100), 1_000);
    admit(&mut window, 1_010, 3);
    assert_eq!(reported(&replaced(&window, 1_060, &rule(2, 100))), (0, 50));
    assert_eq!(reported(&replaced(&window, 1_060, &rule(9, 150))), (6, 100));
    assert_eq!(reported(&replaced(&window, 1_060, &rule(4, 51))), (1, 1));
    assert_eq!(reported(&replaced(&window, 1_060, &rule(4, 50))), (4, 0));
    let aligned = Rule { aligned: true, ..rule(4, 100) };
    assert_eq!(reported(&replaced(&window, 1_060, &aligned)), (1, 40));
    // The window would have ended at 1,110. The window of the grid ends at 1,200.
    let mut window = replaced(&window, 1_105, &aligned);
    assert_eq!(reported(&window), (1, 95));
    // When the algorithm is replaced back, the window has begun at 1,100.
    assert_eq!(reported(&replaced(&window, 1_120, &rule(4, 200))), (1, 180));
    window.refund(2);
    assert_eq!(reported(&window), (3, 95));
}

#[test]
fn slices_are_laid_backwards_from_now() {
    let mut window = Sliding::sliced(&rule(10, 100), 0);
    // The slices of 25 ns end at 0, 25 and 50 ns.
    admit(&mut window, 0, 2);
    admit(&mut window, 10, 3);
    admit(&mut window, 30, 1);
    assert_eq!(
        [5, 6, 7, 8, 9, 10].map(|cost| passes_at(&window, cost)),
        [Some(100), Some(100), Some(125), Some(125), Some(125), Some(150)]
    );
    // With a lower limit and the same slices, the oldest units are dropped.
    let lower = replaced(&window, 40, &rule(5, 100));
    assert_eq!([1, 2, 4].map(|cost| passes_at(&lower, cost)), [Some(100), Some(125), Some(125)]);
    assert_eq!(passes_at(&lower, 5), Some(150));
    // The slices of 20 ns end at 0, 20 and 40 ns. The units with ages of 40, 15 and 0 ns are in the slices that end at
    // 0, 40 and 40 ns.
    let other = replaced(&window, 40, &Rule { slices: 3, ..rule(10, 60) });
    assert_eq!(reported(&other).0, 4);
    assert_eq!([6, 7, 10].map(|cost| passes_at(&other, cost)), [Some(60), Some(100), Some(100)]);
    // Units that are as old as the new period no longer count.
    let short = replaced(&window, 40, &Rule { slices: 1, ..rule(10, 40) });
    assert_eq!((reported(&short).0, passes_at(&short, 10)), (6, Some(80)));
}

#[test]
fn a_log_keeps_instants() {
    let mut log = Sliding::exact(&rule(5, 100), 0);
    admit(&mut log, 0, 1);
    admit(&mut log, 30, 2);
    admit(&mut log, 31, 1);
    let short = replaced(&log, 45, &rule(5, 20));
    assert_eq!((reported(&short).0, passes_at(&short, 4), passes_at(&short, 5)), (2, Some(50), Some(51)));
    let low = replaced(&log, 45, &rule(2, 100));
    assert_eq!((reported(&low).0, passes_at(&low, 1), passes_at(&low, 2)), (0, Some(130), Some(131)));
    log.refund(2);
    assert_eq!((reported(&log).0, passes_at(&log, 4), passes_at(&log, 5)), (3, Some(130), Some(131)));
}

#[test]
fn a_counter_keeps_the_part_of_its_window_and_cuts_until_it_fits() {
    let mut counter = Counter::new(&rule(10, 100), 0);
    admit(&mut counter, 0, 8);
    admit(&mut counter, 150, 3);
    // The 8 units of the previous window count as 4. With the 3 units of the current window, 3 of 10 are left.
    assert_eq!(reported(&counter), (3, 150));
    // The current window has 3 units, so the previous window may count as 2. At a weight of one half, these are 4
    // units.
    assert_eq!(reported(&replaced(&counter, 150, &rule(5, 50))), (0, 75));
    assert_eq!(reported(&replaced(&counter, 150, &rule(2, 100))), (0, 150));
    assert_eq!(reported(&replaced(&counter, 150, &rule(20, 200))), (13, 300));
    // 50 ns of 100 ns become 3 ns of 7 ns, and 8 * 4/7 is between 4 and 5.
    assert_eq!(reported(&replaced(&counter, 150, &rule(10, 7))), (2, 11));
    counter.refund(4);
    assert_eq!(reported(&counter), (6, 50));
}

#[test]
fn a_slot_stays_as_many_intervals_away() {
    let mut leaky = Leaky::new(&rule(1, 3), 0);
    admit(&mut leaky, 0, 2);
    leaky.observe(1);
    // 1 2/3 intervals remain until the next slot. With the new rate, a grain is half an interval, so this is rounded up
    // to 2 intervals.
    assert_eq!(reported(&leaky), (0, 5));
    assert_eq!(reported(&replaced(&leaky, 1, &rule(1, 2))), (0, 4));
    assert_eq!(reported(&replaced(&leaky, 1, &rule(10, 3_000))), (0, 500));
    leaky.refund(1);
    assert_eq!(reported(&leaky), (0, 2));
    leaky.refund(1);
    assert_eq!(reported(&leaky), (1, 0));
}

/// The waits that Guava's own tests expect, before they are rounded.
#[test]
fn a_smooth_limiter_waits_as_guavas_does() {
    let warming = Rule { warm_up: Some(4 * SECOND), ..rule(2, SECOND) };
    let mut smooth = Smooth::new(&warming, 0, 0);
    let mut now = 0;
    for millis in [1_375, 1_125, 875, 625, 500, 500] {
        admit(&mut smooth, now, 1);
        now += millis * 1_000_000;
        smooth.observe(now - 1);
        assert_eq!(smooth.verdict(1), Verdict::Deny, "{millis} ms");
        // An algorithm that rounds may be a nanosecond late.
        smooth.observe(now + 1);
        assert_eq!(smooth.verdict(1), Verdict::Admit, "{millis} ms");
        now += 1;
    }
}

#[test]
fn a_smooth_limiter_waits_as_many_intervals_and_keeps_its_part_of_the_store() {
    let mut bursty = Smooth::new(&rule(1, 4), 0, 0);
    admit(&mut bursty, 0, 3);
    bursty.observe(2);
    let slower = replaced(&bursty, 2, &rule(1, 8));
    assert_eq!(passes_at(&slower, 1), Some(2 + 20 + 1), "a hair late");
    bursty.refund(2);
    assert_eq!(passes_at(&bursty, 1), Some(4 + 1), "a hair late");

    // The store has 8 ns and is full. The cold half of 4 ns costs 8 ns, and the other half costs 4 ns.
    let warming = |warm_up| Rule { warm_up: Some(warm_up), ..rule(1, 4) };
    let mut cold = Smooth::new(&warming(8), 0, 0);
    let mut colder = replaced(&cold, 0, &warming(16));
    admit(&mut cold, 0, 1);
    assert_eq!(passes_at(&cold, 1), Some(8 + 1), "a hair late");
    // The call takes half of the part above the bend, in which the interval falls from three times to twice the normal
    // one.
    admit(&mut colder, 0, 1);
    assert_eq!(passes_at(&colder, 1), Some(10 + 1), "a hair late");
    // If the kind of `Smooth` changes, the store is that of a new limiter.
    let mut fresh = replaced(&bursty, 100, &warming(8));
    admit(&mut fresh, 100, 1);
    assert_eq!(passes_at(&fresh, 1), Some(108 + 1), "a hair late");
    let empty = replaced(&cold, 100, &rule(1, 4));
    assert_eq!(*empty.remaining().end(), 1);
}
