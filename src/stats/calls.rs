use super::outcome::CallOutcome;

/// The numbers of calls, by outcome.
///
/// Each call that has ended is counted in exactly one of the fields other than `queued`, whose sum is
/// [`ended`](CallStats::ended). A call counts once, whatever it costs. A peek does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStats {
    /// Calls that were admitted, at once or out of the queue.
    pub admitted: u64,
    /// Calls that were denied by the limit, including calls whose wait would have been, or was, too long.
    pub denied: u64,
    /// Calls that were denied because the queue of their key was full, or because `max_queued` calls waited, and
    /// waiters that were evicted by newer calls.
    pub queue_full: u64,
    /// Calls that were denied because there was no room for their key: [`OnFull`](crate::store::OnFull).
    pub table_full: u64,
    /// Calls that were denied because the limiter was closed.
    pub closed: u64,
    /// Calls that this policy allowed, and that another policy of the same layer denied. These calls were not charged.
    pub denied_by_others: u64,
    /// Calls that were dropped while they were queued; with a store that answers later, such as Redis, also calls that
    /// were dropped before the reply.
    pub cancelled: u64,
    /// Calls that were admitted in shadow mode, and would otherwise have been denied or queued.
    pub shadow_denied: u64,
    /// Calls that joined a queue. Each of them is counted in another field when it ends, so [`ended`](CallStats::ended)
    /// does not include this field.
    pub queued: u64,
}

impl CallStats {
    /// Returns the number of calls that have ended: the sum of all fields but `queued`.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended_by_outcome().iter().map(|(_, calls)| calls).sum()
    }

    /// Returns the number of calls that have ended, for each outcome with its name in events and metrics.
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

    /// Returns the number of calls that were rejected, for any reason.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.denied + self.queue_full + self.table_full + self.closed + self.denied_by_others
    }
}

/// The numbers of a store's events, and its present size. A field that has no meaning for a store is zero.
///
/// If `evicted` and `shared` are zero, and no call was denied as [`table_full`](CallStats::table_full),
/// [`max_keys`](crate::limiter::Builder::max_keys) is large enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Keys that were evicted to make room for new ones: [`OnFull::EvictLeastUsed`](crate::store::OnFull).
    pub evicted: u64,
    /// Evicted keys that were at their limits or locked out. At its next call, such a key has its whole quota again.
    pub evicted_at_limit: u64,
    /// Calls that were decided by a bucket that several keys share:
    /// [`OnFull::ShareBuckets`](crate::store::OnFull::ShareBuckets).
    pub shared: u64,
    /// Commands that were sent to a server.
    pub trips: u64,
    /// Calls of the limiter that is the store's fallback: those that the store could not decide, and those that were made
    /// to that limiter directly.
    pub fallbacks: u64,
    /// The number of times that the circuit breaker has opened.
    pub circuit_openings: u64,
    /// `true` if the circuit breaker is open now: calls are decided without a trip.
    pub is_circuit_open: bool,
    /// The number of keys that are kept now.
    pub keys: u64,
    /// The number of calls that are queued now, for all keys together.
    pub waiting: u64,
}
