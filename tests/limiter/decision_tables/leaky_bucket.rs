//! Each decision of a leaky bucket is the one in the tables.

use tower_throttle::algorithm::{Algorithm, LeakyBucket};
use tower_throttle::clock::Nanos;

use super::Outcome::{No, Yes};
use super::{DAY, MAX, MS, NS, S, per, table};

#[test]
fn leaky_bucket_that_is_checked() {
    let rows = [
        (0, 0, Yes(1)),
        (0, 1, Yes(0)),
        (0, 0, Yes(0)),
        (0, 1, No(0, 100 * MS)),
        // A call of any cost is admitted, and delays the next call.
        (0, MAX, No(0, 100 * MS)),
        (100 * MS - NS, 1, No(0, NS)),
        (100 * MS, 3, Yes(0)),
        (100 * MS, 1, No(0, 300 * MS)),
        (400 * MS - NS, 5, No(0, NS)),
        (400 * MS, 1, Yes(0)),
        // Idle time is not stored.
        (9 * S, 1, Yes(0)),
        (9 * S, 1, No(0, 100 * MS)),
    ];
    table(LeakyBucket::new(per(10, S)), &rows);
}

#[test]
fn leaky_bucket_at_a_rate_that_is_no_whole_number() {
    let rows = [
        (0, 1, Yes(0)),
        (333_333_333, 1, No(0, NS)),
        (333_333_334, 1, Yes(0)),
        (666_666_667, 1, No(0, NS)),
        (666_666_668, 2, Yes(0)),
        (1_333_333_334, 1, No(0, NS)),
        (1_333_333_335, 3, Yes(0)),
        (2_333_333_334, 1, No(0, NS)),
        (2_333_333_335, 1, Yes(0)),
    ];
    table(LeakyBucket::new(per(3, S)), &rows);
}

#[test]
fn leaky_bucket_at_its_extremes() {
    let rare = [
        (0, 1, Yes(0)),
        (30 * DAY - NS, 1, No(0, NS)),
        (30 * DAY, 2, Yes(0)),
        (30 * DAY, 1, No(0, 60 * DAY)),
    ];
    table(LeakyBucket::new(per(1, 30 * DAY)), &rare);
    let fast = [(0, 1, Yes(0)), (0, 1, No(0, NS)), (NS, 1, Yes(0)), (2, S, Yes(0)), (2, 1, No(0, S))];
    table(LeakyBucket::new(per(1_000_000_000, S)), &fast);
    let wide =
        [(0, MAX, Yes(0)), (0, 1, No(0, S)), (S - NS, 1, No(0, NS)), (S, 1, Yes(0)), (S + NS, MAX, Yes(0))];
    table(LeakyBucket::new(per(MAX, S)), &wide);
}

#[test]
fn leaky_bucket_near_the_end_of_time() {
    let rows = [(MAX - S, 1, Yes(0)), (MAX - S / 2 - 1, 1, No(0, NS)), (MAX - S / 2, 1, Yes(0))];
    table(LeakyBucket::new(per(2, S)), &rows);
}

/// The next slot is after the last reading of the clock, so no further call may be admitted.
#[test]
fn leaky_bucket_at_the_end_of_time() {
    let bucket = LeakyBucket::new(per(1, S));
    let mut state = bucket.new_state(Nanos::ZERO, Nanos::ZERO);
    assert!(bucket.check(&mut state, Nanos(MAX - 5), 1).is_allowed());
    assert!(!bucket.check(&mut state, Nanos(MAX - 1), 1).is_allowed());
    assert!(!bucket.check(&mut state, Nanos(MAX), 1).is_allowed(), "one a second, but two within 5 ns");
}

#[test]
fn leaky_bucket_when_the_clock_steps_back() {
    let rows = [
        (10 * S, 1, Yes(0)),
        (9 * S, 1, No(0, S + 100 * MS)),
        (10 * S + 100 * MS - NS, 1, No(0, NS)),
        (10 * S + 100 * MS, 5, Yes(0)),
        // When the clock is set back, the schedule moves with it.
        (2 * S, 1, No(0, 500 * MS)),
        (2 * S + 500 * MS - NS, 1, No(0, NS)),
        (2 * S + 500 * MS, 1, Yes(0)),
        (0, 1, No(0, 100 * MS)),
        (100 * MS, 1, Yes(0)),
    ];
    table(LeakyBucket::new(per(10, S)), &rows);
}
