//! Headers that list addresses, and the syntax of one address as proxies write it. The lists are read from the right,
//! because each proxy appends the address of its peer.

use std::iter::Rev;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str;

use http::header::{self, ValueIter};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::key::header::trimmed;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A header that lists addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum List {
    XForwardedFor,
    Forwarded,
}

impl List {
    pub(super) fn name(self) -> HeaderName {
        match self {
            Self::XForwardedFor => X_FORWARDED_FOR,
            Self::Forwarded => header::FORWARDED,
        }
    }

    /// Returns the elements of all headers of that name, the last element first.
    pub(super) fn elements(self, headers: &HeaderMap) -> Elements<'_> {
        let cut = match self {
            Self::XForwardedFor => |line: &[u8]| line.iter().rposition(|byte| *byte == b','),
            Self::Forwarded => last_comma,
        };
        Elements { lines: headers.get_all(self.name()).iter().rev(), rest: None, cut }
    }

    /// Returns the address in an element.
    pub(super) fn address(self, element: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => address(element),
            Self::Forwarded => forwarded_address(element),
        }
    }
}

/// The iterator of [`List::elements`]. The iterator is lazy: an element is read only when the search from the right
/// reaches that element. The client may have written the elements to the left of the last one that was read, so those
/// elements must not affect the result.
pub(super) struct Elements<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    /// The unread rest of the current header value.
    rest: Option<&'a [u8]>,
    /// The function that returns the position of the last comma that separates elements.
    cut: fn(&[u8]) -> Option<usize>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = match self.rest.take() {
            Some(rest) => rest,
            None => self.lines.next()?.as_bytes(),
        };
        let element = match (self.cut)(line) {
            Some(comma) => {
                self.rest = Some(&line[..comma]);
                &line[comma + 1..]
            }
            None => line,
        };
        Some(trimmed(element))
    }
}

/// Parses an address written as `v4`, `v4:port`, `v6`, `[v6]` or `[v6]:port`. An IPv6 address
/// may have a zone, which is dropped. Returns `None` if the element has another form.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
    let element = str::from_utf8(element).ok()?;
    if let Some(inside) = element.strip_prefix('[') {
        let (address, port) = inside.rsplit_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        return v6(address);
    }
    match element.split_once(':') {
        Some((address, port)) if !port.contains(':') => v4(address).filter(|_| is_port(port)),
        Some(_) => v6(element),
        None => v4(element),
    }
}

/// Parses the address before the last colon, if a port follows that colon. An IPv6 address must be written without
/// brackets. Returns `None` if the element has another form.
pub(super) fn before_port(element: &[u8]) -> Option<IpAddr> {
    let (address, port) = str::from_utf8(element).ok()?.rsplit_once(':')?;
    v4(address).or_else(|| v6(address)).filter(|_| is_port(port))
}

/// Parses an IPv4 address. std accepts four decimal numbers without leading zeros, and nothing else.
fn v4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn v6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((address, zone)) if is_zone(zone) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// Returns whether `text` has only the characters of a zone in a URI (RFC 6874): unreserved characters and `%`. Percent
/// encodings are not checked, because the zone is dropped.
fn is_zone(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

fn is_port(text: &str) -> bool {
    (1..=5).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// The maximum number of pairs in an element. The standard defines four pairs.
const MAX_PAIRS: usize = 16;

/// Returns the position of the last comma outside a quoted string.
///
/// The search goes from right to left. So the element that a proxy appended is read as the proxy wrote it, even if the
/// part that the caller sent ends with an opening quote or a backslash.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut at = line.len();
    let mut quoted = false;
    while at > 0 {
        at -= 1;
        match line[at] {
            b',' if !quoted => return Some(at),
            b'"' if !quoted => quoted = true,
            b'"' => {
                let escapes = line[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
                quoted = !escapes.is_multiple_of(2);
                // The backslashes are neither commas nor quotes, so the search skips them.
                at -= escapes;
            }
            _ => {}
        }
    }
    None
}

/// Returns the address in the `for` pair of an element of `Forwarded` (RFC 7239, section 4). Returns `None` if the
/// element is not valid, has no such pair, or has a pair without an address.
fn forwarded_address(element: &[u8]) -> Option<IpAddr> {
    let mut names = SmallVec::<[&[u8]; MAX_PAIRS]>::new();
    let mut node = None;
    let mut rest = element;
    loop {
        rest = trimmed(rest);
        if !matches!(rest, [] | [b';', ..]) {
            let (name, value) = token(rest)?;
            let (value, after) = self::value(value.strip_prefix(b"=")?)?;
            if names.len() == MAX_PAIRS || names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                return None;
            }
            names.push(name);
            if name.eq_ignore_ascii_case(b"for") {
                node = Some(value);
            }
            rest = trimmed(after);
        }
        match rest {
            [] => break,
            [b';', after @ ..] => rest = after,
            _ => return None,
        }
    }
    match node? {
        Value::Plain(node) => address(node),
        Value::Escaped(node) => address(&unescaped(node)),
    }
}

enum Value<'a> {
    /// A value without escapes.
    Plain(&'a [u8]),
    /// The content of a quoted string that has escapes.
    Escaped(&'a [u8]),
}

/// Splits off a token or a quoted string. Returns the token or the content of the string, and the rest of `text`.
fn value(text: &[u8]) -> Option<(Value<'_>, &[u8])> {
    let Some(text) = text.strip_prefix(b"\"") else {
        return token(text).map(|(token, after)| (Value::Plain(token), after));
    };
    let (mut at, mut escaped) = (0, false);
    loop {
        match text.get(at)? {
            b'"' => break,
            b'\\' => {
                escaped = true;
                at += 2;
            }
            _ => at += 1,
        }
    }
    let (inside, after) = (&text[..at], &text[at + 1..]);
    Some((if escaped { Value::Escaped(inside) } else { Value::Plain(inside) }, after))
}

/// Splits off a token of at least one character (RFC 9110, section 5.6.2). Returns the token and the rest of `text`.
fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let end = text.iter().position(|byte| !is_part(byte)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn unescaped(inside: &[u8]) -> SmallVec<[u8; 64]> {
    let mut text = SmallVec::new();
    let mut bytes = inside.iter();
    while let Some(byte) = bytes.next() {
        text.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) }.copied());
    }
    text
}
