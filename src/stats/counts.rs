//! The numbers of calls by outcome, and the counters from which they are read.
//!
//! Each thread counts in a cell of its own, so a plain load and a plain store are enough, without an atomic
//! read-modify-write. The threads that have no number share one cell, to which they add atomically.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::Decision;
use crate::sys::thread_number::{THREADS, thread_number};

/// The number of outcomes.
const OUTCOMES: usize = CallOutcome::Queued as usize + 1;

/// The numbers of calls, by outcome.
///
/// Each call whose outcome is known is counted in exactly one of the fields other than `queued`. The sum of these
/// fields is [`ended`](CallStats::ended). A call is counted once, whatever it costs. A peek is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStats {
    /// Calls that were admitted, at once or after a wait in a queue.
    pub admitted: u64,
    /// Calls that were denied by the limit. These include calls that were denied because they would have waited longer
    /// than the maximum wait, and calls that waited for the maximum wait and were then denied.
    pub denied: u64,
    /// Calls that were denied because the queue of their key was full, or because `max_queued` calls were queued
    /// already. These include queued calls that newer calls have displaced.
    pub queue_full: u64,
    /// Calls that were denied because the key table had no room for their key. See [`OnFull`](crate::limiter::OnFull).
    pub table_full: u64,
    /// Calls that were denied because the limiter was closed.
    pub closed: u64,
    /// Calls that this policy allowed, and that another policy of the same layer denied. These calls were not charged.
    pub denied_by_others: u64,
    /// Calls that were dropped while they were queued. With a limiter that replies later, as in Redis, these include
    /// calls that were dropped before the reply.
    pub cancelled: u64,
    /// Calls that were admitted only because of shadow mode, and would otherwise have been denied or queued.
    pub shadow_denied: u64,
    /// Calls that joined a queue. Each of them is also counted in another field, once its outcome is known. So
    /// [`ended`](CallStats::ended) does not include this field. In Redis, the policies of a layer, and limiters in
    /// joined layers, count only those that were then admitted.
    pub queued: u64,
}

impl CallStats {
    /// Returns the number of calls whose outcome is known: the sum of all fields but `queued`. An admitted call is
    /// included from its admission on, even while it is in progress.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended_by_outcome().iter().map(|(_, calls)| calls).sum()
    }

    /// Returns the name of each outcome in events and metrics, and the number of calls with that outcome.
    pub(crate) fn ended_by_outcome(&self) -> [(&'static str, u64); 8] {
        [
            (CallOutcome::Admitted, self.admitted),
            (CallOutcome::Denied, self.denied),
            (CallOutcome::QueueFull, self.queue_full),
            (CallOutcome::TableFull, self.table_full),
            (CallOutcome::Closed, self.closed),
            (CallOutcome::DeniedByOthers, self.denied_by_others),
            (CallOutcome::Cancelled, self.cancelled),
            (CallOutcome::ShadowDenied, self.shadow_denied),
        ]
        .map(|(outcome, calls)| (outcome.label(), calls))
    }

    /// Returns the number of calls that were denied, for any reason. Calls that were denied only in shadow mode are not
    /// included.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.denied + self.queue_full + self.table_full + self.closed + self.denied_by_others
    }
}

/// The outcome by which a call is counted. `Queued` is counted in addition to the final outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call was admitted.
    Admitted,
    /// The call was denied by the limit.
    Denied,
    /// The call was denied because the queue was full.
    QueueFull,
    /// The call was denied because the key table was full.
    TableFull,
    /// The call was denied because the limiter was closed.
    Closed,
    /// The call was denied by another limit of a joint call.
    DeniedByOthers,
    /// The future of the call was dropped before it was ready.
    Cancelled,
    /// The call was admitted only because of shadow mode.
    ShadowDenied,
    /// The call has joined a queue.
    Queued,
}

impl CallOutcome {
    /// Returns the outcome of a call with this decision.
    #[inline]
    pub fn of(decision: &Decision, in_shadow: bool) -> Self {
        if decision.is_allowed() { Self::Admitted } else { Self::of_denial(decision, in_shadow) }
    }

    /// Returns the outcome of a call that was decided together with others. `all_admitted` is `true` if all of them
    /// were admitted.
    #[inline]
    pub fn of_joint(decision: &Decision, all_admitted: bool) -> Self {
        match decision.is_allowed() {
            true if all_admitted => Self::Admitted,
            true => Self::DeniedByOthers,
            false => Self::of_denial(decision, false),
        }
    }

    /// Returns the name of the outcome in events and metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::QueueFull => "queue_full",
            Self::TableFull => "table_full",
            Self::Closed => "closed",
            Self::DeniedByOthers => "denied_by_others",
            Self::Cancelled => "cancelled",
            Self::ShadowDenied => "shadow_denied",
            Self::Queued => "queued",
        }
    }

    /// Returns the outcome of a call that `decision` denies.
    #[inline]
    fn of_denial(decision: &Decision, in_shadow: bool) -> Self {
        match decision {
            _ if in_shadow => Self::ShadowDenied,
            decision if decision.is_closed() => Self::Closed,
            decision if decision.is_table_full() => Self::TableFull,
            decision if decision.is_queue_full() => Self::QueueFull,
            _ => Self::Denied,
        }
    }
}

/// Counters that share no cache line with other counters.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell([AtomicU64; OUTCOMES]);

/// The counters of one policy, or of a limiter. A limiter counts each of its calls, including those of layers, and a
/// policy counts each of its requests. [`CallOutcome`] says what a call counts as.
#[derive(Debug)]
pub struct CallCounts {
    /// The cell of each thread that has a [number](thread_number).
    by_thread: Box<[Cell; THREADS]>,
    /// The cell of all other threads.
    rest: Cell,
}

impl Default for CallCounts {
    fn default() -> Self {
        // The cells are created one by one, because all of them together are large for a stack.
        let cells: Box<[Cell]> = (0..THREADS).map(|_| Cell::default()).collect();
        let Ok(by_thread) = cells.try_into() else { unreachable!("there is a cell for each number") };
        Self { by_thread, rest: Cell::default() }
    }
}

impl CallCounts {
    /// Counts a call. No lock is needed.
    #[inline]
    pub fn add(&self, outcome: CallOutcome) {
        match thread_number() {
            Some(number) => {
                // No other thread writes to this cell.
                let counter = &self.by_thread[number].0[outcome as usize];
                counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            }
            None => self.add_atomically(outcome),
        }
    }

    /// Counts a call by its decision.
    #[inline]
    pub(crate) fn add_decision(&self, decision: &Decision, in_shadow: bool) {
        // Most calls are admitted. What follows is then compiled without another test of the decision.
        if decision.is_allowed() {
            self.add(CallOutcome::Admitted);
        } else {
            self.add(CallOutcome::of_denial(decision, in_shadow));
        }
    }

    /// Counts a call of a thread that has no number.
    #[cold]
    fn add_atomically(&self, outcome: CallOutcome) {
        self.rest.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn totals(&self) -> [u64; OUTCOMES] {
        let cells = || self.by_thread.iter().chain([&self.rest]);
        from_fn(|outcome| cells().map(|cell| cell.0[outcome].load(Ordering::Relaxed)).sum())
    }

    /// Returns the numbers of calls.
    pub fn stats(&self) -> CallStats {
        let totals = self.totals();
        let of = |outcome: CallOutcome| totals[outcome as usize];
        CallStats {
            admitted: of(CallOutcome::Admitted),
            denied: of(CallOutcome::Denied),
            queue_full: of(CallOutcome::QueueFull),
            table_full: of(CallOutcome::TableFull),
            closed: of(CallOutcome::Closed),
            denied_by_others: of(CallOutcome::DeniedByOthers),
            cancelled: of(CallOutcome::Cancelled),
            shadow_denied: of(CallOutcome::ShadowDenied),
            queued: of(CallOutcome::Queued),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::thread_number::TAKING_ALL;
    use std::sync::{Barrier, PoisonError};
    use std::thread;

    #[test]
    fn an_outcome_is_read_off_the_decision() {
        let denial = Decision::deny(3, 0, Some(4), 9);
        for (decision, outcome) in [
            (Decision::allow(3, 2, 9), CallOutcome::Admitted),
            (denial, CallOutcome::Denied),
            (denial.with_queue_full(), CallOutcome::QueueFull),
            (Decision::closed(3), CallOutcome::Closed),
            (Decision::table_full(3), CallOutcome::TableFull),
        ] {
            assert_eq!(CallOutcome::of(&decision, false), outcome);
            let in_shadow =
                if decision.is_allowed() { CallOutcome::Admitted } else { CallOutcome::ShadowDenied };
            assert_eq!(CallOutcome::of(&decision, true), in_shadow);
        }
    }

    #[test]
    fn threads_without_a_number_lose_no_count() {
        const CALLS: u64 = 1_000;
        let _alone = TAKING_ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let (counts, ready) = (CallCounts::default(), Barrier::new(200));
        thread::scope(|scope| {
            for _ in 0..200 {
                scope.spawn(|| {
                    // All threads that can have a number take one before any thread ends.
                    counts.add(CallOutcome::Denied);
                    ready.wait();
                    (0..CALLS).for_each(|_| counts.add(CallOutcome::Admitted));
                });
            }
        });
        assert!(counts.rest.0[0].load(Ordering::Relaxed) > 0, "some threads have no number");
        assert_eq!((counts.stats().admitted, counts.stats().denied), (200 * CALLS, 200));
    }

    #[test]
    fn each_outcome_but_queued_ends_a_call() {
        let counts = CallCounts::default();
        for (index, outcome) in [
            CallOutcome::Admitted,
            CallOutcome::Denied,
            CallOutcome::QueueFull,
            CallOutcome::TableFull,
            CallOutcome::Closed,
            CallOutcome::DeniedByOthers,
            CallOutcome::Cancelled,
            CallOutcome::ShadowDenied,
            CallOutcome::Queued,
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(outcome as usize, index);
            counts.add(outcome);
            counts.add(outcome);
        }
        let stats = counts.stats();
        assert_eq!((stats.ended(), stats.queued, stats.rejected()), (16, 2, 10));
    }
}
