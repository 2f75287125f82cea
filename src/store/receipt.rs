use std::fmt;
use std::time::Duration;

/// What is remembered of a call, so that its cost can be settled when it is over.
pub struct Receipt {
    settle: Box<dyn Fn(Duration, u64) + Send + Sync>,
}

impl Receipt {
    /// A receipt that does this when it is settled: from how long the call was held, and what it cost in the end. For
    /// authors of stores.
    pub fn new(settle: impl Fn(Duration, u64) + Send + Sync + 'static) -> Self {
        Self { settle: Box::new(settle) }
    }

    /// The call was held for so long, and cost so many units in the end.
    pub fn settle(&self, held: Duration, cost: u64) {
        (self.settle)(held, cost);
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").finish_non_exhaustive()
    }
}
