use super::{KeyError, KeyExtractor};

/// One bucket for all, for any request type. Its key is `()`: `limiter.reset(&())`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl<Req> KeyExtractor<Req> for Global {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        Ok(Some(()))
    }
}
