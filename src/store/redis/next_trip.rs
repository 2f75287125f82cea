//! The calls that arrive while a trip is under way.

use std::mem;

use super::operation::Pending;
use crate::clock::Nanos;

/// The maximum number of calls that one trip decides. It is bounded because a script blocks the server while it runs.
const MAX_BATCH: usize = 256;

/// The calls that wait for the next trip of a key.
#[derive(Debug)]
pub(super) struct Waiting<A> {
    /// The number of the flight that makes the next trip.
    pub(super) flight: u64,
    /// The time at which the present trip ends at the latest, if the runtime of the flight is driven.
    pub(super) ends: Nanos,
    pub(super) calls: Vec<Pending<A>>,
}

impl<A> Waiting<A> {
    /// Adds the calls of the next trip to `batch`, and sets the time at which that trip ends at the latest.
    pub(super) fn take_batch(&mut self, mut batch: Vec<Pending<A>>) -> Vec<Pending<A>> {
        let later = self.calls.split_off(self.calls.len().min(MAX_BATCH));
        batch.extend(mem::replace(&mut self.calls, later));
        self.ends = batch.iter().map(|call| call.deadline).max().unwrap_or(self.ends);
        batch
    }
}
