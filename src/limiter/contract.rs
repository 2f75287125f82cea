//! What a layer needs of a limiter, and what a limiter returns.

use std::future::Future;
use std::sync::Arc;

use super::attempt::Attempt;
use super::fingerprint::MemoryKey;
use super::reservation::Reservation;
use crate::algorithm::{Algorithm, AlgorithmInfo};
use crate::decision::Decision;
use crate::error::BoxError;
use crate::stats::LimiterStats;

/// A limiter as a layer uses it, whatever the type of its keys. See the [module documentation](super).
///
/// The clones of a limiter share their state, as the clones of a database client do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no limiter",
    note = "an algorithm becomes one by `RateLimiter::new(algorithm)`, a builder by `.build()`, and a reference by \
            `.clone()`"
)]
pub trait Limiter: Clone + Send + Sync + 'static {
    /// The algorithm that decides calls.
    type Algorithm: Algorithm;

    /// The error of a limiter that could not decide. A denial is no error.
    type Error: Into<BoxError>;

    /// The future of a decision that comes later: from another machine, or after a wait in a queue. The reservation of
    /// a denied call is empty.
    ///
    /// Cancel safety: if the future is dropped before it is ready, its call must leave the queue, and the permit of the
    /// call must be released. A limiter that decides later may already have charged such a call, since the command may
    /// have been sent. A limiter that decides immediately charges nothing for a call that is dropped while it is
    /// queued.
    type Wait: Future<Output = Result<Decided, Self::Error>> + Send + 'static;

    /// `true` if the limiter decides each call in this process. Then no call fails, so the metrics of its policies
    /// contain nothing about a server, and each call that is not decided at once is queued.
    #[doc(hidden)]
    const IS_LOCAL: bool = false;

    /// Returns the hash of a key for [`acquire_hashed`](LimiterFor::acquire_hashed), or 0 if the limiter needs none.
    /// A single policy hashes a key where the key is found. Joined policies do not call this method, except for a
    /// policy in shadow mode that is decided by itself. A limiter that overrides one of the two methods overrides both.
    #[doc(hidden)]
    #[inline(always)]
    fn hash_of<K: MemoryKey + ?Sized>(&self, _key: &K) -> u64 {
        0
    }

    /// Returns what a layer reports of the current algorithm. It is not called for each request.
    fn info(&self) -> Arc<AlgorithmInfo>;

    /// Returns the [generation](AlgorithmInfo::generation) of the [`info`](Self::info). A layer asks before each call,
    /// and takes the new info if the generation is another one than that of the info that it has.
    ///
    /// The default is 0, for a limiter whose algorithm is never replaced. A limiter whose algorithm can be replaced
    /// keeps the number in an atomic, and stores the new number last: once the new algorithm decides calls and `info`
    /// returns its info, which [`replaced_by`](AlgorithmInfo::replaced_by) has made. A limiter that forwards calls to
    /// another one forwards this method, too.
    #[inline]
    fn generation(&self) -> u64 {
        0
    }

    /// Returns what the limiter has counted.
    fn stats(&self) -> LimiterStats;

    /// Denies all queued calls, and all later calls with a cost above 0. See
    /// [`RateLimiter::close`](crate::RateLimiter::close).
    fn close(&self);

    /// Returns the name of the limiter, if it has one.
    fn name(&self) -> Option<&str> {
        None
    }
}

/// A limiter of keys of type `K`.
///
/// A layer uses [`StoreKey`](crate::key::StoreKey)s as keys, so a limiter for layers must implement this trait for
/// `StoreKey<K>`, or for all types of keys.
#[diagnostic::on_unimplemented(
    message = "`{K}` cannot be a key of the limiter `{Self}`",
    note = "a limiter in memory takes any key that implements `Hash`"
)]
pub trait LimiterFor<K: ?Sized>: Limiter {
    /// Charges `key` with the cost of `attempt`, in full or not at all. The call may be queued if the algorithm can
    /// queue calls, and the call [may wait](Attempt::may_wait) or the algorithm [queues the requests of a
    /// layer](crate::algorithm::QueueConfig::holds_requests). The call waits at most for its
    /// [`max_wait`](Attempt::max_wait), and at most for the maximum wait of the algorithm.
    ///
    /// If the algorithm [needs a release](Algorithm::NEEDS_RELEASE), the decision on an admitted call comes with a
    /// reservation made by [`Reservation::on_release`]. The function given to `on_release` must release the units of
    /// the call, by `Algorithm::release`, and drop the call's [`SharedPermit`](crate::algorithm::SharedPermit). With
    /// any other algorithm, if the call [asks for a reservation](Attempt::wants_reservation), a limiter that
    /// [settles](Settles) returns the decision on an admitted call together with a reservation made by
    /// [`Reservation::on_settle`].
    ///
    /// If the attempt has [its own algorithm](Attempt::algorithm), that algorithm decides the call.
    ///
    /// A call with a cost of 0 should be admitted, and must not be charged.
    fn acquire(&self, key: &K, attempt: Attempt<'_, Self::Algorithm>) -> Acquired<Self::Wait>;

    /// Calls [`acquire`](Self::acquire). `hash` is the [hash](Limiter::hash_of) of `key`. A limiter that needs only the
    /// hash does not read `key`.
    #[doc(hidden)]
    #[inline(always)]
    fn acquire_hashed(
        &self,
        key: &K,
        _hash: u64,
        attempt: Attempt<'_, Self::Algorithm>,
    ) -> Acquired<Self::Wait> {
        self.acquire(key, attempt)
    }
}

/// A limiter that returns a [`Reservation::on_settle`] with admitted calls that [ask for a
/// reservation](Attempt::wants_reservation).
pub trait Settles: Limiter {}

/// A decision, or the future of one.
#[derive(Debug)]
#[must_use = "an admitted call that is dropped releases what it holds"]
pub enum Acquired<W> {
    /// The call was decided immediately. The reservation of a denied call is empty.
    Ready(Decision, Reservation),
    /// The call is not decided yet. The value is the future of the decision.
    Pending(W),
}

/// A decision on a call, with the reservation of the call.
#[derive(Debug)]
#[must_use = "an admitted call that is dropped releases what it holds"]
pub struct Decided {
    /// The decision.
    decision: Decision,
    /// Empty if the call was denied, or if there is nothing to release and nothing to settle.
    reservation: Reservation,
}

impl Decided {
    /// Creates the decision on a call.
    pub fn new(decision: Decision, reservation: Reservation) -> Self {
        Self { decision, reservation }
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the decision and the reservation.
    pub fn into_parts(self) -> (Decision, Reservation) {
        (self.decision, self.reservation)
    }
}
