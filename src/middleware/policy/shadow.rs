use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::decision::Decision;

/// A switch for [shadow mode](crate::middleware::RateLimitLayer::shadow), and a count of what it has let through.
///
/// Clones are the same switch: keep one to turn it while the server runs.
#[derive(Clone)]
pub struct Shadow {
    inner: Arc<Inner>,
}

struct Inner {
    on: AtomicBool,
    denied: AtomicU64,
}

impl Shadow {
    /// A switch that is on.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: Arc::new(Inner { on: AtomicBool::new(true), denied: AtomicU64::new(0) }) }
    }

    /// Turns it on or off: off, the limit is enforced.
    pub fn set(&self, on: bool) {
        self.inner.on.store(on, Ordering::Relaxed);
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.inner.on.load(Ordering::Relaxed)
    }

    /// How many calls were let through that would have been denied, or held.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.inner.denied.load(Ordering::Relaxed)
    }

    pub(in crate::middleware) fn count(&self) {
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

/// The mark on a request that a limit in [shadow mode](crate::middleware::RateLimitLayer::shadow) would have denied or held, in its
/// extensions: of several such limits, the last one's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowDenied(pub Decision);
