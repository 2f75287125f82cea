//! The values of header fields: numbers, waits, and the structured fields (RFC 9651) `RateLimit` and `RateLimit-Policy`.
//! Waits are rounded up, to whole seconds by [`whole_seconds`], and to whole milliseconds by [`retry_after_millis`].

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use crate::algorithm::QuotaPolicy;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Returns a duration in whole seconds, rounded up.
pub(super) fn whole_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// Returns a duration in whole seconds, rounded up. The result is at least 1.
pub(super) fn seconds(span: Duration) -> u64 {
    whole_seconds(span).max(1)
}

/// Returns `number`. If `number` exceeds the largest integer of a structured field, returns that integer.
pub(super) fn clamp_integer(number: u64) -> u64 {
    number.min(MAX_INTEGER)
}

/// Returns an item of `RateLimit-Policy`.
pub(super) fn policy(name: &str, policy: QuotaPolicy) -> HeaderValue {
    let (name, quota, window) =
        (name_item(name), policy.quota.min(MAX_INTEGER), seconds(policy.window).min(MAX_INTEGER));
    let text = match policy.is_concurrent() {
        false => format!("{name};q={quota};w={window}"),
        // A concurrency limit has no window, because a unit becomes available when a call ends.
        true => format!("{name};q={quota};qu=\"concurrent-requests\""),
    };
    value(text.into_bytes())
}

/// Returns the start of an item of `RateLimit`, up to the number of the remaining units.
pub(super) fn item_start(name: &str) -> String {
    format!("{};r=", name_item(name))
}

/// Returns an item of `RateLimit`. `start` is the result of [`item_start`].
pub(super) fn item(start: &str, remaining: u64, window: Option<Duration>) -> HeaderValue {
    // The end of the item is written backwards. It consists of two numbers of at most 15 digits, and `;t=` between
    // them.
    let (mut end, mut at) = ([0; 33], 33);
    if let Some(window) = window {
        at = write_digits(&mut end[..at], seconds(window).min(MAX_INTEGER));
        at -= 3;
        end[at..at + 3].copy_from_slice(b";t=");
    }
    at = write_digits(&mut end[..at], remaining.min(MAX_INTEGER));
    // The capacity is exact, so that the vector becomes the header value without another copy.
    let mut text = Vec::with_capacity(start.len() + end.len() - at);
    text.extend_from_slice(start.as_bytes());
    text.extend_from_slice(&end[at..]);
    value(text)
}

/// Returns the value of a header field that consists of a number. Makes one allocation.
pub(super) fn number(number: u64) -> HeaderValue {
    let mut digits = [0; 20];
    let at = write_digits(&mut digits, number);
    value(digits[at..].to_vec())
}

pub(super) fn value(text: Vec<u8>) -> HeaderValue {
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

/// The maximum wait that is sent: 2^31 - 1 seconds. Recipients should be able to represent such a number of seconds
/// (RFC 9111, section 1.2.2).
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(0x7fff_ffff);

/// The value of `Cache-Control` in rejections.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Returns the value of `Retry-After`: whole seconds, rounded up, at least 1.
pub(super) fn retry_after(span: Duration) -> HeaderValue {
    let span = span.min(MAX_RETRY_AFTER);
    match seconds(span) {
        // Short waits are the common case. Their values are parts of a static string.
        short @ 1..1_000 => {
            let leading_zeros = usize::from(short < 100) + usize::from(short < 10);
            let at = 3 * short as usize;
            HeaderValue::from_static(&THREE_DIGITS[at + leading_zeros..at + 3])
        }
        long => number(long),
    }
}

/// The numbers from 000 to 999, one after another.
static THREE_DIGITS: &str = {
    const DIGITS: [u8; 3_000] = {
        let (mut digits, mut number) = ([0; 3_000], 0);
        while number < 1_000 {
            digits[3 * number] = b'0' + (number / 100) as u8;
            digits[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
            digits[3 * number + 2] = b'0' + (number % 10) as u8;
            number += 1;
        }
        digits
    };
    match str::from_utf8(&DIGITS) {
        Ok(digits) => digits,
        Err(_) => panic!("digits are UTF-8"),
    }
};

/// Returns the value of `retry-after-ms`: milliseconds, rounded up.
pub(super) fn retry_after_millis(span: Duration) -> HeaderValue {
    let millis = span.min(MAX_RETRY_AFTER).as_nanos().div_ceil(1_000_000);
    number(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// The numbers from 00 to 99, one after another.
const TWO_DIGITS: &str = "00010203040506070809\
    10111213141516171819202122232425262728293031323334353637383940414243444546474849\
    50515253545556575859606162636465666768697071727374757677787980818283848586878889\
    90919293949596979899";

/// Writes a number in decimal digits at the end of `buffer`. Returns the index of the first digit.
fn write_digits(buffer: &mut [u8], mut number: u64) -> usize {
    let mut at = buffer.len();
    while number >= 100 {
        let pair = 2 * (number % 100) as usize;
        number /= 100;
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&TWO_DIGITS.as_bytes()[pair..pair + 2]);
    }
    if number >= 10 {
        at -= 1;
        buffer[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    at -= 1;
    buffer[at] = b'0' + number as u8;
    at
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
        for number in (0..1_002).chain([9_999, 10_000, 1_234_567, MAX_INTEGER, u64::MAX]) {
            let mut buffer = [b'x'; 24];
            let at = write_digits(&mut buffer, number);
            assert_eq!(buffer[at..], *number.to_string().as_bytes());
            assert!(buffer[..at].iter().all(|byte| *byte == b'x'));
            assert_eq!(super::number(number), number.to_string().as_str());
        }
    }

    #[test]
    fn a_wait_is_its_number_of_seconds() {
        assert_eq!(retry_after(Duration::ZERO), "1");
        for seconds in (1..1_200).chain([1_000_000, 0x7fff_ffff]) {
            assert_eq!(retry_after(Duration::from_secs(seconds)), seconds.to_string().as_str());
        }
        assert_eq!(retry_after(Duration::MAX), "2147483647");
    }
}
