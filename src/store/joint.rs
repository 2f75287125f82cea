//! Calls of several limiters that are decided together: all of them are admitted, or none is.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Attempt, BoxError, KeyedStore, Reservation};
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::stats::CallCounts;

/// A store whose limiters can decide a call together with the limiters of other stores of the same kind. Only the
/// stores of this project implement the trait.
#[diagnostic::on_unimplemented(
    message = "the calls of a limiter with the store `{Self}` cannot be decided together with those of other limiters",
    note = "layers can be joined if all of them have their state in memory, or all of them in one `RedisStore`"
)]
pub trait JointStore<A: Algorithm, K: ?Sized>: KeyedStore<A, K> {
    /// The kind of the store.
    type Kind: JointKind;

    /// Creates the part of this limiter in a joint call. The part is counted in `counts`.
    fn joint_part<'a>(
        &'a self,
        key: &K,
        attempt: Attempt<'_, A>,
        counts: &'a Arc<CallCounts>,
    ) -> <Self::Kind as JointKind>::Part<'a>;
}

/// A kind of store. The limiters of stores of one kind can decide a call together.
pub trait JointKind {
    /// The part of one limiter in a joint call.
    type Part<'a>;

    /// The error of a joint call that could not be decided.
    type Error: Into<BoxError>;

    /// The future of the decisions on a joint call that is not decided immediately.
    type Wait: Future<Output = Result<AllDecisions, Self::Error>> + Send + 'static;

    /// `true` if the parts of limiters in shadow mode are decided together with the others. `false` if these limiters
    /// decide afterwards, one after another.
    const DECIDES_SHADOWS: bool;

    /// Decides all parts without waiting and without allocation. Calls `report` with the index and the decision of each
    /// limiter, except those from which the call is exempt. Returns whether all these limiters admit the call. Returns
    /// `None`, and changes nothing, if [`decide`](Self::decide) must decide instead.
    #[inline]
    fn decide_at_once(
        parts: &[Option<Self::Part<'_>>],
        _report: &mut dyn FnMut(usize, Decision),
    ) -> Option<bool> {
        parts.iter().all(Option::is_none).then_some(true)
    }

    /// Decides all parts. `None` stands for a limiter from which the call is exempt.
    fn decide(parts: Few<Option<Self::Part<'_>>>) -> JointOutcome<Self::Wait>;
}

/// The outcome of a joint decision. In [`AllDecisions`], `None` stands for a call that is not limited.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the outcome is matched where it is returned, and a box would be an allocation"
)]
pub enum JointOutcome<W> {
    /// All calls are decided.
    Ready(AllDecisions),
    /// A call waits. This future has the decisions.
    Pending(W),
}

/// The outcome of one of several calls.
#[derive(Debug)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// The algorithm that the call chose, if it chose one.
    pub algorithm: Option<AnyAlgorithm>,
    /// The permit of the call, or the charge of a call that can be settled. Empty if there is neither.
    pub reservation: Reservation,
    /// The units that the call has borrowed from the next window.
    pub borrowed: u64,
    /// `true` if the decision was made in shadow mode, so that it does not affect the other calls.
    pub is_shadow: bool,
}

/// The outcomes of several calls, with `None` for a call that is not limited.
pub type AllDecisions = Few<Option<Decided>>;

/// The algorithm that a call chose, with its type erased.
pub type AnyAlgorithm = Box<dyn Any + Send + Sync>;

/// A list with one entry for each policy of a layer. Up to four entries need no allocation.
pub type Few<T> = SmallVec<[T; 4]>;
