//! Cancelled calls, resets and a clock that is set back admit no waiter early, and block none.

use tower_throttle::algorithm::*;

use super::{PERIOD, STEP, Scene, of_each};
use crate::queueing::{ns, quota};
use crate::support::PolledByHand;

#[test]
fn after_a_reset_the_queue_admits_as_on_an_idle_key() {
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
