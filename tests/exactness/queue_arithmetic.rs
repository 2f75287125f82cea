//! The arithmetic of queues against numbers that cannot overflow: the scheduled times, and the number of calls that
//! pass at once.
//!
//! These tests also run without overflow checks, because the exact model detects a wrap.

use std::time::Duration;

use num_bigint::BigInt;
use tower_throttle::Quota;
use tower_throttle::algorithm::{Algorithm, LeakyBucket, Smooth};
use tower_throttle::clock::Nanos;

use crate::support::{Random, scaled};

const SECOND: u64 = 1_000_000_000;
const MONTH: u64 = 30 * 86_400 * SECOND;
const SEQUENCES: u64 = 1_000;

/// A schedule, in grains. A nanosecond has `limit` grains, and an interval has `period` grains. Instants are in the
/// key's own time.
#[derive(Clone, Debug)]
struct Exact {
    limit: u64,
    period: u64,
    /// The latest reading of the clock.
    last: u64,
    now: BigInt,
    next: BigInt,
    /// The maximum of the stored time.
    most: BigInt,
    stored: BigInt,
}

impl Exact {
    fn new(limit: u64, period: u64, start: u64, most: u64) -> Self {
        let most = BigInt::from(most) * limit;
        let (now, next, stored) = (BigInt::ZERO, BigInt::ZERO, BigInt::ZERO);
        Self { limit, period, last: start, now, next, most, stored }
    }

    /// Advances the key's time to `now`.
    fn observe(&mut self, now: u64) {
        self.now += BigInt::from(now.saturating_sub(self.last)) * self.limit;
        if now > self.last || self.last - now > self.period {
            self.last = now;
        }
    }

    /// Returns the time at which the next call can be admitted, after `ahead` units have been admitted.
    fn after(&self, ahead: u128) -> BigInt {
        if ahead == 0 {
            return self.next.clone();
        }
        let mut then = self.clone();
        then.leave(&self.now, ahead);
        then.next
    }

    fn leave(&mut self, arrived: &BigInt, units: u128) {
        if *arrived > self.next {
            self.stored = (&self.stored + arrived - &self.next).min(self.most.clone());
            self.next = arrived.clone();
        }
        let time = BigInt::from(units) * self.period;
        let paid = time.clone().min(self.stored.clone());
        self.stored -= &paid;
        self.next += time - paid;
    }

    /// Returns `instant` as a reading of the clock, rounded up. An instant in the past becomes the present reading.
    fn reading(&self, instant: &BigInt) -> u64 {
        let until = (instant - &self.now).max(BigInt::ZERO);
        let nanos: BigInt = (until + (self.limit - 1)) / self.limit;
        u64::try_from(nanos + self.last).unwrap_or(u64::MAX)
    }

    fn turn(&self, ahead: u128) -> u64 {
        self.reading(&self.after(ahead))
    }

    fn passing(&self) -> u64 {
        if self.next > self.now {
            return 0;
        }
        let stored = (&self.stored + &self.now - &self.next).min(self.most.clone());
        u64::try_from(stored / self.period + 1).unwrap_or(u64::MAX)
    }
}

/// Tests random schedules, some of them extreme. An admission may be late by `late` nanoseconds, which is 0 if the
/// algorithm is exact and otherwise 1.
fn runs<A: Algorithm>(build: impl Fn(Quota) -> A, most: u64, late: u64) {
    const LIMITS: [u64; 6] = [1, 3, 7, SECOND, u64::MAX - 1, u64::MAX];
    const PERIODS: [u64; 6] = [1, 10, SECOND, 60 * SECOND, MONTH, i64::MAX as u64];
    for seed in 0..scaled(SEQUENCES) {
        let mut random = Random::new(seed);
        let (limit, period) = (random.one_of(&LIMITS), random.one_of(&PERIODS));
        let start = random.one_of(&[0, 1, u64::MAX >> 1, u64::MAX - period, u64::MAX - 1, u64::MAX]);
        let quota = Quota::per(limit, Duration::from_nanos(period)).unwrap();
        let algorithm = build(quota);
        let mut state = algorithm.new_state(Nanos(start), Nanos(start));
        let mut exact = Exact::new(limit, period, start, most);
        let (mut now, mut since) = (start, start);
        for step in 0..40 {
            now = match random.below(10) {
                0..=2 => now,
                3 => now.saturating_add(period / limit),
                4 => now.saturating_add(random.below(period.saturating_mul(3))),
                5 => exact.turn(0).max(now),
                6 => exact.turn(0).saturating_sub(1).max(now),
                7 => now.saturating_sub(random.below(period.saturating_mul(3))),
                8 => random.one_of(&[0, u64::MAX >> 1, u64::MAX - 1, u64::MAX]),
                _ => now.saturating_add(1),
            };
            exact.observe(now);
            // After the clock was set back, the call cannot have waited since a reading that is still to come.
            since = since.min(exact.last);
            let what = format!("sequence {seed}, step {step}, at {now}: {algorithm:?} {state:?} {exact:?}");
            let alone = algorithm.peek(&mut state, Nanos(now), 1);
            assert_eq!(algorithm.last_update(&state), Nanos(exact.last), "{what}");
            // If no call waits, no units are ahead of the next call.
            let is_due = alone.is_allowed();
            let aheads = [0, 0, 1, 5, u128::from(u64::MAX), 5 * u128::from(u64::MAX)];
            let ahead = if is_due { 0 } else { random.one_of(&aheads) };
            let (mut tail, mut at, mut before) = (state.clone(), Nanos(now), ahead);
            while before > 0 {
                let cost = u64::try_from(before).unwrap_or(u64::MAX);
                at = algorithm.project(&mut tail, at, Nanos(exact.last), cost);
                before -= u128::from(cost);
            }
            let ready_at = algorithm.ready_at(&mut tail, at, 1).unwrap();
            let (reported, due) = (ready_at.0.max(exact.last), exact.turn(ahead));
            assert!(
                reported >= due && reported - due <= late,
                "turn {reported} for {due}, {ahead} ahead: {what}"
            );
            assert!(!is_due || exact.next <= exact.now, "due too early: {what}");
            let overdue = &exact.now - &exact.next >= BigInt::from(late) * limit;
            assert!(is_due || !overdue, "not due in time: {what}");
            let passing = alone.remaining();
            let at_once = exact.passing();
            assert!(passing <= at_once && (late > 0 || passing == at_once), "{passing} pass: {what}");
            if is_due {
                // A call that has waited may be charged at an earlier slot, except by a bucket, whose state was
                // advanced.
                let owed = random.one_of(&[0, 0, 1, period / limit]).min(exact.last - since);
                let owed = if most > 0 { owed } else { 0 };
                let cost = random.one_of(&[1, 1, 2, limit, u64::MAX]);
                let _ = algorithm.project(&mut state, Nanos(now), Nanos(exact.last - owed), cost);
                let arrived = &exact.now - BigInt::from(owed) * limit;
                exact.leave(&arrived, cost.into());
            }
        }
    }
}

#[test]
fn a_leaky_buckets_slots_are_exact_at_all_ends() {
    runs(LeakyBucket::new, 0, 0);
}

#[test]
fn a_bursty_limiters_slots_are_hardly_late_at_all_ends() {
    runs(Smooth::bursty, SECOND, 1);
}
