//! A locked key, and all operations on the key.

use std::collections::HashMap;
use std::task::Waker;

use super::fingerprint::{Fingerprint, IdentityBuildHasher};
use super::options::{OnClose, StoreConfig};
use super::queue::{Arrival, Enqueued, Fate, Judged, KeyQueue, PollTurn, Preview, Queue};
use crate::algorithm::{Algorithm, Lockout, charge_available, holds_requests, limit_of_new_key};
use crate::clock::Nanos;
use crate::decision::Decision;

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
    /// The queues of the shard.
    queues: &'a mut Queues<A>,
    /// The wakers to wake once no lock is held, because a waker may run any code.
    wake: &'a mut Vec<Waker>,
}

impl<'a, A: Algorithm> KeyEntry<'a, A> {
    /// Creates the entry of a key with this state, in a shard with these queues. `base` is the algorithm of the
    /// limiter, and `tier` the algorithm that the call chose. The wakers are appended to `wake`, and must be woken once
    /// no lock is held.
    #[inline]
    pub(super) fn new(
        key: Fingerprint,
        base: &'a A,
        tier: Option<&'a A>,
        closed: bool,
        (state, queues): (&'a mut A::State, &'a mut Queues<A>),
        config: &'a StoreConfig,
        wake: &'a mut Vec<Waker>,
    ) -> Self {
        Self { key, base, tier, closed, state, config, queues, wake }
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
        match self.with_queue(now, |queue| queue.check(now, cost)) {
            Some(decision) => decision,
            None => self.algorithm().check(self.state, now, cost),
        }
    }

    /// Returns a decision that tells whether [`check`](KeyEntry::check) would admit a call now. Charges nothing, and
    /// releases no waiter.
    pub(super) fn peek(mut self, now: Nanos, cost: u64) -> Decision {
        if let Some(decision) = self.closed_decision(now, cost) {
            return decision;
        }
        match self.change_queue(|queue| queue.peek(now, cost)) {
            Some(decision) => decision,
            None => self.algorithm().peek(self.state, now, cost),
        }
    }

    /// Charges the call, queues it, or denies it. A closed limiter neither charges nor queues, and its [`OnClose`]
    /// decides.
    pub(super) fn acquire(&mut self, arrival: Arrival) -> Enqueued {
        let (now, cost) = (arrival.now(), arrival.cost());
        if let Some(decision) = self.closed_decision(now, cost) {
            return Enqueued::Decided(decision);
        }
        let algorithm = self.algorithm();
        if let Some(enqueued) = self.with_queue(now, |queue| queue.try_enqueue(arrival)) {
            return enqueued;
        }
        let Some(queue) = algorithm.queue_config() else {
            return Enqueued::Decided(algorithm.check(self.state, now, cost));
        };
        match KeyQueue::without_queue(algorithm, queue, self.state, self.config.waiting()).try_admit(arrival)
        {
            Fate::Decided(decision) => Enqueued::Decided(decision),
            Fate::Waits(judged) => self.enqueue(judged),
        }
    }

    /// Queues a call as the first of a new queue. The call was judged to wait, while the key was locked and had no
    /// queue, and the limiter is not closed.
    pub(super) fn enqueue(&mut self, judged: Judged) -> Enqueued {
        let Self { key, base, tier, state, config, queues, wake, .. } = self;
        let queue = queues.entry(*key).or_default();
        let enqueued =
            KeyQueue::new(*base, *tier, state, queue, config.waiting(), wake).enqueue_first(judged);
        if queue.len() == 0 {
            queues.remove(key);
        }
        enqueued
    }

    /// Returns the outcome that [`acquire`](KeyEntry::acquire) would have. Charges nothing. Releases due waiters, as
    /// `acquire` does.
    pub(super) fn preview(&mut self, arrival: Arrival) -> Preview {
        let (now, cost) = (arrival.now(), arrival.cost());
        if let Some(decision) = self.closed_decision(now, cost) {
            return Preview::of(decision);
        }
        let algorithm = self.algorithm();
        if let Some(preview) = self.with_queue(now, |queue| queue.preview(arrival)) {
            return preview;
        }
        let Some(config) = algorithm.queue_config() else {
            return Preview::of(algorithm.peek(self.state, now, cost));
        };
        KeyQueue::without_queue(algorithm, config, self.state, self.config.waiting()).preview(arrival)
    }

    /// Returns whether the algorithm of the call queues the requests of a layer.
    pub(super) fn holds_requests(&self) -> bool {
        holds_requests(self.algorithm())
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
            OnClose::Reject => Some(Decision::closed(limit_of_new_key(self.algorithm()))),
            OnClose::Allow => Some(self.algorithm().peek(self.state, now, 0)),
        }
    }

    /// Polls a waiter. Also returns a waker that is no longer needed, which must be dropped while no lock is held.
    pub(super) fn ask(mut self, now: Nanos, ticket: u64, waker: &Waker) -> (PollTurn, Option<Waker>) {
        let asked = self.with_queue(now, |queue| queue.ask(now, ticket, waker)).flatten();
        asked.unwrap_or_else(|| {
            unreachable!(
                "a call stays in its queue until it is ready, and a key with a queue is never evicted"
            )
        })
    }

    /// Cancels a waiter. Returns its waker, which must be dropped while no lock is held.
    pub(super) fn abandon(mut self, now: Nanos, ticket: u64) -> Option<Waker> {
        self.with_queue(now, |queue| queue.cancel(now, ticket)).flatten()
    }

    pub(super) fn refund(mut self, now: Nanos, cost: u64) {
        let algorithm = self.algorithm();
        self.refund_with(now, |state| algorithm.refund(state, now, cost, None));
    }

    /// Undoes a charge of `cost` units that was made at `charged_at`, as far as the charge still counts.
    pub(super) fn undo(&mut self, now: Nanos, cost: u64, charged_at: Nanos) {
        let algorithm = self.algorithm();
        self.refund_with(now, |state| algorithm.refund(state, now, cost, Some(charged_at)));
    }

    /// Charges `cost` units after the fact, even if they are not available, but only up to the maximum debt. Waiters are
    /// then released later. Returns how many units were charged. A closed limiter charges nothing.
    pub(super) fn charge(&mut self, now: Nanos, cost: u64) -> u64 {
        if self.closed {
            return 0;
        }
        let (algorithm, max_debt) = (self.algorithm(), self.config.max_debt());
        let charge = |state: &mut A::State| match max_debt {
            // Without debt, a unit that is partly refilled stays, and a schedule moves only if its next time has come.
            0 => charge_available(algorithm, state, now, cost),
            _ => algorithm.charge(state, now, cost, max_debt),
        };
        if !self.has_queue() {
            return charge(self.state);
        }
        let charged = self.with_queue(now, |queue| match max_debt {
            // While calls wait, no units are available.
            0 if !queue.is_empty() => 0,
            _ => queue.charge(charge),
        });
        charged.unwrap_or(0)
    }

    fn refund_with(&mut self, now: Nanos, change: impl FnOnce(&mut A::State)) {
        if !self.has_queue() {
            return change(self.state);
        }
        self.with_queue(now, |queue| queue.change_state(change));
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
    /// describes the key right after the settlement, and how many units were charged in addition.
    pub(super) fn settle(
        &mut self,
        now: Nanos,
        cost: u64,
        charged_at: Nanos,
        actual: u64,
        priority: bool,
    ) -> (Decision, u64) {
        let mut charged = 0;
        if actual < cost {
            let algorithm = self.algorithm();
            self.refund_with(now, |state| algorithm.refund_settled(state, now, cost, actual, charged_at));
        } else if actual > cost {
            charged = self.charge(now, actual - cost);
        }
        let may_wait = self.holds_requests();
        let arrival = Arrival::new(now, 0).with_options(priority, may_wait, u64::MAX);
        (self.preview(arrival).decision(), charged)
    }

    /// Releases the `cost` units of a call that has ended, and then releases due waiters. The algorithm of the entry's
    /// call is the one that admitted the call that has ended.
    pub(super) fn end(mut self, now: Nanos, cost: u64) {
        self.algorithm().release(self.state, now, cost);
        if let Some(queue) = self.queue() {
            queue.invalidate();
        }
        self.release(now);
    }

    /// Releases due waiters, and denies all other waiters.
    pub(super) fn close(mut self, now: Nanos) {
        self.release(now);
        let denial = Decision::closed(limit_of_new_key(self.algorithm()));
        self.change_queue(|queue| queue.close(now, denial));
    }

    /// Releases all due waiters.
    pub(super) fn release(&mut self, now: Nanos) {
        self.change_queue(|queue| queue.release(now));
    }

    /// Runs `change`, which resets the state or converts it to another algorithm. If the key has a queue, earlier
    /// releases then become final, due waiters are released, and the others are woken to set their timers again.
    pub(super) fn replace_state(mut self, now: Nanos, change: impl FnOnce(&mut A::State)) {
        if !self.has_queue() {
            return change(self.state);
        }
        // `with_queue` is not used here, because it would release waiters before the state is changed.
        self.change_queue(|queue| {
            queue.change_state(change);
            queue.release(now);
            queue.reschedule(now);
        });
    }

    #[inline]
    fn has_queue(&self) -> bool {
        self.queues.contains_key(&self.key)
    }

    fn queue(&mut self) -> Option<&mut Queue<A>> {
        self.queues.get_mut(&self.key)
    }

    /// Runs `change` on the queue, between two releases of due waiters. Returns `None` if the key has no queue.
    #[inline]
    fn with_queue<R>(&mut self, now: Nanos, change: impl FnOnce(&mut KeyQueue<'_, A>) -> R) -> Option<R> {
        self.change_queue(|queue| {
            queue.release(now);
            let result = change(queue);
            queue.release(now);
            result
        })
    }

    /// Runs `change` on the queue, if the key has one, and removes the queue if it is empty then.
    #[inline]
    fn change_queue<R>(&mut self, change: impl FnOnce(&mut KeyQueue<'_, A>) -> R) -> Option<R> {
        let Self { key, base, tier, state, config, queues, wake, .. } = self;
        let queue = queues.get_mut(key)?;
        let result = change(&mut KeyQueue::new(base, *tier, state, queue, config.waiting(), wake));
        if queue.len() == 0 {
            queues.remove(key);
        }
        Some(result)
    }
}

impl<A: Algorithm> KeyEntry<'_, Lockout<A>> {
    /// Sets the rest of the key's lockout to `left` nanoseconds. Returns whether the key was locked out or had counted
    /// denials, and whether it is locked out now.
    pub(super) fn set_lockout(self, now: Nanos, left: u64) -> (bool, bool) {
        let (algorithm, mut was_and_is_set) = (self.base, (false, false));
        self.replace_state(now, |state| was_and_is_set = algorithm.set_lockout(state, now, left));
        was_and_is_set
    }
}
