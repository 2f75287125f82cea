//! The units of a key that this process holds, and the calls that wait for a trip.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tower_throttle::store_support::with_retry_after;

use tokio::sync::{Notify, oneshot};

use super::bucket::{Ask, Bucket, Level, Touched};
use crate::error::RedisError;
use tower_throttle::Decision;
use tower_throttle::clock::Nanos;

/// The time for which a process holds units before it returns the units that it has not spent, in nanoseconds.
pub(super) const HOLD: u64 = 1_000_000_000;
/// The time for which units can be spent after the process has asked for them, in nanoseconds. This is shorter than
/// [`LEASE`](super::bucket::LEASE), because the clocks of the server and of the process may run at different speeds.
const SPEND: u64 = 2_000_000_000;
/// The maximum time after a denial in which no trip is made for the key although the units of a call may be available,
/// in nanoseconds.
const MAX_PAUSE: u64 = 75_000_000;
/// The maximum number of calls that one trip decides.
const MAX_BATCH: usize = 256;

/// The units of a key, and the calls that wait for a trip. At most one task makes the trips of the key.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: Arc<str>,
    state: Mutex<State>,
    /// Wakes the task.
    pub(super) wake: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The number that identifies the lease on the server.
    lease: u64,
    /// The leased units that are not spent.
    left: u64,
    /// The time until which these units can be spent.
    until: Nanos,
    /// The number of units that the server has leased to the process in the last trip.
    granted: u64,
    /// The number of units that a trip takes at once, including the units of the calls that the trip decides.
    size: u64,
    /// The beginning of the last trip that decided checks, or that returned units after other units had been spent.
    /// [`HOLD`] counts from this time.
    asked: Option<Nanos>,
    /// The units that are refunded by the next trip.
    refund: u64,
    seen: Option<Seen>,
    calls: VecDeque<Call>,
    /// `true` while a task makes trips.
    is_served: bool,
    /// `true` while a trip is under way.
    is_asking: bool,
}

/// The level of the bucket after the last trip.
#[derive(Clone, Copy, Debug)]
struct Seen {
    level: Level,
    /// The server's time, in microseconds.
    now: u64,
    /// The time at which the trip began, by this process's clock. The server's time was read later.
    sent: Nanos,
    /// After a denial, the earliest time of the next trip.
    next_trip: Option<Nanos>,
}

/// A call that waits for a trip.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) action: Action,
    pub(super) cost: u64,
    pub(super) deadline: Nanos,
    pub(super) reply: oneshot::Sender<Result<Decision, RedisError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Check,
    Peek,
    Refund,
}

/// The next step of the task.
#[derive(Debug)]
pub(super) enum Step {
    Trip(Trip),
    /// Waits for a call, but only until this time.
    Wait(Nanos),
    End,
}

/// A trip that decides some calls, or that only returns units.
#[derive(Debug)]
pub(super) struct Trip {
    pub(super) calls: Vec<Call>,
    pub(super) ask: Ask,
    pub(super) lease: u64,
    /// The part of `ask.refund` that is for dropped calls. The rest of `ask.refund` is for refund calls of this trip.
    refund: u64,
}

/// The settings of all keys of a limiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) bucket: Bucket,
    /// The maximum number of units that a trip takes at once, if its calls do not need more.
    pub(super) units: u64,
    /// The maximum time for which a denial is remembered, in nanoseconds.
    pub(super) remember: u64,
}

impl Held {
    pub(super) fn new(key: Arc<str>, lease: u64) -> Self {
        let state = State { lease, size: 1, ..State::default() };
        Self { key, state: Mutex::new(state), wake: Notify::new() }
    }

    /// Adds a call to the next trip. Returns whether a task must be started that makes the trip.
    pub(super) fn push(&self, call: Call) -> bool {
        let mut state = self.lock();
        state.calls.push_back(call);
        let is_served = std::mem::replace(&mut state.is_served, true);
        drop(state);
        self.wake.notify_one();
        !is_served
    }

    /// Adds units to the refund of the next trip. Returns whether a task must be started that makes the trip.
    pub(super) fn refund(&self, units: u64) -> bool {
        let mut state = self.lock();
        state.refund(units);
        !std::mem::replace(&mut state.is_served, true)
    }

    /// Returns whether the deadline of the first call that waits for a trip has passed, which shows that the task is
    /// not driven.
    pub(super) fn is_stuck(&self, now: Nanos) -> bool {
        self.lock().calls.front().is_some_and(|call| call.deadline <= now)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Decides a call without a trip, if the process holds the units of the call, or if the level after the last trip
    /// shows that the call must wait. Returns `None` if a trip must decide the call.
    pub(super) fn decide(&mut self, rules: &Rules, cost: u64, now: Nanos) -> Option<Decision> {
        // A call must not overtake the calls that wait for a trip.
        let is_first = !self.is_asking && self.calls.is_empty();
        if is_first { self.decide_first(rules, cost, now) } else { None }
    }

    fn decide_first(&mut self, rules: &Rules, cost: u64, now: Nanos) -> Option<Decision> {
        let Rules { bucket, remember, .. } = rules;
        let seen = self.seen?;
        let elapsed = now.saturating_since(seen.sent);
        let server_now = seen.now + elapsed / 1_000;
        let level = bucket.at(seen.level, server_now);
        if cost <= self.left && now < self.until {
            self.left -= cost;
            return Some(bucket.allow(level, server_now, self.left));
        }
        let next_trip = seen.next_trip.filter(|_| elapsed <= *remember && cost > 0)?;
        let pause = next_trip.saturating_since(now);
        // A trip returns the units that are left before it takes the units of the call.
        let level = bucket.after_return(level, self.granted, self.left);
        let denial = bucket.deny(level, server_now, cost);
        let wait = denial.retry_after().map(|wait| Nanos::from(wait).0.max(pause));
        match wait {
            Some(0) => None,
            None if pause == 0 => None,
            wait => Some(with_retry_after(denial, wait)),
        }
    }

    /// Adds units to the refund of the next trip.
    fn refund(&mut self, units: u64) {
        self.refund = self.refund.saturating_add(units);
    }

    /// Returns what the task does at `now`. If `is_brief`, the task leases no units, returns the units that are left,
    /// and ends.
    pub(super) fn next(&mut self, rules: &Rules, is_brief: bool, now: Nanos) -> Step {
        let (mut calls, mut costs, mut refund) = (Vec::new(), Vec::new(), self.refund);
        while calls.len() < MAX_BATCH {
            let Some(call) = self.calls.pop_front() else { break };
            // The caller of an expired call notices the deadline itself.
            if call.reply.is_closed() || call.deadline <= now {
                continue;
            }
            match call.action {
                // The calls that arrived during the last trip may spend the units that this trip has leased.
                Action::Check if calls.is_empty() => match self.decide_first(rules, call.cost, now) {
                    Some(decision) => {
                        self.send(call, decision);
                        continue;
                    }
                    None => costs.push(call.cost),
                },
                Action::Check => costs.push(call.cost),
                Action::Refund => refund = refund.saturating_add(call.cost),
                Action::Peek => {}
            }
            calls.push(call);
        }
        let mut want = self.left;
        if calls.is_empty() {
            let end = self.asked.map_or(now, |asked| asked.saturating_add(HOLD));
            if now < end && !is_brief {
                return Step::Wait(end);
            }
            if self.granted == 0 && refund == 0 {
                self.is_served = false;
                return Step::End;
            }
            // If some units were spent, the next calls may follow soon, so the task goes on.
            let spent = self.granted - self.left;
            (self.size, want) = ((spent / 2).max(1), 0);
            self.asked = self.asked.filter(|_| spent > 0).map(|_| now);
        } else if !costs.is_empty() {
            let is_soon = self.asked.is_some_and(|asked| now < asked.saturating_add(HOLD));
            self.size = if is_soon { (2 * self.size).min(rules.units) } else { 1 };
            self.asked = Some(now);
            want = self.size.saturating_sub(costs.iter().sum());
        }
        self.is_asking = true;
        let ask = Ask { unspent: self.left, refund, costs, want: if is_brief { 0 } else { want } };
        Step::Trip(Trip { calls, ask, lease: self.lease, refund: std::mem::take(&mut self.refund) })
    }

    /// Ends a trip in which the server has changed nothing, and queues the calls of the trip again. Either the trip was
    /// too late for one of its calls, or another node has the key.
    pub(super) fn put_back(&mut self, trip: Trip) {
        self.is_asking = false;
        self.refund(trip.refund);
        trip.calls.into_iter().rev().for_each(|call| self.calls.push_front(call));
    }

    /// Ends a trip that began at `sent`, and sends the decisions. `now` is the server's time.
    pub(super) fn finish(&mut self, rules: &Rules, trip: Trip, touched: Touched, now: u64, sent: Nanos) {
        let Rules { bucket, .. } = rules;
        let Touched { level, decisions, granted, .. } = touched;
        self.is_asking = false;
        (self.left, self.granted, self.until) = (granted, granted, sent.saturating_add(SPEND));
        let is_denied = decisions.iter().any(|decision| !decision.is_allowed());
        // While calls are denied, the next trip is made only when several units can be taken at once. The pause is
        // longer than the time in which they are refilled, because other processes take units as well.
        let pause = bucket.time_of((3 * self.size).min(bucket.burst() / 3)).min(MAX_PAUSE);
        let next_trip = is_denied.then(|| sent.saturating_add(pause));
        self.seen = Some(Seen { level, now, sent, next_trip });
        let mut decisions = decisions.into_iter();
        for call in trip.calls {
            let decision = match call.action {
                Action::Check => match decisions.next() {
                    Some(decision) => decision,
                    None => unreachable!("each cost has a decision"),
                },
                Action::Peek if call.cost <= granted => bucket.allow(level, now, granted),
                Action::Peek => bucket.peek(bucket.after_return(level, granted, granted), now, call.cost),
                Action::Refund => bucket.allow(level, now, granted),
            };
            let wait = decision.retry_after().map(|wait| Nanos::from(wait).0.max(pause));
            let decision =
                if call.action == Action::Check { with_retry_after(decision, wait) } else { decision };
            self.send(call, decision);
        }
    }

    /// Sends a decision. If the call was dropped, the next trip refunds its units.
    fn send(&mut self, call: Call, decision: Decision) {
        let is_charged = call.action == Action::Check && decision.is_allowed();
        if call.reply.send(Ok(decision)).is_err() && is_charged {
            self.refund(call.cost);
        }
    }

    /// Ends a trip whose result is not known. The units that the trip has returned or leased are lost.
    pub(super) fn fail(&mut self, next_lease: u64) {
        (self.is_asking, self.left, self.granted) = (false, 0, 0);
        (self.lease, self.seen) = (next_lease, None);
    }

    /// Removes all calls, because no task serves them any more.
    pub(super) fn abandon(&mut self, next_lease: u64) -> VecDeque<Call> {
        self.fail(next_lease);
        self.is_served = false;
        std::mem::take(&mut self.calls)
    }
}
