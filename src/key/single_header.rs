use http::{HeaderMap, HeaderName, HeaderValue};

use super::KeyError;
use super::error::HeaderProblem;

/// The value of a header that may stand in one line only: of two, the service behind might read the other.
pub(super) fn single_value<'a>(
    name: &HeaderName,
    headers: &'a HeaderMap,
) -> Result<Option<&'a HeaderValue>, KeyError> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    match lines.next() {
        None => Ok(first),
        Some(_) => Err(KeyError::header(HeaderProblem::Twice, name)),
    }
}
