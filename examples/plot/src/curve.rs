//! A value over time: the state of an algorithm, or the number of admitted calls.

use std::time::Duration;

use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::arrivals::{END, QUOTA};
use crate::workload::Workload;

/// The quota of the pictures, in thousandths of a unit, so that fractions of a unit are visible.
pub(crate) const FINE: Quota = Quota::per_second(1_000 * QUOTA.limit());

/// A change by more than this, in thousandths, is drawn as a step. In a millisecond, a bucket refills by less.
const STEP: u32 = 100;

/// The points of a line. Each point is a time in milliseconds, and a value in thousandths.
#[derive(Debug, Default)]
pub(crate) struct Curve {
    pub(crate) points: Vec<(i32, i32)>,
}

impl Curve {
    /// Creates the curve of a value that can be computed from a workload at any time.
    pub(crate) fn of(workload: &Workload, value: impl Fn(&Workload, Duration) -> u64) -> Self {
        let mut curve = Self::default();
        for now in (0..=END).map(Duration::from_millis) {
            curve.push(now, 1_000 * value(workload, now));
        }
        curve
    }

    /// Creates the curve of a limiter's state as reported by `peek`. Only the admitted calls of `workload` are made,
    /// each at the time at which it was admitted.
    ///
    /// Denied calls are left out, since they charge nothing. A call that was queued is made at its scheduled time. So
    /// no call is queued here, and `peek` reports the state of the algorithm alone. The quota of `algorithm` is
    /// [`FINE`].
    pub(crate) fn inside<A: Algorithm>(
        algorithm: A,
        workload: &Workload,
        read: impl Fn(Decision) -> u64,
    ) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let key = "the only key";
        let mut calls = workload.calls.iter().filter(|call| call.admitted_at().is_some()).peekable();
        let (mut curve, mut time) = (Self::default(), Duration::ZERO);
        for now in (0..=END).map(Duration::from_millis) {
            while let Some(call) = calls.peek().filter(|call| call.arrived <= now) {
                clock.set(time.max(call.arrived));
                let ready_at = time.max(call.arrived) + limiter.peek(key).retry_after().unwrap_or_default();
                if ready_at > now {
                    break;
                }
                clock.set(ready_at);
                curve.push(ready_at, read(limiter.peek(key)));
                assert!(limiter.check_n(key, 1_000).is_allowed(), "it passed before, at {ready_at:?}");
                curve.push(ready_at, read(limiter.peek(key)));
                time = ready_at;
                calls.next();
            }
            clock.set(now);
            time = now;
            curve.push(now, read(limiter.peek(key)));
        }
        curve
    }

    /// Creates the curve of the value that `read` returns at each millisecond, and before and after each call. The
    /// function `call` makes a call.
    pub(crate) fn replay(
        clock: &ManualClock,
        calls: &[Duration],
        mut call: impl FnMut(Duration),
        read: impl Fn(Duration) -> u64,
    ) -> Self {
        let (mut curve, mut calls) = (Self::default(), calls.iter().peekable());
        for now in (0..=END).map(Duration::from_millis) {
            clock.set(now);
            curve.push(now, read(now));
            while calls.next_if(|at| **at <= now).is_some() {
                call(now);
                curve.push(now, read(now));
            }
        }
        curve
    }

    /// Adds a value. If the value differs from the previous one by more than [`STEP`], the curve has a step.
    fn push(&mut self, at: Duration, value: u64) {
        let new = (small(at.as_millis()), small(value));
        if let Some(last) = self.points.last().filter(|last| last.1.abs_diff(new.1) > STEP) {
            self.add((new.0, last.1));
        }
        self.add(new);
    }

    /// Adds a point. If the previous point lies on the straight line to the new point, the previous point is removed.
    fn add(&mut self, new: (i32, i32)) {
        if let [.., a, b] = self.points[..] {
            let (before, after) = ((b.0 - a.0, b.1 - a.1), (new.0 - b.0, new.1 - b.1));
            if before.0 * after.1 == before.1 * after.0 {
                self.points.pop();
            }
        }
        self.points.push(new);
    }
}

fn small(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}
