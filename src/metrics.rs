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

/// Passes the counts of a policy to the recorder, with a description of each metric. If `can_fail` is `false`, the
/// limiter cannot fail, and the metrics of calls to a server are left out.
pub(crate) fn record(stats: &PolicyStats, can_fail: bool, passed: &Arc<Passed>) {
    let PolicyStats { name, calls, keys, store_errors, store, units, is_enforced } = stats;
    passed.check_name(name);
    let mut passed = passed.counts.iter();
    // An empty outcome stands for a counter without this label.
    let mut requests = |metric: &'static str, description: &'static str, totals: &[(&'static str, u64)]| {
        describe_counter!(metric, description);
        for ((outcome, total), passed) in totals.iter().zip(&mut passed) {
            let counter = match *outcome {
                "" => counter!(metric, "policy" => name.clone()),
                outcome => counter!(metric, "policy" => name.clone(), "outcome" => outcome),
            };
            counter.increment(total.saturating_sub(passed.fetch_max(*total, Ordering::Relaxed)));
        }
    };
    let of_policy = |metric: &'static str, description: &'static str, total: u64| {
        describe_counter!(metric, description);
        counter!(metric, "policy" => name.clone()).absolute(total);
    };
    let now = |metric: &'static str, description: &'static str, value: u64| {
        describe_gauge!(metric, description);
        gauge!(metric, "policy" => name.clone()).set(value as f64);
    };
    requests("tower_throttle_calls_total", "Requests by outcome.", &calls.ended_by_outcome());
    let keyless = [
        ("rejected", keys.rejected),
        ("shared", keys.shared),
        ("unlimited", keys.unlimited),
        ("forbidden", keys.forbidden),
        ("invalid", keys.invalid),
    ];
    let description = "Requests without a valid key, and requests of forbidden callers.";
    requests("tower_throttle_keyless_total", description, &keyless);
    requests("tower_throttle_queued_total", "Requests that joined a queue.", &[("", calls.queued)]);
    describe_histogram!(WAIT, "Waits of requests that were queued and admitted.");
    of_policy(
        "tower_throttle_evicted_total",
        "Keys that were evicted to make room for new keys.",
        store.evicted,
    );
    of_policy(
        "tower_throttle_evicted_at_limit_total",
        "Evicted keys that were at their limits or locked out.",
        store.evicted_at_limit,
    );
    let settled = [("charged", units.charged), ("refunded", units.refunded), ("uncharged", units.uncharged)];
    let description =
        "Units that were charged or given back after the fact, and used units that were not charged.";
    describe_counter!(SETTLED, description);
    for (outcome, total) in settled {
        counter!(SETTLED, "policy" => name.clone(), "outcome" => outcome).absolute(total);
    }
    let description =
        "0 if the policy lets all requests pass, in shadow mode or switched off, and otherwise 1.";
    now("tower_throttle_enforced", description, (*is_enforced).into());
    now("tower_throttle_keys", "Keys that are kept now.", store.keys);
    now("tower_throttle_waiting", "Calls that are queued now.", store.waiting);
    if !can_fail {
        return;
    }
    let description = "Requests that the store could not decide.";
    requests("tower_throttle_store_errors_total", description, &[("", *store_errors)]);
    of_policy("tower_throttle_trips_total", "Commands that were sent to the server.", store.trips);
    of_policy("tower_throttle_late_total", "Calls that failed at their deadline or later.", store.late);
    of_policy(
        "tower_throttle_fallbacks_total",
        "Calls that the fallback limiter has decided.",
        store.fallbacks,
    );
    of_policy("tower_throttle_settle_errors_total", "Settlements that failed.", store.settle_errors);
    of_policy(
        "tower_throttle_circuit_openings_total",
        "How often the circuit breaker has opened.",
        store.circuit_openings,
    );
    now(
        "tower_throttle_circuit_open",
        "1 if the circuit breaker is open now, and otherwise 0.",
        store.is_circuit_open.into(),
    );
}

const SETTLED: &str = "tower_throttle_settled_units_total";
const WAIT: &str = "tower_throttle_wait_seconds";

/// Records the wait of a call that was queued and admitted.
pub(crate) fn record_wait(policy: &str, wait: Duration) {
    histogram!(WAIT, "policy" => policy.to_owned()).record(wait.as_secs_f64());
}
