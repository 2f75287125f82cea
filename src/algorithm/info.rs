//! What a layer knows of the algorithm of a limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::definition::{Algorithm, holds_requests};
use super::quota_policy::QuotaPolicy;

/// The data of a limiter's algorithm that a layer reports, or needs to know.
///
/// A limiter creates this value once for each algorithm: when the limiter is built, and when its algorithm is
/// [replaced](crate::limiter::RateLimiter::replace). A layer prepares header fields from the value, and asks for the
/// new value when the limiter's [generation](crate::limiter::Limiter::generation) differs.
#[derive(Debug)]
pub struct AlgorithmInfo {
    generation: u64,
    quotas: Box<[QuotaPolicy]>,
    holds_requests: bool,
    /// See [`longest_queueing`].
    queues_for: u64,
    /// The time that a request waits in a full queue for which no maximum wait is set, in nanoseconds. Zero if this
    /// time is unknown.
    longest_wait: u64,
    knows_priority: bool,
    /// `true` if the limiter has or had an algorithm that queues the requests of a layer. All algorithms of a limiter
    /// share it.
    may_queue: Arc<AtomicBool>,
}

impl AlgorithmInfo {
    /// Creates the value of the first algorithm of a limiter. Its [generation](Self::generation) is 0.
    pub fn of(algorithm: &impl Algorithm) -> Arc<Self> {
        Self::with(algorithm, 0, Arc::default())
    }

    /// Creates the value of the algorithm that replaces the one with this value. Its [generation](Self::generation) is
    /// the next one. The limiter must call this method before the new algorithm decides a call, because a layer then
    /// asks how long a request may be queued.
    pub fn replaced_by(&self, algorithm: &impl Algorithm) -> Arc<Self> {
        Self::with(algorithm, self.generation + 1, Arc::clone(&self.may_queue))
    }

    fn with(algorithm: &impl Algorithm, generation: u64, may_queue: Arc<AtomicBool>) -> Arc<Self> {
        let mut quotas = Vec::new();
        algorithm.for_each_policy(&mut |quota| quotas.push(quota));
        let holds_requests = holds_requests(algorithm);
        if holds_requests {
            may_queue.store(true, Ordering::Release);
        }
        Arc::new(Self {
            generation,
            longest_wait: longest_wait(algorithm, &quotas).unwrap_or(0),
            quotas: quotas.into(),
            holds_requests,
            queues_for: longest_queueing(algorithm),
            knows_priority: knows_priority(algorithm),
            may_queue,
        })
    }

    /// Returns the quotas that the algorithm reports: one, or those of all members of a tuple.
    #[must_use]
    pub fn quotas(&self) -> &[QuotaPolicy] {
        &self.quotas
    }

    /// Returns whether the algorithm [queues the requests of a layer](super::QueueConfig::holds_requests).
    #[must_use]
    pub fn holds_requests(&self) -> bool {
        self.holds_requests
    }

    /// Returns how long the algorithm queues the requests of a layer. See [`longest_queueing`].
    #[inline]
    pub(crate) fn queues_for(&self) -> u64 {
        self.queues_for
    }

    /// Returns the time that a request waits in a full queue for which no maximum wait is set. Zero if there is none,
    /// or if this time is unknown.
    pub(crate) fn longest_wait(&self) -> Duration {
        Duration::from_nanos(self.longest_wait)
    }

    /// Returns whether the limiter has or had an algorithm that [queues the requests of a
    /// layer](super::QueueConfig::holds_requests).
    #[inline]
    #[must_use]
    pub fn may_queue(&self) -> bool {
        self.may_queue.load(Ordering::Acquire)
    }

    /// Returns whether the algorithm treats calls with [priority](crate::algorithm#priority) differently from other
    /// calls.
    #[must_use]
    pub fn knows_priority(&self) -> bool {
        self.knows_priority
    }

    /// Returns how often the algorithm of the limiter was replaced before this one. See
    /// [`Limiter::generation`](crate::limiter::Limiter::generation).
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// Returns the time that a request waits in a full queue of an algorithm with these quotas, in nanoseconds. `None` if
/// the algorithm queues no requests or has a maximum wait, or if the time is unknown.
fn longest_wait(algorithm: &impl Algorithm, quotas: &[QuotaPolicy]) -> Option<u64> {
    let queue = algorithm.queue_config()?;
    let waits_on = queue.holds_requests() && queue.max_wait() == u64::MAX;
    let units = queue.max_priority_cost().unwrap_or(queue.places());
    quotas.iter().filter(|_| waits_on).filter_map(|quota| quota.time(units)).max()
}

/// Returns how long an algorithm queues the requests of a layer, whatever their priority, in nanoseconds: 0 if it
/// queues none, and `u64::MAX` if it has no maximum.
pub(crate) fn longest_queueing<A: Algorithm>(algorithm: &A) -> u64 {
    let queue = algorithm.queue_config().filter(|queue| holds_requests(algorithm) && queue.places() > 0);
    queue.map_or(0, |queue| queue.max_wait())
}

/// Returns whether an algorithm treats calls with priority differently from other calls.
pub(crate) fn knows_priority(algorithm: &impl Algorithm) -> bool {
    algorithm.queue_config().is_some_and(|queue| queue.is_priority_only())
}
