//! Queues: the time of each release, the rejected calls, and the decision that each call gets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Header, from_fn};
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Client1, PolledByHand, Random, Server, request};

const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);

fn ten_a_second() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10))
}

/// Makes `count` calls for one key at one instant, each in a task. Returns the decisions in the order of the calls,
/// each with the time at which it was made.
async fn at_one_instant(bucket: LeakyBucket, count: usize) -> Vec<(Decision, Duration)> {
    let limiter = RateLimiter::new(bucket);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for n in 0..count {
        let acquire = limiter.acquire("key");
        calls.spawn(async move { (n, acquire.await, start.elapsed()) });
    }
    let mut seen = calls.join_all().await;
    seen.sort_by_key(|(n, ..)| *n);
    seen.into_iter().map(|(_, decision, at)| (decision, at)).collect()
}

fn admitted(seen: &[(Decision, Duration)]) -> Vec<u128> {
    seen.iter().filter(|(decision, _)| decision.is_allowed()).map(|(_, at)| at.as_millis()).collect()
}

#[tokio::test(start_paused = true)]
async fn of_five_at_one_instant_four_are_released_one_by_one_and_the_fifth_is_rejected_immediately() {
    let seen = at_one_instant(ten_a_second().queue(3), 5).await;
    for (n, (decision, at)) in (0..4).zip(&seen) {
        assert!(decision.is_allowed());
        assert_eq!((*at, decision.delay()), (MS * 100 * n, MS * 100 * n));
        assert_eq!((decision.limit(), decision.retry_after()), (4, None));
    }
    let (fifth, at) = &seen[4];
    assert!(!fifth.is_allowed());
    assert_eq!((*at, fifth.delay()), (Duration::ZERO, Duration::ZERO));
    assert_eq!(fifth.retry_after(), Some(MS * 100));
    assert_eq!((fifth.limit(), fifth.remaining()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn the_layer_queues_requests_and_rejects_the_fifth_immediately() {
    let layer = RateLimitLayer::new(from_fn(|_: &String| Some(())), ten_a_second().queue(3));
    let service = layer
        .responder(ErrorResponder)
        .layer(service_fn(|line: String| async move { Ok::<_, std::convert::Infallible>(line) }));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for n in 0..5_u32 {
        let call = service.clone().oneshot(n.to_string());
        calls.spawn(async move { (n, call.await.is_ok(), start.elapsed()) });
    }
    let mut seen = calls.join_all().await;
    seen.sort_unstable();
    let expected = [(0, true, 0), (1, true, 100), (2, true, 200), (3, true, 300), (4, false, 0)];
    assert_eq!(seen, expected.map(|(n, passes, at)| (n, passes, MS * at)));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_queued_at_five_thousand_a_second_are_released_after_200_ms() {
    let bucket = LeakyBucket::new(Quota::per_second(5_000)).queue(1_000);
    let seen = at_one_instant(bucket, 1_001).await;
    assert_eq!(admitted(&seen).len(), 1_001);
    for (n, (_, at)) in (0..).zip(&seen) {
        // The timer has ticks of a millisecond. No call is released before its slot, or later than the tick after its
        // slot.
        let slot = MS / 5 * n;
        assert_eq!(at.as_nanos(), slot.as_nanos().next_multiple_of(1_000_000), "{n}");
    }
    assert_eq!(seen[1_000].1, MS * 200);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_queued_at_a_thousand_a_second_are_released_one_each_millisecond() {
    let bucket = LeakyBucket::new(Quota::per_second(1_000)).queue(1_000);
    let seen = at_one_instant(bucket, 1_001).await;
    assert_eq!(admitted(&seen), (0..=1_000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_rate_above_that_of_the_timer_is_kept() {
    // In the first case, each tick has ten thousand slots. In the second case, two of three slots are between ticks.
    for (limit, calls, last) in [(10_000_000, 100_001, 10), (3, 301, 100_000)] {
        let bucket = LeakyBucket::new(Quota::per_second(limit)).queue(calls as u64);
        let seen = at_one_instant(bucket, calls).await;
        assert_eq!(seen.last().unwrap().1, MS * last, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn three_a_second_do_not_drift_in_an_hour() {
    const CALLS: u32 = 3 * 3_600;
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(3)).queue(6));
    let start = Instant::now();
    // Six callers call again as soon as they are admitted, so the queue is never empty.
    let mut callers = JoinSet::new();
    let left = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..6 {
        let (limiter, left) = (limiter.clone(), left.clone());
        callers.spawn(async move {
            while left.lock().unwrap().len() < CALLS as usize + 1 {
                assert!(limiter.acquire("key").await.is_allowed());
                left.lock().unwrap().push(start.elapsed());
            }
        });
    }
    callers.join_all().await;
    for (n, at) in (0_u128..).zip(left.lock().unwrap().iter()) {
        assert_eq!(at.as_millis(), (n * 1_000).div_ceil(3), "the call with number {n}");
    }
    assert_eq!(left.lock().unwrap()[CALLS as usize], Duration::from_secs(3_600));
}

#[test]
fn slots_are_exact_to_the_nanosecond_for_an_hour() {
    for limit in [3_u64, 7, 11] {
        let clock = ManualClock::new();
        let limiter =
            RateLimiter::builder(LeakyBucket::new(Quota::per_second(limit))).clock(clock.clone()).build();
        assert!(PolledByHand::new(limiter.acquire("key")).poll());
        let mut before = 0_u64;
        for n in 1..=3_600 * limit {
            let mut next = PolledByHand::new(limiter.acquire("key"));
            assert!(!next.poll());
            let slot = (n * 1_000_000_000).div_ceil(limit);
            clock.advance(Duration::from_nanos(slot - before - 1));
            assert!(!next.run(), "{n} at {limit}/s is early");
            clock.advance(NS);
            assert!(next.run(), "{n} at {limit}/s is late");
            before = slot;
        }
        assert_eq!(before, 3_600_000_000_000);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_released_in_order_of_arrival() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(100)).queue(500));
    let left = Arc::new(Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    for n in 0..500 {
        let (limiter, left) = (limiter.clone(), left.clone());
        calls.spawn(async move {
            // The calls arrive in random order, spread over half a second, ten at a time.
            let place = n * 7 % 500;
            sleep(MS * 10 * (place / 10)).await;
            let acquire = limiter.acquire("key");
            sleep(MS * (place % 10)).await;
            assert!(acquire.await.is_allowed());
            left.lock().unwrap().push(place);
        });
    }
    calls.join_all().await;
    // A call takes its place in the queue at its first poll.
    assert_eq!(*left.lock().unwrap(), (0..500).collect::<Vec<_>>());
}

#[test]
fn a_call_that_would_wait_too_long_is_rejected_immediately() {
    let clock = ManualClock::new();
    let bucket = ten_a_second().queue(100).max_wait(MS * 250);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let mut first = PolledByHand::new(limiter.acquire("key"));
    assert!(first.poll());
    let first = first.output.unwrap();
    assert_eq!((first.limit(), first.remaining()), (3, 2));
    let mut waiting = [PolledByHand::new(limiter.acquire("key")), PolledByHand::new(limiter.acquire("key"))];
    assert!(waiting.iter_mut().all(|call| !call.poll()));
    let refused = now(&limiter, 1).unwrap();
    assert_eq!((refused.is_allowed(), refused.retry_after()), (false, Some(MS * 50)));
    clock.advance(MS * 50 - NS);
    assert_eq!(now(&limiter, 1).unwrap().retry_after(), Some(NS));
    clock.advance(NS);
    let mut waits = PolledByHand::new(limiter.acquire("key"));
    assert!(!waits.poll());
    // The clock advances step by step, so the schedule is not late.
    for _ in 0..4 {
        clock.advance(MS * 50);
        assert!(!waits.run());
    }
    clock.advance(MS * 50 - NS);
    assert!(!waits.run());
    clock.advance(NS);
    assert!(waits.run());
    assert_eq!(waits.output.unwrap().delay(), MS * 250);
}

#[test]
fn without_a_queue_no_call_waits() {
    for bucket in [ten_a_second().queue(0), ten_a_second().max_wait(Duration::ZERO)] {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
        let first = now(&limiter, 1).unwrap();
        assert_eq!((first.is_allowed(), first.limit(), first.remaining()), (true, 1, 0));
        clock.advance(MS * 30);
        assert_eq!(now(&limiter, 1).unwrap().retry_after(), Some(MS * 70));
        clock.advance(MS * 70 - NS);
        assert_eq!(now(&limiter, 1).unwrap().retry_after(), Some(NS));
        clock.advance(NS);
        assert!(now(&limiter, 1).unwrap().is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_higher_cost_is_released_at_its_slot_and_delays_the_next() {
    let limiter = RateLimiter::new(ten_a_second().queue(9));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for (n, cost) in [1, 5, 1, 0, 30, 2, 1].into_iter().enumerate() {
        let acquire = limiter.acquire_n("key", cost);
        calls.spawn(async move { (n, acquire.await.is_allowed(), start.elapsed().as_millis()) });
    }
    let mut seen = calls.join_all().await;
    seen.sort_unstable();
    // A call of cost 0 does not wait.
    assert_eq!(
        seen,
        [
            (0, true, 0),
            (1, true, 100),
            (2, true, 600),
            (3, true, 0),
            (4, true, 700),
            (5, true, 3_700),
            (6, true, 3_900)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_wait_for_each_other() {
    let limiter = RateLimiter::new(ten_a_second().queue(3));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for key in 0..200 {
        for n in 0..4 {
            let acquire = limiter.acquire(&key);
            calls.spawn(async move { (n, acquire.await.is_allowed(), start.elapsed()) });
        }
    }
    for (n, passes, at) in calls.join_all().await {
        assert_eq!((passes, at), (true, MS * 100 * n));
    }
    assert!(limiter.len() <= 200);
}

/// Returns the decision of `acquire`, if it is made at once.
fn now(limiter: &RateLimiter<LeakyBucket>, cost: u64) -> Option<Decision> {
    let mut call = PolledByHand::new(limiter.acquire_n("key", cost));
    call.poll();
    call.output
}

#[test]
fn a_check_while_a_call_is_queued_is_denied_and_reports_when_the_queue_is_empty() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(ten_a_second().queue(9)).clock(clock.clone()).build();
    assert!(now(&limiter, 1).unwrap().is_allowed());
    let mut waiting = [1, 4, 1].map(|cost| PolledByHand::new(limiter.acquire_n("key", cost)));
    assert!(waiting.iter_mut().all(|call| !call.poll()));
    clock.advance(MS * 30);
    // The first waiter is released in 70 ms. The slots after the waiters are one interval, four intervals and one
    // interval later.
    for wait in [670, 670] {
        assert_eq!(limiter.peek("key").retry_after(), Some(MS * wait));
        let denied = limiter.check("key");
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(MS * wait)));
        assert_eq!((denied.limit(), denied.remaining()), (1, 0));
    }
    for slot in [70, 100, 400] {
        clock.advance(MS * slot);
        assert!(!limiter.check("key").is_allowed());
    }
    clock.advance(MS * 100 - NS);
    assert_eq!(limiter.peek("key").retry_after(), Some(NS));
    assert_eq!(limiter.check("key").retry_after(), Some(NS));
    clock.advance(NS);
    assert_eq!((limiter.peek("key").is_allowed(), limiter.peek("key").remaining()), (true, 1));
    assert!(limiter.check("key").is_allowed());
    assert!(waiting.iter_mut().all(PolledByHand::run));
    assert!(!limiter.check("key").is_allowed());
}

#[test]
fn a_reset_releases_the_first_queued_call_and_the_others_follow_one_by_one() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(ten_a_second().queue(20)).clock(clock.clone()).build();
    assert!(now(&limiter, 1).unwrap().is_allowed());
    let mut queue: VecDeque<_> = (0..20).map(|_| PolledByHand::new(limiter.acquire("key"))).collect();
    assert!(queue.iter_mut().all(|call| !call.poll()));
    let mut leave = |at: &str| {
        assert!(queue.pop_front().unwrap().run(), "the first is late, {at}");
        assert!(queue.iter_mut().all(|call| !call.run()), "a call is early, {at}");
    };
    for _ in 0..4 {
        clock.advance(MS * 100);
        leave("before the reset");
    }
    clock.advance(MS * 50);
    limiter.reset("key");
    leave("with the reset");
    for _ in 0..15 {
        clock.advance(MS * 100);
        leave("after the reset");
    }
}

#[test]
fn a_clock_that_is_set_back_adds_at_most_a_period_to_any_wait() {
    for back in [MS, MS * 500, MS * 1_000, MS * 1_500, Duration::from_secs(50)] {
        let clock = ManualClock::new();
        clock.set(Duration::from_secs(100));
        let limiter = RateLimiter::builder(ten_a_second().queue(5)).clock(clock.clone()).build();
        assert!(now(&limiter, 1).unwrap().is_allowed());
        let mut queue = [(); 4].map(|()| PolledByHand::new(limiter.acquire("key")));
        assert!(queue.iter_mut().all(|call| !call.poll()));
        clock.set(Duration::from_secs(100) - back);
        assert!(queue.iter_mut().all(|call| !call.run()), "stepping back by {back:?} admits no call");
        for (n, call) in (1..).zip(&mut queue) {
            let mut waited = Duration::ZERO;
            while !call.run() {
                clock.advance(MS);
                waited += MS;
                assert!(waited <= MS * 1_100, "{back:?} back: number {n} still waits");
            }
        }
        // Calls that arrive later do not wait longer, either.
        let mut next = PolledByHand::new(limiter.acquire("key"));
        let mut waited = Duration::ZERO;
        while !next.poll() {
            clock.advance(MS);
            waited += MS;
            assert!(waited <= MS * 1_100, "{back:?} back: the next call still waits");
        }
    }
}

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

#[test]
fn remaining_and_reset_are_true_for_an_admitted_call() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(ten_a_second().queue(3)).clock(clock.clone()).build();
    let mut waiting: Vec<PolledByHand<Acquire<LeakyBucket>>> = Vec::new();
    let first = now(&limiter, 1).unwrap();
    assert_eq!((first.remaining(), first.reset_after()), (3, MS * 100));
    for _ in 0..3 {
        let mut call = PolledByHand::new(limiter.acquire("key"));
        assert!(!call.poll());
        waiting.push(call);
    }
    clock.advance(MS * 100);
    assert!(waiting[0].run());
    let second = waiting[0].output.unwrap();
    // Two calls are queued, and one place is free. After 300 ms, the queue is empty.
    assert_eq!((second.remaining(), second.reset_after()), (1, MS * 300));
    for call in &mut waiting[1..] {
        clock.advance(MS * 100);
        assert!(call.run());
    }
    clock.advance(MS * 100);
    assert_eq!(now(&limiter, 0).unwrap().remaining(), 4);
    assert_eq!(limiter.peek("key").reset_after(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_callers_of_which_a_tenth_is_cancelled_are_released_without_a_gap() {
    const CALLERS: u64 = 10_000;
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(1_000)).queue(CALLERS));
    let mut random = Random::new(7);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..CALLERS {
        let timeout_after = match random.one_in(10) {
            true => MS * random.below(10_000) as u32,
            false => Duration::from_secs(3_600),
        };
        let call = timeout(timeout_after, limiter.acquire("key"));
        calls.spawn(async move {
            let admitted = call.await.ok().map(|decision| {
                assert!(decision.is_allowed());
                start.elapsed()
            });
            (timeout_after, admitted)
        });
    }
    let seen = calls.join_all().await;
    assert!(seen.iter().all(|(timeout_after, at)| at.is_some() || *timeout_after < Duration::from_secs(11)));
    let mut left: Vec<_> = seen.into_iter().filter_map(|(_, at)| at).collect();
    left.sort_unstable();
    assert!(left.len() > 9_000 && left.len() < 9_900, "{}", left.len());
    for (n, at) in (0..).zip(&left) {
        let exact = MS * n;
        assert!(*at >= exact && *at <= exact + MS * 2, "number {n} left at {at:?}");
    }
    assert!(limiter.check("key").retry_after().unwrap() <= MS);
}

#[tokio::test(start_paused = true)]
async fn no_state_remains_of_a_removed_queue() {
    let limiter = RateLimiter::builder(ten_a_second().queue(3)).max_keys(50).build();
    for round in 0..20 {
        let mut calls = JoinSet::new();
        for key in 0..40 {
            for n in 0..4 {
                let call = timeout(MS * 150 * (1 + n % 2), limiter.acquire(&(round, key)));
                calls.spawn(async move { call.await.is_ok() });
            }
        }
        calls.join_all().await;
        assert!(limiter.len() <= 50);
        sleep(MS * 500).await;
    }
    // All keys are fresh, so each key has a place in the table, and its calls can be queued.
    let mut calls = JoinSet::new();
    for key in 0..50 {
        for _ in 0..4 {
            calls.spawn(limiter.acquire(&("last", key)));
        }
    }
    assert!(calls.join_all().await.iter().all(Decision::is_allowed));
}

#[tokio::test]
async fn over_a_socket_no_response_is_early_and_the_median_is_at_most_five_milliseconds_late() {
    const ROUNDS: usize = 7;
    let layer = RateLimitLayer::new(Header::new("x-round").unwrap(), ten_a_second().queue(3));
    let limited = axum::Router::new().route("/", axum::routing::get(|| async {})).layer(layer);
    let server = Server::start(limited.route("/plain", axum::routing::get(|| async {}))).await;
    let mut late: [Vec<Duration>; 4] = Default::default();
    // The lateness of the machine itself. It is measured at the same instants, with a timer, and with a request that is
    // not limited.
    let mut plain: [Vec<Duration>; 4] = Default::default();
    for round in 0..ROUNDS {
        let together = Arc::new(Barrier::new(9));
        let mut calls = JoinSet::new();
        for _ in 0..5 {
            let mut client = Client1::http1(server.address).await;
            let together = together.clone();
            let mut request: Request<Full<Bytes>> = request(Method::GET, "/");
            request.headers_mut().insert("x-round", round.into());
            calls.spawn(async move {
                together.wait().await;
                let start = Instant::now();
                let answer = client.send(request).await;
                (start, Instant::now(), answer)
            });
        }
        let mut controls = JoinSet::new();
        for n in 0..4 {
            let mut client = Client1::http1(server.address).await;
            let together = together.clone();
            controls.spawn(async move {
                together.wait().await;
                let slot = Instant::now() + MS * 100 * n;
                tokio::time::sleep_until(slot).await;
                client.send(request(Method::GET, "/plain")).await;
                (n as usize, slot.elapsed())
            });
        }
        let calls = calls.join_all().await;
        // The schedule begins when the first request is served, which is after the request was sent.
        let start = calls.iter().map(|(start, ..)| *start).min().unwrap();
        let mut passed = Vec::new();
        for (_, end, answer) in calls {
            match answer.status.as_u16() {
                200 => passed.push(end - start),
                429 => {
                    assert_eq!(answer.retry_after(), 1);
                    assert!(end - start < MS * 100, "rejected, but not immediately: {:?}", end - start);
                }
                _ => panic!("{answer:?}"),
            }
        }
        passed.sort_unstable();
        assert_eq!(passed.len(), 4);
        for (n, at) in passed.into_iter().enumerate() {
            let slot = MS * 100 * n as u32;
            late[n].push(at.checked_sub(slot).unwrap_or_else(|| panic!("number {n} is early: {at:?}")));
        }
        for (n, by) in controls.join_all().await {
            plain[n].push(by);
        }
    }
    let [late, plain] = [late, plain].map(|times| {
        times.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 2]
        })
    });
    for n in 0..4 {
        // The limit is 5 ms on a machine without delays of its own. It grows by the measured lateness of the machine.
        let machine = (plain[0] + plain[n]).saturating_sub(MS * 2);
        assert!(late[n] <= MS * 5 + machine, "late by {late:?}, and without a limit by {plain:?}");
    }
}
