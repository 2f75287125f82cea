//! The values of header fields: numbers, waits, and the structured fields (RFC 9651) `RateLimit` and
//! `RateLimit-Policy`. Waits are rounded up, to whole seconds by [`whole_seconds`], and to whole milliseconds by
//! [`retry_after_millis`].

use std::time::Duration;

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
    value(text.as_bytes())
}

/// Returns the start of an item of `RateLimit`, up to the number of the remaining units.
pub(super) fn item_start(name: &str) -> String {
    format!("{};r=", name_item(name))
}

/// Returns an item of `RateLimit`. `start` is the result of [`item_start`], and `window` is in seconds.
pub(super) fn item(start: &str, remaining: u64, window: Option<u64>) -> HeaderValue {
    // The item is written backwards. It ends with two numbers of at most 15 digits, and `;t=` between them.
    let mut text = [0; SHORT_START + 33];
    let mut at = text.len();
    if let Some(window) = window {
        at = write_digits(&mut text, at, window.min(MAX_INTEGER)) - 3;
        text[at..at + 3].copy_from_slice(b";t=");
    }
    at = write_digits(&mut text, at, remaining.min(MAX_INTEGER));
    match at.checked_sub(start.len()) {
        Some(begin) => {
            text[begin..at].copy_from_slice(start.as_bytes());
            value(&text[begin..])
        }
        None => value(&[start.as_bytes(), &text[at..]].concat()),
    }
}

/// The length of the start of an item up to which the whole item is written without a second buffer.
const SHORT_START: usize = 31;

/// Returns the value of a header field that consists of a number. Makes one allocation.
pub(super) fn number(number: u64) -> HeaderValue {
    let mut digits = [0; 20];
    let at = write_digits(&mut digits, 20, number);
    value(&digits[at..])
}

/// Returns the value of a header field with this text, which is printable.
pub(super) fn value(text: &[u8]) -> HeaderValue {
    match HeaderValue::from_bytes(text) {
        Ok(value) => value,
        Err(_) => unreachable!("names are printable, and so is the rest"),
    }
}

/// Serializes a printable name as a structured-field string (RFC 9651, section 4.1.6).
pub(super) fn name_item(name: &str) -> String {
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
    retry_after_seconds(seconds(span.min(MAX_RETRY_AFTER)))
}

/// Returns the value of `Retry-After` for a number of seconds.
#[inline]
pub(super) fn retry_after_seconds(seconds: u64) -> HeaderValue {
    match seconds {
        // Waits of up to an hour are the common case. Their values are parts of a static string.
        short @ 1..=3_600 => {
            let leading_zeros =
                usize::from(short < 1_000) + usize::from(short < 100) + usize::from(short < 10);
            let at = 4 * short as usize;
            HeaderValue::from_static(&FOUR_DIGITS[at + leading_zeros..at + 4])
        }
        long => number(long),
    }
}

/// The numbers from 0000 to 3600, one after another.
static FOUR_DIGITS: &str = {
    const DIGITS: [u8; 4 * 3_601] = {
        let mut digits = [0; 4 * 3_601];
        let mut number = 0;
        while number <= 3_600 {
            digits[4 * number] = b'0' + (number / 1_000) as u8;
            digits[4 * number + 1] = b'0' + (number / 100 % 10) as u8;
            digits[4 * number + 2] = b'0' + (number / 10 % 10) as u8;
            digits[4 * number + 3] = b'0' + (number % 10) as u8;
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

/// The numbers from 00 to 99.
static TWO_DIGITS: [[u8; 2]; 100] = {
    let (mut pairs, mut number) = ([[0; 2]; 100], 0);
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Writes a number in decimal digits into `buffer`, up to the index `end`. Returns the index of the first digit.
#[inline]
fn write_digits<const N: usize>(buffer: &mut [u8; N], end: usize, mut number: u64) -> usize {
    let mut at = end;
    while number >= 10 {
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&TWO_DIGITS[(number % 100) as usize]);
        number /= 100;
    }
    if number > 0 || at == end {
        at -= 1;
        buffer[at] = b'0' + number as u8;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_numbers_fit() {
        let field = policy(r#"a"b\c"#, QuotaPolicy::new(u64::MAX, Duration::from_nanos(1)));
        assert_eq!(field, r#""a\"b\\c";q=999999999999999;w=1"#);
        let field = item(&item_start("x"), u64::MAX, Some(u64::MAX));
        assert_eq!(field, r#""x";r=999999999999999;t=999999999999999"#);
    }

    #[test]
    fn an_item_begins_with_its_name_however_long_it_is() {
        for length in (1..60).chain([256]) {
            let name = "x".repeat(length);
            for (remaining, window) in [(0, 1), (7, 60), (u64::MAX, u64::MAX)] {
                let [left, time] = [remaining, window].map(clamp_integer);
                let start = item_start(&name);
                assert_eq!(
                    item(&start, remaining, Some(window)),
                    format!("\"{name}\";r={left};t={time}").as_str()
                );
                assert_eq!(item(&start, remaining, None), format!("\"{name}\";r={left}").as_str());
            }
        }
    }

    #[test]
    fn concurrent_requests_have_a_unit_and_no_window() {
        assert_eq!(policy("x", QuotaPolicy::concurrent(7)), r#""x";q=7;qu="concurrent-requests""#);
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in (0..1_002).chain([9_999, 10_000, 1_234_567, MAX_INTEGER, u64::MAX]) {
            let mut buffer = [b'x'; 24];
            let at = write_digits(&mut buffer, 24, number);
            assert_eq!(buffer[at..], *number.to_string().as_bytes());
            assert!(buffer[..at].iter().all(|byte| *byte == b'x'));
            assert_eq!(super::number(number), number.to_string().as_str());
        }
    }

    #[test]
    fn a_wait_is_its_number_of_seconds() {
        assert_eq!(retry_after(Duration::ZERO), "1");
        for seconds in (1..4_000).chain([1_000_000, 0x7fff_ffff]) {
            assert_eq!(retry_after(Duration::from_secs(seconds)), seconds.to_string().as_str());
        }
        assert_eq!(retry_after(Duration::MAX), "2147483647");
    }
}
