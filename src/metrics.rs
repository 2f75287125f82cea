//! The counts of layers as metrics, for the recorder of the `metrics` facade. The guide's chapter `production` has a
//! table of the names and labels.
//!
//! Layers keep these counts even without a recorder, and [`record`] copies them to the recorder. So a call does no work
//! for the recorder, with one exception: when a queued call is admitted, its wait is recorded at once. The recorder's
//! totals are as exact as the layers' counts. No label contains a key.

use std::time::Duration;

use ::metrics::{counter, gauge, histogram};

use crate::stats::PolicyStats;

/// Passes the counts of a policy to the recorder.
pub(crate) fn record(stats: &PolicyStats) {
    let PolicyStats { name, calls, keys, store_errors, store } = stats;
    let of_policy = |metric: &'static str, total: u64| {
        counter!(metric, "policy" => name.clone()).absolute(total);
    };
    let of_outcome = |metric: &'static str, outcome: &'static str, total: u64| {
        counter!(metric, "policy" => name.clone(), "outcome" => outcome).absolute(total);
    };
    for (outcome, total) in calls.ended_by_outcome() {
        of_outcome("tower_throttle_calls_total", outcome, total);
    }
    for (outcome, total) in [
        ("rejected", keys.rejected),
        ("shared", keys.shared),
        ("unlimited", keys.unlimited),
        ("forbidden", keys.forbidden),
        ("invalid", keys.invalid),
    ] {
        of_outcome("tower_throttle_keyless_total", outcome, total);
    }
    of_policy("tower_throttle_queued_total", calls.queued);
    of_policy("tower_throttle_store_errors_total", *store_errors);
    of_policy("tower_throttle_evicted_total", store.evicted);
    of_policy("tower_throttle_evicted_at_limit_total", store.evicted_at_limit);
    of_policy("tower_throttle_shared_bucket_total", store.shared);
    of_policy("tower_throttle_trips_total", store.trips);
    of_policy("tower_throttle_late_total", store.late);
    of_policy("tower_throttle_fallbacks_total", store.fallbacks);
    of_policy("tower_throttle_circuit_openings_total", store.circuit_openings);
    let now = |metric: &'static str, value: u64| gauge!(metric, "policy" => name.clone()).set(value as f64);
    now("tower_throttle_keys", store.keys);
    now("tower_throttle_waiting", store.waiting);
    now("tower_throttle_circuit_open", store.is_circuit_open.into());
}

/// Records the wait of a call that was queued and admitted.
pub(crate) fn record_wait(policy: &str, wait: Duration) {
    histogram!("tower_throttle_wait_seconds", "policy" => policy.to_owned()).record(wait.as_secs_f64());
}
