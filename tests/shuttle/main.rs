//! Runs many orders of threads, one by one. There is no deadlock and no lost wakeup, and every unit is counted once.
//!
//! ```sh
//! cargo test -p tower-throttle-shuttle
//! ```
//!
//! The library of this package is tower-throttle, built with the locks and atomics of shuttle. Set
//! `SHUTTLE_RANDOM_SEED=7` to try other orders, and `EXECUTIONS=100000` to try more orders.
//!
//! A failure prints the line of its model in this file, and its schedule. To replay the failure, set
//! `REPLAY=<line>:<schedule>` before the command, and append `-- <test>`. Write the schedule without its line breaks.
//! (With two limiters, a replay may need several tries, because the locks of two limiters are taken in the order of
//! their addresses.)
//!
//! Each model is checked against the real code. Some models are also checked against *mutants*, which are small and
//! broken on purpose. The same checks must detect the mutants. Shuttle tries orders of steps. It does not know how
//! processors reorder relaxed operations.

// The models name the library as its users do.
extern crate tower_throttle_shuttle as tower_throttle;

#[path = "mod.rs"]
mod schedules;

use schedules::clock::{Mute, Strict};
use schedules::denials::{a_unit_comes_back, two_keys_are_denied};
use schedules::explorer::{explore, in_one_shard, keys};
use schedules::fair::{
    a_call_is_displaced, an_admitted_call_is_dropped, an_arrival_meets_a_release,
    the_first_is_cancelled_at_a_release, the_limiter_is_closed_while_calls_arrive,
    the_maximum_wait_ends_at_the_admission,
};
use schedules::models::{
    Act, a_metered_call_ends, all_or_none, another_thread_interferes, as_many_slots_as_waiters_that_stay,
    slots_come_meanwhile, the_table_is_full, two_queues, unused_admission,
};
use schedules::mutants::{Budgets, CROSSED, FORGETFUL, GREEDY, HALF, LATE, Mutant, SOUND, TORN, UNFAIR};
use schedules::queue_model::Real;
use schedules::two_limiters::{two_keys, two_limiters};
use tower_throttle::clock::ManualClock;

const ONE: [u64; 1] = [0];

#[test]
fn keys_are_found_in_one_shard_and_in_two() {
    let [one, alike, apart] = keys();
    assert!(in_one_shard(alike, one) && !in_one_shard(apart, one) && !in_one_shard(alike, apart));
}

#[test]
fn waiters_that_stay_use_the_slots_of_cancelled_ones() {
    explore(|| as_many_slots_as_waiters_that_stay(Real::new::<Strict>, ONE, 2));
    explore(|| as_many_slots_as_waiters_that_stay(Real::new::<Mute>, ONE, 2));
    explore(|| as_many_slots_as_waiters_that_stay(Real::new::<ManualClock>, ONE, 1));
}

#[test]
fn no_wakeup_is_lost_while_calls_join_and_are_cancelled() {
    explore(|| slots_come_meanwhile(Real::new::<Strict>, ONE));
    explore(|| slots_come_meanwhile(Real::new::<Mute>, ONE));
    explore(|| slots_come_meanwhile(Real::new::<ManualClock>, ONE));
}

#[test]
fn an_unused_admission_goes_to_the_next_waiter() {
    explore(|| unused_admission(Real::new::<Strict>, false));
    explore(|| unused_admission(Real::new::<Mute>, false));
    explore(|| unused_admission(Real::new::<Strict>, true));
}

#[test]
fn queues_of_two_keys_do_not_disturb_each_other() {
    let [one, alike, apart] = keys();
    explore(move || as_many_slots_as_waiters_that_stay(Real::new::<Strict>, [one, alike], 1));
    explore(move || as_many_slots_as_waiters_that_stay(Real::new::<Strict>, [one, apart], 1));
    explore(move || slots_come_meanwhile(Real::new::<Mute>, [one, alike]));
    explore(move || slots_come_meanwhile(Real::new::<Mute>, [one, apart]));
}

#[test]
fn concurrent_operations_count_units_exactly() {
    explore(|| another_thread_interferes::<Strict>(Act::Nothing));
    explore(|| another_thread_interferes::<Strict>(Act::Refund));
    explore(|| another_thread_interferes::<Strict>(Act::Reset));
    explore(|| another_thread_interferes::<Strict>(Act::Replace));
    explore(|| another_thread_interferes::<Mute>(Act::Refund));
    explore(|| another_thread_interferes::<Mute>(Act::Reset));
    explore(|| another_thread_interferes::<Mute>(Act::Replace));
    explore(|| another_thread_interferes::<ManualClock>(Act::Replace));
}

#[test]
fn a_denial_that_is_read_without_a_lock_is_one_that_stands() {
    explore(|| a_unit_comes_back(Act::Nothing));
    explore(|| a_unit_comes_back(Act::Refund));
    explore(|| a_unit_comes_back(Act::Reset));
    explore(|| a_unit_comes_back(Act::Replace));
    let [one, alike, _] = keys();
    explore(move || two_keys_are_denied([one, alike]));
}

#[test]
fn two_limits_are_charged_both_or_not_at_all_in_either_order() {
    let [one, alike, apart] = keys();
    explore(|| all_or_none(two_limiters));
    explore(move || all_or_none(|| two_keys(one, alike)));
    explore(move || all_or_none(|| two_keys(one, apart)));
}

#[test]
fn calls_in_two_queues_leave_both_or_neither() {
    explore(|| two_queues::<Strict>(false));
    explore(|| two_queues::<Strict>(true));
    explore(|| two_queues::<Mute>(true));
}

#[test]
fn new_keys_of_a_full_table_never_deadlock() {
    let keys = keys();
    explore(move || the_table_is_full(keys));
}

#[test]
fn the_units_of_a_metered_call_are_charged_once() {
    explore(a_metered_call_ends);
}

#[test]
fn calls_of_a_fair_limiter_lose_no_unit_and_no_wakeup() {
    explore(an_arrival_meets_a_release);
    explore(the_first_is_cancelled_at_a_release);
    explore(an_admitted_call_is_dropped);
    explore(|| a_call_is_displaced(true));
    explore(|| a_call_is_displaced(false));
    explore(the_limiter_is_closed_while_calls_arrive);
    explore(the_maximum_wait_ends_at_the_admission);
}

#[test]
fn a_sound_mutant_passes() {
    explore(|| as_many_slots_as_waiters_that_stay(Mutant::<Strict, SOUND>::new, ONE, 2));
    explore(|| slots_come_meanwhile(Mutant::<Mute, SOUND>::new, ONE));
    explore(|| unused_admission(Mutant::<Strict, SOUND>::new, false));
    explore(|| unused_admission(Mutant::<Strict, SOUND>::new, true));
    explore(|| all_or_none(Budgets::<SOUND>::new));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waker_registered_too_late_is_detected() {
    explore(|| slots_come_meanwhile(Mutant::<Mute, LATE>::new, ONE));
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_without_wakeup_on_cancel_is_detected() {
    explore(|| as_many_slots_as_waiters_that_stay(Mutant::<Strict, FORGETFUL>::new, ONE, 2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_lost_slot_is_detected() {
    explore(|| unused_admission(Mutant::<Strict, GREEDY>::new, false));
}

#[test]
#[should_panic(expected = "overtaken")]
fn overtaking_is_detected() {
    explore(|| as_many_slots_as_waiters_that_stay(Mutant::<Mute, UNFAIR>::new, ONE, 2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn budgets_locked_in_the_order_of_their_names_are_detected() {
    explore(|| all_or_none(Budgets::<CROSSED>::new));
}

#[test]
#[should_panic(expected = "both are charged for those who passed")]
fn a_budget_that_is_charged_alone_is_detected() {
    explore(|| all_or_none(Budgets::<HALF>::new));
}

#[test]
#[should_panic(expected = "both are charged for those who passed")]
fn budgets_checked_before_they_are_locked_are_detected() {
    explore(|| all_or_none(Budgets::<TORN>::new));
}
