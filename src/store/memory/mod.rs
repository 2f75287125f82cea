//! The store in memory.

mod buckets;
mod change;
mod charge;
mod fingerprint;
mod home;
mod house;
mod joint;
mod on_full;
mod places;
mod room;
mod round;
mod seat;
mod shard;
mod stats;
mod table;
mod wait;

use std::convert::Infallible;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use self::charge::MemoryCharge;
use self::fingerprint::{Fingerprint, Seed};
use self::home::{Home, shared_bits};
use self::house::House;
use self::seat::Seat;
use self::table::Table;
use super::{Answer, Call, Permit, Reservation, Store};
use crate::algorithm::{Algorithm, Crowd};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Comer, Entered, Fate, Outlook, Turn};
use crate::store::context::Context;

pub use fingerprint::MemoryKey;
pub use house::WhenClosed;
pub(crate) use joint::{AllDecided, Together, decide};
pub use joint::{Decided, Few, Part, TogetherWait};
pub use on_full::OnFull;
pub use stats::LimiterStats;
pub use wait::MemoryWait;

/// The state of keys in this process: bounded, and kept clean without a thread or a runtime.
///
/// # Guarantees
///
/// One call at a time changes a key. At most `max_keys` keys are kept. A key that is as good as new may be forgotten
/// at any time, which changes no answer while there is room.
///
/// When the table is full of keys that are not, [`OnFull`] says what happens to new ones. By default the least used of
/// eight sampled keys is evicted, so that new keys are not refused, a key at its limit stays limited while less used
/// keys could go, and a flood of keys leaves nothing behind when it ends. A key with calls in progress or queued calls is
/// never evicted. [`RateLimiter::stats`](crate::limiter::RateLimiter::stats) counts how often it comes to that.
///
/// # How large `max_keys` should be
///
/// Larger than the number of distinct keys in the longest window of the algorithm (of a bucket: in the time in which it
/// fills), lockouts included: then no key is evicted. [Floods of keys](crate::guide::floods) tells how to keep invented
/// keys out.
///
/// # Memory
///
/// A key is kept as a 128-bit keyed fingerprint, so its length does not matter, and it cannot be read back. Per key:
/// 16 bytes, the algorithm's state (24 for a [`TokenBucket`](crate::algorithm::TokenBucket)) and 16 in the round of
/// keys to look at. Tables grow by doubling: count 60 to 120 bytes per key, so the default of 100,000 keys is 6 to 12
/// MB. The cost of growth is amortised: the call for the new key that makes one of the 64 parts of the table grow moves
/// the keys of that part, and calls for its other keys wait meanwhile. Memory for keys that were forgotten is used again, and not given back while the limiter lives.
///
/// Not promised: state outlives neither the process nor the last clone of its limiter.
#[derive(Debug)]
pub struct MemoryStore<A: Algorithm> {
    seed: Seed,
    table: Table<A>,
}

/// The limiter of a memory store.
pub(super) type Own<A> = Context<A, MemoryStore<A>>;

impl<A: Algorithm> MemoryStore<A> {
    /// The number of keys kept by default.
    pub const DEFAULT_MAX_KEYS: usize = 100_000;

    /// The number of calls that may wait by default, for all keys together; or as many as the rule was told to let
    /// wait for one, if that is more.
    pub const DEFAULT_MAX_WAITING: usize = 10_000;

    /// A store of at most `max_keys` keys, 0 counts as 1, for a limiter with that algorithm.
    #[must_use]
    pub fn new(algorithm: &A, max_keys: usize) -> Self {
        Self::with(algorithm, max_keys, None, WhenClosed::default(), OnFull::default())
    }

    pub(crate) fn with(
        algorithm: &A,
        max_keys: usize,
        max_waiting: Option<usize>,
        when_closed: WhenClosed,
        on_full: OnFull,
    ) -> Self {
        let most = max_waiting.map_or_else(|| default_max_waiting(algorithm), |most| most as u64);
        let shared_bits = shared_bits(max_keys);
        let house = House { crowd: Crowd::new(most), when_closed, on_full, shared_bits };
        Self { seed: Seed::random(), table: Table::new(max_keys, algorithm, house) }
    }

    pub(crate) fn waiting(&self) -> usize {
        usize::try_from(self.table.house.crowd.len()).unwrap_or(usize::MAX)
    }

    pub(crate) fn close(context: &Own<A>) {
        // Who waits is woken when nothing is held any more.
        drop(context.store().table.close(context));
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn stats(&self) -> LimiterStats {
        self.table.counters.stats()
    }

    #[inline]
    pub(crate) fn check<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K, call: Call<'_, A>) -> Decision {
        let key = self.seed.fingerprint(key);
        let known = self.table.known(context, key, call.rule, |rule, state, now| {
            let before = rule.claim(state, now);
            let decision = rule.check(state, now, call.cost);
            if let Some(before) = before
                && !decision.is_allowed()
            {
                rule.unclaim(state, now, before);
            }
            Some(decision)
        });
        match known {
            Some(decision) => decision,
            None => self.check_any(context, key, call),
        }
    }

    #[cold]
    fn check_any(&self, context: &Own<A>, key: Fingerprint, call: Call<'_, A>) -> Decision {
        self.decide(context, key, call, |mut seat, now| seat.check(now, call.cost))
            .unwrap_or_else(|| self.reject(context, call))
    }

    /// Holds the key while `decide` runs. `None` if there is no room for it: never for a cost of 0, which needs none.
    fn decide<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        call: Call<'_, A>,
        decide: impl FnOnce(Seat<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        match call.cost {
            0 => {
                self.table.tidy(context, key);
                Some(self.table.look(context, key, call.rule, decide))
            }
            _ => self.table.with(context, key, call.rule, decide),
        }
    }

    /// Denies a call for whose key there is no room.
    fn reject(&self, context: &Own<A>, call: Call<'_, A>) -> Decision {
        let quota = |rule: &A| rule.policy().quota;
        self.table.reject(call.rule.map_or_else(|| quota(&context.algorithm()), quota))
    }

    pub(crate) fn peek<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K, call: Call<'_, A>) -> Decision {
        let key = self.seed.fingerprint(key);
        self.table.look(context, key, call.rule, |seat, now| seat.peek(now, call.cost))
    }

    pub(crate) fn refund<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K, cost: u64) {
        let key = self.seed.fingerprint(key);
        let _ = self.table.with_used(context, key, None, |seat, now| seat.refund(now, cost));
    }

    pub(crate) fn reset<K: Hash + ?Sized>(&self, context: &Own<A>, key: &K) {
        self.table.reset(context, self.seed.fingerprint(key));
    }

    pub(crate) fn replace(context: &Own<A>, algorithm: A) {
        // Who leaves by the new rule is woken when nothing is held any more.
        drop(context.replace(algorithm, |new| context.store().table.replace(context, new)));
    }

    /// A call that is to be decided together with others.
    pub(crate) fn part<'a, K: MemoryKey + ?Sized>(
        context: &'a Arc<Own<A>>,
        key: &K,
        call: Call<'_, A>,
    ) -> Part<'a> {
        Part::new(context, context.store().seed.fingerprint(key), call)
    }

    pub(crate) fn identify<K: MemoryKey + ?Sized>(&self, key: &K) -> Identity {
        Identity(self.seed.fingerprint(key))
    }

    /// Takes `cost` units, or joins the line.
    #[inline]
    pub(crate) fn enter(context: &Arc<Own<A>>, key: Identity, call: Call<'_, A>) -> Answer<MemoryWait<A>> {
        let Identity(key) = key;
        let store = context.store();
        let mut charged_at = Nanos::ZERO;
        let known = store.table.known(context, key, call.rule, |rule, state, now| {
            if rule.holds() {
                return None;
            }
            let before = rule.claim(state, now);
            let waits = call.waits || rule.queues();
            let decision = match rule.line().filter(|_| waits) {
                None => Some(rule.check(state, now, call.cost)),
                Some(line) => match Outlook::alone(line, state, &store.table.house.crowd)
                    .decide(call.comer(now, waits))
                {
                    Fate::Decided(decision) => Some(decision),
                    Fate::Waits | Fate::Full => None,
                },
            };
            if let Some(before) = before
                && !decision.is_some_and(|decision| decision.is_allowed())
            {
                rule.unclaim(state, now, before);
            }
            if call.reserves {
                charged_at = rule.seen(state);
            }
            decision
        });
        match known {
            Some(decision) if call.reserves && decision.is_allowed() => {
                Answer::Reserved(decision, MemoryCharge::new(context, key, &call, charged_at).into())
            }
            Some(decision) => Answer::Now(decision),
            None => Self::enter_any(context, key, call),
        }
    }

    #[cold]
    fn enter_any(context: &Arc<Own<A>>, key: Fingerprint, call: Call<'_, A>) -> Answer<MemoryWait<A>> {
        let store = context.store();
        let entered = store.decide(context, key, call, |mut seat, now| {
            let (home, holds) = (seat.home(), seat.holds(call.cost));
            let waits = call.waits || seat.rule.queues();
            let entered = seat.enter(call.comer(now, waits));
            // Calls in progress are free when they end, and a closed limiter charges nothing.
            let settles = call.reserves && !seat.rule.holds() && !seat.closed;
            (entered, home, holds, settles.then(|| seat.rule.seen(seat.state)))
        });
        let Some((entered, home, holds, charged_at)) = entered else {
            return Answer::Now(store.reject(context, call));
        };
        let charge = || charged_at.map(|charged_at| MemoryCharge::new(context, key, &call, charged_at));
        let permit = || holds.map(|rule| Self::held(context, home, rule, call.cost)).unwrap_or_default();
        match entered {
            Entered::Decided(decision) if decision.is_allowed() => match permit() {
                permit if permit.is_empty() => match charge() {
                    Some(charge) => Answer::Reserved(decision, charge.into()),
                    None => Answer::Now(decision),
                },
                permit => Answer::Holding(decision, permit),
            },
            Entered::Decided(decision) => Answer::Now(decision),
            Entered::Waits(ticket) => {
                let permit = permit().unarmed();
                Answer::Later(MemoryWait::new(Arc::clone(context), key, ticket, permit, charge()))
            }
        }
    }

    /// Takes `cost` units or none; and what the call holds.
    pub(crate) fn enter_at_once(
        context: &Arc<Own<A>>,
        Identity(key): Identity,
        call: Call<'_, A>,
    ) -> (Decision, Permit) {
        let store = context.store();
        let decided = store.decide(context, key, call, |mut seat, now| {
            let (home, holds) = (seat.home(), seat.holds(call.cost));
            (seat.check(now, call.cost), home, holds)
        });
        let Some((decision, home, holds)) = decided else {
            return (store.reject(context, call), Permit::default());
        };
        let permit = holds.filter(|_| decision.is_allowed());
        (decision, permit.map(|rule| Self::held(context, home, rule, call.cost)).unwrap_or_default())
    }

    /// What a call holds that was let in by that rule.
    fn held(context: &Arc<Own<A>>, home: Home, rule: A, cost: u64) -> Permit {
        let context = Arc::clone(context);
        Permit::new(move || {
            rule.release_shared(cost);
            context.store().table.end(&context, home, &rule, cost);
        })
    }

    /// Calls that were let in without a permit are over.
    pub(crate) fn release<K: Hash + ?Sized>(context: &Own<A>, key: &K, call: Call<'_, A>) {
        let (store, cost) = (context.store(), call.cost);
        let key = store.seed.fingerprint(key);
        let released = store.table.with_used(context, key, call.rule, |seat, now| {
            // No more than its own: what others hold is theirs.
            let (rule, cost) = (seat.rule.clone(), cost.min(seat.rule.held(seat.state)));
            seat.end(now, cost);
            (rule, cost)
        });
        // A key that is not there holds nothing.
        if let Some((rule, cost)) = released {
            rule.release_shared(cost);
        }
    }

    fn ask(&self, context: &Own<A>, key: Fingerprint, ticket: u64, waker: &Waker) -> Turn {
        let asked = self.table.with_used(context, key, None, |seat, now| seat.ask(now, ticket, waker));
        let Some((turn, _spare)) = asked else { unreachable!("a key with queued calls is never evicted") };
        turn
    }

    fn abandon(&self, context: &Own<A>, key: Fingerprint, ticket: u64) {
        let _spare = self.table.with_used(context, key, None, |seat, now| seat.abandon(now, ticket));
    }
}

/// A key as this store knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity(Fingerprint);

impl<A: Algorithm, K: MemoryKey + ?Sized> Store<A, K> for MemoryStore<A> {
    type Error = Infallible;
    type Wait = MemoryWait<A>;

    #[inline]
    fn acquire(context: &Arc<Context<A, Self>>, key: &K, call: Call<'_, A>) -> Answer<MemoryWait<A>> {
        let key = context.store().identify(key);
        Self::enter(context, key, call)
    }

    fn permit(wait: Pin<&mut MemoryWait<A>>) -> Permit {
        wait.permit()
    }

    fn reservation(wait: Pin<&mut MemoryWait<A>>) -> Option<Reservation> {
        wait.reservation()
    }
}

impl<A> Call<'_, A> {
    fn comer(&self, now: Nanos, waits: bool) -> Comer {
        let Self { cost, priority, patience, .. } = *self;
        Comer { priority, waits, patience, ..Comer::new(now, cost) }
    }
}

/// As many as one line is to hold, if somebody has said so, and never few.
fn default_max_waiting<A: Algorithm>(rule: &A) -> u64 {
    let least = MemoryStore::<A>::DEFAULT_MAX_WAITING as u64;
    let state = rule.fresh(Nanos::ZERO, Nanos::ZERO);
    let chosen = rule.line().and_then(|line| line.patience(&state).chosen_places());
    chosen.map_or(least, |places| places.max(least))
}
