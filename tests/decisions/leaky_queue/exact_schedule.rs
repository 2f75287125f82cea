//! Random calls are compared with the exact schedule of a queue, which is computed without rounding.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, Quota, RateLimiter};

use super::{NS, now};
use crate::support::{PolledByHand, Random};

/// A queue, and the exact schedule, which is computed without rounding.
struct Simulation {
    limiter: RateLimiter<LeakyBucket>,
    clock: ManualClock,
    limit: u128,
    period: u128,
    capacity: usize,
    /// The maximum wait in nanoseconds.
    max_wait: Option<u128>,
    now: u128,
    /// The slot of the next call, in nanoseconds multiplied by the limit.
    next: u128,
    queue: VecDeque<Waiting>,
    refused: Vec<(u64, Decision)>,
}

struct Waiting {
    call: PolledByHand<Acquire<LeakyBucket>>,
    cost: u64,
    arrived: u128,
}

/// The parameters of a simulation. They are made from its seed.
#[derive(Clone, Copy, Debug)]
struct Kind {
    seed: u64,
    limit: u64,
    period: Duration,
}

impl Simulation {
    fn new(kind: Kind) -> (Self, Random) {
        let mut random = Random::new(kind.seed);
        let capacity = random.below(6);
        let clock = ManualClock::new();
        let mut bucket = LeakyBucket::new(Quota::per(kind.limit, kind.period).unwrap()).queue(capacity);
        let interval = kind.period.as_nanos() as u64 / kind.limit;
        let max_wait = random.one_in(2).then(|| random.below(interval * 5));
        if let Some(max_wait) = max_wait {
            bucket = bucket.max_wait(Duration::from_nanos(max_wait));
        }
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
        let simulation = Self {
            limiter,
            clock,
            limit: u128::from(kind.limit),
            period: kind.period.as_nanos(),
            capacity: capacity as usize,
            max_wait: max_wait.map(u128::from),
            now: 0,
            next: 0,
            queue: VecDeque::new(),
            refused: Vec::new(),
        };
        (simulation, random)
    }

    /// Returns the slot of a call that would arrive now, in whole nanoseconds.
    fn slot(&self) -> u128 {
        let ahead: u128 = self.queue.iter().map(|waiting| u128::from(waiting.cost)).sum();
        (self.next.max(self.now * self.limit * u128::from(self.queue.is_empty())) + ahead * self.period)
            .div_ceil(self.limit)
    }

    fn advance(&mut self, by: u128) {
        self.clock.advance(Duration::from_nanos(by as u64));
        self.now += by;
        self.settle();
    }

    /// Advances the clock, with a stop at every slot on the way.
    fn pass(&mut self, by: u128) {
        let end = self.now + by;
        while !self.queue.is_empty() && self.next.div_ceil(self.limit) < end {
            self.advance(self.next.div_ceil(self.limit) - self.now);
        }
        self.advance(end - self.now);
    }

    /// Asserts that the calls whose slot has come were released, and no others.
    fn settle(&mut self) {
        while let Some(first) = self.queue.front_mut() {
            if self.next.div_ceil(self.limit) > self.now {
                break;
            }
            assert!(first.call.run(), "the first is late at {}", self.now);
            let decision = first.call.output.unwrap();
            assert!(decision.is_allowed());
            assert_eq!(decision.delay().as_nanos(), self.now - first.arrived);
            // A slot that is overdue by more than 5 ms moves.
            let earliest = first.arrived.max(self.now.saturating_sub(5_000_000));
            self.next = self.next.max(earliest * self.limit) + u128::from(first.cost) * self.period;
            self.queue.pop_front();
        }
        assert!(self.queue.iter_mut().all(|waiting| !waiting.call.run()), "early at {}", self.now);
    }

    fn acquire(&mut self, cost: u64) {
        let slot = self.slot();
        let mut call = PolledByHand::new(self.limiter.acquire_n("key", cost));
        call.poll();
        let wait = slot - self.now;
        let immediate = cost == 0 || self.queue.is_empty() && wait == 0;
        let may_wait = self.queue.len() < self.capacity && self.max_wait.is_none_or(|limit| wait <= limit);
        match (call.output, immediate, may_wait) {
            (Some(decision), true, _) => {
                assert!(decision.is_allowed() && decision.delay().is_zero());
                if cost > 0 {
                    self.next = self.next.max(self.now * self.limit) + u128::from(cost) * self.period;
                }
            }
            (None, false, true) => self.queue.push_back(Waiting { call, cost, arrived: self.now }),
            (Some(decision), false, false) => {
                assert!(!decision.is_allowed());
                self.refused.push((cost, decision));
            }
            other => panic!("{other:?} at {} with {} before it", self.now, self.queue.len()),
        }
    }

    fn check(&mut self, cost: u64) {
        let wait = self.slot() - self.now;
        let peeked = self.limiter.peek("key");
        let (decision, passes) = (self.limiter.check_n("key", cost), self.queue.is_empty() && wait == 0);
        assert_eq!(peeked.is_allowed(), passes);
        assert_eq!(decision.is_allowed(), passes || cost == 0);
        if decision.is_allowed() {
            if cost > 0 {
                self.next = self.next.max(self.now * self.limit) + u128::from(cost) * self.period;
            }
        } else {
            assert_eq!(decision.retry_after().unwrap().as_nanos(), wait);
            assert_eq!(peeked.retry_after(), decision.retry_after());
            assert_eq!(peeked.remaining(), 0);
        }
    }

    fn step(&mut self, random: &mut Random) {
        let interval = self.period / self.limit;
        match random.below(12) {
            0..4 => self.acquire(1),
            4 => self.acquire(random.below(4)),
            5 => self.check(random.below(3)),
            6 if !self.queue.is_empty() => {
                let leaves = random.below(self.queue.len() as u64) as usize;
                self.queue.remove(leaves);
                self.settle();
            }
            // Advances exactly to a slot, or to the nanosecond before it.
            7 => self.advance(self.next.div_ceil(self.limit).saturating_sub(self.now)),
            8 => self.advance(self.next.div_ceil(self.limit).saturating_sub(self.now + 1)),
            _ => self.advance(u128::from(random.below(2 * interval as u64 + 2))),
        }
    }

    /// Returns the state of the simulation after some steps.
    fn after(kind: Kind, steps: usize) -> Self {
        let (mut simulation, mut random) = Self::new(kind);
        for _ in 0..steps {
            simulation.step(&mut random);
        }
        simulation
    }
}

thread_local! {
    /// The present simulation, for the message of a failure.
    static CURRENT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Prints the simulation that failed.
struct PrintOnFailure;

impl Drop for PrintOnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            CURRENT.with_borrow(|simulation| eprintln!("in the simulation {simulation}"));
        }
    }
}

fn kinds(seeds: u64) -> impl Iterator<Item = Kind> {
    let rates = [
        (10, Duration::from_secs(1)),
        (3, Duration::from_secs(1)),
        (7, Duration::from_secs(60)),
        (1_000_000_000, Duration::from_secs(1)),
        (999_999_937, Duration::from_secs(2)),
        (1, Duration::from_secs(86_400 * 30)),
    ];
    (0..seeds).flat_map(move |seed| rates.map(|(limit, period)| Kind { seed, limit, period }))
}

#[test]
fn every_call_is_released_at_its_exact_slot_or_rejected() {
    let _print = PrintOnFailure;
    for kind in kinds(2_000) {
        CURRENT.set(format!("{kind:?}"));
        let (mut simulation, mut random) = Simulation::new(kind);
        for _ in 0..64 {
            simulation.step(&mut random);
        }
        // All remaining calls are released.
        while !simulation.queue.is_empty() {
            simulation.advance(simulation.next.div_ceil(simulation.limit) - simulation.now);
        }
    }
}

#[test]
fn a_rejected_call_is_rejected_until_its_retry_after_and_admitted_at_it() {
    let _print = PrintOnFailure;
    let mut tested = 0;
    for kind in kinds(150) {
        for steps in 1..32 {
            CURRENT.set(format!("{kind:?} after {steps} steps"));
            let before = Simulation::after(kind, steps - 1).refused.len();
            let mut simulation = Simulation::after(kind, steps);
            let Some((cost, decision)) = simulation.refused.get(before).copied() else { continue };
            let wait = decision.retry_after().expect("a retry succeeds").as_nanos();
            assert!(wait > 0);
            simulation.pass(wait - 1);
            let early = now(&simulation.limiter, cost).expect("it is rejected immediately");
            assert_eq!((early.is_allowed(), early.retry_after()), (false, Some(NS)));

            let mut simulation = Simulation::after(kind, steps);
            simulation.pass(wait);
            let then = now(&simulation.limiter, cost);
            assert!(then.is_none_or(|decision| decision.is_allowed()), "{then:?} after {wait} ns");
            tested += 1;
        }
    }
    assert!(tested > 1_000, "{tested}");
}

#[test]
fn the_remaining_number_of_calls_is_admitted() {
    let _print = PrintOnFailure;
    for kind in kinds(150) {
        for steps in [5, 11, 17, 31, 47] {
            CURRENT.set(format!("{kind:?} after {steps} steps"));
            let simulation = Simulation::after(kind, steps);
            // A call of cost 0 reports the state, and charges nothing.
            let remaining = now(&simulation.limiter, 0).unwrap().remaining();
            let mut calls: Vec<_> =
                (0..=remaining).map(|_| PolledByHand::new(simulation.limiter.acquire("key"))).collect();
            for (n, call) in (0..).zip(&mut calls) {
                call.poll();
                let admitted = call.output.is_none_or(|decision| decision.is_allowed());
                assert_eq!(admitted, n < remaining, "number {n} of {remaining}");
            }
        }
    }
}
