use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::clock::Nanos;

/// A call as it is passed to a limiter: the cost of the call, its algorithm and its options, such as the maximum wait.
#[derive(Debug)]
pub struct Attempt<'a, A> {
    pub(super) algorithm: Option<&'a A>,
    pub(super) options: CallOptions,
}

/// All that a limiter is told of a call, except the key and the algorithm of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallOptions {
    pub(super) cost: u64,
    pub(super) priority: bool,
    pub(super) may_wait: bool,
    /// The maximum wait in nanoseconds, or `u64::MAX` if the call sets none.
    pub(super) max_wait: u64,
    /// `true` if the call asks for a reservation, so that it can be settled.
    pub(super) reserves: bool,
    /// `true` if the policy of the call is in shadow mode, so that the layer forwards the call even if it is denied.
    in_shadow: bool,
}

impl<'a, A: Algorithm> Attempt<'a, A> {
    /// Creates a call of `cost` units with the limiter's algorithm.
    #[must_use]
    pub fn new(cost: u64) -> Self {
        let options = CallOptions {
            cost,
            priority: false,
            may_wait: false,
            max_wait: u64::MAX,
            reserves: false,
            in_shadow: false,
        };
        Self { algorithm: None, options }
    }

    /// Creates a call of `cost` units with its own algorithm, if it chose one.
    pub(super) fn of(cost: u64, algorithm: Option<&'a A>, priority: bool) -> Self {
        let mut options = Self::new(cost).options;
        options.priority = priority;
        Self { algorithm, options }
    }

    /// Returns whether the call can be denied by an earlier denial. This requires that the call has cost 1 and no
    /// priority, may not wait, and is decided by the limiter's own algorithm, whose denials must stand.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        let is_usual = self.options.cost == 1 && !self.options.priority && !self.options.may_wait;
        A::DENIALS_STAND && is_usual && self.algorithm.is_none()
    }

    /// Lets the call wait in a queue, even if the algorithm is not configured to queue the requests of a layer.
    #[must_use]
    pub fn wait(mut self) -> Self {
        self.options.may_wait = true;
        self
    }

    /// Sets the maximum time that the call waits.
    #[must_use]
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.options.max_wait = Nanos::from(max_wait).0;
        self
    }

    /// Gives the call priority.
    #[must_use]
    pub fn with_priority(mut self) -> Self {
        self.options.priority = true;
        self
    }

    /// Sets the algorithm that decides the call, instead of the limiter's.
    #[must_use]
    pub fn with_algorithm(self, algorithm: &'a A) -> Self {
        Self { algorithm: Some(algorithm), ..self }
    }

    /// Asks for a [`Reservation`](super::Reservation), so that the call can be settled.
    #[must_use]
    pub fn with_reservation(mut self) -> Self {
        self.options.reserves = true;
        self
    }

    /// Sets the policy of the call to shadow mode.
    #[must_use]
    pub fn with_shadow(mut self) -> Self {
        self.options.in_shadow = true;
        self
    }

    /// Returns whether the policy of the call is in shadow mode, so that the layer forwards the call even if it is
    /// denied.
    #[must_use]
    pub fn is_in_shadow(&self) -> bool {
        self.options.in_shadow
    }

    /// Returns the number of units that the call costs.
    #[inline]
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.options.cost
    }

    /// Returns whether the call has priority. Some algorithms queue a call with priority when they would deny any other
    /// call.
    #[inline]
    #[must_use]
    pub fn has_priority(&self) -> bool {
        self.options.priority
    }

    /// Returns whether the call may wait in a queue even if the algorithm is not configured to queue the requests of a
    /// layer.
    #[inline]
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.options.may_wait
    }

    /// Returns the maximum time that the call waits. Returns `None` if the call sets no maximum, so that only the
    /// algorithm bounds the wait.
    #[must_use]
    pub fn max_wait(&self) -> Option<Duration> {
        (self.options.max_wait < u64::MAX).then(|| Duration::from_nanos(self.options.max_wait))
    }

    /// Returns whether the call asks for a [`Reservation`](super::Reservation).
    #[inline]
    #[must_use]
    pub fn wants_reservation(&self) -> bool {
        self.options.reserves
    }

    /// Returns the call's own algorithm, or `None` if the limiter's algorithm decides the call.
    #[inline]
    #[must_use]
    pub fn algorithm(&self) -> Option<&'a A> {
        self.algorithm
    }
}

impl<A> Clone for Attempt<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Attempt<'_, A> {}
