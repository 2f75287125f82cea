//! Properties of each algorithm when the calls that wait for it are disturbed.

use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::*;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use super::{ns, quota};
use crate::oracle::config::Rule;
use crate::support::PolledByHand;
use crate::support::Random;

/// The period of all algorithms of this file. All scheduled times are multiples of `STEP`.
const PERIOD: u64 = 100;
const STEP: u64 = 5;

type Call<A> = PolledByHand<Acquire<A>>;

struct Scene<A: Algorithm> {
    limiter: RateLimiter<A>,
    clock: ManualClock,
    now: u64,
}

impl<A: Algorithm> Scene<A> {
    fn at(rule: A, now: u64) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
        clock.set(ns(now));
        Self { limiter, clock, now }
    }

    /// Creates a scene in which the limit of the key is used up.
    fn busy(rule: A, now: u64) -> Self {
        let scene = Self::at(rule, now);
        while scene.limiter.check("key").is_allowed() {}
        scene
    }

    fn call(&self) -> Call<A> {
        self.costing(1)
    }

    fn costing(&self, cost: u64) -> Call<A> {
        let mut call = PolledByHand::new(self.limiter.acquire_n("key", cost));
        call.poll();
        call
    }

    fn line(&self, count: usize) -> Vec<Call<A>> {
        (0..count).map(|_| self.call()).collect()
    }

    fn set(&mut self, to: u64) {
        self.now = to;
        self.clock.set(Duration::from_nanos(to));
    }

    /// Polls the calls until all are released, in order. Returns the time of each release.
    fn leave(&mut self, mut line: Vec<Call<A>>) -> Vec<u64> {
        let mut left = vec![u64::MAX; line.len()];
        let start = self.now;
        loop {
            while line.iter().any(PolledByHand::is_woken) {
                line.iter_mut().for_each(|call| {
                    call.run();
                });
            }
            for (call, left) in line.iter().zip(&mut left) {
                if let Some(decision) = call.output.filter(|_| *left == u64::MAX) {
                    assert!(decision.is_allowed());
                    *left = self.now;
                }
            }
            if left.iter().all(|left| *left < u64::MAX) {
                assert!(left.is_sorted(), "in order: {left:?}");
                assert_eq!(self.limiter.queued(), 0);
                return left;
            }
            assert!(self.now < start + 20 * PERIOD, "a call is never released: {left:?}");
            self.set(self.now + STEP);
        }
    }
}

/// Calls a function with each algorithm, with a limit of two and a queue for ten calls.
macro_rules! of_each {
    ($look:ident) => {{
        let two = quota(2, PERIOD);
        let (bucket, log) = (TokenBucket::new(two).queue(10), SlidingLog::new(two).queue(10));
        let (fixed, leaky) = (FixedWindow::new(two).queue(10), LeakyBucket::new(two).queue(10));
        let counter = SlidingCounter::new(two).queue(10);
        $look("a token bucket", bucket.clone());
        $look("a fixed window", fixed.clone());
        $look("an aligned window", fixed.clone().aligned());
        $look("a sliding window", SlidingWindow::new(two).slices(4).queue(10));
        $look("a sliding log", log.clone());
        $look("a sliding counter", counter.clone());
        $look("a leaky bucket", leaky.clone());
        $look("a smooth one", Smooth::bursty(two).queue(10));
        $look("a bucket and a window", (bucket.clone(), fixed.clone()));
        $look("a queue and a log", (leaky.clone(), log.clone()));
        $look("three", (counter.clone(), bucket.clone(), log.clone()));
        $look("tiers", Tiered::new(bucket.clone()));
        $look("what blocks", log.block_for(ns(50)).after(1_000));
        $look("tiers that block", Tiered::new((bucket, fixed)).block_for(ns(50)).after(1_000));
    }};
}

#[test]
fn dropped_at_any_poll_a_call_is_charged_once_or_not_at_all_and_later_waiters_move_up() {
    fn look<A: Algorithm>(name: &str, rule: A) {
        // The times at which the calls behind the first call are released, if the first call is there, and if it is
        // not.
        let (turn, with) = {
            let mut scene = Scene::busy(rule.clone(), 0);
            let line = scene.line(3);
            let left = scene.leave(line);
            (left[0], left[1..].to_vec())
        };
        let without = {
            let mut scene = Scene::busy(rule.clone(), 0);
            let line = scene.line(2);
            scene.leave(line)
        };
        for notified_last in [false, true] {
            for polls in 0.. {
                let mut scene = Scene::busy(rule.clone(), 0);
                let mut first = PolledByHand::new(scene.limiter.acquire("key"));
                let mut behind = Vec::new();
                if polls > 0 {
                    first.poll();
                }
                behind.extend(scene.line(2));
                for _ in 1..polls {
                    scene.set(scene.now + STEP);
                    if notified_last {
                        behind.iter_mut().for_each(|call| {
                            call.run();
                        });
                    }
                    first.poll();
                }
                // At the scheduled time, either the first call is polled, or only the other calls are polled, so that
                // the first call is released, but never polled.
                if first.is_pending() {
                    scene.set(scene.now + STEP);
                }
                if notified_last {
                    behind.iter_mut().for_each(|call| {
                        call.run();
                    });
                }
                let ready = first.output.is_some();
                first.abandon();
                // If the call behind it was admitted at the same instant, the dropped call stays charged, as the docs
                // say.
                let charged = !ready && scene.now >= turn && with[0] == turn;
                let expected = if ready || charged { &with } else { &without };
                assert_eq!(scene.leave(behind), *expected, "{name}, dropped after {polls} polls");
                if ready {
                    break;
                }
            }
        }
    }
    of_each!(look);
}

#[test]
fn after_a_reset_the_queue_is_released_as_on_an_idle_key() {
    fn look<A: Algorithm>(name: &str, rule: A) {
        let mut idle = Scene::at(rule.clone(), 30);
        let line = idle.line(5);
        let expected = idle.leave(line);
        let mut scene = Scene::busy(rule, 0);
        let line = scene.line(5);
        scene.set(30);
        scene.limiter.reset("key");
        assert_eq!(scene.leave(line), expected, "{name}");
    }
    of_each!(look);
}

/// Returns the times of the releases if the algorithm is replaced after 30 ns, and if it is not replaced.
fn replaced<A: Algorithm>(old: &A, new: &A, cost: u64) -> (Vec<u64>, Vec<u64>) {
    let mut scene = Scene::busy(old.clone(), 0);
    let line = (0..5).map(|_| scene.costing(cost)).collect();
    let before = scene.leave(line);
    let mut scene = Scene::busy(old.clone(), 0);
    let line = (0..5).map(|_| scene.costing(cost)).collect();
    scene.set(30);
    scene.limiter.replace(new.clone());
    (before, scene.leave(line))
}

#[test]
fn a_faster_algorithm_delays_no_waiter_and_a_slower_one_blocks_none() {
    fn look<A: Algorithm>(name: &str, slow: A, fast: A) {
        let (before, after) = replaced(&slow, &fast, 1);
        assert!(
            after.iter().zip(&before).all(|(after, before)| after <= before),
            "{name}: {after:?} {before:?}"
        );
        assert!(after < before, "{name}");
        let (before, after) = replaced(&fast, &slow, 1);
        assert!(
            after.iter().zip(&before).all(|(after, before)| after >= before),
            "{name}: {after:?} {before:?}"
        );
        // A call that costs more than the new limit is released nevertheless.
        let (_, after) = replaced(&fast, &slow, 4);
        assert!(after.iter().all(|after| *after < 20 * PERIOD), "{name}");
    }
    let (slow, fast) = (quota(1, PERIOD), quota(4, PERIOD));
    let bucket = |quota| TokenBucket::new(quota).queue(10);
    let fixed = |quota| FixedWindow::new(quota).queue(10);
    let log = |quota| SlidingLog::new(quota).queue(10);
    let counter = |quota| SlidingCounter::new(quota).queue(10);
    let leaky = |quota| LeakyBucket::new(quota).queue(10);
    macro_rules! pair {
        ($name:literal, $rule:expr) => {
            look($name, $rule(slow), $rule(fast))
        };
    }
    pair!("a token bucket", bucket);
    pair!("a fixed window", fixed);
    pair!("an aligned window", |quota| fixed(quota).aligned());
    pair!("a sliding window", |quota| SlidingWindow::new(quota).slices(4).queue(10));
    pair!("a sliding log", log);
    pair!("a sliding counter", counter);
    pair!("a leaky bucket", leaky);
    pair!("a smooth one", |quota| Smooth::bursty(quota).queue(10));
    pair!("a bucket and a window", |quota| (bucket(quota), fixed(quota)));
    pair!("a queue and a log", |quota| (leaky(quota), log(quota)));
    pair!("what blocks", |quota| counter(quota).block_for(ns(50)).after(1_000));
}

#[test]
fn waiters_keep_their_slots_when_there_is_no_queue_any_more() {
    fn look<A: Algorithm>(name: &str, rule: A, none: A) {
        let mut scene = Scene::busy(rule.clone(), 0);
        let line = scene.line(4);
        let expected = scene.leave(line);
        let mut scene = Scene::busy(rule, 0);
        let line = scene.line(4);
        scene.limiter.replace(none);
        assert!(scene.call().output.is_some_and(|decision| !decision.is_allowed()), "{name}");
        assert_eq!(scene.leave(line), expected, "{name}");
    }
    let two = quota(2, PERIOD);
    look("a bucket", TokenBucket::new(two).queue(10), TokenBucket::new(two).queue(0));
    look("a window", FixedWindow::new(two).queue(10), FixedWindow::new(two).max_wait(Duration::ZERO));
    look("a log", SlidingLog::new(two).queue(10), SlidingLog::new(two).queue(0));
    look("a leaky bucket", LeakyBucket::new(two).queue(10), LeakyBucket::new(two).queue(0));
}

#[test]
fn a_clock_set_back_admits_no_waiter_early_and_adds_at_most_a_period() {
    fn look<A: Algorithm>(name: &str, rule: A) {
        let start = 50 * PERIOD;
        let mut scene = Scene::busy(rule.clone(), start);
        let line = scene.line(4);
        scene.set(start + 30);
        let waits: Vec<_> = scene.leave(line).into_iter().map(|at| at - start - 30).collect();
        for back in [STEP, PERIOD / 2, PERIOD, PERIOD + STEP, PERIOD * 3, start] {
            let mut scene = Scene::busy(rule.clone(), start);
            let mut line = scene.line(4);
            scene.set(start + 30);
            assert!(!line.iter_mut().any(PolledByHand::run), "{name}");
            scene.set(start + 30 - back);
            let from = scene.now;
            let left: Vec<_> = scene.leave(line).into_iter().map(|at| at - from).collect();
            for (left, wait) in left.iter().zip(&waits) {
                assert!(*left <= wait + PERIOD, "{name}, {back} back: {left}, not {wait}");
                // A window of the clock's grid begins at another time.
                let aligned = name.contains("aligned");
                assert!(left >= wait || aligned, "{name}, {back} back: {left}, not {wait}");
            }
            // A call that arrives then is not later either.
            let line = scene.line(2);
            scene.leave(line);
        }
    }
    of_each!(look);
}

#[test]
fn no_quota_no_cost_and_no_clock_makes_waiting_panic_or_overtake() {
    fn look<A: Algorithm>(random: &mut Random, rule: A) {
        let mut scene = Scene::at(rule, random.one_of(&[0, 1, u64::MAX >> 1, u64::MAX - 1, u64::MAX]));
        let mut line: Vec<Call<A>> = Vec::new();
        for _ in 0..12 {
            match random.below(8) {
                0..4 => {
                    let cost = random.one_of(&[0, 1, 1, 2, 3, 1 << 40, u64::MAX - 1, u64::MAX]);
                    line.push(scene.costing(cost));
                }
                4 => {
                    let cost = random.one_of(&[0, 1, u64::MAX]);
                    let peek = scene.limiter.peek_n("key", cost);
                    assert_eq!(scene.limiter.check_n("key", cost).is_allowed(), peek.is_allowed());
                }
                5 if !line.is_empty() => {
                    line.remove(random.below(line.len() as u64) as usize);
                }
                6 if random.one_in(2) => scene.limiter.refund("key", random.one_of(&[1, u64::MAX])),
                _ => {
                    let far = random.one_of(&[0, 1, 7, 1 << 30, 1 << 62, u64::MAX]);
                    let back = random.one_in(4);
                    let to = if back { scene.now.saturating_sub(far) } else { scene.now.saturating_add(far) };
                    scene.set(to);
                }
            }
            for (nth, call) in line.iter_mut().enumerate() {
                let polls = call.polls;
                while call.alarm.rang() && !call.poll() {
                    assert!(
                        call.polls < polls + 100,
                        "number {nth} spins at {}: {:?}",
                        scene.now,
                        scene.limiter
                    );
                }
            }
            let pending = line.iter().filter(|call| call.is_pending()).count();
            assert!(scene.limiter.queued() <= pending);
        }
        drop(line);
        assert_eq!(scene.limiter.queued(), 0);
    }
    for seed in 0..4_000 {
        let random = &mut Random::new(seed);
        let rule = Rule::extreme(random);
        let (quota, wait) = (rule.quota(), ns(random.one_of(&[0, 1, 1 << 40, i64::MAX as u64, u64::MAX])));
        let (places, bounded) = (random.one_of(&[0, 1, 2, u64::MAX]), random.one_in(2));
        let overflow = random.one_of(&[QueueOverflow::RejectNew, QueueOverflow::DropOldest]);
        macro_rules! any {
            ($rule:expr) => {{
                let rule = $rule.queue(places).overflow(overflow);
                if bounded { rule.max_wait(wait) } else { rule }
            }};
        }
        let slices = rule.slices as usize;
        match random.below(10) {
            0 => look(random, any!(TokenBucket::new(quota))),
            1 => look(random, any!(FixedWindow::new(quota))),
            2 => look(random, any!(FixedWindow::new(quota).aligned())),
            3 => look(random, any!(SlidingWindow::new(quota).slices(slices))),
            4 => look(random, any!(SlidingCounter::new(quota))),
            // A sliding log keeps a record of each call, not of each unit.
            5 => look(random, any!(SlidingLog::new(quota))),
            6 => look(random, any!(LeakyBucket::new(quota))),
            7 => look(random, any!(Smooth::bursty(quota))),
            8 => look(random, (any!(TokenBucket::new(quota).start_empty()), any!(FixedWindow::new(quota)))),
            _ => look(random, (any!(LeakyBucket::new(quota)), any!(SlidingCounter::new(quota)))),
        }
    }
}
