//! The time of a key, which follows a clock that may step back.

use crate::clock::Nanos;

/// The maximum time from the charge of a queued call to its admission, in nanoseconds: five ticks of tokio's timer.
///
/// A queued call that is admitted late is charged at its scheduled time, but at most this long before its admission. So
/// a timer that is at most this late does not lower the rate. After a longer stall, the schedule moves to later times,
/// and missed admissions are not made up for.
const MAX_OVERDUE: u64 = 5_000_000;

/// Returns the earliest time at which a queued call that is admitted at `now` can be charged.
#[inline]
pub(super) const fn earliest_slot(now: Nanos) -> Nanos {
    Nanos(now.0.saturating_sub(MAX_OVERDUE))
}

/// The effect of a clock reading on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockStep {
    /// The time by which the key's time advances, in nanoseconds.
    pub(super) elapsed: u64,
    /// The time by which the reading is behind the key's time, in nanoseconds, if that is at most one period. Otherwise
    /// it is 0.
    pub(super) behind: u64,
    /// The time by which the clock was set back, in nanoseconds, if the key's time continues from the new reading.
    /// Otherwise it is 0.
    pub(super) set_back: u64,
}

/// Returns the effect of the reading `now` on a key whose latest reading was `last`.
///
/// While `now` is up to one `period` behind `last`, the key's time stands still. If `now` is further behind, the clock
/// is assumed to have been set back: the key's used units stay used, and the key's time continues from `now`.
#[inline]
pub(super) const fn step(last: Nanos, now: Nanos, period: u64) -> ClockStep {
    if now.0 >= last.0 {
        return ClockStep { elapsed: now.0 - last.0, behind: 0, set_back: 0 };
    }
    let behind = last.0 - now.0;
    if behind <= period {
        ClockStep { elapsed: 0, behind, set_back: 0 }
    } else {
        ClockStep { elapsed: 0, behind: 0, set_back: behind }
    }
}

impl ClockStep {
    /// Returns the key's time after this step.
    #[inline]
    pub(super) const fn last_update(&self, now: Nanos) -> Nanos {
        now.saturating_add(self.behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_for_one_period() {
        let table = [
            // last, now, elapsed, behind, set back, observed
            (100, 100, 0, 0, 0, 100),
            (100, 130, 30, 0, 0, 130),
            (100, 99, 0, 1, 0, 100),
            (100, 50, 0, 50, 0, 100),
            (100, 49, 0, 0, 51, 49),
            (u64::MAX, 0, 0, 0, u64::MAX, 0),
            (0, u64::MAX, u64::MAX, 0, 0, u64::MAX),
        ];
        for (last, now, elapsed, behind, set_back, observed) in table {
            let step = step(Nanos(last), Nanos(now), 50);
            assert_eq!(step, ClockStep { elapsed, behind, set_back }, "{last} {now}");
            assert_eq!(step.last_update(Nanos(now)), Nanos(observed), "{last} {now}");
        }
    }
}
