//! The ends of everything: quotas from 1 per 292 years to `u64::MAX` per nanosecond, bursts and costs of `u64::MAX`, and clocks that show
//! their first reading or their last.
//!
//! Nothing may panic, wrap or pass for free. A wrap is seen by the exact models, so it is worth running this file without overflow
//! checks, too: see `.ci/run`.

#[path = "oracle/mod.rs"]
mod oracle;

use oracle::checker::first_broken;
use oracle::model::Oracle;
use oracle::pair::{
    bucket, counter, fixed, fixed_window, leaky, leaky_bucket, log, paced, sliced, sliding_counter,
    sliding_log, sliding_window, smooth, token_bucket,
};
use oracle::rule::Rule;
use oracle::setup::Setup;
use tower_throttle::algorithm::Algorithm;

fn holds<A: Algorithm, O: Oracle>(build: impl Fn(&Rule) -> A, oracle: impl Fn(&Setup) -> O) {
    if let Some((seed, broken)) = first_broken(5_000, Setup::extreme, build, oracle) {
        panic!("sequence {seed}: {broken}");
    }
}

#[test]
fn a_token_bucket_is_exact_at_all_ends() {
    holds(token_bucket, bucket);
    let idle = |setup: &Setup| bucket(setup).empty_until(setup.start - setup.built);
    holds(|rule| token_bucket(rule).start_empty(), idle);
}

#[test]
fn a_fixed_window_is_exact_at_all_ends() {
    holds(fixed_window, fixed);
}

#[test]
fn a_sliding_window_is_exact_at_all_ends() {
    holds(sliding_window, sliced);
}

#[test]
fn a_sliding_log_is_exact_at_all_ends() {
    holds(sliding_log, log);
}

#[test]
fn a_sliding_counter_is_exact_at_all_ends() {
    holds(sliding_counter, counter);
}

#[test]
fn a_leaky_bucket_is_exact_at_all_ends() {
    holds(leaky_bucket, leaky);
}

#[test]
fn a_smooth_limiter_is_exact_at_all_ends() {
    holds(smooth, paced);
}
