//! What became of the calls.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use crate::arrivals::END;

/// The span that a limit of 4 per second speaks of.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Passed,
    /// Passed at the time given, after it had to wait.
    Waited(Duration),
    Refused,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) came: Duration,
    pub(crate) fate: Fate,
}

impl Call {
    /// When it passed, if it did.
    pub(crate) fn left(&self) -> Option<Duration> {
        match self.fate {
            Fate::Passed => Some(self.came),
            Fate::Waited(until) => Some(until),
            Fate::Refused => None,
        }
    }
}

/// The calls in the order in which they came.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) calls: Vec<Call>,
}

impl Story {
    /// Asks a limiter at the times given, and lets those wait who have to.
    pub(crate) fn of<A: Algorithm>(algorithm: A, arrivals: &[Duration]) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let mut calls = Vec::new();
        let mut line: Vec<(usize, Pin<Box<Acquire<A>>>)> = Vec::new();
        for now in (0..=END).map(Duration::from_millis) {
            clock.set(now);
            // First those whose turn has come, then those who come.
            line.retain_mut(|(call, waits)| match poll(waits) {
                Poll::Ready(decision) => {
                    let call: &mut Call = &mut calls[*call];
                    call.fate = Fate::Waited(call.came + decision.delay());
                    false
                }
                Poll::Pending => true,
            });
            for came in arrivals.iter().copied().filter(|came| *came == now) {
                let mut call = Box::pin(limiter.acquire("the only key"));
                let fate = match poll(&mut call) {
                    Poll::Ready(decision) if decision.is_allowed() => Fate::Passed,
                    Poll::Ready(_) => Fate::Refused,
                    Poll::Pending => {
                        line.push((calls.len(), call));
                        // Until it is known.
                        Fate::Refused
                    }
                };
                calls.push(Call { came, fate });
            }
        }
        assert!(line.is_empty(), "the story ends before everybody has left");
        Self { calls }
    }

    /// When calls passed, in order.
    pub(crate) fn passes(&self) -> Vec<Duration> {
        let mut passes: Vec<_> = self.calls.iter().filter_map(Call::left).collect();
        passes.sort();
        passes
    }

    /// How many passed within the period that ends at `now`.
    pub(crate) fn recent(&self, now: Duration) -> u64 {
        let counts = |left: &Duration| *left <= now && *left + PERIOD > now;
        self.calls.iter().filter_map(Call::left).filter(counts).count() as u64
    }

    /// How many wait at `now`.
    pub(crate) fn waiting(&self, now: Duration) -> u64 {
        let waits =
            |call: &&Call| call.came <= now && matches!(call.fate, Fate::Waited(until) if until > now);
        self.calls.iter().filter(waits).count() as u64
    }

    /// The most that passed within any one period.
    pub(crate) fn most(&self) -> u64 {
        self.passes().into_iter().map(|now| self.recent(now)).max().unwrap_or(0)
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
        let refused = self.count(|fate| fate == Fate::Refused);
        let of = format!("Of {} calls, {passed} pass at once", self.calls.len());
        match waited {
            0 => format!("{of}, {refused} are refused"),
            _ => format!("{of}, {waited} after a wait, {refused} are refused"),
        }
    }
}

/// Polls by hand. The clock moves in this thread only, so nobody needs to be woken.
fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
