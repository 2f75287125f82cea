//! Random parameters of algorithms, and the parameters by which they are replaced.

use std::time::Duration;

use tower_throttle::Quota;

use crate::support::Random;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const DAY: u64 = 86_400 * SECOND;

/// The parameters. Each algorithm uses some of them.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) burst: u64,
    pub(crate) slices: u64,
    pub(crate) aligned: bool,
    /// The warm-up in nanoseconds. `None` for a bursty limiter.
    pub(crate) warm_up: Option<u64>,
    /// The cold factor, in 1/1024.
    pub(crate) cold_factor: u64,
}

impl Rule {
    pub(crate) fn any(random: &mut Random) -> Self {
        let (limit, period) = rate(random);
        let burst = burst(random, limit);
        let (slices, aligned) = (slices(random), random.one_in(2));
        let (warm_up, cold_factor) = (warm_up(random, period), cold_factor(random));
        Self { limit, period, burst, slices, aligned, warm_up, cold_factor }
    }

    /// Returns extreme and common quotas: 1 per 30 days, and 10^9 per second.
    pub(crate) fn extreme(random: &mut Random) -> Self {
        const LIMITS: [u64; 7] = [1, 1, 2, 1_000_000_000, 1 << 63, u64::MAX - 1, u64::MAX];
        const PERIODS: [u64; 7] = [1, 2, SECOND, SECOND, 30 * DAY, i64::MAX as u64 - 1, i64::MAX as u64];
        const WARM_UPS: [u64; 4] = [1, SECOND, 30 * DAY, i64::MAX as u64];
        let (limit, period) = (random.one_of(&LIMITS), random.one_of(&PERIODS));
        Self {
            limit,
            period,
            burst: random.one_of(&[1, limit, u64::MAX - 1, u64::MAX]),
            slices: random.one_of(&[1, 2, 10, 999, 1_000]),
            aligned: random.one_in(2),
            warm_up: (!random.one_in(2)).then(|| random.one_of(&WARM_UPS)),
            cold_factor: random.one_of(&[1 << 10, 3 << 10, 1_000 << 10]),
        }
    }

    /// Returns other parameters, by which these parameters are replaced.
    pub(crate) fn another(&self, random: &mut Random) -> Self {
        let mut rule = self.clone();
        let kind = random.below(16);
        match kind {
            0 => rule.limit = self.limit.saturating_mul(random.within(2..=10)),
            1 => rule.limit = self.limit.saturating_add(1),
            2 => rule.limit = (self.limit / random.within(2..=10)).max(1),
            3 => rule.limit = (self.limit - 1).max(1),
            4 => rule.period = self.period.saturating_mul(random.within(2..=10)),
            5 => rule.period = self.period + 1,
            6 => rule.period = (self.period / random.within(2..=10)).max(1),
            7 => rule.period = (self.period - 1).max(1),
            8 => (rule.limit, rule.period) = rate(random),
            9 => rule.slices = slices(random),
            10 => rule.aligned = !self.aligned,
            11 => rule.warm_up = warm_up(random, self.period),
            12 => rule.cold_factor = cold_factor(random),
            13 => rule.burst = burst(random, self.limit),
            14 => return Self::any(random),
            _ => {}
        }
        if kind < 4 {
            rule.burst = burst(random, rule.limit);
        }
        rule.period = rule.period.min(i64::MAX as u64);
        rule
    }

    pub(crate) fn quota(&self) -> Quota {
        let period = Duration::from_nanos(self.period);
        Quota::per(self.limit, period).expect("a limit and a period from 1 on").burst(self.burst)
    }
}

fn rate(random: &mut Random) -> (u64, u64) {
    const NAMED: [(u64, u64); 9] = [
        (1, 30 * DAY),
        (1_000_000_000, SECOND),
        (u64::MAX, SECOND),
        (u64::MAX, i64::MAX as u64),
        (1, i64::MAX as u64),
        (1, 1),
        (7, 60 * SECOND),
        (3, SECOND),
        (u64::MAX, 1),
    ];
    if random.one_in(4) {
        return NAMED[random.below(NAMED.len() as u64) as usize];
    }
    let limit = match random.below(5) {
        0 | 1 => random.within(1..=10),
        2 => random.within(1..=1_000),
        3 => random.within(1..=1_000_000_000),
        _ => random.any_size(),
    };
    let period = match random.below(6) {
        0 => random.within(1..=100),
        1 => random.within(1..=10_000),
        2 => SECOND,
        3 => 60 * SECOND,
        4 => random.within(1..=100 * SECOND),
        _ => random.within(1..=i64::MAX as u64) >> random.below(40),
    };
    (limit, period.max(1))
}

fn burst(random: &mut Random, limit: u64) -> u64 {
    match random.below(8) {
        0 => 1,
        1 => (limit / 2).max(1),
        2 => limit.saturating_add(1),
        3 => limit.saturating_mul(3),
        4 if random.one_in(4) => u64::MAX,
        _ => limit,
    }
}

fn slices(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => 1,
        1 => 3,
        2 => 7,
        3 => 10,
        4 => random.within(1..=1_000),
        _ => random.within(1..=40),
    }
}

fn warm_up(random: &mut Random, period: u64) -> Option<u64> {
    match random.below(6) {
        0 | 1 => None,
        2 => Some(random.within(1..=1_000)),
        3 => Some(4 * SECOND),
        _ => Some(random.within(1..=period.saturating_mul(20))),
    }
}

fn cold_factor(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => 1 << 10,
        1 => random.within(1 << 10..=10 << 10),
        2 => random.within(1 << 10..=1_000 << 10),
        _ => 3 << 10,
    }
}
