//! The server's time, estimated from its replies.

use std::sync::atomic::{AtomicU64, Ordering};

/// The time by which the server's clock is ahead of this process's clock, in microseconds. Both clocks show
/// approximately the time since the Unix epoch. The difference can be negative, so [`BIAS`] is added to it.
///
/// A reply is received some time after the server read its clock for the reply. So each reply shows by how much the
/// server's clock is ahead *at least*, and the largest of these differences is nearest to the truth. The request was
/// sent before the server read its clock. So each reply also shows by how much the server's clock is ahead *at most*.
/// If this maximum is less than the minimum that an earlier reply has shown, the server's clock was set back.
#[derive(Debug, Default)]
pub(super) struct ServerTime {
    /// The difference plus [`BIAS`], or 0 if the difference is not known.
    ahead: AtomicU64,
}

const BIAS: u64 = 1 << 62;
/// The maximum error, in microseconds, when two differences between the clocks are compared. It arises because each
/// reading is rounded down to a microsecond.
const ROUNDING: u64 = 2;

impl ServerTime {
    /// Records a reading of the server's clock. This process's clock read `sent` when the request was sent, and
    /// `received` when the reply was read. All arguments are in microseconds, and each is rounded down.
    pub(super) fn observe(&self, server: u64, sent: u64, received: u64) {
        let at_least = BIAS.saturating_add(server).saturating_sub(received).max(1);
        let at_most = BIAS.saturating_add(server).saturating_add(ROUNDING).saturating_sub(sent);
        let known = self.ahead.load(Ordering::Relaxed);
        if at_least > known || known > at_most {
            self.ahead.store(at_least, Ordering::Relaxed);
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
        time.observe(1_000, 200, 300);
        assert_eq!(time.at(400), Some(1_100));
        time.observe(2_000, 1_280, 1_290);
        assert_eq!(time.at(1_290), Some(2_000), "a quicker reply");
        time.observe(3_000, 2_285, 2_330);
        assert_eq!(time.at(2_330), Some(3_040), "a slower one");
        time.observe(3_000, 2_990, 3_000);
        assert_eq!(time.at(3_000), Some(3_000), "the clock was set back");
        time.observe(10, 2_990, 3_000);
        assert_eq!(time.at(3_000), Some(10), "it may be behind the own one");
    }

    #[test]
    fn a_reply_that_is_read_late_is_no_step_of_the_clock() {
        let time = ServerTime::default();
        time.observe(1_000, 290, 300);
        time.observe(2_000, 1_295, 900_000);
        assert_eq!(time.at(900_000), Some(900_700));
        time.observe(2_000, 1_300, 1_305);
        assert_eq!(time.at(1_305), Some(2_005), "a difference of rounding");
    }
}
