//! A locked key, and all operations on the key.

use std::collections::HashMap;
use std::task::Waker;

use super::fingerprint::{Fingerprint, IdentityBuildHasher, Location};
use super::options::{OnClose, StoreConfig};
use crate::algorithm::{Algorithm, holds_requests};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Arrival, Enqueued, Fate, Judged, PollTurn, Preview, Queue, QueueView};

/// The queues of the keys that have waiters.
pub(super) type Queues<A> = HashMap<Fingerprint, Queue<A>, IdentityBuildHasher>;

pub(super) struct KeyEntry<'a, A: Algorithm> {
    key: Fingerprint,
    /// The algorithm of the limiter.
    base: &'a A,
    /// The algorithm that the call chose. `None` if the call uses the limiter's algorithm.
    tier: Option<&'a A>,
    closed: bool,
    state: &'a mut A::State,
    /// The settings that apply to all keys.
    config: &'a StoreConfig,
    /// The queues of the shard. `None` if the key has no place of its own, for example because it shares a bucket.
    /// Calls are then not queued.
    queues: Option<&'a mut Queues<A>>,
    /// The wakers to wake once no lock is held, because a waker may run any code.
    wake: &'a mut Vec<Waker>,
}

/// A queue that is not empty, and the state of its key.
struct QueuedEntry<'a, A: Algorithm> {
    base: &'a A,
    queue: &'a mut Queue<A>,
    state: &'a mut A::State,
    wake: &'a mut Vec<Waker>,
}

impl<A: Algorithm> QueuedEntry<'_, A> {
    fn release(&mut self, now: Nanos) {
        self.queue.release(self.base, self.state, now, self.wake);
    }
}

impl<'a, A: Algorithm> KeyEntry<'a, A> {
    /// Creates the entry of a key without a place of its own. `base` is the algorithm of the limiter, and `tier` the one
    /// that the call chose. The wakers are appended to `wake`, and must be woken once no lock is held.
    #[inline]
    pub(super) fn new(
        key: Fingerprint,
        base: &'a A,
        tier: Option<&'a A>,
        closed: bool,
        state: &'a mut A::State,
        config: &'a StoreConfig,
        wake: &'a mut Vec<Waker>,
    ) -> Self {
        Self { key, base, tier, closed, state, config, queues: None, wake }
    }

    /// Gives the key a place of its own, in a shard with these queues.
    #[inline]
    pub(super) fn with_queues(self, queues: &'a mut Queues<A>) -> Self {
        Self { queues: Some(queues), ..self }
    }

    /// Returns the algorithm of the call.
    fn algorithm(&self) -> &'a A {
        self.tier.unwrap_or(self.base)
    }

    /// Charges `cost` units if they are available and no call is queued. Otherwise denies the call. Always allows a
    /// cost of 0. A closed limiter charges nothing, and its [`OnClose`] decides.
    #[inline]
    pub(super) fn check(&mut self, now: Nanos, cost: u64) -> Decision {
        if let Some(decision) = self.closed_decision(now, cost) {
            return decision;
        }
        match self.has_queue() {
            true => self.check_queued(now, cost),
            false => self.algorithm().check(self.state, now, cost),
        }
    }

    /// Like [`check`](KeyEntry::check), for a key with a queue.
    #[cold]
    fn check_queued(&mut self, now: Nanos, cost: u64) -> Decision {
        let algorithm = self.algorithm();
        self.with_queue(now, |queued| queued.queue.check(queued.base, algorithm, queued.state, now, cost))
    }

    /// Returns a decision that tells whether [`check`](KeyEntry::check) would admit a call now. Charges nothing, and
    /// releases no waiter.
    pub(super) fn peek(mut self, now: Nanos, cost: u64) -> Decision {
        if let Some(decision) = self.closed_decision(now, cost) {
            return decision;
        }
        let (base, algorithm) = (self.base, self.algorithm());
        let Some(queue) = self.queues.and_then(|queues| queues.get_mut(&self.key)) else {
            return algorithm.peek(self.state, now, cost);
        };
        queue.peek(base, algorithm, self.state.clone(), now, cost)
    }

    /// Charges the call, queues it, or denies it. A closed limiter neither charges nor queues, and its [`OnClose`]
    /// decides.
    pub(super) fn acquire(&mut self, arrival: Arrival) -> Enqueued {
        let (now, cost) = (arrival.now(), arrival.cost());
        if let Some(decision) = self.closed_decision(now, cost) {
            return Enqueued::Decided(decision);
        }
        let (base, tier, algorithm) = (self.base, self.tier, self.algorithm());
        let Some(config) = algorithm.queue_config() else {
            return Enqueued::Decided(algorithm.check(self.state, now, cost));
        };
        self.between_releases(now, |entry| {
            let waiting = entry.config.waiting();
            let Some(queues) = &mut entry.queues else {
                // Calls are not queued in a shared bucket, because the calls of its keys have no common order.
                let arrival = arrival.without_wait();
                return match QueueView::empty(algorithm, config, entry.state, waiting).try_admit(arrival) {
                    Fate::Decided(decision) => Enqueued::Decided(decision),
                    Fate::Waits(_) => unreachable!("it does not wait"),
                };
            };
            if let Some(queue) = queues.get_mut(&entry.key) {
                return queue.try_enqueue(base, tier, entry.state, arrival, entry.wake);
            }
            match QueueView::empty(algorithm, config, entry.state, waiting).try_admit(arrival) {
                Fate::Decided(decision) => Enqueued::Decided(decision),
                Fate::Waits(judged) => entry.open_queue(judged),
            }
        })
    }

    /// Queues a call that was judged to wait, while the key was locked and had no queue. The limiter is not closed.
    pub(super) fn enqueue(&mut self, judged: Judged) -> Enqueued {
        let now = judged.now();
        let enqueued = self.open_queue(judged);
        self.release(now);
        enqueued
    }

    /// Queues a call as the first of a new queue. The key must have a place of its own.
    fn open_queue(&mut self, judged: Judged) -> Enqueued {
        let Some(queues) = &mut self.queues else { unreachable!("without a place, no call waits") };
        let new = || Queue::new(self.config.waiting().clone());
        let queue = queues.entry(self.key).or_insert_with(new);
        queue.enqueue(self.base, self.tier, self.state, judged)
    }

    /// Returns the outcome that [`acquire`](KeyEntry::acquire) would have. Charges nothing. Releases due waiters, as
    /// `acquire` does.
    pub(super) fn preview(&mut self, arrival: Arrival) -> Preview {
        let (now, cost) = (arrival.now(), arrival.cost());
        if let Some(decision) = self.closed_decision(now, cost) {
            return Preview::of(decision);
        }
        let (base, algorithm) = (self.base, self.algorithm());
        let Some(config) = algorithm.queue_config() else {
            return Preview::of(algorithm.peek(self.state, now, cost));
        };
        self.between_releases(now, |entry| {
            let arrival = if entry.queues.is_some() { arrival } else { arrival.without_wait() };
            match entry.queues.as_mut().and_then(|queues| queues.get_mut(&entry.key)) {
                Some(queue) => queue.preview(base, algorithm, entry.state, arrival),
                None => {
                    QueueView::empty(algorithm, config, entry.state, entry.config.waiting()).preview(arrival)
                }
            }
        })
    }

    /// Returns whether the algorithm of the call queues the requests of a layer.
    pub(super) fn holds_requests(&self) -> bool {
        holds_requests(self.algorithm())
    }

    /// Returns the location of the key.
    pub(super) fn location(&self) -> Location {
        match self.queues {
            Some(_) => Location::Own(self.key),
            None => Location::Shared(self.config.bucket(self.key)),
        }
    }

    /// Returns the algorithm of the call if a call of `cost` holds units from its admission until it ends. Otherwise
    /// returns `None`.
    pub(super) fn algorithm_to_release(&self, cost: u64) -> Option<A> {
        let holds = cost > 0 && A::NEEDS_RELEASE && !self.closed;
        holds.then(|| self.algorithm().clone())
    }

    /// Returns the decision on a call if the limiter is closed and `cost` is above 0. Otherwise returns `None`.
    fn closed_decision(&mut self, now: Nanos, cost: u64) -> Option<Decision> {
        match self.config.on_close() {
            _ if !self.closed || cost == 0 => None,
            OnClose::Reject => Some(Decision::closed(self.algorithm().policy().quota)),
            OnClose::Allow => Some(self.algorithm().peek(self.state, now, 0)),
        }
    }

    /// Releases due waiters, runs `ask`, and releases due waiters again.
    fn between_releases<R>(&mut self, now: Nanos, ask: impl FnOnce(&mut Self) -> R) -> R {
        self.release(now);
        let result = ask(self);
        self.release(now);
        result
    }

    /// Polls a waiter. Also returns a waker that is no longer needed, which must be dropped while no lock is held.
    pub(super) fn ask(mut self, now: Nanos, ticket: u64, waker: &Waker) -> (PollTurn, Option<Waker>) {
        self.with_queue(now, |queued| queued.queue.ask(queued.base, queued.state, now, ticket, waker))
    }

    /// Cancels a waiter. Returns its waker, which must be dropped while no lock is held.
    pub(super) fn abandon(mut self, now: Nanos, ticket: u64) -> Option<Waker> {
        self.with_queue(now, |queued| {
            queued.queue.cancel(queued.base, queued.state, now, ticket, queued.wake)
        })
    }

    pub(super) fn refund(mut self, now: Nanos, cost: u64) {
        let algorithm = self.algorithm();
        self.refund_with(now, |state| algorithm.refund(state, now, cost));
    }

    /// Undoes a charge of `cost` units that was made at `charged_at`, as far as the charge still counts.
    pub(super) fn undo(&mut self, now: Nanos, cost: u64, charged_at: Nanos) {
        let algorithm = self.algorithm();
        self.refund_with(now, |state| algorithm.undo(state, now, cost, charged_at));
    }

    /// Charges `cost` units, or all available units if these are fewer. Charges nothing if the key has a queue.
    fn charge_saturating(&mut self, now: Nanos, cost: u64) {
        if !self.has_queue() {
            let room = self.algorithm().peek(self.state, now, 0).remaining();
            let _ = self.check(now, cost.min(room));
        }
    }

    fn refund_with(&mut self, now: Nanos, change: impl FnOnce(&mut A::State)) {
        if !self.has_queue() {
            return change(self.state);
        }
        self.with_queue(now, |queued_entry| {
            queued_entry.queue.commit_release();
            change(queued_entry.state);
        });
    }

    /// Returns whether a call that was just admitted can be settled. A call that needs a release gives back its units
    /// when it ends, and a closed limiter charges nothing. So neither kind of call is settled.
    pub(super) fn settles(&self) -> bool {
        !A::NEEDS_RELEASE && !self.closed
    }

    /// Returns the latest clock reading that the key has observed. Just after a call was admitted, this is the reading
    /// at which the call was charged.
    pub(super) fn last_update(&self) -> Nanos {
        self.algorithm().last_update(self.state)
    }

    /// Settles a call of `cost` units that was charged at `charged_at`, at its actual cost. Returns a decision that
    /// describes the key right after the settlement.
    pub(super) fn settle(
        &mut self,
        now: Nanos,
        cost: u64,
        charged_at: Nanos,
        actual: u64,
        priority: bool,
    ) -> Decision {
        if actual < cost {
            self.undo(now, cost - actual, charged_at);
        } else if actual > cost {
            self.charge_saturating(now, actual - cost);
        }
        let may_wait = self.holds_requests();
        self.preview(Arrival::new(now, 0).with_options(priority, may_wait, u64::MAX)).decision()
    }

    /// Releases `cost` units of the key's calls in progress, but at most those that they hold, so that the calls of
    /// other keys stay counted in the total. Returns the algorithm that released them, and their number.
    pub(super) fn end_held(self, now: Nanos, cost: u64) -> (A, u64) {
        let (algorithm, cost) = (self.algorithm().clone(), cost.min(self.algorithm().in_flight(self.state)));
        self.end(now, cost);
        (algorithm, cost)
    }

    /// Releases the `cost` units of a call that has ended, and then releases due waiters. The algorithm of the entry's
    /// call is the one that admitted the call that has ended.
    pub(super) fn end(self, now: Nanos, cost: u64) {
        self.algorithm().release(self.state, now, cost);
        self.on_released(now);
    }

    /// Releases due waiters after a call has ended, and the algorithm that admitted it has released its units.
    fn on_released(mut self, now: Nanos) {
        if let Some(queued_entry) = self.queued_entry() {
            queued_entry.queue.invalidate();
        }
        self.release(now);
    }

    /// Releases due waiters, and denies all other waiters.
    pub(super) fn close(mut self, now: Nanos) {
        self.release(now);
        let denial = Decision::closed(self.algorithm().policy().quota);
        if let Some(queued_entry) = self.queued_entry() {
            queued_entry.queue.close(now, denial, queued_entry.wake);
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

    /// Runs `change`, which resets the state or converts it to another algorithm. If the key has a queue, earlier
    /// releases then become final, and due waiters are released.
    pub(super) fn replace_state(mut self, now: Nanos, change: impl FnOnce(&mut A::State)) {
        if !self.has_queue() {
            return change(self.state);
        }
        // `with_queue` is not used here, because it would release waiters before the state is changed.
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
        Some(QueuedEntry { base: self.base, queue, state: self.state, wake: self.wake })
    }

    /// Releases due waiters, runs `change` on the queue, and releases due waiters again. The key must have a queue.
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
