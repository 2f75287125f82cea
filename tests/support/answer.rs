//! A response as the client received it, and a parser of its header fields.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body;

/// A response as the client received it.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// `true` if the stream ended with the headers.
    pub(crate) ended_with_headers: bool,
}

impl Answer {
    pub(crate) async fn read<B>(response: http::Response<B>) -> Self
    where
        B: Body<Error: fmt::Debug>,
    {
        let (parts, body) = response.into_parts();
        let ended_with_headers = body.is_end_stream();
        let body = body.collect().await.unwrap().to_bytes();
        Self { status: parts.status, headers: parts.headers, body, ended_with_headers }
    }

    /// Returns the value of a header that has a single line.
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut lines = self.headers.get_all(name).iter();
        let line = lines.next().unwrap_or_else(|| panic!("no {name}: {self:?}"));
        assert_eq!(lines.next(), None, "{name} once: {self:?}");
        line.to_str().unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Returns the members of a list field, from all lines of the field.
    pub(crate) fn items(&self, name: &str) -> Vec<Item> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|line| Item::read(line.to_str().unwrap())).collect()
    }

    pub(crate) fn retry_after(&self) -> u64 {
        self.header("retry-after").parse().unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the headers that a limiter adds to a response, with their values, in the order of their names.
    pub(crate) fn reported(&self) -> Vec<(String, String)> {
        let ours = ["content-type", "ratelimit", "ratelimit-policy", "retry-after"];
        let mut reported: Vec<_> = self
            .headers
            .iter()
            .filter(|(name, _)| ours.contains(&name.as_str()))
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        reported.sort();
        reported
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        write!(f, "{} {:?} {body:?}", self.status, self.headers)
    }
}

/// An item of a structured field, which is a string with integer parameters (RFC 9651), as in the RateLimit fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) parameters: BTreeMap<String, u64>,
}

impl Item {
    /// Reads one item in canonical form. Panics if the text is anything else.
    pub(crate) fn read(text: &str) -> Self {
        let mut chars = text.strip_prefix('"').unwrap_or_else(|| panic!("not quoted: {text}")).chars();
        let mut name = String::new();
        loop {
            match chars.next() {
                Some('"') => break,
                Some('\\') => match chars.next() {
                    Some(escaped @ ('"' | '\\')) => name.push(escaped),
                    other => panic!("{other:?} escaped in {text}"),
                },
                Some(char @ ' '..='~') => name.push(char),
                other => panic!("{other:?} in {text}"),
            }
        }
        let rest = chars.as_str();
        let mut parameters = BTreeMap::new();
        for parameter in rest.split(';').skip(1) {
            let (key, value) = parameter.split_once('=').unwrap_or_else(|| panic!("{parameter} in {text}"));
            assert!(key.bytes().all(|byte| byte.is_ascii_lowercase()), "{key} in {text}");
            assert!(
                value.bytes().all(|byte| byte.is_ascii_digit()) && value.len() <= 15,
                "{value} in {text}"
            );
            let twice = parameters.insert(key.to_owned(), value.parse().unwrap());
            assert_eq!(twice, None, "{key} twice in {text}");
        }
        assert!(rest.is_empty() || rest.starts_with(';'), "{rest} after the name in {text}");
        Self { name, parameters }
    }

    pub(crate) fn get(&self, key: &str) -> u64 {
        *self.parameters.get(key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }
}
