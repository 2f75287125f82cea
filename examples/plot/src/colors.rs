//! The colours, for light and for dark pages.
//!
//! The plotting crate draws in the colours of a light page. In the SVG file, each of these colours is replaced by a CSS
//! variable, whose value depends on the theme of the page.

use plotters::prelude::RGBColor;

/// The CSS class of a picture. The variables are defined for this class.
pub(crate) const CLASS: &str = "throttle-picture";

/// A colour: the variable's name, the colour on a light page, and the CSS values for light and for dark pages.
#[derive(Debug)]
struct Color {
    name: &'static str,
    drawn: RGBColor,
    light: &'static str,
    dark: &'static str,
}

pub(crate) const PAPER: RGBColor = RGBColor(255, 255, 255);
pub(crate) const INK: RGBColor = RGBColor(34, 34, 34);
pub(crate) const BAND: RGBColor = RGBColor(245, 245, 245);
pub(crate) const GRID: RGBColor = RGBColor(220, 220, 220);
// The palette of Okabe and Ito. Some colours are changed: darker on light pages, and lighter on dark pages.
pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(crate) const GREEN: RGBColor = RGBColor(0, 130, 95);
pub(crate) const ORANGE: RGBColor = RGBColor(213, 94, 0);
pub(crate) const LINE: RGBColor = RGBColor(0, 80, 140);
pub(crate) const FILL: RGBColor = RGBColor(214, 230, 242);
pub(crate) const OVER: RGBColor = RGBColor(240, 170, 110);

const COLORS: [Color; 10] = [
    // Rustdoc's own variables, each with a fallback value for a picture that is shown outside of a rustdoc page.
    color("paper", PAPER, "var(--main-background-color,#ffffff)", "var(--main-background-color,#222222)"),
    color("ink", INK, "var(--main-color,#222222)", "var(--main-color,#dddddd)"),
    color("band", BAND, "#7f7f7f14", "#7f7f7f26"),
    color("grid", GRID, "#7f7f7f47", "#7f7f7f73"),
    color("blue", BLUE, "#0072b2", "#56b4e9"),
    color("green", GREEN, "#00825f", "#2fbf94"),
    color("orange", ORANGE, "#d55e00", "#f5853f"),
    color("line", LINE, "#00508c", "#8cc4ef"),
    color("fill", FILL, "#d6e6f2", "#56b4e940"),
    color("over", OVER, "#f0aa6e", "#a8602a"),
];

const fn color(name: &'static str, drawn: RGBColor, light: &'static str, dark: &'static str) -> Color {
    Color { name, drawn, light, dark }
}

/// Returns the style sheet, in one line. On a page of rustdoc, the picture follows the theme of the page. A picture
/// that is shown alone follows the theme of the system.
pub(crate) fn style() -> String {
    let values = |value: fn(&Color) -> &str| -> String {
        COLORS.iter().map(|color| format!("--{}:{};", color.name, value(color))).collect()
    };
    let (light, dark) = (values(|color| color.light), values(|color| color.dark));
    format!(
        "<style>.{CLASS}{{{light}}}[data-theme=dark] .{CLASS},[data-theme=ayu] .{CLASS}{{{dark}}}\
         @media(prefers-color-scheme:dark){{:root:not([data-theme]) .{CLASS},.{CLASS}:root{{{dark}}}}}</style>\n"
    )
}

/// Replaces each colour of the drawing by its CSS variable.
pub(crate) fn themed(svg: &str) -> String {
    COLORS.iter().fold(svg.to_owned(), |svg, color| {
        let RGBColor(red, green, blue) = color.drawn;
        svg.replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &format!("\"var(--{})\"", color.name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The backgrounds of rustdoc's themes.
    const LIGHT: [&str; 1] = ["#ffffff"];
    const DARK: [&str; 2] = ["#353535", "#0f1419"];

    /// Returns the relative luminance of a colour, by WCAG 2.
    fn luminance(hex: &str) -> f64 {
        let channel = |at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        let linear = |c: f64| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
        0.2126 * linear(channel(1)) + 0.7152 * linear(channel(3)) + 0.0722 * linear(channel(5))
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn marks_and_lines_stand_out_in_each_theme() {
        for color in COLORS.iter().filter(|color| ["blue", "green", "orange", "line"].contains(&color.name)) {
            for page in LIGHT {
                assert!(contrast(color.light, page) >= 3.0, "{} on {page}", color.name);
            }
            for page in DARK {
                assert!(contrast(color.dark, page) >= 4.5, "{} on {page}", color.name);
            }
        }
    }

    #[test]
    fn no_colour_is_left_as_it_was_drawn() {
        assert_eq!(
            themed("fill=\"#0072B2\" stroke=\"#222222\""),
            "fill=\"var(--blue)\" stroke=\"var(--ink)\""
        );
    }
}
