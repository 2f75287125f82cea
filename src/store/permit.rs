use std::fmt;

/// What a call holds until it is over: given back when this is dropped.
///
/// Of rules that [hold](crate::algorithm::Algorithm::holds) something, as [`Concurrency`](crate::algorithm::Concurrency); others' permits are empty.
/// May be sent to another thread, kept in a response's body, or dropped during a panic: wherever it ends, what it stands for is free again.
#[must_use = "a permit that is dropped at once holds nothing"]
#[derive(Default)]
pub struct Permit {
    ends: Vec<End>,
    armed: bool,
}

type End = Box<dyn FnOnce() + Send + Sync>;

impl Permit {
    /// A permit that does this when it is dropped. For authors of stores.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { ends: vec![Box::new(end)], armed: true }
    }

    /// The same for a call that was not let in yet: until it is [armed](Permit::armed), nothing happens when it is dropped.
    pub(crate) fn unarmed(mut self) -> Self {
        self.armed = false;
        self
    }

    pub(crate) fn armed(mut self) -> Self {
        self.armed = true;
        self
    }

    /// What both hold.
    pub(crate) fn and(mut self, mut other: Self) -> Self {
        self.armed |= other.armed;
        self.ends.append(&mut other.ends);
        self
    }

    /// Whether there is anything to give back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.armed {
            self.ends.drain(..).for_each(|end| end());
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
