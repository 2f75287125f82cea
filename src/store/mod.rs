//! The stores that hold the state of keys, and their contract.
//!
//! A [`Store`] promises three things, and an [`Algorithm`] relies on them:
//!
//! 1. **Exclusive access.** One call at a time changes the state of a key. No admission is computed from state that
//!    another call is changing.
//! 2. **Removal changes no decision.** State may be dropped only when the algorithm reports that the key is fresh. If
//!    the store is full, a documented policy may drop other state: for the [`MemoryStore`], this policy is [`OnFull`].
//! 3. **All or nothing.** A call that is denied has charged nothing. In a store that decides immediately, a call that is
//!    cancelled while it is queued has charged nothing either. [`Store::Wait`] says what other stores promise.
//!
//! # A store of your own
//!
//! The traits are small, so that a call of a method that a store does not support does not compile:
//!
//! | trait | what works with it |
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
//! requires only that a key has a [prefix-free](MemoryKey) `Hash`. A store on other machines also requires a stable
//! text form, [`SharedKey`]: neither a random seed nor std's `Hash` is the same on two machines. [`KeyText`] creates
//! the texts.

mod attempt;
pub(crate) mod memory;
mod permit;
#[cfg(feature = "redis")]
pub mod redis;
mod reservation;
pub(crate) mod shared_key;

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
pub(crate) use memory::{AllDecisions, JointOutcome, OnClose, decide as decide_joint};
pub(crate) use memory::{Decided, Few, JointRequest, JointWait};
#[doc(hidden)]
pub use memory::{KeyId, MemoryOptions, QueuedAcquire};
pub use memory::{MemoryKey, MemoryStore, OnFull};
pub use permit::{Denied, Permit};
pub use reservation::Reservation;
pub use shared_key::{KeySecret, KeyText, KeyWriter, KeyedHash, SharedKey};

/// Keeps the state of keys, and lets one call at a time change it.
///
/// The [module documentation](self) states the contract. A store has its algorithm and its clock, and its clones share
/// their state, as the clones of a database client do.
pub trait Store<A: Algorithm>: Clone + Send + Sync + 'static {
    /// The identity of a key in this store. [`KeyedStore`] creates it.
    type Key: Send + 'static;

    /// The error of a store that could not decide. A denial is no error.
    type Error: Into<BoxError>;

    /// A decision that comes later: from another machine, or after waiting in a queue. The reservation of a denied call is
    /// empty.
    ///
    /// Cancel safety: a future that is dropped before it is ready must leave no waiter behind, and must release the
    /// permit of its call. A store that replies later may have charged the units of such a call, since the request may
    /// have been sent already. A store that decides immediately charges nothing for a call that is dropped while it is
    /// queued.
    type Wait: Future<Output = Result<(Decision, Reservation), Self::Error>> + Send + 'static;

    /// Returns the current algorithm: borrowed if the store was created with it, owned if it is a replacement.
    fn algorithm(&self) -> Cow<'_, A>;

    /// Charges the units that `attempt` costs to `key`, all or none. If the algorithm can queue calls, the call may
    /// wait, provided that the call [asks to wait](Attempt::may_wait) or that the algorithm [holds
    /// requests](crate::algorithm::QueueConfig::holds_requests). The call waits at most for its
    /// [`max_wait`](Attempt::max_wait).
    ///
    /// If the algorithm [needs a release](Algorithm::NEEDS_RELEASE), an admitted call has a
    /// [`Reservation::on_release`], which [releases](Algorithm::release) the units of the key and drops the call's
    /// [`SharedPermit`](crate::algorithm::SharedPermit). Otherwise, an admitted call that [asks for a
    /// reservation](Attempt::wants_reservation) has a [`Reservation::on_settle`], if this is a [`SettleStore`].
    ///
    /// If the attempt has [its own algorithm](Attempt::algorithm), that algorithm decides the call.
    ///
    /// A cost of 0 is always allowed and charges nothing.
    fn acquire(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Acquired<Self::Wait>;

    /// Returns what the store has counted. The default is all zero.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    /// Creates the counters of a policy. By default, the layer counts calls in them, and the store does not.
    #[doc(hidden)]
    fn new_counts(&self) -> Arc<CallCounts> {
        Arc::default()
    }
}

/// A store that can identify keys of type `K`.
///
/// A layer uses [`StoreKey`](crate::key::StoreKey)s as keys, so a store for layers must implement this trait for
/// `StoreKey<K>`, or for any key.
#[diagnostic::on_unimplemented(
    message = "`{K}` cannot be a key of the store `{Self}`",
    note = "a store in memory takes any key that implements `Hash`"
)]
pub trait KeyedStore<A: Algorithm, K: ?Sized>: Store<A> {
    /// Returns the identity of `key`. Two keys that are not equal must have two identities.
    fn key(&self, key: &K) -> Self::Key;
}

/// A store whose [`RateLimiter`](crate::limiter::RateLimiter) can be used directly, without a layer.
///
/// A store that decides immediately replies with the value itself: `Reply<T> = T`. A store that replies later returns a
/// future, such as `Reply<T> = Pin<Box<dyn Future<Output = Result<T, Self::Error>> + Send>>`. Code that is generic over
/// the store knows nothing about the type of the reply.
pub trait CheckStore<A: Algorithm>: Store<A> {
    /// The reply of a method whose result is a `T`: the `T` itself, or a future of an [`Output`](CheckStore::Output).
    type Reply<T: Send + 'static>;

    /// The output of a future whose result is a `T`: the `T` itself, or a `Result<T, Self::Error>` if the store can
    /// fail.
    type Output<T>;

    /// Converts a result into an output.
    fn output<T>(result: Result<T, Self::Error>) -> Self::Output<T>;

    /// Charges the units that `attempt` costs to `key`, all or none. Never waits. An admitted call stays in progress
    /// until it is [released](ReleaseStore::release).
    fn check(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Self::Reply<Decision>;

    /// Charges as [`check`](CheckStore::check) does, and returns a permit that holds the
    /// [reservation](Permit::decided) of an admitted call. Never waits.
    fn try_acquire_permit(
        &self,
        key: Self::Key,
        attempt: Attempt<'_, A>,
    ) -> Self::Reply<Result<Permit, Denied>>;

    /// Returns what [`check`](CheckStore::check) would return, without charging anything.
    fn peek(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Self::Reply<Decision>;

    /// Refunds up to `cost` units that still count.
    fn refund(&self, key: Self::Key, cost: u64) -> Self::Reply<()>;

    /// Makes the key fresh, except that calls in progress stay counted.
    fn reset(&self, key: Self::Key) -> Self::Reply<()>;
}

/// A store that can end calls that were admitted without a permit.
pub trait ReleaseStore<A: Algorithm>: CheckStore<A> {
    /// Releases as many units as `attempt` costs. See [`RateLimiter::release`](crate::limiter::RateLimiter::release).
    fn release(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Self::Reply<()>;
}

/// A store that returns a [`Reservation::on_settle`] for each admitted call that asks for one.
pub trait SettleStore<A: Algorithm>: Store<A> {}

/// A store whose algorithm can be replaced while calls are made.
pub trait ReplaceAlgorithm<A: Algorithm>: Store<A> {
    /// Replaces the algorithm for all keys. [`Algorithm::migrate`] converts the state of each key.
    fn replace(&self, algorithm: A);
}

/// A store that can be closed.
pub trait CloseStore<A: Algorithm>: Store<A> {
    /// Denies all queued calls, and all later calls unless the store was configured to allow them. See
    /// [`RateLimiter::close`](crate::limiter::RateLimiter::close).
    fn close(&self);
}

/// Creates the store of a limiter from its settings. For [`Builder::store`](crate::limiter::Builder::store).
pub trait MakeStore<A: Algorithm> {
    /// The store.
    type Store: Store<A>;

    /// The error of settings that the store cannot work with. Its text says what to change.
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

/// A decision, or the future of one.
#[derive(Debug)]
#[must_use = "an admitted call that is dropped releases what it holds"]
pub enum Acquired<W> {
    /// The call was decided immediately. The reservation of a denied call is empty.
    Ready(Decision, Reservation),
    /// The call is yet to be decided.
    Pending(W),
}
