//! The records of a key: the calls of this process that hold permits, or wait for permits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::record::{Peek, Record, Reply, Rules, Stage};
use super::schedule::PollSchedule;
use crate::clock::Nanos;
use crate::store::redis::error::RedisError;

/// The records of a key. At most one task makes trips for them.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) key: Arc<str>,
    pub(super) rules: Rules,
    state: Mutex<State>,
    /// Wakes the task.
    pub(super) wake: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The records by their numbers, which is the order in which they were created.
    pub(super) records: BTreeMap<u64, Record>,
    /// The records that the server may still have, but must remove, each with the time at which it expires.
    pub(super) leaving: BTreeMap<u64, Nanos>,
    pub(super) peeks: Vec<Peek>,
    pub(super) polls: PollSchedule,
    /// After a failed trip, the time of the next attempt to renew or remove records.
    pub(super) retry_at: Nanos,
    pub(super) last_error: Option<RedisError>,
    /// `true` while a task makes trips.
    pub(super) is_served: bool,
}

impl Records {
    pub(super) fn new(key: Arc<str>, rules: Rules) -> Self {
        Self { key, rules, state: Mutex::default(), wake: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the task. Returns whether a task must be started.
    #[must_use]
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        let mut state = self.lock();
        change(&mut state);
        let is_served = std::mem::replace(&mut state.is_served, true);
        drop(state);
        self.wake.notify_one();
        !is_served
    }
}

impl State {
    /// Adds a call.
    pub(super) fn enter(
        &mut self,
        number: u64,
        units: u64,
        (arrived, deadline): (Nanos, Nanos),
        may_wait: bool,
        reply: Reply,
    ) {
        let stage = Stage::New { may_wait, deadline, is_sent: false, reply };
        self.records
            .insert(number, Record { units, arrived, renewed: Nanos::ZERO, is_lowered: false, stage });
    }

    pub(super) fn peek(&mut self, peek: Peek) {
        self.peeks.push(peek);
    }

    /// Removes a call that was dropped, or that has ended. `expires` is the time at which the server removes its record
    /// by itself.
    pub(super) fn leave(&mut self, number: u64, expires: Nanos) {
        if let Some(record) = self.records.remove(&number)
            && !matches!(record.stage, Stage::New { is_sent: false, .. })
        {
            self.leaving.insert(number, expires);
        }
    }

    /// Keeps a permit although its object is gone.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(Record { stage: Stage::Held { is_forgotten, .. }, .. }) = self.records.get_mut(&number) {
            *is_forgotten = true;
        }
    }

    /// Releases up to `units` units of forgotten permits, those of the oldest permits first.
    pub(super) fn release(&mut self, mut units: u64, expires: Nanos) {
        for (number, record) in &mut self.records {
            if matches!(record.stage, Stage::Held { is_forgotten: true, .. }) {
                let released = units.min(record.units);
                (record.units, units) = (record.units - released, units - released);
                record.is_lowered |= released > 0;
                if record.units == 0 {
                    self.leaving.insert(*number, expires);
                }
            }
        }
        self.records.retain(|_, record| record.units > 0);
    }

    /// Returns whether a call waits in the queue of the server.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        matches!(self.records.get(&number), Some(Record { stage: Stage::Waiting { .. }, .. }))
    }

    /// Returns whether the first new call has expired, so that the task is not driven.
    pub(super) fn is_stuck(&self, now: Nanos) -> bool {
        let is_late = |record: &Record| matches!(record.stage, Stage::New { deadline, is_sent: false, .. } if deadline <= now);
        self.records.values().any(is_late) || self.peeks.iter().any(|peek| peek.deadline <= now)
    }

    /// Returns whether no task serves the records, and nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_served && self.records.is_empty() && self.leaving.is_empty() && self.peeks.is_empty()
    }

    /// Returns how many calls wait.
    pub(super) fn waiting(&self) -> u64 {
        let waits = |record: &&Record| matches!(record.stage, Stage::Waiting { .. });
        self.records.values().filter(waits).count() as u64
    }
}
