/// The counts of a [`RedisStore`](super::RedisStore) since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// The number of scripts that were sent to the server.
    pub trips: u64,
    /// The number of calls that failed because no reply came before their deadline, even if the reason was a missing
    /// connection.
    pub late: u64,
    /// The number of times that the circuit breaker opened.
    pub opened: u64,
    /// `true` if the circuit breaker is open, so that calls are not sent. In a cluster, `true` if the circuit breaker
    /// of any master is open.
    pub is_open: bool,
}

impl RedisStats {
    /// Returns the sum of the counts of two nodes.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            trips: self.trips + other.trips,
            late: self.late + other.late,
            opened: self.opened + other.opened,
            is_open: self.is_open || other.is_open,
        }
    }
}
