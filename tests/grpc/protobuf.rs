//! `google.rpc.Status`, encoded by hand with the encoding of protocol buffers, and base64 as in the metadata of gRPC.

use std::time::Duration;

/// Returns the tag of a field. The tag has the field's number, and 2 for bytes or 0 for an integer.
fn tag(number: u64, kind: u64) -> Vec<u8> {
    varint(number << 3 | kind)
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn bytes(number: u64, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [tag(number, 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// Encodes a scalar. A scalar with its default value is omitted, as in proto3.
fn text(number: u64, text: &str) -> Vec<u8> {
    if text.is_empty() { Vec::new() } else { bytes(number, text) }
}

fn integer(number: u64, value: u64) -> Vec<u8> {
    if value == 0 { Vec::new() } else { [tag(number, 0), varint(value)].concat() }
}

fn any(name: &str, message: &[u8]) -> Vec<u8> {
    [bytes(1, format!("type.googleapis.com/google.rpc.{name}")), bytes(2, message)].concat()
}

pub(crate) fn retry_info(wait: Duration) -> Vec<u8> {
    let wait = [integer(1, wait.as_secs()), integer(2, wait.subsec_nanos().into())].concat();
    any("RetryInfo", &bytes(1, wait))
}

pub(crate) fn quota_failure(names: &[&str]) -> Vec<u8> {
    let violations: Vec<_> = names.iter().map(|name| bytes(1, text(2, name))).collect();
    any("QuotaFailure", &violations.concat())
}

pub(crate) fn status(code: u64, message: &str, details: &[Vec<u8>]) -> Vec<u8> {
    let details: Vec<_> = details.iter().map(|detail| bytes(3, detail)).collect();
    [integer(1, code), text(2, message), details.concat()].concat()
}

/// Encodes without padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for at in 0..=chunk.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * at)) as usize & 0x3f]));
        }
    }
    text
}

const LIMITED: &str = "rate limit exceeded";

/// Returns the content of `grpc-status-details-bin` for a denied caller.
pub(crate) fn denied(wait: Option<Duration>, names: &[&str]) -> String {
    let failure = (!names.is_empty()).then(|| quota_failure(names));
    let details: Vec<_> = wait.map(retry_info).into_iter().chain(failure).collect();
    base64(&status(8, LIMITED, &details))
}

pub(crate) const ONE_SECOND: &str =
    "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAQ";
pub(crate) const A_QUARTER: &str =
    "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIHCgUQgOWadw";
pub(crate) const THIRTY_SECONDS_PER_IP: &str = "\
    CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIHho5\
    Cit0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUXVvdGFGYWlsdXJlEgoKCBIGcGVyLWlw";

/// The hand-written encoding equals that of the protocol buffers library.
#[test]
fn the_hand_written_encoding_equals_that_of_a_library() {
    let minute = "CAgaMgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIGCgQIPBAB";
    let longest =
        "CAgSCHRvbyBtYW55GjsKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SDwoNCIC8rs6XCRD/k+vcAw";
    let nothing =
        "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaLgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxICCgA";
    let retry = |seconds, nanos| retry_info(Duration::new(seconds, nanos));
    for (written, library) in [
        (status(8, LIMITED, &[retry(1, 0)]), ONE_SECOND),
        (status(8, LIMITED, &[retry(0, 250_000_000)]), A_QUARTER),
        (status(8, "", &[retry(60, 1)]), minute),
        (status(8, LIMITED, &[retry(30, 0), quota_failure(&["per-ip"])]), THIRTY_SECONDS_PER_IP),
        (status(14, "limiter unavailable", &[]), "CA4SE2xpbWl0ZXIgdW5hdmFpbGFibGU"),
        (status(8, "too many", &[retry(315_576_000_000, 999_999_999)]), longest),
        (status(8, LIMITED, &[retry(0, 0)]), nothing),
    ] {
        assert_eq!(base64(&written), library);
    }
}
