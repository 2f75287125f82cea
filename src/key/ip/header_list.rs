//! Headers that list addresses, read from the right: each proxy adds the address of its peer at the right end.

use std::iter::Rev;
use std::net::IpAddr;

use http::header::{self, ValueIter};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{address, forwarded};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Which header.
#[derive(Clone, Copy, Debug)]
pub(super) enum List {
    XForwardedFor,
    Forwarded,
}

impl List {
    pub(super) fn name(self) -> HeaderName {
        match self {
            Self::XForwardedFor => X_FORWARDED_FOR,
            Self::Forwarded => header::FORWARDED,
        }
    }

    /// The elements of all its lines, the last first.
    pub(super) fn elements(self, headers: &HeaderMap) -> Elements<'_> {
        let cut = match self {
            Self::XForwardedFor => |line: &[u8]| line.iter().rposition(|byte| *byte == b','),
            Self::Forwarded => forwarded::last_comma,
        };
        Elements { lines: headers.get_all(self.name()).iter().rev(), rest: None, cut }
    }

    /// The address in an element.
    pub(super) fn address(self, element: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => address::address(element),
            Self::Forwarded => forwarded::address(element),
        }
    }
}

/// See [`List::elements`]. Each is looked at when it is asked for: what a caller wrote further left costs nothing.
pub(super) struct Elements<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    /// What is left of the line.
    rest: Option<&'a [u8]>,
    /// Where the last comma is that parts elements.
    cut: fn(&[u8]) -> Option<usize>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = match self.rest.take() {
            Some(rest) => rest,
            None => self.lines.next()?.as_bytes(),
        };
        let element = match (self.cut)(line) {
            Some(comma) => {
                self.rest = Some(&line[..comma]);
                &line[comma + 1..]
            }
            None => line,
        };
        Some(address::trimmed(element))
    }
}
