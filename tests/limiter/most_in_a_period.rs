//! How much the algorithms admit within one period, at most, as the tables in the README and in the guide say: a period
//! has its first instant, and not its last one.

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

const LIMIT: u64 = 10;
const PERIOD: u64 = 1_000_000_000;

/// Returns the most calls that are admitted in one period if one key calls as often as it can at these times, and once
/// before, at `first`.
fn most<A: Algorithm>(algorithm: A, first: Option<u64>, times: impl IntoIterator<Item = u64>) -> usize {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    let mut admitted = Vec::new();
    if let Some(first) = first {
        clock.set(Duration::from_nanos(first));
        assert!(limiter.check("key").is_allowed());
        admitted.push(first);
    }
    for now in times {
        clock.set(Duration::from_nanos(now));
        while limiter.check("key").is_allowed() {
            admitted.push(now);
        }
    }
    let in_period = |begin: u64| admitted.iter().filter(|at| (begin..begin + PERIOD).contains(*at)).count();
    admitted.iter().map(|begin| in_period(*begin)).max().unwrap_or(0)
}

/// Returns the most calls in a period of three ways to call: all the time, around the end of a window that begins with
/// a call, and around the end of a second of the clock.
fn most_of<A: Algorithm>(algorithm: impl Fn() -> A) -> usize {
    let all_the_time = (0..3_000).map(|millis| 3 * PERIOD + millis * 1_000_000);
    let around = |end: u64| {
        [end - 1, end].into_iter().chain((1..1_000).map(move |millis| end - 1 + millis * 1_000_000))
    };
    let begin = 5 * PERIOD + PERIOD / 3;
    [
        most(algorithm(), None, all_the_time),
        most(algorithm(), Some(begin), around(begin + PERIOD)),
        most(algorithm(), None, [8 * PERIOD - 1, 8 * PERIOD]),
    ]
    .into_iter()
    .max()
    .unwrap_or(0)
}

#[test]
fn the_most_in_a_period_is_that_of_the_tables() {
    let quota = Quota::per_second(LIMIT);
    for (name, most, expected) in [
        ("FixedWindow", most_of(|| FixedWindow::new(quota)), 19),
        ("FixedWindow, aligned", most_of(|| FixedWindow::new(quota).aligned()), 20),
        ("TokenBucket", most_of(|| TokenBucket::new(quota)), 19),
        ("TokenBucket, burst 1", most_of(|| TokenBucket::new(quota.burst(1))), 10),
        ("TokenBucket, burst 5", most_of(|| TokenBucket::new(quota.burst(5))), 14),
        ("SlidingWindow", most_of(|| SlidingWindow::new(quota)), 10),
        ("SlidingLog", most_of(|| SlidingLog::new(quota)), 10),
        ("SlidingCounter", most_of(|| SlidingCounter::new(quota)), 18),
        ("LeakyBucket", most_of(|| LeakyBucket::new(quota)), 10),
    ] {
        assert_eq!(most, expected, "{name}");
    }
}

/// The three tables have other words for other readers, and the same bounds.
#[test]
fn each_table_has_the_same_bounds() {
    let bounds = [
        ("TokenBucket", "burst + limit"),
        ("SlidingWindow", "limit"),
        ("SlidingLog", "limit"),
        ("SlidingCounter", "just under 2 x limit"),
        ("FixedWindow", "just under 2 x limit"),
        ("LeakyBucket", "limit"),
    ];
    for (file, text) in [
        ("README.md", include_str!("../../README.md")),
        ("limits.md", include_str!("../../src/guide/limits.md")),
        ("algorithm", include_str!("../../src/algorithm/mod.rs")),
    ] {
        let mut rows = 0;
        let (_, table) = text.split_once("any one period |\n").unwrap();
        for row in
            table.lines().map(|line| line.trim_start_matches("//! ")).take_while(|row| row.starts_with('|'))
        {
            let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('×', "x")).collect();
            let named = |name: &&(&str, &str)| cells[2].contains(&format!("`{}`", name.0));
            let Some((name, bound)) = bounds.iter().find(named) else { continue };
            let rest = cells[3].strip_prefix(bound).unwrap_or_else(|| panic!("{file}: {row}"));
            assert!(
                *name != "FixedWindow" || rest.contains("2 x limit") && rest.contains("aligned"),
                "{file}: {row}"
            );
            rows += 1;
        }
        assert!(rows >= 4, "{file} has a row for {rows} of them");
    }
}
