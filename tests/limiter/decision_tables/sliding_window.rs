//! Each decision of a sliding window is the one in the tables.

use tower_throttle::algorithm::SlidingWindow;

use super::Outcome::{Never, No, Yes};
use super::{DAY, MAX, MS, NS, S, per, table};

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
