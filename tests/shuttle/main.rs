//! Many orders in which threads may run, tried out one by one: nobody deadlocks, nobody sleeps on, and every unit is counted once.
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test -p tower-throttle-shuttle
//! ```
//!
//! A target directory of its own, so that the flag does not undo other builds. `SHUTTLE_RANDOM_SEED=7` before it tries other
//! orders, `EXECUTIONS=100000` more of them.
//!
//! What fails prints the line of its model in this file, and its schedule. That is seen again with `REPLAY=<line>:<schedule>` before the
//! command, and `-- <test>` behind it; the schedule without its line breaks. (Two limiters may need another try: their locks are taken in the order of their
//! addresses.)
//!
//! Each model is held against the real thing; and some against *mutants*, small and broken on purpose, which must be found out by the same
//! checks. Shuttle tries orders of steps. It does not know how processors reorder what is relaxed.
#![cfg(shuttle)]

#[path = "mod.rs"]
mod schedules;

use schedules::clock::{Mute, Strict};
use schedules::explorer::{explore, in_one_shard, keys};
use schedules::models::{
    Act, all_or_none, as_many_turns_as_stay, nobody_takes_the_turn, somebody_interferes, the_table_is_full,
    turns_come_meanwhile, two_lines,
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
fn those_who_stay_leave_at_the_turns_of_those_who_give_up() {
    explore(|| as_many_turns_as_stay(Real::new::<Strict>, ONE, 2));
    explore(|| as_many_turns_as_stay(Real::new::<Mute>, ONE, 2));
    explore(|| as_many_turns_as_stay(Real::new::<ManualClock>, ONE, 1));
}

#[test]
fn no_wakeup_is_lost_while_calls_join_and_are_cancelled() {
    explore(|| turns_come_meanwhile(Real::new::<Strict>, ONE));
    explore(|| turns_come_meanwhile(Real::new::<Mute>, ONE));
    explore(|| turns_come_meanwhile(Real::new::<ManualClock>, ONE));
}

#[test]
fn an_unused_release_goes_to_the_next_waiter() {
    explore(|| nobody_takes_the_turn(Real::new::<Strict>, false));
    explore(|| nobody_takes_the_turn(Real::new::<Mute>, false));
    explore(|| nobody_takes_the_turn(Real::new::<Strict>, true));
}

#[test]
fn lines_of_two_keys_do_not_disturb_each_other() {
    let [one, alike, apart] = keys();
    explore(move || as_many_turns_as_stay(Real::new::<Strict>, [one, alike], 1));
    explore(move || as_many_turns_as_stay(Real::new::<Strict>, [one, apart], 1));
    explore(move || turns_come_meanwhile(Real::new::<Mute>, [one, alike]));
    explore(move || turns_come_meanwhile(Real::new::<Mute>, [one, apart]));
}

#[test]
fn concurrent_operations_count_units_exactly() {
    explore(|| somebody_interferes::<Strict>(Act::Nothing));
    explore(|| somebody_interferes::<Strict>(Act::Refund));
    explore(|| somebody_interferes::<Strict>(Act::Reset));
    explore(|| somebody_interferes::<Strict>(Act::Replace));
    explore(|| somebody_interferes::<Mute>(Act::Refund));
    explore(|| somebody_interferes::<Mute>(Act::Reset));
    explore(|| somebody_interferes::<Mute>(Act::Replace));
    explore(|| somebody_interferes::<ManualClock>(Act::Replace));
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
    explore(|| two_lines::<Strict>(false));
    explore(|| two_lines::<Strict>(true));
    explore(|| two_lines::<Mute>(true));
}

#[test]
fn new_keys_at_a_full_table_come_to_an_end() {
    let keys = keys();
    explore(move || the_table_is_full(keys));
}

#[test]
fn a_sound_mutant_passes() {
    explore(|| as_many_turns_as_stay(Mutant::<Strict, SOUND>::new, ONE, 2));
    explore(|| turns_come_meanwhile(Mutant::<Mute, SOUND>::new, ONE));
    explore(|| nobody_takes_the_turn(Mutant::<Strict, SOUND>::new, false));
    explore(|| nobody_takes_the_turn(Mutant::<Strict, SOUND>::new, true));
    explore(|| all_or_none(Budgets::<SOUND>::new));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waker_left_too_late_is_detected() {
    explore(|| turns_come_meanwhile(Mutant::<Mute, LATE>::new, ONE));
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_without_wakeup_on_cancel_is_detected() {
    explore(|| as_many_turns_as_stay(Mutant::<Strict, FORGETFUL>::new, ONE, 2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_turn_that_is_lost_is_detected() {
    explore(|| nobody_takes_the_turn(Mutant::<Strict, GREEDY>::new, false));
}

#[test]
#[should_panic(expected = "overtaken")]
fn one_that_overtakes_is_detected() {
    explore(|| as_many_turns_as_stay(Mutant::<Mute, UNFAIR>::new, ONE, 2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn budgets_held_in_the_order_of_their_names_are_detected() {
    explore(|| all_or_none(Budgets::<CROSSED>::new));
}

#[test]
#[should_panic(expected = "both are charged for those who passed")]
fn a_budget_that_is_charged_alone_is_detected() {
    explore(|| all_or_none(Budgets::<HALF>::new));
}

#[test]
#[should_panic(expected = "both are charged for those who passed")]
fn budgets_looked_at_before_they_are_held_are_detected() {
    explore(|| all_or_none(Budgets::<TORN>::new));
}
