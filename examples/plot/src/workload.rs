//! The calls and their outcomes.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use crate::arrivals::END;

/// The period of the quota, 4 per second.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Passed,
    /// The call was queued, and was admitted at this time.
    Waited(Duration),
    Denied,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) arrived: Duration,
    pub(crate) fate: Fate,
}

impl Call {
    /// Returns the time at which the call was admitted, or `None` if it was denied.
    pub(crate) fn admitted_at(&self) -> Option<Duration> {
        match self.fate {
            Fate::Passed => Some(self.arrived),
            Fate::Waited(until) => Some(until),
            Fate::Denied => None,
        }
    }
}

/// The calls in the order in which they arrived.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) calls: Vec<Call>,
}

impl Workload {
    /// Calls a limiter at each of the given times. Calls that have to wait are queued.
    pub(crate) fn of<A: Algorithm>(algorithm: A, arrivals: &[Duration]) -> Self {
        Self::with_priority(algorithm, arrivals, |_| false)
    }

    /// Calls a limiter at each of the given times. The calls for whose number `has_priority` returns `true` have
    /// priority.
    pub(crate) fn with_priority<A: Algorithm>(
        algorithm: A,
        arrivals: &[Duration],
        has_priority: impl Fn(usize) -> bool,
    ) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let mut calls = Vec::new();
        let mut queue: Vec<(usize, Pin<Box<Acquire<A>>>)> = Vec::new();
        for now in (0..=END).map(Duration::from_millis) {
            clock.set(now);
            // Queued calls that are due are admitted before the new calls are made.
            queue.retain_mut(|(call, waits)| match poll(waits) {
                Poll::Ready(decision) => {
                    let call: &mut Call = &mut calls[*call];
                    call.fate = Fate::Waited(call.arrived + decision.delay());
                    false
                }
                Poll::Pending => true,
            });
            for arrived in arrivals.iter().copied().filter(|arrived| *arrived == now) {
                let call = limiter.call("the only key");
                let call = if has_priority(calls.len()) { call.priority() } else { call };
                let mut call = Box::pin(call.acquire());
                let fate = match poll(&mut call) {
                    Poll::Ready(decision) if decision.is_allowed() => Fate::Passed,
                    Poll::Ready(_) => Fate::Denied,
                    Poll::Pending => {
                        queue.push((calls.len(), call));
                        // This outcome is replaced when the call is admitted.
                        Fate::Denied
                    }
                };
                calls.push(Call { arrived, fate });
            }
        }
        assert!(queue.is_empty(), "the workload ends before all calls are admitted");
        Self { calls }
    }

    /// Makes a call at each of the given times. The call is admitted if `check` returns `true`.
    pub(crate) fn checked(
        clock: &ManualClock,
        arrivals: &[Duration],
        mut check: impl FnMut(Duration) -> bool,
    ) -> Self {
        let call = |arrived: &Duration| {
            clock.set(*arrived);
            let fate = if check(*arrived) { Fate::Passed } else { Fate::Denied };
            Call { arrived: *arrived, fate }
        };
        Self { calls: arrivals.iter().map(call).collect() }
    }

    /// Returns the times at which calls were admitted, in order.
    pub(crate) fn passes(&self) -> Vec<Duration> {
        let mut passes: Vec<_> = self.calls.iter().filter_map(Call::admitted_at).collect();
        passes.sort();
        passes
    }

    /// Returns the number of calls that were admitted within the period that ends at `now`.
    pub(crate) fn recent(&self, now: Duration) -> u64 {
        self.in_progress(now, PERIOD)
    }

    /// Returns the number of calls that are in progress at `now`, if each call takes `duration`.
    pub(crate) fn in_progress(&self, now: Duration, duration: Duration) -> u64 {
        let counts = |admitted: &Duration| *admitted <= now && *admitted + duration > now;
        self.calls.iter().filter_map(Call::admitted_at).filter(counts).count() as u64
    }

    /// Returns the number of calls that are queued at `now`.
    pub(crate) fn queued(&self, now: Duration) -> u64 {
        let waits =
            |call: &&Call| call.arrived <= now && matches!(call.fate, Fate::Waited(until) if until > now);
        self.calls.iter().filter(waits).count() as u64
    }

    /// Returns the maximum number of calls that were admitted within any one period.
    pub(crate) fn max_recent(&self) -> u64 {
        self.passes().into_iter().map(|now| self.recent(now)).max().unwrap_or(0)
    }

    /// Returns the maximum number of calls in progress at once, if each call takes `duration`.
    #[cfg(test)]
    pub(crate) fn max_in_progress(&self, duration: Duration) -> u64 {
        self.passes().into_iter().map(|now| self.in_progress(now, duration)).max().unwrap_or(0)
    }

    pub(crate) fn count(&self, what: impl Fn(Fate) -> bool) -> usize {
        self.calls.iter().filter(|call| what(call.fate)).count()
    }

    pub(crate) fn waits(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.fate, Fate::Waited(_)))
    }

    pub(crate) fn summary(&self) -> String {
        let passed = self.count(|fate| fate == Fate::Passed);
        let waited = self.count(|fate| matches!(fate, Fate::Waited(_)));
        let denied = self.count(|fate| fate == Fate::Denied);
        let of = format!("Of {} calls, {passed} pass at once", self.calls.len());
        match waited {
            0 => format!("{of}, {denied} are denied"),
            _ => format!("{of}, {waited} after a wait, {denied} are denied"),
        }
    }
}

/// Polls a future by hand. The clock moves in this thread only, so no wake-up is needed.
fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
