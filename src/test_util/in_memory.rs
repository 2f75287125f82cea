use std::convert::Infallible;
use std::future::{Future, ready};

use super::TestedStore;
use crate::algorithm::Algorithm;
use crate::store::{BoxError, MakeStore, MemoryOptions, MemoryStore, OnClose, OnFull, StoreSettings};

/// Makes a [`MemoryStore`] with default options.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl<A: Algorithm> MakeStore<A> for InMemory {
    type Store = MemoryStore<A>;
    type Error = Infallible;

    fn make_store(self, settings: StoreSettings<A>) -> Result<MemoryStore<A>, Infallible> {
        let options = MemoryOptions {
            max_keys: MemoryStore::<A>::DEFAULT_MAX_KEYS,
            max_queued: None,
            on_close: OnClose::default(),
            on_full: OnFull::default(),
        };
        Ok(MemoryStore::with(settings.algorithm, settings.clock, options))
    }
}

impl<A: Algorithm> TestedStore<A> for MemoryStore<A> {
    fn reply<T: Send + 'static>(reply: T) -> impl Future<Output = Result<T, BoxError>> + Send {
        ready(Ok(reply))
    }

    fn result<T>(output: T) -> Result<T, BoxError> {
        Ok(output)
    }
}
