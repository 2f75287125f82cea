//! The counts of layers as metrics, for the recorder of the `metrics` facade. The guide's chapter `production` has a
//! table of the names and labels.
//!
//! Layers keep these counts even without a recorder, and [`record`] passes them to the recorder. So a call does no work
//! for the recorder, with one exception: when a queued call is admitted, its wait is recorded at once. The recorder's
//! totals are as exact as the layers' counts. No label contains a key.
//!
//! What a policy counts is added to the recorder's counters, so the counts of policies of one name add up. What a limiter
//! or a store counts is set, since several policies may have the same limiter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ::metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::observe::same_name;
use crate::stats::PolicyStats;

/// The counts of a policy that were passed to the recorder. All clones of the policy share them.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// The outcomes of requests, those of requests without a valid key, the queued requests and the store's errors.
    counts: [AtomicU64; 8 + 5 + 2],
    /// `true` once counts were passed.
    is_known: AtomicBool,
}

/// For each name, the first of the policies that have passed their counts, of those that exist.
static NAMES: Mutex<BTreeMap<String, Weak<Passed>>> = Mutex::new(BTreeMap::new());

impl Passed {
    /// Logs the name of the policy if another policy has passed counts under this name before.
    fn check_name(self: &Arc<Self>, name: &str) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
            names.retain(|_, first| first.strong_count() > 0);
            let first = names.entry(name.to_owned()).or_insert_with(|| Arc::downgrade(self));
            if !Weak::ptr_eq(first, &Arc::downgrade(self)) {
                drop(names);
                same_name(name);
            }
        }
    }
}

/// A metric: its name, its description, and the value.
type Metric = (&'static str, &'static str, fn(&PolicyStats) -> u64);

const WAIT: &str = "tower_throttle_wait_seconds";
const CALLS: (&str, &str) = ("tower_throttle_calls_total", "Requests by outcome.");
const KEYLESS: (&str, &str) =
    ("tower_throttle_keyless_total", "Requests without a valid key, and requests of forbidden callers.");
const SETTLED: (&str, &str) = (
    "tower_throttle_settled_units_total",
    "Units that were charged or given back after the fact, and used units that were not charged.",
);
const QUEUED: Metric =
    ("tower_throttle_queued_total", "Requests that joined a queue.", |stats| stats.calls.queued);
const STORE_ERRORS: Metric =
    ("tower_throttle_store_errors_total", "Requests that the store could not decide.", |stats| {
        stats.store_errors
    });

/// What a limiter counts.
const OF_LIMITER: [Metric; 2] = [
    ("tower_throttle_evicted_total", "Keys that were evicted to make room for new keys.", |stats| {
        stats.store.evicted
    }),
    (
        "tower_throttle_evicted_at_limit_total",
        "Evicted keys that were at their limits or locked out.",
        |stats| stats.store.evicted_at_limit,
    ),
];

/// The present values of a limiter.
const GAUGES: [Metric; 3] = [
    (
        "tower_throttle_enforced",
        "0 if the policy lets all requests pass, in shadow mode or switched off, and otherwise 1.",
        |stats| stats.is_enforced.into(),
    ),
    ("tower_throttle_keys", "Keys that are kept now.", |stats| stats.store.keys),
    ("tower_throttle_waiting", "Calls that are queued now.", |stats| stats.store.waiting),
];

/// What a store on a server counts.
const OF_STORE: [Metric; 5] = [
    ("tower_throttle_trips_total", "Commands that were sent to the server.", |stats| stats.store.trips),
    ("tower_throttle_late_total", "Calls that failed at their deadline or later.", |stats| stats.store.late),
    ("tower_throttle_fallbacks_total", "Calls that the fallback limiter has decided.", |stats| {
        stats.store.fallbacks
    }),
    ("tower_throttle_settle_errors_total", "Settlements that failed.", |stats| stats.store.settle_errors),
    ("tower_throttle_circuit_openings_total", "How often the circuit breaker has opened.", |stats| {
        stats.store.circuit_openings
    }),
];

const CIRCUIT_OPEN: Metric =
    ("tower_throttle_circuit_open", "1 if the circuit breaker is open now, and otherwise 0.", |stats| {
        stats.store.is_circuit_open.into()
    });

/// Passes the counts of a policy to the recorder, with a description of each metric. If `can_fail` is `false`, the
/// limiter cannot fail, and the metrics of calls to a server are left out.
pub(crate) fn record(stats: &PolicyStats, can_fail: bool, passed: &Arc<Passed>) {
    let PolicyStats { name, calls, keys, units, .. } = stats;
    passed.check_name(name);
    let mut passed = passed.counts.iter();
    // Adds what was counted since the last time. Each total has its place in `passed`, so the order never changes.
    let mut add = |metric: &'static str, outcome: Option<&'static str>, total: u64| {
        let counter = match outcome {
            None => counter!(metric, "policy" => name.clone()),
            Some(outcome) => counter!(metric, "policy" => name.clone(), "outcome" => outcome),
        };
        let before = passed.next().map_or(total, |passed| passed.fetch_max(total, Ordering::Relaxed));
        counter.increment(total.saturating_sub(before));
    };
    let set = |(metric, description, get): Metric| {
        describe_counter!(metric, description);
        counter!(metric, "policy" => name.clone()).absolute(get(stats));
    };
    let set_now = |(metric, description, get): Metric| {
        describe_gauge!(metric, description);
        gauge!(metric, "policy" => name.clone()).set(get(stats) as f64);
    };

    describe_counter!(CALLS.0, CALLS.1);
    for (outcome, total) in calls.ended_by_outcome() {
        add(CALLS.0, Some(outcome), total);
    }
    describe_counter!(KEYLESS.0, KEYLESS.1);
    add(KEYLESS.0, Some("rejected"), keys.rejected);
    add(KEYLESS.0, Some("shared"), keys.shared);
    add(KEYLESS.0, Some("unlimited"), keys.unlimited);
    add(KEYLESS.0, Some("forbidden"), keys.forbidden);
    add(KEYLESS.0, Some("invalid"), keys.invalid);
    describe_counter!(QUEUED.0, QUEUED.1);
    add(QUEUED.0, None, (QUEUED.2)(stats));
    describe_histogram!(WAIT, "Waits of requests that were queued and admitted.");
    OF_LIMITER.into_iter().for_each(set);
    describe_counter!(SETTLED.0, SETTLED.1);
    for (outcome, total) in
        [("charged", units.charged), ("refunded", units.refunded), ("uncharged", units.uncharged)]
    {
        counter!(SETTLED.0, "policy" => name.clone(), "outcome" => outcome).absolute(total);
    }
    GAUGES.into_iter().for_each(set_now);
    if can_fail {
        describe_counter!(STORE_ERRORS.0, STORE_ERRORS.1);
        add(STORE_ERRORS.0, None, (STORE_ERRORS.2)(stats));
        OF_STORE.into_iter().for_each(set);
        set_now(CIRCUIT_OPEN);
    }
}

/// Records the wait of a call that was queued and admitted.
pub(crate) fn record_wait(policy: &str, wait: Duration) {
    histogram!(WAIT, "policy" => policy.to_owned()).record(wait.as_secs_f64());
}
