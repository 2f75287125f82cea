//! A panel of a picture: time on the x axis, a number on the y axis.

use crate::arrivals::END;
use crate::curve::Curve;
use crate::sheet::{Sheet, Side, WIDTH};

const LEFT: i32 = 30;
const RIGHT: i32 = WIDTH - 8;

/// The height of the mark of one call in a column.
const ROW: i32 = 10;

pub(crate) struct Panel {
    bottom: i32,
    height: i32,
    /// The number at the top, in thousandths.
    max: i32,
}

impl Panel {
    /// Draws a panel below `top`, which is in pixels, with its name above the panel. The y axis ends at `max`, in
    /// thousandths.
    pub(crate) fn new(sheet: &mut Sheet, name: &str, (top, height): (i32, i32), max: i32) -> Self {
        let bottom = top + height;
        sheet.bold((LEFT + 4, top - 6), Side::Left, "ink", name);
        sheet.line(&[(LEFT, bottom), (RIGHT, bottom)], "ink", 1);
        Self { bottom, height, max }
    }

    /// Returns the height of a panel with columns of up to `calls` calls.
    pub(crate) const fn height(calls: i32) -> i32 {
        calls * ROW + ROW / 2
    }

    /// Returns where the marks of calls are. Marks of the same instant are stacked. The panel must be as high as
    /// [`height`](Panel::height) returns.
    pub(crate) fn columns(&self, times: impl Iterator<Item = i32>) -> Vec<(i32, i32)> {
        let (mut last, mut row) = (None, 0);
        let mut points = Vec::new();
        for at in times {
            row = if last == Some(at) { row + 1 } else { 0 };
            last = Some(at);
            points.push((across(at), self.bottom - ROW * row - ROW / 2 - 2));
        }
        points
    }

    /// Draws a curve and fills the area below it. The part of the area above `over` has another colour.
    pub(crate) fn curve(&self, sheet: &mut Sheet, curve: &Curve, over: i32) {
        let fill = |from: i32| {
            let mut edge = vec![(0, from)];
            edge.extend(curve.points.iter().map(|(at, value)| (*at, (*value).max(from))));
            edge.push((end(), from));
            self.pixels(edge)
        };
        sheet.area(&fill(0), "fill");
        if curve.points.iter().any(|(_, value)| *value > over) {
            sheet.area(&fill(over), "over");
        }
        sheet.line(&self.pixels(curve.points.clone()), "line", 2);
    }

    /// Draws a dashed line at a value, with its name at the right.
    pub(crate) fn level(&self, sheet: &mut Sheet, value: i32, name: &str) {
        let y = self.up(value);
        sheet.text((RIGHT - 2, y - 4), Side::Right, name);
        sheet.dashed((LEFT, y), (RIGHT, y));
    }

    /// Writes numbers at the left.
    pub(crate) fn numbers(&self, sheet: &mut Sheet, numbers: &[i32]) {
        for number in numbers {
            sheet.text((LEFT - 6, self.up(1_000 * number) + 5), Side::Right, &number.to_string());
        }
    }

    /// Writes `value`, converted from thousandths, below the first flat part of the curve at that value.
    pub(crate) fn peak(&self, sheet: &mut Sheet, curve: &Curve, value: i32) {
        let flat = curve.points.windows(2).find(|pair| pair[0].1 == value && pair[1].1 == value);
        if let Some([from, to]) = flat {
            let at = (across((from.0 + to.0) / 2), self.up(value) + 16);
            sheet.bold(at, Side::Middle, "ink", &(value / 1_000).to_string());
        }
    }

    fn up(&self, value: i32) -> i32 {
        self.bottom - value * self.height / self.max
    }

    fn pixels(&self, points: Vec<(i32, i32)>) -> Vec<(i32, i32)> {
        let mut pixels: Vec<_> = points.iter().map(|(at, value)| (across(*at), self.up(*value))).collect();
        pixels.dedup();
        pixels
    }
}

/// Returns the x position of a time in milliseconds.
pub(crate) fn across(at: i32) -> i32 {
    LEFT + at * (RIGHT - LEFT) / end()
}

pub(crate) fn end() -> i32 {
    i32::try_from(END).unwrap_or(i32::MAX)
}
