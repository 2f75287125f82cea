//! Something that changes with time: what an algorithm counts, or what has passed.

use std::time::Duration;

use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::arrivals::{END, QUOTA};
use crate::workload::Story;

/// The same quota, counted in thousandths: so that one sees what is less than a unit.
pub(crate) const FINE: Quota = Quota::per_second(1_000 * QUOTA.limit());

/// No bucket fills by so much, in thousandths, in a millisecond.
const STEP: u32 = 100;

/// Points in milliseconds and thousandths, joined by straight lines.
#[derive(Debug, Default)]
pub(crate) struct Curve {
    pub(crate) points: Vec<(i32, i32)>,
}

impl Curve {
    /// What can be told of a story at any time.
    pub(crate) fn of(story: &Story, value: impl Fn(&Story, Duration) -> u64) -> Self {
        let mut curve = Self::default();
        for now in (0..=END).map(Duration::from_millis) {
            curve.push(now, 1_000 * value(story, now));
        }
        curve
    }

    /// What a look at the limiter tells, when just those calls come that passed: a refusal takes nothing, so it is left out. One that had to
    /// wait comes when its turn has come. So nobody is in line, and the look shows the state itself. The algorithm has the quota [`FINE`].
    pub(crate) fn inside<A: Algorithm>(algorithm: A, story: &Story, look: impl Fn(Decision) -> u64) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let key = "the only key";
        let mut calls = story.calls.iter().filter(|call| call.left().is_some()).peekable();
        let (mut curve, mut time) = (Self::default(), Duration::ZERO);
        for now in (0..=END).map(Duration::from_millis) {
            while let Some(call) = calls.peek().filter(|call| call.came <= now) {
                clock.set(time.max(call.came));
                let turn = time.max(call.came) + limiter.peek(key).retry_after().unwrap_or_default();
                if turn > now {
                    break;
                }
                clock.set(turn);
                curve.push(turn, look(limiter.peek(key)));
                assert!(limiter.check_n(key, 1_000).is_allowed(), "it passed before, at {turn:?}");
                curve.push(turn, look(limiter.peek(key)));
                time = turn;
                calls.next();
            }
            clock.set(now);
            time = now;
            curve.push(now, look(limiter.peek(key)));
        }
        curve
    }

    /// Adds a value, as a step where whole units come or go.
    fn push(&mut self, at: Duration, value: u64) {
        let new = (small(at.as_millis()), small(value));
        if let Some(last) = self.points.last().filter(|last| last.1.abs_diff(new.1) > STEP) {
            self.add((new.0, last.1));
        }
        self.add(new);
    }

    /// Adds a point, and takes back the one before if it lies on the way to this one.
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
