//! Headers that list addresses. The lists are read from the right, because each proxy appends the address of its peer.

use std::iter::Rev;
use std::net::IpAddr;

use http::header::{self, ValueIter};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{address, forwarded};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A header that lists addresses.
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

    /// Returns the elements of all headers of that name, the last element first.
    pub(super) fn elements(self, headers: &HeaderMap) -> Elements<'_> {
        let cut = match self {
            Self::XForwardedFor => |line: &[u8]| line.iter().rposition(|byte| *byte == b','),
            Self::Forwarded => forwarded::last_comma,
        };
        Elements { lines: headers.get_all(self.name()).iter().rev(), rest: None, cut }
    }

    /// Returns the address in an element.
    pub(super) fn address(self, element: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => address::address(element),
            Self::Forwarded => forwarded::address(element),
        }
    }
}

/// The iterator of [`List::elements`]. The iterator is lazy: an element is read only when the search from the right
/// reaches that element. The client may have written the elements to the left of the last one that was read, so those
/// elements must not affect the result.
pub(super) struct Elements<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    /// The unread rest of the current header value.
    rest: Option<&'a [u8]>,
    /// The function that returns the position of the last comma that separates elements.
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
