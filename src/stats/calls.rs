use super::outcome::CallOutcome;

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
    /// Calls that were denied because the key table had no room for their key. See [`OnFull`](crate::store::OnFull).
    pub table_full: u64,
    /// Calls that were denied because the limiter was closed.
    pub closed: u64,
    /// Calls that this policy allowed, and that another policy of the same layer denied. These calls were not charged.
    pub denied_by_others: u64,
    /// Calls that were dropped while they were queued. With a store that answers later, such as Redis, these include
    /// calls that were dropped before the store's reply.
    pub cancelled: u64,
    /// Calls that were admitted only because of shadow mode, and would otherwise have been denied or queued.
    pub shadow_denied: u64,
    /// Calls that joined a queue. Each of them is also counted in another field, once its outcome is known. So
    /// [`ended`](CallStats::ended) does not include this field.
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

/// Counts of the events in a store, and the present size of the store. A field that has no meaning for a store is zero
/// or `false`.
///
/// If `evicted` and `shared` are zero, and no call was denied as [`table_full`](CallStats::table_full),
/// [`max_keys`](crate::limiter::Builder::max_keys) is large enough.
///
/// With Redis, `trips`, `late`, `circuit_openings` and `is_circuit_open` are counted for each `RedisStore`. All limiters
/// of the store report the same values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Keys that were evicted to make room for new keys: see [`OnFull::EvictLeastUsed`](crate::store::OnFull).
    pub evicted: u64,
    /// Evicted keys that were at their limits or locked out. At its next call, such a key has its whole quota again.
    pub evicted_at_limit: u64,
    /// Calls that were decided by a bucket that several keys share: see
    /// [`OnFull::ShareBuckets`](crate::store::OnFull::ShareBuckets).
    pub shared: u64,
    /// Commands that were sent to a server. With Redis, these are the scripts that were sent.
    pub trips: u64,
    /// Calls that failed at their deadline or later, whatever the reason was, such as a missing connection. A call that
    /// a fallback limiter then decides is included. Only stores in Redis count these calls.
    pub late: u64,
    /// Calls that the store's fallback limiter has decided. These are the calls that the store could not decide, and
    /// the calls that were made to the fallback limiter directly.
    pub fallbacks: u64,
    /// The number of times that the circuit breaker has opened.
    pub circuit_openings: u64,
    /// `true` if the circuit breaker is open now: calls are not sent to the server, except for one call after each
    /// pause, which tries the server again. The other calls fail at once, or the fallback decides them. In a Redis
    /// Cluster, this is `true` if the circuit breaker of any master is open.
    pub is_circuit_open: bool,
    /// The number of keys that are kept now.
    pub keys: u64,
    /// The number of calls that are queued now, for all keys together.
    pub waiting: u64,
}
