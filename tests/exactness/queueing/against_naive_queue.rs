//! Random calls of each algorithm are admitted, queued and denied as in a naive queue.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tower_throttle::algorithm::*;

use super::harness::{Seen, World};
use super::line::{Line, QueueConfig, Slip};
use super::naive_queue::Naive;
use super::ns;
use super::rules::{Numbers, both};
use crate::support::{Random, scaled};

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
struct Manner {
    seed: u64,
    late: bool,
    slip: Slip,
}

fn live<A: Algorithm>(
    manner: Manner,
    random: &mut Random,
    (rule, naive, reported): (A, Naive, QueueConfig),
    unit: u64,
) -> World<A> {
    let total = random.one_of(&[10_000, 10_000, 4, 2]);
    let line = Line::new(naive, reported, manner.slip, total);
    let mut world = World::new(rule, line, unit, manner.late);
    world.log.push(format!("{manner:?}"));
    for _ in 0..30 {
        world.step(random);
    }
    world.end();
    world
}

/// Asserts that no span of the length of a period has more units than the limit.
fn is_strict<A: Algorithm>(world: &World<A>, limit: u64, period: u64) {
    for (nth, (at, _)) in world.passed.iter().enumerate() {
        let units: u64 = world.passed[nth..]
            .iter()
            .take_while(|(later, _)| later - at < period)
            .map(|(_, cost)| cost)
            .sum();
        assert!(units <= limit || world.refunded, "{units} from {at} on");
    }
}

/// Asserts that no span has more units than the burst and the refill. The refill is counted in whole nanoseconds.
fn is_within<A: Algorithm>(world: &World<A>, numbers: &Numbers) {
    for (nth, (at, _)) in world.passed.iter().enumerate() {
        let mut units = 0;
        for (later, cost) in &world.passed[nth..] {
            units += cost;
            let most = numbers.burst * numbers.period + (later - at + 1) * numbers.limit;
            assert!(units * numbers.period <= most || world.refunded, "{units} from {at} to {later}");
        }
    }
}

const KINDS: u64 = 17;

fn kind(kind: u64, manner: Manner) -> Seen {
    let random = &mut Random::new(manner.seed);
    let is_slow = manner.late && manner.seed.is_multiple_of(2);
    let pace = |numbers: Numbers| if is_slow { numbers.slowed() } else { numbers };
    let numbers = pace(Numbers::any(random));
    let unit = (numbers.period / 10).max(1);
    let slices = random.one_of(&[1, 2, 3, 10]);
    let aligned = random.one_in(2);
    match kind {
        0 => {
            let world = live(manner, random, numbers.bucket(aligned), unit);
            if !manner.late {
                is_within(&world, &numbers);
            }
            world.seen
        }
        1 => live(manner, random, numbers.leaky(), unit).seen,
        2 => live(manner, random, numbers.fixed(false), unit).seen,
        3 => live(manner, random, numbers.fixed(true), unit).seen,
        4 => {
            let world = live(manner, random, numbers.sliced(slices), unit);
            is_strict(&world, numbers.limit, numbers.period);
            world.seen
        }
        5 => {
            let world = live(manner, random, numbers.log(), unit);
            is_strict(&world, numbers.limit, numbers.period);
            world.seen
        }
        6 => live(manner, random, numbers.counter(), unit).seen,
        7 => {
            let (rule, naive, reported, unit) = numbers.bursty(random);
            live(manner, random, (rule, naive, reported), unit).seen
        }
        8 => {
            let (rule, naive, reported) = numbers.bucket(false);
            live(manner, random, (Tiered::new(rule), naive, reported), unit).seen
        }
        9 => {
            let (rule, naive, reported) = numbers.counter();
            live(manner, random, (rule.block_for(ns(50)).after(1_000_000), naive, reported), unit).seen
        }
        _ => {
            let both = [(); 2].map(|()| pace(Numbers::whole(random)));
            pairs(kind, manner, random, unit, both)
        }
    }
}

fn pairs(kind: u64, manner: Manner, random: &mut Random, unit: u64, [one, other]: [Numbers; 2]) -> Seen {
    macro_rules! pair {
        ($one:expr, $other:expr) => {{
            let ((one, naive1, told1), (other, naive2, told2)) = ($one, $other);
            let all = Naive::All(vec![naive1, naive2]);
            live(manner, random, ((one, other), all, both(told1, told2)), unit)
        }};
    }
    match kind {
        10 => pair!(one.bucket(false), other.fixed(false)).seen,
        11 => {
            let world = pair!(one.leaky(), other.log());
            is_strict(&world, other.limit, other.period);
            world.seen
        }
        12 => pair!(one.counter(), other.fixed(true)).seen,
        13 => {
            let world = pair!(one.sliced(3), other.log());
            is_strict(&world, one.limit, one.period);
            is_strict(&world, other.limit, other.period);
            world.seen
        }
        14 => pair!(one.bucket(true), other.bucket(false)).seen,
        15 => pair!(one.log(), other.bucket(false)).seen,
        _ => {
            let ((one, naive1, told1), (other, naive2, told2)) = (one.fixed(false), other.log());
            let naive = Naive::All(vec![naive1, naive2]);
            let rule = Tiered::new((one, other)).block_for(ns(50)).after(1_000_000);
            live(manner, random, (rule, naive, both(told1, told2)), unit).seen
        }
    }
}

fn lives(which: impl Fn(u64) -> bool, first: u64, count: u64, late: bool) {
    let mut all = Seen::default();
    for seed in first..first + scaled(count) {
        for nth in (0..KINDS).filter(|nth| which(*nth)) {
            let seen = kind(nth, Manner { seed: seed * KINDS + nth, late, slip: Slip::None });
            all.waited += seen.waited;
            all.denied += seen.denied;
            all.displaced += seen.displaced;
            all.reported += seen.reported;
            all.paused += seen.paused;
            all.late += seen.late;
        }
    }
    assert!(
        all.waited > scaled(10_000)
            && all.denied > scaled(10_000)
            && all.displaced > scaled(500)
            && all.reported > scaled(10_000)
            && all.paused > scaled(1_000)
            && all.late > scaled(100),
        "{all:?}"
    );
}

#[test]
fn waiters_are_admitted_as_in_the_naive_queue_and_reports_are_true() {
    lives(|nth| nth < 10, 0, 2_000, false);
}

#[test]
fn a_waiter_of_two_algorithms_is_admitted_when_both_allow() {
    lives(|nth| nth >= 10, 10_000, 2_000, false);
}

#[test]
fn polled_late_a_token_is_taken_when_it_is_there_and_a_slot_when_a_call_is_admitted() {
    lives(|nth| nth < 10, 20_000, 1_000, true);
}

#[test]
fn polled_late_two_algorithms_keep_their_schedules() {
    lives(|nth| nth >= 10, 30_000, 2_000, true);
}

#[test]
fn a_broken_model_is_detected() {
    for slip in [
        Slip::LighterOvertake,
        Slip::TurnsForgetTheLine,
        Slip::PlacesStayTaken,
        Slip::ANanosecondLate,
        Slip::NewCallsIgnoreAPause,
        Slip::APauseIsShort,
        Slip::WaitersOutlastAPause,
        Slip::AResetKeepsAPause,
    ] {
        let found = (0..300).find(|seed| {
            let life = || kind(seed % 10, Manner { seed: *seed, late: false, slip });
            catch_unwind(AssertUnwindSafe(life)).is_err()
        });
        assert!(found.is_some(), "{slip:?}");
    }
}
