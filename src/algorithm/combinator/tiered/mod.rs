//! Tiers: a limit for each call.

mod decide;
#[cfg(feature = "redis")]
mod stored;

use std::iter;
use std::mem;

use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;

/// One kind of algorithm, configured differently for each tier. Each call may choose its tier.
///
/// The algorithm given here is for calls that choose none. The choice is made by the layer
/// ([`tier`](crate::middleware::RateLimitLayer::tier)) or by the caller of the limiter
/// ([`tier`](crate::limiter::RateLimiter::tier)).
///
/// The first time that a key is asked with a tier, its state for that tier starts with what the key has used with
/// other tiers, as the table of [`replace`](crate::limiter::RateLimiter::replace) describes. From then on, what
/// the key uses with any tier is charged to all its tiers, as far as they have units left; what exceeds them is
/// not owed. So a user who is moved to another tier is neither reset nor locked out, and alternating between tiers
/// gains nothing. A key keeps at most 32 tiers; the one that becomes fresh first is evicted. A refund goes to the
/// tier that was asked last. Queued calls of all tiers share one queue, in the order of arrival; each call leaves
/// when its own tier admits it.
///
/// ```
/// use tower_throttle::algorithm::{Tiered, TokenBucket};
/// use tower_throttle::{Quota, RateLimiter};
///
/// let free = TokenBucket::new(Quota::per_minute(10));
/// let paid = TokenBucket::new(Quota::per_minute(1_000));
/// let limiter = RateLimiter::new(Tiered::new(free.clone()));
///
/// assert_eq!(limiter.tier(&free).check_n("user:42", 4).remaining(), 6);
/// // The user pays. Four are used, and stay used.
/// assert_eq!(limiter.tier(&paid).check("user:42").remaining(), 995);
/// ```
///
/// A user whose calls are those of [every picture](crate::algorithm#pictures) pays for a larger token bucket for a while:
///
#[cfg_attr(doc, doc = include_str!("../../pictures/tiers.svg"))]
///
/// # How it works
///
/// **Problem.** Free users get ten a minute, paying ones a thousand; a login costs more care than a search.
///
/// **Naive answer.** A limiter for each tier.
///
/// **Where it breaks.** A user who is moved to another tier finds an unused budget there, and one more with each
/// further move.
///
/// **The idea.** A user has a state for each tier with which it was asked, and what it uses is charged to all of
/// them. When a user is asked with a tier for the first time, the new state is converted from the state that
/// leaves the user the least, as when a limiter's algorithm is [replaced](crate::limiter::RateLimiter::replace),
/// but for one key.
///
/// One state would not do: if it were converted to a small limit and back to a large one, it would no longer know
/// of the units that the small limit cannot hold. A user that alternates between two tiers would have no limit at
/// all.
///
/// **Invariant.** Each tier's limit holds by itself, for all that was used with any tier since the key was
/// first asked with this one. No call waits longer than the tier that is asked could demand.
///
/// **Cost.** The algorithm's own size more per key (40 to 72 bytes) and 24 bytes; for keys that were recently
/// asked with several tiers, a state and an algorithm for each of them, up to 32. Work in proportion to that.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiered<A> {
    algorithm: A,
}

/// The state that a [`Tiered`] keeps for a key.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TieredState<A: Algorithm> {
    /// The tier that was asked last.
    by: A,
    state: A::State,
    /// The other tiers that were asked, up to [`MAX_TIERS`].
    other_tiers: Vec<(A, A::State)>,
}

/// The maximum number of tiers that a key has a state for.
const MAX_TIERS: usize = 32;

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Creates tiers whose default, for calls that choose none, is `algorithm`.
    #[must_use]
    pub const fn new(algorithm: A) -> Self {
        Self { algorithm }
    }

    /// Returns the algorithm for calls that choose none.
    #[must_use]
    pub const fn algorithm(&self) -> &A {
        &self.algorithm
    }
}

/// The fate of the state of a tier that was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Forget it, if it is a new one: nothing has changed.
    Nothing,
    /// Keep it, if there is a place for it.
    State,
    /// Keep it as that of the tier that was asked last.
    Tier,
}

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Converts a state of another tier to this one. Returns it, and how much it leaves.
    fn migrated(&self, by: &A, state: &A::State, now: Nanos) -> (A::State, u64) {
        let mut mine = state.clone();
        self.algorithm.migrate(&mut mine, by, now);
        let left = self.algorithm.peek(&mut mine, now, 0).remaining();
        (mine, left)
    }

    /// Returns the state for a tier that is new to the key: converted from the tier that leaves the least, since a small
    /// one cannot hold what a large one has counted.
    #[cold]
    fn new_tier(&self, state: &TieredState<A>, now: Nanos) -> A::State {
        let mut mine = self.migrated(&state.by, &state.state, now);
        for (by, other) in &state.other_tiers {
            let other = self.migrated(by, other, now);
            if other.1 < mine.1 {
                mine = other;
            }
        }
        mine.0
    }

    /// Asks the state of this tier, which may be new to the key.
    #[inline]
    fn ask<R>(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        ask: impl FnOnce(&mut A::State) -> (R, Keep),
    ) -> R {
        match state.by == self.algorithm {
            true => ask(&mut state.state).0,
            false => self.ask_other(state, now, ask),
        }
    }

    #[cold]
    fn ask_other<R>(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        ask: impl FnOnce(&mut A::State) -> (R, Keep),
    ) -> R {
        let known = state.other_tiers.iter().position(|(algorithm, _)| *algorithm == self.algorithm);
        let (result, keep, at) = match known {
            Some(at) => {
                let (result, keep) = ask(&mut state.other_tiers[at].1);
                (result, keep, at)
            }
            None => {
                let mut mine = self.new_tier(state, now);
                let (result, keep) = ask(&mut mine);
                let has_place = state.other_tiers.len() < MAX_TIERS - 1;
                if keep == Keep::Nothing || keep == Keep::State && !has_place {
                    return result;
                }
                state.other_tiers.push((self.algorithm.clone(), mine));
                (result, keep, state.other_tiers.len() - 1)
            }
        };
        if keep == Keep::Tier {
            let (by, mine) = state.other_tiers.remove(at);
            let before = (mem::replace(&mut state.by, by), mem::replace(&mut state.state, mine));
            state.other_tiers.push(before);
        }
        result
    }

    /// Extends `reset_after` of a `decision` of this tier: the key is fresh once it is fresh for each tier.
    fn reported(&self, state: &mut TieredState<A>, now: Nanos, decision: Decision) -> Decision {
        let others = state.tiers_mut().filter(|(algorithm, _)| **algorithm != self.algorithm);
        others.fold(decision, |reported, (algorithm, state)| {
            reported.with_min_reset(Nanos::from(algorithm.peek(state, now, 0).reset_after()).0)
        })
    }

    /// Asks the state of this tier for something that changes nothing.
    fn look<R>(&self, state: &mut TieredState<A>, now: Nanos, look: impl FnOnce(&mut A::State) -> R) -> R {
        self.ask(state, now, |mine| (look(mine), Keep::Nothing))
    }
}

impl<A: Algorithm> TieredState<A> {
    /// Returns each tier with its state, the one that was asked last first.
    fn tiers_mut(&mut self) -> impl Iterator<Item = (&A, &mut A::State)> {
        let other_tiers = self.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
        iter::once((&self.by, &mut self.state)).chain(other_tiers)
    }

    /// Charges what was used with one tier to the others, as far as they have units left.
    #[inline]
    fn count(&mut self, now: Nanos, cost: u64) {
        if self.other_tiers.len() >= MAX_TIERS {
            self.evict_one(now);
        }
        for (algorithm, state) in &mut self.other_tiers {
            algorithm.charge_saturating(state, now, cost);
        }
    }

    /// Evicts the tier that becomes fresh first.
    fn evict_one(&mut self, now: Nanos) {
        let reset = |(algorithm, state): &mut (A, A::State)| algorithm.peek(state, now, 0).reset_after();
        let resets = self.other_tiers.iter_mut().map(reset).enumerate();
        if let Some((soonest, _)) = resets.min_by_key(|(_, reset)| *reset) {
            self.other_tiers.remove(soonest);
        }
    }
}
