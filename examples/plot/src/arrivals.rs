//! The arrival times of calls, which are the same in every picture.

use std::time::Duration;

use tower_throttle::Quota;

pub(crate) const QUOTA: Quota = Quota::per_second(4);

/// The length of the workload, in milliseconds.
pub(crate) const END: u64 = 8_280;

/// A phase of the workload.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// The end of the phase, in milliseconds.
    pub(crate) until: u64,
}

pub(crate) const PHASES: [Phase; 6] = [
    Phase { name: "a trickle", until: 1_800 },
    Phase { name: "two bursts", until: 2_700 },
    Phase { name: "a pause", until: 4_400 },
    Phase { name: "8 at once", until: 5_220 },
    Phase { name: "twice the limit", until: 7_180 },
    Phase { name: "a pause", until: END },
];

/// Groups of calls: the time in milliseconds, and the number of calls at that instant.
const GROUPS: [(u64, usize); 6] = [(150, 1), (650, 1), (1_150, 1), (2_100, 3), (2_225, 5), (4_800, 8)];

/// Returns the arrival times of all calls, in order.
pub(crate) fn arrivals() -> Vec<Duration> {
    let groups = GROUPS.iter().flat_map(|(at, calls)| std::iter::repeat_n(*at, *calls));
    // Eight calls a second.
    let flood = (0..15).map(|n| 5_300 + 125 * n);
    groups.chain(flood).map(Duration::from_millis).collect()
}
