//! The cases in which joint calls are compared with the model, and the mistakes of the model that the comparison must
//! detect.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::model::{Key, Slip, add};
use super::oracle::{Manner, Seen, Table, Time, run};
use crate::support::scaled;

const STEPS: usize = 40;

/// Runs cases of one manner. Asserts that each of these events has occurred.
fn agree(count: u64, time: Time, table: Table, keys: Key, events: &[&str]) {
    let mut seen = Seen::new();
    for seed in 0..scaled(count) {
        add(&mut seen, &run(Manner { seed, time, table, keys, slip: Slip::None }, STEPS));
    }
    println!("{} cases: {seen:?}", scaled(count));
    for event in EVENTS.iter().chain(events) {
        assert!(seen.get(event).is_some_and(|times| *times > 0), "no event: {event}");
    }
}

/// The events of all manners.
const EVENTS: [&str; 17] = [
    "joint_calls",
    "admitted",
    "denied",
    "denied_by_others",
    "queue_full",
    "waited",
    "in_two_queues",
    "denied_later",
    "dropped",
    "same_key",
    "shadow_denied",
    "settled",
    "held",
    "closed",
    "paused",
    "paused_waiters",
    "one_is_paused",
];

#[test]
fn joint_calls_agree_with_the_model() {
    agree(4_000, Time::InSteps, Table::ManyShards, 3, &["waits_reported", "denied_by_itself"]);
}

#[test]
fn joint_calls_on_one_shard_agree_with_the_model() {
    agree(2_000, Time::InSteps, Table::OneShard, 4, &["waits_reported"]);
}

#[test]
fn joint_calls_agree_with_the_model_while_the_clock_stands_still() {
    agree(1_000, Time::Never, Table::ManyShards, 2, &["waits_reported"]);
}

#[test]
fn joint_calls_agree_with_the_model_if_each_reading_advances_the_clock() {
    agree(1_500, Time::AtEachReading, Table::ManyShards, 2, &[]);
}

#[test]
fn joint_calls_agree_with_the_model_if_the_clock_steps_back() {
    agree(1_500, Time::AlsoBack, Table::ManyShards, 3, &["steps_back"]);
}

#[test]
fn joint_calls_of_a_full_table_that_denies_new_keys_agree_with_the_model() {
    agree(1_500, Time::InSteps, Table::Full { evicts: false }, 4, &["table_full"]);
}

#[test]
fn joint_calls_of_a_full_table_that_evicts_keys_agree_with_the_model() {
    agree(1_500, Time::InSteps, Table::Full { evicts: true }, 4, &["evicted"]);
}

#[test]
fn each_mistake_of_the_model_is_detected() {
    for slip in Slip::ALL {
        let manner = |seed| Manner { seed, time: Time::InSteps, table: Table::ManyShards, keys: 3, slip };
        let is_detected = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(manner(*seed), STEPS))).is_err();
        let detected = (0..400).find(is_detected);
        println!("{slip:?} is detected in case {detected:?}");
        assert!(detected.is_some(), "{slip:?} is not detected");
    }
}
