//! `Smooth` against real arithmetic. It is never early, and each call is late by at most a nanosecond.

use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, Smooth};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::{Quota, RateLimiter};

use crate::oracle::cases::smooth;
use crate::oracle::config::{Rule, SECOND};
use crate::oracle::model::{Oracle, Smooth as Exact};
use crate::support::{Random, scaled};

/// The time of the next call, in grains of `1 / limit` nanoseconds. At most one second of unused time is stored.
struct Bursty {
    limit: i128,
    period: i128,
    next: i128,
}

impl Bursty {
    fn admits(&self, now: i128) -> bool {
        self.next <= now * self.limit
    }

    fn admit(&mut self, now: i128, cost: i128) {
        let oldest = (now - 1_000_000_000) * self.limit;
        self.next = self.next.max(oldest) + cost * self.period;
    }
}

/// A bursty limiter whose interval is a whole number of nanoseconds, so that nothing is rounded: the time until the
/// next call, and the stored time. One of them is 0, or both are.
#[derive(Clone, Debug)]
struct Whole {
    interval: u64,
    wait: u64,
    stored: u64,
}

impl Whole {
    fn elapse(&mut self, nanos: u64) {
        self.stored = SECOND.min(self.stored + nanos.saturating_sub(self.wait));
        self.wait = self.wait.saturating_sub(nanos);
    }

    fn pay(&mut self, units: u64) {
        let (time, stored) = (units * self.interval, self.stored);
        self.stored = stored.saturating_sub(time);
        self.wait += time.saturating_sub(stored);
    }

    /// Charges units as the docs of `max_debt` say. Returns how many.
    fn charge(&mut self, units: u64, max_debt: u64) -> u64 {
        let most = match max_debt {
            0 => units,
            _ => 1 + SECOND / self.interval + max_debt,
        };
        if self.wait == 0 {
            self.pay(units.min(most));
            return units.min(most);
        }
        let before = self.wait;
        self.wait = (before + units * self.interval).min(before.max(most * self.interval));
        (self.wait - before).div_ceil(self.interval)
    }
}

#[test]
fn the_debt_of_a_bursty_limiter_is_bounded_by_the_calls_that_pass_at_once_and_the_maximum() {
    for seed in 0..scaled(5_000) {
        let mut random = Random::new(seed);
        let interval = random.one_of(&[1_000_000, 200_000_000, 333_333_333, SECOND, 7 * SECOND]);
        let smooth = Smooth::bursty(Quota::per(1, Duration::from_nanos(interval)).unwrap());
        let (mut now, mut exact) = (5 * SECOND, Whole { interval, wait: 0, stored: 0 });
        let mut state = smooth.new_state(Nanos(now), Nanos(now));
        for step in 0..40 {
            let any = random.within(0..=20 * interval);
            let pause = random.one_of(&[0, 1, exact.wait, interval, any]);
            now += pause;
            exact.elapse(pause);
            let (units, max_debt) = (random.within(0..=30), random.one_of(&[0, 1, 5, 2_000]));
            let what = format!("step {step} of {seed}: {units} of at most {max_debt} units, {exact:?}");
            if random.one_in(2) {
                let charged = smooth.charge(&mut state, Nanos(now), units, max_debt);
                assert_eq!(charged, exact.charge(units, max_debt), "{what}");
            } else if smooth.check(&mut state, Nanos(now), units).is_allowed() && units > 0 {
                assert_eq!(exact.wait, 0, "{what}");
                exact.pay(units);
            }
            let wait = smooth.peek(&mut state, Nanos(now), 1).retry_after().unwrap_or_default();
            assert_eq!(wait, Duration::from_nanos(exact.wait), "{what}, {exact:?}");
        }
    }
}

#[test]
fn a_bursty_limiter_is_never_early_and_hardly_late() {
    let mut random = Random::new(0);
    for sequence in 0..scaled(2_000) as usize {
        let limit = 1 + random.below([3, 100, 1_000_000_000][sequence % 3]);
        let period = 1 + random.below([1_000, 1_000_000_000, 3_600_000_000_000][sequence / 3 % 3]);
        let smooth = Smooth::bursty(Quota::per(limit, Duration::from_nanos(period)).unwrap());
        let start = 5_000_000_000;
        let mut state = smooth.new_state(Nanos(start), Nanos(start));
        let mut exact = Bursty {
            limit: limit.into(),
            period: period.into(),
            next: i128::from(start) * i128::from(limit),
        };
        let (mut now, mut admitted, mut reported) = (start, 0, 0);
        for _ in 0..64 {
            now += match random.below(6) {
                0 => 0,
                1 => reported,
                2 => u64::saturating_sub(reported, 1),
                3 => random.below(period) + 1,
                4 => period / limit,
                _ => random.below(2_000_000_000),
            };
            let cost = 1 + random.below(4);
            let decision = smooth.check(&mut state, Nanos(now), cost);
            let (at, late) = (i128::from(now), i128::from(admitted));
            if decision.is_allowed() {
                assert!(exact.admits(at), "early: {limit} per {period} ns, at {now}");
                exact.admit(at, cost.into());
                admitted += 1;
                reported = 0;
            } else {
                assert!(
                    !exact.admits(at - late),
                    "late by more than {late} ns: {limit} per {period} ns, at {now}"
                );
                let wait = decision.retry_after().unwrap().as_nanos() as u64;
                let tried =
                    |after: u64| smooth.check(&mut state.clone(), Nanos(now + after), cost).is_allowed();
                assert!(tried(wait) && !tried(wait - 1), "retry_after of {wait} is not true");
                reported = wait;
            }
            let mut copy = state.clone();
            let mut more = 0;
            while more <= 1_000 && smooth.check(&mut copy, Nanos(now), 1).is_allowed() {
                more += 1;
            }
            assert_eq!(more, smooth.peek(&mut state, Nanos(now), 1).remaining().min(1_001));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_follows_guavas_own_examples() {
    let waits = async |smooth: Smooth, calls: usize| {
        let limiter = RateLimiter::new(smooth);
        let mut waits = Vec::new();
        for _ in 0..calls {
            let waited = limiter.acquire("upstream").await.delay();
            waits.push((waited.as_secs_f64() * 100.0).round() as u64);
        }
        waits
    };
    assert_eq!(waits(Smooth::bursty(Quota::per_second(5)), 3).await, [0, 20, 20]);
    let warming = Smooth::warming_up(Quota::per_second(2), Duration::from_secs(4));
    assert_eq!(waits(warming, 8).await, [0, 138, 113, 88, 63, 50, 50, 50]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_is_denied_at_once_with_a_true_retry_after() {
    let smooth = Smooth::bursty(Quota::per_second(5)).max_wait(Duration::from_millis(150));
    let limiter = RateLimiter::new(smooth);
    assert!(limiter.acquire("upstream").await.is_allowed());
    let denied = limiter.acquire("upstream").await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(Duration::from_millis(50))));
    tokio::time::advance(Duration::from_millis(50)).await;
    assert_eq!(limiter.acquire("upstream").await.delay(), Duration::from_millis(150));
}

#[tokio::test]
async fn acquire_and_check_report_the_same_reset() {
    let clock = ManualClock::new();
    for smooth in [
        Smooth::bursty(Quota::per_second(4)),
        Smooth::warming_up(Quota::per_second(4), Duration::from_secs(1)),
    ] {
        let limiter = RateLimiter::builder(smooth).clock(clock.clone()).build();
        clock.advance(Duration::from_secs(10));
        let checked = limiter.check("a").reset_after();
        assert!(checked > Duration::ZERO);
        assert_eq!(limiter.acquire("b").await.reset_after(), checked);
    }
}

/// Because of rounding, the store fills a little less while the limiter is idle. A store that is less full is less
/// cold, but this must not make the next call early.
#[test]
fn a_queue_that_was_late_does_not_warm_a_cold_limiter() {
    let quota = Quota::per(7, Duration::from_nanos(74_937)).unwrap();
    let warming = Smooth::warming_up(quota, Duration::from_nanos(2_595_853)).cold_factor(1_000.0);
    let mut state = warming.new_state(Nanos::ZERO, Nanos::ZERO);
    let _ = warming.project(&mut state, Nanos::ZERO, Nanos::ZERO, 2_425);
    for _ in 0..200 {
        let _ = warming.project(&mut state, Nanos::ZERO, Nanos::ZERO, 1);
    }
    let later = Nanos(33_283_413);
    let _ = warming.peek(&mut state, later, 0);
    let _ = warming.project(&mut state, later, later, 2);
    // In real arithmetic, the time is 34,135,469.00007 ns.
    assert_eq!(warming.ready_at(&mut state, later, 1), Some(Nanos(34_135_470)));
}

/// If the clock is set back, the stored time stays the same, so a cold limiter stays cold.
#[test]
fn a_clock_that_is_set_back_keeps_the_store() {
    let quota = Quota::per_second(4);
    for smooth in [Smooth::bursty(quota), Smooth::warming_up(quota, Duration::from_secs(4))] {
        let at = |seconds: u64| Nanos(seconds * 1_000_000_000);
        let mut state = smooth.new_state(at(0), at(100));
        assert!(smooth.check(&mut state, at(100), 40).is_allowed());
        // The key has been idle until it is fresh. The call of cost 0 does not change this.
        assert!(smooth.check(&mut state, at(200), 0).is_allowed());
        let reported = smooth.peek(&mut state, at(200), 1);
        let back = smooth.peek(&mut state, at(3), 1);
        assert_eq!(back, reported, "{smooth:?}");
        assert_eq!(back.reset_after(), Duration::ZERO, "{smooth:?}");
    }
}

/// Uses up the slope of a store, and idles until the store is nearly full again, `times` times. Returns the waits that
/// differ from those of real arithmetic, and by how much they differ.
fn cold_starts(cold_factor: u64, times: usize) -> Vec<(usize, i128)> {
    let warm_up = 1_000_000_007;
    let (slices, aligned) = (1, false);
    let (warm_up, cold_factor) = (Some(warm_up), cold_factor << 10);
    let rule = Rule { limit: 7, period: 997, burst: 7, slices, aligned, warm_up, cold_factor };
    let limiter = smooth(&rule);
    let mut state = limiter.new_state(Nanos::ZERO, Nanos::ZERO);
    let mut exact = Exact::new(&rule, 0, 0);
    let slope = 2 * 1_000_000_007 * 1_024 / (cold_factor + 1_024);
    let (mut now, mut different) = (0, Vec::new());
    for time in 0..times {
        let cost = slope * 9 / 10 * 7 / 997;
        let _ = limiter.check(&mut state, Nanos(now), cost);
        exact.observe(now);
        exact.admit(cost);
        let reported = limiter.peek(&mut state, Nanos(now), 1);
        let wait = reported.retry_after().expect("it has to wait").as_nanos();
        if wait != exact.waits() {
            different.push((time, wait as i128 - exact.waits() as i128));
        }
        now += u64::try_from(reported.reset_after().as_nanos()).unwrap() - slope / 10;
    }
    different
}

#[test]
fn a_hundred_cold_starts_are_never_early_and_hardly_late() {
    let different = cold_starts(3, 100);
    assert!(different.iter().all(|(_, late)| *late == 1), "{different:?}");
}

/// No number of digits is enough, since each of these cold starts multiplies the rounding error by five, and by five
/// hundred with a cold factor of 1,000. The docs say how many cold starts are exact.
#[test]
fn consecutive_cold_starts_of_a_steep_limiter_are_exact_as_far_as_the_docs_say() {
    for (cold_factor, exact) in [(10, 15), (1_000, 4)] {
        let different = cold_starts(cold_factor, exact);
        assert!(different.iter().all(|(_, late)| *late == 1), "{cold_factor}: {different:?}");
        assert!(cold_starts(cold_factor, 2 * exact).len() > different.len(), "the docs may promise more");
    }
}
