//! Problem details (RFC 9457), with the types that the RateLimit draft registers.

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

pub(super) const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
const TYPES: &str = "https://iana.org/assignments/http-problem-types#";

pub(super) fn quota_exceeded(policies: &[&str]) -> Bytes {
    quota_exceeded_as(StatusCode::TOO_MANY_REQUESTS, policies)
}

/// Returns the problem details of an exceeded quota with the status `status`.
pub(super) fn quota_exceeded_as(status: StatusCode, policies: &[&str]) -> Bytes {
    of_type("quota-exceeded", "Quota Exceeded", status, policies)
}

pub(super) fn reduced_capacity(policies: &[&str]) -> Bytes {
    of_type(
        "temporary-reduced-capacity",
        "Temporary Reduced Capacity",
        StatusCode::SERVICE_UNAVAILABLE,
        policies,
    )
}

fn of_type(name: &str, title: &str, status: StatusCode, policies: &[&str]) -> Bytes {
    let policies: Vec<_> = policies.iter().map(|policy| format!("\"{}\"", escaped(policy))).collect();
    let (status, policies) = (status.as_u16(), policies.join(","));
    format!(
        r#"{{"type":"{TYPES}{name}","title":"{title}","status":{status},"violated-policies":[{policies}]}}"#
    )
    .into()
}

/// Returns problem details of the type `about:blank`, which contain only the status, its title and `detail`.
pub(super) fn plain(status: StatusCode, detail: &str) -> Bytes {
    let title = status.canonical_reason().unwrap_or_default();
    let (status, detail) = (status.as_u16(), escaped(detail));
    format!(r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}"#).into()
}

/// Escapes the characters of a string for a JSON string (RFC 8259, section 7).
fn escaped(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' | '\\' => json.extend(['\\', char]),
            '\0'..='\x1f' => {
                // Writing to a String does not fail.
                let _ = write!(json, "\\u{:04x}", u32::from(char));
            }
            _ => json.push(char),
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn bodies_are_the_json_they_are_meant_to_be() {
        let name = "a\"b\\c\u{1}é";
        let parsed = |body: Bytes| serde_json::from_slice::<Value>(&body).unwrap();
        assert_eq!(
            parsed(quota_exceeded(&[name, "b"])),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Quota Exceeded",
                "status": 429,
                "violated-policies": [name, "b"],
            })
        );
        assert_eq!(parsed(reduced_capacity(&[name]))["status"], 503);
        assert_eq!(
            parsed(plain(StatusCode::FORBIDDEN, name)),
            json!({ "type": "about:blank", "title": "Forbidden", "status": 403, "detail": name })
        );
    }
}
