//! A table for each algorithm. A row has the time, the cost of a call, and the decision.

use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
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

#[test]
fn token_bucket_at_one_instant() {
    let rows = [
        (0, 0, Yes(5)),
        (0, 1, Yes(4)),
        (0, 5, No(4, 100 * MS)),
        (0, 6, Never(4)),
        (0, MAX, Never(4)),
        (0, 4, Yes(0)),
        (0, 0, Yes(0)),
        (0, 1, No(0, 100 * MS)),
        (0, 5, No(0, 500 * MS)),
    ];
    table(TokenBucket::new(per(10, S).burst(5)), &rows);
}

#[test]
fn token_bucket_over_time() {
    let rows = [
        (0, 5, Yes(0)),
        (100 * MS - NS, 1, No(0, NS)),
        (100 * MS, 1, Yes(0)),
        (100 * MS, 1, No(0, 100 * MS)),
        (250 * MS, 1, Yes(0)),
        // Half a token was available before the last call, and is not lost.
        (300 * MS - NS, 1, No(0, NS)),
        (300 * MS, 1, Yes(0)),
        (800 * MS - NS, 5, No(4, NS)),
        (800 * MS, 5, Yes(0)),
        (9 * S, 6, Never(5)),
        (9 * S, 5, Yes(0)),
    ];
    table(TokenBucket::new(per(10, S).burst(5)), &rows);
}

#[test]
fn token_bucket_of_seven_a_minute() {
    let rows = [
        (0, 7, Yes(0)),
        (0, 1, No(0, 8_571_428_572)),
        (8_571_428_571, 1, No(0, NS)),
        (8_571_428_572, 1, Yes(0)),
        (8_571_428_572, 1, No(0, 8_571_428_571)),
        (17_142_857_143, 1, Yes(0)),
        (25_714_285_714, 1, No(0, NS)),
        (25_714_285_715, 1, Yes(0)),
        (60 * S, 4, Yes(0)),
        (60 * S, 1, No(0, 8_571_428_572)),
    ];
    table(TokenBucket::new(per(7, 60 * S)), &rows);
}

#[test]
fn token_bucket_at_its_extremes() {
    let rare =
        [(0, 1, Yes(0)), (NS, 1, No(0, 30 * DAY - NS)), (30 * DAY - NS, 1, No(0, NS)), (30 * DAY, 1, Yes(0))];
    table(TokenBucket::new(per(1, 30 * DAY)), &rare);
    let fast = [(0, 1_000_000_000, Yes(0)), (0, 1, No(0, NS)), (NS, 2, No(1, NS)), (2 * NS, 2, Yes(0))];
    table(TokenBucket::new(per(1_000_000_000, S)), &fast);
    let wide = [(0, MAX, Yes(0)), (0, 1, No(0, NS)), (NS, MAX, No(18_446_744_073, S - NS)), (S, MAX, Yes(0))];
    table(TokenBucket::new(per(MAX, S)), &wide);
    let last =
        [(MAX - S, 2, Yes(0)), (MAX - 1, 1, Yes(0)), (MAX - 1, 1, No(0, NS)), (MAX, 2, No(1, 500 * MS))];
    table(TokenBucket::new(per(2, S)), &last);
}

#[test]
fn token_bucket_when_the_clock_steps_back() {
    let within = [
        (10 * S, 10, Yes(0)),
        // If the clock is at most a period behind, the key's time stands still. A wait ends when the clock has come to
        // the same point again.
        (9 * S, 1, No(0, S + 100 * MS)),
        (10 * S, 1, No(0, 100 * MS)),
        (10 * S + 100 * MS - NS, 1, No(0, NS)),
        (10 * S + 100 * MS, 1, Yes(0)),
    ];
    table(TokenBucket::new(per(10, S)), &within);
    let beyond = [
        (10 * S, 8, Yes(2)),
        // If the clock is further behind, the bucket keeps its level, and the key's time continues from the new
        // reading.
        (9 * S - NS, 3, No(2, 100 * MS)),
        (9 * S + 100 * MS - NS, 3, Yes(0)),
        (0, 1, No(0, 100 * MS)),
        (100 * MS, 1, Yes(0)),
    ];
    table(TokenBucket::new(per(10, S)), &beyond);
}

#[test]
fn token_bucket_that_starts_empty() {
    let rows = [(0, 1, No(0, 100 * MS)), (0, 0, Yes(0)), (100 * MS, 1, Yes(0)), (2 * S, 10, Yes(0))];
    table(TokenBucket::new(per(10, S)).start_empty(), &rows);
}

#[test]
fn fixed_window_and_its_edge() {
    let rows = [
        // A call of cost 0 begins no window.
        (0, 0, Yes(4)),
        (0, 5, Never(4)),
        (200 * MS, 1, Yes(3)),
        (200 * MS, 4, No(3, S)),
        (S, 4, No(3, 200 * MS)),
        // Around the boundary of two windows, up to twice the limit is admitted in much less than a period.
        (1_200 * MS - NS, 3, Yes(0)),
        (1_200 * MS - NS, 0, Yes(0)),
        (1_200 * MS - NS, 1, No(0, NS)),
        (1_200 * MS - NS, MAX, Never(0)),
        (1_200 * MS, 4, Yes(0)),
        (1_200 * MS, 1, No(0, S)),
        // The next window begins with the next call, and not at the end of the previous window.
        (2_700 * MS, 1, Yes(3)),
        (3_700 * MS - NS, 4, No(3, NS)),
        (3_700 * MS, 4, Yes(0)),
    ];
    table(FixedWindow::new(per(4, S).burst(9)), &rows);
}

#[test]
fn fixed_window_aligned() {
    let rows = [
        (1_900 * MS, 3, Yes(1)),
        (1_900 * MS, 2, No(1, 100 * MS)),
        (2_000 * MS - NS, 1, Yes(0)),
        (2_000 * MS - NS, 1, No(0, NS)),
        (2_000 * MS, 4, Yes(0)),
        (2_500 * MS, 1, No(0, 500 * MS)),
        (9_999 * MS, 1, Yes(3)),
        (10_000 * MS, 4, Yes(0)),
        // After the clock was set back, the call counts in the window of the new reading, and the count stays.
        (5_300 * MS, 1, No(0, 700 * MS)),
        (6_000 * MS, 1, Yes(3)),
    ];
    table(FixedWindow::new(per(4, S)).aligned(), &rows);
}

#[test]
fn fixed_window_at_its_extremes() {
    let rare = [
        (5, 1, Yes(0)),
        (30 * DAY + 4, 1, No(0, NS)),
        (30 * DAY + 5, 1, Yes(0)),
        (30 * DAY + 5, 2, Never(0)),
    ];
    table(FixedWindow::new(per(1, 30 * DAY)), &rare);
    let fast = [(0, 1_000_000_000, Yes(0)), (NS, 1, No(0, S - NS)), (S, 1_000_000_000, Yes(0))];
    table(FixedWindow::new(per(1_000_000_000, S)), &fast);
    let last = [(MAX - S, MAX, Yes(0)), (MAX - 1, 1, No(0, 1)), (MAX, MAX, Yes(0)), (MAX, 1, No(0, S))];
    table(FixedWindow::new(per(MAX, S)), &last);
}

#[test]
fn fixed_window_when_the_clock_steps_back() {
    let rows = [
        (10 * S, 3, Yes(1)),
        (9 * S, 2, No(1, 2 * S)),
        (9 * S, 1, Yes(0)),
        (11 * S - NS, 1, No(0, NS)),
        (10 * S - NS, 1, No(0, S + NS)),
        // One nanosecond of the window is left, however far the clock is set back.
        (10 * S - 2 * NS, 1, No(0, NS)),
        (S, 1, No(0, NS)),
        (S + NS, 1, Yes(3)),
    ];
    table(FixedWindow::new(per(4, S)), &rows);
}

#[test]
fn sliding_window_at_one_instant() {
    let rows = [
        (0, 0, Yes(5)),
        (0, 2, Yes(3)),
        (0, 4, No(3, S)),
        (0, 6, Never(3)),
        (0, MAX, Never(3)),
        (0, 3, Yes(0)),
        (0, 1, No(0, S)),
        (S - NS, 1, No(0, NS)),
        // After a single burst, all units are available again after exactly one period.
        (S, 5, Yes(0)),
    ];
    table(SlidingWindow::new(per(5, S).burst(9)), &rows);
}

#[test]
fn sliding_window_over_time() {
    // There are four slices of 250 ms. The first call is at the last instant of its slice, so slices end at 0, 250, 500
    // ... ms.
    let rows = [
        (0, 1, Yes(4)),
        (100 * MS, 1, Yes(3)),
        (250 * MS, 1, Yes(2)),
        (300 * MS, 2, Yes(0)),
        (300 * MS, 1, No(0, 700 * MS)),
        (S - NS, 1, No(0, NS)),
        (S, 1, Yes(0)),
        // The units that were charged at 100 ms and at 250 ms are in one slice.
        (S, 2, No(0, 250 * MS)),
        (1_250 * MS - NS, 1, No(0, NS)),
        (1_250 * MS, 2, Yes(0)),
        // A unit that was charged at 300 ms is available again at 1,500 ms, which is less than a slice after the end of
        // its period.
        (1_300 * MS, 1, No(0, 200 * MS)),
        (1_500 * MS - NS, 1, No(0, NS)),
        (1_500 * MS, 3, No(2, 500 * MS)),
        (1_500 * MS, 2, Yes(0)),
        (9 * S, 5, Yes(0)),
    ];
    table(SlidingWindow::new(per(5, S)).slices(4), &rows);
}

#[test]
fn sliding_window_has_no_boundary_problem() {
    let rows = [
        (0, 1, Yes(3)),
        (S - NS, 3, Yes(0)),
        (S, 2, No(1, S)),
        (S, 1, Yes(0)),
        (2 * S - NS, 1, No(0, NS)),
        (2 * S, 4, Yes(0)),
    ];
    // With one slice, a unit that was charged at S - 1 ns is available again at 2 S, and not at 2 S - 1 ns.
    table(SlidingWindow::new(per(4, S)).slices(1), &rows);
    let fine = [(0, 1, Yes(3)), (S - NS, 3, Yes(0)), (S, 1, Yes(0)), (S, 1, No(0, S)), (2 * S, 4, Yes(0))];
    table(SlidingWindow::new(per(4, S)).slices(1_000), &fine);
}

#[test]
fn sliding_window_of_slices_that_do_not_divide_the_period() {
    // The slices have 4 ns, and three of them cover the period of 10 ns.
    let rows = [
        (0, 1, Yes(1)),
        (1, 1, Yes(0)),
        (9, 1, No(0, 1)),
        (10, 1, Yes(0)),
        (10, 1, No(0, 4)),
        (14, 1, Yes(0)),
    ];
    table(SlidingWindow::new(per(2, 10)).slices(3), &rows);
}

#[test]
fn sliding_window_at_its_extremes() {
    let rare = [
        (0, 1, Yes(0)),
        (30 * DAY - NS, 1, No(0, NS)),
        (30 * DAY, 1, Yes(0)),
        (30 * DAY, 1, No(0, 30 * DAY)),
    ];
    table(SlidingWindow::new(per(1, 30 * DAY)), &rare);
    let fast = [(0, 1_000_000_000, Yes(0)), (NS, 1, No(0, S - NS)), (S, 1_000_000_000, Yes(0))];
    table(SlidingWindow::new(per(1_000_000_000, S)), &fast);
    let last = [(MAX - S, MAX, Yes(0)), (MAX - 1, 1, No(0, 1)), (MAX, MAX, Yes(0)), (MAX, 1, No(0, S))];
    table(SlidingWindow::new(per(MAX, S)), &last);
}

#[test]
fn sliding_window_when_the_clock_steps_back() {
    let rows = [
        (10 * S, 4, Yes(0)),
        (9 * S, 1, No(0, 2 * S)),
        (10 * S, 1, No(0, S)),
        (9 * S - NS, 1, No(0, S)),
        (10 * S - 2 * NS, 1, No(0, NS)),
        (10 * S - NS, 4, Yes(0)),
        (0, 1, No(0, S)),
        (S, 1, Yes(3)),
    ];
    table(SlidingWindow::new(per(4, S)), &rows);
}

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
