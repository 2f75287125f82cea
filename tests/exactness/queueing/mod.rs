//! Queues of each algorithm, checked against a naive queue: when calls are released, which calls are denied, and what
//! each decision reports.

mod cases;
mod ends;
mod harness;
mod naive_queue;
mod per_algorithm;
mod stall;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use harness::{Line, QueueConfig, Seen, Slip, World};
use naive_queue::{Bucket, Bursty, Leaky, Naive, window};
use tower_throttle::Quota;
use tower_throttle::algorithm::*;

use crate::oracle::model::{Counter, Fixed, Sliding};
use crate::support::{Random, scaled};

const SECOND: u64 = 1_000_000_000;

fn ns(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

fn quota(limit: u64, period: u64) -> Quota {
    Quota::per(limit, ns(period)).unwrap()
}

/// The queue settings of an algorithm.
#[derive(Clone, Copy, Debug)]
struct Wish {
    places: Option<u64>,
    max_wait: Option<u64>,
    drops_oldest: bool,
}

impl Wish {
    fn any(random: &mut Random, period: u64) -> Self {
        let places = (!random.one_in(4)).then(|| random.below(6));
        let max_wait = random.one_in(2).then(|| random.below(period * 3));
        Self { places, max_wait, drops_oldest: random.one_in(3) }
    }

    /// Returns the settings for an algorithm whose queue has `default` places, unless another number is set.
    fn of_queue(self, default: u64) -> QueueConfig {
        let Self { places, max_wait, drops_oldest } = self;
        QueueConfig { places: places.unwrap_or(default), max_wait, drops_oldest }
    }

    /// Returns the settings for all other algorithms. Any number of calls can wait, unless the queue is bounded.
    fn of(self, default: u64) -> QueueConfig {
        let is_set = self.max_wait.is_some() || self.drops_oldest;
        self.of_queue(if is_set { default } else { u64::MAX })
    }
}

/// Returns the settings of a tuple: the shorter queue, and the shorter `max_wait`.
fn both(one: QueueConfig, other: QueueConfig) -> QueueConfig {
    let max_wait = match (one.max_wait, other.max_wait) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let drops_oldest = one.drops_oldest && other.drops_oldest;
    QueueConfig { places: one.places.min(other.places), max_wait, drops_oldest }
}

macro_rules! reported {
    ($rule:expr, $wish:expr) => {{
        let (mut rule, wish) = ($rule, $wish);
        if let Some(places) = wish.places {
            rule = rule.queue(places);
        }
        if let Some(max_wait) = wish.max_wait {
            rule = rule.max_wait(ns(max_wait));
        }
        if wish.drops_oldest {
            rule = rule.overflow(QueueOverflow::DropOldest);
        }
        rule
    }};
}

/// Small numbers, so that all edges are hit.
struct Numbers {
    limit: u64,
    period: u64,
    burst: u64,
    wish: Wish,
}

impl Numbers {
    fn any(random: &mut Random) -> Self {
        let period = random.one_of(&[7, 10, 12, 60, 100]);
        let (limit, burst) = (random.within(1..=6), random.within(1..=6));
        Self { limit, period, burst, wish: Wish::any(random, period) }
    }

    /// Returns parameters with which each unit takes a whole number of nanoseconds.
    fn whole(random: &mut Random) -> Self {
        let mut numbers = Self::any(random);
        numbers.period = numbers.period.next_multiple_of(numbers.limit);
        numbers
    }

    fn quota(&self) -> Quota {
        quota(self.limit, self.period).burst(self.burst)
    }

    fn bucket(&self, empty: bool) -> (TokenBucket, Naive, QueueConfig) {
        let bucket = reported!(TokenBucket::new(self.quota()), self.wish);
        let bucket = if empty { bucket.start_empty() } else { bucket };
        let naive = Bucket::new(self.limit, self.period, self.burst, empty);
        (bucket, Naive::Bucket(naive), self.wish.of(self.burst))
    }

    fn leaky(&self) -> (LeakyBucket, Naive, QueueConfig) {
        let bucket = reported!(LeakyBucket::new(self.quota()), self.wish);
        (bucket, Naive::Leaky(Leaky::new(self.limit, self.period)), self.wish.of_queue(self.burst))
    }

    fn fixed(&self, aligned: bool) -> (FixedWindow, Naive, QueueConfig) {
        let rule = reported!(FixedWindow::new(self.quota()), self.wish);
        let rule = if aligned { rule.aligned() } else { rule };
        let naive = Fixed::new(&window(self.limit, self.period, 1, aligned), 0);
        (rule, Naive::Fixed(naive), self.wish.of(self.limit))
    }

    fn sliced(&self, slices: u64) -> (SlidingWindow, Naive, QueueConfig) {
        let rule = reported!(SlidingWindow::new(self.quota()).slices(slices as usize), self.wish);
        let naive = Sliding::sliced(&window(self.limit, self.period, slices, false), 0);
        (rule, Naive::Sliding(naive), self.wish.of(self.limit))
    }

    fn log(&self) -> (SlidingLog, Naive, QueueConfig) {
        let rule = reported!(SlidingLog::new(self.quota()), self.wish);
        let naive = Sliding::exact(&window(self.limit, self.period, 1, false), 0);
        (rule, Naive::Sliding(naive), self.wish.of(self.limit))
    }

    fn counter(&self) -> (SlidingCounter, Naive, QueueConfig) {
        let rule = reported!(SlidingCounter::new(self.quota()), self.wish);
        let naive = Counter::new(&window(self.limit, self.period, 1, false), 0);
        (rule, Naive::Counter(naive), self.wish.of(self.limit))
    }

    /// The interval is a whole number of nanoseconds, and the period is one second, because the limiter stores one
    /// second.
    fn bursty(&self, random: &mut Random) -> (Smooth, Naive, QueueConfig, u64) {
        let limit = random.one_of(&[1, 2, 4, 5, 8]);
        let wish = Wish::any(random, SECOND);
        let rule = reported!(Smooth::bursty(quota(limit, SECOND)), wish);
        (rule, Naive::Bursty(Bursty::new(SECOND / limit)), wish.of_queue(limit), SECOND / limit / 4)
    }
}

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
    let mut numbers = Numbers::any(random);
    if manner.late && manner.seed.is_multiple_of(2) {
        // With this period, a step of the clock is a stall, after which slots are overdue by more than 5 ms.
        numbers.period *= 1_000_000;
        numbers.wish.max_wait = numbers.wish.max_wait.map(|wait| wait * 1_000_000);
    }
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
        _ => pairs(kind, manner, random, unit),
    }
}

fn pairs(kind: u64, manner: Manner, random: &mut Random, unit: u64) -> Seen {
    let (one, other) = (Numbers::whole(random), Numbers::whole(random));
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
            all.refused += seen.refused;
            all.dropped += seen.dropped;
            all.reported += seen.reported;
        }
    }
    assert!(
        all.waited > scaled(10_000)
            && all.refused > scaled(10_000)
            && all.dropped > scaled(1_000)
            && all.reported > scaled(10_000),
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
fn polled_late_a_token_is_taken_when_it_is_there_and_a_slot_when_a_call_is_released() {
    lives(|nth| nth < 10 || matches!(nth, 12 | 13 | 16), 20_000, 1_000, true);
}

#[test]
fn a_broken_model_is_detected() {
    for slip in
        [Slip::LighterOvertake, Slip::TurnsForgetTheLine, Slip::PlacesStayTaken, Slip::ANanosecondLate]
    {
        let found = (0..300).find(|seed| {
            let life = || kind(seed % 10, Manner { seed: *seed, late: false, slip });
            catch_unwind(AssertUnwindSafe(life)).is_err()
        });
        assert!(found.is_some(), "{slip:?}");
    }
}
