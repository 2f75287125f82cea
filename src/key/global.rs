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

impl<Req> KeyExtractor<Req> for Global {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        Ok(Some(()))
    }
}
