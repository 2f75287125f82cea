//! Each algorithm against a naive and exact oracle, over random sequences of calls, costs and times.
//!
//! Every sequence comes from a number, which a failure prints with the whole sequence.

mod oracle {
    pub(crate) mod checker;
    pub(crate) mod model;
    pub(crate) mod random;
    pub(crate) mod setup;
    pub(crate) mod twins;
}

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

use oracle::checker::{STEPS, run};
use oracle::model::{Bucket, Counter, Fixed, Leaky, Oracle, Sliding};
use oracle::random::Random;
use oracle::setup::{Setup, Told};
use oracle::twins::Twin;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::{Quota, RateLimiter};

const SEQUENCES: u64 = 10_000;

/// Runs `sequences` of them; the first that breaks a promise, and how.
fn first_broken<A: Algorithm, O: Oracle + Debug>(
    sequences: u64,
    setup: impl Fn(u64, &mut Random) -> Setup,
    build: impl Fn(&Setup) -> (A, O),
) -> Option<(u64, String)> {
    (0..sequences).find_map(|seed| {
        let mut random = Random::new(seed);
        let setup = setup(seed, &mut random);
        let (algorithm, oracle) = build(&setup);
        run(&setup, &algorithm, oracle, random).err().map(|broken| (seed, broken))
    })
}

fn holds<A: Algorithm, O: Oracle + Debug>(
    setup: impl Fn(u64, &mut Random) -> Setup,
    build: impl Fn(&Setup) -> (A, O),
) {
    if let Some((seed, broken)) = first_broken(SEQUENCES, setup, build) {
        panic!("sequence {seed}: {broken}");
    }
}

fn bucket(setup: &Setup) -> Bucket {
    Bucket::full(setup.limit, setup.period, setup.burst, setup.start)
}

fn fixed(setup: &Setup, aligned: bool) -> Fixed {
    Fixed::new(setup.limit, setup.period, aligned, setup.start)
}

#[test]
fn a_token_bucket_does_what_the_exact_rule_says() {
    holds(Setup::any, |setup| (TokenBucket::new(setup.quota()), bucket(setup)));
}

#[test]
fn a_token_bucket_that_starts_empty_does_what_the_exact_rule_says() {
    holds(Setup::any, |setup| {
        let idle = setup.start - setup.built;
        (TokenBucket::new(setup.quota()).start_empty(), bucket(setup).empty_until(idle))
    });
}

#[test]
fn a_fixed_window_does_what_the_exact_rule_says() {
    holds(Setup::any, |setup| (FixedWindow::new(setup.quota()), fixed(setup, false)));
}

#[test]
fn an_aligned_fixed_window_does_what_the_exact_rule_says() {
    holds(Setup::any, |setup| (FixedWindow::new(setup.quota()).aligned(), fixed(setup, true)));
}

fn sliding_window_holds(slices: impl Fn(&Setup) -> u64) {
    holds(Setup::any, |setup| {
        let slices = slices(setup);
        let window = SlidingWindow::new(setup.quota()).slices(slices as usize);
        (window, Sliding::new(setup.limit, setup.period, slices, setup.start))
    });
}

#[test]
fn a_sliding_window_of_one_slice_is_strict_and_gives_back_within_a_slice() {
    sliding_window_holds(|_| 1);
}

#[test]
fn a_sliding_window_of_three_slices_is_strict_and_gives_back_within_a_slice() {
    sliding_window_holds(|_| 3);
}

#[test]
fn a_sliding_window_of_seven_slices_is_strict_and_gives_back_within_a_slice() {
    sliding_window_holds(|_| 7);
}

#[test]
fn a_sliding_window_of_ten_slices_is_strict_and_gives_back_within_a_slice() {
    sliding_window_holds(|_| 10);
}

#[test]
fn a_sliding_window_of_any_slices_is_strict_and_gives_back_within_a_slice() {
    sliding_window_holds(|setup| 1 + setup.seed % 40);
}

#[test]
fn a_sliding_log_is_the_exact_window() {
    holds(Setup::any, |setup| {
        (SlidingLog::new(setup.quota()), Sliding::exact(setup.limit, setup.period, setup.start))
    });
}

#[test]
fn a_sliding_counter_does_what_its_weights_say() {
    holds(Setup::any, |setup| {
        (SlidingCounter::new(setup.quota()), Counter::new(setup.limit, setup.period, setup.start))
    });
}

/// The price of the weights, and the bound on it: hits at the end of one window count for less at the end of the next.
#[test]
fn around_an_edge_a_sliding_counter_lets_just_under_twice_the_limit_pass() {
    let (second, limit) = (1_000_000_000, 1_000);
    let counter = SlidingCounter::new(Quota::per_second(limit));
    let mut state = counter.fresh(Nanos::ZERO, Nanos::ZERO);
    // One call opens the window; the rest comes at its last instant.
    assert!(counter.check(&mut state, Nanos::ZERO, 1).is_allowed());
    assert!(counter.check(&mut state, Nanos(second - 1), limit - 1).is_allowed());
    let mut passed = limit - 1;
    while counter.check(&mut state, Nanos(2 * second - 2), 1).is_allowed() {
        passed += 1;
    }
    assert_eq!(passed, 2 * limit - 2, "within one period");
}

#[test]
fn a_leaky_bucket_that_is_checked_keeps_the_exact_distance() {
    holds(Setup::mid_life, |setup| {
        (LeakyBucket::new(setup.quota()), Leaky::new(setup.limit, setup.period, setup.start))
    });
}

#[test]
fn a_leaky_bucket_keeps_its_distance_at_the_end_of_time() {
    holds(
        |seed, random| {
            let mut setup = Setup::any(seed, random);
            setup.start = u64::MAX - setup.start % setup.period.saturating_mul(2);
            setup.steps_back = false;
            setup
        },
        |setup| (LeakyBucket::new(setup.quota()), Leaky::new(setup.limit, setup.period, setup.start)),
    );
}

fn monotonic(seed: u64, random: &mut Random) -> Setup {
    Setup { steps_back: false, ..Setup::any(seed, random) }
}

fn is_caught<A: Algorithm, O: Oracle + Debug>(
    setup: impl Fn(u64, &mut Random) -> Setup,
    build: impl Fn(&Setup) -> (A, O),
    how: &[&str],
) {
    let (_, broken) = first_broken(1_000, setup, build).expect("the broken twin was not seen");
    assert!(how.iter().any(|how| broken.starts_with(how)), "not for what is broken in it: {broken}");
}

#[test]
fn a_twin_whose_interval_is_rounded_down_is_caught() {
    is_caught(
        monotonic,
        |setup| (Twin::rounded_down(setup.quota()), bucket(setup)),
        &[
            "admitted early",
            "the rule refuses it at retry_after",
            "remaining should be",
            "reset_after should be",
        ],
    );
}

#[test]
fn a_twin_whose_interval_is_rounded_up_is_caught() {
    is_caught(
        monotonic,
        |setup| (Twin::rounded_up(setup.quota()), bucket(setup)),
        &[
            "refused what the rule admits",
            "the rule admits it",
            "remaining should be",
            "reset_after should be",
        ],
    );
}

#[test]
fn a_twin_whose_window_ends_late_is_caught() {
    let ends_late = |setup: &Setup| (Twin::late_edge(setup.quota()), fixed(setup, false));
    is_caught(
        monotonic,
        ends_late,
        &["refused what the rule admits", "the rule admits it", "reset_after should be"],
    );
}

#[test]
fn a_twin_whose_window_ends_early_is_caught() {
    let ends_early = |setup: &Setup| (Twin::early_edge(setup.quota()), fixed(setup, false));
    is_caught(monotonic, ends_early, &["admitted early", "the rule refuses it", "reset_after should be"]);
}

#[test]
fn a_twin_whose_denials_spend_is_caught() {
    let spends = |setup: &Setup| (Twin::denial_spends(setup.quota()), bucket(setup));
    is_caught(monotonic, spends, &["a caller that never hammered", "denied", "remaining should be", "only"]);
}

#[test]
fn a_twin_that_is_paid_twice_when_the_clock_steps_back_is_caught() {
    let paid = |setup: &Setup| (Twin::paid_twice(setup.quota()), bucket(setup));
    is_caught(
        |seed, random| Setup { steps_back: true, ..Setup::any(seed, random) },
        paid,
        &[
            "admitted early",
            "remaining should be",
            "retry_after",
            "denied",
            "reset_after should be",
            "not fresh",
        ],
    );
}

/// The limiter may forget keys, and is asked about several at once; no answer may differ from a state that is never forgotten.
fn the_limiter_answers_as_the_rule<A: Algorithm>(build: impl Fn(&Setup) -> A) {
    for seed in 0..SEQUENCES / 10 {
        let mut random = Random::new(seed);
        let setup = Setup { steps_back: false, ..Setup::mid_life(seed, &mut random) };
        let algorithm = build(&setup);
        let clock = ManualClock::new();
        clock.set(Duration::from_nanos(setup.built));
        let limiter = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).build();
        let mut states = HashMap::new();
        let (mut now, mut told) = (setup.start, Told::default());
        for step in 0..STEPS {
            now = setup.next_time(&mut random, now, told);
            clock.set(Duration::from_nanos(now));
            // A stranger each time, so that keys are looked at and forgotten.
            let _ = limiter.check(&(1_000 + step));
            let (key, cost) = (random.below(3), setup.next_cost(&mut random, setup.burst, told));
            let fresh = || algorithm.fresh(Nanos(setup.built), Nanos(now));
            let state = states.entry(key).or_insert_with(fresh);
            let peek = algorithm.peek(state, Nanos(now), 1);
            assert_eq!(limiter.peek(&key), peek, "step {step} of {setup:?}, peek at {now}");
            let decision = algorithm.check(state, Nanos(now), cost);
            assert_eq!(
                limiter.check_n(&key, cost),
                decision,
                "step {step} of {setup:?}, cost {cost} at {now}"
            );
            told = Told {
                retry: decision.retry_after().map_or(0, |wait| wait.as_nanos() as u64),
                reset: decision.reset_after().as_nanos() as u64,
                remaining: decision.remaining(),
            };
        }
    }
}

#[test]
fn the_limiter_answers_as_the_rule_for_every_algorithm() {
    the_limiter_answers_as_the_rule(|setup| TokenBucket::new(setup.quota()));
    the_limiter_answers_as_the_rule(|setup| TokenBucket::new(setup.quota()).start_empty());
    the_limiter_answers_as_the_rule(|setup| FixedWindow::new(setup.quota()));
    the_limiter_answers_as_the_rule(|setup| FixedWindow::new(setup.quota()).aligned());
    the_limiter_answers_as_the_rule(|setup| SlidingWindow::new(setup.quota()).slices(7));
    the_limiter_answers_as_the_rule(|setup| SlidingLog::new(setup.quota()));
    the_limiter_answers_as_the_rule(|setup| SlidingCounter::new(setup.quota()));
    the_limiter_answers_as_the_rule(|setup| LeakyBucket::new(setup.quota()));
}

/// Asks every millisecond of a day, and compares each time.
fn a_day_of(quota: Quota, per_period: u64, period_millis: u64) {
    let bucket = TokenBucket::new(quota);
    let mut state = bucket.fresh(Nanos::ZERO, Nanos::ZERO);
    let mut admitted = 0;
    for milli in 0..=86_400_000_u64 {
        while bucket.check(&mut state, Nanos(milli * 1_000_000), 1).is_allowed() {
            admitted += 1;
        }
        let due = quota.capacity() + per_period * milli / period_millis;
        assert!(admitted == due, "{admitted} admitted after {milli} ms, {due} due");
    }
    assert_eq!(admitted, quota.capacity() + per_period * (86_400_000 / period_millis));
}

#[test]
fn seven_a_minute_do_not_drift_over_a_day() {
    a_day_of(Quota::per_minute(7), 7, 60_000);
}

#[test]
fn three_a_second_do_not_drift_over_a_day() {
    a_day_of(Quota::per_second(3), 3, 1_000);
}
