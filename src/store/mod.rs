//! The stores, which contain the state of keys, and the contract of a store.
//!
//! A [`Store`] promises three things, and an [`Algorithm`] relies on them:
//!
//! 1. **Exclusive access.** One call at a time changes the state of a key. No admission is computed from state that
//!    another call is changing.
//! 2. **Removal changes no decision.** The state of a key may be dropped only when the algorithm reports that the state
//!    is [fresh](Algorithm::is_fresh). If the store is full, a documented policy may drop other states: for the
//!    [`MemoryStore`], this policy is [`OnFull`].
//! 3. **All or nothing.** A call that is denied charges nothing. In a store that makes its decisions in the process,
//!    such as the [`MemoryStore`], a call that is cancelled while it is queued charges nothing either. [`Store::Wait`]
//!    says what other stores promise.
//!
//! # A store of your own
//!
//! A store implements a trait only if it supports the methods of that trait. Calls of unsupported methods do not
//! compile:
//!
//! | trait | what a store with this trait supports |
//! |---|---|
//! | [`Store`] and [`KeyedStore`] | layers, and [`RateLimiter::algorithm`](crate::limiter::RateLimiter::algorithm) |
//! | [`CheckStore`] | `check`, `peek`, `refund`, `reset`, `acquire` and permits of a [`RateLimiter`](crate::limiter::RateLimiter) |
//! | [`ReleaseStore`] | [`release`](crate::limiter::RateLimiter::release) |
//! | [`SettleStore`] | [`RateLimitLayer::settle`](crate::middleware::RateLimitLayer::settle) |
//! | [`ReplaceAlgorithm`] | [`replace`](crate::limiter::RateLimiter::replace) |
//! | [`CloseStore`] | [`close`](crate::limiter::RateLimiter::close) |
//! | [`MakeStore`] | [`Builder::store`](crate::limiter::Builder::store), which passes the algorithm and the clock to the store |
//!
//! The [`MemoryStore`], which every limiter has by default, decides immediately, except for calls that are queued. It
//! requires only that a key has a [prefix-free](crate::key::KeyExtractor::Key) `Hash`. A store on other machines
//! requires a key that can be written as a string which is the same on all machines: see [`SharedKey`]. std's `Hash`
//! may differ between machines.

mod attempt;
pub(crate) mod joint;
pub(crate) mod memory;
pub(crate) mod reservation;
mod shared_key;

use std::borrow::Cow;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::clock::AnyClock;
use crate::decision::Decision;
use crate::stats::{CallCounts, StoreStats};

pub(crate) use crate::error::BoxError;
pub use attempt::Attempt;
pub(crate) use joint::{AllDecisions, Decided, Few, JointKind, JointOutcome, JointStore};
pub(crate) use memory::OnClose;
pub use memory::{MemoryStore, OnFull};
pub use reservation::{Denied, Permit, Reservation};
pub use shared_key::{KeySecret, KeyText, KeyWriter, SharedKey};

// These items occur in the signatures of stores and limiters.
#[doc(hidden)]
pub use self::{
    memory::{KeyId, MemoryKey, MemoryOptions, QueuedAcquire},
    shared_key::KeyedHash,
};

/// A store keeps the state of keys, and lets one call at a time change the state of a key.
///
/// The [module documentation](self) states the contract. A store contains its algorithm and its clock. The clones of a
/// store share their state, as the clones of a database client do.
pub trait Store<A: Algorithm>: Clone + Send + Sync + 'static {
    /// The identity of a key in this store. [`KeyedStore`] creates it.
    type Key: Send + 'static;

    /// The error of a store that could not decide. A denial is no error.
    type Error: Into<BoxError>;

    /// The future of a decision that comes later: from another machine, or after a wait in a queue. The reservation of
    /// a denied call is empty.
    ///
    /// Cancel safety: if the future is dropped before it is ready, its call must leave the queue, and the permit of the
    /// call must be released. A store that replies later may already have charged such a call, since the command may
    /// have been sent. A store that decides immediately charges nothing for a call that is dropped while it is queued.
    type Wait: Future<Output = Result<(Decision, Reservation), Self::Error>> + Send + 'static;

    /// Returns the current algorithm: borrowed if it is the one with which the store was created, and owned if it is a
    /// replacement.
    fn algorithm(&self) -> Cow<'_, A>;

    /// Charges `key` with the cost of `attempt`, in full or not at all. If the algorithm can queue calls, the call may
    /// be queued. This requires that the call [may wait](Attempt::may_wait), or that the algorithm [queues the requests
    /// of a layer](crate::algorithm::QueueConfig::holds_requests). The call waits at most for its
    /// [`max_wait`](Attempt::max_wait), and at most for the maximum wait of the algorithm.
    ///
    /// If the algorithm [needs a release](Algorithm::NEEDS_RELEASE), the decision on an admitted call comes with a
    /// reservation made by [`Reservation::on_release`]. The function given to `on_release` must
    /// [release](Algorithm::release) the units of the call and drop the call's
    /// [`SharedPermit`](crate::algorithm::SharedPermit). With any other algorithm, if the call [asks for a
    /// reservation](Attempt::wants_reservation), a [`SettleStore`] returns the decision on an admitted call together
    /// with a reservation made by [`Reservation::on_settle`].
    ///
    /// If the attempt has [its own algorithm](Attempt::algorithm), that algorithm decides the call.
    ///
    /// A call with a cost of 0 should be admitted, and must not be charged.
    fn acquire(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Acquired<Self::Wait>;

    /// Returns what the store has counted. By default, all counts are zero.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    /// `true` if the counters that [`new_counts`](Self::new_counts) returns belong to the store, so that the store must
    /// not count the calls of layers again. Each call of such a store that is not decided at once is queued.
    #[doc(hidden)]
    const OWNS_COUNTS: bool = false;

    /// `false` if the store decides each call in this process, so that no call fails. The metrics of its policies then
    /// contain nothing about a server.
    #[doc(hidden)]
    const CAN_FAIL: bool = true;

    /// Creates the counters of a policy, in which its layer counts.
    #[doc(hidden)]
    fn new_counts(&self) -> Arc<CallCounts> {
        Arc::default()
    }
}

/// A store that can identify keys of type `K`.
///
/// A layer uses [`StoreKey`](crate::key::StoreKey)s as keys, so a store for layers must implement this trait for
/// `StoreKey<K>`, or for all types of keys.
#[diagnostic::on_unimplemented(
    message = "`{K}` cannot be a key of the store `{Self}`",
    note = "a store in memory takes any key that implements `Hash`"
)]
pub trait KeyedStore<A: Algorithm, K: ?Sized>: Store<A> {
    /// Returns the identity of `key`. Keys that are not equal must have different identities.
    fn key(&self, key: &K) -> Self::Key;
}

/// A store whose [`RateLimiter`](crate::limiter::RateLimiter) can be used directly, without a layer.
///
/// If a store decides immediately, its reply is the value itself: `Reply<T> = T`. A store that replies later returns a
/// future, such as `Reply<T> = Pin<Box<dyn Future<Output = Result<T, Self::Error>> + Send>>`. Code that is generic over
/// the store cannot rely on the type of the reply.
pub trait CheckStore<A: Algorithm>: Store<A> {
    /// The reply of a method whose result is a `T`: the `T` itself, or a future of an [`Output`](CheckStore::Output).
    type Reply<T: Send + 'static>;

    /// The output of a future whose result is a `T`: the `T` itself, or a `Result<T, Self::Error>` if the store can
    /// fail.
    type Output<T>;

    /// Converts a result into an output.
    fn output<T>(result: Result<T, Self::Error>) -> Self::Output<T>;

    /// Charges `key` with the cost of `attempt`, in full or not at all. Never waits in a queue. If the algorithm [needs
    /// a release](Algorithm::NEEDS_RELEASE), an admitted call stays in progress until it is
    /// [released](ReleaseStore::release).
    fn check(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Self::Reply<Decision>;

    /// Charges as [`check`](CheckStore::check) does. Returns a permit with the [reservation](Permit::decided) of an
    /// admitted call. Never waits in a queue.
    fn try_acquire_permit(
        &self,
        key: Self::Key,
        attempt: Attempt<'_, A>,
    ) -> Self::Reply<Result<Permit, Denied>>;

    /// Returns a decision that tells whether [`check`](CheckStore::check) would admit the call. Charges nothing.
    /// [`RateLimiter::peek`](crate::limiter::RateLimiter::peek) describes the decision.
    fn peek(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Self::Reply<Decision>;

    /// Refunds up to `cost` units that were charged to the key and still count.
    fn refund(&self, key: Self::Key, cost: u64) -> Self::Reply<()>;

    /// Resets the key to the state of a new key, except that calls in progress stay counted.
    fn reset(&self, key: Self::Key) -> Self::Reply<()>;
}

/// A store that can end calls that were admitted without a permit.
pub trait ReleaseStore<A: Algorithm>: CheckStore<A> {
    /// Releases the units that `attempt` costs. See [`RateLimiter::release`](crate::limiter::RateLimiter::release).
    fn release(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Self::Reply<()>;
}

/// A store that returns a [`Reservation::on_settle`] with admitted calls that [ask for a
/// reservation](Attempt::wants_reservation).
pub trait SettleStore<A: Algorithm>: Store<A> {}

/// A store whose algorithm can be replaced while calls are made.
pub trait ReplaceAlgorithm<A: Algorithm>: Store<A> {
    /// Replaces the algorithm for all keys. [`Algorithm::migrate`] converts the state of each key.
    fn replace(&self, algorithm: A);
}

/// A store that can be closed.
pub trait CloseStore<A: Algorithm>: Store<A> {
    /// Denies all queued calls. Also denies all later calls with a cost above 0, unless the store was configured to
    /// admit later calls. See [`RateLimiter::close`](crate::limiter::RateLimiter::close).
    fn close(&self);
}

/// A maker of a limiter's store, which creates the store from the settings of the limiter.
/// [`Builder::store`](crate::limiter::Builder::store) takes such a maker.
pub trait MakeStore<A: Algorithm> {
    /// The store.
    type Store: Store<A>;

    /// The error for settings that the store cannot work with. The text of the error says what to change.
    type Error: Error;

    /// Creates the store.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot work with these settings.
    fn make_store(self, settings: StoreSettings<A>) -> Result<Self::Store, Self::Error>;
}

/// The settings of a limiter, for its store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreSettings<A> {
    /// The algorithm that decides calls.
    pub algorithm: A,
    /// The clock of the limiter.
    pub clock: AnyClock,
    /// The name of the limiter, if one was set.
    pub name: Option<String>,
}

impl<A> StoreSettings<A> {
    /// Creates the settings of a limiter with the default clock and no name.
    #[must_use]
    pub fn new(algorithm: A) -> Self {
        Self { algorithm, clock: AnyClock::default(), name: None }
    }
}

/// A decision, or the future of one.
#[derive(Debug)]
#[must_use = "an admitted call that is dropped releases what it holds"]
pub enum Acquired<W> {
    /// The call was decided immediately. The reservation of a denied call is empty.
    Ready(Decision, Reservation),
    /// The call is not decided yet. The value is the future of the decision.
    Pending(W),
}
