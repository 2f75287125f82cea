//! What a sequence is about: a quota, a start, and the next call.

use std::time::Duration;

use tower_throttle::Quota;

use super::random::Random;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) burst: u64,
    pub(crate) built: u64,
    /// When the key is first seen.
    pub(crate) start: u64,
    /// The last reading the clock may show.
    pub(crate) end: u64,
    pub(crate) steps_back: bool,
}

impl Setup {
    /// Any quota, at any time.
    pub(crate) fn any(seed: u64, random: &mut Random) -> Self {
        let (limit, period) = rate(random);
        let burst = match random.below(8) {
            0 => 1,
            1 => (limit / 2).max(1),
            2 => limit.saturating_add(1),
            3 => limit.saturating_mul(3),
            4 if random.one_in(4) => u64::MAX,
            _ => limit,
        };
        let start = match random.below(6) {
            0 => 0,
            1 => random.below(1_000),
            2 => u64::MAX - random.below(period.saturating_mul(10)),
            3 => u64::MAX,
            _ => random.any_size() >> 1,
        };
        let built = start.saturating_sub(random.within(0..=period.saturating_mul(2)));
        Self { seed, limit, period, burst, built, start, end: u64::MAX, steps_back: random.one_in(2) }
    }

    /// As far from the end of time as a schedule can reach.
    pub(crate) fn mid_life(seed: u64, random: &mut Random) -> Self {
        let mut setup = Self::any(seed, random);
        setup.end = u64::MAX >> 2;
        setup.period = setup.period.min(setup.end >> 4);
        setup.start = setup.start.min(setup.end >> 1);
        setup.built = setup.built.min(setup.start);
        setup
    }

    pub(crate) fn quota(&self) -> Quota {
        let quota = Quota::per(self.limit, Duration::from_nanos(self.period)).unwrap();
        quota.burst(self.burst)
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

/// What the latest decision told, for steps that put it to the test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) retry: u64,
    pub(crate) reset: u64,
    pub(crate) remaining: u64,
}

impl Setup {
    /// The next reading of the clock.
    pub(crate) fn next_time(&self, random: &mut Random, now: u64, told: Told) -> u64 {
        let (period, interval) = (self.period, self.period / self.limit);
        let kinds = if self.steps_back { 26 } else { 22 };
        let on = match random.below(kinds) {
            0..=4 => 0,
            5 => 1,
            6 | 7 => told.retry,
            8 => told.retry.saturating_sub(1),
            9 => told.retry.saturating_add(1),
            10 => told.reset,
            11 => told.reset.saturating_sub(1),
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
            22 => return now.saturating_sub(1),
            23 => return now.saturating_sub(random.within(0..=period)),
            24 => return now.saturating_sub(period + random.below(2)),
            _ => return now.saturating_sub(period.saturating_mul(random.within(2..=9))),
        };
        now.saturating_add(on).min(self.end)
    }

    /// The next cost; `most` is what fits into an idle key.
    pub(crate) fn next_cost(&self, random: &mut Random, most: u64, told: Told) -> u64 {
        match random.below(18) {
            0 => 0,
            1..=6 => 1,
            7 => 2,
            8 => 3,
            9 => most,
            10 => most.saturating_add(1),
            11 if random.one_in(3) => u64::MAX,
            12 => told.remaining,
            13 => told.remaining.saturating_add(1),
            14 => told.remaining / 2,
            15 => random.within(0..=most),
            _ => random.within(1..=5),
        }
    }
}
