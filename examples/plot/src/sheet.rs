//! A small picture: text, areas, lines and marks.
//!
//! A page shows it as an image, and it stays readable on a phone. A chapter of the guide has it in a link, so it takes
//! few bytes: marks of the same kind are one path.

use std::fmt::Write;

use crate::colors::{CLASS, style};

/// The width in pixels. On a phone, where a picture is 358 pixels wide, text is then 9.6 pixels high.
pub(crate) const WIDTH: i32 = 520;

const TEXT: i32 = 14;

/// The side of a text that is at its position.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Left,
    Middle,
    Right,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    Dot,
    Ring,
    Cross,
    Diamond,
}

#[derive(Debug, Default)]
pub(crate) struct Sheet {
    body: String,
}

impl Sheet {
    /// Creates a sheet with a title.
    pub(crate) fn new(title: &str) -> Self {
        let mut sheet = Self::default();
        sheet.element(&format!(
            "<text x='8' y='24' font-size='17' font-weight='bold'>{}</text>",
            escape(title)
        ));
        sheet
    }

    /// Writes text. The second number of `at` is the line on which the letters stand.
    pub(crate) fn text(&mut self, at: (i32, i32), side: Side, text: &str) {
        self.write(at, side, "", text);
    }

    /// Writes bold text in a colour.
    pub(crate) fn bold(&mut self, at: (i32, i32), side: Side, color: &str, text: &str) {
        self.write(at, side, &format!(" font-weight='bold' fill='var(--{color})'"), text);
    }

    /// Writes bold text, then plain text, and then bold text in a colour.
    pub(crate) fn sentence(
        &mut self,
        (x, y): (i32, i32),
        subject: &str,
        text: &str,
        (color, end): (&str, &str),
    ) {
        self.element(&format!(
            "<text x='{x}' y='{y}'><tspan font-weight='bold'>{}</tspan> {} \
             <tspan font-weight='bold' fill='var(--{color})'>{}</tspan></text>",
            escape(subject),
            escape(text),
            escape(end)
        ));
    }

    fn write(&mut self, (x, y): (i32, i32), side: Side, style: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        let anchor = match side {
            Side::Left => "",
            Side::Middle => " text-anchor='middle'",
            Side::Right => " text-anchor='end'",
        };
        self.element(&format!("<text x='{x}' y='{y}'{anchor}{style}>{}</text>", escape(text)));
    }

    /// Fills a rectangle.
    pub(crate) fn fill(&mut self, (x, y): (i32, i32), (width, height): (i32, i32), color: &str) {
        self.element(&format!(
            "<rect x='{x}' y='{y}' width='{width}' height='{height}' fill='var(--{color})'/>"
        ));
    }

    /// Draws the edge of a rectangle, and fills it.
    pub(crate) fn boxed(&mut self, (x, y): (i32, i32), (width, height): (i32, i32), fill: &str, edge: &str) {
        self.element(&format!(
            "<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='var(--{fill})' \
             stroke='var(--{edge})'/>"
        ));
    }

    /// Fills the area inside a line through the points.
    pub(crate) fn area(&mut self, points: &[(i32, i32)], color: &str) {
        self.element(&format!("<path d='{}z' fill='var(--{color})'/>", through(points)));
    }

    /// Draws a line through the points.
    pub(crate) fn line(&mut self, points: &[(i32, i32)], color: &str, width: i32) {
        self.path(&through(points), color, width, "");
    }

    pub(crate) fn dashed(&mut self, from: (i32, i32), to: (i32, i32)) {
        self.path(&through(&[from, to]), "ink", 1, " stroke-dasharray='6 4'");
    }

    /// Draws a line with a head at its end, which goes straight down or to the right.
    pub(crate) fn arrow(&mut self, from: (i32, i32), (x, y): (i32, i32), color: &str) {
        let back =
            if from.0 == x { [(x - 5, y - 7), (x + 5, y - 7)] } else { [(x - 7, y - 5), (x - 7, y + 5)] };
        let line = through(&[from, (x, y)]) + &through(&[back[0], (x, y), back[1]]);
        self.path(&line, color, 2, "");
    }

    /// Draws marks of one kind at the given points.
    pub(crate) fn marks(&mut self, mark: Mark, points: &[(i32, i32)], radius: i32, color: &str) {
        let r = radius;
        let (data, width, style) = match mark {
            Mark::Dot => (each(points, |(x, y)| format!("M{x},{y}h0")), 2 * r, " stroke-linecap='round'"),
            Mark::Ring => {
                let ring =
                    |(x, y)| format!("M{},{y}a{r},{r},0,1,0,{},0a{r},{r},0,1,0,-{},0", x - r, 2 * r, 2 * r);
                (each(points, ring), 2, "")
            }
            Mark::Cross => {
                let cross = |(x, y)| {
                    format!("M{},{}l{},{}m-{},0l{},-{}", x - r, y - r, 2 * r, 2 * r, 2 * r, 2 * r, 2 * r)
                };
                (each(points, cross), 2, "")
            }
            Mark::Diamond => {
                (each(points, |(x, y)| format!("M{},{y}l{r},{r},{r},-{r},-{r},-{r}z", x - r)), 2, "")
            }
        };
        if !points.is_empty() {
            self.path(&data, color, width, style);
        }
    }

    /// Draws a bar from each point down to `bottom`.
    #[allow(dead_code, reason = "only the picture of an outage has bars that stand")]
    pub(crate) fn bars(&mut self, points: &[(i32, i32)], bottom: i32, width: i32, color: &str) {
        self.path(&each(points, |(x, y)| format!("M{x},{y}V{bottom}")), color, width, "");
    }

    fn path(&mut self, data: &str, color: &str, width: i32, style: &str) {
        self.element(&format!(
            "<path d='{data}' fill='none' stroke='var(--{color})' stroke-width='{width}'{style}/>"
        ));
    }

    fn element(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// Returns the file. `label` says what the picture shows, to those who do not see it.
    pub(crate) fn finish(self, height: i32, label: &str) -> String {
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' \
             height='{height}' class='{CLASS}' style='max-width:100%;height:auto' \
             font-family='Helvetica,Arial,sans-serif' font-size='{TEXT}' \
             fill='var(--ink)' role='img' aria-label='{}'>\n{}\
             <rect width='{WIDTH}' height='{height}' fill='var(--paper)'/>\n{}</svg>\n",
            escape(label),
            style(),
            self.body
        )
    }
}

/// Returns a chapter's links for rustdoc, with the pictures of these labels in place of those that the links have.
///
/// A link for rustdoc contains the picture. The line `[label]: data:` must be in `links`.
pub(crate) fn with_pictures(links: &str, pictures: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for line in links.lines() {
        let is_of = |(label, _): &&(&str, &str)| {
            line.strip_prefix('[')
                .and_then(|line| line.strip_prefix(label))
                .is_some_and(|line| line.starts_with("]: data:"))
        };
        if let Some((label, svg)) = pictures.iter().find(is_of) {
            text.push_str(&format!("[{label}]: data:image/svg+xml,{}", percent_encoded(svg)));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

/// Encodes what would end a link in Markdown, or has another meaning in it.
fn percent_encoded(svg: &str) -> String {
    let mut encoded = String::new();
    for byte in svg.bytes() {
        if byte.is_ascii_graphic() && !b"%#<>&\"\\`|".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn through(points: &[(i32, i32)]) -> String {
    let mut data = String::new();
    for (n, (x, y)) in points.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(data, "{}{x},{y}", if n == 0 { 'M' } else { 'L' });
    }
    data
}

fn each(points: &[(i32, i32)], mark: impl Fn((i32, i32)) -> String) -> String {
    points.iter().map(|point| mark(*point)).collect()
}

/// Escapes a text for the content of a tag, or for an attribute.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;").replace('\'', "&#39;")
}
