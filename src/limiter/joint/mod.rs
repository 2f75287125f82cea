//! Calls of several limiters that are decided together: all of them are admitted, or none is.

mod in_memory;

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;

use super::attempt::Attempt;
use super::contract::{Decided, LimiterFor};
use crate::decision::Decision;
use crate::error::BoxError;

pub(super) use in_memory::InMemory;
pub use in_memory::{JointRequest, JointWait, decide_in_memory};

/// A limiter that can decide a call together with other limiters of the same kind. Only the limiters of this project
/// implement the trait.
#[diagnostic::on_unimplemented(
    message = "the calls of the limiter `{Self}` cannot be decided together with those of other limiters",
    note = "layers can be joined if all of them are of `RateLimiter`s, or all of them of one `RedisStore`",
    note = "the layer of any other limiter, such as a `FairLimiter`, is applied by itself: the rate outside, the \
            `FairLimiter` inside"
)]
pub trait JointLimiter<K: ?Sized>: LimiterFor<K> {
    /// The kind of the limiter.
    type Kind: JointKind;

    /// Creates the part of this limiter in a joint call.
    fn joint_part<'a>(
        &'a self,
        key: &K,
        attempt: Attempt<'_, Self::Algorithm>,
    ) -> <Self::Kind as JointKind>::Part<'a>;
}

/// A kind of limiter. The limiters of one kind can decide a call together.
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

    /// Decides all parts. `None` stands for a limiter from which the call is exempt. May call `report` for each
    /// limiter, except those from which the call is exempt, instead of returning the outcomes. Does not replace any of
    /// the parts by `None`.
    fn decide(parts: &mut [Option<Self::Part<'_>>], report: &mut Report<'_>) -> JointOutcome<Self::Wait>;
}

/// A function that takes the index and the decision of a limiter.
pub type Report<'r> = dyn FnMut(usize, Decision) + 'r;

/// The outcome of a joint decision.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the outcome is matched where it is returned, and a box would be an allocation"
)]
pub enum JointOutcome<W> {
    /// All calls are decided, and their decisions were reported: `true` if all calls are admitted.
    Reported(bool),
    /// All calls are decided.
    Ready(AllDecisions),
    /// A call waits. This future has the decisions. The list contains the index of each limiter in whose queue the call
    /// is known to be.
    Pending(W, Few<usize>),
}

/// The outcome of one of several calls.
#[derive(Debug)]
pub struct JointDecided {
    /// The decision and the reservation of the call.
    pub decided: Decided,
    /// The algorithm that the call chose, if it chose one.
    pub algorithm: Option<AnyAlgorithm>,
    /// The units that the call has borrowed from the next window.
    pub borrowed: u64,
    /// `true` if the decision was made in shadow mode, so that it does not affect the other calls.
    pub is_shadow: bool,
}

/// The outcomes of several calls, with `None` for a call that is not limited.
pub type AllDecisions = Few<Option<JointDecided>>;

/// The algorithm that a call chose, with its type erased. It is shared, because a `clone` may run any code.
pub type AnyAlgorithm = Arc<dyn Any + Send + Sync>;

/// A list with one entry for each policy of a layer. Up to four entries need no allocation.
pub type Few<T> = SmallVec<[T; 4]>;
