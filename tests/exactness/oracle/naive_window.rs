//! A plain second implementation of the exact window. It can have faults that cannot be given to an algorithm of the
//! crate.

use std::time::Duration;

use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, QuotaPolicy};
use tower_throttle::clock::Nanos;

use super::config::Rule;

/// The fault of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    None,
    /// A lower limit keeps more used units than the limit.
    ReplacingDoesNotClamp,
    /// A lower limit drops the newest units instead of the oldest.
    ReplacingDropsTheNewest,
    /// After a shorter period is set, older units still count until a new call arrives.
    ReplacingKeepsWhatIsOver,
    /// A refund gives back the newest units instead of the oldest.
    RefundsTheNewest,
}

#[derive(Clone, Debug)]
pub(crate) struct Plain {
    limit: u64,
    period: u64,
    slip: Slip,
}

#[derive(Clone, Debug)]
pub(crate) struct PlainState {
    last: u64,
    time: u128,
    /// The charges, with time and cost: oldest first.
    hits: Vec<(u128, u64)>,
    period: u64,
}

impl Plain {
    pub(crate) fn new(slip: Slip, rule: &Rule) -> Self {
        Self { limit: rule.limit, period: rule.period, slip }
    }

    /// Advances the key's time to `now`. Returns by how much the clock is behind.
    fn advance(&self, state: &mut PlainState, now: u64) -> u64 {
        let behind = state.last.saturating_sub(now);
        state.time += u128::from(now.saturating_sub(state.last));
        if now >= state.last || behind > self.period {
            state.last = now;
        }
        let (time, period) = (state.time, u128::from(state.period));
        state.hits.retain(|(at, _)| time - at < period);
        state.last - now
    }

    fn used(state: &PlainState) -> u64 {
        state.hits.iter().map(|(_, units)| units).sum()
    }

    fn decide(&self, state: &PlainState, behind: u64, cost: u64) -> Decision {
        let free_in = |at: u128| (at + u128::from(state.period) - state.time) as u64;
        let left = self.limit.saturating_sub(Self::used(state));
        let reset = state.hits.last().map_or(0, |(at, _)| free_in(*at)).saturating_add(behind);
        if cost == 0 || cost <= left {
            return Decision::allow(self.limit, left, reset);
        }
        let mut free = u128::from(left);
        let enough = state.hits.iter().find(|(_, units)| {
            free += u128::from(*units);
            u128::from(cost) <= free
        });
        let retry = enough.filter(|_| cost <= self.limit);
        Decision::deny(self.limit, left, retry.map(|(at, _)| free_in(*at).saturating_add(behind)), reset)
    }
}

fn drop_units<'a>(hits: impl Iterator<Item = &'a mut (u128, u64)>, mut number: u64) {
    for (_, units) in hits {
        let dropped = number.min(*units);
        *units -= dropped;
        number -= dropped;
    }
}

impl Algorithm for Plain {
    type State = PlainState;

    fn new_state(&self, _created_at: Nanos, now: Nanos) -> PlainState {
        PlainState { last: now.0, time: 0, hits: Vec::new(), period: self.period }
    }

    fn last_update(&self, state: &PlainState) -> Nanos {
        Nanos(state.last)
    }

    fn check(&self, state: &mut PlainState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now.0);
        if cost > 0 && self.decide(state, behind, cost).is_allowed() {
            state.period = self.period;
            state.hits.push((state.time, cost));
            return self.decide(state, behind, 0);
        }
        self.decide(state, behind, cost)
    }

    fn peek(&self, state: &mut PlainState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now.0);
        self.decide(state, behind, cost)
    }

    fn refund(&self, state: &mut PlainState, now: Nanos, cost: u64, _charged_at: Option<Nanos>) {
        self.advance(state, now.0);
        match self.slip {
            Slip::RefundsTheNewest => drop_units(state.hits.iter_mut().rev(), cost),
            _ => drop_units(state.hits.iter_mut(), cost),
        }
        state.hits.retain(|(_, units)| *units > 0);
    }

    fn migrate(&self, state: &mut PlainState, from: &Self, now: Nanos) {
        from.advance(state, now.0);
        if self.slip != Slip::ReplacingKeepsWhatIsOver {
            state.period = self.period;
        }
        let (time, period) = (state.time, u128::from(state.period));
        state.hits.retain(|(at, _)| time - at < period);
        let over = Self::used(state).saturating_sub(self.limit);
        match self.slip {
            Slip::ReplacingDoesNotClamp => {}
            Slip::ReplacingDropsTheNewest => drop_units(state.hits.iter_mut().rev(), over),
            _ => drop_units(state.hits.iter_mut(), over),
        }
        state.hits.retain(|(_, units)| *units > 0);
    }

    fn is_fresh(&self, state: &PlainState, now: Nanos) -> bool {
        let mut state = state.clone();
        self.advance(&mut state, now.0) == 0 && state.hits.is_empty()
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::new(self.limit, Duration::from_nanos(self.period))
    }
}
