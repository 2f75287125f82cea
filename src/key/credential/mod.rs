//! What callers say of themselves: header values, tokens, cookies.

mod bearer;
mod cookie;
mod header;
mod secret;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use bearer::Bearer;
pub use cookie::Cookie;
pub use header::{Header, HeaderKey};
pub use secret::Secret;

use super::KeyError;
use super::error::HeaderRule;

/// The longest value that is a key, in bytes, unless set.
const LONGEST: usize = 8_192;

/// The value of a header that may stand in one line only: of two, the service behind might read the other.
pub(super) fn only_line<'a>(
    name: &HeaderName,
    headers: &'a HeaderMap,
) -> Result<Option<&'a HeaderValue>, KeyError> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    match lines.next() {
        None => Ok(first),
        Some(_) => Err(KeyError::header(HeaderRule::Twice, name)),
    }
}
