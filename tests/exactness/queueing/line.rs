//! The model of a queue has a naive algorithm and its waiters, and returns the outcome of each call.

use std::collections::VecDeque;

use super::naive_queue::Naive;

/// The fault of the model. The tests must detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    None,
    /// A call that fits is admitted before an earlier call that does not fit.
    LighterOvertake,
    /// The scheduled time of a new call is computed as if the queue were empty.
    TurnsForgetTheLine,
    /// The place of an admitted call stays taken.
    PlacesStayTaken,
    /// Every scheduled time is a nanosecond too late.
    ANanosecondLate,
    /// A new call passes during a pause if it fits.
    NewCallsIgnoreAPause,
    /// A pause ends a nanosecond too early.
    APauseIsShort,
    /// A pause delays waiters beyond their maximum wait.
    WaitersOutlastAPause,
    /// A reset does not end a pause.
    AResetKeepsAPause,
}

/// The settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueConfig {
    pub(crate) places: u64,
    pub(crate) max_wait: Option<u64>,
    pub(crate) drops_oldest: bool,
}

/// A call that waits, or would wait if it came now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) cost: u64,
    pub(crate) arrived: u64,
    /// The maximum wait of the call itself. That of the queue applies as well.
    pub(crate) max_wait: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) rule: Naive,
    /// The algorithm of a key that was never used.
    unused: Naive,
    pub(crate) patience: QueueConfig,
    pub(crate) waiting: VecDeque<Waiter>,
    pub(crate) slip: Slip,
    /// The number of places that were not given back.
    lost: usize,
    /// The maximum number of waiters of all keys together. There is only one key.
    pub(crate) total: usize,
    /// The end of the latest pause, or the latest reset. No waiter is charged at an earlier time.
    since: u64,
    /// `true` from the beginning of a pause until an admission after its end.
    is_paused: bool,
    /// `true` if a pause began, or units were charged after the fact, while the present waiters waited. They are then
    /// denied when they have waited for `max_wait`.
    pub(crate) is_delayed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Passes,
    Waits,
    /// The call displaces the oldest waiter.
    Displaces,
    Denied,
}

impl Line {
    pub(crate) fn new(rule: Naive, patience: QueueConfig, slip: Slip, total: usize) -> Self {
        let (waiting, lost) = (VecDeque::new(), 0);
        let (since, is_paused, is_delayed) = (0, false, false);
        let unused = rule.clone();
        Self { rule, unused, patience, waiting, slip, lost, total, since, is_paused, is_delayed }
    }

    /// Charges a call after the fact.
    pub(crate) fn charge(&mut self, cost: u64, now: u64) {
        self.rule.charge(cost, now);
        self.is_delayed |= !self.waiting.is_empty();
    }

    /// Makes the key a new key, which is not paused. The waiters stay.
    pub(crate) fn reset(&mut self, now: u64) {
        self.rule = self.unused.clone();
        self.rule.observe(now);
        if self.slip != Slip::AResetKeepsAPause || !self.is_paused {
            (self.since, self.is_paused) = (now, false);
        }
    }

    /// Pauses the key, or ends its pause if `duration` is 0.
    pub(crate) fn pause(&mut self, duration: u64, now: u64) {
        if duration == 0 && !self.is_paused {
            return;
        }
        self.since = now + duration;
        if self.slip == Slip::APauseIsShort {
            self.since = self.since.saturating_sub(1).max(now);
        }
        self.is_paused = true;
        self.is_delayed |= !self.waiting.is_empty() && self.slip != Slip::WaitersOutlastAPause;
    }

    pub(crate) fn is_paused(&self, now: u64) -> bool {
        self.is_paused && now < self.since
    }

    /// Returns the algorithm and the time before the first waiter can be admitted: `now`, or the end of the pause.
    fn start(&self, now: u64) -> (Naive, u64) {
        let mut rule = self.rule.clone();
        let start = if self.is_paused(now) { self.since } else { now };
        rule.observe(start);
        (rule, start)
    }

    /// Adds a waiter behind all others.
    pub(crate) fn join(&mut self, call: Waiter) {
        self.is_delayed &= !self.waiting.is_empty();
        self.waiting.push_back(call);
    }

    /// Returns the latest time at which a call may be admitted, if there is one.
    fn latest(&self, call: Waiter) -> Option<u64> {
        let max_wait = self.patience.max_wait.into_iter().chain(call.max_wait).min()?;
        Some(call.arrived + max_wait)
    }

    /// Returns the time at which the waiter at an index is denied, because it has waited for too long.
    pub(crate) fn deadline(&self, at: usize) -> Option<u64> {
        self.waiting.get(at).filter(|_| self.is_delayed).and_then(|waiter| self.latest(*waiter))
    }

    /// Returns the index of a waiter that is denied at `now`.
    pub(crate) fn late(&self, now: u64) -> Option<usize> {
        (0..self.waiting.len()).find(|at| self.deadline(*at).is_some_and(|deadline| deadline <= now))
    }

    /// Returns when a call would be admitted that arrives after the waiters in `before`.
    fn turn(&self, before: impl Iterator<Item = Waiter>, cost: u64, now: u64) -> u64 {
        let (mut rule, mut at) = self.start(now);
        for Waiter { cost, arrived, .. } in before {
            at = rule.turn(cost, at);
            assert!(rule.admit(Some((cost, arrived.max(self.since))), at));
        }
        rule.turn(cost, at) + u64::from(self.slip == Slip::ANanosecondLate)
    }

    fn in_time(&self, gone: usize, call: Waiter) -> bool {
        let gone = if self.slip == Slip::TurnsForgetTheLine { self.waiting.len() } else { gone };
        let Some(latest) = self.latest(call) else { return true };
        self.turn(self.waiting.iter().skip(gone).copied(), call.cost, call.arrived) <= latest
    }

    /// Returns the outcome of a call that arrives now.
    pub(crate) fn fate(&self, call: Waiter) -> Fate {
        let Waiter { cost, arrived: now, .. } = call;
        let is_held = self.is_paused(now) && self.slip != Slip::NewCallsIgnoreAPause;
        if cost == 0 || self.waiting.is_empty() && !is_held && self.rule.fits(cost) {
            return Fate::Passes;
        }
        if cost > self.rule.capacity() || self.patience.places == 0 {
            return Fate::Denied;
        }
        let full = self.waiting.len() + self.lost >= self.patience.places as usize;
        match full {
            false if self.waiting.len() >= self.total => Fate::Denied,
            false if self.in_time(0, call) => Fate::Waits,
            true if self.patience.drops_oldest && !self.waiting.is_empty() && self.in_time(1, call) => {
                Fate::Displaces
            }
            _ => Fate::Denied,
        }
    }

    /// Admits the first waiter, if its scheduled time has come.
    pub(crate) fn admit(&mut self, now: u64) -> Option<usize> {
        if self.is_paused {
            self.rule.observe(now.min(self.since));
            self.is_paused = now < self.since;
        }
        if self.is_paused {
            return None;
        }
        if self.slip == Slip::LighterOvertake {
            self.rule.observe(now);
            let at = (0..self.waiting.len()).find(|at| self.rule.fits(self.waiting[*at].cost))?;
            let Waiter { cost, arrived, .. } = self.waiting.remove(at).unwrap();
            assert!(self.rule.admit(Some((cost, arrived)), now));
            return Some(at);
        }
        let first = self.waiting.front().map(|first| (first.cost, first.arrived.max(self.since)));
        self.rule.admit(first, now).then(|| {
            self.waiting.pop_front();
            self.lost += usize::from(self.slip == Slip::PlacesStayTaken);
            0
        })
    }

    /// Admits all waiters whose scheduled times are at most `to`, if no other calls arrive.
    pub(crate) fn go(&mut self, now: u64, to: u64) {
        let mut at = now;
        while let Some(next) = self.next(at).filter(|next| *next <= to) {
            at = next;
            self.settle(at);
        }
        self.settle(to);
    }

    fn settle(&mut self, now: u64) {
        loop {
            while self.admit(now).is_some() {}
            let Some(late) = self.late(now) else { break };
            self.waiting.remove(late);
        }
    }

    /// Returns when the first waiter can be admitted, or when a waiter is denied because it has waited for too long.
    pub(crate) fn next(&self, now: u64) -> Option<u64> {
        let (rule, start) = self.start(now);
        let admitted = self.waiting.front().map(|first| rule.turn(first.cost, start))?;
        let denied = (0..self.waiting.len()).filter_map(|at| self.deadline(at)).min();
        Some(denied.map_or(admitted, |denied| admitted.min(denied)))
    }
}
