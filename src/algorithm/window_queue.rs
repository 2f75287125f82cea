//! The queue of a window: calls wait until it has room.

/// Implements the queue of a [window](crate::algorithm::Window), which knows when it has room.
///
/// Calls are charged when they are admitted, not when they might have been: no more than the limit in any window,
/// however late a timer was.
macro_rules! impl_window_queue {
    ($window:ty, $state:ty) => {
        impl $crate::algorithm::Queueing<$state> for $window {
            fn queue_config(&self, _state: &$state) -> $crate::algorithm::QueueConfig {
                self.queue_config
            }

            fn capacity(&self, _state: &$state) -> u64 {
                self.limit()
            }

            fn at_once(&self, _state: &$state) -> u64 {
                self.limit()
            }

            fn fits(&self, _state: &$state, cost: u64) -> bool {
                cost <= self.limit()
            }

            fn turn(&self, state: &$state, cost: u64) -> Nanos {
                self.last_update(state).saturating_add(self.room_in(state, cost.min(self.limit())))
            }

            /// A call that costs more than the limit was made with another limit: it is admitted when the whole limit is
            /// available.
            fn is_due(&self, state: &$state, cost: u64) -> bool {
                self.room_in(state, cost.min(self.limit())) == 0
            }

            fn leave(&self, state: &mut $state, _arrived: Nanos, cost: u64) {
                let _ = self.check(state, self.last_update(state), cost.min(self.limit()));
            }

            fn take(&self, state: &mut $state, now: Nanos, cost: u64) -> Option<Decision> {
                Some(self.check(state, now, cost))
            }

            fn look(&self, state: &mut $state, now: Nanos, cost: u64) -> Option<Decision> {
                Some(self.peek(state, now, cost))
            }

            fn passing(&self, state: &$state, _observed: Nanos) -> u64 {
                self.left(state)
            }

            fn reset(&self, state: &$state, now: Nanos) -> u64 {
                self.last_update(state).saturating_add(self.reset_in(state)).saturating_since(now)
            }

            fn keep(&self, _state: &$state) -> Option<$state> {
                None
            }

            fn take_back(&self, state: &mut $state, cost: u64, released: Nanos) {
                self.withdraw(state, cost.min(self.limit()), released);
            }

            fn time(&self, state: &$state) -> Nanos {
                self.last_update(state)
            }

            fn observe(&self, state: &mut $state, now: Nanos) -> Nanos {
                let _ = self.peek(state, now, 0);
                self.last_update(state)
            }
        }
    };
}

pub(super) use impl_window_queue;
