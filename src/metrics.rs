//! The counts of layers as metrics, for the recorder of the `metrics` facade. The guide's chapter `production` has a
//! table of the names and labels.
//!
//! Layers keep these counts even without a recorder, and [`record`] copies them to the recorder. So a call does no work
//! for the recorder, with one exception: when a queued call is admitted, its wait is recorded at once. The recorder's
//! totals are as exact as the layers' counts. No label contains a key.

use std::time::Duration;

use ::metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::stats::PolicyStats;

/// Passes the counts of a policy to the recorder, with a description of each metric. If `can_fail` is `false`, the
/// limiter cannot fail, and the metrics of calls to a server are left out.
pub(crate) fn record(stats: &PolicyStats, can_fail: bool) {
    let PolicyStats { name, calls, keys, store_errors, store, units, is_enforced } = stats;
    let of_policy = |metric: &'static str, description: &'static str, total: u64| {
        describe_counter!(metric, description);
        counter!(metric, "policy" => name.clone()).absolute(total);
    };
    let by_outcome = |metric: &'static str, description: &'static str, totals: &[(&'static str, u64)]| {
        describe_counter!(metric, description);
        for (outcome, total) in totals {
            counter!(metric, "policy" => name.clone(), "outcome" => *outcome).absolute(*total);
        }
    };
    let now = |metric: &'static str, description: &'static str, value: u64| {
        describe_gauge!(metric, description);
        gauge!(metric, "policy" => name.clone()).set(value as f64);
    };
    by_outcome("tower_throttle_calls_total", "Requests by outcome.", &calls.ended_by_outcome());
    let keyless = [
        ("rejected", keys.rejected),
        ("shared", keys.shared),
        ("unlimited", keys.unlimited),
        ("forbidden", keys.forbidden),
        ("invalid", keys.invalid),
    ];
    let description = "Requests without a valid key, and requests of forbidden callers.";
    by_outcome("tower_throttle_keyless_total", description, &keyless);
    of_policy("tower_throttle_queued_total", "Requests that joined a queue.", calls.queued);
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
    of_policy(
        "tower_throttle_shared_bucket_total",
        "Calls that were decided by a bucket that several keys share.",
        store.shared,
    );
    let settled = [("charged", units.charged), ("refunded", units.refunded), ("uncharged", units.uncharged)];
    let description =
        "Units that were charged or given back after the fact, and used units that were not charged.";
    by_outcome("tower_throttle_settled_units_total", description, &settled);
    let description =
        "0 if the policy lets all requests pass, in shadow mode or switched off, and otherwise 1.";
    now("tower_throttle_enforced", description, (*is_enforced).into());
    now("tower_throttle_keys", "Keys that are kept now.", store.keys);
    now("tower_throttle_waiting", "Calls that are queued now.", store.waiting);
    if !can_fail {
        return;
    }
    of_policy(
        "tower_throttle_store_errors_total",
        "Requests that the store could not decide.",
        *store_errors,
    );
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

const WAIT: &str = "tower_throttle_wait_seconds";

/// Records the wait of a call that was queued and admitted.
pub(crate) fn record_wait(policy: &str, wait: Duration) {
    histogram!(WAIT, "policy" => policy.to_owned()).record(wait.as_secs_f64());
}
