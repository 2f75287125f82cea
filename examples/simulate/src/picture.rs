//! The picture in the guide: the number of calls that each strategy admits in each second. The center is stopped for a
//! part of the time.

use std::error::Error;
use std::ops::Range;

use plotters::prelude::*;

use crate::colors::{BAND, BLUE, GRID, INK, PAPER};
use crate::run::Outcome;
use crate::scenario::{STOP, Scenario};
use crate::svg::tidy;

const SIZE: (u32, u32) = (760, 560);
const TITLE: &str =
    "Calls that five strategies admit in each second, while Redis or the token server is stopped";

/// Draws one row for each strategy.
pub(crate) fn draw(scenario: &Scenario, rows: &[(&str, Outcome)]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&PAPER)?;
        for (panel, (name, outcome)) in area.split_evenly((rows.len(), 1)).iter().zip(rows) {
            row(panel, scenario, name, outcome)?;
        }
        area.present()?;
    }
    Ok(tidy(&svg, SIZE, TITLE))
}

type Panel<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn row(panel: &Panel<'_>, scenario: &Scenario, name: &str, outcome: &Outcome) -> Result<(), Box<dyn Error>> {
    let seconds = scenario.time.as_secs() as i32;
    let mut chart = ChartBuilder::on(panel)
        .margin(6)
        .caption(name, ("sans-serif", 14).into_font().color(&INK))
        .x_label_area_size(18)
        .y_label_area_size(36)
        .build_cartesian_2d(0..seconds, 0..200)?;
    if let Some(stop) = scenario.center_stops_at() {
        let stopped: Range<i32> = stop.as_secs() as i32..(stop + STOP).as_secs() as i32;
        chart.draw_series([Rectangle::new([(stopped.start, 0), (stopped.end, 200)], BAND.filled())])?;
    }
    chart
        .configure_mesh()
        .max_light_lines(1)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .y_labels(3)
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    let mut counts = vec![0; scenario.time.as_secs() as usize];
    for at in &outcome.admitted {
        if let Some(count) = counts.get_mut(at.as_secs() as usize) {
            *count += 1;
        }
    }
    let points: Vec<_> = counts.iter().zip(0..).map(|(count, second)| (second, *count)).collect();
    chart.draw_series([PathElement::new(points, BLUE.stroke_width(2))])?;
    Ok(())
}
