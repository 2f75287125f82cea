//! The store in memory.

mod fingerprint;
mod table;
mod wait;

use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use dashmap::mapref::one::RefMut;
use dashmap::{DashMap, Entry};

use self::fingerprint::{Direct, Fingerprint, Seed};
use self::table::{Seat, Table};
use super::{Answer, Store};
use crate::algorithm::{Algorithm, Line};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Entered, Outlook, Queue, Turn};
use crate::store::context::Context;

pub use wait::MemoryWait;

/// The state of keys in this process: bounded, and kept clean without a thread or a runtime.
///
/// # Guarantees
///
/// One call at a time changes a key. At most `max_keys` keys are kept. A key that is as good as new may be forgotten at any time,
/// which changes no answer while there is room.
///
/// When the table is full of keys that are not, newcomers **share** one of 256 buckets until there is a place; no key that has used
/// anything is pushed out. From then on, a key that gets a place (again) starts where its shared bucket stands: with what others
/// have used as well, never with more than it may have. A key that shares a bucket is refused where another would wait in line, and
/// [`reset`](crate::limiter::RateLimiter::reset) does not reach it.
///
/// # Memory
///
/// A key is kept as a 128-bit keyed fingerprint, so its length does not matter, and it cannot be read back. Per key: 16 bytes, the
/// algorithm's state (24 for a [`TokenBucket`](crate::algorithm::TokenBucket)) and 16 in the round of keys to look at. Tables grow by
/// doubling: count 60 to 120 bytes per key, so the default of 100,000 keys is 6 to 12 MB. Memory for keys
/// that were forgotten is used again, and not given back while the limiter lives.
///
/// Not promised: state outlives neither the process nor the last clone of its limiter.
#[derive(Debug)]
pub struct MemoryStore<A: Algorithm> {
    seed: Seed,
    table: Table<A>,
    /// The lines of the keys for which somebody waits. Locked before the key itself, never after.
    lines: DashMap<Fingerprint, Queue<A::State>, Direct>,
    /// How many lines there are. One is counted before its key is locked: so whoever holds a key and sees none may go on as if nobody
    /// waited for it.
    count: AtomicUsize,
}

/// The limiter of a memory store.
pub(super) type Own<A> = Context<A, MemoryStore<A>>;

impl<A: Algorithm> MemoryStore<A> {
    /// The number of keys kept by default.
    pub const DEFAULT_MAX_KEYS: usize = 100_000;

    /// A store of at most `max_keys` keys, 0 counts as 1, for a limiter with that algorithm.
    #[must_use]
    pub fn new(algorithm: &A, max_keys: usize) -> Self {
        let window = u64::try_from(algorithm.policy().window.as_nanos()).unwrap_or(u64::MAX);
        Self {
            seed: Seed::random(),
            table: Table::new(max_keys, window),
            lines: DashMap::with_hasher_and_shard_amount(Direct, 16),
            count: AtomicUsize::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(crate) fn check<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K, cost: u64) -> Decision {
        let key = self.seed.fingerprint(key);
        let algorithm = context.algorithm();
        if algorithm.line().is_none() {
            return self.table.with(context, key, |seat, now| algorithm.check(seat.state, now, cost));
        }
        let decided = self.table.with(context, key, |seat, now| match self.has_line(&key) {
            false => Some(algorithm.check(seat.state, now, cost)),
            true => None,
        });
        decided.unwrap_or_else(|| self.check_in_line(context, key, cost))
    }

    #[cold]
    fn check_in_line(&self, context: &Own<A>, key: Fingerprint, cost: u64) -> Decision {
        self.in_line(context, key, |queue, line, seat, now| {
            if cost > 0 && !queue.outlook().is_empty() {
                return queue.outlook().blocked(line, seat.state, now);
            }
            let decision = context.algorithm().check(seat.state, now, cost);
            if cost > 0 && decision.is_allowed() {
                queue.seal();
            }
            decision
        })
    }

    pub(crate) fn peek<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K) -> Decision {
        let key = self.seed.fingerprint(key);
        if let Some(line) = context.algorithm().line()
            && let Some(queue) = self.lines.get(&key)
        {
            // As `check` would, on copies: nobody is released by a look.
            let (mut state, now) = self.table.look(context, key);
            let outlook = queue.foresee(line, &mut state, now);
            return match outlook.is_empty() {
                true => context.algorithm().peek(&mut state, now),
                false => outlook.blocked(line, &state, now),
            };
        }
        let (mut state, now) = self.table.look(context, key);
        context.algorithm().peek(&mut state, now)
    }

    pub(crate) fn refund<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K, cost: u64) {
        let key = self.seed.fingerprint(key);
        let in_line = self.table.with(context, key, |seat, now| {
            let in_line = self.has_line(&key);
            if !in_line {
                context.algorithm().refund(seat.state, now, cost);
            }
            in_line
        });
        if in_line {
            self.in_line(context, key, |queue, _, seat, now| {
                queue.seal();
                context.algorithm().refund(seat.state, now, cost);
            });
        }
    }

    pub(crate) fn reset<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K) {
        let key = self.seed.fingerprint(key);
        let Some(line) = context.algorithm().line() else {
            return self.table.reset(context, key, false);
        };
        let mut wake = Vec::new();
        {
            // Held meanwhile, so that nobody joins it in between.
            let mut queue = self.line(key);
            let waits = queue.len() > 0;
            self.table.reset(context, key, waits);
            if waits {
                self.table.with(context, key, |seat, now| {
                    queue.restart(now);
                    queue.release(line, seat.state, now, &mut wake);
                });
            }
        }
        self.tidy(&key);
        wake.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn identify<K: Hash + ?Sized>(&self, key: &K) -> Identity {
        Identity(self.seed.fingerprint(key))
    }

    /// Takes `cost` units, or joins the line.
    #[inline]
    pub(crate) fn enter(context: &Arc<Own<A>>, key: Identity, cost: u64) -> Answer<MemoryWait<A>> {
        let (store, algorithm, Identity(key)) = (context.store(), context.algorithm(), key);
        let Some(line) = algorithm.line() else {
            let check = |seat: Seat<'_, A::State>, now| algorithm.check(seat.state, now, cost);
            return Answer::Now(store.table.with(context, key, check));
        };
        // What can be said without touching the line: anything, unless the call is to wait.
        let decided = store.table.with(context, key, |seat, now| match seat.own {
            true if store.has_line(&key) => None,
            true => Outlook::EMPTY.decide(line, seat.state, now, cost),
            // Nobody waits in a shared bucket.
            false => Some(Outlook::EMPTY.decide_at_once(line, seat.state, now, cost)),
        });
        if let Some(decision) = decided {
            return Answer::Now(decision);
        }
        let entered = store.in_line(context, key, |queue, line, seat, now| match seat.own {
            true => queue.enter(line, seat.state, now, cost),
            // The key was forgotten in between, and its place given away.
            false => Entered::Decided(Outlook::EMPTY.decide_at_once(line, seat.state, now, cost)),
        });
        match entered {
            Entered::Decided(decision) => Answer::Now(decision),
            Entered::Waits(ticket) => Answer::Later(MemoryWait::new(Arc::clone(context), key, ticket)),
        }
    }

    fn ask(&self, context: &Own<A>, key: Fingerprint, ticket: u64, waker: &Waker) -> Turn {
        let (turn, _spare) =
            self.in_line(context, key, |queue, line, seat, _| queue.ask(line, seat.state, ticket, waker));
        turn
    }

    fn abandon(&self, context: &Own<A>, key: Fingerprint, ticket: u64) {
        let mut wake = Vec::new();
        let _spare = self
            .in_line(context, key, |queue, line, seat, _| queue.abandon(line, seat.state, ticket, &mut wake));
        wake.into_iter().for_each(Waker::wake);
    }

    /// The line of a key, held.
    fn line(&self, key: Fingerprint) -> RefMut<'_, Fingerprint, Queue<A::State>> {
        match self.lines.entry(key) {
            Entry::Occupied(known) => known.into_ref(),
            Entry::Vacant(place) => {
                self.count.fetch_add(1, Ordering::Relaxed);
                place.insert(Queue::default())
            }
        }
    }

    /// A line at which nobody stands is no line.
    fn tidy(&self, key: &Fingerprint) {
        if self.lines.remove_if(key, |_, queue| queue.len() == 0).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether there may be a line for a key, which is held: so no line may be waited for. One that is locked is one.
    #[inline]
    fn has_line(&self, key: &Fingerprint) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && !self.lines.try_get(key).is_absent()
    }

    /// Holds a key and its line, releases whose turn has come, and again after `change`; then wakes them.
    fn in_line<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        change: impl FnOnce(&mut Queue<A::State>, &dyn Line<A::State>, &mut Seat<'_, A::State>, Nanos) -> R,
    ) -> R {
        let Some(line) = context.algorithm().line() else {
            unreachable!("only algorithms that have a line let calls wait")
        };
        let mut wake = Vec::new();
        let result = {
            let mut queue = self.line(key);
            let result = self.table.with(context, key, |mut seat, now| {
                queue.release(line, seat.state, now, &mut wake);
                let result = change(&mut queue, line, &mut seat, now);
                queue.release(line, seat.state, now, &mut wake);
                result
            });
            if queue.len() == 0 {
                drop(queue);
                self.tidy(&key);
            }
            result
        };
        // Outside the locks: a waker may run anything.
        wake.into_iter().for_each(Waker::wake);
        result
    }
}

/// A key as this store knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity(Fingerprint);

impl<A: Algorithm, K: Hash + ?Sized> Store<A, K> for MemoryStore<A> {
    type Error = Infallible;
    type Wait = MemoryWait<A>;

    fn acquire(context: &Arc<Context<A, Self>>, key: &K, cost: u64) -> Answer<MemoryWait<A>> {
        let key = context.store().identify(key);
        Self::enter(context, key, cost)
    }
}
