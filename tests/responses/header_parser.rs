//! Reads fields as a client does, with a parser of structured fields (RFC 9651) that shares no code with the crate.

use std::collections::HashSet;

use http::HeaderMap;
use sfv::{BareItem, FieldType, List, ListEntry, Parser};

/// The largest integer of a structured field.
pub(crate) const MOST: u64 = 999_999_999_999_999;

/// An item of `RateLimit-Policy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) q: u64,
    pub(crate) w: Option<u64>,
    pub(crate) qu: Option<String>,
}

/// An item of `RateLimit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) name: String,
    pub(crate) r: u64,
    pub(crate) t: Option<u64>,
}

/// The header fields that a limiter sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedFields {
    pub(crate) policies: Vec<Policy>,
    pub(crate) left: Vec<Left>,
    pub(crate) retry_after: Option<u64>,
}

impl ParsedFields {
    /// Reads all fields. Panics if a value is one that a client would reject, or is not in canonical form.
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let policies: Vec<_> = items(headers, "ratelimit-policy").into_iter().map(Policy::read).collect();
        let left: Vec<_> = items(headers, "ratelimit").into_iter().map(Left::read).collect();
        let names: HashSet<_> = policies.iter().map(|policy| &policy.name).collect();
        assert_eq!(names.len(), policies.len(), "a policy twice: {headers:?}");
        let reported: HashSet<_> = left.iter().map(|left| &left.name).collect();
        assert_eq!(reported.len(), left.len(), "a name twice: {headers:?}");
        assert!(reported.is_subset(&names), "a name without a policy: {headers:?}");
        for policy in &policies {
            assert_ne!(policy.w, Some(0), "{headers:?}");
        }
        Self { policies, left, retry_after: number(headers, "retry-after") }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.left.is_empty()
    }
}

impl Policy {
    fn read((name, parameters): (String, Vec<(String, Value)>)) -> Self {
        let mut policy = Self { name, q: u64::MAX, w: None, qu: None };
        for (key, value) in parameters {
            match (key.as_str(), value) {
                ("q", Value::Number(q)) => policy.q = q,
                ("w", Value::Number(w)) => policy.w = Some(w),
                ("qu", Value::Text(unit)) => policy.qu = Some(unit),
                (key, value) => panic!("{key}={value:?} in a policy"),
            }
        }
        assert!(policy.q <= MOST, "without q: {policy:?}");
        policy
    }
}

impl Left {
    fn read((name, parameters): (String, Vec<(String, Value)>)) -> Self {
        let mut left = Self { name, r: u64::MAX, t: None };
        for (key, value) in parameters {
            match (key.as_str(), value) {
                ("r", Value::Number(r)) => left.r = r,
                ("t", Value::Number(t)) => left.t = Some(t),
                (key, value) => panic!("{key}={value:?} in what is left"),
            }
        }
        assert!(left.r <= MOST, "without r: {left:?}");
        left
    }
}

#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    Text(String),
}

/// Returns the members of a list of strings, from all lines of the field.
fn items(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, Value)>)> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.as_bytes()).collect();
    if lines.is_empty() {
        return Vec::new();
    }
    // Proxies may join the lines into one (RFC 9110, section 5.3).
    let text = lines.join(&b", "[..]);
    let shown = text.escape_ascii();
    let list: List = match Parser::new(&text).parse() {
        Ok(list) => list,
        Err(error) => panic!("{error} in {name}: {shown}"),
    };
    assert_eq!(list.serialize().map(String::into_bytes), Some(text.clone()), "not canonical");
    let items = list.into_iter().map(|entry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {name}: {shown}") };
        let BareItem::String(text) = item.bare_item else { panic!("no string in {name}: {shown}") };
        let parameters = item.params.into_iter().map(|(key, value)| {
            let value = match value {
                BareItem::Integer(number) => Value::Number(i64::from(number).try_into().unwrap()),
                BareItem::String(text) => Value::Text(text.to_string()),
                other => panic!("{other:?} in {name}: {shown}"),
            };
            (key.to_string(), value)
        });
        (text.to_string(), parameters.collect())
    });
    items.collect()
}

/// Returns the value of a numeric field, which occurs at most once.
pub(crate) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?.to_str().unwrap();
    assert_eq!(lines.next(), None, "{name} twice");
    assert!(!line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()), "{name}: {line}");
    assert!(line == "0" || !line.starts_with('0'), "{name}: {line}");
    Some(line.parse().unwrap())
}
