//! Serialization of the structured fields (RFC 9651) `RateLimit` and `RateLimit-Policy`.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use crate::algorithm::{QuotaPolicy, QuotaUnit};

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Returns a duration in whole seconds, rounded up.
pub(in crate::middleware) fn whole_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// Returns a duration in whole seconds, rounded up, at least 1.
pub(in crate::middleware) fn seconds(span: Duration) -> u64 {
    whole_seconds(span).max(1)
}

/// Returns `number`, or the largest integer of a structured field if that is smaller.
pub(in crate::middleware) fn clamp_integer(number: u64) -> u64 {
    number.min(MAX_INTEGER)
}

/// Returns an item of `RateLimit-Policy`.
pub(in crate::middleware) fn policy(name: &str, policy: QuotaPolicy) -> HeaderValue {
    let (name, quota, window) =
        (name_item(name), policy.quota.min(MAX_INTEGER), seconds(policy.window).min(MAX_INTEGER));
    let text = match policy.unit {
        QuotaUnit::Requests => format!("{name};q={quota};w={window}"),
        // A concurrency limit has no window: a unit is released when its call ends.
        QuotaUnit::ConcurrentRequests => format!("{name};q={quota};qu=\"concurrent-requests\""),
    };
    value(text.into_bytes())
}

/// Returns the start of an item of `RateLimit`, up to the number of remaining units.
pub(in crate::middleware) fn item_start(name: &str) -> String {
    format!("{};r=", name_item(name))
}

/// Returns an item of `RateLimit`.
pub(in crate::middleware) fn item(start: &str, remaining: u64, window: Option<Duration>) -> HeaderValue {
    let remaining = Digits::new(remaining.min(MAX_INTEGER));
    let window = window.map(|window| Digits::new(seconds(window).min(MAX_INTEGER)));
    let length = start.len() + remaining.len() + window.as_ref().map_or(0, |window| 3 + window.len());
    // The capacity is exact, so that the vector becomes the header value without another copy.
    let mut text = Vec::with_capacity(length);
    text.extend_from_slice(start.as_bytes());
    text.extend_from_slice(&remaining);
    if let Some(window) = window {
        text.extend_from_slice(b";t=");
        text.extend_from_slice(&window);
    }
    value(text)
}

pub(in crate::middleware) fn value(text: Vec<u8>) -> HeaderValue {
    match HeaderValue::from_maybe_shared(Bytes::from(text)) {
        Ok(value) => value,
        Err(_) => unreachable!("names are printable, and so is the rest"),
    }
}

/// Serializes a printable name as a structured-field string (RFC 9651, section 4.1.6).
fn name_item(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for char in name.chars() {
        if matches!(char, '"' | '\\') {
            text.push('\\');
        }
        text.push(char);
    }
    text.push('"');
    text
}

/// The numbers 00 to 99.
pub(super) const TWO_DIGITS: &str = "00010203040506070809\
    10111213141516171819202122232425262728293031323334353637383940414243444546474849\
    50515253545556575859606162636465666768697071727374757677787980818283848586878889\
    90919293949596979899";

/// The decimal digits of a number, without an allocation.
struct Digits {
    digits: [u8; 20],
    start: usize,
}

impl Digits {
    fn new(mut number: u64) -> Self {
        let (mut digits, mut start) = ([b'0'; 20], 20);
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start };
            }
        }
    }
}

impl std::ops::Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_numbers_fit() {
        let field = policy(r#"a"b\c"#, QuotaPolicy::new(u64::MAX, Duration::from_nanos(1)));
        assert_eq!(field, r#""a\"b\\c";q=999999999999999;w=1"#);
        let field = item(&item_start("x"), u64::MAX, Some(Duration::MAX));
        assert_eq!(field, r#""x";r=999999999999999;t=999999999999999"#);
    }

    #[test]
    fn concurrent_requests_have_a_unit_and_no_window() {
        assert_eq!(policy("x", QuotaPolicy::concurrent(7)), r#""x";q=7;qu="concurrent-requests""#);
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 1, 9, 10, 999, u64::MAX] {
            assert_eq!(&*Digits::new(number), number.to_string().as_bytes());
        }
    }
}
