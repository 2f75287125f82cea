//! A panel of a picture: time on the x axis, a number on the y axis.

use std::error::Error;

use plotters::coord::types::RangedCoordi32;
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::arrivals::END;
use crate::colors::{FILL, INK, LINE, OVER};
use crate::curve::Curve;
use crate::symbols::{Mark, write};

pub(crate) const LEFT: i32 = 34;
pub(crate) const RIGHT: i32 = 748;

/// The height of the mark of one call in a column.
const ROW: i32 = 11;

pub(crate) struct Panel<'p, 'b> {
    root: &'p DrawingArea<SVGBackend<'b>, Shift>,
    area: Cartesian2d<RangedCoordi32, RangedCoordi32>,
}

impl<'p, 'b> Panel<'p, 'b> {
    /// Creates a panel below `top`, which is in pixels, with its name above the panel. The y axis ends at `max`, in
    /// thousandths.
    pub(crate) fn new(
        root: &'p DrawingArea<SVGBackend<'b>, Shift>,
        name: &str,
        (top, height): (i32, i32),
        max: i32,
    ) -> Result<Self, Box<dyn Error>> {
        write(root, name, (LEFT + 4, top - 8), HPos::Left, 14, FontStyle::Bold)?;
        let area = Cartesian2d::new(0..end(), 0..max, (LEFT..RIGHT, top + height..top));
        let panel = Self { root, area };
        panel.line(vec![(0, 0), (end(), 0)], INK.stroke_width(1))?;
        Ok(panel)
    }

    /// Returns the height of a panel with columns of up to `calls` calls.
    pub(crate) const fn height(calls: i32) -> i32 {
        calls * ROW + ROW / 2
    }

    /// Draws the marks of calls. Marks of the same instant are stacked. The panel must be as high as
    /// [`height`](Panel::height) returns.
    pub(crate) fn columns(&self, marks: &[(i32, Mark)]) -> Result<(), Box<dyn Error>> {
        let (mut last, mut row) = (None, 0);
        for (at, mark) in marks {
            row = if last == Some(at) { row + 1 } else { 0 };
            last = Some(at);
            let (x, y) = self.area.translate(&(*at, 0));
            mark.draw(self.root, (x, y - ROW * row - ROW / 2 - 2))?;
        }
        Ok(())
    }

    /// Draws a curve and fills the area below it. The part of the area above `over` has another colour.
    pub(crate) fn curve(&self, curve: &Curve, over: i32) -> Result<(), Box<dyn Error>> {
        let fill = |from: i32, color: RGBColor| {
            let mut edge = vec![(0, from)];
            edge.extend(curve.points.iter().map(|(at, value)| (*at, (*value).max(from))));
            edge.push((end(), from));
            self.root.draw(&Polygon::new(self.pixels(edge), color.filled()))
        };
        fill(0, FILL)?;
        if curve.points.iter().any(|(_, value)| *value > over) {
            fill(over, OVER)?;
        }
        self.line(curve.points.clone(), LINE.stroke_width(2))
    }

    /// Draws a dashed line at a value, with its name at the right.
    pub(crate) fn level(&self, value: i32, name: &str) -> Result<(), Box<dyn Error>> {
        let (x, y) = self.area.translate(&(end(), value));
        write(self.root, name, (x - 2, y - 8), HPos::Right, 12, FontStyle::Normal)?;
        for x in (LEFT..RIGHT).step_by(15) {
            self.root.draw(&PathElement::new(vec![(x, y), (x + 9, y)], INK.stroke_width(1)))?;
        }
        Ok(())
    }

    /// Writes numbers at the left.
    pub(crate) fn numbers(&self, numbers: &[i32]) -> Result<(), Box<dyn Error>> {
        for number in numbers {
            let (x, y) = self.area.translate(&(0, 1_000 * number));
            write(self.root, &number.to_string(), (x - 6, y), HPos::Right, 12, FontStyle::Normal)?;
        }
        Ok(())
    }

    /// Writes `value`, converted from thousandths, below the first flat part of the curve at that value.
    pub(crate) fn peak(&self, curve: &Curve, value: i32) -> Result<(), Box<dyn Error>> {
        let flat = curve.points.windows(2).find(|pair| pair[0].1 == value && pair[1].1 == value);
        let Some([from, to]) = flat else { return Ok(()) };
        let (x, y) = self.area.translate(&((from.0 + to.0) / 2, value));
        write(self.root, &(value / 1_000).to_string(), (x, y + 11), HPos::Center, 14, FontStyle::Bold)
    }

    fn line(&self, points: Vec<(i32, i32)>, style: ShapeStyle) -> Result<(), Box<dyn Error>> {
        self.root.draw(&PathElement::new(self.pixels(points), style))?;
        Ok(())
    }

    fn pixels(&self, points: Vec<(i32, i32)>) -> Vec<(i32, i32)> {
        let mut pixels: Vec<_> = points.iter().map(|point| self.area.translate(point)).collect();
        pixels.dedup();
        pixels
    }
}

pub(crate) fn end() -> i32 {
    i32::try_from(END).unwrap_or(i32::MAX)
}
