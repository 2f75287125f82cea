//! The picture of all algorithms: what each of them does with the same calls, in a strip.

use crate::arrivals::{QUOTA, arrivals};
use crate::figures::Scene;
use crate::sheet::{Mark, Sheet, Side, WIDTH};
use crate::workload::{Fate, Workload};

/// The names of the pictures that are a strip, and what a strip is called.
const STRIPS: [(&str, &str); 9] = [
    ("token_bucket", "TokenBucket"),
    ("sliding_window", "SlidingWindow"),
    ("sliding_log", "SlidingLog"),
    ("sliding_counter", "SlidingCounter"),
    ("fixed_window", "FixedWindow"),
    ("leaky_bucket", "LeakyBucket"),
    ("smooth_bursty", "Smooth::bursty"),
    ("smooth_warming_up", "Smooth::warming_up"),
    ("concurrency", "Concurrency (0.6 s each)"),
];

/// The calls in groups: how many calls, and how they arrive.
const GROUPS: [(usize, &str); 5] = [
    (3, "singly"),
    (3, "3 at once"),
    (5, "5, soon after"),
    (8, "8 at once"),
    (15, "at twice the limit, for 2 s"),
];

const HEAD: i32 = 122;
const STRIP: i32 = 46;
/// The distance between calls, and that between groups.
const CALL: i32 = 13;
const GAP: i32 = 14;
/// Where the columns of numbers end.
const COLUMNS: [i32; 3] = [322, 408, WIDTH - 8];

/// Returns the numbers of a strip: the calls that are admitted, those of them that wait, and the most in a second.
fn numbers(workload: &Workload) -> [usize; 3] {
    let waited = workload.count(|fate| matches!(fate, Fate::Waited(_)));
    [workload.passes().len(), waited, usize::try_from(workload.max_recent()).unwrap_or(usize::MAX)]
}

fn strips(scenes: &[Scene]) -> impl Iterator<Item = (&'static str, &Workload)> {
    STRIPS
        .iter()
        .filter_map(|(file, name)| Some((*name, &scenes.iter().find(|scene| scene.name == *file)?.workload)))
}

/// Returns the sentence that says what the picture shows.
fn label(scenes: &[Scene]) -> String {
    let strips = strips(scenes).enumerate().map(|(n, (name, workload))| {
        let [admitted, waited, most] = numbers(workload);
        let name = name.split(' ').next().unwrap_or(name);
        let waited = if waited > 0 { format!(" ({waited} after a wait)") } else { String::new() };
        if n == 0 {
            format!("{name} admits {admitted}, at most {most} in a second")
        } else {
            format!("{name} {admitted}{waited}, at most {most}")
        }
    });
    let strips = strips.collect::<Vec<_>>().join("; ");
    format!("The same 34 calls by eight algorithms in nine strips, at a limit of 4 per second: {strips}.")
}

pub(crate) fn draw(scenes: &[Scene]) -> String {
    let mut sheet = Sheet::new("The same 34 calls, by each algorithm");
    sheet.text((8, 46), Side::Left, "The limit is 4 per second, or for Concurrency 4 at a time.");
    let bottom = HEAD + STRIP * i32::try_from(STRIPS.len()).unwrap_or(i32::MAX);

    let columns = centers();
    let mut first = 0;
    for (calls, name) in GROUPS {
        let (from, to) = (columns[first], columns[first + calls - 1]);
        first += calls;
        // A name that is wider than its group has two lines.
        let (line, rest) = name.split_once(' ').filter(|_| calls < 9).unwrap_or(("", name));
        sheet.text(((from + to) / 2, 72), Side::Middle, line);
        sheet.text(((from + to) / 2, 88), Side::Middle, rest);
        sheet.line(&[(from - 5, 100), (from - 5, 96), (to + 5, 96), (to + 5, 100)], "ink", 1);
    }
    for (x, name) in COLUMNS.into_iter().zip(["admitted", "waited", "most in 1 s"]) {
        sheet.bold((x, HEAD - 2), Side::Right, "ink", name);
    }
    for (n, (name, workload)) in strips(scenes).enumerate() {
        let top = HEAD + STRIP * i32::try_from(n).unwrap_or(i32::MAX);
        sheet.bold((8, top + 16), Side::Left, "ink", name);
        let numbers = numbers(workload);
        for (x, number) in COLUMNS.into_iter().zip(numbers) {
            let is_above =
                x == COLUMNS[2] && !name.starts_with("Concurrency") && number as u64 > QUOTA.limit();
            if is_above {
                sheet.bold((x, top + 16), Side::Right, "orange", &number.to_string());
            } else {
                sheet.text((x, top + 16), Side::Right, &number.to_string());
            }
        }
        let of = |wanted: fn(Fate) -> bool| -> Vec<(i32, i32)> {
            let calls = workload.calls.iter().zip(&columns).filter(|(call, _)| wanted(call.fate));
            calls.map(|(_, x)| (*x, top + 30)).collect()
        };
        sheet.marks(Mark::Dot, &of(|fate| fate == Fate::Passed), 4, "blue");
        sheet.marks(Mark::Ring, &of(|fate| matches!(fate, Fate::Waited(_))), 4, "green");
        sheet.marks(Mark::Cross, &of(|fate| fate == Fate::Denied), 4, "orange");
    }
    let legend = bottom + 20;
    for (x, mark, color, name) in [
        (14, Mark::Dot, "blue", "admitted at once"),
        (172, Mark::Ring, "green", "admitted after a wait"),
        (356, Mark::Cross, "orange", "denied"),
    ] {
        sheet.marks(mark, &[(x, legend - 5)], 4, color);
        sheet.text((x + 12, legend), Side::Left, name);
    }
    sheet.finish(legend + 14, &label(scenes))
}

const FIRST: i32 = 16;

/// Returns where the mark of each call is.
fn centers() -> Vec<i32> {
    let mut x = FIRST;
    let mut columns = Vec::with_capacity(arrivals().len());
    for (calls, _) in GROUPS {
        for _ in 0..calls {
            columns.push(x);
            x += CALL;
        }
        x += GAP;
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_are_those_of_the_calls() {
        let arrivals = arrivals();
        assert_eq!(centers().len(), arrivals.len());
        let mut first = 3;
        for (calls, _) in &GROUPS[1..4] {
            assert!(arrivals[first..first + calls].iter().all(|at| *at == arrivals[first]));
            first += calls;
        }
        assert_eq!(arrivals.len() - first, GROUPS[4].0);
    }
}
