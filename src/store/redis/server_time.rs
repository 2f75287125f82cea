//! The server's time, estimated from its replies.

use std::sync::atomic::{AtomicU64, Ordering};

/// The time by which the server's clock is ahead of this process's clock, in microseconds. Both clocks count from about
/// the Unix epoch. The difference can be negative, so [`BIAS`] is added to it.
///
/// A reply is received some time after the server read its clock for the reply. So each reply shows by how much the
/// server's clock is ahead *at least*, and the largest of these differences is nearest to the truth. If a difference is
/// smaller than the largest by more than two deadlines, the store assumes that the server's clock was set back.
#[derive(Debug, Default)]
pub(super) struct ServerTime {
    /// The difference plus [`BIAS`], or 0 if the difference is not known.
    ahead: AtomicU64,
}

const BIAS: u64 = 1 << 62;

impl ServerTime {
    /// Records a reading of the server's clock that was received when this process's clock read `local`. All arguments
    /// are in microseconds.
    pub(super) fn observe(&self, server: u64, local: u64, deadline: u64) {
        let ahead = BIAS.saturating_add(server).saturating_sub(local).max(1);
        let known = self.ahead.load(Ordering::Relaxed);
        if ahead > known || known - ahead > deadline.saturating_mul(2) {
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// Returns a lower bound of the server's time when this process's clock reads `local`. Both times are in
    /// microseconds. Returns `None` if no reading of the server's clock was recorded yet.
    pub(super) fn at(&self, local: u64) -> Option<u64> {
        match self.ahead.load(Ordering::Relaxed) {
            0 => None,
            ahead => Some(local.saturating_add(ahead).saturating_sub(BIAS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_reply_counts_until_the_clock_is_set_back() {
        let time = ServerTime::default();
        assert_eq!(time.at(5), None);
        time.observe(1_000, 300, 50);
        assert_eq!(time.at(400), Some(1_100));
        time.observe(2_000, 1_290, 50);
        assert_eq!(time.at(1_290), Some(2_000), "a quicker reply");
        time.observe(3_000, 2_330, 50);
        assert_eq!(time.at(2_330), Some(3_040), "a slower one");
        time.observe(3_000, 3_000, 50);
        assert_eq!(time.at(3_000), Some(3_000), "the clock was set back");
        time.observe(10, 3_000, 50);
        assert_eq!(time.at(3_000), Some(10), "it may be behind the own one");
    }
}
