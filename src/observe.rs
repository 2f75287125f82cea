//! Log events for the operator of the service. Without the feature `tracing`, nothing is logged.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "only events contain them"))]

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::algorithm::QuotaPolicy;
use crate::clock::{self, Nanos};
use crate::decision::Decision;
use crate::error::BoxError;

/// The target of all events, which is promised. Those of the crate `tower-throttle-redis` have it, too.
#[cfg(feature = "tracing")]
const TARGET: &str = "tower_throttle";

/// Logs an event, at the level that is the first argument. Without the feature `tracing`, does nothing.
macro_rules! event {
    ($level:ident, $($event:tt)+) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!(target: TARGET, $($event)+);
    }};
}

/// The time between two events about a mistake that goes on.
const MINUTE: u64 = 60_000_000_000;

/// The time after which many proxies and clients give up.
const LONG_WAIT: Duration = Duration::from_secs(30);

/// The number of kinds of missing keys.
const MISSING_KEYS: usize = 6;

/// A mistake or a failure that may go on. A caller may be able to cause it any number of times, so it is logged when it
/// begins, and then at most once a minute while it goes on.
#[derive(Debug, Default)]
pub struct Recurrence {
    /// How often it has occurred since the last event.
    count: AtomicU64,
    /// The time at which the next event is due.
    next: AtomicU64,
}

impl Recurrence {
    /// Creates the state of a mistake that has not occurred yet.
    pub const fn new() -> Self {
        Self { count: AtomicU64::new(0), next: AtomicU64::new(0) }
    }

    /// Records that the mistake has occurred. If an event is due, or if `at_once`, returns how often the mistake has
    /// occurred since the last event. The default clock is read only here.
    #[cold]
    pub fn due(&self, at_once: bool) -> Option<u64> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let (now, next) = (clock::of_process(), self.next.load(Ordering::Relaxed));
        let is_due = at_once || now >= Nanos(next);
        let is_first = is_due && self.is_first(next, now.0);
        is_first.then(|| self.count.swap(0, Ordering::Relaxed))
    }

    /// Lets the event after the one that is due at `next` be due a minute after `now`. Returns `false` if another
    /// thread has logged the event that is due meanwhile, so that it is enough.
    fn is_first(&self, next: u64, now: u64) -> bool {
        let after = now.saturating_add(MINUTE);
        self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns whether an event is due at `now`, a reading of a clock that may be set back. Reads no clock and changes
    /// nothing, so it may be asked by each call.
    #[inline]
    pub fn is_due_at(&self, now: u64) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        // The readings of threads differ a little, so after the clock was set back, the event is due only if that was
        // by more than a minute.
        now >= next || next - now > 2 * MINUTE
    }

    /// Like [`due`](Recurrence::due), for a mistake that was noticed at `now`, and that something else has counted:
    /// `total` times.
    #[cold]
    fn due_of(&self, now: u64, total: u64) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let is_first = self.is_due_at(now) && self.is_first(next, now);
        is_first.then(|| total.saturating_sub(self.count.swap(total, Ordering::Relaxed)))
    }

    /// Logs, if an event is due, that the peer of requests seems to be a proxy, which is counted as one client, or not
    /// limited. `advice` says what to change.
    pub fn proxy_as_client(&self, is_limited: bool, advice: &'static str) {
        if let Some(count) = self.due(false) {
            let what = if is_limited {
                "share one budget"
            } else {
                "are not limited, because an `allow` list has the address of the proxy"
            };
            event!(
                warn,
                event = "proxy_as_client",
                reason = advice,
                count,
                "tower-throttle[T03]: peers on this machine or in a private network have forwarded requests: if they \
                 are proxies, all their clients {what}"
            );
        }
    }

    /// Logs, if an event is due, that calls have priority on a limit that ignores priority. `limiter` is the name of
    /// the limiter.
    pub fn priority_ignored(&self, limiter: Option<&str>) {
        if let Some(count) = self.due(false) {
            event!(
                warn,
                event = "priority_ignored",
                limiter,
                count,
                "tower-throttle[T07]: calls have priority, which this limit ignores: call `priority(percent)` on its \
                 window"
            );
        }
    }

    /// Logs, if an event is due at `now`, that the table of keys of a limiter is full. It was found full `total` times.
    /// `limiter` is the name of the limiter.
    pub fn table_full(&self, now: u64, total: u64, limiter: Option<&str>, max_keys: usize) {
        if let Some(count) = self.due_of(now, total) {
            event!(
                warn,
                event = "table_full",
                limiter,
                max_keys,
                count,
                "tower-throttle[T06]: the key table is full: set `max_keys` above the number of distinct keys in the \
                 longest window, or verify keys before limiting by them"
            );
        }
    }
}

/// The log events of a policy.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// One element for each kind of missing key, and the same again for shadow mode.
    missing_key: [[Recurrence; MISSING_KEYS]; 2],
    store: StoreState,
    cost_never_fits: Recurrence,
    /// The second element is that of shadow mode.
    list_too_short: [Recurrence; 2],
    closed: Recurrence,
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
    failures: Recurrence,
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
    /// Records a failure. If it must be logged, returns the number of failures since the last one that was logged.
    fn failed(&self) -> Option<u64> {
        let mut restored = self.restored.lock().unwrap_or_else(PoisonError::into_inner);
        restored.decided = 0;
        let is_first = !self.fails.swap(true, Ordering::Relaxed);
        if is_first {
            restored.needed = (2 * restored.needed).clamp(1, MAX_NEEDED);
        }
        self.failures.due(is_first)
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
    /// Logs that requests have no key. `kind` is the number of the reason, below 6. `what` says what happens to the
    /// requests. What was logged in shadow mode is logged again afterwards.
    pub(crate) fn missing_key(
        &self,
        policy: &str,
        in_shadow: bool,
        kind: usize,
        what: &'static str,
        why: &dyn Display,
    ) {
        let mistakes = &self.missing_key[usize::from(in_shadow)];
        if let Some(count) = mistakes.get(kind).and_then(|mistake| mistake.due(false)) {
            event!(error, event = "missing_key", policy, reason = %why, count,
                "tower-throttle[T01]: {what}");
        }
    }

    /// Logs a request that was rejected because of what its client sent or did not send, or admitted in shadow mode, at
    /// level `debug`. If its list of addresses has fewer entries than there are trusted hops, this is a warning when
    /// one is due, since a wrong number of hops causes the same error. `event` is the name of the event at level
    /// `debug`.
    pub(crate) fn invalid_key(
        &self,
        policy: &str,
        in_shadow: bool,
        is_too_few: bool,
        event: &'static str,
        why: &dyn Display,
    ) {
        let too_few = if is_too_few { self.list_too_short[usize::from(in_shadow)].due(false) } else { None };
        if let Some(count) = too_few {
            let what = if in_shadow {
                "requests whose lists of addresses are too short are admitted in shadow mode"
            } else {
                "requests are rejected because their lists of addresses are too short"
            };
            event!(warn, event = "list_too_short", policy, reason = %why, count,
                "tower-throttle[T02]: {what}");
        } else {
            let what = if in_shadow {
                "a request was admitted in shadow mode, although its client made a mistake"
            } else {
                "a request was rejected because its client made a mistake"
            };
            event!(debug, event, policy, reason = %why, "tower-throttle: {what}");
        }
    }

    /// Logs that the store fails. `admits` is `true` if requests that the store cannot decide are admitted.
    #[cold]
    pub(crate) fn store_error(&self, policy: &str, why: &BoxError, admits: bool) {
        if let Some(count) = self.store.failed() {
            let what = if admits { "not limited" } else { "rejected" };
            event!(error, event = "store_failed", policy, reason = %why, count,
                "tower-throttle[T05]: requests are {what} because the store cannot decide");
        }
    }

    /// Logs that the store decides again, if a failure of the store was logged, and the store has since made enough
    /// decisions in a row.
    #[inline]
    pub(crate) fn store_decided(&self, policy: &str) {
        if self.store.fails.load(Ordering::Relaxed) && self.store.decided() {
            event!(info, event = "store_recovered", policy, "tower-throttle: the store decides again");
        }
    }

    /// Logs a call that was queued and admitted, at level `debug`. A call that was not queued is not logged.
    pub(crate) fn waited(&self, policy: &str, decision: &Decision) {
        if decision.is_delayed() {
            event!(debug, event = "queued", policy, delay = ?decision.delay(),
                "tower-throttle: queued");
        }
    }

    /// Logs a call that was denied, at level `debug`. The event contains no key. If the call costs more than the limit
    /// can ever admit, or if the limiter is closed, also logs this. `policy` returns the name, which is read only then.
    pub(crate) fn denied<'a>(&self, policy: impl Fn() -> &'a str, denial: &Decision) {
        event!(
            debug,
            event = "denied",
            policy = policy(),
            retry_after = denial.retry_after().map(tracing::field::debug),
            outcome = crate::stats::CallOutcome::of(denial, false).label(),
            locked_out = denial.is_locked_out(),
            "tower-throttle: denied"
        );
        if denial.never_fits()
            && let Some(count) = self.cost_never_fits.due(false)
        {
            event!(
                error,
                event = "cost_never_fits",
                policy = policy(),
                reason = "raise the burst or lower the cost",
                count,
                "tower-throttle[T04]: a request costs more than the limit can ever admit"
            );
        }
        if denial.is_closed()
            && let Some(count) = self.closed.due(false)
        {
            event!(
                info,
                event = "limiter_closed",
                policy = policy(),
                count,
                "tower-throttle: requests are rejected because the limiter was closed, as by a shutdown"
            );
        }
    }

    /// Logs, at level `debug`, a request of a forbidden caller that is admitted in shadow mode.
    pub(crate) fn forbidden_in_shadow(&self, policy: &str) {
        event!(
            debug,
            event = "shadow_forbidden",
            policy,
            "tower-throttle: a request of a forbidden caller was admitted in shadow mode"
        );
    }

    /// Logs that the policy rejects no requests, and `why`, unless this was logged after the switch with the number
    /// `switch`, or a later one.
    #[inline]
    pub(crate) fn not_enforced(&self, policy: &str, switch: u64, why: &'static str) {
        if self.not_enforced.load(Ordering::Relaxed) < switch
            && self.not_enforced.fetch_max(switch, Ordering::Relaxed) < switch
        {
            event!(info, event = "not_enforced", policy, "tower-throttle: {why}");
        }
    }

    /// Logs, at level `debug`, a call that was admitted only because of shadow mode, and would otherwise have been
    /// denied or queued.
    pub(crate) fn shadow(&self, policy: &str, denial: &Decision) {
        event!(debug, event = "shadow_denied", policy, decision = %denial,
            "tower-throttle: admitted in shadow mode");
    }
}

/// Logs that the metrics of a policy or a limiter are mixed with those of another one, which has the same name.
#[cfg(feature = "metrics")]
pub(crate) fn same_name(policy: Option<&str>, limiter: Option<&str>) {
    event!(
        warn,
        event = "same_name",
        policy,
        limiter,
        "tower-throttle[T10]: two policies or two limiters have this name: their metrics of calls are added up, and of \
         each other metric, one is shown: give each layer, and each limiter, a name of its own by `.name(..)`"
    );
}

/// Logs that a limiter has no name, so that it has no metrics.
#[cfg(feature = "metrics")]
pub(crate) fn no_name() {
    event!(
        warn,
        event = "no_name",
        "tower-throttle[T11]: `record_metrics` was called on a limiter without a name, whose metrics nobody could tell \
         from those of others: give it one by `RateLimiter::builder(algorithm).name(..)` \
         or `FairLimiter::builder(..).name(..)`"
    );
}

/// Logs, at level `debug`, a denial of a call that no layer has made. `limiter` is the name of the limiter. The event
/// contains no key.
#[cold]
pub(crate) fn call_denied(limiter: &str, denial: &Decision) {
    event!(
        debug,
        event = "denied",
        limiter,
        retry_after = denial.retry_after().map(tracing::field::debug),
        outcome = crate::stats::CallOutcome::of(denial, false).label(),
        locked_out = denial.is_locked_out(),
        "tower-throttle: denied"
    );
}

/// Logs, at level `debug`, a call that no layer has made and that was queued and admitted.
pub(crate) fn call_queued(limiter: &str, decision: &Decision) {
    event!(debug, event = "queued", limiter, delay = ?decision.delay(), "tower-throttle: queued");
}

/// Logs a window whose quota has a burst, which a window ignores. `limiter` is the name of the limiter.
pub(crate) fn burst_ignored(limiter: Option<&str>, window: &QuotaPolicy) {
    event!(
        warn,
        event = "burst_ignored",
        limiter,
        "tower-throttle[T08]: the window of {} per {:?} ignores its burst: remove the burst, or use a TokenBucket",
        window.quota,
        window.window
    );
}

/// Logs a limit in which calls wait and that has a total, in which calls that wait count. `limiter` is the name of the
/// limiter.
pub(crate) fn total_with_queue(limiter: Option<&str>) {
    event!(
        warn,
        event = "total_with_queue",
        limiter,
        "tower-throttle[T12]: calls that wait count in the total of this limit, so one caller can keep all others out: \
         use a FairLimiter in place of a RateLimiter, or no queue"
    );
}

/// Logs that requests of a layer may wait longer than many clients do. `limiter` is the name of the limiter.
pub(crate) fn long_wait(limiter: Option<&str>, longest_wait: Duration) {
    if longest_wait > LONG_WAIT {
        event!(
            warn,
            event = "long_wait",
            limiter,
            ?longest_wait,
            "tower-throttle[T09]: with a full queue, a request waits for {longest_wait:?}, and after {LONG_WAIT:?} \
             many proxies and clients give up: set `max_wait` on the algorithm, or a smaller `queue`"
        );
    }
}

/// Returns whether a subscriber may see anything. If no level is enabled, as in a program without one, no span is
/// enabled either.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    #[cfg(feature = "tracing")]
    return tracing::level_filters::LevelFilter::current() != tracing::level_filters::LevelFilter::OFF;
    #[cfg(not(feature = "tracing"))]
    false
}

/// Records the outcome of a request in the current span, if the span declares the field `rate_limit.decision`.
#[inline(always)]
pub(crate) fn record_decision(decided: impl FnOnce() -> Option<&'static str>) {
    #[cfg(feature = "tracing")]
    if is_on() {
        record_in_span(decided);
    }
}

#[cfg(feature = "tracing")]
#[inline(never)]
fn record_in_span(decided: impl FnOnce() -> Option<&'static str>) {
    if current_declares("rate_limit.decision")
        && let Some(decided) = decided()
    {
        tracing::Span::current().record("rate_limit.decision", decided);
    }
}

/// A span with the field `rate_limit.rejected_by`: that of a request, as a layer has seen it.
#[derive(Clone, Debug)]
pub(crate) struct RejectedBy(#[cfg(feature = "tracing")] tracing::Span);

impl RejectedBy {
    /// Returns the current span, if it declares the field.
    pub(crate) fn current() -> Option<Self> {
        #[cfg(feature = "tracing")]
        return current_declares("rate_limit.rejected_by").then(|| Self(tracing::Span::current()));
        #[cfg(not(feature = "tracing"))]
        None
    }

    /// Records the name of the limiter for which a handler has rejected the request.
    pub(crate) fn record(&self, limiter: &str) {
        #[cfg(feature = "tracing")]
        self.0.record("rate_limit.rejected_by", limiter);
    }
}

/// Returns whether the current span declares a field with this name.
#[cfg(feature = "tracing")]
fn current_declares(field: &str) -> bool {
    let declares = |metadata: &tracing::Metadata<'_>| metadata.fields().field(field).is_some();
    tracing::dispatcher::get_default(|dispatch| dispatch.current_span().metadata().is_some_and(declares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_keeps_changing_is_logged_ever_more_rarely() {
        let store = StoreState::default();
        assert!(store.failed().is_some() && store.failed().is_none());
        assert!(store.decided(), "the first decision");
        assert_eq!(store.failed(), Some(2), "the failure that was not logged is counted");
        for _ in 0..1_000 {
            assert!(!store.decided());
            assert!(store.failed().is_none(), "every second request fails");
        }
        assert!(!store.decided() && store.decided(), "two decisions in a row");
        let mut changes = 0;
        for run in 0..1_000_000_u32 {
            // Runs of 600 decisions.
            let is_logged = match run % 600 {
                0 => store.failed().is_some(),
                _ => store.fails.load(Ordering::Relaxed) && store.decided(),
            };
            changes += u32::from(is_logged);
        }
        assert!(changes <= 22, "{changes}");
    }
}
