use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::Decision;

/// A switch for [shadow mode](crate::middleware::RateLimitLayer::shadow), and a counter of the calls that would have
/// been denied or queued. Calls without a valid key are counted [elsewhere](crate::stats::KeyStats).
///
/// Clones share the switch and the count. Keep a clone to turn shadow mode off while the server runs.
#[derive(Clone)]
pub struct Shadow {
    inner: Arc<Inner>,
}

struct Inner {
    /// How often the switch has changed its position, which was off at first. So it is on if the number is odd.
    changes: AtomicU64,
    denied: AtomicU64,
}

impl Shadow {
    /// Creates a switch that is on.
    #[must_use]
    pub fn on() -> Self {
        Self::changed(1)
    }

    /// Creates a switch that is off: the limit is enforced until shadow mode is turned [on](Shadow::set).
    #[must_use]
    pub fn off() -> Self {
        Self::changed(0)
    }

    fn changed(changes: u64) -> Self {
        Self { inner: Arc::new(Inner { changes: changes.into(), denied: AtomicU64::new(0) }) }
    }

    /// Turns shadow mode on or off. While shadow mode is off, the limit is enforced.
    ///
    /// A request reads the switch once, when its call begins. So a request that is queued when shadow mode is turned on
    /// stays queued.
    pub fn set(&self, on: bool) {
        let change = |changes| (is_on(changes) != on).then_some(changes + 1);
        let _ = self.inner.changes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Returns whether shadow mode is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.turned_on().is_some()
    }

    /// Returns the number of calls that were admitted in shadow mode and would otherwise have been denied or queued by
    /// a decision of the limit.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.inner.denied.load(Ordering::Relaxed)
    }

    /// Returns the number of the change that turned shadow mode on, or `None` if shadow mode is off.
    #[inline]
    pub(super) fn turned_on(&self) -> Option<u64> {
        Some(self.inner.changes.load(Ordering::Relaxed)).filter(|changes| is_on(*changes))
    }

    pub(super) fn count(&self) {
        self.inner.denied.fetch_add(1, Ordering::Relaxed);
    }
}

fn is_on(changes: u64) -> bool {
    changes % 2 == 1
}

impl fmt::Debug for Shadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shadow").field("is_on", &self.is_on()).field("denied", &self.denied()).finish()
    }
}

/// An extension of a request that a limit in [shadow mode](crate::middleware::RateLimitLayer::shadow) would have denied
/// or queued: the decision of that limit. If there are several such limits, the extension has the decision of the limit
/// that decided last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowDenied(pub Decision);
