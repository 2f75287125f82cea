//! The extractors for requests of any type: one key for all requests, and a function of the request.

use std::fmt;
use std::hash::Hash;

use super::or::OptionalExtractor;
use super::{KeyError, KeyExtractor};

/// One key for all requests, of any type. The key is `()`: `limiter.reset(&())`.
///
/// ```
/// use tower_throttle::algorithm::SlidingWindow;
/// use tower_throttle::key::Global;
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// // 1,000 requests a second, from all callers together
/// let layer = RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_second(1_000)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl Global {
    /// Returns `Global`, so that it can be written as other extractors are.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl<Req> KeyExtractor<Req> for Global {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        Ok(Some(()))
    }
}

/// Creates an extractor from a function of the request, for any request type.
///
/// If the function returns `None`, the request is not limited. In [`first_of`](super::first_of()), the next extractor
/// is tried instead, if there is one.
///
/// The key is the value that the function returns. For example, `limiter.reset(&42_u32)` resets the tenant 42 of the
/// code below. The `Hash` of the key must be [prefix-free](KeyExtractor::Key).
///
/// ```
/// use tower_throttle::key;
///
/// struct Job {
///     tenant: u32,
///     internal: bool,
/// }
///
/// let by_tenant = key::from_fn(|job: &Job| (!job.internal).then_some(job.tenant));
/// ```
pub fn from_fn<F, Req, Key>(function: F) -> FromFn<F>
where
    F: Fn(&Req) -> Option<Key>,
    Key: Hash,
{
    FromFn { function }
}

/// An extractor made by [`from_fn`].
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct FromFn<F> {
    function: F,
}

impl<F, Req, Key> KeyExtractor<Req> for FromFn<F>
where
    F: Fn(&Req) -> Option<Key>,
    Key: Hash,
{
    type Key = Key;

    fn extract(&self, request: &Req) -> Result<Option<Key>, KeyError> {
        Ok((self.function)(request))
    }
}

impl<F, Req, Key> OptionalExtractor<Req> for FromFn<F>
where
    F: Fn(&Req) -> Option<Key>,
    Key: Hash,
{
    fn find(&self, request: &Req) -> Result<Option<Key>, KeyError> {
        Ok((self.function)(request))
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").finish_non_exhaustive()
    }
}
