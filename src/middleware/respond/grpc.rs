//! Rejections for gRPC: HTTP 200 without a body, with the gRPC status in the header block ("Trailers-Only" in the gRPC
//! over HTTP/2 protocol).

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::{PolicyReport, Rejection};
use crate::key::KeyError;
use crate::middleware::field_values::retry_after_millis;

/// The requests that are rejected with a gRPC response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrpcMode {
    /// Requests whose content type is `application/grpc`, `application/grpc-web` or `application/grpc-web-text`, alone
    /// or with a suffix that begins with `+` or `;`.
    #[default]
    ByContentType,
    /// All requests.
    Always,
    /// No requests. This value is for services without gRPC, whose clients cannot read a gRPC response.
    Never,
}

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

const PLAIN: HeaderValue = HeaderValue::from_static("application/grpc");

/// The maximum wait that is sent to clients as a pushback. A client that retries automatically waits for exactly as
/// long as the pushback says (gRFC A6).
const MAX_PUSHBACK: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Returns the content type of the response to a gRPC request, or `None` if the request is not a gRPC request.
fn content_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let requested = headers.get(CONTENT_TYPE)?;
    let rest = after_prefix(requested.as_bytes(), b"application/grpc")?;
    match rest {
        [] | [b'+' | b';', ..] => Some(PLAIN),
        _ => {
            let rest = after_prefix(rest, b"-web")?;
            let rest = after_prefix(rest, b"-text").unwrap_or(rest);
            if !matches!(rest, [] | [b'+' | b';', ..]) {
                return None;
            }
            // gRPC-Web clients require that the response has the content type of their request. Its parameters, which
            // can be anything, are not sent back.
            match requested.as_bytes().iter().position(|byte| *byte == b';') {
                None => Some(requested.clone()),
                Some(end) => HeaderValue::from_bytes(&requested.as_bytes()[..end]).ok(),
            }
        }
    }
}

/// Returns what follows `prefix` in `text`, in any case. Returns `None` if `text` does not begin with `prefix`.
fn after_prefix<'a>(text: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Returns the content type of the rejection of a request with these header fields, or `None` if the rejection must not
/// be a gRPC response.
pub(super) fn response_content_type(headers: &HeaderMap, grpc: GrpcMode) -> Option<HeaderValue> {
    match grpc {
        GrpcMode::Never => None,
        GrpcMode::ByContentType => content_type(headers),
        GrpcMode::Always => content_type(headers).or(Some(PLAIN)),
    }
}

/// Returns the maximum time for which a request may be queued: the `grpc-timeout` of a gRPC request.
pub(super) fn max_wait(headers: &HeaderMap, grpc: GrpcMode) -> Option<Duration> {
    match grpc {
        GrpcMode::Never => None,
        GrpcMode::Always => timeout(headers),
        GrpcMode::ByContentType => content_type(headers).and_then(|_| timeout(headers)),
    }
}

/// Returns the `grpc-timeout` of a request. The value consists of one to eight digits and a unit. Returns `None` if the
/// field is absent or its value is invalid.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Returns the response to a rejected call. If a policy denied the call, the response reports `wait`. `is_forbidden` is
/// `true` if a lockout is reported by the code `PERMISSION_DENIED`.
pub(super) fn rejection(
    content_type: HeaderValue,
    rejection: &Rejection<'_>,
    wait: Option<Duration>,
    is_forbidden: bool,
) -> Response<()> {
    let (code, message) = match rejection {
        Rejection::Limited(_) if rejection.is_closed() => (Code::Unavailable, Cow::Borrowed("shutting down")),
        Rejection::Limited(_) if rejection.is_unavailable() => (Code::Unavailable, "too many callers".into()),
        Rejection::Limited(_) if is_forbidden => (Code::PermissionDenied, "locked out".into()),
        Rejection::Limited(_) => (Code::ResourceExhausted, "rate limit exceeded".into()),
        Rejection::Key(error) => (key_code(error), error.public_text().into()),
        Rejection::Store(_) => (Code::Unavailable, "rate limiter unavailable".into()),
    };
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(&message)) {
        headers.insert(MESSAGE, message);
    }
    if code == Code::ResourceExhausted || is_forbidden {
        let denials = || rejection.policies().iter().filter(|report| !report.decision().is_allowed());
        let names: Vec<_> = denials().filter(|denial| !denial.is_hidden()).map(PolicyReport::name).collect();
        if let Ok(details) = HeaderValue::try_from(details(code as u16, &message, wait, &names)) {
            headers.insert(DETAILS, details);
        }
        if let Some(pushback) = pushback(wait, rejection.unsatisfiable_cost()) {
            headers.insert(PUSHBACK, pushback);
        }
    }
    response
}

fn key_code(error: &KeyError) -> Code {
    match error {
        error if error.is_forbidden() => Code::PermissionDenied,
        error if error.is_invalid() => Code::InvalidArgument,
        error if error.is_unauthorized() => Code::Unauthenticated,
        _ => Code::Internal,
    }
}

/// Returns the value of `grpc-retry-pushback-ms`: the time after which a client retries automatically, in milliseconds,
/// or -1 if the client must not retry automatically. Without this field, a client retries after the backoff of its own
/// retry policy, and this backoff may be much shorter than the wait. Returns `None` if waiting helps but the wait is
/// unknown.
fn pushback(wait: Option<Duration>, never: bool) -> Option<HeaderValue> {
    match wait {
        Some(wait) if wait <= MAX_PUSHBACK => Some(retry_after_millis(wait)),
        Some(_) => Some(HeaderValue::from_static("-1")),
        None => never.then(|| HeaderValue::from_static("-1")),
    }
}

/// Percent-encodes a `grpc-message`, as the protocol requires. The encoded bytes are `%` and all bytes that are not
/// printable ASCII.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | ..b' ' | b'\x7f'.. => encoded.push_str(&format!("%{byte:02X}")),
            _ => encoded.push(char::from(byte)),
        }
    }
    encoded
}

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const QUOTA_FAILURE: &str = "type.googleapis.com/google.rpc.QuotaFailure";

/// The maximum of `google.protobuf.Duration`: 10,000 years.
const MAX_DURATION: Duration = Duration::new(315_576_000_000, 999_999_999);

/// Returns the value of `grpc-status-details-bin`: a status with the code `code` and the message `message`. The status
/// has a `RetryInfo` if the wait is known, and a `QuotaFailure` if `limits` is not empty.
///
/// This function and those below encode the few Protocol Buffers fields of `google.rpc.Status` that rejections need.
fn details(code: u16, message: &str, wait: Option<Duration>, limits: &[&str]) -> String {
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

    #[test]
    fn grpc_is_detected_by_its_content_type() {
        for (requested, answered) in [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc")),
            ("Application/GRPC;x=y", Some("application/grpc")),
            ("application/grpc-web", Some("application/grpc-web")),
            ("application/grpc-web-text+proto", Some("application/grpc-web-text+proto")),
            ("application/grpc-web;x=y", Some("application/grpc-web")),
            ("application/grpc-web-text;", Some("application/grpc-web-text")),
            ("Application/gRPC-Web+Proto;x=y;z", Some("Application/gRPC-Web+Proto")),
            ("application/grpc-webinar", None),
            ("application/grpc-webinar;x=y", None),
            ("application/grpc-web-texts", None),
            ("application/grpc-web-", None),
            ("application/grpcx", None),
            ("application/json", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(requested));
            assert_eq!(content_type(&headers), answered.map(HeaderValue::from_static), "{requested}");
        }
        assert_eq!(content_type(&HeaderMap::new()), None);
    }

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        let grpc = |timeout: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(TIMEOUT, HeaderValue::from_bytes(timeout).unwrap());
            super::timeout(&headers)
        };
        for (text, outcome) in [
            ("1H", Duration::from_secs(3_600)),
            ("2M", Duration::from_secs(120)),
            ("99999999S", Duration::from_secs(99_999_999)),
            ("100m", Duration::from_millis(100)),
            ("7u", Duration::from_micros(7)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(grpc(text.as_bytes()), Some(outcome), "{text}");
        }
        for text in ["", "S", "1", "123456789S", "1s", "-1S", "+1S", "1 S", "1.5S", "S1", "1SS"] {
            assert_eq!(grpc(text.as_bytes()), None, "{text}");
        }
        assert_eq!(grpc(b"1\xff"), None);
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("100% né\n"), "100%25 n%C3%A9%0A");
    }

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
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIHCgUQ\
                 gOWadw",
            ),
            (
                details(8, "", Some(Duration::new(60, 1)), &[]),
                "CAgaMgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIGCgQIPBAB",
            ),
            (
                details(8, EXCEEDED, Some(30 * second), &["per-ip"]),
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgII\
                 Hho5Cit0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUXVvdGFGYWlsdXJlEgoKCBIGcGVyLWlw",
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
