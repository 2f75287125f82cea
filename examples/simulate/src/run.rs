//! The run of a scenario, and its outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

use crate::scenario::{Call, STOP, Scenario};
use crate::strategy::Machines;

/// The outcome of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The times at which calls were admitted, since the beginning, in ascending order.
    pub(crate) admitted: Vec<Duration>,
    /// The number of calls that one exact bucket for all machines admits.
    pub(crate) exact: u64,
    /// The number of units that were admitted beyond the quota: the maximum over all spans of time.
    pub(crate) over: u64,
    pub(crate) undecided: u64,
    pub(crate) trips: u64,
    /// The times that decisions took, in ascending order.
    pub(crate) latencies: Vec<Duration>,
}

impl Outcome {
    /// Returns a latency that at least `percent` percent of the decisions did not exceed.
    pub(crate) fn latency(&self, percent: usize) -> Duration {
        let at = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).copied().unwrap_or_default()
    }
}

/// Runs a scenario, by tokio's clock.
pub(crate) async fn run(scenario: &Scenario, machines: Machines) -> Outcome {
    let calls = scenario.calls();
    let machines = Arc::new(machines);
    // A bucket is full at its first call, so no call is needed before the start.
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    if let Some(at) = scenario.center_stops_at() {
        let machines = Arc::clone(&machines);
        tasks.spawn(async move {
            sleep_until(start + at).await;
            machines.set_center_running(false);
            sleep(STOP).await;
            machines.set_center_running(true);
            None
        });
    }
    if let Some(at) = scenario.machines_fail_at() {
        let (machines, failing) = (Arc::clone(&machines), scenario.failing().collect::<Vec<_>>());
        tasks.spawn(async move {
            sleep_until(start + at).await;
            failing.into_iter().for_each(|machine| machines.fail(machine));
            None
        });
    }
    for Call { at, machine } in calls.iter().copied() {
        let machines = Arc::clone(&machines);
        tasks.spawn(async move {
            sleep_until(start + at).await;
            let begun = Instant::now();
            let decision = machines.is_admitted(machine).await;
            Some((start.elapsed(), begun.elapsed(), decision))
        });
    }
    let done: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let mut admitted: Vec<_> = done.iter().filter(|call| call.2 == Some(true)).map(|call| call.0).collect();
    admitted.sort_unstable();
    let mut latencies: Vec<_> = done.iter().filter(|call| call.2.is_some()).map(|call| call.1).collect();
    latencies.sort_unstable();
    let undecided = done.iter().filter(|call| call.2.is_none()).count() as u64;
    let trips = machines.trips();
    Outcome {
        exact: exact(scenario.quota, &calls),
        over: over(scenario.quota, &admitted),
        admitted,
        undecided,
        trips,
        latencies,
    }
}

/// Returns the number of calls that one bucket admits.
fn exact(quota: Quota, calls: &[Call]) -> u64 {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(TokenBucket::new(quota)).clock(clock.clone()).build();
    let is_admitted = |call: &&Call| {
        clock.set(call.at);
        limiter.check("all").is_allowed()
    };
    calls.iter().filter(is_admitted).count() as u64
}

/// Returns the number of units that the admitted calls take beyond the capacity of a bucket that refills by `quota`:
/// the maximum at any time.
fn over(quota: Quota, admitted: &[Duration]) -> u64 {
    let (mut used, mut last, mut most) = (0_u128, Duration::ZERO, 0);
    let unit = quota.period().as_nanos();
    for at in admitted {
        used = used.saturating_sub((*at - last).as_nanos() * u128::from(quota.limit())) + unit;
        last = *at;
        most = most.max(used);
    }
    // The result is rounded down to whole units.
    let capacity = u128::from(quota.capacity()) * unit;
    u64::try_from(most.saturating_sub(capacity) / unit).unwrap_or(u64::MAX)
}
