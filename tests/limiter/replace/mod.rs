//! An algorithm is replaced while calls are made. No key is reset, locked out or lost, and no decision reports the old
//! quota.

mod decisions;
mod on_threads;
mod waiters;

use std::time::Duration;

use crate::support::limiter;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Runs a test with each kind of algorithm whose units are counted.
macro_rules! with_each_kind {
    ($test:ident) => {
        $test(TokenBucket::new);
        $test(FixedWindow::new);
        $test(|quota| FixedWindow::new(quota).aligned());
        $test(SlidingWindow::new);
        $test(SlidingCounter::new);
        $test(SlidingLog::new);
        $test(|quota| (TokenBucket::new(quota), FixedWindow::new(quota)));
    };
}

use with_each_kind;
