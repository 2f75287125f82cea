//! The picture of an algorithm: the calls, the algorithm's state, and the number of admitted calls.

use std::time::Duration;

use crate::arrivals::{PHASES, QUOTA};
use crate::curve::Curve;
use crate::figures::{Inside, Scene};
use crate::panel::{Panel, across, end};
use crate::sheet::{Mark, Sheet, Side};
use crate::workload::{Fate, Workload};

/// The top of the first panel.
const TOP: i32 = 166;
/// The gap between two panels, in which the name of the lower panel is written.
const GAP: i32 = 32;
const CURVE: i32 = 76;

/// The kinds of marks: what they say, and how they look.
const MARKS: [(Kind, &str, Mark, &str); 4] = [
    (Kind::Passes, "passes at once", Mark::Dot, "blue"),
    (Kind::Waits, "waits", Mark::Ring, "green"),
    (Kind::Leaves, "passes after its wait", Mark::Diamond, "green"),
    (Kind::Denied, "denied", Mark::Cross, "orange"),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Passes,
    Waits,
    Leaves,
    Denied,
}

/// The mark of each call, at the millisecond at which it is drawn.
struct Marks {
    arrived: Vec<(i32, Kind)>,
    /// The marks of admitted calls. This list is empty if no call was queued, since `arrived` then shows which calls
    /// were admitted.
    admitted: Vec<(i32, Kind)>,
}

pub(crate) fn draw(scene: &Scene) -> String {
    let marks = Marks::of(&scene.workload);
    let second = if marks.admitted.is_empty() { 0 } else { GAP + Panel::height(highest(&marks.admitted)) };
    let bottom = TOP + Panel::height(highest(&marks.arrived)) + second + 2 * (GAP + CURVE);
    let summary = scene.workload.summary();

    let (name, title) = scene.title.split_once(": ").unwrap_or((scene.title, ""));
    let mut sheet = Sheet::new(name);
    let title = title.chars().take(1).map(|first| first.to_ascii_uppercase()).chain(title.chars().skip(1));
    let title = title.chain(['.']).collect::<String>();
    for (n, line) in [&title, scene.limit, &summary].into_iter().enumerate() {
        sheet.text((8, 46 + 19 * i32::try_from(n).unwrap_or(i32::MAX)), Side::Left, line);
    }
    background(&mut sheet, bottom);
    calls(&mut sheet, &marks);
    inside(&mut sheet, &scene.inside, bottom - 2 * CURVE - GAP);
    recent(&mut sheet, scene, bottom - CURVE);
    legend(&mut sheet, bottom + 46, &marks);
    sheet.finish(bottom + 58, &format!("{}. {summary}.", scene.title))
}

fn calls(sheet: &mut Sheet, marks: &Marks) {
    let height = Panel::height(highest(&marks.arrived));
    let panel = Panel::new(sheet, "calls that arrive (stacked: at the same instant)", (TOP, height), 1);
    columns(sheet, &panel, &marks.arrived);
    if !marks.admitted.is_empty() {
        let area = (TOP + height + GAP, Panel::height(highest(&marks.admitted)));
        let panel = Panel::new(sheet, "calls that pass", area, 1);
        columns(sheet, &panel, &marks.admitted);
    }
}

fn columns(sheet: &mut Sheet, panel: &Panel, marks: &[(i32, Kind)]) {
    let points = panel.columns(marks.iter().map(|(at, _)| *at));
    for (kind, _, mark, color) in MARKS {
        let of_kind = marks.iter().zip(&points).filter(|((_, other), _)| *other == kind);
        sheet.marks(mark, &of_kind.map(|(_, point)| *point).collect::<Vec<_>>(), 3, color);
    }
}

fn inside(sheet: &mut Sheet, inside: &Inside, top: i32) {
    let panel = Panel::new(sheet, inside.name, (top, CURVE), 1_000 * (inside.max + 1));
    panel.curve(sheet, &inside.curve, i32::MAX);
    panel.level(sheet, 1_000 * inside.level.0, inside.level.1);
    panel.numbers(sheet, &[0, inside.max / 2, inside.max]);
}

fn recent(sheet: &mut Sheet, scene: &Scene, top: i32) {
    let curve = Curve::of(&scene.workload, Workload::recent);
    if !scene.is_per_second {
        let max = if scene.workload.max_recent() > 8 { 12 } else { 8 };
        let panel = Panel::new(sheet, "passed within the last second", (top, CURVE), 1_000 * (max + 1));
        panel.curve(sheet, &curve, i32::MAX);
        return panel.numbers(sheet, &[0, max / 2, max]);
    }
    let small = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
    let (limit, max) = (small(QUOTA.limit()), small(scene.workload.max_recent()));
    let name = if max > limit {
        "passed within the last second (orange: too many)"
    } else {
        "passed within the last second"
    };
    let panel = Panel::new(sheet, name, (top, CURVE), 9_000);
    panel.curve(sheet, &curve, 1_000 * limit);
    panel.level(sheet, 1_000 * limit, &format!("limit {limit}"));
    panel.numbers(sheet, &[0, 4, 8]);
    if max > limit {
        panel.peak(sheet, &curve, 1_000 * max);
    }
}

/// Draws the phases of the workload, and the seconds.
fn background(sheet: &mut Sheet, bottom: i32) {
    let mut from = 0;
    for (n, phase) in PHASES.iter().enumerate() {
        let until = i32::try_from(phase.until).unwrap_or(i32::MAX);
        let (left, right) = (across(from), across(until));
        if n % 2 == 0 {
            sheet.fill((left, 98), (right - left, bottom - 98), "band");
        }
        // A name that is wider than its phase has two lines.
        let (line, rest) =
            phase.name.split_once(' ').filter(|_| right - left < 60).unwrap_or((phase.name, ""));
        sheet.text(((left + right) / 2, 114), Side::Middle, line);
        sheet.text(((left + right) / 2, 130), Side::Middle, rest);
        from = until;
    }
    for second in 0..=end() / 1_000 {
        let x = across(1_000 * second);
        sheet.line(&[(x, TOP), (x, bottom + 4)], "grid", 1);
        sheet.text((x, bottom + 18), Side::Middle, &format!("{second} s"));
    }
}

/// Draws the legend of the marks that are used, in a row.
fn legend(sheet: &mut Sheet, y: i32, marks: &Marks) {
    let mut x = 14;
    for (kind, name, mark, color) in MARKS {
        if marks.arrived.iter().chain(&marks.admitted).any(|(_, other)| *other == kind) {
            sheet.marks(mark, &[(x, y - 5)], 4, color);
            sheet.text((x + 12, y), Side::Left, name);
            x += 34 + 8 * i32::try_from(name.len()).unwrap_or(i32::MAX);
        }
    }
}

impl Marks {
    fn of(workload: &Workload) -> Self {
        let arrived = workload.calls.iter().map(|call| {
            let kind = match call.fate {
                Fate::Passed => Kind::Passes,
                Fate::Waited(_) => Kind::Waits,
                Fate::Denied => Kind::Denied,
            };
            (millis(call.arrived), kind)
        });
        let admitted = workload.calls.iter().filter(|_| workload.waits()).filter_map(|call| {
            let kind = if call.fate == Fate::Passed { Kind::Passes } else { Kind::Leaves };
            Some((millis(call.admitted_at()?), kind))
        });
        Self { arrived: arrived.collect(), admitted: admitted.collect() }
    }
}

/// Returns the maximum number of marks at one instant.
fn highest(marks: &[(i32, Kind)]) -> i32 {
    let runs = marks.chunk_by(|a, b| a.0 == b.0);
    runs.map(|run| i32::try_from(run.len()).unwrap_or(i32::MAX)).max().unwrap_or(0)
}

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
