//! The time without a reply, in which a connection may have ended, or may have been forgotten on its path.

use std::sync::atomic::{AtomicU64, Ordering};

use tower_throttle::clock::{AnyClock, Nanos};

/// The silence, in nanoseconds, after which it is found out whether a connection has ended before something is sent.
const SHORT: u64 = 1_000_000;
/// The silence, in nanoseconds, after which one late reply is enough to give up a connection: a firewall may have
/// forgotten the connection.
const LONG: u64 = 1_000_000_000;

/// The time since something was last received on a connection, or since the connection was made.
#[derive(Debug, Default)]
pub(super) struct Silence {
    clock: AnyClock,
    /// The time at which the silence began, in nanoseconds.
    began: AtomicU64,
}

impl Silence {
    /// Records that something was received, or that the connection was made.
    pub(super) fn end(&self) {
        self.began.store(self.clock.now().0, Ordering::Relaxed);
    }

    pub(super) fn is_short(&self) -> bool {
        self.nanos() < SHORT
    }

    pub(super) fn is_long(&self) -> bool {
        self.nanos() >= LONG
    }

    fn nanos(&self) -> u64 {
        self.clock.now().saturating_since(Nanos(self.began.load(Ordering::Relaxed)))
    }
}
