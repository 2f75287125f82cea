//! The records of a key: the calls of this process that hold permits, or wait for permits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::record::{Call, Peek, Phase, Record, Rules, Stage};
use super::schedule::PollSchedule;
use crate::error::RedisError;
use tower_throttle::clock::Nanos;

/// The records of a key. One task makes the trips of the key.
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
    /// The records by their numbers, in the order in which they were created.
    pub(super) records: BTreeMap<u64, Record>,
    /// The numbers of the records that the server may still have, but must remove, each with the time at which the
    /// record expires.
    pub(super) leaving: BTreeMap<u64, Nanos>,
    pub(super) peeks: Vec<Peek>,
    pub(super) polls: PollSchedule,
    /// After a failed trip, the time of the next attempt to renew or remove records.
    pub(super) retry_at: Nanos,
    pub(super) last_error: Option<RedisError>,
    pub(super) task: Task,
}

/// The task that makes the trips of a key.
#[derive(Debug, Default)]
pub(super) struct Task {
    /// The number of the last task that was started.
    number: u64,
    is_running: bool,
    /// The time at which the task was first woken since it last reacted.
    woken_at: Option<Nanos>,
    /// The time at which the task goes on without being woken.
    pub(super) due: Nanos,
}

impl Records {
    pub(super) fn new(key: Arc<str>, rules: Rules) -> Self {
        Self { key, rules, state: Mutex::default(), wake: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the task. If no task is running, or if the running task is late, returns the number
    /// of the task that the caller must start.
    #[must_use]
    pub(super) fn change(&self, now: Nanos, change: impl FnOnce(&mut State)) -> Option<u64> {
        let mut state = self.lock();
        change(&mut state);
        let started = state.task.wake(now, self.rules.patience());
        drop(state);
        self.wake.notify_one();
        started
    }

    /// If no task is running, or if the running task is late, returns the number of the task that the caller must
    /// start. Does not wake the task.
    #[must_use]
    pub(super) fn tend(&self, now: Nanos) -> Option<u64> {
        self.lock().task.replace(now, self.rules.patience())
    }
}

impl Task {
    fn is_late(&self, now: Nanos, patience: u64) -> bool {
        let is_late = |since: Nanos| now > since.saturating_add(patience);
        is_late(self.due) || self.woken_at.is_some_and(is_late)
    }

    /// Records that the task is woken. Returns the number of a new task if no task is running, or if the running task
    /// has not reacted for `patience` nanoseconds because its runtime does not drive it.
    fn wake(&mut self, now: Nanos, patience: u64) -> Option<u64> {
        let started = self.replace(now, patience);
        if started.is_none() {
            self.woken_at.get_or_insert(now);
        }
        started
    }

    fn replace(&mut self, now: Nanos, patience: u64) -> Option<u64> {
        if self.is_running && !self.is_late(now, patience) {
            return None;
        }
        *self = Self { number: self.number + 1, is_running: true, woken_at: None, due: now };
        Some(self.number)
    }

    /// Returns whether no other task has replaced the task with this number.
    pub(super) fn is_present(&self, number: u64) -> bool {
        self.number == number
    }

    /// Notes that the task has reacted, and that the task goes on at `due` at the latest.
    pub(super) fn goes_on(&mut self, due: Nanos) {
        (self.woken_at, self.due) = (None, due);
    }

    pub(super) fn end(&mut self) {
        self.is_running = false;
    }
}

impl State {
    /// Adds a call.
    pub(super) fn enter(&mut self, number: u64, units: u64, call: Call) {
        self.records.insert(number, Record::new(units, call));
    }

    pub(super) fn peek(&mut self, peek: Peek) {
        self.peeks.push(peek);
    }

    /// Removes a call that was dropped, or that has ended. `expires` is the time at which the server removes the call's
    /// record by itself.
    pub(super) fn leave(&mut self, number: u64, expires: Nanos) {
        if let Some(record) = self.records.remove(&number)
            && record.phase() != Some(Phase::New)
        {
            self.leaving.insert(number, expires);
        }
    }

    /// Marks a permit as forgotten: it is kept although its object was dropped.
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

    /// Returns whether the call with this number waits for a permit.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        self.records.get(&number).is_some_and(Record::waits)
    }

    /// Returns whether no task serves the records, and nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        !self.task.is_running && self.records.is_empty() && self.leaving.is_empty() && self.peeks.is_empty()
    }

    /// Returns how many calls wait.
    pub(super) fn waiting(&self) -> u64 {
        self.records.values().filter(|record| record.waits()).count() as u64
    }
}
