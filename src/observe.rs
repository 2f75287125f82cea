//! Log events for the operator of the service. Without the feature `tracing`, nothing is logged.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "only events contain them"))]

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::decision::Decision;
use crate::error::BoxError;

/// The log events of a policy. At the levels `info`, `warn` and `error`, each kind of mistake is logged once, because a
/// caller could cause the same mistake any number of times.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// One bit for each kind of error that has been logged, in shadow mode in the upper half.
    key_error: AtomicU32,
    store: StoreState,
    unsatisfiable_cost: AtomicBool,
    too_few: [AtomicBool; 2],
    /// The number of the latest switch after which it was logged that the policy is not enforced.
    not_enforced: AtomicU64,
}

/// The latest log event about the store: it fails, or it decides again.
///
/// A caller may be able to make requests fail again and again, for example with a key whose value in the store is not
/// valid. So the store is logged as deciding again only after a number of decisions in a row. This number doubles with
/// each failure that is logged, up to [`MAX_NEEDED`].
#[derive(Debug, Default)]
struct StoreState {
    fails: AtomicBool,
    restored: Mutex<Restored>,
}

#[derive(Debug, Default)]
struct Restored {
    /// The number of decisions in a row since the last failure.
    decided: u32,
    needed: u32,
}

/// The maximum number of decisions in a row that are needed before a store is logged as deciding again.
const MAX_NEEDED: u32 = 1_024;

impl StoreState {
    /// Records a failure. Returns whether the failure must be logged.
    fn failed(&self) -> bool {
        let mut restored = self.restored.lock().unwrap_or_else(PoisonError::into_inner);
        restored.decided = 0;
        let is_first = !self.fails.swap(true, Ordering::Relaxed);
        if is_first {
            restored.needed = (2 * restored.needed).clamp(1, MAX_NEEDED);
        }
        is_first
    }

    /// Records a decision of a store whose failure was logged. Returns whether the recovery of the store must now be
    /// logged.
    #[cold]
    fn decided(&self) -> bool {
        let mut restored = self.restored.lock().unwrap_or_else(PoisonError::into_inner);
        restored.decided += 1;
        restored.decided >= restored.needed && self.fails.swap(false, Ordering::Relaxed)
    }
}

impl Observer {
    /// Logs that requests have no key, unless an error of the same kind was logged before. `kind` is a number below 16.
    /// `what` says what happens to the requests. An error that was logged in shadow mode is logged again afterwards.
    pub(crate) fn key_error(
        &self,
        policy: &str,
        in_shadow: bool,
        kind: u32,
        what: &'static str,
        error: &dyn Display,
    ) {
        let kind = 1 << (kind + 16 * u32::from(in_shadow));
        if self.key_error.load(Ordering::Relaxed) & kind == 0
            && self.key_error.fetch_or(kind, Ordering::Relaxed) & kind == 0
        {
            error_once(policy, what, error);
        }
    }

    /// Logs a request that was rejected because of a mistake of the client, or in shadow mode passes in spite of it, at
    /// level `debug`. The first request whose list of addresses has fewer entries than there are trusted hops is logged
    /// as a warning instead, since a wrong number of hops causes the same error.
    pub(crate) fn invalid_key(&self, policy: &str, in_shadow: bool, is_too_few: bool, error: &dyn Display) {
        let what = match (is_too_few, in_shadow) {
            (true, false) => "a request is rejected because its list of addresses is too short",
            (true, true) => "a request with too short a list of addresses passes because of shadow mode",
            (false, false) => "a request is rejected because its client made a mistake",
            (false, true) => "a request with a mistake of its client passes because of shadow mode",
        };
        let log = if is_too_few && first(&self.too_few[usize::from(in_shadow)]) { warn } else { debug };
        log(policy, what, error);
    }

    /// Logs that the store fails, unless this was already logged. `admits` is `true` if requests that the store cannot
    /// decide are admitted.
    #[cold]
    pub(crate) fn store_error(&self, policy: &str, error: &BoxError, admits: bool) {
        if self.store.failed() {
            let what = match admits {
                true => "requests are not limited because the store cannot decide",
                false => "requests are rejected because the store cannot decide",
            };
            error_now(policy, what, error);
        }
    }

    /// Logs that the store decides again, if a failure of the store was logged, and the store has since made enough
    /// decisions in a row.
    #[inline]
    pub(crate) fn store_decided(&self, policy: &str) {
        if self.store.fails.load(Ordering::Relaxed) && self.store.decided() {
            info(policy, "the store decides again");
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
    /// Logs a call that was queued and admitted, at level `debug`. A call that was not queued is not logged.
    pub(crate) fn waited(&self, policy: &str, decision: &Decision) {
        #[cfg(feature = "tracing")]
        if decision.is_delayed() {
            tracing::debug!(policy, delay = ?decision.delay(), "tower-throttle: held");
        }
    }

    /// Logs a call that was denied, at level `debug`. The event contains no key.
    pub(crate) fn denied(&self, policy: &str, denial: &Decision) {
        #[cfg(feature = "tracing")]
        tracing::debug!(
            policy,
            retry_after = denial.retry_after().map(tracing::field::debug),
            outcome = crate::stats::CallOutcome::of(denial, false).label(),
            "tower-throttle: denied"
        );
    }

    /// Logs, at level `debug`, a request of a forbidden caller that passes in shadow mode.
    pub(crate) fn forbidden_in_shadow(&self, policy: &str) {
        #[cfg(feature = "tracing")]
        tracing::debug!(
            policy,
            "tower-throttle: a request of a forbidden caller passes because of shadow mode"
        );
    }

    /// Logs that the policy lets requests pass, and `why`, unless this was logged after the switch with the number
    /// `switch`, or a later one.
    #[inline]
    pub(crate) fn not_enforced(&self, policy: &str, switch: u64, why: &'static str) {
        if self.not_enforced.load(Ordering::Relaxed) < switch
            && self.not_enforced.fetch_max(switch, Ordering::Relaxed) < switch
        {
            info(policy, why);
        }
    }

    /// Logs, at level `debug`, a call that was admitted only because of shadow mode, and would otherwise have been
    /// denied or queued.
    pub(crate) fn shadow(&self, policy: &str, denial: &Decision) {
        #[cfg(feature = "tracing")]
        tracing::debug!(policy, decision = %denial, "tower-throttle: let through in shadow mode");
    }
}

/// Records the outcome of a request in the current span, if the span declares the field `rate_limit.decision`.
#[inline(always)]
pub(crate) fn record_decision(decided: impl FnOnce() -> Option<&'static str>) {
    // If no level is enabled, as in a program without a subscriber, no span is enabled either.
    #[cfg(feature = "tracing")]
    if tracing::level_filters::LevelFilter::current() != tracing::level_filters::LevelFilter::OFF {
        record_in_span(decided);
    }
}

#[cfg(feature = "tracing")]
#[inline(never)]
fn record_in_span(decided: impl FnOnce() -> Option<&'static str>) {
    const FIELD: &str = "rate_limit.decision";
    let declares = |metadata: &tracing::Metadata<'_>| metadata.fields().field(FIELD).is_some();
    if tracing::dispatcher::get_default(|dispatch| dispatch.current_span().metadata().is_some_and(declares))
        && let Some(decided) = decided()
    {
        tracing::Span::current().record(FIELD, decided);
    }
}

fn first(said: &AtomicBool) -> bool {
    !said.load(Ordering::Relaxed) && !said.swap(true, Ordering::Relaxed)
}

fn error_now(policy: &str, what: &'static str, why: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(policy, reason = %why, "tower-throttle: {what}");
}

fn info(policy: &str, what: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::info!(policy, "tower-throttle: {what}");
}

fn error_once(policy: &str, what: &'static str, why: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(policy, reason = %why, "tower-throttle: {what} (said once)");
}

fn warn(policy: &str, what: &'static str, why: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(policy, reason = %why, "tower-throttle: {what} (said once)");
}

fn debug(policy: &str, what: &'static str, why: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::debug!(policy, reason = %why, "tower-throttle: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_keeps_changing_is_logged_ever_more_rarely() {
        let store = StoreState::default();
        assert!(store.failed() && !store.failed());
        assert!(store.decided(), "the first decision");
        assert!(store.failed());
        for _ in 0..1_000 {
            assert!(!store.decided());
            assert!(!store.failed(), "every second request fails");
        }
        assert!(!store.decided() && store.decided(), "two decisions in a row");
        let mut changes = 0;
        for run in 0..1_000_000_u32 {
            // Runs of 600 decisions.
            let is_logged = match run % 600 {
                0 => store.failed(),
                _ => store.fails.load(Ordering::Relaxed) && store.decided(),
            };
            changes += u32::from(is_logged);
        }
        assert!(changes <= 22, "{changes}");
    }
}
