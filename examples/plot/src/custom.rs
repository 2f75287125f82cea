//! The pictures of limits that depend on more than arrivals: on the duration of calls, on denials, or on the tier.

use std::time::Duration;

use tower_throttle::algorithm::{Concurrency, FixedWindow, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

use crate::arrivals::{QUOTA, arrivals};
use crate::curve::{Curve, FINE};
use crate::figures::{Inside, PER_SECOND, Scene};
use crate::workload::Workload;

const KEY: &str = "the only key";

/// The duration of each call in the picture of [`concurrency`].
pub(crate) const CALL: Duration = Duration::from_millis(600);

pub(crate) fn concurrency() -> Scene {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(Concurrency::per_key(4)).clock(clock.clone()).build();
    let mut permits = Vec::new();
    let workload = Workload::checked(&clock, &arrivals(), |now| {
        permits.retain(|(end, _)| *end > now);
        let permit = limiter.try_acquire_permit(KEY).ok();
        permit.map(|permit| permits.push((now + CALL, permit))).is_some()
    });
    let curve = Curve::of(&workload, |workload, now| workload.in_progress(now, CALL));
    Scene {
        name: "concurrency",
        title: "Concurrency: a call is denied while four are in progress",
        limit: "The limit is 4 at a time; each call takes 0.6 s.",
        is_per_second: false,
        workload,
        inside: Inside { name: "calls in progress", curve, level: (4, "limit 4"), max: 4 },
    }
}

pub(crate) fn lockout() -> Scene {
    let limiter = |clock: &ManualClock| {
        let lockout = FixedWindow::new(QUOTA).block_for(Duration::from_secs(2)).after(3);
        RateLimiter::builder(lockout).clock(clock.clone()).build()
    };
    let clock = ManualClock::new();
    let first = limiter(&clock);
    let workload = Workload::checked(&clock, &arrivals(), |_| first.check(KEY).is_allowed());

    let clock = ManualClock::new();
    let second = limiter(&clock);
    let call = |_| _ = second.check(KEY);
    // The values of a curve are in thousandths. Here, the value is a time in seconds, so its thousandths are
    // milliseconds.
    let wait =
        |_| second.peek(KEY).retry_after().unwrap_or_default().as_millis().try_into().unwrap_or(u64::MAX);
    let curve = Curve::replay(&clock, &arrivals(), call, wait);
    Scene {
        name: "lockout",
        title: "Lockout: three denials within a second lock the key out for 2 s",
        limit: PER_SECOND,
        is_per_second: true,
        workload,
        inside: Inside { name: "seconds until a call passes", curve, level: (2, "locked out"), max: 4 },
    }
}

pub(crate) fn priority() -> Scene {
    let workload = Workload::with_priority(FixedWindow::new(QUOTA).priority(50), &arrivals(), |n| n % 3 == 2);
    let curve = Curve::of(&workload, Workload::queued);
    Scene {
        name: "priority",
        title: "Priority: some calls wait, and take half of the next window",
        limit: "Every third call has priority.",
        is_per_second: true,
        workload,
        inside: Inside { name: "calls that wait for the next window", curve, level: (2, "50 %"), max: 4 },
    }
}

pub(crate) fn tiers() -> Scene {
    let bucket = |now: Duration, unit: u64| {
        let pays = (2_200..5_250).contains(&now.as_millis());
        TokenBucket::new(Quota::per_second(unit * if pays { 8 } else { 4 }))
    };
    let limiter = |unit, clock: &ManualClock| {
        RateLimiter::builder(Tiered::new(bucket(Duration::ZERO, unit))).clock(clock.clone()).build()
    };
    let clock = ManualClock::new();
    let first = limiter(1, &clock);
    let check = |now| first.call(KEY).tier(&bucket(now, 1)).check().is_allowed();
    let workload = Workload::checked(&clock, &arrivals(), check);

    let (clock, unit) = (ManualClock::new(), FINE.limit() / QUOTA.limit());
    let second = limiter(unit, &clock);
    let call = |now| {
        assert!(second.call(KEY).cost(unit).tier(&bucket(now, unit)).check().is_allowed(), "at {now:?}");
    };
    let tokens = |now| second.call(KEY).tier(&bucket(now, unit)).peek().remaining();
    let curve = Curve::replay(&clock, &workload.passes(), call, tokens);
    Scene {
        name: "tiers",
        title: "Tiers: used units stay used when the tier changes",
        limit: "The limit is 4 per second, 8 from 2.2 s to 5.25 s.",
        is_per_second: false,
        workload,
        inside: Inside {
            name: "tokens in the bucket of the user's tier",
            curve,
            level: (4, "full, unpaid"),
            max: 8,
        },
    }
}
