//! The queue of several limits at once.

use super::limits;
use crate::algorithm::clock_step::earliest_slot;
use crate::algorithm::{Algorithm, QueueConfig, Queueing, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// Returns the queue of a member of a tuple, which must have one.
fn queueing<A: Algorithm>(member: &A) -> &dyn Queueing<A::State> {
    match member.queueing() {
        Some(queueing) => queueing,
        None => unreachable!("a tuple has a queue if all its members have one"),
    }
}

macro_rules! impl_queueing {
    ($($part:ident $at:tt)+) => {
        /// A queue whose waiters are released once all members admit them.
        impl<$($part: Algorithm),+> Queueing<($($part::State,)+)> for ($($part,)+) {
            fn queue_config(&self, state: &($($part::State,)+)) -> QueueConfig {
                let all = [$(queueing(&self.$at).queue_config(&state.$at)),+];
                let [first, others @ ..] = all;
                others.into_iter().fold(first, QueueConfig::and)
            }

            fn capacity(&self, state: &($($part::State,)+)) -> u64 {
                u64::MAX$(.min(queueing(&self.$at).capacity(&state.$at)))+
            }

            fn at_once(&self, state: &($($part::State,)+)) -> u64 {
                u64::MAX$(.min(queueing(&self.$at).at_once(&state.$at)))+
            }

            fn bottleneck(&self, state: &($($part::State,)+), cost: u64) -> usize {
                let (mut before, mut latest) = (0, (Nanos::ZERO, 0));
                $(
                    let turn = queueing(&self.$at).turn(&state.$at, cost);
                    let index = before + queueing(&self.$at).bottleneck(&state.$at, cost);
                    // Of two alike, the first.
                    if turn > latest.0 {
                        latest = (turn, index);
                    }
                    before += limits(&self.$at);
                )+
                let _ = before;
                latest.1
            }

            fn fits(&self, state: &($($part::State,)+), cost: u64) -> bool {
                $(queueing(&self.$at).fits(&state.$at, cost))&&+
            }

            fn is_timed(&self) -> bool {
                $(queueing(&self.$at).is_timed())&&+
            }

            fn turn(&self, state: &($($part::State,)+), cost: u64) -> Nanos {
                Nanos::ZERO$(.max(queueing(&self.$at).turn(&state.$at, cost)))+
            }

            fn is_due(&self, state: &($($part::State,)+), cost: u64) -> bool {
                $(queueing(&self.$at).is_due(&state.$at, cost))&&+
            }

            /// Admits by each member's schedule, but not before all members admit it, nor more than a few ticks
            /// ago.
            fn leave(&self, state: &mut ($($part::State,)+), arrived: Nanos, cost: u64) {
                let (turn, seen) = (self.turn(state, cost), self.time(state));
                let due = turn.max(arrived).max(earliest_slot(seen)).min(seen);
                $(queueing(&self.$at).leave(&mut state.$at, due, cost);)+
            }

            /// Simulates the release. If its time is unknown, each member does so by itself.
            fn follow(&self, state: &mut ($($part::State,)+), arrived: Nanos, cost: u64) {
                let turn = self.turn(state, cost).max(self.time(state));
                if turn < Nanos::MAX {
                    self.observe(state, turn);
                    return self.leave(state, arrived, cost);
                }
                $(queueing(&self.$at).follow(&mut state.$at, arrived, cost);)+
            }

            fn join(&self, cost: u64) -> Option<SharedPermit> {
                let mut places = SharedPermit::default();
                $(places.merge(queueing(&self.$at).join(cost)?);)+
                Some(places)
            }

            fn take(&self, state: &mut ($($part::State,)+), now: Nanos, cost: u64) -> Option<Decision> {
                Some(self.check(state, now, cost))
            }

            fn look(&self, state: &mut ($($part::State,)+), now: Nanos, cost: u64) -> Option<Decision> {
                Some(self.peek(state, now, cost))
            }

            fn passing(&self, state: &($($part::State,)+), seen: Nanos) -> u64 {
                u64::MAX$(.min(queueing(&self.$at).passing(&state.$at, seen)))+
            }

            fn reset(&self, state: &($($part::State,)+), now: Nanos) -> u64 {
                0$(.max(queueing(&self.$at).reset(&state.$at, now)))+
            }

            fn keep(&self, state: &($($part::State,)+)) -> Option<($($part::State,)+)> {
                Some(($(queueing(&self.$at).keep(&state.$at)?,)+))
            }

            fn restore(&self, state: &mut ($($part::State,)+), before: ($($part::State,)+)) {
                $(queueing(&self.$at).restore(&mut state.$at, before.$at);)+
            }

            fn take_back(&self, state: &mut ($($part::State,)+), cost: u64, released: Nanos) {
                $(queueing(&self.$at).take_back(&mut state.$at, cost, released);)+
            }

            fn end(&self, state: &mut ($($part::State,)+), cost: u64) {
                $(queueing(&self.$at).end(&mut state.$at, cost);)+
            }

            fn time(&self, state: &($($part::State,)+)) -> Nanos {
                Nanos::ZERO$(.max(queueing(&self.$at).time(&state.$at)))+
            }

            fn observe(&self, state: &mut ($($part::State,)+), now: Nanos) -> Nanos {
                Nanos::ZERO$(.max(queueing(&self.$at).observe(&mut state.$at, now)))+
            }
        }
    };
}

impl_queueing!(A 0 B 1);
impl_queueing!(A 0 B 1 C 2);
impl_queueing!(A 0 B 1 C 2 D 3);
impl_queueing!(A 0 B 1 C 2 D 3 E 4);
