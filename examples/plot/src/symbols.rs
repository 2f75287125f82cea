//! The marks of calls. Each kind of mark has its own shape, so that a reader does not depend on the colours.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::colors::{BLUE, GREEN, INK, ORANGE};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mark {
    Passes,
    Waits,
    Leaves,
    Refused,
}

impl Mark {
    fn name(self) -> &'static str {
        match self {
            Self::Passes => "passes at once",
            Self::Waits => "has to wait",
            Self::Leaves => "passes after its wait",
            Self::Refused => "is denied",
        }
    }

    pub(crate) fn draw(
        self,
        root: &DrawingArea<SVGBackend<'_>, Shift>,
        at: (i32, i32),
    ) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Passes => root.draw(&Circle::new(at, 4, BLUE.filled())),
            Self::Waits => root.draw(&Circle::new(at, 4, GREEN.stroke_width(2))),
            Self::Leaves => root.draw(&TriangleMarker::new(at, 6, GREEN.filled())),
            Self::Refused => root.draw(&Cross::new(at, 3, ORANGE.stroke_width(2))),
        }?;
        Ok(())
    }
}

/// Draws the legend of the marks, in a row.
pub(crate) fn legend(
    root: &DrawingArea<SVGBackend<'_>, Shift>,
    (mut x, y): (i32, i32),
    marks: &[Mark],
) -> Result<(), Box<dyn Error>> {
    for mark in marks {
        mark.draw(root, (x, y))?;
        write(root, mark.name(), (x + 12, y), HPos::Left, 14, FontStyle::Normal)?;
        x += 36 + 8 * i32::try_from(mark.name().len())?;
    }
    Ok(())
}

/// Writes `text`, vertically centred at `at`. The size is in pixels.
pub(crate) fn write(
    root: &DrawingArea<SVGBackend<'_>, Shift>,
    text: &str,
    at: (i32, i32),
    side: HPos,
    size: i32,
    style: FontStyle,
) -> Result<(), Box<dyn Error>> {
    // The plotting crate divides the size of a font by this factor.
    let font = FontDesc::new(FontFamily::SansSerif, 1.24 * f64::from(size), style);
    let style = TextStyle::from(font).color(&INK).pos(Pos::new(side, VPos::Center));
    root.draw(&Text::new(text, at, style))?;
    Ok(())
}
