//! Calls of several limiters that are decided together: all of them are admitted, or none is.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use super::memory::{JointRequest, JointWait, decide, decide_at_once};
use super::{AllDecisions, Attempt, BoxError, Few, JointOutcome, KeyedStore, MemoryKey, MemoryStore};
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

/// The kind of [`MemoryStore`].
#[derive(Debug)]
pub struct InMemory;

impl JointKind for InMemory {
    type Part<'a> = JointRequest<'a>;
    type Error = Infallible;
    type Wait = Box<JointWait>;

    const DECIDES_SHADOWS: bool = false;

    #[inline]
    fn decide_at_once(
        parts: &[Option<JointRequest<'_>>],
        report: &mut dyn FnMut(usize, Decision),
    ) -> Option<bool> {
        decide_at_once(parts, report)
    }

    #[inline]
    fn decide(parts: Few<Option<JointRequest<'_>>>) -> JointOutcome<Box<JointWait>> {
        decide(parts)
    }
}

impl<A: Algorithm, K: MemoryKey + ?Sized> JointStore<A, K> for MemoryStore<A> {
    type Kind = InMemory;

    #[inline]
    fn joint_part<'a>(
        &'a self,
        key: &K,
        attempt: Attempt<'_, A>,
        counts: &'a Arc<CallCounts>,
    ) -> JointRequest<'a> {
        self.part(key, attempt, counts)
    }
}
