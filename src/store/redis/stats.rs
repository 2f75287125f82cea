/// What a [`RedisStore`](super::RedisStore) has counted since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// The commands that were sent to decide calls.
    pub trips: u64,
    /// The calls that failed because they were late, or because there was no connection.
    pub late: u64,
    /// How often the circuit breaker opened.
    pub opened: u64,
    /// `true` if it is open: calls are not sent. In a cluster, `true` if that of any master is.
    pub is_open: bool,
}

impl RedisStats {
    /// Returns the sum of what two nodes have counted.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            trips: self.trips + other.trips,
            late: self.late + other.late,
            opened: self.opened + other.opened,
            is_open: self.is_open || other.is_open,
        }
    }
}
