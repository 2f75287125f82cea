//! Time as a key sees it, for clocks that step back.

use crate::clock::Nanos;

/// For how long a slot that is overdue is still released by the schedule, in nanoseconds: five ticks of tokio's timer.
///
/// A timer that is late by less than this costs no rate. After a longer stall the schedule moves, so that departures
/// keep the rate.
pub(super) const MAX_OVERDUE: u64 = 5_000_000;

/// The earliest slot that is still kept at `now`.
#[inline]
pub(super) const fn earliest_slot(now: Nanos) -> Nanos {
    Nanos(now.0.saturating_sub(MAX_OVERDUE))
}

/// What a reading of the clock means to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockStep {
    /// How far the key's time moves on.
    pub(super) elapsed: u64,
    /// How far the clock must still go until the key's time moves on again.
    pub(super) behind: u64,
    /// How far the clock was set back, when the key takes its time as the new one.
    pub(super) set_back: u64,
}

/// What `now` means to a key that has last seen `last`.
///
/// Up to one `period` behind, time stands still. Further behind, the clock was set back: the key keeps its level and
/// goes on from `now`.
#[inline]
pub(super) const fn step(last: Nanos, now: Nanos, period: u64) -> ClockStep {
    if now.0 >= last.0 {
        return ClockStep { elapsed: now.0 - last.0, behind: 0, set_back: 0 };
    }
    let behind = last.0 - now.0;
    match behind <= period {
        true => ClockStep { elapsed: 0, behind, set_back: 0 },
        false => ClockStep { elapsed: 0, behind: 0, set_back: behind },
    }
}

impl ClockStep {
    /// The reading that the key has seen last, after this step.
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
            // last, now, elapsed, behind, set back, seen
            (100, 100, 0, 0, 0, 100),
            (100, 130, 30, 0, 0, 130),
            (100, 99, 0, 1, 0, 100),
            (100, 50, 0, 50, 0, 100),
            (100, 49, 0, 0, 51, 49),
            (u64::MAX, 0, 0, 0, u64::MAX, 0),
            (0, u64::MAX, u64::MAX, 0, 0, u64::MAX),
        ];
        for (last, now, elapsed, behind, set_back, seen) in table {
            let step = step(Nanos(last), Nanos(now), 50);
            assert_eq!(step, ClockStep { elapsed, behind, set_back }, "{last} {now}");
            assert_eq!(step.last_update(Nanos(now)), Nanos(seen), "{last} {now}");
        }
    }
}
