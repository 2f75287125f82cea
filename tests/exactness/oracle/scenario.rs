//! A scenario of a sequence: an algorithm, a start, and the next operations.

use super::config::Rule;
use super::operation::Act;
use crate::support::Random;

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    #[expect(dead_code, reason = "a failure prints it")]
    pub(crate) seed: u64,
    pub(crate) rule: Rule,
    pub(crate) created_at: u64,
    /// The time of the first call for the key.
    pub(crate) start: u64,
    /// The last reading the clock may show.
    pub(crate) end: u64,
    pub(crate) steps_back: bool,
    pub(crate) refunds: bool,
    pub(crate) replaces: bool,
    /// The maximum debt of the charges after the fact. `None` if there are no such charges.
    pub(crate) max_debt: Option<u64>,
    /// `true` if algorithms are replaced by extreme ones, and the clock jumps to the ends of its range.
    pub(crate) extreme: bool,
}

impl Setup {
    /// Returns a setup with any quota, at any time, with every operation.
    pub(crate) fn any(seed: u64, random: &mut Random) -> Self {
        let rule = Rule::any(random);
        let period = rule.period;
        let start = match random.below(6) {
            0 => 0,
            1 => random.below(1_000),
            2 => u64::MAX - random.below(period.saturating_mul(10)),
            3 => u64::MAX,
            _ => random.any_size() >> 1,
        };
        let created_at = start.saturating_sub(random.within(0..=period.saturating_mul(2)));
        let steps_back = random.one_in(2);
        let (refunds, replaces) = (!random.one_in(4), !random.one_in(4));
        let max_debt = (!random.one_in(4)).then(|| max_debt(random, rule.limit));
        let (end, extreme) = (u64::MAX, false);
        Self { seed, rule, created_at, start, end, steps_back, refunds, replaces, max_debt, extreme }
    }

    /// Returns a setup whose times are so far from the end of the clock that no schedule reaches the end.
    pub(crate) fn mid_life(seed: u64, random: &mut Random) -> Self {
        let mut setup = Self::any(seed, random);
        setup.end = u64::MAX >> 2;
        setup.rule.period = setup.rule.period.min(setup.longest());
        setup.start = setup.start.min(setup.end >> 1);
        setup.created_at = setup.created_at.min(setup.start);
        setup
    }

    /// Returns a setup with extreme quotas, often at the ends of the clock's range.
    pub(crate) fn extreme(seed: u64, random: &mut Random) -> Self {
        let rule = Rule::extreme(random);
        let last = random.one_of(&[0, 1, 2, rule.period, rule.period * 2]);
        let start = random.one_of(&[0, 1, u64::MAX >> 1, u64::MAX - last]);
        let created_at = random.one_of(&[0, start]);
        let steps_back = random.one_in(2);
        Self {
            seed,
            rule,
            created_at,
            start,
            end: u64::MAX,
            steps_back,
            refunds: true,
            replaces: true,
            max_debt: Some(random.one_of(&[0, 1, 1 << 53, u64::MAX - 1, u64::MAX])),
            extreme: true,
        }
    }

    /// Returns a setup far from the end of the clock, for a `Smooth` that warms up or not.
    pub(crate) fn smooth(seed: u64, random: &mut Random, warms_up: bool) -> Self {
        let mut setup = Self::mid_life(seed, random);
        let warm_up = setup.rule.warm_up.unwrap_or(setup.rule.period);
        setup.rule.warm_up = warms_up.then_some(warm_up);
        setup
    }

    fn longest(&self) -> u64 {
        if self.end < u64::MAX { self.end >> 4 } else { i64::MAX as u64 }
    }
}

/// The values that the latest decision reported. Some later operations use these values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reported {
    pub(crate) retry: u64,
    pub(crate) reset: u64,
    pub(crate) remaining: u64,
}

impl Setup {
    /// Returns the next reading of the clock.
    pub(crate) fn next_time(&self, random: &mut Random, rule: &Rule, now: u64, reported: Reported) -> u64 {
        if self.extreme && random.one_in(8) {
            let at = random.one_of(&[0, 1, u64::MAX >> 1, u64::MAX - 1, u64::MAX]);
            return if self.steps_back { at } else { at.max(now) };
        }
        let (period, interval) = (rule.period, rule.period / rule.limit);
        let kinds = if self.steps_back { 27 } else { 23 };
        let on = match random.below(kinds) {
            0..=4 => 0,
            5 => 1,
            6 | 7 => reported.retry,
            8 => reported.retry.saturating_sub(1),
            9 => reported.retry.saturating_add(1),
            10 => reported.reset,
            11 => reported.reset.saturating_sub(1),
            12 => interval,
            13 => interval + 1,
            14 => period / 2,
            15 => period,
            16 => period - 1,
            17 => period.saturating_mul(random.within(2..=50)),
            18 => random.within(0..=period.saturating_mul(2)),
            19 => random.within(0..=interval.saturating_mul(4)),
            20 => period.div_ceil(random.within(1..=12)),
            21 => random.within(0..=period / 8),
            22 => period.div_ceil(rule.slices),
            23 => return now.saturating_sub(1),
            24 => return now.saturating_sub(random.within(0..=period)),
            25 => return now.saturating_sub(period + random.below(2)),
            _ => return now.saturating_sub(period.saturating_mul(random.within(2..=9))),
        };
        now.saturating_add(on).min(self.end)
    }

    /// Returns the duration of the next pause. With 0, it ends the pause of the key.
    pub(crate) fn next_pause(&self, random: &mut Random, rule: &Rule, reported: Reported) -> u64 {
        let duration = match random.below(8) {
            0 | 1 => 0,
            2 => 1,
            3 => reported.retry,
            4 => reported.reset,
            5 => rule.period / 2,
            6 => rule.period,
            _ => random.within(0..=rule.period.saturating_mul(3)),
        };
        duration.min(self.longest())
    }

    pub(crate) fn next_act(&self, random: &mut Random, rule: &Rule, most: u64, reported: Reported) -> Act {
        let cost = next_cost(random, most, reported);
        match random.below(16) {
            0 | 1 => Act::Look(cost),
            2 | 3 if self.refunds => Act::Refund(cost),
            4 if self.replaces => {
                let mut rule = if self.extreme { Rule::extreme(random) } else { rule.another(random) };
                rule.period = rule.period.min(self.longest());
                Act::Replace(Box::new(rule))
            }
            5 | 6 => self.max_debt.map_or(Act::Call(cost), |max_debt| Act::Charge(cost, max_debt)),
            7 | 8 if self.max_debt.is_some() => {
                let (call, max_debt) = (random.any_size(), self.max_debt.unwrap_or(0));
                Act::Settle { call, actual: cost, max_debt }
            }
            _ => Act::Call(cost),
        }
    }
}

fn max_debt(random: &mut Random, limit: u64) -> u64 {
    match random.below(5) {
        0 => 0,
        1 => random.within(1..=5),
        2 => limit.saturating_mul(random.within(1..=3)),
        3 => 1 << 53,
        _ => u64::MAX,
    }
}

/// Returns the next cost. `most` is the highest cost that an unused key can admit.
pub(crate) fn next_cost(random: &mut Random, most: u64, reported: Reported) -> u64 {
    match random.below(18) {
        0 => 0,
        1..=6 => 1,
        7 => 2,
        8 => 3,
        9 => most,
        10 => most.saturating_add(1),
        11 if random.one_in(3) => u64::MAX,
        12 => reported.remaining,
        13 => reported.remaining.saturating_add(1),
        14 => reported.remaining / 2,
        15 => random.within(0..=most),
        _ => random.within(1..=5),
    }
}
