//! What is seen of a limiter by its name, whoever calls it.

#[cfg(feature = "metrics")]
use std::sync::Arc;

use crate::decision::Decision;
#[cfg(feature = "metrics")]
use crate::metrics::{self, Passed};
use crate::observe;
#[cfg(feature = "metrics")]
use crate::stats::LimiterStats;

/// The name of a limiter, under which its calls are logged and its counts are passed to a recorder. All clones of the
/// limiter share it.
#[derive(Debug)]
pub struct Observed {
    name: Option<String>,
    #[cfg(feature = "metrics")]
    passed: Arc<Passed>,
}

impl Observed {
    /// Creates what observes a limiter with this name. Of a limiter without one, nothing is seen.
    pub fn new(name: Option<String>) -> Self {
        Self {
            name,
            #[cfg(feature = "metrics")]
            passed: Arc::default(),
        }
    }

    /// Returns the name of the limiter.
    #[inline]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Logs a call that no layer has made and that has not waited, if it was denied. The caller must hold no lock.
    #[inline]
    pub fn checked(&self, decision: &Decision) {
        if !decision.is_allowed()
            && let Some(name) = &self.name
        {
            observe::call_denied(name, decision);
        }
    }

    /// Logs a call that no layer has made and that might wait, if it was denied, or admitted after a wait. The caller
    /// must hold no lock.
    pub fn called(&self, decision: &Decision) {
        self.checked(decision);
        if decision.is_allowed()
            && decision.is_delayed()
            && let Some(name) = &self.name
        {
            observe::call_queued(name, decision);
        }
    }

    /// Passes the counts of the limiter to the recorder. If `can_fail` is `false`, its calls go to no server.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self, stats: &LimiterStats, can_fail: bool) {
        metrics::record_limiter(self.name(), stats, can_fail, &self.passed);
    }
}
