//! Cancelled calls, resets and a clock that is set back release no waiter early, and block none.

use tower_throttle::algorithm::*;

use super::{PERIOD, STEP, Scene, of_each};
use crate::queueing::{ns, quota};
use crate::support::PolledByHand;

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
