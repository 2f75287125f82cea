use std::fmt;
use std::hash::Hash;

use super::{KeyError, KeyExtractor};
use crate::stats::TopKeys;

/// An extractor whose keys are counted when they are denied.
/// [`RateLimitLayer::top_keys`](crate::RateLimitLayer::top_keys) creates this extractor.
#[derive(Clone)]
pub struct Watched<K, L> {
    key: K,
    top: TopKeys,
    label: L,
}

impl<K, L> Watched<K, L> {
    pub(crate) fn new(key: K, top: &TopKeys, label: L) -> Self {
        Self { key, top: top.clone(), label }
    }
}

/// Labels keys of type `Key`.
#[doc(hidden)]
pub trait KeyLabel<Key> {
    /// Returns the label of `key`. The hash of `key` is `hash`.
    fn label(&self, key: &Key, hash: u64) -> String;
}

/// Labels each key by its hash. The seed of the hash is random.
#[derive(Clone, Copy, Debug)]
pub struct HashLabel;

/// Labels keys by a function.
#[derive(Clone, Copy)]
pub struct LabelFn<F>(F);

impl<F> LabelFn<F> {
    pub(crate) fn new(label: F) -> Self {
        Self(label)
    }
}

impl<Key> KeyLabel<Key> for HashLabel {
    fn label(&self, _: &Key, hash: u64) -> String {
        format!("{hash:016x}")
    }
}

impl<Key, T: Into<String>, F: Fn(&Key) -> T> KeyLabel<Key> for LabelFn<F> {
    fn label(&self, key: &Key, _: u64) -> String {
        (self.0)(key).into()
    }
}

impl<Req, K: KeyExtractor<Req>, L: KeyLabel<K::Key>> KeyExtractor<Req> for Watched<K, L>
where
    K::Key: Hash,
{
    type Key = K::Key;

    fn extract(&self, request: &Req) -> Result<Option<K::Key>, KeyError> {
        self.key.extract(request)
    }

    fn on_denied(&self, key: &K::Key) {
        self.key.on_denied(key);
        self.top.record(key, |hash| self.label.label(key, hash));
    }
}

impl<F> fmt::Debug for LabelFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LabelFn").finish_non_exhaustive()
    }
}

impl<K: fmt::Debug, L> fmt::Debug for Watched<K, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("key", &self.key).finish_non_exhaustive()
    }
}
