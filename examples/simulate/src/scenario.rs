//! The scenarios: the calls that arrive, their times and machines, and what fails.

use std::time::Duration;

use tower_throttle::Quota;

use crate::random::Random;

/// The distribution of the calls over the machines and over the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Calls are spread evenly over all machines, and arrive at random times.
    Even,
    /// Machine number n gets a share of the calls that is proportional to 1/n. The calls arrive at random times.
    Skewed,
    /// Calls are spread evenly over all machines. The calls of each span of five seconds arrive in the first second of
    /// that span.
    Bursty,
}

/// A fault, and the time at which it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A fifth of the machines fails after a third of the time. The later calls go to the other machines.
    MachinesFail,
    /// The center, which is Redis or the token server, stops after half of the time. It does not answer for five
    /// seconds.
    CenterStops,
}

/// The time for which the center is stopped.
pub(crate) const STOP: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// The limit of all machines together.
    pub(crate) quota: Quota,
    pub(crate) machines: usize,
    pub(crate) time: Duration,
    /// The number of calls, in percent of what the quota admits.
    pub(crate) load: u64,
    pub(crate) spread: Spread,
    pub(crate) fault: Fault,
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    /// The time since the beginning.
    pub(crate) at: Duration,
    pub(crate) machine: usize,
}

impl Scenario {
    /// Returns the time at which a fifth of the machines fails, or `None` if no machine fails.
    pub(crate) fn machines_fail_at(&self) -> Option<Duration> {
        (self.fault == Fault::MachinesFail).then(|| self.time / 3)
    }

    /// Returns the time at which the center stops, or `None` if the center does not stop.
    pub(crate) fn center_stops_at(&self) -> Option<Duration> {
        (self.fault == Fault::CenterStops).then(|| self.time / 2)
    }

    /// Returns the machines that fail: the first machine, which is the busiest, and every fifth machine after it.
    pub(crate) fn failing(&self) -> impl Iterator<Item = usize> {
        (0..self.machines).step_by(5)
    }

    /// Returns all calls, in the order of their times. Scenarios that are equal return the same calls.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let mut random = Random::new(self.seed);
        let count = self.quota.limit() * self.time.as_secs() * self.load / 100;
        let shares: Vec<u64> = (1..=self.machines as u64).map(|n| 1_000_000 / n).collect();
        let all: u64 = shares.iter().sum();
        let mut calls: Vec<Call> = (0..count)
            .map(|_| {
                let mut at = Duration::from_nanos(random.below(self.time.as_nanos() as u64));
                if self.spread == Spread::Bursty {
                    at = Duration::from_secs(at.as_secs() / 5 * 5)
                        + Duration::from_nanos(random.below(1_000_000_000));
                }
                let mut machine = match self.spread {
                    Spread::Even | Spread::Bursty => random.below(self.machines as u64) as usize,
                    Spread::Skewed => {
                        let mut place = random.below(all);
                        shares
                            .iter()
                            .take_while(|share| {
                                place.checked_sub(**share).is_some_and(|rest| {
                                    place = rest;
                                    true
                                })
                            })
                            .count()
                    }
                };
                let fails = self.failing().any(|failing| failing == machine);
                if fails && self.machines_fail_at().is_some_and(|time| at >= time) {
                    machine = (machine + 1) % self.machines;
                }
                Call { at, machine }
            })
            .collect();
        calls.sort_unstable();
        calls
    }
}
