//! The counts of layers and of limiters as metrics, for the recorder of the `metrics` facade. The guide's chapter
//! `production` has a table of the names and labels.
//!
//! They are counted even without a recorder, and [`record`] passes them to the recorder. So a call does no work
//! for the recorder, with one exception: when a queued call is admitted, its wait is recorded at once. The recorder's
//! totals are as exact as the layers' counts. No label contains a key.
//!
//! What a policy counts is added to the recorder's counters, so the counts of policies of one name add up. What a
//! limiter or a store counts for them is set, since several policies may have the same limiter. The calls of a limiter
//! have names of their own, since they include those of its layers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ::metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::observe::{no_name, same_name};
use crate::stats::{LimiterStats, PolicyStats};

/// The owner of the counts that are passed, which is also the label of the name in each metric.
type Owner = &'static str;

const POLICY: Owner = "policy";
const LIMITER: Owner = "limiter";

/// The counts of a policy or a limiter that were passed to the recorder. All clones share them.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// The outcomes of requests, the queued requests, the requests without a valid key, and the store's errors. A
    /// limiter has only the first two.
    counts: [AtomicU64; 8 + 1 + 6 + 1],
    /// The name under which counts were first passed, and under which all later ones are: a clone of a layer that was
    /// joined may have another name, but it has the same counts. Empty for a limiter without a name.
    name: OnceLock<String>,
}

/// For each name, the first of the policies or limiters that have passed their counts, of those that exist.
static NAMES: Mutex<BTreeMap<(Owner, String), Weak<Passed>>> = Mutex::new(BTreeMap::new());

impl Passed {
    /// Returns the name under which counts are passed, if some were.
    pub(crate) fn known_name(&self) -> Option<&str> {
        self.name.get().map(String::as_str)
    }

    /// Returns the name under which counts are passed, which is `name` for the first counts. Then logs the name if
    /// another policy or limiter has passed counts under it before.
    fn name<'a>(self: &'a Arc<Self>, owner: Owner, name: &str) -> &'a str {
        let mut is_first = false;
        let first_name = self.name.get_or_init(|| {
            is_first = true;
            name.to_owned()
        });
        if is_first {
            let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
            names.retain(|_, first| first.strong_count() > 0);
            let first = names.entry((owner, name.to_owned())).or_insert_with(|| Arc::downgrade(self));
            if !Weak::ptr_eq(first, &Arc::downgrade(self)) {
                drop(names);
                same_name((owner == POLICY).then_some(name), (owner == LIMITER).then_some(name));
            }
        }
        first_name
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

const ENFORCED: Metric = (
    "tower_throttle_enforced",
    "0 if the policy lets all requests pass, in shadow mode or switched off, and otherwise 1.",
    |stats| stats.is_enforced.into(),
);

/// The present values of a limiter.
const OF_TABLE: [Metric; 2] = [
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

/// Passes the counts of a policy to the recorder. If `can_fail` is `false`, the limiter cannot fail, and the metrics of
/// calls to a server are left out.
pub(crate) fn record(stats: &PolicyStats, can_fail: bool, passed: &Arc<Passed>) {
    pass(POLICY, stats, can_fail, passed);
}

/// Passes the counts of a limiter to the recorder, as [`record`] does those of a policy. Of a limiter without a name,
/// logs once that nothing is passed.
pub(crate) fn record_limiter(name: Option<&str>, stats: &LimiterStats, can_fail: bool, passed: &Arc<Passed>) {
    let LimiterStats { calls, store, units } = *stats;
    match name {
        Some(name) => {
            let stats = PolicyStats { name: name.to_owned(), calls, store, units, ..PolicyStats::default() };
            pass(LIMITER, &stats, can_fail, passed);
        }
        None if passed.name.set(String::new()).is_ok() => no_name(),
        None => {}
    }
}

/// Passes counts to the recorder, with a description of each metric.
fn pass(owner: Owner, stats: &PolicyStats, can_fail: bool, passed: &Arc<Passed>) {
    let PolicyStats { calls, keys, units, .. } = stats;
    let of_policy = owner == POLICY;
    let name = passed.name(owner, &stats.name);
    let named = |metric: &'static str| match metric.strip_prefix("tower_throttle_") {
        Some(what) if !of_policy => Cow::Owned(format!("tower_throttle_limiter_{what}")),
        _ => Cow::Borrowed(metric),
    };
    let mut passed = passed.counts.iter();
    // Adds what was counted since the last time. Each total has its place in `passed`, so the order never changes.
    let mut add = |metric: &'static str, outcome: Option<&'static str>, total: u64| {
        let counter = match outcome {
            None => counter!(named(metric), owner => name.to_owned()),
            Some(outcome) => counter!(named(metric), owner => name.to_owned(), "outcome" => outcome),
        };
        let before = passed.next().map_or(total, |passed| passed.fetch_max(total, Ordering::Relaxed));
        counter.increment(total.saturating_sub(before));
    };
    let describe = |metric: &'static str, text: &'static str| describe_counter!(named(metric), text);
    let set = |(metric, description, get): Metric| {
        describe(metric, description);
        counter!(named(metric), owner => name.to_owned()).absolute(get(stats));
    };
    let set_now = |(metric, description, get): Metric| {
        describe_gauge!(named(metric), description);
        gauge!(named(metric), owner => name.to_owned()).set(get(stats) as f64);
    };

    describe(CALLS.0, if of_policy { CALLS.1 } else { "Calls by outcome, with those of layers." });
    for (outcome, total) in calls.ended_by_outcome() {
        add(CALLS.0, Some(outcome), total);
    }
    describe(QUEUED.0, if of_policy { QUEUED.1 } else { "Calls that joined a queue, with those of layers." });
    add(QUEUED.0, None, (QUEUED.2)(stats));
    OF_LIMITER.into_iter().for_each(set);
    describe(SETTLED.0, SETTLED.1);
    for (outcome, total) in
        [("charged", units.charged), ("refunded", units.refunded), ("uncharged", units.uncharged)]
    {
        counter!(named(SETTLED.0), owner => name.to_owned(), "outcome" => outcome).absolute(total);
    }
    OF_TABLE.into_iter().for_each(set_now);
    if can_fail {
        OF_STORE.into_iter().for_each(set);
        set_now(CIRCUIT_OPEN);
    }
    if !of_policy {
        return;
    }
    describe(KEYLESS.0, KEYLESS.1);
    add(KEYLESS.0, Some("rejected"), keys.rejected);
    add(KEYLESS.0, Some("shared"), keys.shared);
    add(KEYLESS.0, Some("unlimited"), keys.unlimited);
    add(KEYLESS.0, Some("forbidden"), keys.forbidden);
    add(KEYLESS.0, Some("invalid"), keys.invalid);
    add(KEYLESS.0, Some("unauthorized"), keys.unauthorized);
    describe_histogram!(WAIT, "Waits of requests that were queued and admitted.");
    set_now(ENFORCED);
    if can_fail {
        describe(STORE_ERRORS.0, STORE_ERRORS.1);
        add(STORE_ERRORS.0, None, (STORE_ERRORS.2)(stats));
    }
}

/// Records the wait of a call that was queued and admitted.
pub(crate) fn record_wait(policy: &str, wait: Duration) {
    histogram!(WAIT, "policy" => policy.to_owned()).record(wait.as_secs_f64());
}
