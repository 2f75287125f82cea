//! gRPC's answers: HTTP 200, no body, the status in the header block ("Trailers-Only" in the gRPC over HTTP/2 protocol).

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
}

/// The content type an answer must have, if the request is a gRPC one.
pub(super) fn content_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get(CONTENT_TYPE)?;
    let kind = asked.as_bytes().to_ascii_lowercase();
    let rest = kind.strip_prefix(b"application/grpc")?;
    match rest {
        // gRPC-Web clients insist on their own.
        [b'-', b'w', b'e', b'b', ..] => Some(asked.clone()),
        [] | [b'+' | b';', ..] => Some(HeaderValue::from_static("application/grpc")),
        _ => None,
    }
}

pub(super) fn add_status(headers: &mut HeaderMap, content_type: HeaderValue, code: Code, message: &str) {
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(message)) {
        headers.insert(MESSAGE, message);
    }
}

/// As the protocol wants a `grpc-message`: printable ASCII but for `%`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        for (asked, answered) in [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc")),
            ("Application/GRPC;x=y", Some("application/grpc")),
            ("application/grpc-web", Some("application/grpc-web")),
            ("application/grpc-web-text+proto", Some("application/grpc-web-text+proto")),
            ("application/grpcx", None),
            ("application/json", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(asked));
            assert_eq!(content_type(&headers), answered.map(HeaderValue::from_static), "{asked}");
        }
        assert_eq!(content_type(&HeaderMap::new()), None);
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("100% né\n"), "100%25 n%C3%A9%0A");
    }
}
