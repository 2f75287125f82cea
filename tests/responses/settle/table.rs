//! A table of calls. After each call, as many units are left as if it had been charged its actual cost from the
//! beginning or, if its units have expired before it ended, as if it had not been settled.

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Tiered, TokenBucket,
};
use tower_throttle::{Decision, RateLimiter};

use super::{Call, LIMIT, SECOND, behind, five, limiter, settling};
use crate::generators::{KINDS, Kind, Rule, made_of_units};
use crate::reference_service::limited;
use crate::support::TickingClock;

/// How many calls there are, what each of them is charged, its actual cost, the time until it ends, and that until the
/// next one.
type Row = (u64, u64, u64, Duration, Duration);

/// `Smooth` is exact to the nanosecond.
const NS: Duration = Duration::from_nanos(1);
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_nanos(100_001_000);
/// After two periods and a slice, all units have expired.
const EXPIRED: Duration = Duration::from_millis(2_100);

/// Only some of the calls count, or they cost less than their estimates.
const CALLS: [&[Row]; 2] = [
    &[(10, 1, 0, NS, NS), (LIMIT, 1, 1, NS, NS)],
    &[(1, 3, 0, SOON, NS), (1, 3, 1, SOON, NS), (1, 2, 2, SOON, NS), (1, 1, 0, SOON, NS)],
];

/// The calls of a window whose other units expire meanwhile.
const LONG_CALLS: &[Row] = &[(LIMIT - 1, 1, 1, NS, NS), (30, 1, 0, NS, LATER)];

const EXPIRED_CALLS: [&[Row]; 3] =
    [&[(1, 3, 0, EXPIRED, NS)], &[(1, 3, 1, EXPIRED, NS)], &[(1, 3, 2, EXPIRED, NS)]];

/// Returns what a decision reports. Its times are exact if the clock stands still, so that two limiters read the same.
fn reported(decision: &Decision, is_exact: bool) -> (bool, u64, Option<(Option<Duration>, Duration)>) {
    let times = is_exact.then(|| (decision.retry_after(), decision.reset_after()));
    (decision.is_allowed(), decision.remaining(), times)
}

/// Makes the calls of the rows, each with `meanwhile` other calls before it ends.
fn settles<A: Algorithm>(algorithm: &A, rows: &[Row], meanwhile: usize, clock: &TickingClock) {
    clock.set(SECOND * 1_000);
    let [ours, reference] = [(); 2].map(|()| limiter(algorithm.clone(), clock));
    let service = limited(settling(&ours), behind());
    let is_exact = !clock.ticks() && rows.iter().all(|(.., length, _)| *length == EXPIRED);
    let agree = |call: &dyn Fn(&RateLimiter<A>) -> Decision, what: &str| {
        let [ours, reference] = [&ours, &reference].map(|limiter| reported(&call(limiter), is_exact));
        assert_eq!(ours, reference, "{what} of {algorithm:?} after {rows:?}");
    };
    for (count, charged, actual, length, pause) in rows.iter().copied() {
        for _ in 0..count {
            let fits = reference.peek_n(&(), charged).is_allowed();
            let call = Call::start(&service, charged);
            assert_eq!(call.goes_on(), fits, "{algorithm:?}, {rows:?}");
            if fits {
                let counts = if length == EXPIRED { charged } else { actual };
                assert!(reference.check_n(&(), counts).is_allowed());
                clock.advance(length);
                for _ in 0..meanwhile {
                    agree(&|limiter| limiter.check(&()), "a call meanwhile");
                }
                call.costs(actual);
            }
            clock.advance(pause);
            agree(&|limiter| limiter.peek(&()), "a look");
        }
    }
    for _ in 0..=LIMIT {
        agree(&|limiter| limiter.check(&()), "a later call");
    }
}

fn each_row<A: Algorithm>(algorithm: A) {
    for clock in TickingClock::both() {
        CALLS.iter().for_each(|rows| settles(&algorithm, rows, 0, &clock));
    }
    expired(algorithm);
}

fn expired<A: Algorithm>(algorithm: A) {
    for clock in TickingClock::both() {
        for meanwhile in 0..=2 {
            EXPIRED_CALLS.iter().for_each(|rows| settles(&algorithm, rows, meanwhile, &clock));
        }
    }
}

fn each_row_of_a_window<A: Algorithm>(algorithm: A) {
    for clock in TickingClock::both() {
        settles(&algorithm, LONG_CALLS, 0, &clock);
    }
    each_row(algorithm);
}

#[test]
fn a_settled_call_leaves_what_its_actual_cost_would_have_left() {
    for kind in KINDS {
        match kind {
            Kind::Concurrency => {}
            // Permits that a cold start has taken from the store are not given back.
            Kind::WarmingUp => made_of_units!(Rule::of(kind, five()), |rule| expired(rule)),
            Kind::TokenBucket | Kind::LeakyBucket | Kind::Bursty => {
                made_of_units!(Rule::of(kind, five()), |rule| each_row(rule));
            }
            _ => made_of_units!(Rule::of(kind, five()), |rule| {
                each_row_of_a_window(rule.clone().block_for(SECOND).after(1_000));
                each_row_of_a_window(rule);
            }),
        }
    }
    each_row((TokenBucket::new(five()), SlidingWindow::new(five())));
    each_row((LeakyBucket::new(five()).queue(0), SlidingCounter::new(five())));
    each_row(TokenBucket::new(five()).block_for(SECOND).after(1_000));
    each_row_of_a_window((FixedWindow::new(five()), SlidingLog::new(five())));
    each_row_of_a_window(Tiered::new(FixedWindow::new(five())));
    each_row_of_a_window(FixedWindow::new(five()).priority(20));
    each_row_of_a_window(SlidingWindow::new(five()).priority(20));
    each_row_of_a_window(SlidingCounter::new(five()).priority(20));
    each_row_of_a_window(SlidingLog::new(five()).priority(20));
}
