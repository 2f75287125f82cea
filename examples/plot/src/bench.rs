//! The pictures of the benchmarks: the times of a check, compared with governor's, as `cargo bench` has written them.

use std::error::Error;

use crate::sheet::{Mark, Sheet, Side, WIDTH};

/// The numbers that `cargo bench -- store --markdown` writes, in the repository.
pub(crate) const NUMBERS: &str = "benches/store.tsv";

/// The columns of the table, each with the times of one contestant.
const COLUMNS: [&str; 4] = [
    "governor, foldhash",
    "DashMap, foldhash, plain states",
    "TokenBucket",
    "TokenBucket, time stamp counter",
];

/// The rows of the small picture, and what it calls them.
const SHOWN: [(&str, &str); 4] = [
    ("one key, one after another, admitted", "one key"),
    ("100,000 keys, one after another, admitted", "100,000 keys"),
    ("one key, one after another, denied", "one key, denied"),
    ("two threads, one key, denied", "two threads, one key, denied"),
];

/// Where bars begin, and how long the bar of governor would be: bars up to 1.6 end before the numbers.
const LEFT: i32 = 8;
const GOVERNOR: i32 = 280;

#[derive(Debug)]
struct Row {
    title: String,
    /// The times of the contestants, in hundredths of governor's. A contestant may be missing.
    times: [Option<i32>; COLUMNS.len()],
}

#[derive(Debug)]
pub(crate) struct Bench {
    rows: Vec<Row>,
}

impl Bench {
    /// Reads the table.
    pub(crate) fn read(numbers: &str) -> Result<Self, Box<dyn Error>> {
        let mut lines = numbers.lines().map(|line| line.split('\t'));
        let head: Vec<_> = lines.next().unwrap_or_else(|| "".split('\t')).skip(1).collect();
        if head != COLUMNS {
            return Err(format!("{NUMBERS} has other columns: {head:?}").into());
        }
        let row = |mut cells: std::str::Split<'_, char>| {
            let title = cells.next().unwrap_or_default().to_owned();
            // A time has two decimal places.
            let times = COLUMNS.map(|_| cells.next().and_then(|cell| cell.replace('.', "").parse().ok()));
            Row { title, times }
        };
        Ok(Self { rows: lines.map(row).collect() })
    }

    /// Draws a bar for each of four rows.
    pub(crate) fn draw(&self) -> Result<String, Box<dyn Error>> {
        const TOP: i32 = 78;
        const ROW: i32 = 50;
        let mut sheet = Sheet::new("Time of a check, compared with governor");
        sheet.text((8, 46), Side::Left, "Shorter is better. Default clocks, one run, medians.");
        let bottom = TOP + ROW * i32::try_from(SHOWN.len())?;
        let mut parts = Vec::new();
        for (n, (title, name)) in SHOWN.into_iter().enumerate() {
            let row =
                self.rows.iter().find(|row| row.title == title).ok_or(format!("{NUMBERS} lacks {title}"))?;
            let time = row.times[2].ok_or(format!("{NUMBERS} has no time for {title}"))?;
            let y = TOP + ROW * i32::try_from(n)?;
            sheet.text((8, y + 14), Side::Left, name);
            sheet.fill((LEFT, y + 20), (across(time) - LEFT, 18), "blue");
            sheet.bold((WIDTH - 8, y + 34), Side::Right, "ink", &ratio(time));
            parts.push(format!("{name} {}", ratio(time)));
        }
        sheet.dashed((across(100), TOP - 4), (across(100), bottom));
        sheet.text((across(100), TOP - 10), Side::Middle, "governor = 1");
        let label = format!("Times of a check, to those of governor: {}.", parts.join("; "));
        Ok(sheet.finish(bottom + 8, &label))
    }

    /// Draws all rows, with all contestants.
    pub(crate) fn draw_all(&self) -> Result<String, Box<dyn Error>> {
        const TOP: i32 = 150;
        const ROW: i32 = 78;
        let mut sheet = Sheet::new("Time of a check, compared with governor");
        sheet.text((8, 46), Side::Left, "Shorter is better. One run, medians of the rounds.");
        for (n, (color, name)) in
            [("blue", "TokenBucket"), ("line", "TokenBucket, time stamp counter")].iter().enumerate()
        {
            let x = 8 + 150 * i32::try_from(n)?;
            sheet.fill((x, 62), (12, 12), color);
            sheet.text((x + 18, 73), Side::Left, name);
        }
        sheet.marks(Mark::Ring, &[(14, 92)], 4, "ink");
        sheet.text((26, 97), Side::Left, "governor, with a faster hash");
        sheet.marks(Mark::Diamond, &[(14, 116)], 5, "green");
        sheet.text((26, 121), Side::Left, "DashMap of plain states, with that hash");
        sheet.text((across(100), TOP - 10), Side::Middle, "governor = 1");
        for (n, Row { title, times: [hash, map, ours, counter] }) in self.rows.iter().enumerate() {
            let y = TOP + ROW * i32::try_from(n)?;
            if n % 2 == 0 {
                sheet.fill((0, y), (WIDTH, ROW), "band");
            }
            sheet.text((8, y + 18), Side::Left, title);
            for (time, y, color) in [(ours, y + 25, "blue"), (counter, y + 41, "line")] {
                let Some(time) = *time else { continue };
                sheet.fill((LEFT, y), (across(time) - LEFT, 13), color);
                sheet.text((WIDTH - 8, y + 11), Side::Right, &ratio(time));
            }
            for (time, mark, radius, color) in
                [(hash, Mark::Ring, 4, "ink"), (map, Mark::Diamond, 5, "green")]
            {
                let points: Vec<_> = time.iter().map(|time| (across(*time), y + 65)).collect();
                sheet.marks(mark, &points, radius, color);
            }
        }
        let bottom = TOP + ROW * i32::try_from(self.rows.len())?;
        sheet.dashed((across(100), TOP), (across(100), bottom));
        let [ours, counter] = [2, 3].map(|column| {
            let times = || self.rows.iter().filter_map(|row| row.times[column]);
            let (least, most) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
            format!("{} to {}", ratio(least), ratio(most))
        });
        let label = format!(
            "Times of a check in {} rows, to those of governor: {ours} with the default clock, {counter} with the time \
             stamp counter.",
            self.rows.len()
        );
        Ok(sheet.finish(bottom + 8, &label))
    }
}

/// Returns where the bar of a time ends.
fn across(time: i32) -> i32 {
    LEFT + GOVERNOR * time / 100
}

fn ratio(time: i32) -> String {
    format!("{}.{:02}", time / 100, time % 100)
}
