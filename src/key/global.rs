use super::{KeyError, KeyExtractor};

/// One key for all requests, of any type. The key is `()`: `limiter.reset(&())`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl<Req> KeyExtractor<Req> for Global {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        Ok(Some(()))
    }
}
