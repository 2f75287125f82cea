//! Each algorithm against a naive and exact model, over random sequences of calls, peeks, refunds, charges after the
//! fact, settlements and replacements. The clock advances and steps back. A limiter whose key is paused is compared
//! with the same models.
//!
//! Every sequence is made from a seed. A failure prints the seed and the whole sequence.

pub(crate) mod cases;
pub(crate) mod checker;
pub(crate) mod config;
mod invariants;
pub(crate) mod model;
pub(crate) mod mutants;
pub(crate) mod naive_window;
pub(crate) mod operation;
mod pauses;
pub(crate) mod scenario;

use std::collections::{HashMap, HashSet};
use std::mem;
use std::time::Duration;

use cases::{
    bucket, counter, fixed, fixed_window, leaky, leaky_bucket, log, paced, sliced, sliding_counter,
    sliding_log, sliding_window, smooth, token_bucket,
};
use checker::{STEPS, first_broken};
use config::Rule;
use model::Oracle;
use scenario::{Reported, Setup, next_cost};
use tower_throttle::algorithm::{Algorithm, SlidingCounter, TokenBucket};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::{Quota, RateLimiter};

use crate::support::{Random, scaled};

/// The number of sequences for each of eleven tests at full size: 220,000 in all.
const SEQUENCES: u64 = 20_000;

fn holds<A: Algorithm, O: Oracle>(
    setup: impl Fn(u64, &mut Random) -> Setup,
    build: impl Fn(&Rule) -> A,
    oracle: impl Fn(&Setup) -> O,
) {
    if let Some((seed, broken)) = first_broken(scaled(SEQUENCES), setup, build, oracle) {
        panic!("sequence {seed}: {broken}");
    }
}

#[test]
fn a_token_bucket_agrees_with_the_exact_model() {
    holds(Setup::any, token_bucket, bucket);
}

#[test]
fn a_token_bucket_that_starts_empty_agrees_with_the_exact_model() {
    holds(
        Setup::any,
        |rule| token_bucket(rule).start_empty(),
        |setup| bucket(setup).empty_until(setup.start - setup.created_at),
    );
}

#[test]
fn a_fixed_window_agrees_with_the_exact_model() {
    holds(Setup::any, fixed_window, fixed);
}

#[test]
fn a_sliding_window_is_strict_and_gives_back_within_a_slice() {
    holds(Setup::any, sliding_window, sliced);
}

#[test]
fn a_sliding_window_of_few_slices_is_strict_and_gives_back_within_a_slice() {
    let few = |seed, random: &mut Random| {
        let mut setup = Setup::any(seed, random);
        setup.rule.slices = random.within(1..=3);
        setup
    };
    holds(few, sliding_window, sliced);
}

#[test]
fn a_sliding_log_is_the_exact_window() {
    holds(Setup::any, sliding_log, log);
}

#[test]
fn a_sliding_counter_agrees_with_its_weights() {
    holds(Setup::any, sliding_counter, counter);
}

#[test]
fn a_leaky_bucket_that_is_checked_keeps_the_exact_distance() {
    holds(Setup::mid_life, leaky_bucket, leaky);
}

#[test]
fn a_bursty_limiter_is_guavas_in_real_arithmetic() {
    holds(|seed, random| Setup::smooth(seed, random, false), smooth, paced);
}

#[test]
fn a_limiter_that_warms_up_is_guavas_in_real_arithmetic() {
    holds(|seed, random| Setup::smooth(seed, random, true), smooth, paced);
}

#[test]
fn a_leaky_bucket_keeps_its_distance_at_the_end_of_time() {
    let last_days = |seed, random: &mut Random| {
        let mut setup = Setup::any(seed, random);
        setup.start = u64::MAX - setup.start % setup.rule.period.saturating_mul(2);
        setup.steps_back = false;
        setup
    };
    holds(last_days, leaky_bucket, leaky);
}

/// The worst case of a sliding counter. Units that were used at the end of one window have little weight at the end of
/// the next window.
#[test]
fn around_an_edge_a_sliding_counter_admits_just_under_twice_the_limit() {
    let (second, limit) = (1_000_000_000, 1_000);
    let counter = SlidingCounter::new(Quota::per_second(limit));
    let mut state = counter.new_state(Nanos::ZERO, Nanos::ZERO);
    // One call opens the window. The rest of the limit is used at the last instant of the window.
    assert!(counter.check(&mut state, Nanos::ZERO, 1).is_allowed());
    assert!(counter.check(&mut state, Nanos(second - 1), limit - 1).is_allowed());
    let mut passed = limit - 1;
    while counter.check(&mut state, Nanos(2 * second - 2), 1).is_allowed() {
        passed += 1;
    }
    assert_eq!(passed, 2 * limit - 2, "within one period");
}

/// Tests that the limiter decides each key in the same way as the algorithm on a state that is never evicted, although
/// the limiter removes keys and is called with several keys in turn.
fn the_limiter_decides_as_the_algorithm<A: Algorithm>(build: impl Fn(&Rule) -> A) {
    for seed in 0..scaled(1_000) {
        let mut random = Random::new(seed);
        let setup = Setup { steps_back: false, ..Setup::mid_life(seed, &mut random) };
        let (mut rule, mut algorithm) = (setup.rule.clone(), build(&setup.rule));
        let clock = ManualClock::new();
        clock.set(Duration::from_nanos(setup.created_at));
        let max_debt = setup.max_debt.unwrap_or(0);
        let limiter = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).max_debt(max_debt).build();
        let mut states: HashMap<u64, A::State> = HashMap::new();
        // The state of a key that has not been called yet. The algorithm of this state is replaced, too.
        let (mut unseen, mut taken): (Option<A::State>, _) = (None, HashSet::new());
        let (mut now, mut reported) = (setup.start, Reported::default());
        for step in 0..STEPS {
            now = setup.next_time(&mut random, &rule, now, reported);
            clock.set(Duration::from_nanos(now));
            let at = Nanos(now);
            // The call is for a new key each time, so that keys are examined and removed.
            let _ = limiter.check(&(1_000 + step));
            if setup.replaces && random.one_in(10) {
                rule = rule.another(&mut random);
                let old = mem::replace(&mut algorithm, build(&rule));
                let first = unseen.get_or_insert_with(|| old.new_state(Nanos(setup.created_at), at));
                states.values_mut().chain([first]).for_each(|state| algorithm.migrate(state, &old, at));
                limiter.replace(algorithm.clone());
            }
            let (key, cost) = (random.below(3), next_cost(&mut random, rule.burst, reported));
            let fresh = || unseen.clone().unwrap_or_else(|| algorithm.new_state(Nanos(setup.created_at), at));
            let state = states.entry(key).or_insert_with(fresh);
            let what = format!("step {step} of {setup:?}, {rule:?} at {now}");
            assert_eq!(limiter.peek(&key), algorithm.peek(state, at, 1), "{what}, peek");
            // A refund for a key without a charge does nothing.
            if setup.refunds && taken.contains(&key) && random.one_in(5) {
                algorithm.refund(state, at, cost, None);
                limiter.refund(&key, cost);
                assert_eq!(limiter.peek(&key), algorithm.peek(state, at, 1), "{what}, refund of {cost}");
            }
            if setup.max_debt.is_some() && random.one_in(5) {
                let left = algorithm.peek(state, at, 0).remaining();
                let charged = match max_debt {
                    // Without debt, only whole units that are left are charged.
                    0 => algorithm.check(state, at, cost.min(left)).is_allowed().then_some(cost.min(left)),
                    // A limiter without a bound has one nevertheless.
                    _ => Some(algorithm.charge(state, at, cost, max_debt.min(1 << 53))),
                };
                if charged > Some(0) {
                    taken.insert(key);
                }
                limiter.charge(&key, cost);
                assert_eq!(limiter.peek(&key), algorithm.peek(state, at, 1), "{what}, charge of {cost}");
            }
            let decision = algorithm.check(state, at, cost);
            assert_eq!(limiter.check_n(&key, cost), decision, "{what}, cost {cost}");
            if decision.is_allowed() && cost > 0 {
                taken.insert(key);
            }
            reported = Reported {
                retry: decision.retry_after().map_or(0, |wait| wait.as_nanos() as u64),
                reset: decision.reset_after().as_nanos() as u64,
                remaining: decision.remaining(),
            };
        }
    }
}

#[test]
fn the_limiter_decides_as_every_algorithm() {
    the_limiter_decides_as_the_algorithm(token_bucket);
    the_limiter_decides_as_the_algorithm(fixed_window);
    the_limiter_decides_as_the_algorithm(sliding_window);
    the_limiter_decides_as_the_algorithm(sliding_log);
    the_limiter_decides_as_the_algorithm(sliding_counter);
    the_limiter_decides_as_the_algorithm(leaky_bucket);
    the_limiter_decides_as_the_algorithm(|rule| token_bucket(rule).start_empty());
    the_limiter_decides_as_the_algorithm(smooth);
}

/// Makes a call at each millisecond of a day (at full size), and checks the time of each admission.
fn does_not_drift(quota: Quota, per_period: u64, period_millis: u64) {
    let bucket = TokenBucket::new(quota);
    let mut state = bucket.new_state(Nanos::ZERO, Nanos::ZERO);
    let mut admitted = 0;
    let millis = scaled(86_400_000);
    for milli in 0..=millis {
        while bucket.check(&mut state, Nanos(milli * 1_000_000), 1).is_allowed() {
            admitted += 1;
        }
        let due = quota.capacity() + per_period * milli / period_millis;
        assert!(admitted == due, "{admitted} admitted after {milli} ms, {due} due");
    }
    assert_eq!(admitted, quota.capacity() + per_period * (millis / period_millis));
}

#[test]
fn seven_a_minute_do_not_drift() {
    does_not_drift(Quota::per_minute(7), 7, 60_000);
}

#[test]
fn three_a_second_do_not_drift() {
    does_not_drift(Quota::per_second(3), 3, 1_000);
}
