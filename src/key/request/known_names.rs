use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The names that each have a budget of their own. All other names share one budget, because callers can invent names.
#[derive(Clone)]
pub(super) struct KnownNames {
    names: Arc<HashSet<Arc<str>>>,
}

impl KnownNames {
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self { names: Arc::new(names.into_iter().map(Arc::from).collect()) }
    }

    /// Returns the name, or `None` if the name is not known.
    pub(super) fn name(&self, name: &str) -> Option<Arc<str>> {
        self.names.get(name).cloned()
    }
}

impl fmt::Debug for KnownNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names.fmt(f)
    }
}
