//! Content negotiation: the kind of body that a client prefers, from its `Accept` header (RFC 9110, section 12.5.1).

use http::HeaderMap;
use http::header::ACCEPT;

/// Returns whether the client prefers `text/html` to problem details and to JSON. Invalid ranges of `Accept` are
/// ignored, and so are field lines that are not ASCII. If `Accept` is missing or has no valid range, returns `false`.
pub(super) fn prefers_html(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT);
    if lines.iter().next().is_none() {
        return false;
    }
    let ranges = || {
        let lines = lines.iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).filter_map(Range::read)
    };
    let weight = |kind: &str, subtype: &str| {
        // The weight is that of the most specific range that matches.
        let matching = ranges().filter_map(|range| Some((range.precision(kind, subtype)?, range.weight)));
        matching.max().map_or(0, |(_, weight)| weight)
    };
    let html = weight("text", "html");
    html > 0 && html > weight("application", "problem+json") && html > weight("application", "json")
}

/// A media range of `Accept`, with its weight.
#[derive(Clone, Copy, Debug)]
struct Range<'a> {
    kind: &'a str,
    subtype: &'a str,
    /// The weight (`q`) in thousandths.
    weight: u32,
}

impl<'a> Range<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let weights = parts.filter_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let weight = weights.map(thousandths).next().unwrap_or(Some(1_000))?;
        Some(Self { kind, subtype, weight })
    }

    /// Returns how specific the range is: 0 for `*/*`, 1 for a range such as `text/*`, and 2 for a media type. Returns
    /// `None` if the range does not match `kind/subtype`.
    fn precision(&self, kind: &str, subtype: &str) -> Option<u8> {
        match (self.kind, self.subtype) {
            ("*", "*") => Some(0),
            (own, "*") if own.eq_ignore_ascii_case(kind) => Some(1),
            (own, sub) if own.eq_ignore_ascii_case(kind) && sub.eq_ignore_ascii_case(subtype) => Some(2),
            _ => None,
        }
    }
}

/// Parses a weight from 0 to 1 with at most three decimals. Returns the weight in thousandths, or `None` if the weight
/// is invalid.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let whole: u32 = if matches!(whole, "0" | "1") { whole.parse().ok()? } else { return None };
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let decimals: u32 = format!("{decimals:0<3}").parse().ok()?;
    Some(whole * 1_000 + decimals).filter(|weight| *weight <= 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn html_is_preferred_by_browsers_and_not_by_clients_that_accept_anything() {
        for (accept, is_preferred) in [
            // The headers of Firefox, Chromium and Safari for a page, and of Chromium and Safari for an image.
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", true),
            ("image/avif,image/webp,image/apng,*/*;q=0.8", false),
            // curl, fetch and axios accept any type. Other clients list the types that they accept.
            ("*/*", false),
            ("application/json, text/plain, */*", false),
            ("application/json", false),
            ("application/problem+json, text/html;q=0.9", false),
            ("text/html", true),
            ("TEXT/HTML", true),
            ("text/*", true),
            ("text/*, */*;q=0.1", true),
            ("text/html;q=0.5, application/json;q=0.4", true),
            ("text/html;q=0.5, application/json;q=0.5", false),
            ("text/html;level=1;q=0.7, */*;q=0.6", true),
            ("text/html;q=0", false),
            ("text/html;q=0, text/*", false),
            ("text/html;q=1.001, */*", false),
            ("text/html;q=x", false),
            ("text/plain", false),
            ("", false),
            (",;=/", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(prefers_html(&headers), is_preferred, "{accept}");
        }
        let mut lines = HeaderMap::new();
        assert!(!prefers_html(&lines));
        lines.append(ACCEPT, HeaderValue::from_static("*/*;q=0.8"));
        lines.append(ACCEPT, HeaderValue::from_static("text/html"));
        assert!(prefers_html(&lines));
        lines.insert(ACCEPT, HeaderValue::from_bytes(b"text/html\xff").unwrap());
        assert!(!prefers_html(&lines));
    }
}
