//! What the task of a key does next.

use super::record::{Peek, Record, Rules, Stage};
use super::records::State;
use super::script::{Kind, Operation};
use crate::clock::Nanos;
use crate::store::redis::error::{RedisError, RedisErrorKind};

/// The maximum number of operations of a trip.
const MAX_BATCH: usize = 256;
/// The number of waiters, beginning with the first one, whose states are read when the queue is polled.
const POLLED: usize = 16;

/// The next step of the task.
#[derive(Debug)]
pub(super) enum Step {
    Trip(Trip),
    /// Waits to be woken, or for this time.
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
    /// Returns what the task does at `now`. If `is_closed`, the limiter was dropped, and forgotten permits are returned.
    pub(super) fn next(&mut self, rules: &Rules, is_closed: bool, now: Nanos) -> Step {
        self.expire(rules, is_closed, now);
        let may_retry = now >= self.retry_at;
        let must_poll = self.polls.is_due(now);
        let (mut operations, mut deadlines, mut next, mut waiters) =
            (Vec::new(), None::<(Nanos, Nanos)>, Nanos::MAX, 0);
        let mut extend = |deadline: Nanos| {
            let (first, last) = deadlines.unwrap_or((deadline, deadline));
            deadlines = Some((first.min(deadline), last.max(deadline)));
        };
        if may_retry {
            let leave = |number: &u64| Operation { kind: Kind::Leave, number: *number, units: 0 };
            operations.extend(self.leaving.keys().take(MAX_BATCH).map(leave));
        } else if !self.leaving.is_empty() {
            next = self.retry_at;
        }
        for (number, record) in &mut self.records {
            if operations.len() >= MAX_BATCH {
                break;
            }
            // The server learns of fewer units when the record is renewed.
            let renewal =
                if record.is_lowered { now } else { record.renewed.saturating_add(rules.lease / 3) };
            let kind = match &mut record.stage {
                Stage::New { deadline, .. } if *deadline <= now => continue,
                Stage::New { may_wait, deadline, is_sent, .. } => {
                    *is_sent = true;
                    extend(*deadline);
                    record.renewed = now;
                    if *may_wait { Kind::Queue } else { Kind::Try }
                }
                Stage::Waiting { is_lost, .. } => {
                    waiters += 1;
                    if !(may_retry && (*is_lost || renewal <= now || (must_poll && waiters <= POLLED))) {
                        next = next.min(renewal.max(self.retry_at));
                        continue;
                    }
                    if *is_lost { Kind::Queue } else { Kind::Keep }
                }
                Stage::Held { .. } if may_retry && renewal <= now => Kind::Keep,
                Stage::Held { valid_until, .. } => {
                    next = next.min(renewal.max(self.retry_at)).min(*valid_until.borrow());
                    continue;
                }
            };
            operations.push(Operation { kind, number: *number, units: record.units });
        }
        let mut peeks = Vec::new();
        for peek in std::mem::take(&mut self.peeks) {
            if peek.deadline > now && !peek.reply.is_closed() {
                extend(peek.deadline);
                peeks.push(peek);
            }
        }
        if waiters > 0 {
            next = next.min(self.polls.next().max(self.retry_at));
        }
        if !operations.is_empty() || !peeks.is_empty() {
            Step::Trip(Trip { operations, peeks, deadlines })
        } else if next < Nanos::MAX {
            Step::Wait(next)
        } else {
            // New calls that have expired are removed by their callers.
            self.is_served = false;
            Step::End
        }
    }

    /// Removes what has expired because it could not be renewed.
    fn expire(&mut self, rules: &Rules, is_closed: bool, now: Nanos) {
        self.leaving.retain(|_, expires| *expires > now);
        let is_over = |record: &Record| match &record.stage {
            Stage::New { .. } => false,
            Stage::Waiting { .. } => rules.valid_until(record.renewed) <= now,
            Stage::Held { valid_until, is_forgotten } => {
                (is_closed && *is_forgotten) || *valid_until.borrow() <= now
            }
        };
        let over: Vec<_> =
            self.records.iter().filter(|(_, record)| is_over(record)).map(|(number, _)| *number).collect();
        for number in over {
            self.leaving.insert(number, now.saturating_add(rules.lease));
            match self.records.remove(&number).map(|record| record.stage) {
                Some(Stage::Waiting { reply, .. }) => {
                    let late = || RedisError::new(RedisErrorKind::Late, "the place in the queue has expired");
                    let _ = reply.send(Err(self.last_error.clone().unwrap_or_else(late)));
                }
                Some(Stage::Held { valid_until, .. }) => drop(valid_until.send(Nanos::ZERO)),
                Some(Stage::New { .. }) | None => {}
            }
        }
    }
}
