//! The tables of the rows, and a summary of all rows.

use std::fs;

use super::PEER;
use crate::interleave::Rounds;
use crate::table;

/// The contestants of the summary. The ratio of governor itself is always 1.
const SHOWN: [&str; 4] = [
    "governor, foldhash",
    "DashMap, foldhash, plain states",
    "TokenBucket",
    "TokenBucket, time stamp counter",
];

/// The file of the numbers, from which `plot` draws pictures.
const NUMBERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/store.tsv");

type Row = (String, [Option<f64>; SHOWN.len()]);

/// The measured rows.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Prints the table of a row, and adds the row to the summary.
    pub fn add(&mut self, title: &str, rounds: &Rounds) {
        print(title, rounds);
        let ratio = |name| rounds.has(name).then(|| rounds.ratio(name, PEER));
        self.rows.push((title.to_owned(), SHOWN.map(ratio)));
    }

    /// Prints the summary, and writes its numbers.
    pub fn finish(&self) {
        let cell = |ratio: &Option<f64>| ratio.map_or(String::new(), table::ratio);
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|(title, ratios)| [title.clone()].into_iter().chain(ratios.iter().map(cell)).collect())
            .collect();
        let head: Vec<_> = [""].into_iter().chain(SHOWN).collect();
        table::print("time to that of governor", &head, &rows);
        let lines = [head.join("\t")].into_iter().chain(rows.iter().map(|row| row.join("\t")));
        let numbers: String = lines.map(|line| line + "\n").collect();
        match fs::write(NUMBERS, numbers) {
            Ok(()) => println!("\nwritten: {NUMBERS}. To draw them: cargo run -p plot"),
            Err(error) => eprintln!("\ncannot write {NUMBERS}: {error}"),
        }
    }
}

/// Prints the ratios of all contestants of a row.
pub fn print(title: &str, rounds: &Rounds) {
    let row = |name: &String| {
        let (low, high) = rounds.quartiles(name, PEER);
        vec![
            name.clone(),
            table::ratio(rounds.ratio(name, PEER)),
            format!("{} to {}", table::ratio(low), table::ratio(high)),
        ]
    };
    let rows: Vec<_> = rounds.names().iter().map(row).collect();
    table::print(title, &["", "ratio to governor", "quartiles"], &rows);
}
