//! Counts instructions and locked operations per check, and per request through the layer, under valgrind: the counts
//! have no noise, but do not show caches.
//!
//! Only [`check::walk`](crate::check::walk) and [`layer::walk`](crate::layer::walk) are counted, as the difference of two
//! lengths. The system's work to read the clock is not counted, because it is not part of the program.

use std::env;
use std::process::{Command, exit};

use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket};

use crate::check::{FEW, PLENTY, Quotas, governor, keys, ours, walk};
use crate::{layer, table};

const SUBJECTS: [&str; 6] =
    ["governor", "FixedWindow", "SlidingCounter", "SlidingWindow", "TokenBucket", "LeakyBucket"];
/// The maximum numbers of instructions of an admitted check and of a refused one. A check has one locked operation.
const BOUNDS: [(&str, [f64; 2]); 2] = [("TokenBucket", [320.0, 340.0]), ("FixedWindow", [320.0, 340.0])];
const KEYS: usize = 100;
/// The two lengths, in rounds over all keys.
const LENGTHS: [usize; 2] = [10, 60];

pub fn all() {
    let checks = count("one check, without reading the clock", &SUBJECTS);
    let is_above = |(subject, bounds): &&(&str, [f64; 2])| {
        let counted = checks.iter().find(|(name, _)| name == subject).map(|(_, counts)| *counts);
        counted.is_some_and(|[admitted, locked, refused, refused_locked]| {
            admitted > bounds[0] || refused > bounds[1] || locked.max(refused_locked) > 1.05
        })
    };
    let above: Vec<_> = BOUNDS.iter().filter(is_above).collect();
    count("one request through the layer without header fields, without reading the clock", &layer::COUNTED);
    if !above.is_empty() {
        eprintln!("\ncount: above the bounds {above:?}");
        exit(1);
    }
}

/// Prints the counts of each subject, and returns them: instructions and locked operations of an admitted call, and of a
/// refused one.
fn count(what: &str, subjects: &[&'static str]) -> Vec<(&'static str, [f64; 4])> {
    let mut rows = Vec::new();
    for subject in subjects {
        let subject = *subject;
        let mut counts = [0.0; 4];
        for (half, quota) in ["plenty", "few"].into_iter().enumerate() {
            match LENGTHS.map(|length| counted(subject, quota, length)) {
                [Some(short), Some(long)] => {
                    let checks = ((LENGTHS[1] - LENGTHS[0]) * KEYS) as f64;
                    for at in 0..2 {
                        counts[2 * half + at] = (long[at] - short[at]) / checks;
                    }
                }
                _ => {
                    eprintln!("\ncount: valgrind did not run; nothing is counted");
                    return Vec::new();
                }
            }
        }
        rows.push((subject, counts));
    }
    let cells = |(subject, counts): &(&str, [f64; 4])| {
        [(*subject).to_owned()].into_iter().chain(counts.map(|count| format!("{count:.1}"))).collect()
    };
    table::print(
        &format!("instructions and locked operations of {what}"),
        &["", "admitted", "locked", "refused", "locked"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    rows
}

/// Returns the total of instructions and of locked operations.
fn counted(subject: &str, quota: &str, length: usize) -> Option<[f64; 2]> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-bus=yes"])
        .args(["--toggle-collect=*check*walk*", "--toggle-collect=*layer*walk*"])
        .arg(env::current_exe().ok()?)
        .args(["loop", subject, quota, &length.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected :"))?.1;
    let mut numbers = line.split_whitespace().map(str::parse);
    // A count of 0 at the end of the line is left out.
    Some([numbers.next()?.ok()?, numbers.next().unwrap_or(Ok(0.0)).ok()?])
}

/// Calls one subject for some keys repeatedly. This is the process that runs under valgrind.
pub fn run(mut arguments: impl Iterator<Item = String>) {
    let mut next = || arguments.next().unwrap_or_default();
    let (subject, quota, length) = (next(), next(), next().parse::<usize>().expect("a length"));
    let (plenty, keys, calls) = (quota == "plenty", keys(KEYS), length * KEYS);
    if layer::COUNTED.contains(&subject.as_str()) {
        return layer::count(&subject, if plenty { PLENTY } else { FEW }, calls);
    }
    let quotas = |plenty_of: fn() -> Quotas| if plenty { plenty_of() } else { Quotas::per_hour(FEW) };
    let window = quotas(|| Quotas::per_hour(PLENTY));
    let bucket = quotas(Quotas::deep);
    let leaky = quotas(Quotas::fast);
    let admitted = match subject.as_str() {
        "governor" => walk(&governor(bucket), &keys, 0, calls),
        "FixedWindow" => walk(&ours(FixedWindow::new(window.ours)), &keys, 0, calls),
        "SlidingCounter" => walk(&ours(SlidingCounter::new(window.ours)), &keys, 0, calls),
        "SlidingWindow" => walk(&ours(SlidingWindow::new(window.ours)), &keys, 0, calls),
        "TokenBucket" => walk(&ours(TokenBucket::new(bucket.ours)), &keys, 0, calls),
        "LeakyBucket" => walk(&ours(LeakyBucket::new(leaky.ours)), &keys, 0, calls),
        other => panic!("no subject is called {other}"),
    };
    assert_eq!(admitted == calls, plenty);
}
