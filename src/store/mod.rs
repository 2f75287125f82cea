//! The stores that hold the state of keys, and their contract.
//!
//! A [`Store`] promises three things, and an [`Algorithm`] relies on them:
//!
//! 1. **Exclusive access.** One call at a time changes the state of a key. No admission is computed from state that
//!    another call is changing.
//! 2. **Removal changes no decision.** State may be dropped only when the algorithm reports that the key is fresh; or
//!    by a documented policy, when the store is full: that of the [`MemoryStore`] is [`OnFull`].
//! 3. **All or nothing.** A call that is denied, or cancelled while it waits, has charged nothing.
//!
//! The store defines how a key becomes an identity; so the trait is generic over the key type. The
//! [`MemoryStore`], which every limiter has by default, requires only `Hash`, which must be
//! [prefix-free](MemoryKey). A store on other machines would also require a stable text form: neither a random
//! seed nor std's `Hash` is the same on two machines.
//!
//! A store may decide immediately or later: see [`Acquired`]. The in-memory one decides immediately, except for
//! calls that are queued.

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
pub(crate) use memory::{
    AllDecisions, Decided, Few, JointOutcome, JointRequest, JointWait, KeyId as MemoryKeyId,
    decide as decide_joint,
};
pub use memory::{LimiterStats, MemoryKey, MemoryStore, OnClose, OnFull, QueuedAcquire};
pub use permit::Permit;
pub use reservation::Reservation;

/// The error of a store or a service, boxed.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Keeps the state of keys, and lets one call at a time change it.
///
/// The [module documentation](self) holds the contract. A layer uses [`StoreKey`](crate::key::StoreKey)s as
/// keys: a store for layers is one for `StoreKey<K>`, or for any key.
pub trait Store<A: Algorithm, K: ?Sized>: Sized + Send + Sync + 'static {
    /// The error of a store that could not decide. A denial is no error.
    type Error: Into<BoxError>;

    /// A decision that comes later: from another machine, or after waiting in a queue.
    ///
    /// Cancel safety: a future that is dropped before it is ready must leave no call waiting for it, and either
    /// has charged its units or has not.
    type Wait: Future<Output = Result<Decision, Self::Error>> + Send + 'static;

    /// Charges the units that `call` costs to `key`, all or none. If the algorithm has a
    /// [queue](Algorithm::queueing), a call waits that [asks](Attempt::may_wait) to, or if the algorithm [holds
    /// requests](Algorithm::holds_requests), and no longer than its [`max_wait`](Attempt::max_wait).
    ///
    /// If the algorithm [needs a release](Algorithm::needs_release), a call that is admitted immediately is
    /// [`Acquired::Held`] with a [`Permit`]. When that is dropped, it [releases](Algorithm::release) the key
    /// and the [total](Algorithm::release_total) of all keys. For a call that has waited,
    /// [`permit`](Store::permit) is called.
    ///
    /// A call that [asks](Attempt::wants_reservation) for a [`Reservation`], so that it can be settled, and is
    /// admitted immediately is [`Acquired::Reserved`]. For one that has waited,
    /// [`reservation`](Store::reservation) is called. A store that cannot settle calls returns none.
    ///
    /// A cost of 0 is always allowed and charges nothing. `context` holds the algorithm and the clock.
    fn acquire(context: &Arc<Context<A, Self>>, key: &K, call: Attempt<'_, A>) -> Acquired<Self::Wait>;

    /// Returns the permit of a call that waited and was admitted, for algorithms that [need a
    /// release](Algorithm::needs_release). Called once. The default returns an empty permit.
    fn permit(_wait: Pin<&mut Self::Wait>) -> Permit {
        Permit::default()
    }

    /// Returns the reservation of a call that waited and was admitted, if it
    /// [asked](Attempt::wants_reservation) for one and can be settled. Called once. The default returns `None`,
    /// so that the charge stands.
    fn reservation(_wait: Pin<&mut Self::Wait>) -> Option<Reservation> {
        None
    }
}

/// A call on a key: its cost, and how it may be admitted.
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
    /// Creates a call of `cost` units with the limiter's algorithm.
    #[must_use]
    pub fn new(cost: u64) -> Self {
        Self { cost, algorithm: None, priority: false, may_wait: false, max_wait: u64::MAX, reserves: false }
    }

    pub(crate) fn with(cost: u64, algorithm: Option<&'a A>, priority: bool) -> Self {
        Self { algorithm, priority, ..Self::new(cost) }
    }

    /// Lets the call wait, even if the algorithm is not configured to queue calls.
    #[must_use]
    pub fn wait(self) -> Self {
        Self { may_wait: true, ..self }
    }

    /// Sets the maximum time that the call waits.
    #[must_use]
    pub fn with_max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: Nanos::from(max_wait).0, ..self }
    }

    /// Gives the call priority.
    #[must_use]
    pub fn with_priority(self) -> Self {
        Self { priority: true, ..self }
    }

    /// Sets another algorithm than the limiter's.
    #[must_use]
    pub fn with_algorithm(self, algorithm: &'a A) -> Self {
        Self { algorithm: Some(algorithm), ..self }
    }

    /// Asks for a [`Reservation`], so that the call can be settled.
    #[must_use]
    pub fn with_reservation(self) -> Self {
        Self { reserves: true, ..self }
    }

    /// Returns the number of units that the call costs.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns whether the call has priority: an algorithm may queue it where others are denied.
    #[must_use]
    pub fn has_priority(&self) -> bool {
        self.priority
    }

    /// Returns whether the call waits even if the algorithm is not configured to queue calls.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Returns the maximum time that the call waits; `None` if only the algorithm limits it.
    #[must_use]
    pub fn max_wait(&self) -> Option<Duration> {
        (self.max_wait < u64::MAX).then(|| Duration::from_nanos(self.max_wait))
    }

    /// Returns whether the call asks for a [`Reservation`].
    #[must_use]
    pub fn wants_reservation(&self) -> bool {
        self.reserves
    }

    /// Returns the call's algorithm, if it is not the limiter's.
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

/// A decision, or the future of one.
#[derive(Debug)]
pub enum Acquired<W> {
    /// The call was decided immediately.
    Ready(Decision),
    /// The call was admitted immediately, and holds a permit until it is over.
    Held(Decision, Permit),
    /// The call was admitted immediately; its cost can be settled later.
    Reserved(Decision, Reservation),
    /// The call is yet to be decided.
    Pending(W),
}
