//! Waiters are admitted by the algorithm that replaces theirs, also if it is slower or has no queue.

use std::time::Duration;

use tower_throttle::algorithm::*;

use super::{PERIOD, Scene};
use crate::queueing::{ns, quota};

/// Returns the times of the admissions if the algorithm is replaced after 30 ns, and if it is not replaced.
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
        // A call that costs more than the new limit is admitted nevertheless.
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
