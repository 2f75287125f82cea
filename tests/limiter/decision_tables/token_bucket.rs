//! Each decision of a token bucket is the one in the tables.

use tower_throttle::algorithm::TokenBucket;

use super::Outcome::{Never, No, Yes};
use super::{DAY, MAX, MS, NS, S, per, table};

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
