//! Turns a stand-alone SVG file into a part of a page.

use crate::colors::{CLASS, style, themed};
use crate::sheet::escape;

/// Rewrites the SVG of the plotting crate. The result scales with the page, has the colours of the page, and has a
/// label for screen readers. It is one block of Markdown, without empty lines.
pub(crate) fn tidy(svg: &str, (width, height): (u32, u32), title: &str) -> String {
    let body =
        svg.split_once("<svg ").and_then(|(_, rest)| rest.split_once('>')).map_or(svg, |(_, body)| body);
    let title = escape(title);
    let mut tidy = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"100%\" \
         class=\"{CLASS}\" style=\"max-width:{width}px\" role=\"img\" aria-label=\"{title}\">\n"
    );
    tidy.push_str(&style());
    let mut open = false;
    for line in themed(body).lines().map(str::trim).filter(|line| !line.is_empty()) {
        tidy.push_str(&line.replace(" opacity=\"1\"", ""));
        // Line breaks inside a text are removed, so that a text and its end tag are on one line.
        open = (open || line.starts_with("<text")) && !line.ends_with("</text>");
        if !open {
            tidy.push('\n');
        }
    }
    tidy
}
