//! A picture: the calls, the algorithm's state, and the number of admitted calls.

use std::error::Error;
use std::time::Duration;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::arrivals::{PHASES, QUOTA};
use crate::colors::{BAND, GRID, PAPER};
use crate::curve::Curve;
use crate::figures::{Inside, Scene};
use crate::panel::{LEFT, Panel, RIGHT, end};
use crate::svg::tidy;
use crate::symbols::{Mark, legend, write};
use crate::workload::{Fate, Workload};

const WIDTH: i32 = 760;
/// The top of the first panel.
const TOP: i32 = 100;
/// The gap between two panels, in which the name of the lower panel is written.
const GAP: i32 = 30;
const CURVE: i32 = 76;

/// The mark of each call, at the millisecond at which it is drawn.
struct Marks {
    arrived: Vec<(i32, Mark)>,
    /// The marks of admitted calls. This list is empty if no call was queued, since `arrived` then shows which calls
    /// were admitted.
    admitted: Vec<(i32, Mark)>,
}

pub(crate) fn draw(scene: &Scene) -> Result<String, Box<dyn Error>> {
    let marks = Marks::of(&scene.workload);
    let second = if marks.admitted.is_empty() { 0 } else { GAP + Panel::height(highest(&marks.admitted)) };
    let bottom = TOP + Panel::height(highest(&marks.arrived)) + second + 2 * (GAP + CURVE);
    let size = (u32::try_from(WIDTH)?, u32::try_from(bottom + 54)?);
    let summary = scene.workload.summary();

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&PAPER)?;
        write(&root, scene.title, (LEFT, 18), HPos::Left, 16, FontStyle::Bold)?;
        let line = format!("{} {summary}", scene.limit);
        write(&root, &line, (LEFT, 40), HPos::Left, 14, FontStyle::Normal)?;
        background(&root, bottom)?;
        calls(&root, &marks)?;
        inside(&root, &scene.inside, bottom - 2 * CURVE - GAP)?;
        recent(&root, scene, bottom - CURVE)?;
        let mut used = vec![Mark::Passes, Mark::Waits, Mark::Leaves, Mark::Refused];
        used.retain(|mark| marks.arrived.iter().chain(&marks.admitted).any(|(_, other)| other == mark));
        legend(&root, (LEFT + 6, bottom + 40), &used)?;
        root.present()?;
    }
    Ok(tidy(&svg, size, &format!("{}. {summary}.", scene.title)))
}

fn calls(root: &DrawingArea<SVGBackend<'_>, Shift>, marks: &Marks) -> Result<(), Box<dyn Error>> {
    let height = Panel::height(highest(&marks.arrived));
    let name = "calls that arrive (one above another: at the same instant)";
    Panel::new(root, name, (TOP, height), 1)?.columns(&marks.arrived)?;
    if marks.admitted.is_empty() {
        return Ok(());
    }
    let area = (TOP + height + GAP, Panel::height(highest(&marks.admitted)));
    Panel::new(root, "calls that pass", area, 1)?.columns(&marks.admitted)
}

fn inside(
    root: &DrawingArea<SVGBackend<'_>, Shift>,
    inside: &Inside,
    top: i32,
) -> Result<(), Box<dyn Error>> {
    let panel = Panel::new(root, inside.name, (top, CURVE), 1_000 * (inside.max + 1))?;
    panel.curve(&inside.curve, i32::MAX)?;
    panel.level(1_000 * inside.level.0, inside.level.1)?;
    panel.numbers(&[0, inside.max / 2, inside.max])
}

fn recent(root: &DrawingArea<SVGBackend<'_>, Shift>, scene: &Scene, top: i32) -> Result<(), Box<dyn Error>> {
    let curve = Curve::of(&scene.workload, Workload::recent);
    if !scene.is_per_second {
        let max = if scene.workload.max_recent() > 8 { 12 } else { 8 };
        let panel = Panel::new(root, "passed within the last second", (top, CURVE), 1_000 * (max + 1))?;
        panel.curve(&curve, i32::MAX)?;
        return panel.numbers(&[0, max / 2, max]);
    }
    let (limit, max) = (i32::try_from(QUOTA.limit())?, i32::try_from(scene.workload.max_recent())?);
    let name = match max > limit {
        true => "passed within the last second (orange: above the limit)",
        false => "passed within the last second",
    };
    let panel = Panel::new(root, name, (top, CURVE), 9_000)?;
    panel.curve(&curve, 1_000 * limit)?;
    panel.level(1_000 * limit, &format!("limit {limit}"))?;
    panel.numbers(&[0, 4, 8])?;
    if max > limit { panel.peak(&curve, 1_000 * max) } else { Ok(()) }
}

/// Draws the phases of the workload, and the seconds.
fn background(root: &DrawingArea<SVGBackend<'_>, Shift>, bottom: i32) -> Result<(), Box<dyn Error>> {
    let x = |at: i32| LEFT + at * (RIGHT - LEFT) / end();
    let mut from = 0;
    for (n, phase) in PHASES.iter().enumerate() {
        let until = i32::try_from(phase.until)?;
        if n % 2 == 0 {
            root.draw(&Rectangle::new([(x(from), 56), (x(until), bottom)], BAND.filled()))?;
        }
        write(root, phase.name, (x((from + until) / 2), 67), HPos::Center, 12, FontStyle::Italic)?;
        from = until;
    }
    for second in 0..=end() / 1_000 {
        let x = x(1_000 * second);
        root.draw(&PathElement::new(vec![(x, TOP), (x, bottom + 4)], GRID.stroke_width(1)))?;
        write(root, &format!("{second} s"), (x, bottom + 14), HPos::Center, 12, FontStyle::Normal)?;
    }
    Ok(())
}

impl Marks {
    fn of(workload: &Workload) -> Self {
        let arrived = workload.calls.iter().map(|call| {
            let mark = match call.fate {
                Fate::Passed => Mark::Passes,
                Fate::Waited(_) => Mark::Waits,
                Fate::Refused => Mark::Refused,
            };
            (millis(call.arrived), mark)
        });
        let admitted = workload.calls.iter().filter(|_| workload.waits()).filter_map(|call| {
            let mark = if call.fate == Fate::Passed { Mark::Passes } else { Mark::Leaves };
            Some((millis(call.admitted_at()?), mark))
        });
        Self { arrived: arrived.collect(), admitted: admitted.collect() }
    }
}

/// Returns the maximum number of marks at one instant.
fn highest(marks: &[(i32, Mark)]) -> i32 {
    let runs = marks.chunk_by(|a, b| a.0 == b.0);
    runs.map(|run| i32::try_from(run.len()).unwrap_or(i32::MAX)).max().unwrap_or(0)
}

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
