//! Where the state of keys lives, and who may change it.
//!
//! A [`Store`] promises three things, and an [`Algorithm`] relies on them:
//!
//! 1. **Exclusive access.** One call at a time changes the state of a key. No admission is computed from state that
//!    another call is changing.
//! 2. **Forgetting changes no answer.** State may be dropped only when the algorithm says that the key is as good as
//!    new; or by a documented policy, where the store is full: that of the [`MemoryStore`] is [`OnFull`].
//! 3. **All of it or none.** A call that is refused, or given up while it waits, has charged nothing.
//!
//! How a key becomes an identity is the store's business; so the trait is generic over the key type. The
//! [`MemoryStore`], which every limiter has by default, asks for `Hash` only, which must be [prefix-free](MemoryKey). A store on other machines would ask for
//! a stable text form as well: neither a random seed nor std's `Hash` is the same on two machines.
//!
//! A store may answer at once or later: see [`Acquired`]. The in-memory one answers at once, and later only to calls
//! that queue.

mod context;
mod memory;
mod permit;
mod reservation;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;

pub use context::Context;
pub(crate) use memory::{AllDecisions, JointOutcome, KeyId as MemoryKeyId, decide as decide_joint};
pub use memory::{Decided, Few, JointRequest, JointWait};
pub use memory::{LimiterStats, MemoryKey, MemoryStore, OnClose, OnFull, QueuedAcquire};
pub use permit::Permit;
pub use reservation::Reservation;

/// What a store's or a service's failure is told as.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Keeps the state of keys, and lets one call at a time change it.
///
/// The module's documentation holds the contract. A layer asks for the keys of [`StoreKey`](crate::key::StoreKey)s: a store for
/// layers is one for `StoreKey<K>`, or for any key.
pub trait Store<A: Algorithm, K: ?Sized>: Sized + Send + Sync + 'static {
    /// Why the store could not decide. A denial is no error.
    type Error: Into<BoxError>;

    /// An answer that comes later: from another machine, or after waiting in line.
    ///
    /// Cancel safety: a future dropped before it is ready must leave nobody waiting for it, and either has charged its
    /// units or has not.
    type Wait: Future<Output = Result<Decision, Self::Error>> + Send + 'static;

    /// Takes the units that `call` costs for `key`, all or none. Where the rule has a [line](Algorithm::queueing), a call
    /// waits that [asks](Attempt::may_wait) to, or if the rule [says so](Algorithm::holds_requests), and no longer than its
    /// [patience](Attempt::max_wait).
    ///
    /// Where the rule [holds](Algorithm::needs_release) something, a call that is let in at once is [`Acquired::Held`] a
    /// [`Permit`]: whose end [releases](Algorithm::release) the key, and what it [shares](Algorithm::release_total);
    /// one that has waited is asked for its [permit](Store::permit).
    ///
    /// A call that [asks](Attempt::wants_reservation) for a [`Reservation`], so that it can be settled, and is let in at
    /// once is [`Acquired::Reserved`]; one that has waited is asked for its [reservation](Store::reservation). A store
    /// that cannot settle calls gives none.
    ///
    /// A cost of 0 is always allowed and takes nothing. `context` holds the algorithm and the clock.
    fn acquire(context: &Arc<Context<A, Self>>, key: &K, call: Attempt<'_, A>) -> Acquired<Self::Wait>;

    /// What a call holds until it is over, that waited and was let in; for rules that [hold](Algorithm::needs_release)
    /// something. Asked once. Nothing, unless implemented.
    fn permit(_wait: Pin<&mut Self::Wait>) -> Permit {
        Permit::default()
    }

    /// Returns the reservation of a call that waited and was let in, if it [asked](Attempt::wants_reservation) for one and
    /// can be settled. Called once. `None`, so that the charge stands, unless implemented.
    fn reservation(_wait: Pin<&mut Self::Wait>) -> Option<Reservation> {
        None
    }
}

/// What a call asks for.
#[derive(Debug)]
pub struct Attempt<'a, A> {
    cost: u64,
    algorithm: Option<&'a A>,
    priority: bool,
    may_wait: bool,
    max_wait: u64,
    reserves: bool,
}

impl<'a, A: Algorithm> Attempt<'a, A> {
    /// So many units, by the limiter's rule.
    #[must_use]
    pub fn new(cost: u64) -> Self {
        Self { cost, algorithm: None, priority: false, may_wait: false, max_wait: u64::MAX, reserves: false }
    }

    pub(crate) fn with(cost: u64, algorithm: Option<&'a A>, priority: bool) -> Self {
        Self { algorithm, priority, ..Self::new(cost) }
    }

    /// The same call, which waits though the rule was not told to let calls wait.
    #[must_use]
    pub fn wait(self) -> Self {
        Self { may_wait: true, ..self }
    }

    /// The same call, which waits so long at most.
    #[must_use]
    pub fn with_max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: Nanos::from(max_wait).0, ..self }
    }

    /// The same call, with priority.
    #[must_use]
    pub fn with_priority(self) -> Self {
        Self { priority: true, ..self }
    }

    /// The same call, by another rule than the limiter's.
    #[must_use]
    pub fn with_algorithm(self, algorithm: &'a A) -> Self {
        Self { algorithm: Some(algorithm), ..self }
    }

    /// The same call, which asks for a [`Reservation`], so that it can be settled.
    #[must_use]
    pub fn with_reservation(self) -> Self {
        Self { reserves: true, ..self }
    }

    /// How many units it takes.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether it has priority: a rule may let it wait where others are refused.
    #[must_use]
    pub fn has_priority(&self) -> bool {
        self.priority
    }

    /// Whether it waits where the rule was not told to let calls wait.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// How long it waits at most; `None`: as long as the rule lets it.
    #[must_use]
    pub fn max_wait(&self) -> Option<Duration> {
        (self.max_wait < u64::MAX).then(|| Duration::from_nanos(self.max_wait))
    }

    /// Whether it asks for a [`Reservation`].
    #[must_use]
    pub fn wants_reservation(&self) -> bool {
        self.reserves
    }

    /// The rule it goes by, if that is not the limiter's.
    #[must_use]
    pub fn algorithm(&self) -> Option<&'a A> {
        self.algorithm
    }
}

impl<A> Clone for Attempt<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Attempt<'_, A> {}

/// A decision, or the promise of one.
#[derive(Debug)]
pub enum Acquired<W> {
    /// Decided at once.
    Ready(Decision),
    /// Let in at once, holding something until it is over.
    Held(Decision, Permit),
    /// Let in at once; its cost can be settled later.
    Reserved(Decision, Reservation),
    /// To be decided.
    Pending(W),
}
