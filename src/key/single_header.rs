use http::{HeaderMap, HeaderName, HeaderValue};

use super::KeyError;
use super::error::HeaderProblem;

/// Returns the value of a header that may occur only once. Returns an error if the header occurs more than once,
/// because the inner service might read any of the values.
pub(super) fn single_value<'a>(
    name: &HeaderName,
    headers: &'a HeaderMap,
) -> Result<Option<&'a HeaderValue>, KeyError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(KeyError::header(HeaderProblem::Twice, name)),
    }
}
