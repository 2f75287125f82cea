//! Log events for the operator of the service. Without the feature `tracing`, nothing is logged.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::decision::Decision;
use crate::key::{KeyError, MissingKey};
use crate::store::BoxError;

/// Logs each kind of mistake once, because a caller could cause the same mistake any number of times.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// One bit for each kind of error that has been logged.
    key_error: AtomicU32,
    store_error: AtomicBool,
    unsatisfiable_cost: AtomicBool,
    too_few: AtomicBool,
}

impl Observer {
    pub(crate) fn key_error(&self, policy: &str, error: &KeyError, missing: MissingKey) {
        let kind = 1 << error.kind();
        if self.key_error.load(Ordering::Relaxed) & kind == 0
            && self.key_error.fetch_or(kind, Ordering::Relaxed) & kind == 0
        {
            let what = match missing {
                MissingKey::Reject => "requests are refused because they have no key",
                MissingKey::Shared => "requests share one budget because they have no key",
                MissingKey::Pass => "requests are not limited because they have no key",
            };
            error_once(policy, what, error);
        }
    }

    /// Logs a request that was rejected because of a mistake of the client. Each such request is logged at level
    /// `debug`. The first request whose list has fewer entries than trusted hops is logged as a warning, since a wrong
    /// number of hops causes the same error.
    pub(crate) fn invalid_key(&self, policy: &str, error: &KeyError) {
        if error.is_too_few() && first(&self.too_few) {
            warn(policy, "a request is refused because its list of addresses is too short", error);
        } else {
            debug(policy, "a request is refused because its client made a mistake", error);
        }
    }

    pub(crate) fn store_error(&self, policy: &str, error: &BoxError) {
        if first(&self.store_error) {
            error_once(policy, "requests are refused because the store cannot decide", error);
        }
    }

    pub(crate) fn unsatisfiable_cost(&self, policy: &str) {
        if first(&self.unsatisfiable_cost) {
            error_once(
                policy,
                "a request costs more than the limit can ever admit",
                &"raise the burst or lower the cost",
            );
        }
    }
}

impl Observer {
    /// Logs a call that was queued. Each such call is logged at level `debug`.
    #[cfg(feature = "tracing")]
    pub(crate) fn waited(&self, policy: &str, decision: &Decision) {
        let delay = decision.delay();
        if !delay.is_zero() {
            tracing::debug!(policy, ?delay, "tower-throttle: held");
        }
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn waited(&self, _: &str, _: &Decision) {}

    /// Logs a call that was admitted in shadow mode, but would have been denied or queued. Each such call is
    /// logged at level `debug`.
    #[cfg(feature = "tracing")]
    pub(crate) fn shadow(&self, policy: &str, denial: &Decision) {
        tracing::debug!(policy, decision = %denial, "tower-throttle: let through in shadow mode");
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn shadow(&self, _: &str, _: &Decision) {}
}

/// Logs that a limiter was built of a window with a burst.
#[cfg(feature = "tracing")]
pub(crate) fn ignored_burst(algorithm: &dyn std::fmt::Debug) {
    tracing::warn!(
        ?algorithm,
        "tower-throttle: a window makes no use of a burst: leave it out, or take a TokenBucket"
    );
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn ignored_burst(_: &dyn std::fmt::Debug) {}

fn first(said: &AtomicBool) -> bool {
    !said.load(Ordering::Relaxed) && !said.swap(true, Ordering::Relaxed)
}

#[cfg(feature = "tracing")]
fn error_once(policy: &str, what: &'static str, why: &dyn std::fmt::Display) {
    tracing::error!(policy, reason = %why, "tower-throttle: {what} (said once)");
}

#[cfg(feature = "tracing")]
fn warn(policy: &str, what: &'static str, why: &dyn std::fmt::Display) {
    tracing::warn!(policy, reason = %why, "tower-throttle: {what} (said once)");
}

#[cfg(feature = "tracing")]
fn debug(policy: &str, what: &'static str, why: &dyn std::fmt::Display) {
    tracing::debug!(policy, reason = %why, "tower-throttle: {what}");
}

#[cfg(not(feature = "tracing"))]
fn error_once(_: &str, _: &'static str, _: &dyn std::fmt::Display) {}

#[cfg(not(feature = "tracing"))]
fn warn(_: &str, _: &'static str, _: &dyn std::fmt::Display) {}

#[cfg(not(feature = "tracing"))]
fn debug(_: &str, _: &'static str, _: &dyn std::fmt::Display) {}
