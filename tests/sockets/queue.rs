//! Waiting in line: who leaves when, who is refused, and what each is told.

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

/// `count` calls for one key at one instant, each a task: the decisions in the order of the calls, and when they came.
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
async fn five_at_one_instant_leave_one_by_one_and_the_fifth_is_refused_at_once() {
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
async fn the_layer_holds_requests_and_refuses_the_fifth_at_once() {
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
async fn a_thousand_queued_at_five_thousand_a_second_are_gone_after_200_ms() {
    let bucket = LeakyBucket::new(Quota::per_second(5_000)).queue(1_000);
    let seen = at_one_instant(bucket, 1_001).await;
    assert_eq!(admitted(&seen).len(), 1_001);
    for (n, (_, at)) in (0..).zip(&seen) {
        // The timer ticks in milliseconds: nobody leaves before the slot, and nobody later than the tick after it.
        let slot = MS / 5 * n;
        assert_eq!(at.as_nanos(), slot.as_nanos().next_multiple_of(1_000_000), "{n}");
    }
    assert_eq!(seen[1_000].1, MS * 200);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_queued_at_a_thousand_a_second_leave_one_each_millisecond() {
    let bucket = LeakyBucket::new(Quota::per_second(1_000)).queue(1_000);
    let seen = at_one_instant(bucket, 1_001).await;
    assert_eq!(admitted(&seen), (0..=1_000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_rate_above_the_timers_is_kept() {
    // Ten thousand slots in each tick, and three units in seven ticks.
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
    // Six callers that come again as soon as they are let in: the line is never empty.
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
async fn who_comes_first_leaves_first() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(100)).queue(500));
    let left = Arc::new(Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    for n in 0..500 {
        let (limiter, left) = (limiter.clone(), left.clone());
        calls.spawn(async move {
            // They come in an order of their own, spread over half a second, ten at a time.
            let place = n * 7 % 500;
            sleep(MS * 10 * (place / 10)).await;
            let acquire = limiter.acquire("key");
            sleep(MS * (place % 10)).await;
            assert!(acquire.await.is_allowed());
            left.lock().unwrap().push(place);
        });
    }
    calls.join_all().await;
    // A place in line is taken with the first poll.
    assert_eq!(*left.lock().unwrap(), (0..500).collect::<Vec<_>>());
}

#[test]
fn a_call_that_would_wait_too_long_is_rejected_at_once() {
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
    // Step by step: the schedule keeps up with the clock.
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
async fn a_call_of_a_higher_cost_leaves_at_its_slot_and_holds_back_the_next() {
    let limiter = RateLimiter::new(ten_a_second().queue(9));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for (n, cost) in [1, 5, 1, 0, 30, 2, 1].into_iter().enumerate() {
        let acquire = limiter.acquire_n("key", cost);
        calls.spawn(async move { (n, acquire.await.is_allowed(), start.elapsed().as_millis()) });
    }
    let mut seen = calls.join_all().await;
    seen.sort_unstable();
    // Costs nothing, waits for nobody.
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

/// The answer of `acquire`, if it comes at once.
fn now(limiter: &RateLimiter<LeakyBucket>, cost: u64) -> Option<Decision> {
    let mut call = PolledByHand::new(limiter.acquire_n("key", cost));
    call.poll();
    call.output
}

#[test]
fn a_check_while_somebody_waits_is_denied_and_tells_when_the_line_is_empty() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(ten_a_second().queue(9)).clock(clock.clone()).build();
    assert!(now(&limiter, 1).unwrap().is_allowed());
    let mut waiting = [1, 4, 1].map(|cost| PolledByHand::new(limiter.acquire_n("key", cost)));
    assert!(waiting.iter_mut().all(|call| !call.poll()));
    clock.advance(MS * 30);
    // 70 ms to the first, which takes one interval, the next four, the last one.
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
fn a_reset_lets_the_first_of_the_line_go_and_the_others_follow_one_by_one() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(ten_a_second().queue(20)).clock(clock.clone()).build();
    assert!(now(&limiter, 1).unwrap().is_allowed());
    let mut line: VecDeque<_> = (0..20).map(|_| PolledByHand::new(limiter.acquire("key"))).collect();
    assert!(line.iter_mut().all(|call| !call.poll()));
    let mut leave = |at: &str| {
        assert!(line.pop_front().unwrap().run(), "the first is late, {at}");
        assert!(line.iter_mut().all(|call| !call.run()), "somebody is early, {at}");
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
        let mut line = [(); 4].map(|()| PolledByHand::new(limiter.acquire("key")));
        assert!(line.iter_mut().all(|call| !call.poll()));
        clock.set(Duration::from_secs(100) - back);
        assert!(line.iter_mut().all(|call| !call.run()), "stepping back by {back:?} lets nobody in");
        for (n, call) in (1..).zip(&mut line) {
            let mut waited = Duration::ZERO;
            while !call.run() {
                clock.advance(MS);
                waited += MS;
                assert!(waited <= MS * 1_100, "{back:?} back: number {n} still waits");
            }
        }
        // Nor does whoever comes later wait longer.
        let mut next = PolledByHand::new(limiter.acquire("key"));
        let mut waited = Duration::ZERO;
        while !next.poll() {
            clock.advance(MS);
            waited += MS;
            assert!(waited <= MS * 1_100, "{back:?} back: the next call still waits");
        }
    }
}

/// A line and, beside it, the exact schedule: in units of the rate, without rounding.
struct World {
    limiter: RateLimiter<LeakyBucket>,
    clock: ManualClock,
    limit: u128,
    period: u128,
    places: usize,
    /// In nanoseconds.
    max_wait: Option<u128>,
    now: u128,
    /// When the next may leave, in nanoseconds times the limit.
    next: u128,
    line: VecDeque<Waiting>,
    refused: Vec<(u64, Decision)>,
}

struct Waiting {
    call: PolledByHand<Acquire<LeakyBucket>>,
    cost: u64,
    arrived: u128,
}

/// What a world is made of. It comes again with its seed.
#[derive(Clone, Copy, Debug)]
struct Kind {
    seed: u64,
    limit: u64,
    period: Duration,
}

impl World {
    fn new(kind: Kind) -> (Self, Random) {
        let mut random = Random::new(kind.seed);
        let places = random.below(6);
        let clock = ManualClock::new();
        let mut bucket = LeakyBucket::new(Quota::per(kind.limit, kind.period).unwrap()).queue(places);
        let interval = kind.period.as_nanos() as u64 / kind.limit;
        let max_wait = random.one_in(2).then(|| random.below(interval * 5));
        if let Some(max_wait) = max_wait {
            bucket = bucket.max_wait(Duration::from_nanos(max_wait));
        }
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
        let world = Self {
            limiter,
            clock,
            limit: u128::from(kind.limit),
            period: kind.period.as_nanos(),
            places: places as usize,
            max_wait: max_wait.map(u128::from),
            now: 0,
            next: 0,
            line: VecDeque::new(),
            refused: Vec::new(),
        };
        (world, random)
    }

    /// When a newcomer would leave, in whole nanoseconds.
    fn turn(&self) -> u128 {
        let ahead: u128 = self.line.iter().map(|waiting| u128::from(waiting.cost)).sum();
        (self.next.max(self.now * self.limit * u128::from(self.line.is_empty())) + ahead * self.period)
            .div_ceil(self.limit)
    }

    fn advance(&mut self, by: u128) {
        self.clock.advance(Duration::from_nanos(by as u64));
        self.now += by;
        self.settle();
    }

    /// The same, but every slot on the way is met.
    fn pass(&mut self, by: u128) {
        let end = self.now + by;
        while !self.line.is_empty() && self.next.div_ceil(self.limit) < end {
            self.advance(self.next.div_ceil(self.limit) - self.now);
        }
        self.advance(end - self.now);
    }

    /// Those whose slot has come have left, and no others.
    fn settle(&mut self) {
        while let Some(first) = self.line.front_mut() {
            if self.next.div_ceil(self.limit) > self.now {
                break;
            }
            assert!(first.call.run(), "the first is late at {}", self.now);
            let decision = first.call.output.unwrap();
            assert!(decision.is_allowed());
            assert_eq!(decision.delay().as_nanos(), self.now - first.arrived);
            // A slot that is overdue by more than five milliseconds moves.
            let earliest = first.arrived.max(self.now.saturating_sub(5_000_000));
            self.next = self.next.max(earliest * self.limit) + u128::from(first.cost) * self.period;
            self.line.pop_front();
        }
        assert!(self.line.iter_mut().all(|waiting| !waiting.call.run()), "early at {}", self.now);
    }

    fn acquire(&mut self, cost: u64) {
        let turn = self.turn();
        let mut call = PolledByHand::new(self.limiter.acquire_n("key", cost));
        call.poll();
        let wait = turn - self.now;
        let at_once = cost == 0 || self.line.is_empty() && wait == 0;
        let may_wait = self.line.len() < self.places && self.max_wait.is_none_or(|most| wait <= most);
        match (call.output, at_once, may_wait) {
            (Some(decision), true, _) => {
                assert!(decision.is_allowed() && decision.delay().is_zero());
                if cost > 0 {
                    self.next = self.next.max(self.now * self.limit) + u128::from(cost) * self.period;
                }
            }
            (None, false, true) => self.line.push_back(Waiting { call, cost, arrived: self.now }),
            (Some(decision), false, false) => {
                assert!(!decision.is_allowed());
                self.refused.push((cost, decision));
            }
            other => panic!("{other:?} at {} with {} before it", self.now, self.line.len()),
        }
    }

    fn check(&mut self, cost: u64) {
        let wait = self.turn() - self.now;
        let peeked = self.limiter.peek("key");
        let (decision, passes) = (self.limiter.check_n("key", cost), self.line.is_empty() && wait == 0);
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
            6 if !self.line.is_empty() => {
                let leaves = random.below(self.line.len() as u64) as usize;
                self.line.remove(leaves);
                self.settle();
            }
            // To the nanosecond of a slot, and to the one before it.
            7 => self.advance(self.next.div_ceil(self.limit).saturating_sub(self.now)),
            8 => self.advance(self.next.div_ceil(self.limit).saturating_sub(self.now + 1)),
            _ => self.advance(u128::from(random.below(2 * interval as u64 + 2))),
        }
    }

    /// The world as it is after some steps.
    fn after(kind: Kind, steps: usize) -> Self {
        let (mut world, mut random) = Self::new(kind);
        for _ in 0..steps {
            world.step(&mut random);
        }
        world
    }
}

thread_local! {
    /// The world that is looked at, for the message of a failure.
    static LOOKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Prints which world failed.
struct Witness;

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            LOOKED_AT.with_borrow(|world| eprintln!("in the world {world}"));
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
fn every_call_leaves_at_its_exact_slot_or_is_refused() {
    let _witness = Witness;
    for kind in kinds(2_000) {
        LOOKED_AT.set(format!("{kind:?}"));
        let (mut world, mut random) = World::new(kind);
        for _ in 0..64 {
            world.step(&mut random);
        }
        // All who are left leave.
        while !world.line.is_empty() {
            world.advance(world.next.div_ceil(world.limit) - world.now);
        }
    }
}

#[test]
fn a_refused_call_is_refused_until_its_retry_after_and_not_at_it() {
    let _witness = Witness;
    let mut looked_at = 0;
    for kind in kinds(150) {
        for steps in 1..32 {
            LOOKED_AT.set(format!("{kind:?} after {steps} steps"));
            let before = World::after(kind, steps - 1).refused.len();
            let mut world = World::after(kind, steps);
            let Some((cost, decision)) = world.refused.get(before).copied() else { continue };
            let wait = decision.retry_after().expect("time heals it").as_nanos();
            assert!(wait > 0);
            world.pass(wait - 1);
            let early = now(&world.limiter, cost).expect("nanosecond by nanosecond it is refused at once");
            assert_eq!((early.is_allowed(), early.retry_after()), (false, Some(NS)));

            let mut world = World::after(kind, steps);
            world.pass(wait);
            let then = now(&world.limiter, cost);
            assert!(then.is_none_or(|decision| decision.is_allowed()), "{then:?} after {wait} ns");
            looked_at += 1;
        }
    }
    assert!(looked_at > 1_000, "{looked_at}");
}

#[test]
fn as_many_are_let_in_as_remain() {
    let _witness = Witness;
    for kind in kinds(150) {
        for steps in [5, 11, 17, 31, 47] {
            LOOKED_AT.set(format!("{kind:?} after {steps} steps"));
            let world = World::after(kind, steps);
            // Costs nothing, says how things stand.
            let remaining = now(&world.limiter, 0).unwrap().remaining();
            let mut calls: Vec<_> =
                (0..=remaining).map(|_| PolledByHand::new(world.limiter.acquire("key"))).collect();
            for (n, call) in (0..).zip(&mut calls) {
                call.poll();
                let let_in = call.output.is_none_or(|decision| decision.is_allowed());
                assert_eq!(let_in, n < remaining, "number {n} of {remaining}");
            }
        }
    }
}

#[test]
fn what_remains_and_what_is_told_of_the_reset_is_true_of_an_admission() {
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
    // Two wait; one place is free; after 300 ms nobody is there any more.
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
async fn ten_thousand_callers_of_whom_a_tenth_gives_up_leave_without_a_gap() {
    const CALLERS: u64 = 10_000;
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(1_000)).queue(CALLERS));
    let mut random = Random::new(7);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..CALLERS {
        let patience = match random.one_in(10) {
            true => MS * random.below(10_000) as u32,
            false => Duration::from_secs(3_600),
        };
        let call = timeout(patience, limiter.acquire("key"));
        calls.spawn(async move {
            let let_in = call.await.ok().map(|decision| {
                assert!(decision.is_allowed());
                start.elapsed()
            });
            (patience, let_in)
        });
    }
    let seen = calls.join_all().await;
    assert!(seen.iter().all(|(patience, at)| at.is_some() || *patience < Duration::from_secs(11)));
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
async fn nothing_is_kept_of_a_line_that_is_gone() {
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
    // All keys are fresh: each finds a place of its own, and may wait.
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
    // What the machine is late by itself: a timer and a request at the same instants, not limited.
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
        // The schedule begins when the first one is served, which is not before the first one was sent.
        let start = calls.iter().map(|(start, ..)| *start).min().unwrap();
        let mut passed = Vec::new();
        for (_, end, answer) in calls {
            match answer.status.as_u16() {
                200 => passed.push(end - start),
                429 => {
                    assert_eq!(answer.retry_after(), 1);
                    assert!(end - start < MS * 100, "refused, but not at once: {:?}", end - start);
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
        // On a machine that is in time, five milliseconds; on one that is not, that much more.
        let machine = (plain[0] + plain[n]).saturating_sub(MS * 2);
        assert!(late[n] <= MS * 5 + machine, "late by {late:?}, and without a limit by {plain:?}");
    }
}
