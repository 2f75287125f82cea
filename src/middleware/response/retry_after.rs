//! The values of `Retry-After` and `retry-after-ms`. Waits are rounded up here.

use std::time::Duration;

use http::HeaderValue;

use super::structured_field::{TWO_DIGITS, seconds};

/// The maximum wait that recipients must be able to parse (RFC 9111, section 1.2.2), in seconds.
pub(in crate::middleware) const MAX_RETRY_AFTER: Duration = Duration::from_secs(0x7fff_ffff);

/// Returns the value of `Retry-After`: whole seconds, rounded up, at least 1.
pub(in crate::middleware) fn retry_after(span: Duration) -> HeaderValue {
    let span = span.min(MAX_RETRY_AFTER);
    match usize::try_from(seconds(span)) {
        // Short waits are the common case; their text is static.
        Ok(short @ 1..100) => HeaderValue::from_static(
            &TWO_DIGITS[if short < 10 { 2 * short + 1 } else { 2 * short }..=2 * short + 1],
        ),
        _ => HeaderValue::from(seconds(span)),
    }
}

/// Returns the value of `retry-after-ms`: milliseconds, rounded up.
pub(in crate::middleware) fn retry_after_millis(span: Duration) -> HeaderValue {
    let millis = span.min(MAX_RETRY_AFTER).as_nanos().div_ceil(1_000_000);
    HeaderValue::from(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_its_number_of_seconds() {
        assert_eq!(retry_after(Duration::ZERO), "1");
        for seconds in (1..200).chain([1_000_000, 0x7fff_ffff]) {
            assert_eq!(retry_after(Duration::from_secs(seconds)), seconds.to_string().as_str());
        }
        assert_eq!(retry_after(Duration::MAX), "2147483647");
    }
}
