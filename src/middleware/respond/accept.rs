//! Content negotiation: the kind of body that a client prefers, from its `Accept` header (RFC 9110, section 12.5.1).

use http::HeaderMap;
use http::header::ACCEPT;

/// The maximum number of bytes of `Accept` that are read, in which 64 ranges with weights have room. Browsers send less
/// than 200 bytes. A client can send as many as the server allows, and a denial must cost little.
const MAX_LEN: usize = 512;

/// Returns whether the client prefers `text/html` to problem details and to JSON. Invalid ranges of `Accept` are
/// ignored, and so are field lines that are not ASCII. The line with which the field exceeds [`MAX_LEN`] is not read,
/// and neither are the lines after it. If `Accept` is missing or has no valid range, returns `false`.
pub(super) fn prefers_html(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT);
    if lines.iter().next().is_none() {
        return false;
    }
    let mut room = MAX_LEN;
    let lines = lines.iter().map_while(|line| {
        room = room.checked_sub(line.len())?;
        Some(line.to_str().unwrap_or_default())
    });
    // For each type, the precision and the weight of the most specific range that matches.
    let [mut html, mut problem, mut json] = [(0, 0); 3];
    for range in lines.flat_map(|line| line.split(',')).filter_map(Range::read) {
        html = html.max(range.matching("text", "html"));
        problem = problem.max(range.matching("application", "problem+json"));
        json = json.max(range.matching("application", "json"));
    }
    let [(_, html), (_, problem), (_, json)] = [html, problem, json];
    html > 0 && html > problem && html > json
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

    /// Returns how specific the range is for `kind/subtype`, and its weight. It is 1 for `*/*`, 2 for a range such as
    /// `text/*`, and 3 for a media type. If the range does not match, returns zeros.
    fn matching(&self, kind: &str, subtype: &str) -> (u8, u32) {
        let precision = match (self.kind, self.subtype) {
            ("*", "*") => 1,
            (own, "*") if own.eq_ignore_ascii_case(kind) => 2,
            (own, sub) if own.eq_ignore_ascii_case(kind) && sub.eq_ignore_ascii_case(subtype) => 3,
            _ => return (0, 0),
        };
        (precision, self.weight)
    }
}

/// Parses a weight from 0 to 1 with at most three decimals. Returns the weight in thousandths, or `None` if the weight
/// is invalid.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let whole = match whole {
        "0" => 0,
        "1" => 1_000,
        _ => return None,
    };
    let unit = *[1_000, 100, 10, 1].get(decimals.len())?;
    let digits = decimals
        .bytes()
        .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| 10 * number + u32::from(byte - b'0')))?;
    Some(whole + unit * digits).filter(|weight| *weight <= 1_000)
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
            ("text/html;q=0.12, application/json;q=0.119", true),
            ("text/html;q=0.1, application/json;q=0.099", true),
            ("text/html;q=0.1234", false),
            ("text/html;q=0.1a", false),
            ("text/html;q=1.", true),
            ("text/html;q=2", false),
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

    /// The range of `text/html` alone decides, if it is read.
    #[test]
    fn a_long_field_is_read_only_in_part() {
        let others = |bytes: usize| "a/b;q=0,".repeat(bytes / 8);
        let mut headers = HeaderMap::new();
        let mut add = |text: String| headers.append(ACCEPT, HeaderValue::from_str(&text).unwrap());
        add(others(MAX_LEN - 16));
        add("text/html;q=0.5,".to_owned());
        add("application/json".to_owned());
        assert!(prefers_html(&headers), "the last line is not read");
        for bytes in [MAX_LEN, 400_000] {
            headers.insert(ACCEPT, HeaderValue::from_str(&format!("text/html,{}", others(bytes))).unwrap());
            assert!(!prefers_html(&headers), "{bytes}");
        }
    }
}
