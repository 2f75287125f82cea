//! The pictures. For each picture, this module defines the algorithm, the curve and the title.

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::{Decision, Quota};

use crate::arrivals::{QUOTA, arrivals};
use crate::curve::{Curve, FINE};
use crate::custom::{concurrency, lockout, priority, tiers};
use crate::workload::Workload;

/// The sentence that states the limit in most pictures.
pub(crate) const PER_SECOND: &str = "The limit is 4 per second.";

#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// The sentence that says what the picture shows.
    pub(crate) title: &'static str,
    /// The sentence that states the limit.
    pub(crate) limit: &'static str,
    /// `true` if the limit is a number of calls per second. The last panel then shows where the limit is exceeded.
    pub(crate) is_per_second: bool,
    pub(crate) workload: Workload,
    pub(crate) inside: Inside,
}

/// The curve of the algorithm's own state.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) name: &'static str,
    pub(crate) curve: Curve,
    /// A value at which a dashed line is drawn, and the name of this line.
    pub(crate) level: (i32, &'static str),
    /// The largest number on the axis.
    pub(crate) max: i32,
}

pub(crate) fn scenes() -> Vec<Scene> {
    let limit = (4, "limit 4");
    vec![
        scene(
            ("fixed_window", "Fixed window: 7 pass within one second, though the limit is 4"),
            ("counted in the window that is open", limit),
            |quota| FixedWindow::new(quota).queue(0),
            used,
        ),
        scene(
            ("sliding_window", "Sliding window: at most 4 in any second; room returns by slices"),
            ("counted in the slices that touch the last second", limit),
            |quota| SlidingWindow::new(quota).queue(0),
            used,
        ),
        scene(
            ("sliding_log", "Sliding log: at most 4 in any second; room returns call by call"),
            ("records of the last second", limit),
            |quota| SlidingLog::new(quota).queue(0),
            used,
        ),
        scene(
            ("sliding_counter", "Sliding counter: what has passed fades from its estimate"),
            ("estimated for the last second", limit),
            |quota| SlidingCounter::new(quota).queue(0),
            used,
        ),
        scene(
            ("token_bucket", "Token bucket: a burst while tokens last, then one per new token"),
            ("tokens in the bucket", (4, "full")),
            |quota| TokenBucket::new(quota).queue(0),
            |decision| decision.remaining(),
        ),
        leaky_bucket(),
        scene(
            ("smooth_bursty", "Smooth, bursty: a pause saves up a burst; after it the pace is even"),
            ("permits saved up", (4, "full")),
            Smooth::bursty,
            saved,
        ),
        scene(
            ("smooth_warming_up", "Smooth, warming up: slow after a pause, at full rate a second later"),
            ("permits saved up", (2, "above: slower")),
            |quota| Smooth::warming_up(quota, Duration::from_secs(1)),
            saved,
        ),
        concurrency(),
        lockout(),
        priority(),
        tiers(),
    ]
}

fn scene<A: Algorithm>(
    (name, title): (&'static str, &'static str),
    (inside, level): (&'static str, (i32, &'static str)),
    algorithm: impl Fn(Quota) -> A,
    read: impl Fn(Decision) -> u64,
) -> Scene {
    let workload = Workload::of(algorithm(QUOTA), &arrivals());
    let curve = Curve::inside(algorithm(FINE), &workload, read);
    let inside = Inside { name: inside, curve, level, max: 4 };
    Scene { name, title, limit: PER_SECOND, is_per_second: true, workload, inside }
}

fn leaky_bucket() -> Scene {
    let workload = Workload::of(LeakyBucket::new(QUOTA), &arrivals());
    let curve = Curve::of(&workload, Workload::queued);
    let inside = Inside { name: "calls that wait", curve, level: (4, "4 places"), max: 4 };
    let title = "Leaky bucket: bursts are queued, and pass a quarter second apart";
    Scene { name: "leaky_bucket", title, limit: PER_SECOND, is_per_second: true, workload, inside }
}

fn used(decision: Decision) -> u64 {
    FINE.limit() - decision.remaining()
}

/// Returns the number of stored permits, in thousandths. In these pictures, both kinds of `Smooth` store at most the
/// permits of one second. `reset_after` minus `retry_after` is the time that it takes to store the permits that are
/// missing up to this maximum.
fn saved(decision: Decision) -> u64 {
    let missing = decision.reset_after().saturating_sub(decision.retry_after().unwrap_or_default());
    let units = missing.as_nanos() * u128::from(FINE.limit()) / FINE.period().as_nanos();
    FINE.limit().saturating_sub(u64::try_from(units).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::CALL;
    use crate::workload::Fate;

    fn scene(name: &str) -> Scene {
        scenes().into_iter().find(|scene| scene.name == name).unwrap()
    }

    fn gaps(name: &str, from: u64) -> Vec<u128> {
        let mut passes = scene(name).workload.passes();
        passes.retain(|pass| *pass >= Duration::from_millis(from));
        passes.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect()
    }

    #[test]
    fn titles_are_true() {
        assert_eq!(scene("fixed_window").workload.max_recent(), 7);
        for name in ["sliding_window", "sliding_log"] {
            assert_eq!(scene(name).workload.max_recent(), 4, "{name}");
        }
        assert!(gaps("leaky_bucket", 4_800).iter().all(|gap| *gap == 250));
        assert_eq!(gaps("smooth_bursty", 4_800)[..6], [0, 0, 0, 0, 250, 250]);
        assert_eq!(gaps("smooth_warming_up", 4_800)[..4], [625, 375, 250, 250]);
        assert_eq!(scene("concurrency").workload.max_in_progress(CALL), 4);
        assert_eq!(gaps("lockout", 4_800)[..5], [0, 0, 0, 2_000, 125]);
        // Only calls with priority wait, and never more than two of them.
        let workload = scene("priority").workload;
        let waits =
            workload.calls.iter().enumerate().filter(|(_, call)| matches!(call.fate, Fate::Waited(_)));
        assert!(waits.map(|(n, _)| n % 3).all(|rest| rest == 2) && workload.waits());
        let most = workload.calls.iter().map(|call| workload.queued(call.arrived)).max();
        assert_eq!(most, Some(2));
        let passes = scene("tiers").workload.passes();
        let at = |millis| passes.iter().filter(|pass| pass.as_millis() == millis).count();
        assert_eq!([at(2_100), at(2_225), at(4_800)], [3, 5, 8]);
        assert_eq!(gaps("tiers", 5_500)[..3], [250, 250, 250]);
    }

    #[test]
    fn titles_fit_in() {
        for scene in scenes() {
            assert!(scene.title.len() < 70, "{}", scene.title);
            assert!(scene.limit.len() < 60 && scene.workload.summary().len() < 62, "{}", scene.limit);
        }
    }
}
