//! The tables of the rows, a summary of all rows, and a picture of the summary.

use std::error::Error;
use std::fs;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::PEER;
use crate::interleave::Rounds;
use crate::table;

/// The contestants of the summary. The ratio of governor itself is always 1.
const SHOWN: [(&str, RGBColor); 4] = [
    ("governor, foldhash", RGBColor(84, 110, 122)),
    ("DashMap, foldhash, plain states", RGBColor(144, 164, 174)),
    ("TokenBucket", RGBColor(13, 110, 189)),
    ("TokenBucket, time stamp counter", RGBColor(100, 181, 246)),
];

/// The file of the picture, and that of its numbers.
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/store.svg");
const NUMBERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/store.tsv");

type Row = (String, [Option<f64>; SHOWN.len()]);

/// The measured rows.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Reads the rows of the latest summary.
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(NUMBERS)?;
        let row = |line: &str| {
            let mut cells = line.split('\t');
            let title = cells.next().unwrap_or_default().to_owned();
            let ratios = SHOWN.map(|_| cells.next().and_then(|cell| cell.parse().ok()));
            (title, ratios)
        };
        Ok(Self { rows: text.lines().skip(1).map(row).collect() })
    }

    /// Prints the table of a row, and adds the row to the summary.
    pub fn add(&mut self, title: &str, rounds: &Rounds) {
        print(title, rounds);
        let ratio = |(name, _)| rounds.has(name).then(|| rounds.ratio(name, PEER));
        self.rows.push((title.to_owned(), SHOWN.map(ratio)));
    }

    /// Prints the summary, and writes its numbers and its picture.
    pub fn finish(&self) {
        let cell = |ratio: &Option<f64>| ratio.map_or(String::new(), table::ratio);
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|(title, ratios)| [title.clone()].into_iter().chain(ratios.iter().map(cell)).collect())
            .collect();
        let head: Vec<_> = [""].into_iter().chain(SHOWN.map(|(name, _)| name)).collect();
        table::print("time to that of governor", &head, &rows);
        let lines = [head.join("\t")].into_iter().chain(rows.iter().map(|row| row.join("\t")));
        let numbers: String = lines.map(|line| line + "\n").collect();
        match fs::write(NUMBERS, numbers).map_err(Into::into).and_then(|()| self.draw()) {
            Ok(()) => println!("\nwritten: {NUMBERS} and {PICTURE}"),
            Err(error) => eprintln!("\ncannot write {NUMBERS} and {PICTURE}: {error}"),
        }
    }

    /// Draws the rows: two bars for this crate, and below them a mark for each other contestant. A vertical line is the
    /// time of governor. The part of a bar behind this line has another colour.
    pub fn draw(&self) -> Result<(), Box<dyn Error>> {
        const ROW: i32 = 50;
        let bottom = TOP + self.rows.len() as i32 * ROW;
        let area = SVGBackend::new(PICTURE, (WIDTH as u32, bottom as u32 + 24)).into_drawing_area();
        area.fill(&WHITE)?;
        let [foldhash, map, default, tsc] = SHOWN.map(|(_, color)| color);
        text(
            &area,
            "Time of a check, compared with that of governor: shorter is better",
            (20, 22),
            20,
            HPos::Left,
        )?;
        text(
            &area,
            "The line is the time of governor\u{2019}s check in the same run. Medians of the rounds.",
            (20, 44),
            14,
            HPos::Left,
        )?;
        let slower = |ratios: &[Option<f64>]| ratios.iter().flatten().any(|ratio| *ratio > 1.0);
        let slower = self.rows.iter().any(|(_, [.., ours, by_tsc])| slower(&[*ours, *by_tsc]));
        for (at, (color, name)) in [
            (default, "TokenBucket, default clock"),
            (tsc, "TokenBucket, time stamp counter"),
            (SLOWER, "more time than governor"),
        ]
        .into_iter()
        .take(if slower { 3 } else { 2 })
        .enumerate()
        {
            let x = 20 + [0, 220, 570][at];
            area.draw(&Rectangle::new([(x, 62), (x + 12, 74)], color.filled()))?;
            text(&area, name, (x + 18, 68), 14, HPos::Left)?;
        }
        area.draw(&Circle::new((26, 90), 4, foldhash.stroke_width(2)))?;
        text(&area, "governor with a faster hash", (38, 90), 14, HPos::Left)?;
        diamond(&area, (246, 90), map)?;
        text(&area, "DashMap of plain states, with that hash", (258, 90), 14, HPos::Left)?;

        for (at, (title, [by_hash, of_map, ours, by_tsc])) in self.rows.iter().enumerate() {
            let y = TOP + at as i32 * ROW;
            if at % 2 == 0 {
                area.draw(&Rectangle::new(
                    [(10, y), (WIDTH - 10, y + ROW)],
                    RGBColor(245, 247, 249).filled(),
                ))?;
            }
            text(&area, title, (LEFT - 10, y + 19), 14, HPos::Right)?;
            for (ratio, color, y) in [(ours, default, y + 5), (by_tsc, tsc, y + 20)] {
                let Some(ratio) = *ratio else { continue };
                bar(&area, (0.0, ratio.min(1.0)), y, color)?;
                if ratio > 1.0 {
                    bar(&area, (1.0, ratio), y, SLOWER)?;
                }
                text(&area, &table::ratio(ratio), (NUMBERS_AT, y + 7), 14, HPos::Right)?;
                text(&area, &difference(ratio), (WIDTH - 18, y + 7), 14, HPos::Right)?;
            }
            let y = y + 41;
            if let Some(ratio) = *by_hash {
                area.draw(&Circle::new((across(ratio), y), 4, foldhash.stroke_width(2)))?;
            }
            if let Some(ratio) = *of_map {
                diamond(&area, (across(ratio), y), map)?;
            }
        }
        area.draw(&PathElement::new([(across(1.0), TOP - 8), (across(1.0), bottom)], BLACK.stroke_width(2)))?;
        text(&area, "governor", (across(1.0), TOP - 16), 14, HPos::Center)?;
        area.present()?;
        Ok(())
    }
}

const WIDTH: i32 = 930;
/// Where the rows begin.
const TOP: i32 = 130;
/// Where the bars begin, how long a bar of 1 is, and where the longest one ends.
const LEFT: i32 = 400;
const UNIT: f64 = 320.0;
const LONGEST: f64 = 1.2;
/// Where the ratios end.
const NUMBERS_AT: i32 = 825;
const SLOWER: RGBColor = RGBColor(217, 95, 2);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Returns where the end of a bar is.
fn across(ratio: f64) -> i32 {
    LEFT + (ratio.min(LONGEST) * UNIT).round() as i32
}

/// Returns how much less or more time a ratio is.
fn difference(ratio: f64) -> String {
    match ((ratio - 1.0) * 100.0).round() as i32 {
        0 => "the same".to_owned(),
        percent if percent < 0 => format!("{} % less", -percent),
        percent => format!("{percent} % more"),
    }
}

fn bar(area: &Area<'_>, (from, to): (f64, f64), y: i32, color: RGBColor) -> Drawn {
    area.draw(&Rectangle::new([(across(from), y), (across(to), y + 13)], color.filled()))?;
    Ok(())
}

fn diamond(area: &Area<'_>, (x, y): (i32, i32), color: RGBColor) -> Drawn {
    area.draw(&Polygon::new([(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)], color.filled()))?;
    Ok(())
}

fn text(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, horizontal: HPos) -> Drawn {
    // The plotting crate divides the size of a font by this factor.
    let font = ("sans-serif", f64::from(size) * 1.24).into_font().color(&BLACK);
    area.draw(&Text::new(text.to_owned(), at, font.pos(Pos::new(horizontal, VPos::Center))))?;
    Ok(())
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
