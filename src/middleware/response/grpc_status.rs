//! An encoder for the few Protocol Buffers fields of `google.rpc.Status` that rejections need.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const QUOTA_FAILURE: &str = "type.googleapis.com/google.rpc.QuotaFailure";

/// The maximum of `google.protobuf.Duration`: 10,000 years.
const MAX_DURATION: Duration = Duration::new(315_576_000_000, 999_999_999);

/// Returns the value of `grpc-status-details-bin`: a status with the code `code` and the message `message`. The status
/// has a `RetryInfo` if the wait is known, and a `QuotaFailure` if `limits` is not empty.
pub(in crate::middleware) fn details(
    code: u16,
    message: &str,
    wait: Option<Duration>,
    limits: &[&str],
) -> String {
    let mut status = Vec::new();
    number(&mut status, 1, code.into());
    text(&mut status, 2, message.as_bytes());
    if let Some(wait) = wait {
        any(&mut status, RETRY_INFO, &retry_info(wait));
    }
    if !limits.is_empty() {
        any(&mut status, QUOTA_FAILURE, &quota_failure(limits));
    }
    STANDARD_NO_PAD.encode(status)
}

fn retry_info(wait: Duration) -> Vec<u8> {
    let wait = wait.min(MAX_DURATION);
    let mut duration = Vec::new();
    number(&mut duration, 1, wait.as_secs());
    number(&mut duration, 2, wait.subsec_nanos().into());
    let mut info = Vec::new();
    // The field is written even if `duration` is empty, because an empty field means a duration of zero, and an absent
    // field means that there is no duration.
    bytes(&mut info, 1, &duration);
    info
}

fn quota_failure(limits: &[&str]) -> Vec<u8> {
    let mut failure = Vec::new();
    for limit in limits {
        let mut violation = Vec::new();
        // The field `subject` is left out, because its value would be the caller's key.
        text(&mut violation, 2, limit.as_bytes());
        bytes(&mut failure, 1, &violation);
    }
    failure
}

/// Appends an item to the field `details`.
fn any(status: &mut Vec<u8>, kind: &str, value: &[u8]) {
    let mut any = Vec::new();
    text(&mut any, 1, kind.as_bytes());
    text(&mut any, 2, value);
    bytes(status, 3, &any);
}

/// Appends a number. Zero is left out, because it is the default.
fn number(to: &mut Vec<u8>, field: u8, value: u64) {
    if value > 0 {
        to.push(field << 3);
        varint(to, value);
    }
}

/// Appends a string. The empty string is left out, because it is the default.
fn text(to: &mut Vec<u8>, field: u8, value: &[u8]) {
    if !value.is_empty() {
        bytes(to, field, value);
    }
}

fn bytes(to: &mut Vec<u8>, field: u8, value: &[u8]) {
    to.push((field << 3) | 2);
    varint(to, value.len() as u64);
    to.extend_from_slice(value);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors are checked against Google's own implementation in Python.
    #[test]
    fn vectors() {
        const EXCEEDED: &str = "rate limit exceeded";
        let second = Duration::from_secs(1);
        for (encoded, expected) in [
            (
                details(8, EXCEEDED, Some(second), &[]),
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAQ",
            ),
            (
                details(8, EXCEEDED, Some(second / 4), &[]),
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIHCgUQgOWadw",
            ),
            (
                details(8, "", Some(Duration::new(60, 1)), &[]),
                "CAgaMgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIGCgQIPBAB",
            ),
            (
                details(8, EXCEEDED, Some(30 * second), &["per-ip"]),
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIHho5Cit0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUXVvdGFGYWlsdXJlEgoKCBIGcGVyLWlw",
            ),
            (details(14, "limiter unavailable", None, &[]), "CA4SE2xpbWl0ZXIgdW5hdmFpbGFibGU"),
            (
                details(8, "too many", Some(Duration::MAX), &[]),
                "CAgSCHRvbyBtYW55GjsKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SDwoNCIC8rs6XCRD/k+vcAw",
            ),
            (
                details(8, EXCEEDED, Some(Duration::ZERO), &[]),
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaLgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxICCgA",
            ),
        ] {
            assert_eq!(encoded, expected);
        }
    }
}
