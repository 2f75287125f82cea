//! Two revisions of tower-throttle, `base` and `change`, in one program. `benches/revisions/run` builds and runs it.

mod clock;
mod layer;
mod store;

use std::env;
use std::time::Duration;

fn main() {
    let mut options = Options { rounds: None, words: Vec::new() };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--rounds" {
            let number = arguments.next().and_then(|number| number.parse().ok());
            options.rounds = Some(number.expect("--rounds is followed by a number"));
        } else {
            options.words.push(argument);
        }
    }
    layer::run(&options);
    store::run(&options);
}

/// What the command line asks for.
struct Options {
    rounds: Option<usize>,
    words: Vec<String>,
}

impl Options {
    /// Returns whether a row is measured.
    fn want(&self, table: &str, row: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| table.contains(word) || row.contains(word))
    }
}

/// Makes a batch of calls, and returns their time.
type Run = Box<dyn FnMut() -> Duration>;

/// A contestant, and the time of its shortest batch.
struct Contestant {
    name: String,
    run: Run,
    shortest: Duration,
}

impl Contestant {
    fn new(name: impl Into<String>, run: Run) -> Self {
        Self { name: name.into(), run, shortest: Duration::MAX }
    }

    fn measure(&mut self) {
        self.shortest = self.shortest.min((self.run)());
    }
}

/// The same calls by both revisions.
struct Row {
    base: Contestant,
    change: Contestant,
    /// The index of the peer that does the same.
    peer: usize,
}

/// Contestants whose batches are made in turn.
struct Group {
    /// The calls without a limit. Their time is subtracted from that of all others.
    plain: Option<Contestant>,
    peers: Vec<Contestant>,
    rows: Vec<Row>,
}

impl Group {
    /// Measures all contestants, each with `calls` calls in a batch, and prints their rows.
    fn run(mut self, rounds: usize, calls: usize) {
        for round in 0..rounds {
            self.plain.iter_mut().chain(&mut self.peers).for_each(Contestant::measure);
            for Row { base, change, .. } in &mut self.rows {
                // Neither revision is always the first.
                let (first, second) = if round % 2 == 0 { (base, change) } else { (change, base) };
                first.measure();
                second.measure();
            }
        }
        let nanos = |contestant: &Contestant| contestant.shortest.as_nanos() as f64 / calls as f64;
        let plain = self.plain.as_ref().map_or(0.0, nanos);
        let added = |contestant: &Contestant| nanos(contestant) - plain;
        for Row { base, change, peer } in &self.rows {
            let (name, peer) = (&base.name, added(&self.peers[*peer]));
            let (base, change) = (added(base), added(change));
            let (difference, ratios) = (change - base, [base / peer, change / peer]);
            println!("{name:40}{base:8.1}{change:8.1}{difference:+8.1}{:9.2}{:8.2}", ratios[0], ratios[1]);
        }
        for peer in &self.peers {
            println!("{:40}{:8.1}", peer.name, added(peer));
        }
    }
}

fn print_head(title: &str) {
    println!("\n{title:40}{:>8}{:>8}{:>8}{:>9}{:>8}", "base", "change", "", "to peer:", "change");
}
