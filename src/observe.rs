//! Log events for the operator of the service. All of them vanish without the feature `tracing`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::decision::Decision;
use crate::key::{KeyError, MissingKey};
use crate::store::BoxError;

/// Logs each kind of mistake once: the caller that causes it can cause it a million times.
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

    /// Logs a request that was rejected because of a mistake of the client: each at level `debug`. But the first list
    /// that is shorter than the trusted hops is a warning, since a wrong number of hops looks the same.
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
    /// Logs a call that was queued. This happens each time, at level `debug`.
    #[cfg(feature = "tracing")]
    pub(crate) fn waited(&self, policy: &str, decision: &Decision) {
        let delay = decision.delay();
        if !delay.is_zero() {
            tracing::debug!(policy, ?delay, "tower-throttle: held");
        }
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn waited(&self, _: &str, _: &Decision) {}

    /// Logs a call that was denied. This happens each time, at level `debug`. It names no key.
    #[cfg(feature = "tracing")]
    pub(crate) fn denied(&self, policy: &str, denial: &Decision) {
        let retry_after = denial.retry_after().map(tracing::field::debug);
        let outcome = crate::stats::CallOutcome::of(denial, false).label();
        tracing::debug!(policy, retry_after, outcome, "tower-throttle: denied");
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn denied(&self, _: &str, _: &Decision) {}

    /// Logs a call that was admitted in shadow mode, but would have been denied or queued. This happens each time, at
    /// level `debug`.
    #[cfg(feature = "tracing")]
    pub(crate) fn shadow(&self, policy: &str, denial: &Decision) {
        tracing::debug!(policy, decision = %denial, "tower-throttle: let through in shadow mode");
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn shadow(&self, _: &str, _: &Decision) {}
}

/// Records in the current span what was decided, if the span declares the field `rate_limit.decision`.
#[cfg(feature = "tracing")]
#[inline]
pub(crate) fn record_decision(decided: impl FnOnce() -> Option<&'static str>) {
    use tracing::dispatcher::get_default;

    const FIELD: &str = "rate_limit.decision";
    let declares = |metadata: &tracing::Metadata<'_>| metadata.fields().field(FIELD).is_some();
    if get_default(|dispatch| dispatch.current_span().metadata().is_some_and(declares))
        && let Some(decided) = decided()
    {
        tracing::Span::current().record(FIELD, decided);
    }
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn record_decision(_: impl FnOnce() -> Option<&'static str>) {}

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
