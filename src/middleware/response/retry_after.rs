//! The values of `Retry-After` and `retry-after-ms`. Waits are rounded up: to whole seconds by `whole_seconds` of
//! `structured_field.rs`, and to whole milliseconds here.

use std::time::Duration;

use http::HeaderValue;

use super::structured_field::{number, seconds};

/// The maximum wait that is sent: 2^31 - 1 seconds. Recipients should be able to represent such a number of seconds
/// (RFC 9111, section 1.2.2).
pub(in crate::middleware) const MAX_RETRY_AFTER: Duration = Duration::from_secs(0x7fff_ffff);

/// Returns the value of `Retry-After`: whole seconds, rounded up, at least 1.
pub(in crate::middleware) fn retry_after(span: Duration) -> HeaderValue {
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
pub(in crate::middleware) fn retry_after_millis(span: Duration) -> HeaderValue {
    let millis = span.min(MAX_RETRY_AFTER).as_nanos().div_ceil(1_000_000);
    number(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_its_number_of_seconds() {
        assert_eq!(retry_after(Duration::ZERO), "1");
        for seconds in (1..1_200).chain([1_000_000, 0x7fff_ffff]) {
            assert_eq!(retry_after(Duration::from_secs(seconds)), seconds.to_string().as_str());
        }
        assert_eq!(retry_after(Duration::MAX), "2147483647");
    }
}
