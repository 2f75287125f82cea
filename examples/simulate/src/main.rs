//! Compares five ways in which many machines can have one limit, such as 500 machines and 100 calls a second in all.
//!
//! ```text
//! cargo run --release -p simulate
//! ```
//!
//! The program prints a table for each scenario. Time is virtual, so that minutes take seconds, and the same seed gives
//! the same calls. The limiters are those of tower-throttle-redis. Only Redis and the network are simulated. With the
//! argument `picture`, the program draws the picture of the guide instead.

#[path = "../../plot/src/colors.rs"]
#[allow(dead_code, reason = "the picture has few colours")]
mod colors;
mod outage;
#[path = "../../../tests/support/random.rs"]
mod random;
mod run;
mod scenario;
#[path = "../../plot/src/sheet.rs"]
#[allow(dead_code, reason = "the picture has few marks")]
mod sheet;
mod strategy;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::Duration;

use tower_throttle::Quota;

use run::{Outcome, run};
use scenario::{Fault, Scenario, Spread};
use strategy::{KINDS, Machines};

/// The scenario of the fault that many rows of the guide's table have.
fn center_stops() -> Scenario {
    Scenario {
        quota: Quota::per_second(100),
        machines: 500,
        time: Duration::from_secs(60),
        load: 150,
        spread: Spread::Even,
        fault: Fault::CenterStops,
        seed: 1,
    }
}

fn scenarios() -> Vec<(&'static str, Scenario)> {
    let of = |load, spread, fault| Scenario { load, spread, fault, ..center_stops() };
    vec![
        ("even load of 80 %", of(80, Spread::Even, Fault::None)),
        ("even load of 200 %", of(200, Spread::Even, Fault::None)),
        ("skewed load of 80 %", of(80, Spread::Skewed, Fault::None)),
        ("skewed load of 200 %", of(200, Spread::Skewed, Fault::None)),
        ("bursts, 80 % on average", of(80, Spread::Bursty, Fault::None)),
        ("even load of 150 %, a fifth of the machines fails", of(150, Spread::Even, Fault::MachinesFail)),
        ("even load of 150 %, the center stops for 5 s", center_stops()),
        (
            "8 machines, 1,000 calls a second, even load of 80 %",
            Scenario { quota: Quota::per_second(1_000), machines: 8, ..of(80, Spread::Even, Fault::None) },
        ),
    ]
}

/// Runs a scenario in virtual time, with each strategy.
fn outcomes(scenario: &Scenario) -> Vec<(&'static str, Outcome)> {
    let outcome = |kind: strategy::Kind| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("the system has a timer");
        (
            kind.name(),
            runtime.block_on(async {
                run(scenario, Machines::new(kind, scenario.quota, scenario.machines)).await
            }),
        )
    };
    KINDS.into_iter().map(outcome).collect()
}

fn print(name: &str, outcomes: &[(&str, Outcome)]) {
    println!("\n{name}");
    println!(
        "{:<24} {:>10} {:>6} {:>10} {:>8} {:>9} {:>9}",
        "", "admitted", "over", "undecided", "trips", "mean", "p99"
    );
    for (name, outcome) in outcomes {
        let admitted = outcome.admitted.len() as f64;
        let mean =
            outcome.latencies.iter().sum::<Duration>().as_secs_f64() / outcome.latencies.len().max(1) as f64;
        println!(
            "{name:<24} {:>10.3} {:>6} {:>10} {:>8.3} {:>6.2} ms {:>6.2} ms",
            admitted / outcome.exact as f64,
            outcome.over,
            outcome.undecided,
            outcome.trips as f64 / admitted.max(1.0),
            mean * 1e3,
            outcome.latency(99).as_secs_f64() * 1e3,
        );
    }
}

fn simulate() {
    println!("500 machines, 100 calls a second in all, a minute of virtual time, if nothing else is said:");
    println!("- admitted: the admitted calls, to those that one exact bucket admits");
    println!("- over: how many units more than the quota were admitted, over any span of time");
    println!("- undecided: calls that were rejected since no decision came within 50 ms");
    println!("- trips: messages to Redis or to the token server, for each admitted call");
    println!("- mean, p99: how long a decision took");
    for (name, scenario) in scenarios() {
        let outcomes = outcomes(&scenario);
        print(name, &outcomes);
    }
}

fn main() -> ExitCode {
    let drawn = match std::env::args().nth(1).as_deref() {
        None => {
            simulate();
            Ok(())
        }
        Some("picture") => outage::write(),
        Some(_) => Err("usage: simulate [picture]".into()),
    };
    match drawn {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::FAILURE
        }
    }
}
