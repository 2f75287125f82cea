//! Admissions after a stall of the runtime. Slots that are overdue by more than 5 ms are lost.

use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::*;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use super::{SECOND, ns, quota};
use crate::support::{PolledByHand, Random};

const MS: u64 = 1_000_000;
/// The tolerance that `LeakyBucket`, `TokenBucket` and `Smooth` document.
const TOLERANCE: u64 = 5 * MS;

/// A limiter with many queued calls, and the instants at which they are admitted.
struct Stalled<A: Algorithm> {
    _limiter: RateLimiter<A>,
    clock: ManualClock,
    now: u64,
    waiting: Vec<PolledByHand<Acquire<A>>>,
    left: Vec<u64>,
}

impl<A: Algorithm> Stalled<A> {
    /// Creates a limiter and `calls` calls, all of which arrive at zero.
    fn with(algorithm: A, calls: usize) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let waiting = (0..calls).map(|_| PolledByHand::new(limiter.acquire("key"))).collect();
        let mut stalled = Self { _limiter: limiter, clock, now: 0, waiting, left: Vec::new() };
        stalled.waiting.iter_mut().for_each(|call| {
            call.poll();
        });
        stalled.poll();
        stalled
    }

    /// Advances to `to` without polling any call, and then polls all calls.
    fn stall_until(&mut self, to: u64) -> usize {
        self.now = to;
        self.clock.set(Duration::from_nanos(to));
        self.poll()
    }

    fn poll(&mut self) -> usize {
        let before = self.left.len();
        while self.waiting.iter().any(PolledByHand::is_woken) {
            self.waiting.iter_mut().for_each(|call| {
                call.run();
            });
        }
        self.waiting.retain(|call| match call.output {
            Some(decision) => {
                assert!(decision.is_allowed());
                self.left.push(self.now);
                false
            }
            None => true,
        });
        self.left.len() - before
    }

    /// Polls all calls at each multiple of `tick`, until all are admitted.
    fn finish(&mut self, tick: u64) {
        while !self.waiting.is_empty() {
            self.stall_until((self.now / tick + 1) * tick);
        }
    }

    /// Asserts that no span has more admissions than `burst`, and the number that the rate brings in the span and the
    /// tolerance.
    fn keeps_the_rate(&self, burst: u64, limit: u64, period: u64) {
        let allowed = |span: u64| {
            u128::from(burst) + u128::from(span + TOLERANCE) * u128::from(limit) / u128::from(period)
        };
        for (first, from) in self.left.iter().enumerate() {
            for (last, to) in self.left.iter().enumerate().skip(first) {
                let count = (last - first + 1) as u128;
                let span = to - from;
                assert!(count <= allowed(span), "{count} leave within {span} ns, from {from} on");
            }
        }
    }
}

#[test]
fn after_a_stall_of_the_runtime_a_leaky_bucket_admits_one_call_and_the_next_an_interval_later() {
    let mut queue = Stalled::with(LeakyBucket::new(quota(10, SECOND)).queue(20), 21);
    assert_eq!(queue.left, [0]);
    assert_eq!(queue.stall_until(1_500 * MS), 1, "fifteen slots are overdue");
    assert_eq!(queue.stall_until(1_595 * MS - 1), 0);
    assert_eq!(queue.stall_until(1_595 * MS), 1);
    queue.finish(MS);
    assert_eq!(queue.now, 1_595 * MS + 18 * 100 * MS);
    queue.keeps_the_rate(1, 10, SECOND);
}

#[test]
fn slots_that_are_overdue_by_a_few_ticks_of_the_timer_are_made_up_for() {
    fn look<A: Algorithm>(algorithm: A, calls: usize, tick: u64) {
        let mut queue = Stalled::with(algorithm, calls + 1);
        queue.finish(tick);
        assert_eq!(queue.now, (calls as u64 * MS).next_multiple_of(tick));
    }
    let thousand = quota(1_000, SECOND).burst(1);
    for (calls, tick) in [(1_000, TOLERANCE), (200, 3 * MS), (200, 2 * MS), (200, MS)] {
        look(LeakyBucket::new(thousand).queue(1_000), calls, tick);
        look(TokenBucket::new(thousand).queue(1_000), calls, tick);
        look(Smooth::bursty(thousand).queue(1_000), calls, tick);
    }
}

#[test]
fn after_a_stall_a_token_bucket_admits_no_more_than_it_holds() {
    // With a burst of 3, at most three calls are admitted, although fifteen tokens have come.
    let mut queue = Stalled::with(TokenBucket::new(quota(10, SECOND).burst(3)).queue(30), 33);
    assert_eq!(queue.left.len(), 3);
    assert_eq!(queue.stall_until(1_500 * MS), 3);
    assert_eq!(queue.stall_until(1_595 * MS), 1);
    queue.finish(MS);
    queue.keeps_the_rate(3, 10, SECOND);
    // With a burst of 20, which is used up, all fifteen tokens that have come may be used at once.
    let mut queue = Stalled::with(TokenBucket::new(quota(10, SECOND).burst(20)).queue(30), 50);
    assert_eq!(queue.left.len(), 20);
    assert_eq!(queue.stall_until(1_500 * MS), 15);
    queue.finish(MS);
    queue.keeps_the_rate(20, 10, SECOND);
}

#[test]
fn after_a_stall_the_calls_queued_for_a_smooth_limiter_are_admitted_an_interval_apart() {
    let mut queue = Stalled::with(Smooth::bursty(quota(10, SECOND)).queue(30), 31);
    assert_eq!(queue.stall_until(1_500 * MS), 1, "a stall stores no permits");
    queue.finish(MS);
    queue.keeps_the_rate(1, 10, SECOND);
    let warming_up = Smooth::warming_up(quota(10, SECOND), Duration::from_secs(2)).queue(30);
    let mut queue = Stalled::with(warming_up, 31);
    assert_eq!(queue.stall_until(9_000 * MS), 1);
    queue.finish(MS);
    queue.keeps_the_rate(1, 10, SECOND);
}

/// A tuple charges a queued call at the time at which all members admit it, as a lone algorithm does.
#[test]
fn the_queue_of_a_tuple_keeps_the_schedule_of_its_members() {
    let wide = FixedWindow::new(quota(1_000_000, 1_000 * SECOND)).queue(2_000);
    let mut queue = Stalled::with((Smooth::bursty(quota(10, SECOND)).queue(20), wide.clone()), 21);
    assert_eq!(queue.stall_until(1_100 * MS), 1, "a stall stores no permits");
    assert_eq!(queue.stall_until(1_195 * MS - 1), 0);
    assert_eq!(queue.stall_until(1_195 * MS), 1);
    queue.finish(MS);
    assert_eq!(queue.now, 1_195 * MS + 18 * 100 * MS);

    fn look<A: Algorithm>(algorithm: A, tick: u64) {
        let mut queue = Stalled::with(algorithm, 1_001);
        queue.finish(tick);
        assert_eq!(queue.now, 200 * MS, "{tick}");
    }
    let fast = quota(5_000, SECOND).burst(1);
    for tick in [MS, TOLERANCE] {
        look((LeakyBucket::new(fast).queue(2_000), wide.clone()), tick);
        look((wide.clone(), TokenBucket::new(fast).queue(2_000)), tick);
        look((Smooth::bursty(fast).queue(2_000), wide.clone()), tick);
        look((LeakyBucket::new(fast).queue(2_000), TokenBucket::new(fast).queue(2_000)), tick);
        look(Tiered::new((wide.clone(), LeakyBucket::new(fast).queue(2_000))), tick);
    }
}

/// A tuple in a tuple admits each call when one tuple of all members does.
#[test]
fn nesting_of_tuples_changes_no_admission() {
    fn admissions<A: Algorithm>(seed: u64, algorithm: A) -> Vec<u64> {
        let random = &mut Random::new(seed);
        let mut queue = Stalled::with(algorithm, 40);
        while !queue.waiting.is_empty() {
            let far = random.one_of(&[MS, 7 * MS, 300 * MS]);
            queue.stall_until(queue.now + random.within(1..=far));
        }
        queue.left
    }
    fn look<A: Algorithm, B: Algorithm, C: Algorithm>(seed: u64, (a, b, c): (A, B, C)) {
        let flat = admissions(seed, (a.clone(), b.clone(), c.clone()));
        let left = ((a.clone(), b.clone()), c.clone());
        let right = (a, (b, c));
        assert_eq!(admissions(seed, left.clone()), flat, "seed {seed}: {left:?}");
        assert_eq!(admissions(seed, right.clone()), flat, "seed {seed}: {right:?}");
    }
    for seed in 0..40 {
        let random = &mut Random::new(seed);
        let few = quota(random.one_of(&[10, 100, 5_000]), SECOND).burst(random.within(1..=4));
        let window = FixedWindow::new(quota(random.one_of(&[10, 1_000_000]), SECOND)).queue(100);
        let bucket = TokenBucket::new(few).queue(100);
        let smooth = Smooth::bursty(few).queue(100);
        look(seed, (bucket.clone(), window.clone(), LeakyBucket::new(few).queue(100)));
        look(seed, (window.clone(), smooth.clone(), bucket.clone()));
        look(seed, (smooth, bucket, window));
    }
}

/// A member whose units are released admits the call from the release, and not 5 ms before.
#[test]
fn the_bucket_of_a_tuple_is_charged_when_a_permit_is_released() {
    fn look<A: Algorithm>(algorithm: A) {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let at = |ms: u64| clock.set(Duration::from_millis(ms));
        let permit = limiter.try_acquire_permit("key").unwrap();
        at(100);
        let mut waiting = [(); 2].map(|()| PolledByHand::new(Box::pin(limiter.acquire_permit("key"))));
        assert!(waiting.iter_mut().all(|call| !call.poll()));
        at(3_000);
        drop(permit);
        let [first, second] = &mut waiting;
        assert!(first.poll() && !second.poll());
        at(3_500);
        drop(first.output.take());
        for (ms, is_admitted) in [(3_995, false), (3_999, false), (4_000, true)] {
            at(ms);
            assert_eq!(second.poll(), is_admitted, "{ms}");
        }
    }
    let (bucket, one) = (TokenBucket::new(quota(1, SECOND)).queue(5), Concurrency::per_key(1).queue(5));
    let wide = FixedWindow::new(quota(1_000_000, SECOND)).queue(5);
    look((bucket.clone(), one.clone()));
    look(((bucket.clone(), one.clone()), wide.clone()));
    look((bucket, (wide, one)));
}

/// While a queued call waits for another member, a `Smooth` stores permits, but not in the stall after that wait.
#[test]
fn a_smooth_limiter_in_a_tuple_stores_the_time_for_which_it_waits_for_another_member() {
    let window = FixedWindow::new(quota(10, SECOND)).queue(20);
    let smooth = Smooth::bursty(quota(100, SECOND)).queue(20);
    let mut queue = Stalled::with((smooth, window), 20);
    for at in 1..=9 {
        assert_eq!(queue.stall_until(at * 10 * MS), 1);
    }
    // At 1,000 ms, the window begins again, and 90 permits are stored.
    assert_eq!(queue.stall_until(3_000 * MS), 10);
}

#[test]
fn a_peek_and_the_times_of_later_waiters_follow_the_moved_schedule() {
    let mut queue = Stalled::with(LeakyBucket::new(quota(10, SECOND)).queue(20), 6);
    queue.clock.set(Duration::from_nanos(1_500 * MS));
    let limiter = queue._limiter.clone();
    // Five calls wait. They are admitted at 1,500, 1,595, .. 1,895 ms, so the next call can be admitted at 1,995 ms.
    assert_eq!(limiter.peek("key").retry_after(), Some(ns(495 * MS)));
    queue.now = 1_500 * MS;
    assert_eq!(queue.poll(), 1);
    assert_eq!(limiter.check("key").retry_after(), Some(ns(495 * MS)));
    queue.finish(MS);
    assert_eq!(queue.now, 1_895 * MS);
}

#[test]
fn queues_of_every_kind_keep_the_rate_after_any_stall() {
    fn look<A: Algorithm>(random: &mut Random, algorithm: A, burst: u64, limit: u64) {
        let mut queue = Stalled::with(algorithm, 40);
        while !queue.waiting.is_empty() {
            let far = random.one_of(&[5 * MS, 7 * MS, SECOND / limit, 8 * SECOND / limit]);
            queue.stall_until(queue.now + random.within(1..=far.max(SECOND / limit)));
        }
        queue.keeps_the_rate(burst, limit, SECOND);
    }
    for seed in 0..40 {
        let random = &mut Random::new(seed);
        let (limit, burst) = (random.one_of(&[3, 10, 100, 5_000]), random.within(1..=8));
        let quota = quota(limit, SECOND).burst(burst);
        let leaky = LeakyBucket::new(quota).queue(100);
        let bucket = TokenBucket::new(quota).queue(100);
        look(random, leaky.clone(), 1, limit);
        look(random, bucket.clone(), burst, limit);
        look(random, (leaky.clone(), bucket.clone()), 1, limit);
        look(random, (leaky.clone(), leaky.clone()), 1, limit);
        let wide = FixedWindow::new(self::quota(1_000_000, SECOND)).queue(100);
        look(random, (Smooth::bursty(quota).queue(100), wide.clone()), 1, limit);
        look(random, (wide, leaky.clone(), Smooth::bursty(quota).queue(100)), 1, limit);
        look(random, Tiered::new(leaky.clone()), 1, limit);
        look(random, bucket.clone().block_for(ns(SECOND)).after(1_000), burst, limit);
        look(random, Smooth::bursty(quota).queue(100), 1, limit);
    }
}
