use std::fmt;

use smallvec::{SmallVec, smallvec};

/// A permit of a call in progress, released when dropped.
///
/// Algorithms that [need a release](crate::algorithm::Algorithm::needs_release), as
/// [`Concurrency`](crate::algorithm::Concurrency), create it; the permits of others are empty. It may be sent
/// to another thread, kept in a response's body, or dropped during a panic: wherever it is dropped, its units
/// are free again.
#[must_use = "a permit that is dropped at once holds nothing"]
#[derive(Default)]
pub struct Permit {
    /// One word in each call, since most hold nothing.
    held: Option<Box<Inner>>,
}

struct Inner {
    on_drop: SmallVec<[OnDrop; 1]>,
    armed: bool,
}

type OnDrop = Box<dyn FnOnce() + Send + Sync>;

impl Permit {
    /// Creates a permit that runs `end` when it is dropped. For authors of stores.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        let end: OnDrop = Box::new(end);
        Self { held: Some(Box::new(Inner { on_drop: smallvec![end], armed: true })) }
    }

    /// Disarms the permit of a call that was not admitted yet: until it is [armed](Permit::armed), nothing
    /// happens when it is dropped.
    pub(crate) fn disarmed(self) -> Self {
        self.arm(false)
    }

    pub(crate) fn armed(self) -> Self {
        self.arm(true)
    }

    fn arm(mut self, armed: bool) -> Self {
        if let Some(held) = &mut self.held {
            held.armed = armed;
        }
        self
    }

    /// Merges two permits, which are armed.
    pub(crate) fn and(mut self, mut other: Self) -> Self {
        match (&mut self.held, other.held.take()) {
            (Some(held), Some(mut more)) => held.on_drop.append(&mut more.on_drop),
            (held, more) => *held = held.take().or(more),
        }
        self
    }

    /// Returns whether there is nothing to release.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_none()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(mut held) = self.held.take().filter(|held| held.armed)
            && let Some(end) = held.on_drop.pop()
        {
            // If this one panics, the others run all the same.
            let _others = Self { held: Some(held) };
            end();
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
