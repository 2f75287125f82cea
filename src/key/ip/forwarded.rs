//! The elements of `Forwarded` (RFC 7239, section 4).

use std::net::IpAddr;

use smallvec::SmallVec;

use super::address::{self, trimmed};

/// The maximum number of pairs in an element. The standard defines four pairs.
const MAX_PAIRS: usize = 16;

/// Returns the position of the last comma outside a quoted string.
///
/// The search goes from right to left. So the element that a proxy appended is read as the proxy wrote it, even if the
/// part that the caller sent ends with an opening quote or a backslash.
pub(super) fn last_comma(line: &[u8]) -> Option<usize> {
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

/// Returns the address in the element's `for` pair. Returns `None` if the element is not valid, has no such pair, or
/// has a pair without an address. An unspecified address (`0.0.0.0` or `::`) does not count as an address.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
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
        Value::Plain(node) => address::address(node),
        Value::Escaped(node) => address::address(&unescaped(node)),
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
