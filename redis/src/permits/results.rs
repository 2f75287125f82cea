//! The changes that the result of a trip, or a message, makes to the records.

use tokio::sync::watch;
use tower_throttle::store_support::with_queue_full;

use super::record::{Acquired, Grant, Phase, Record, Rules, Stage};
use super::records::State;
use super::schedule::PollSchedule;
use super::script::{Found, Kind, Operation, Outcome};
use super::steps::Trip;
use crate::error::{RedisError, RedisErrorKind};
use tower_throttle::Decision;
use tower_throttle::clock::Nanos;

/// The maximum pause after a failed trip, in nanoseconds.
const RETRY: u64 = 50_000_000;

impl State {
    /// Ends a trip that began at `sent`.
    pub(super) fn finish(&mut self, rules: &Rules, trip: Trip, outcome: &Outcome, sent: Nanos, now: Nanos) {
        let Outcome { held, waiting, until_expiry, .. } = outcome;
        (self.retry_at, self.last_error) = (Nanos::ZERO, None);
        for peek in trip.peeks {
            let _ = peek.reply.send(Ok((*held, *waiting)));
        }
        let mut found = outcome.found.iter();
        let mut places = Vec::new();
        for operation in trip.operations {
            let number = operation.number;
            if operation.kind == Kind::Leave {
                self.leaving.remove(&number);
                continue;
            }
            let (Some(found), Some(record)) = (found.next(), self.records.get_mut(&number)) else { continue };
            record.is_lowered &= operation.units != record.units;
            match *found {
                Found::Holds { fence, held } => {
                    record.renewed = sent;
                    self.grant(rules, number, fence, held, now);
                }
                Found::Waits(ahead) => {
                    record.renewed = sent;
                    places.push((number, ahead));
                    self.wait(rules, number, sent, now);
                }
                Found::None => self.miss(rules, operation, outcome),
            }
        }
        // The polls are for the first waiter.
        let first = self.records.iter().find(|(_, record)| record.waits()).map(|(number, _)| *number);
        if first.is_none() {
            self.polls = PollSchedule::default();
        }
        // A trip without the first waiter only decides new calls or renews records, and says nothing about the first
        // waiter. If the server has lost records, another waiter of this process may be ahead of the first waiter.
        let has_first = places.iter().any(|(number, _)| Some(*number) == first);
        if let Some(ahead) = places.into_iter().map(|(_, ahead)| ahead).min().filter(|_| has_first) {
            self.polls.observe(ahead, until_expiry.saturating_mul(1_000), rules.lease, now);
        }
    }

    /// Processes a message that says that a call has a permit.
    pub(super) fn receive(&mut self, rules: &Rules, number: u64, fence: u64, held: u64, now: Nanos) {
        if let Some(Record { stage: Stage::Asking { min_fence, .. }, .. }) = self.records.get(&number)
            && fence >= *min_fence
        {
            self.grant(rules, number, fence, held, now);
        }
    }

    /// Records that a call has a permit. The permit is valid for a little less than a lease since the last renewal of
    /// the record.
    fn grant(&mut self, rules: &Rules, number: u64, fence: u64, held: u64, now: Nanos) {
        let Some(record) = self.records.get_mut(&number) else { return };
        let valid = rules.valid_until(record.renewed);
        if let Stage::Held { valid_until, .. } = &record.stage {
            valid_until.send_replace(valid);
            return;
        }
        let (sender, receiver) = watch::channel(valid);
        let stage = Stage::Held { valid_until: sender, is_forgotten: false, granted_at: now };
        if let Stage::Asking { call, phase, .. } = std::mem::replace(&mut record.stage, stage) {
            let has_waited = matches!(phase, Phase::Queued | Phase::Lost);
            let delay = if has_waited { now.saturating_since(call.arrived) } else { 0 };
            let decision =
                Decision::allow(rules.limit, rules.limit.saturating_sub(held), 0).with_delay(delay);
            let permit = Some(Grant { fence, valid_until: receiver });
            // If the caller is gone, its `Place` removes the record.
            let _ = call.reply.send(Ok(Acquired { decision, permit }));
        }
    }

    /// Records that a trip that began at `sent` has found a call in the queue. A call whose time to wait is over is
    /// denied.
    fn wait(&mut self, rules: &Rules, number: u64, sent: Nanos, now: Nanos) {
        let Some(record) = self.records.get_mut(&number) else { return };
        match &mut record.stage {
            // A message has arrived before the reply.
            Stage::Held { valid_until, granted_at, .. } if sent <= *granted_at => {
                valid_until.send_replace(rules.valid_until(record.renewed));
            }
            // The server has lost the grant, but not the place in the queue.
            Stage::Held { .. } => {
                self.leaving.insert(number, now.saturating_add(rules.lease));
                let late = RedisError::new(RedisErrorKind::Late, "the server has lost the permit");
                self.end(number, Err(late));
            }
            Stage::Asking { call, .. } if call.latest.is_some_and(|latest| latest <= now) => {
                let decision = rules.deny(record.units, rules.limit, 1);
                self.leaving.insert(number, now.saturating_add(rules.lease));
                self.end(number, Ok(Acquired { decision, permit: None }));
            }
            Stage::Asking { phase, .. } => *phase = Phase::Queued,
        }
    }

    /// Records that the server has no record of a call: it has denied the call, or it has lost the record.
    fn miss(&mut self, rules: &Rules, operation: Operation, outcome: &Outcome) {
        let Some(record) = self.records.get_mut(&operation.number) else { return };
        if let (Stage::Asking { phase, min_fence, .. }, Kind::Keep) = (&mut record.stage, operation.kind) {
            (*phase, *min_fence) = (Phase::Lost, outcome.now);
            return;
        }
        let decision = rules.deny(record.units, outcome.held, outcome.waiting);
        let decision = if operation.kind == Kind::Queue { with_queue_full(decision) } else { decision };
        self.end(operation.number, Ok(Acquired { decision, permit: None }));
    }

    fn end(&mut self, number: u64, result: Result<Acquired, RedisError>) {
        if let Some(record) = self.records.remove(&number) {
            record.end(result);
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
            if self.records.get(&number).is_some_and(|record| record.phase() == Some(Phase::Sent)) {
                // The server may have created the record.
                self.leaving.insert(number, now.saturating_add(rules.lease));
                self.end(number, Err(error.clone()));
            }
        }
    }

    /// Ends the task, because its runtime has ended. New calls end with an error. The other records are renewed by the
    /// next task, if that task is started in time.
    pub(super) fn abandon(&mut self, rules: &Rules, now: Nanos) {
        self.task.end();
        self.peeks.clear();
        for (number, record) in &self.records {
            if record.phase() == Some(Phase::Sent) {
                self.leaving.insert(*number, now.saturating_add(rules.lease));
            }
        }
        self.records.retain(|_, record| !matches!(record.phase(), Some(Phase::New | Phase::Sent)));
        if self.records.is_empty() {
            // Perhaps no runtime is left on which the server could be informed.
            self.leaving.clear();
        }
    }
}
