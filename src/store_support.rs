//! What the crate `tower-throttle-redis` needs beyond the public items. The two crates are released together, so
//! nothing in this module follows semantic versioning. A limiter of your own needs nothing of it.

use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::limiter::{Attempt, KeyText, MemoryKey, RateLimiter, Reservation};

/// Returns whether an algorithm queues the requests of a layer.
pub use crate::algorithm::definition::holds_requests;
/// Returns the limit that decisions on a new key report.
pub use crate::algorithm::definition::limit_of_new_key;
/// The steps of a script, which decides a call on a server.
pub use crate::algorithm::stored::{MAX_LOCALS, ScriptSteps, Step, StepKind};
/// The parts of joint calls, and the decisions on them.
pub use crate::limiter::joint::{
    AllDecisions, AnyAlgorithm, Few, JointDecided, JointKind, JointLimiter, JointOutcome, Report,
};
/// Joint calls in memory, by which a fallback decides.
pub use crate::limiter::joint::{JointRequest, JointWait, decide_in_memory};
/// What is seen of a limiter by its name.
pub use crate::limiter::observed::Observed;
/// Returns the default number of calls that may wait for all keys together.
pub use crate::limiter::rate_limiter::default_max_queued;
/// Logs a warning for each burst that an algorithm does not use.
pub use crate::limiter::rate_limiter::warn_of_bursts;
/// A charge of a limiter, as a trait instead of a function.
pub use crate::limiter::reservation::{Charge, Charger, Lost};
/// A mistake that may go on, and when it is logged.
pub use crate::observe::Recurrence;
/// The counts of the calls of a policy or a limiter, and the outcomes that are counted.
pub use crate::stats::CallCounts;
/// The counts of the units that are charged or given back after the fact.
pub use crate::stats::UnitCounts;
pub use crate::stats::counts::CallOutcome;
/// Returns a random number that a caller cannot predict.
pub use crate::sys::random::random_u64;

/// Returns the reservation of a call with this charge.
pub fn reservation_of(charge: impl Charge + 'static) -> Reservation {
    Reservation::of(charge)
}

/// Returns the texts of keys with `end` appended to each, as it is.
pub fn with_end(text: KeyText, end: &str) -> KeyText {
    text.with_end(end)
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

/// Returns the part of a limiter in memory in a joint call.
pub fn memory_part<'a, A: Algorithm, K: MemoryKey + ?Sized>(
    limiter: &'a RateLimiter<A>,
    key: &K,
    attempt: Attempt<'_, A>,
) -> JointRequest<'a> {
    limiter.joint_part(key, attempt)
}

/// Returns whether a denial was made while the key was locked out, so that the call must not be queued.
#[must_use]
pub fn is_barred(decision: &Decision) -> bool {
    decision.is_barred()
}
