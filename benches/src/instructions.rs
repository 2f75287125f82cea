//! Counts of the instructions and locked operations of a check, and of a request through the layer, under valgrind. The
//! counts have no noise, but do not include the effects of caches.
//!
//! Only [`check::walk`](crate::check::walk), [`layer::walk`](crate::layer::walk) and
//! [`layer::walk_clock`](crate::layer::walk_clock) are counted. Each program runs with two different numbers of calls,
//! and the difference of the counts is divided by the difference of the numbers of calls. The system's work to read the
//! clock is not counted, because it is not part of the program.

use std::env;
use std::process::Command;

use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket};

use crate::check::{FEW, PLENTY, Quotas, governor, keys, ours, walk};
use crate::{layer, table};

const SUBJECTS: [&str; 6] =
    ["governor", "FixedWindow", "SlidingCounter", "SlidingWindow", "TokenBucket", "LeakyBucket"];
const KEYS: usize = 100;
/// The two lengths of a run. A run of length `n` makes `n` times [`KEYS`] calls.
const LENGTHS: [usize; 2] = [10, 60];

pub fn all() {
    count("one check, without reading the clock", &SUBJECTS);
    count("one request through the layer, without reading the clock", &layer::names::COUNTED);
}

/// A subject, and the bounds of its counts: for calls that are admitted, and for calls that are refused.
type Bounds = (&'static str, [f64; 2]);

/// The maximum numbers of instructions of a check that is admitted, and of one that is refused.
const CHECKS: [Bounds; 2] = [("TokenBucket", [258.0, 240.0]), ("FixedWindow", [240.0, 240.0])];
/// The maximum number of locked operations of a check. A check takes one such operation. The rest is for the growth of
/// the table.
const LOCKED: f64 = 1.05;
/// The maximum numbers of instructions that the layer adds to a request that is admitted, and to one that is refused.
/// The subjects are grouped by the one without the layer.
const REQUESTS: [(&str, &[Bounds]); 2] = [
    (
        "plain",
        &[
            ("limited", [900.0, 880.0]),
            ("limited, joined (and)", [2_240.0, 2_370.0]),
            ("limited, header fields, no extension", [2_750.0, 3_160.0]),
            ("limited, default", [3_100.0, 3_160.0]),
        ],
    ),
    ("plain, with a content type", &[("limited, header fields after a content type", [2_600.0, 2_500.0])]),
];

/// The maximum numbers of instructions that a timeline adds to a request that is admitted, and to one that is refused.
/// The instructions of reading the clock are not included.
const TIMELINE: [f64; 2] = [60.0, 30.0];
/// The number of times that a timeline reads the clock for a request that is admitted, and for one that is refused.
const TIMELINE_READINGS: [f64; 2] = [2.0, 1.0];

/// Verifies that a check takes at most the instructions in [`CHECKS`] and one locked operation, and that the layer adds
/// at most the instructions in [`REQUESTS`] to a request. Also verifies that a timeline adds at most the instructions
/// in [`TIMELINE`], and no locked operation.
///
/// # Panics
///
/// Panics if a count is above its maximum, or if valgrind does not run.
pub fn verify() {
    let quotas = ["plenty", "few"];
    let each = |subject| quotas.map(|quota| each(subject, quota).expect("valgrind runs"));
    let within = |subject: &str, counts: [f64; 2], bounds: [f64; 2]| {
        for (quota, (count, bound)) in quotas.into_iter().zip(counts.into_iter().zip(bounds)) {
            println!("{subject}, {quota}: {count:.2} of at most {bound:.2}");
            assert!(count <= bound, "{subject}, {quota}: {count:.2}, above {bound:.2}");
        }
    };
    for (subject, bounds) in CHECKS {
        let counts = each(subject);
        within(&format!("{subject}, instructions"), counts.map(|count| count[0]), bounds);
        within(&format!("{subject}, locked operations"), counts.map(|count| count[1]), [LOCKED; 2]);
    }
    for (plain, subjects) in REQUESTS {
        let plain = each(plain);
        for (subject, bounds) in subjects {
            let counts = each(subject);
            let added = [0, 1].map(|at| counts[at][0] - plain[at][0]);
            within(&format!("{subject}, instructions"), added, *bounds);
        }
    }
    let [limited, timeline] = ["limited", "limited, with a timeline"].map(each);
    let reading = each("one reading of the clock");
    let added = |at: usize, count: usize| timeline[at][count] - limited[at][count];
    let instructions = [0, 1].map(|at| added(at, 0) - TIMELINE_READINGS[at] * reading[at][0]);
    println!("one reading of the clock, instructions: {:.2}", reading[0][0]);
    within("a timeline, instructions without the readings", instructions, TIMELINE);
    within("a timeline, locked operations", [0, 1].map(|at| added(at, 1)), [LOCKED - 1.0; 2]);
}

/// Prints the instructions and locked operations of an admitted call, and of a refused one, for each subject.
fn count(what: &str, subjects: &[&str]) {
    let mut rows = Vec::new();
    for subject in subjects {
        let subject = *subject;
        let mut row = vec![subject.to_owned()];
        for quota in ["plenty", "few"] {
            match each(subject, quota) {
                Some(counts) => row.extend(counts.map(|count| format!("{count:.1}"))),
                None => return eprintln!("\ncount: valgrind did not run; nothing is counted"),
            }
        }
        rows.push(row);
    }
    table::print(
        &format!("instructions and locked operations of {what}"),
        &["", "admitted", "locked", "refused", "locked"],
        &rows,
    );
}

/// Returns the numbers of instructions and of locked operations of one call. Returns `None` if valgrind does not run.
fn each(subject: &str, quota: &str) -> Option<[f64; 2]> {
    let [short, long] = LENGTHS.map(|length| counted(subject, quota, length));
    let (short, long, calls) = (short?, long?, ((LENGTHS[1] - LENGTHS[0]) * KEYS) as f64);
    Some([0, 1].map(|at| (long[at] - short[at]) / calls))
}

/// Runs one subject under valgrind. Returns the total numbers of instructions and of locked operations. Returns `None`
/// if valgrind does not run.
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
    // valgrind leaves out a count of 0 at the end of the line.
    Some([numbers.next()?.ok()?, numbers.next().unwrap_or(Ok(0.0)).ok()?])
}

/// Makes calls of one subject with a few keys. This runs in the process under valgrind.
pub fn run(mut arguments: impl Iterator<Item = String>) {
    let mut next = || arguments.next().unwrap_or_default();
    let (subject, quota, length) = (next(), next(), next().parse::<usize>().expect("a length"));
    let (plenty, calls) = (quota == "plenty", length * KEYS);
    // Refused calls have one key, because a shard keeps the denial of only one key. So most of them are denied without
    // a lock.
    let keys = keys(if plenty { KEYS } else { 1 });
    if layer::names::COUNTED.contains(&subject.as_str()) {
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
