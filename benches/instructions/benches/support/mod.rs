//! Counts the instructions and locked operations of a program's cases, under callgrind.
//!
//! A program runs each of its cases in a process of its own, under valgrind. In that process, only [`counted`] is
//! counted. Everything that a count could depend on is the same in each run: the hash seeds, the keys, the clock and
//! the environment. So each run of a program counts the same numbers, whatever else the machine does. The effects of
//! caches are not counted.
#![allow(dead_code, reason = "each program uses a part")]

pub mod checks;
pub mod clock;
pub mod requests;

use std::collections::HashMap;
use std::env;
use std::process::{Command, exit};

const PROGRAM: &str = env!("CARGO_CRATE_NAME");
/// The number of calls that are counted.
const CALLS: usize = 10_000;

/// Calls of one kind, and the maximum of their counts.
pub struct Case {
    name: &'static str,
    run: fn(usize),
    /// The numbers of times that the counts of earlier cases are subtracted, and the names of these cases.
    without: &'static [(f64, &'static str)],
    /// The maximum numbers of instructions and of locked operations of a call.
    at_most: Option<[f64; 2]>,
    /// The number of runs, of which the median is taken.
    runs: usize,
}

impl Case {
    /// Creates a case. `run` prepares as many calls as its argument says, and makes them inside of [`counted`].
    pub const fn new(name: &'static str, run: fn(usize)) -> Self {
        Self { name, run, without: &[], at_most: None, runs: 1 }
    }

    /// Subtracts the counts of earlier cases, each as often as its factor says.
    pub const fn without(self, without: &'static [(f64, &'static str)]) -> Self {
        Self { without, ..self }
    }

    /// Sets the maximum numbers of instructions and of locked operations of a call.
    pub const fn at_most(self, instructions: f64, locked: f64) -> Self {
        Self { at_most: Some([instructions, locked]), ..self }
    }

    /// Takes the median of several runs. This is for calls that depend on random numbers that cannot be fixed.
    pub const fn random(self) -> Self {
        Self { runs: 5, ..self }
    }

    /// Returns the numbers of instructions and of locked operations of a call.
    fn count(&self) -> [f64; 2] {
        let mut runs: Vec<_> = (0..self.runs).map(|_| self.count_once()).collect();
        [0, 1].map(|at| {
            runs.sort_by(|one, other| one[at].total_cmp(&other[at]));
            runs[runs.len() / 2][at]
        })
    }

    fn count_once(&self) -> [f64; 2] {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-bus=yes"])
            .arg("--toggle-collect=*support*counted*")
            .arg(env::current_exe().expect("the program has a path"))
            .args(["count", self.name])
            .env_clear()
            .envs(env::var_os("PATH").map(|path| ("PATH", path)))
            .output();
        let output = output.unwrap_or_else(|error| fail(&format!("valgrind does not run: {error}")));
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find_map(|line| line.split_once("Collected :"));
        let Some((_, line)) = line.filter(|_| output.status.success()) else {
            fail(&format!("{} failed: {text}", self.name));
        };
        let mut totals = line.split_whitespace().map(|total| total.parse::<f64>().expect("a number"));
        // valgrind leaves out a count of 0 at the end of the line.
        let totals = [(); 2].map(|()| totals.next().unwrap_or_default());
        if totals[0] == 0.0 {
            fail(&format!(
                "nothing was counted for {}: was `counted` renamed or compiled inline?",
                self.name
            ));
        }
        totals.map(|total| total / CALLS as f64)
    }
}

/// Counts each of the cases, and prints the counts. Ends with an error if a count is above its maximum.
///
/// A process that counts one case is this program again, with other arguments.
pub fn program(cases: &[Case]) {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [command, name] = &arguments[..]
        && command == "count"
    {
        let case = cases.iter().find(|case| case.name == name).expect("a case of this program");
        return (case.run)(CALLS);
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // Run by `cargo test --benches`: there is nothing to test.
        return;
    }
    let (mut counted, mut exceeded) = (HashMap::new(), Vec::new());
    for case in cases {
        let counts = case.count();
        counted.insert(case.name, counts);
        let subtracted =
            |at: usize| case.without.iter().map(|(times, name)| times * counted[name][at]).sum::<f64>();
        let [instructions, locked] = [0, 1].map(|at| counts[at] - subtracted(at));
        let name = format!("{PROGRAM}, {}", case.name);
        let row = format!("{name:44} {instructions:8.2} instructions {locked:5.2} locked");
        let Some([most, most_locked]) = case.at_most else {
            println!("{row}");
            continue;
        };
        let row = format!("{row}, of at most {most:.2} and {most_locked:.2}");
        println!("{row}");
        // Without the rounding of the printed numbers, a count that is equal to its maximum could seem to be above it.
        if instructions > most + 0.005 || locked > most_locked + 0.005 {
            exceeded.push(row);
        }
    }
    if !exceeded.is_empty() {
        fail(&format!("more than the maximum:\n{}", exceeded.join("\n")));
    }
}

fn fail(what: &str) -> ! {
    eprintln!("{PROGRAM}: {what}");
    exit(1);
}

/// Runs `work`. Nothing else is counted.
#[inline(never)]
pub fn counted<R>(work: impl FnOnce() -> R) -> R {
    work()
}
