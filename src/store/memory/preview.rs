//! The outcome that a call would have.

use super::entry::KeyEntry;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::queue::{Arrival, Fate, QueueView};

/// The outcome that a call would have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Preview {
    Admit(Decision),
    /// The call would be queued.
    Queue(Decision),
    Deny(Decision),
}

impl Preview {
    pub(super) fn decision(self) -> Decision {
        let (Self::Admit(decision) | Self::Queue(decision) | Self::Deny(decision)) = self;
        decision
    }

    fn of(decision: Decision) -> Self {
        match decision.is_allowed() {
            true => Self::Admit(decision),
            false => Self::Deny(decision),
        }
    }
}

impl<A: Algorithm> KeyEntry<'_, A> {
    /// Returns the outcome that [`acquire`](KeyEntry::acquire) would have. Charges nothing. Releases due waiters, as
    /// `acquire` does.
    pub(super) fn preview(&mut self, arrival: Arrival) -> Preview {
        let Arrival { now, cost, .. } = arrival;
        if let Some(decision) = self.closed_decision(now, cost) {
            return Preview::of(decision);
        }
        let (base, algorithm) = (self.base, self.algorithm());
        let Some(config) = algorithm.queue_config() else {
            return Preview::of(algorithm.peek(self.state, now, cost));
        };
        self.between_releases(now, |entry| {
            let may_wait = arrival.may_wait && entry.queues.is_some();
            let arrival = Arrival { may_wait, ..arrival };
            let waiting = &entry.config.waiting;
            let queue = entry.queues.as_mut().and_then(|queues| queues.get_mut(&entry.key));
            let mut view = match queue {
                Some(queue) => queue.view(base, algorithm, entry.state, now),
                None => QueueView::empty(algorithm, config, entry.state, waiting),
            };
            match view.preview(arrival) {
                Fate::Decided(decision) => Preview::of(decision),
                Fate::Waits => Preview::Queue(view.admission(now, arrival.priority)),
                // The call would be queued, and the oldest waiter would be dropped from the queue.
                Fate::Full if view.drops_oldest() => Preview::Queue(view.admission(now, arrival.priority)),
                Fate::Full => Preview::of(view.preview_rejection(arrival).with_queue_full()),
            }
        })
    }
}
