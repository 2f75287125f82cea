//! The tables of the rows, a summary of all rows, and a picture of the summary.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::PEER;
use crate::interleave::Rounds;
use crate::table;

/// The contestants of the summary. The ratio of governor itself is always 1.
const SHOWN: [(&str, RGBColor); 4] = [
    ("governor, foldhash", RGBColor(176, 190, 197)),
    ("DashMap, foldhash, plain states", RGBColor(144, 164, 174)),
    ("TokenBucket", RGBColor(13, 110, 189)),
    ("TokenBucket, time stamp counter", RGBColor(100, 181, 246)),
];

/// The file of the picture.
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/store.svg");

/// The measured rows.
#[derive(Default)]
pub struct Report {
    rows: Vec<(String, [Option<f64>; SHOWN.len()])>,
}

impl Report {
    /// Prints the table of a row, and adds the row to the summary.
    pub fn add(&mut self, title: &str, rounds: &Rounds) {
        print(title, rounds);
        let ratio = |(name, _)| rounds.has(name).then(|| rounds.ratio(name, PEER));
        self.rows.push((title.to_owned(), SHOWN.map(ratio)));
    }

    /// Prints the summary, and draws its picture.
    pub fn finish(&self) {
        let cell = |ratio: &Option<f64>| ratio.map_or(String::new(), table::ratio);
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|(title, ratios)| [title.clone()].into_iter().chain(ratios.iter().map(cell)).collect())
            .collect();
        let head: Vec<_> = [""].into_iter().chain(SHOWN.map(|(name, _)| name)).collect();
        table::print("time to that of governor", &head, &rows);
        match self.draw() {
            Ok(()) => println!("\nwritten: {PICTURE}"),
            Err(error) => eprintln!("\ncannot write {PICTURE}: {error}"),
        }
    }

    fn draw(&self) -> Result<(), Box<dyn Error>> {
        const LEFT: i32 = 280;
        const UNIT: f64 = 300.0;
        const BAR: i32 = 9;
        const LONGEST: f64 = 1.4;
        let bars = |ratios: &[Option<f64>]| ratios.iter().flatten().count() as i32 * BAR + 12;
        let height = 70 + self.rows.iter().map(|(_, ratios)| bars(ratios)).sum::<i32>();
        let area = SVGBackend::new(PICTURE, (720, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let style = |horizontal| {
            let font = ("sans-serif", 12).into_font().color(&BLACK);
            font.pos(Pos::new(horizontal, VPos::Center))
        };
        for (at, (name, color)) in SHOWN.iter().enumerate() {
            let (x, y) = (20 + at as i32 % 2 * 260, 15 + at as i32 / 2 * 18);
            area.draw(&Rectangle::new([(x, y - 5), (x + 10, y + 5)], color.filled()))?;
            area.draw(&Text::new(*name, (x + 16, y), style(HPos::Left)))?;
        }
        let mut y = 60;
        for (title, ratios) in &self.rows {
            let middle = y + (bars(ratios) - 12) / 2;
            area.draw(&Text::new(title.as_str(), (LEFT - 8, middle), style(HPos::Right)))?;
            for (ratio, (_, color)) in ratios.iter().zip(SHOWN) {
                let Some(ratio) = ratio else { continue };
                let end = LEFT + (ratio.min(LONGEST) * UNIT) as i32;
                area.draw(&Rectangle::new([(LEFT, y), (end, y + BAR - 1)], color.filled()))?;
                let number =
                    Text::new(table::ratio(*ratio), (end + 4, y + BAR / 2), ("sans-serif", 9).into_font());
                area.draw(&number)?;
                y += BAR;
            }
            y += 12;
        }
        let governor = LEFT + UNIT as i32;
        area.draw(&PathElement::new([(governor, 54), (governor, y - 8)], BLACK))?;
        area.draw(&Text::new("governor", (governor, 46), style(HPos::Center)))?;
        area.present()?;
        Ok(())
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
