//! What a layer needs of a limiter, and what a limiter returns.

use std::future::Future;
use std::sync::Arc;

use super::attempt::Attempt;
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
    note = "an algorithm becomes one by `RateLimiter::new(algorithm)`, a builder by `.build()`, and a reference by `.clone()`"
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

    /// Returns what a layer reports of the current algorithm. It is not called for each request.
    fn info(&self) -> Arc<AlgorithmInfo>;

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
    /// Charges `key` with the cost of `attempt`, in full or not at all. If the algorithm can queue calls, the call may
    /// be queued. This requires that the call [may wait](Attempt::may_wait), or that the algorithm [queues the requests
    /// of a layer](crate::algorithm::QueueConfig::holds_requests). The call waits at most for its
    /// [`max_wait`](Attempt::max_wait), and at most for the maximum wait of the algorithm.
    ///
    /// If the algorithm [needs a release](Algorithm::NEEDS_RELEASE), the decision on an admitted call comes with a
    /// reservation made by [`Reservation::on_release`]. The function given to `on_release` must release the units of the
    /// call, by `Algorithm::release`, and drop the call's
    /// [`SharedPermit`](crate::algorithm::SharedPermit). With any other algorithm, if the call [asks for a
    /// reservation](Attempt::wants_reservation), a limiter that [settles](Settles) returns the decision on an admitted
    /// call together with a reservation made by [`Reservation::on_settle`].
    ///
    /// If the attempt has [its own algorithm](Attempt::algorithm), that algorithm decides the call.
    ///
    /// A call with a cost of 0 should be admitted, and must not be charged.
    fn acquire(&self, key: &K, attempt: Attempt<'_, Self::Algorithm>) -> Acquired<Self::Wait>;
}

/// A limiter that returns a [`Reservation::on_settle`] with admitted calls that [ask for a
/// reservation](Attempt::wants_reservation).
pub trait Settles: Limiter {}

/// A decision, or the future of one.
#[derive(Debug)]
#[must_use = "an admitted call that is dropped releases what it holds"]
pub enum Acquired<W> {
    /// The call was decided immediately, by the algorithm that the caller [knows](Attempt::knows). The reservation of a
    /// denied call is empty.
    Ready(Decision, Reservation),
    /// The call was decided immediately, by an algorithm that the caller does not know, because the algorithm of the
    /// limiter was replaced. The decision comes [with the info](Decided::with_info) of that algorithm.
    Replaced(Box<Decided>),
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
    /// The info of the limiter's algorithm at the time of the decision. `None` if the caller [knows](Attempt::knows) it.
    info: Option<Arc<AlgorithmInfo>>,
}

impl<W> Acquired<W> {
    /// Returns the decision on a call that was decided immediately, while `info` was the info of the limiter's
    /// algorithm.
    #[inline]
    pub(super) fn by<A: Algorithm>(
        info: &Arc<AlgorithmInfo>,
        call: &Attempt<'_, A>,
        decision: Decision,
        reservation: Reservation,
    ) -> Self {
        match call.knows(info) {
            true => Self::Ready(decision, reservation),
            false => {
                Self::Replaced(Box::new(Decided::new(decision, reservation).with_info(Arc::clone(info))))
            }
        }
    }
}

impl Decided {
    /// Creates a decision by the algorithm that the caller [knows](Attempt::knows).
    pub fn new(decision: Decision, reservation: Reservation) -> Self {
        Self { decision, reservation, info: None }
    }

    /// Sets the info of the limiter's algorithm at the time of the decision. A limiter whose algorithm can be replaced
    /// must set it if the caller does not [know](Attempt::knows) it.
    pub fn with_info(self, info: Arc<AlgorithmInfo>) -> Self {
        Self { info: Some(info), ..self }
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the decision, the reservation, and the info of the limiter's algorithm, which is `None` if the caller
    /// [knows](Attempt::knows) it.
    pub fn into_parts(self) -> (Decision, Reservation, Option<Arc<AlgorithmInfo>>) {
        (self.decision, self.reservation, self.info)
    }
}
