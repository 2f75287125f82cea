//! Each decision of a fixed window is the one in the tables.

use tower_throttle::algorithm::FixedWindow;

use super::Outcome::{Never, No, Yes};
use super::{DAY, MAX, MS, NS, S, per, table};

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
