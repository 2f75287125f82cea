//! Tests of the exactness suite itself, which must detect each mutant within a thousand sequences.

use tower_throttle::algorithm::Algorithm;

use crate::oracle::cases::{
    bucket, counter, fixed, fixed_window, leaky, leaky_bucket, log, paced, sliced, sliding_counter,
    sliding_log, sliding_window, smooth, token_bucket,
};
use crate::oracle::checker::first_broken;
use crate::oracle::config::Rule;
use crate::oracle::model::{Fixed, Oracle};
use crate::oracle::mutants::{Fault, Mutant};
use crate::oracle::naive_window::{Plain, Slip};
use crate::oracle::scenario::Setup;
use crate::support::Random;

/// Returns a description of the first sequence, of a thousand, in which a mutant was detected.
fn caught<A: Algorithm, O: Oracle>(
    what: &str,
    build: impl Fn(&Rule) -> A,
    oracle: impl Fn(&Setup) -> O,
) -> String {
    let (seed, broken) = first_broken(1_000, Setup::mid_life, build, oracle)
        .unwrap_or_else(|| panic!("a mutant was not seen: {what}"));
    println!("{what}: caught in sequence {seed}: {}", broken.lines().next().unwrap_or_default());
    broken
}

fn is_caught_for<A: Algorithm, O: Oracle>(
    how: &[&str],
    build: impl Fn(&Rule) -> A,
    oracle: impl Fn(&Setup) -> O,
) {
    let broken = caught("a mutant", build, oracle);
    assert!(how.iter().any(|how| broken.starts_with(how)), "not for what is broken in it: {broken}");
}

#[test]
fn a_mutant_whose_interval_is_rounded_down_is_caught() {
    let how = ["admitted early", "the rule denies it", "remaining should be", "reset_after should be"];
    is_caught_for(&how, Mutant::rounded_down, bucket);
}

#[test]
fn a_mutant_whose_interval_is_rounded_up_is_caught() {
    let how =
        ["denied what the rule admits", "the rule admits it", "remaining should be", "reset_after should be"];
    is_caught_for(&how, Mutant::rounded_up, bucket);
}

#[test]
fn a_mutant_whose_window_ends_late_is_caught() {
    let how = ["denied what the rule admits", "the rule admits it", "reset_after should be"];
    is_caught_for(&how, Mutant::late_edge, unaligned);
}

#[test]
fn a_mutant_whose_window_ends_early_is_caught() {
    let how = ["admitted early", "the rule denies it", "reset_after should be"];
    is_caught_for(&how, Mutant::early_edge, unaligned);
}

fn unaligned(setup: &Setup) -> Fixed {
    fixed(&Setup { rule: Rule { aligned: false, ..setup.rule.clone() }, ..setup.clone() })
}

#[test]
fn a_mutant_that_is_paid_twice_when_the_clock_steps_back_is_caught() {
    caught("paid twice", Mutant::paid_twice, bucket);
}

/// Asserts that no failure is found without a fault, and that each fault is detected.
fn faults_are_caught<A: Algorithm, O: Oracle>(
    faults: &[Fault],
    build: impl Fn(&Rule) -> A,
    oracle: impl Fn(&Setup) -> O,
) {
    let mutant = |fault: Fault| {
        let build = &build;
        move |rule: &Rule| Mutant::new(fault, build(rule))
    };
    if let Some((seed, broken)) = first_broken(1_000, Setup::mid_life, mutant(Fault::None), &oracle) {
        panic!("caught in sequence {seed} without a fault: {broken}");
    }
    for fault in faults {
        caught(&format!("{fault:?}"), mutant(*fault), &oracle);
    }
}

/// The faults that any algorithm may have.
const FAULTS: [Fault; 11] = [
    Fault::LookingTakes,
    Fault::RefundGivesMore,
    Fault::RefundIsIgnored,
    Fault::SettlementIsIgnored,
    Fault::SettlementGivesAnyUnits,
    Fault::DebtIsForgiven,
    Fault::RemainingIsOneMore,
    Fault::RetryIsShort,
    Fault::ResetIsLong,
    Fault::BackIsElapsed,
    Fault::ReplacingResets,
];

/// The faults of algorithms in which a denied key can have units left.
const OF_WINDOWS: [Fault; 2] = [Fault::DenialSpends, Fault::ReplacingKeepsWhatIsLeft];

#[test]
fn every_fault_of_a_token_bucket_is_caught() {
    faults_are_caught(&[&FAULTS[..], &OF_WINDOWS].concat(), token_bucket, bucket);
}

#[test]
fn every_fault_of_a_fixed_window_is_caught() {
    faults_are_caught(&[&FAULTS[..], &OF_WINDOWS].concat(), fixed_window, fixed);
}

#[test]
fn every_fault_of_a_sliding_window_is_caught() {
    faults_are_caught(&[&FAULTS[..], &OF_WINDOWS].concat(), sliding_window, sliced);
}

#[test]
fn every_fault_of_a_sliding_log_is_caught() {
    faults_are_caught(&[&FAULTS[..], &OF_WINDOWS].concat(), sliding_log, log);
}

#[test]
fn every_fault_of_a_sliding_counter_is_caught() {
    faults_are_caught(&[&FAULTS[..], &OF_WINDOWS].concat(), sliding_counter, counter);
}

#[test]
fn every_fault_of_a_leaky_bucket_is_caught() {
    faults_are_caught(&FAULTS, leaky_bucket, leaky);
}

#[test]
fn every_fault_of_a_smooth_limiter_is_caught() {
    faults_are_caught(&FAULTS, smooth, paced);
}

/// These faults cannot be made by changing the calls of an algorithm of the crate, so the test has a window of its own.
#[test]
fn every_slip_of_a_plain_window_is_caught() {
    let plain = |slip: Slip| move |rule: &Rule| Plain::new(slip, rule);
    // The plain window makes no debt.
    let setup = |seed, random: &mut Random| Setup { max_debt: None, ..Setup::any(seed, random) };
    if let Some((seed, broken)) = first_broken(1_000, setup, plain(Slip::None), log) {
        panic!("caught in sequence {seed} without a slip: {broken}");
    }
    for slip in [
        Slip::ReplacingDoesNotClamp,
        Slip::ReplacingDropsTheNewest,
        Slip::ReplacingKeepsWhatIsOver,
        Slip::RefundsTheNewest,
    ] {
        caught(&format!("{slip:?}"), plain(slip), log);
    }
}
