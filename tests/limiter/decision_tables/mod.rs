//! A table for each algorithm. A row has the time, the cost of a call, and the decision.

mod fixed_window;
mod leaky_bucket;
mod sliding_window;
mod token_bucket;

use std::time::Duration;

use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::Nanos;
use tower_throttle::{Decision, Quota};

const NS: u64 = 1;
const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
const DAY: u64 = 86_400 * S;
const MAX: u64 = u64::MAX;

/// The decision that a caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Admitted, with this many units remaining.
    Yes(u64),
    /// Denied, with this many units remaining. The call is admitted after this many nanoseconds.
    No(u64, u64),
    /// Denied, with this many units remaining. The call can never be admitted.
    Never(u64),
}

use Outcome::{Never, No, Yes};

fn reported(decision: Decision) -> Outcome {
    match (decision.is_allowed(), decision.retry_after()) {
        (true, None) => Yes(decision.remaining()),
        (false, Some(wait)) => No(decision.remaining(), wait.as_nanos() as u64),
        (false, None) => Never(decision.remaining()),
        (true, Some(_)) => panic!("an admission with a retry_after: {decision:?}"),
    }
}

/// Makes calls for one key, row by row: the time, the cost, and the expected decision.
fn table<A: Algorithm>(algorithm: A, rows: &[(u64, u64, Outcome)]) {
    let start = Nanos(rows[0].0);
    let mut state = algorithm.new_state(start, start);
    for (number, (at, cost, expected)) in (1..).zip(rows) {
        let decision = algorithm.check(&mut state, Nanos(*at), *cost);
        assert_eq!(reported(decision), *expected, "row {number}: at {at}, cost {cost}, {algorithm:?}");
    }
}

fn per(limit: u64, nanos: u64) -> Quota {
    Quota::per(limit, Duration::from_nanos(nanos)).unwrap()
}
