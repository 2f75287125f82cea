//! The model of a queue has a naive algorithm and its waiters, and returns the outcome of each call.

use std::collections::VecDeque;

use super::naive_queue::Naive;

/// The fault of the model. The tests must detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    None,
    /// A call that fits is released before an earlier call that does not fit.
    LighterOvertake,
    /// The scheduled time of a new call is computed as if the queue were empty.
    TurnsForgetTheLine,
    /// The place of a released call stays taken.
    PlacesStayTaken,
    /// Every scheduled time is a nanosecond too late.
    ANanosecondLate,
}

/// The settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueConfig {
    pub(crate) places: u64,
    pub(crate) max_wait: Option<u64>,
    pub(crate) drops_oldest: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) rule: Naive,
    pub(crate) patience: QueueConfig,
    /// The cost and arrival of each waiter.
    pub(crate) waiting: VecDeque<(u64, u64)>,
    pub(crate) slip: Slip,
    /// The number of places that were not given back.
    lost: usize,
    /// The maximum number of waiters of all keys together. There is only one key.
    pub(crate) total: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Passes,
    Waits,
    /// The call evicts the oldest waiter.
    Drops,
    Refused,
}

impl Line {
    pub(crate) fn new(rule: Naive, patience: QueueConfig, slip: Slip, total: usize) -> Self {
        Self { rule, patience, waiting: VecDeque::new(), slip, lost: 0, total }
    }

    /// Returns when a call would be released that arrives after the waiters in `before`.
    fn turn(&self, before: impl Iterator<Item = (u64, u64)>, cost: u64, now: u64) -> u64 {
        let (mut rule, mut at) = (self.rule.clone(), now);
        for (cost, arrived) in before {
            at = rule.turn(cost, at);
            assert!(rule.release(Some((cost, arrived)), at));
        }
        rule.turn(cost, at) + u64::from(self.slip == Slip::ANanosecondLate)
    }

    fn in_time(&self, gone: usize, cost: u64, now: u64) -> bool {
        let gone = if self.slip == Slip::TurnsForgetTheLine { self.waiting.len() } else { gone };
        let Some(most) = self.patience.max_wait else { return true };
        self.turn(self.waiting.iter().skip(gone).copied(), cost, now) <= now + most
    }

    /// Returns the outcome of a call.
    pub(crate) fn fate(&self, cost: u64, now: u64) -> Fate {
        if cost == 0 || self.waiting.is_empty() && self.rule.fits(cost) {
            return Fate::Passes;
        }
        if cost > self.rule.capacity() || self.patience.places == 0 {
            return Fate::Refused;
        }
        let full = self.waiting.len() + self.lost >= self.patience.places as usize;
        match full {
            false if self.waiting.len() >= self.total => Fate::Refused,
            false if self.in_time(0, cost, now) => Fate::Waits,
            true if self.patience.drops_oldest && !self.waiting.is_empty() && self.in_time(1, cost, now) => {
                Fate::Drops
            }
            _ => Fate::Refused,
        }
    }

    /// Releases the first waiter, if its scheduled time has come.
    pub(crate) fn release(&mut self, now: u64) -> Option<usize> {
        if self.slip == Slip::LighterOvertake {
            self.rule.observe(now);
            let at = (0..self.waiting.len()).find(|at| self.rule.fits(self.waiting[*at].0))?;
            let (cost, arrived) = self.waiting.remove(at).unwrap();
            assert!(self.rule.release(Some((cost, arrived)), now));
            return Some(at);
        }
        let first = self.waiting.front().copied();
        self.rule.release(first, now).then(|| {
            self.waiting.pop_front();
            self.lost += usize::from(self.slip == Slip::PlacesStayTaken);
            0
        })
    }

    /// Releases all waiters whose scheduled times are at most `to`, if no other calls arrive.
    pub(crate) fn go(&mut self, now: u64, to: u64) {
        let mut at = now;
        while let Some((cost, _)) = self.waiting.front() {
            at = self.rule.turn(*cost, at);
            if at > to {
                break;
            }
            while self.release(at).is_some() {}
        }
        while self.release(to).is_some() {}
    }

    /// Returns when the first waiter can be released.
    pub(crate) fn next(&self, now: u64) -> Option<u64> {
        self.waiting.front().map(|(cost, _)| self.rule.turn(*cost, now))
    }
}
