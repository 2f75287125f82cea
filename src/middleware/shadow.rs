use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::decision::Decision;

/// A switch for [shadow mode](crate::middleware::RateLimitLayer::shadow), and a counter of the calls that would have
/// been denied or queued.
///
/// Clones share the switch and the count. Keep a clone to turn shadow mode off while the server runs.
#[derive(Clone)]
pub struct Shadow {
    inner: Arc<Inner>,
}

struct Inner {
    on: AtomicBool,
    denied: AtomicU64,
}

impl Shadow {
    /// Creates a switch that is on.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: Arc::new(Inner { on: AtomicBool::new(true), denied: AtomicU64::new(0) }) }
    }

    /// Turns shadow mode on or off. While shadow mode is off, the limit is enforced.
    pub fn set(&self, on: bool) {
        self.inner.on.store(on, Ordering::Relaxed);
    }

    /// Returns whether shadow mode is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.inner.on.load(Ordering::Relaxed)
    }

    /// Returns the number of calls that were admitted in shadow mode and would otherwise have been denied or queued.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.inner.denied.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) {
        self.inner.denied.fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for Shadow {
    fn default() -> Self {
        Self::new()
    }
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
