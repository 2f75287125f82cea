//! Properties of each algorithm when the calls that wait for it are disturbed.

mod extremes;
mod interruptions;
mod replacements;

use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::*;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use crate::queueing::ns;
use crate::support::PolledByHand;

/// The period of all algorithms of these tests. All scheduled times are multiples of `STEP`.
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

    /// Polls the calls until all are admitted, in order. Returns the time of each admission.
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
            assert!(self.now < start + 20 * PERIOD, "a call is never admitted: {left:?}");
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
use of_each;
