//! What the result of a trip, or a message, changes.

use tokio::sync::watch;

use super::record::{Acquired, Grant, Record, Rules, Stage};
use super::records::State;
use super::script::{Found, Kind, Operation, Outcome};
use super::steps::Trip;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::redis::error::RedisError;

/// The maximum pause after a failed trip, in nanoseconds.
const RETRY: u64 = 50_000_000;

impl State {
    /// Ends a trip that began at `sent`.
    pub(super) fn finish(&mut self, rules: &Rules, trip: Trip, outcome: &Outcome, sent: Nanos, now: Nanos) {
        let Outcome { held, waiting, until_expiry, found, .. } = outcome;
        (self.retry_at, self.last_error) = (Nanos::ZERO, None);
        for peek in trip.peeks {
            let _ = peek.reply.send(Ok((*held, *waiting)));
        }
        let mut found = found.iter();
        let mut first = None;
        for operation in trip.operations {
            if operation.kind == Kind::Leave {
                self.leaving.remove(&operation.number);
                continue;
            }
            let (Some(found), Some(record)) = (found.next(), self.records.get_mut(&operation.number)) else {
                continue;
            };
            record.renewed = sent;
            record.is_lowered &= operation.units != record.units;
            match (*found, &mut record.stage) {
                (Found::Holds { fence, held }, _) => self.grant(rules, operation.number, fence, held, now),
                (Found::Waits(ahead), Stage::New { .. }) => {
                    self.wait(operation.number);
                    first = first.or(Some(ahead));
                }
                (Found::Waits(ahead), Stage::Waiting { is_lost, .. }) => {
                    *is_lost = false;
                    first = first.or(Some(ahead));
                }
                // A message has said since then that the record holds a permit.
                (Found::Waits(_), Stage::Held { .. }) => {}
                (Found::None, Stage::Waiting { is_lost, .. }) => *is_lost = true,
                (Found::None, Stage::New { .. } | Stage::Held { .. }) => {
                    self.remove(rules, operation.number, *held, *waiting);
                }
            }
        }
        if let Some(ahead) = first {
            self.polls.observe(ahead, until_expiry.saturating_mul(1_000), rules.lease, now);
        }
    }

    /// Records that a call has a permit. Returns `false` if the call has ended or does not wait.
    pub(super) fn grant(&mut self, rules: &Rules, number: u64, fence: u64, held: u64, now: Nanos) {
        let Some(record) = self.records.get_mut(&number) else { return };
        let valid = rules.valid_until(record.renewed);
        if let Stage::Held { valid_until, .. } = &record.stage {
            valid_until.send_replace(valid);
            return;
        }
        let (sender, receiver) = watch::channel(valid);
        let held_stage = Stage::Held { valid_until: sender, is_forgotten: false };
        let (reply, delay) = match std::mem::replace(&mut record.stage, held_stage) {
            Stage::New { reply, .. } => (reply, 0),
            Stage::Waiting { reply, .. } => (reply, now.saturating_since(record.arrived)),
            Stage::Held { .. } => unreachable!("it returned above"),
        };
        let decision = Decision::allow(rules.limit, rules.limit.saturating_sub(held), 0).with_delay(delay);
        let permit = Some(Grant { fence, valid_until: receiver });
        // If the caller is gone, it removes the record.
        let _ = reply.send(Ok(Acquired { decision, permit }));
    }

    fn wait(&mut self, number: u64) {
        if let Some(record) = self.records.remove(&number)
            && let Stage::New { reply, .. } = record.stage
        {
            let stage = Stage::Waiting { is_lost: false, reply };
            self.records.insert(number, Record { stage, ..record });
        }
    }

    /// Removes a call that was denied, or whose permit was lost.
    fn remove(&mut self, rules: &Rules, number: u64, held: u64, waiting: u64) {
        let Some(record) = self.records.remove(&number) else { return };
        match record.stage {
            Stage::New { may_wait, reply, .. } => {
                let decision = rules.deny(record.units, held, waiting);
                let decision = if may_wait { decision.with_queue_full() } else { decision };
                let _ = reply.send(Ok(Acquired { decision, permit: None }));
            }
            Stage::Held { valid_until, .. } => drop(valid_until.send(Nanos::ZERO)),
            Stage::Waiting { .. } => {}
        }
    }

    /// Ends a trip that has changed nothing, and that is made again.
    pub(super) fn put_back(&mut self, trip: Trip) {
        self.peeks.extend(trip.peeks);
    }

    /// Ends a trip whose result is not known. New calls get the error. The other records are renewed later.
    pub(super) fn fail(&mut self, rules: &Rules, trip: Trip, error: &RedisError, now: Nanos) {
        self.retry_at = now.saturating_add(RETRY.min(rules.lease / 16));
        self.last_error = Some(error.clone());
        for peek in trip.peeks {
            let _ = peek.reply.send(Err(error.clone()));
        }
        for Operation { number, .. } in trip.operations {
            let is_new = |record: &Record| matches!(record.stage, Stage::New { .. });
            if self.records.get(&number).is_some_and(is_new)
                && let Some(Record { stage: Stage::New { reply, .. }, .. }) = self.records.remove(&number)
            {
                // The server may have created the record.
                self.leaving.insert(number, now.saturating_add(rules.lease));
                let _ = reply.send(Err(error.clone()));
            }
        }
    }

    /// Ends the task, because its runtime has ended. New calls get no reply. The other records are renewed by the task
    /// that the next call starts, if that is in time.
    pub(super) fn abandon(&mut self) {
        self.is_served = false;
        self.peeks.clear();
        self.records.retain(|_, record| !matches!(record.stage, Stage::New { .. }));
    }
}
