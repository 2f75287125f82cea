use std::fmt;

use smallvec::{SmallVec, smallvec};

/// What a call holds until it is over: given back when this is dropped.
///
/// Of rules that [hold](crate::algorithm::Algorithm::needs_release) something, as
/// [`Concurrency`](crate::algorithm::Concurrency); others' permits are empty. May be sent to another thread, kept in
/// a response's body, or dropped during a panic: wherever it ends, what it stands for is free again.
#[must_use = "a permit that is dropped at once holds nothing"]
#[derive(Default)]
pub struct Permit {
    /// A word in each call, of which most hold nothing.
    held: Option<Box<Inner>>,
}

struct Inner {
    on_drop: SmallVec<[OnDrop; 1]>,
    armed: bool,
}

type OnDrop = Box<dyn FnOnce() + Send + Sync>;

impl Permit {
    /// A permit that does this when it is dropped. For authors of stores.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        let end: OnDrop = Box::new(end);
        Self { held: Some(Box::new(Inner { on_drop: smallvec![end], armed: true })) }
    }

    /// The same for a call that was not let in yet: until it is [armed](Permit::armed), nothing happens when it is
    /// dropped.
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

    /// What both hold, which are armed.
    pub(crate) fn and(mut self, mut other: Self) -> Self {
        match (&mut self.held, other.held.take()) {
            (Some(held), Some(mut more)) => held.on_drop.append(&mut more.on_drop),
            (held, more) => *held = held.take().or(more),
        }
        self
    }

    /// Whether there is anything to give back.
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
            // Should this one panic, the others end all the same.
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
