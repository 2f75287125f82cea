//! The next step of the task of a key.

use super::record::{Peek, Phase, Record, Rules, Stage};
use super::records::State;
use super::script::{Kind, Operation};
use crate::error::{RedisError, RedisErrorKind};
use tower_throttle::clock::Nanos;

/// The maximum number of new calls in a trip, the maximum number of new calls and removed records together, and the
/// maximum number of all operations.
const MAX_BATCH: [usize; 3] = [128, 192, 256];
/// The number of waiters, beginning with the first one, whose states are read when the queue is polled.
const POLLED: usize = 16;

/// The next step of the task.
#[derive(Debug)]
pub(super) enum Step {
    Trip(Trip),
    /// Waits until the task is woken, or until this time.
    Wait(Nanos),
    End,
}

#[derive(Debug)]
pub(super) struct Trip {
    pub(super) operations: Vec<Operation>,
    pub(super) peeks: Vec<Peek>,
    /// The first and the last deadline of the calls of the trip, if it has any.
    pub(super) deadlines: Option<(Nanos, Nanos)>,
}

impl State {
    /// Returns what the task with the number `task` does at `now`. If `is_closed` is `true`, the limiter was dropped,
    /// and the task gives forgotten permits back to the server.
    pub(super) fn next(&mut self, rules: &Rules, task: u64, is_closed: bool, now: Nanos) -> Step {
        if !self.task.is_present(task) {
            return Step::End;
        }
        self.expire(rules, is_closed, now);
        let mut trip = Trip { operations: Vec::new(), peeks: Vec::new(), deadlines: None };
        // New calls come first, because their deadlines are near.
        self.add_new(&mut trip, now);
        let mut next = if self.leaving.is_empty() { Nanos::MAX } else { self.retry_at };
        if now >= self.retry_at {
            next = Nanos::MAX;
            let leave = |number: &u64| Operation { kind: Kind::Leave, number: *number, units: 0 };
            trip.operations.extend(self.leaving.keys().take(MAX_BATCH[1] - trip.operations.len()).map(leave));
        }
        next = next.min(self.add_renewals(&mut trip, rules, now));
        for peek in std::mem::take(&mut self.peeks) {
            if peek.deadline > now {
                trip.extend(peek.deadline);
                trip.peeks.push(peek);
            } else {
                let _ = peek.reply.send(Err(RedisError::new(RedisErrorKind::Late, "")));
            }
        }
        let step = match trip.operations.is_empty() && trip.peeks.is_empty() {
            false => Step::Trip(trip),
            true if next < Nanos::MAX => Step::Wait(next),
            // New calls that have expired are removed by their callers.
            true => {
                self.task.end();
                Step::End
            }
        };
        self.task.goes_on(match &step {
            Step::Trip(trip) => trip.deadlines.map_or(now.saturating_add(rules.deadline), |(_, last)| last),
            Step::Wait(until) => *until,
            Step::End => now,
        });
        step
    }

    /// Adds the calls that have not been decided.
    fn add_new(&mut self, trip: &mut Trip, now: Nanos) {
        for (number, record) in &mut self.records {
            let units = record.units;
            let Stage::Asking { call, phase: phase @ (Phase::New | Phase::Sent), .. } = &mut record.stage
            else {
                continue;
            };
            if call.deadline > now && trip.operations.len() < MAX_BATCH[0] {
                *phase = Phase::Sent;
                record.renewed = now;
                let kind = if call.latest.is_some() { Kind::Queue } else { Kind::Try };
                trip.operations.push(Operation { kind, number: *number, units });
                trip.extend(call.deadline);
            }
        }
    }

    /// Adds the records that must be renewed or polled. Returns the time at which the next record must be renewed or
    /// polled, or at which the first permit expires, whichever is earlier.
    fn add_renewals(&mut self, trip: &mut Trip, rules: &Rules, now: Nanos) -> Nanos {
        let (mut next, mut waiters, must_poll) = (Nanos::MAX, 0, self.polls.is_due(now));
        for (number, record) in &self.records {
            let mut due = record.renewed.saturating_add(rules.lease / 3);
            let kind = match &record.stage {
                Stage::Asking { phase: Phase::New | Phase::Sent, .. } => continue,
                Stage::Asking { phase, .. } => {
                    waiters += 1;
                    let is_polled = must_poll && waiters <= POLLED;
                    due = if is_polled || *phase == Phase::Lost { now } else { due };
                    if *phase == Phase::Lost { Kind::Queue } else { Kind::Keep }
                }
                Stage::Held { valid_until, .. } => {
                    next = next.min(*valid_until.borrow());
                    // The server learns of fewer units when the record is renewed.
                    due = if record.is_lowered { now } else { due };
                    Kind::Keep
                }
            };
            let due = due.max(self.retry_at);
            if due <= now && trip.operations.len() < MAX_BATCH[2] {
                trip.operations.push(Operation { kind, number: *number, units: record.units });
            } else {
                next = next.min(due);
            }
        }
        if waiters > 0 { next.min(self.polls.next().max(self.retry_at)) } else { next }
    }

    /// Removes the records that have expired because they could not be renewed. If `is_closed`, also removes the
    /// records of forgotten permits.
    fn expire(&mut self, rules: &Rules, is_closed: bool, now: Nanos) {
        self.leaving.retain(|_, expires| *expires > now);
        let is_over = |record: &Record| match &record.stage {
            Stage::Asking { .. } => record.waits() && rules.valid_until(record.renewed) <= now,
            Stage::Held { valid_until, is_forgotten, .. } => {
                (is_closed && *is_forgotten) || *valid_until.borrow() <= now
            }
        };
        let over: Vec<_> =
            self.records.iter().filter(|(_, record)| is_over(record)).map(|(number, _)| *number).collect();
        for number in over {
            self.leaving.insert(number, now.saturating_add(rules.lease));
            if let Some(record) = self.records.remove(&number) {
                let late = || RedisError::new(RedisErrorKind::Late, "the place in the queue has expired");
                record.end(Err(self.last_error.clone().unwrap_or_else(late)));
            }
        }
    }
}

impl Trip {
    fn extend(&mut self, deadline: Nanos) {
        let (first, last) = self.deadlines.unwrap_or((deadline, deadline));
        self.deadlines = Some((first.min(deadline), last.max(deadline)));
    }
}
