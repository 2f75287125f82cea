//! The arithmetic of a token bucket whose units are leased. The [script](super::script) makes the same steps on the
//! server.
//!
//! Leased units have left the bucket, and the server learns only later whether they were spent. Meanwhile, the bucket
//! must not replace them by refilled units, so the number of missing units never falls below the number of leased
//! units. Compare this bucket with a single bucket that decides the same calls. The units that are missing here are
//! always at least the units that are missing from the single bucket, plus the leased units that can still be spent. So
//! no call is admitted that the single bucket would deny.

use tower_throttle::Decision;
use tower_throttle::algorithm::{StoredAlgorithm, TokenBucket};
use tower_throttle::store_support::with_next;

/// The time for which the server counts units as leased, in microseconds.
pub(super) const LEASE: u64 = 3_000_000;

/// A token bucket in integers that are exact in a script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// The grains that are refilled in a microsecond.
    pub(super) micro: u64,
    /// The grains of a unit.
    pub(super) unit: u64,
    /// The grains of a full bucket.
    pub(super) full: u64,
    /// The period in microseconds. If the clock is behind the level by more than this, the clock was set back.
    pub(super) period: u64,
}

/// The level of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// The grains that are missing from a full bucket, including those of leased units.
    pub(super) missing: u64,
    /// The server's time at which these grains were missing, in microseconds.
    pub(super) last: u64,
    /// The number of units that are leased.
    pub(super) leased: u64,
}

/// The values that a trip finds on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) level: Level,
    /// The units that are leased to the process that makes the trip.
    pub(super) own: u64,
    /// The units of all leases of other processes that have expired.
    pub(super) expired: u64,
}

/// The request of a trip. Each trip ends the present lease of the process.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    /// The units of the present lease that were not spent, and are returned.
    pub(super) unspent: u64,
    /// The units that are refunded.
    pub(super) refund: u64,
    /// The costs of the calls, which are charged in this order.
    pub(super) costs: Vec<u64>,
    /// The units that the process wants to lease.
    pub(super) want: u64,
}

/// The changes that a trip has made.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    pub(super) level: Level,
    /// The decision on each call.
    pub(super) decisions: Vec<Decision>,
    /// The units that are now leased to the process.
    pub(super) granted: u64,
    /// `true` if the new state must be written.
    pub(super) has_changed: bool,
}

impl Bucket {
    /// Creates the bucket, or returns `None` if it needs numbers that are not exact in a script.
    pub(super) fn new(algorithm: &TokenBucket) -> Option<Self> {
        let [micro, unit, full, _, period, _] = algorithm.script()?.steps.first()?.arguments;
        Some(Self { micro, unit, full, period })
    }

    pub(super) fn burst(&self) -> u64 {
        self.full / self.unit
    }

    /// Returns the level of a bucket from which nothing is missing.
    pub(super) const fn new_level(now: u64) -> Level {
        Level { missing: 0, last: now, leased: 0 }
    }

    /// Returns what a trip changes at `now`, a time of the server's clock in microseconds.
    pub(super) fn touch(&self, found: &Found, now: u64, ask: &Ask) -> Touched {
        let Found { own, expired, .. } = *found;
        let was_set_back = found.level.last.saturating_sub(now) > self.period;
        let back = ask.unspent.min(own) + ask.refund.min(self.burst());
        let mut level = self.after_return(self.at(found.level, now), own + expired, back);
        let mut is_charged = false;
        let mut decide = |cost: &u64| {
            let fits = level.missing + cost * self.unit <= self.full;
            if fits {
                level.missing += cost * self.unit;
                is_charged = true;
                self.allow(level, now, 0)
            } else {
                self.deny(level, now, *cost)
            }
        };
        let decisions = ask.costs.iter().map(&mut decide).collect();
        // Half of the units stay in the bucket for other processes. So the fewer units are left, the smaller a lease
        // is.
        let granted = ask.want.min((self.full - level.missing) / (2 * self.unit));
        level.missing += granted * self.unit;
        level.leased += granted;
        let has_changed = is_charged || was_set_back || [granted, own, expired, ask.refund] != [0; 4];
        Touched { level, decisions, granted, has_changed }
    }

    /// Returns the level after leases with `ended` units in total have ended. `back` is the number of units that are
    /// given back.
    pub(super) fn after_return(&self, level: Level, ended: u64, back: u64) -> Level {
        let leased = level.leased.saturating_sub(ended);
        let missing = level.missing.saturating_sub(back * self.unit).max(leased * self.unit);
        Level { missing, leased, ..level }
    }

    /// Returns the level at a later time, if no process changes it until then.
    pub(super) fn at(&self, mut level: Level, now: u64) -> Level {
        match now.checked_sub(level.last) {
            Some(elapsed) => {
                level.missing = level.missing.saturating_sub(elapsed.saturating_mul(self.micro));
                level.last = now;
            }
            // The clock was set back.
            None if level.last - now > self.period => level.last = now,
            None => {}
        }
        level.missing = level.missing.max(level.leased * self.unit);
        level
    }

    /// Returns how long the server keeps the level, in milliseconds: until the bucket would be full if all leased units
    /// were spent at the end of their leases.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn time_to_live(&self, level: Level, now: u64) -> u64 {
        let time = |grains: u64| grains.div_ceil(self.micro);
        let ahead = level.last - now;
        let leases = if level.leased > 0 { LEASE + time(level.leased * self.unit) } else { 0 };
        (time(level.missing) + ahead).max(leases).div_ceil(1_000) + 1
    }

    /// Returns the decision on a call that is admitted at `now`. After the call, the process holds `left` units.
    pub(super) fn allow(&self, level: Level, now: u64, left: u64) -> Decision {
        let remaining = left + (self.full - level.missing) / self.unit;
        let next = if remaining == 0 { self.wait(level, now, 1) } else { Some(0) };
        with_next(Decision::allow(self.burst(), remaining, self.reset(level, now)), next.unwrap_or(0))
    }

    /// Returns the decision on a call that is denied at `now`. The wait is unknown if the call has to wait for the end
    /// of a lease.
    pub(super) fn deny(&self, level: Level, now: u64, cost: u64) -> Decision {
        let remaining = (self.full - level.missing) / self.unit;
        Decision::deny(self.burst(), remaining, self.wait(level, now, cost), self.reset(level, now))
            .with_unknown_wait(cost <= self.burst())
    }

    /// Returns the decision on a call of `cost` at `now`, without a charge.
    pub(super) fn peek(&self, level: Level, now: u64, cost: u64) -> Decision {
        match cost.saturating_mul(self.unit) <= self.full - level.missing {
            true => self.allow(level, now, 0),
            false => self.deny(level, now, cost),
        }
    }

    /// Returns the time in which `units` are refilled, in nanoseconds.
    pub(super) fn time_of(&self, units: u64) -> u64 {
        self.nanos(units * self.unit, Self::new_level(0), 0)
    }

    /// Returns the time until a call of `cost` fits, in nanoseconds, if no process changes the level until then.
    /// Returns `None` if leases must end first, or if the cost exceeds the burst.
    fn wait(&self, level: Level, now: u64, cost: u64) -> Option<u64> {
        let room = self.burst().checked_sub(cost).filter(|room| *room >= level.leased)?;
        Some(self.nanos(level.missing.saturating_sub(room * self.unit), level, now))
    }

    fn reset(&self, level: Level, now: u64) -> u64 {
        self.nanos(level.missing, level, now)
    }

    /// Returns the time until `grains` are refilled, in nanoseconds, rounded up. If the clock is behind the level, this
    /// includes the time by which it is behind.
    fn nanos(&self, grains: u64, level: Level, now: u64) -> u64 {
        if grains == 0 {
            return 0;
        }
        let nanos = (u128::from(grains) * 1_000).div_ceil(u128::from(self.micro));
        u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add((level.last - now).saturating_mul(1_000))
    }
}
