//! What the crate `tower-throttle-redis` needs beyond the public items. The two crates are released together, so nothing
//! in this module follows semantic versioning. A store of your own needs nothing of it.

use crate::algorithm::{Algorithm, Concurrency, StoredAlgorithm};
use crate::decision::Decision;
use crate::limiter::RateLimiter;
use crate::observe;
use crate::stats::CallStats;
use crate::store::{Attempt, MemoryKey, Reservation};

/// Returns whether an algorithm queues the requests of a layer.
pub use crate::algorithm::definition::holds_requests;
/// The steps of a script, which decides a call on a server.
pub use crate::algorithm::stored::{MAX_LOCALS, ScriptSteps, Step, StepKind};
/// The counts of the calls of a policy or a limiter, and the outcomes that are counted.
pub use crate::stats::CallCounts;
pub use crate::stats::counts::CallOutcome;
/// The parts of joint calls, and the decisions on them.
pub use crate::store::joint::{
    AllDecisions, AnyAlgorithm, Decided, Few, JointKind, JointOutcome, JointStore,
};
/// Joint calls in memory, by which a fallback decides.
pub use crate::store::memory::{JointRequest, JointWait, decide_in_memory};
/// A charge of a store, as a trait instead of a function.
pub use crate::store::reservation::{Charge, Lost};
/// Returns a random number that a caller cannot predict.
pub use crate::sys::random::random_u64;

/// Returns the counts as the docs of [`CallStats`] describe them.
#[must_use]
pub fn call_stats(counts: &CallCounts) -> CallStats {
    counts.stats()
}

/// Logs a warning for each quota with a burst that the algorithm does not use.
pub fn warn_of_bursts(algorithm: &impl Algorithm, name: &str) {
    algorithm.for_each_policy(&mut |policy| {
        if policy.ignores_burst() {
            observe::ignored_burst(Some(name), &policy);
        }
    });
}

/// Returns the reservation of a call with this charge.
pub fn reservation_of(charge: impl Charge + 'static) -> Reservation {
    Reservation::of(charge)
}

/// Returns an admission with the time until one more unit is available, in nanoseconds.
pub fn with_next(decision: Decision, nanos: u64) -> Decision {
    decision.with_next(nanos)
}

/// Returns the time until one more unit is available, of an admission that tells it, in nanoseconds.
#[must_use]
pub fn next(decision: Decision) -> Option<u64> {
    decision.next()
}

/// Returns a denial that was made because the queue was full.
pub fn with_queue_full(decision: Decision) -> Decision {
    decision.with_queue_full()
}

/// Returns a denial with another `retry_after`, in nanoseconds.
pub fn with_retry_after(decision: Decision, nanos: Option<u64>) -> Decision {
    decision.with_retry_after(nanos)
}

/// Returns the part of a limiter in memory in a joint call. The call is counted with those that are made without a
/// layer.
pub fn memory_part<'a, A: Algorithm, K: MemoryKey + ?Sized>(
    limiter: &'a RateLimiter<A>,
    key: &K,
    attempt: Attempt<'_, A>,
) -> JointRequest<'a> {
    limiter.store().direct_part(key, attempt)
}

/// Returns whether a denial was made while the key was locked out, so that the call must not be queued.
#[must_use]
pub fn is_barred(decision: &Decision) -> bool {
    decision.is_barred()
}

/// The kind of value that is kept for a key on another machine: a state or permits.
pub trait KeptAs: Algorithm {
    /// [`AsState`] or [`AsPermits`].
    type Kept;
}

/// The state of a [`StoredAlgorithm`] is kept.
#[derive(Debug)]
pub struct AsState;

/// The permits of a [`Concurrency`] are kept.
#[derive(Debug)]
pub struct AsPermits;

impl<A: StoredAlgorithm> KeptAs for A {
    type Kept = AsState;
}

impl KeptAs for Concurrency {
    type Kept = AsPermits;
}
