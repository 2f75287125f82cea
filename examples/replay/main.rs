//! Replays an access log against four algorithms.
//!
//! ```text
//! cargo run --release --example replay -- /var/log/apache2/access.log --limit "10/min burst 5"
//! ```
//!
//! For each algorithm, you will see how many requests would have been admitted at once, queued or denied. You will
//! also see the clients with the most denied requests.
//!
//! - The log is in Apache's common or combined format. Lines in other formats are counted and left out.
//! - The clock follows the times of the log. These are whole seconds, and are not always in order, so requests are
//!   first sorted by time. Requests of the same second stay in the order of the log.
//! - A client is the first field of a line, grouped as [`PeerIp`](tower_throttle::key::PeerIp) groups it: an IPv4
//!   address, an IPv6 /64, or a host name as written.
//! - A call in the leaky bucket's queue waits until it is admitted: no client disconnects.
//!
//! The exit code is 2 if the log cannot be read, or if an argument is not valid.

mod line;
mod log;
mod options;
mod run;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};

use crate::log::Log;
use crate::options::Options;
use crate::run::{Outcome, replay};

/// The number of clients that are shown for each algorithm. These are the clients with the most denied requests.
const WORST: usize = 5;

fn main() -> ExitCode {
    let (text, code) = match Options::parse(std::env::args_os().skip(1)) {
        Ok(Options::Help) => (format!("{}\n", options::USAGE), ExitCode::SUCCESS),
        Ok(Options::Replay { path, quota }) => match std::fs::read(&path) {
            Ok(bytes) => (report(&Log::read(&bytes), quota), ExitCode::SUCCESS),
            Err(error) => return fail(&format!("cannot read {}: {error}", path.display())),
        },
        Err(message) => return fail(&message),
    };
    // A closed pipe (`| head`) is no reason to panic.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

fn fail(message: &str) -> ExitCode {
    eprintln!("replay: {message}");
    ExitCode::from(2)
}

fn report(log: &Log, quota: Quota) -> String {
    // Only the leaky bucket queues calls, as in a layer.
    let outcomes = [
        ("fixed window", replay(FixedWindow::new(quota).queue(0), log)),
        ("sliding window", replay(SlidingWindow::new(quota).queue(0), log)),
        ("token bucket", replay(TokenBucket::new(quota).queue(0), log)),
        ("leaky bucket", replay(LeakyBucket::new(quota), log)),
    ];
    let mut text = summary(log, quota);
    let _ = writeln!(text, "\n{:<16}{:>10}{:>10}{:>10}", "", "passed", "waited", "denied");
    for (name, outcome) in &outcomes {
        let Outcome { passed, waited, .. } = outcome;
        let _ = writeln!(text, "{name:<16}{passed:>10}{waited:>10}{:>10}", outcome.denied());
    }
    text + &worst(log, &outcomes.map(|(_, outcome)| outcome))
}

fn summary(log: &Log, quota: Quota) -> String {
    let mut text = format!("{} requests of {} clients", log.requests.len(), log.clients.len());
    if let (Some(first), Some(last)) = (log.requests.first(), log.requests.last()) {
        let _ = write!(text, " within {} s", last.time - first.time);
    }
    let _ = writeln!(text, ", at {quota} for each");
    if let Some(first) = log.first_unreadable {
        let _ = writeln!(text, "{} unreadable lines left out, the first is line {first}", log.unreadable);
    }
    text
}

/// Returns a table of clients. Each of them is among the [`WORST`] clients with the most denied requests of at least
/// one algorithm.
fn worst(log: &Log, outcomes: &[Outcome; 4]) -> String {
    let mut shown: Vec<usize> = outcomes.iter().flat_map(|outcome| outcome.worst(WORST)).collect();
    shown.sort_unstable();
    shown.dedup();
    if shown.is_empty() {
        return String::new();
    }
    shown.sort_by_key(|client| {
        std::cmp::Reverse(outcomes.iter().map(|outcome| outcome.denied[*client]).sum::<u64>())
    });
    let mut text = format!(
        "\n{:<40}{:>10}{:>10}{:>10}{:>10}\n",
        format!("denied most (the {WORST} worst of each)"),
        "fixed",
        "sliding",
        "token",
        "leaky"
    );
    for client in shown {
        let _ = write!(text, "{:<40}", log.clients[client].to_string());
        for outcome in outcomes {
            let _ = write!(text, "{:>10}", outcome.denied[client]);
        }
        text.push('\n');
    }
    text
}
