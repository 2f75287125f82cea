//! The colours, for light and for dark pages.
//!
//! Each colour is a CSS variable, whose value depends on the theme of the page.

/// The CSS class of a picture. The variables are defined for this class.
pub(crate) const CLASS: &str = "throttle-picture";

/// A colour: the variable's name, and the CSS values for light and for dark pages.
#[derive(Debug)]
struct Color {
    name: &'static str,
    light: &'static str,
    dark: &'static str,
}

// The palette of Okabe and Ito. Some colours are changed: darker on light pages, and lighter on dark pages.
const COLORS: [Color; 10] = [
    // Rustdoc's own variables, each with a fallback value for a picture that is shown outside of a rustdoc page.
    color("paper", "var(--main-background-color,#ffffff)", "var(--main-background-color,#222222)"),
    color("ink", "var(--main-color,#222222)", "var(--main-color,#dddddd)"),
    color("band", "#7f7f7f14", "#7f7f7f26"),
    color("grid", "#7f7f7f47", "#7f7f7f73"),
    color("blue", "#0072b2", "#56b4e9"),
    color("green", "#00825f", "#2fbf94"),
    color("orange", "#d55e00", "#f5853f"),
    color("line", "#00508c", "#8cc4ef"),
    color("fill", "#d6e6f2", "#56b4e940"),
    color("over", "#f0aa6e", "#a8602a"),
];

const fn color(name: &'static str, light: &'static str, dark: &'static str) -> Color {
    Color { name, light, dark }
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
}
