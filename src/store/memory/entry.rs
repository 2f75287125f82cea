//! One key under its lock, and all operations on it.

use std::task::Waker;

use super::config::{OnClose, StoreConfig};
use super::fingerprint::Fingerprint;
use super::location::Location;
use super::shard::Queues;
use crate::algorithm::{Algorithm, Queueing};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Arrival, Enqueued, Fate, PollTurn, Queue, QueueView};

pub(super) struct KeyEntry<'a, A: Algorithm> {
    pub(super) key: Fingerprint,
    pub(super) algorithm: &'a A,
    /// The settings that apply to all keys.
    pub(super) config: &'a StoreConfig,
    pub(super) closed: bool,
    pub(super) state: &'a mut A::State,
    /// The queues of the shard. `None` in a shared bucket: no call is queued there.
    pub(super) queues: Option<&'a mut Queues<A>>,
    /// The wakers to wake once no lock is held: a waker may run any code.
    pub(super) wake: &'a mut Vec<Waker>,
}

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

/// A queue that is not empty, beside the state it draws on.
struct QueuedEntry<'a, A: Algorithm> {
    queueing: &'a dyn Queueing<A::State>,
    queue: &'a mut Queue<A::State>,
    state: &'a mut A::State,
    wake: &'a mut Vec<Waker>,
}

impl<A: Algorithm> QueuedEntry<'_, A> {
    fn release(&mut self, now: Nanos) {
        self.queue.release(self.queueing, self.state, now, self.wake);
    }
}

impl<A: Algorithm> KeyEntry<'_, A> {
    /// Charges `cost` units if they are available and no call waits for them.
    pub(super) fn check(&mut self, now: Nanos, cost: u64) -> Decision {
        if let Some(decision) = self.closed_decision(now, cost) {
            return decision;
        }
        let arrival = Arrival { may_wait: false, ..Arrival::new(now, cost) };
        let check = |entry: &mut Self| match entry.queued_entry() {
            Some(queued_entry) if queued_entry.queue.has_waiters() && cost > 0 => {
                let blocked = queued_entry
                    .queue
                    .view(queued_entry.queueing, queued_entry.state, now)
                    .deny_behind_queue(arrival);
                queued_entry.queueing.answer(queued_entry.state, now, cost, true, blocked)
            }
            _ => {
                let decision = entry.algorithm.check(entry.state, now, cost);
                if cost > 0 && decision.is_allowed() {
                    entry.commit_release();
                }
                let may_wait =
                    entry.queued_entry().is_some_and(|queued_entry| queued_entry.queue.has_waiters());
                if may_wait { decision.with_remaining_zero() } else { decision }
            }
        };
        self.with_tier(now, check, Decision::is_allowed)
    }

    /// Returns what [`check`](KeyEntry::check) would report. A peek releases no waiter.
    pub(super) fn peek(mut self, now: Nanos, cost: u64) -> Decision {
        if let Some(decision) = self.closed_decision(now, cost) {
            return decision;
        }
        let queue = self.queues.and_then(|queues| queues.get_mut(&self.key));
        let (Some(queueing), Some(queue)) = (self.algorithm.queueing(), queue) else {
            return self.algorithm.peek(self.state, now, cost);
        };
        let mut state = self.state.clone();
        // Waiters are released with the tier that they arrived with.
        let gone = queue.simulate_due(queueing, &mut state, now);
        let waited_in = gone < queue.waiting();
        if let Some(_before) = self.algorithm.switch_tier(&mut state, now) {
            queue.invalidate();
        }
        match (waited_in, cost) {
            (false, _) => self.algorithm.peek(&mut state, now, cost),
            (true, 0) => self.algorithm.peek(&mut state, now, 0).with_remaining_zero(),
            (true, _) => {
                let arrival = Arrival { may_wait: false, ..Arrival::new(now, cost) };
                let blocked = queue.view_after(queueing, &mut state, now, gone).deny_behind_queue(arrival);
                queueing.answer(&mut state, now, cost, false, blocked)
            }
        }
    }

    /// Charges `cost` units, or queues the call.
    pub(super) fn acquire(&mut self, arrival: Arrival) -> Enqueued {
        let Arrival { now, cost, .. } = arrival;
        if let Some(decision) = self.closed_decision(now, cost) {
            return Enqueued::Decided(decision);
        }
        let enter = |entry: &mut Self| {
            let Some(queueing) = entry.algorithm.queueing() else {
                return Enqueued::Decided(entry.algorithm.check(entry.state, now, cost));
            };
            let Some(queues) = &mut entry.queues else {
                // Calls are not queued in a shared bucket: its keys have no order.
                let arrival = Arrival { may_wait: false, ..arrival };
                return Enqueued::Decided(
                    match QueueView::empty(queueing, entry.state, &entry.config.waiting).decide(arrival) {
                        Fate::Decided(decision) => decision,
                        Fate::Waits | Fate::Full => unreachable!("it does not wait"),
                    },
                );
            };
            let waiting = &entry.config.waiting;
            match queues.get_mut(&entry.key) {
                Some(queue) => queue.try_enqueue(queueing, entry.state, arrival, entry.wake),
                None => match QueueView::empty(queueing, entry.state, waiting).decide(arrival) {
                    Fate::Decided(decision) => Enqueued::Decided(decision),
                    _ => {
                        let queue = queues.entry(entry.key).or_insert_with(|| Queue::new(waiting.clone()));
                        queue.try_enqueue(queueing, entry.state, arrival, entry.wake)
                    }
                },
            }
        };
        self.with_tier(now, enter, |entered| match entered {
            Enqueued::Decided(decision) => decision.is_allowed(),
            Enqueued::Queued(_) => true,
        })
    }

    /// Returns what [`acquire`](KeyEntry::acquire) would report, without charging anything.
    pub(super) fn preview(&mut self, arrival: Arrival) -> Preview {
        let Arrival { now, cost, .. } = arrival;
        if let Some(decision) = self.closed_decision(now, cost) {
            return Preview::of(decision);
        }
        let preview = |entry: &mut Self| {
            let Some(queueing) = entry.algorithm.queueing() else {
                return Preview::of(entry.algorithm.peek(entry.state, now, cost));
            };
            let may_wait = arrival.may_wait && entry.queues.is_some();
            let arrival = Arrival { may_wait, ..arrival };
            let mut view = match entry.queued_entry() {
                Some(queued_entry) => queued_entry.queue.view(queued_entry.queueing, queued_entry.state, now),
                None => QueueView::empty(queueing, entry.state, &entry.config.waiting),
            };
            match view.preview(arrival) {
                Fate::Decided(decision) => Preview::of(decision),
                Fate::Waits => Preview::Queue(view.admission(now, arrival.priority)),
                // The oldest waiter would be evicted.
                Fate::Full if view.drops_oldest() => Preview::Queue(view.admission(now, arrival.priority)),
                Fate::Full => Preview::of(view.preview_rejection(arrival)),
            }
        };
        self.with_tier(now, preview, |_| false)
    }

    /// Returns the location of the key.
    pub(super) fn location(&self) -> Location {
        match self.queues {
            Some(_) => Location::Own(self.key),
            None => Location::Shared(self.config.bucket(self.key)),
        }
    }

    /// Returns the algorithm, if an admitted call of `cost` holds something until it is released.
    pub(super) fn needs_release(&self, cost: u64) -> Option<A> {
        let holds = cost > 0 && self.algorithm.needs_release() && !self.closed;
        holds.then(|| self.algorithm.clone())
    }

    /// Returns the decision for a call if the limiter is closed.
    fn closed_decision(&mut self, now: Nanos, cost: u64) -> Option<Decision> {
        match self.config.on_close {
            _ if !self.closed || cost == 0 => None,
            OnClose::Reject => Some(Decision::closed(self.algorithm.policy().quota)),
            OnClose::Allow => Some(self.algorithm.peek(self.state, now, 0)),
        }
    }

    /// Runs `ask` under the call's tier: releases due waiters first and restores the previous tier if the call
    /// is denied.
    fn with_tier<R>(
        &mut self,
        now: Nanos,
        ask: impl FnOnce(&mut Self) -> R,
        is_admitted: impl FnOnce(&R) -> bool,
    ) -> R {
        self.release(now);
        let before = self.algorithm.switch_tier(self.state, now);
        if before.is_some() {
            self.invalidate();
        }
        let result = ask(self);
        if let Some(before) = before {
            self.invalidate();
            match is_admitted(&result) {
                // The last release was made with another tier.
                true => self.commit_release(),
                false => self.algorithm.restore_tier(self.state, now, before),
            }
        }
        self.release(now);
        result
    }

    /// Discards the queue's projection, since the state changed to another tier.
    fn invalidate(&mut self) {
        if let Some(queued_entry) = self.queued_entry() {
            queued_entry.queue.invalidate();
        }
    }

    /// Makes earlier releases final: they can no longer be undone.
    fn commit_release(&mut self) {
        if let Some(queued_entry) = self.queued_entry() {
            queued_entry.queue.commit_release();
        }
    }

    /// Polls a waiter. Also returns a waker that is no longer needed, to be dropped while no lock is held.
    pub(super) fn ask(mut self, now: Nanos, ticket: u64, waker: &Waker) -> (PollTurn, Option<Waker>) {
        self.with_queue(now, |queued_entry| {
            queued_entry.queue.ask(queued_entry.queueing, queued_entry.state, now, ticket, waker)
        })
    }

    /// Cancels a waiter. Returns its waker, to be dropped while no lock is held.
    pub(super) fn abandon(mut self, now: Nanos, ticket: u64) -> Option<Waker> {
        self.with_queue(now, |queued_entry| {
            queued_entry.queue.cancel(queued_entry.queueing, queued_entry.state, ticket, queued_entry.wake)
        })
    }

    pub(super) fn refund(mut self, now: Nanos, cost: u64) {
        let algorithm = self.algorithm;
        if cost == 0 {
            return;
        }
        self.refund_with(now, |state| algorithm.refund(state, now, cost));
    }

    /// Undoes a charge of `cost` made at `taken`, as far as it still counts.
    pub(super) fn undo(&mut self, now: Nanos, cost: u64, taken: Nanos) {
        let algorithm = self.algorithm;
        self.refund_with(now, |state| algorithm.undo(state, now, cost, taken));
    }

    /// Charges up to `cost` units, as far as they are available. None are if the key has a queue.
    pub(super) fn charge_saturating(&mut self, now: Nanos, cost: u64) {
        if !self.has_queue() {
            let room = self.algorithm.peek(self.state, now, 0).remaining();
            let _ = self.check(now, cost.min(room));
        }
    }

    fn refund_with(&mut self, now: Nanos, refund_with: impl FnOnce(&mut A::State)) {
        if !self.has_queue() {
            return refund_with(self.state);
        }
        self.with_queue(now, |queued_entry| {
            queued_entry.queue.commit_release();
            refund_with(queued_entry.state);
        });
    }

    /// Ends a call of `cost`.
    pub(super) fn end(self, now: Nanos, cost: u64) {
        self.algorithm.release(self.state, now, cost);
        self.on_released(now, cost);
    }

    /// Releases the waiters that a call of `cost` has held back. The call itself was ended with its own
    /// algorithm.
    pub(super) fn on_released(mut self, now: Nanos, cost: u64) {
        if let Some(queued_entry) = self.queued_entry() {
            queued_entry.queue.end(queued_entry.queueing, cost);
        }
        self.release(now);
    }

    /// Rejects all waiters.
    pub(super) fn close(mut self, now: Nanos) {
        self.release(now);
        let refusal = Decision::closed(self.algorithm.policy().quota);
        if let Some(queued_entry) = self.queued_entry() {
            queued_entry.queue.close(now, refusal, queued_entry.wake);
        }
        self.drop_empty_queue();
    }

    /// Releases all due waiters.
    pub(super) fn release(&mut self, now: Nanos) {
        if let Some(mut queued_entry) = self.queued_entry() {
            queued_entry.release(now);
            self.drop_empty_queue();
        }
    }

    /// Replaces the state, by a fresh one or that of another algorithm: earlier releases can no longer be
    /// undone, and due waiters are released.
    pub(super) fn replace_state(mut self, now: Nanos, change: impl FnOnce(&mut A::State)) {
        if !self.has_queue() {
            return change(self.state);
        }
        // Not `with_queue`: no waiter is released by the old state.
        if let Some(queued_entry) = self.queued_entry() {
            change(queued_entry.state);
            queued_entry.queue.commit_release();
        }
        self.release(now);
    }

    #[inline]
    fn has_queue(&self) -> bool {
        self.queues.as_ref().is_some_and(|queues| queues.contains_key(&self.key))
    }

    fn queued_entry(&mut self) -> Option<QueuedEntry<'_, A>> {
        let queue = self.queues.as_mut()?.get_mut(&self.key)?;
        Some(QueuedEntry { queueing: self.algorithm.queueing()?, queue, state: self.state, wake: self.wake })
    }

    /// Releases all due waiters, and again after `change`.
    #[cold]
    fn with_queue<R>(&mut self, now: Nanos, change: impl FnOnce(&mut QueuedEntry<'_, A>) -> R) -> R {
        let Some(mut queued_entry) = self.queued_entry() else {
            unreachable!("a key with queued calls is never evicted, nor is its queue removed")
        };
        queued_entry.release(now);
        let result = change(&mut queued_entry);
        queued_entry.release(now);
        self.drop_empty_queue();
        result
    }

    /// Removes the queue if it is empty.
    fn drop_empty_queue(&mut self) {
        if let Some(queues) = &mut self.queues
            && queues.get(&self.key).is_some_and(|queue| queue.len() == 0)
        {
            queues.remove(&self.key);
        }
    }
}
