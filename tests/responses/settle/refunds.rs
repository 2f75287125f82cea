//! A refund returns the units that still count, and never more than the call was charged.

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::{Decision, Quota, RateLimiter};

use super::{Call, LIMIT, PERIOD, SECOND, behind, five, limiter, settling, unit};
use crate::generators::Kind;
use crate::generators::{KINDS, Rule, made_of_units};
use crate::reference_service::limited;
use crate::support::{Random, TickingClock};

/// Charges three units. After the end of their window, charges two units in the next window.
fn adds_nothing_to_the_next_window<A: Algorithm>(algorithm: A) {
    for actual in [0, 1, 2] {
        for (taken, clock) in (0..=2).flat_map(|taken| TickingClock::both().map(|clock| (taken, clock))) {
            let reported = |decision: Decision| reported(&decision, &clock);
            clock.set(Duration::from_secs(1_000));
            let rule = format!("{algorithm:?}");
            let ours = limiter(algorithm.clone(), &clock);
            let reference = limiter(algorithm.clone(), &clock);
            let service = limited(settling(&ours), behind());
            let call = Call::start(&service, 3);
            let _ = reference.check_n(&(), 3);
            // After two periods and a slice, all older units have expired.
            clock.advance(SECOND * 2 + SECOND / 10);
            for _ in 0..taken {
                assert_eq!(ours.check(&()).is_allowed(), reference.check(&()).is_allowed());
            }
            call.costs(actual);
            assert_eq!(reported(ours.peek_n(&(), 1)), reported(reference.peek_n(&(), 1)), "{rule}");
            for _ in 0..LIMIT {
                assert_eq!(reported(ours.check(&())), reported(reference.check(&())), "{rule}");
            }
        }
    }
}

/// Returns exact times if the clock stands still, so that two limiters read the same time.
fn reported(decision: &Decision, clock: &TickingClock) -> (bool, u64, Option<Duration>, Duration) {
    let times = match clock.ticks() {
        true => (decision.retry_after().map(|_| Duration::ZERO), Duration::ZERO),
        false => (decision.retry_after(), decision.reset_after()),
    };
    (decision.is_allowed(), decision.remaining(), times.0, times.1)
}

#[test]
fn a_refund_for_an_ended_window_adds_nothing_to_the_next() {
    for kind in KINDS {
        if kind != Kind::Concurrency {
            made_of_units!(Rule::of(kind, five()), |rule| adds_nothing_to_the_next_window(rule));
        }
    }
    let tuple = (FixedWindow::new(five()), SlidingLog::new(five()));
    adds_nothing_to_the_next_window(tuple);
    adds_nothing_to_the_next_window(TokenBucket::new(five()).block_for(SECOND).after(3));
    adds_nothing_to_the_next_window(FixedWindow::new(five()).priority(20));
}

/// While a call with an actual cost of zero still counts, settling it leaves the state as if the call had never been
/// made.
fn refunds_all<A: Algorithm>(algorithm: A) {
    for (before, clock) in (0..=2).flat_map(|before| TickingClock::both().map(|clock| (before, clock))) {
        clock.set(Duration::from_secs(1_000));
        let rule = format!("{algorithm:?}");
        let ours = limiter(algorithm.clone(), &clock);
        let reference = limiter(algorithm.clone(), &clock);
        let service = limited(settling(&ours), behind());
        for _ in 0..before {
            assert_eq!(ours.check(&()).is_allowed(), reference.check(&()).is_allowed());
        }
        let call = Call::start(&service, 1);
        if !call.goes_on() {
            continue;
        }
        clock.advance(SECOND / 50);
        call.costs(0);
        // `Smooth` is exact to the nanosecond.
        clock.advance(Duration::from_nanos(1));
        let (ours, reference) = (ours.peek(&()), reference.peek(&()));
        assert_eq!(
            (ours.is_allowed(), ours.remaining()),
            (reference.is_allowed(), reference.remaining()),
            "{rule}"
        );
    }
}

#[test]
fn a_refund_while_the_call_still_counts_returns_all_units() {
    for kind in KINDS {
        // Permits that a cold start has taken from the store are not given back.
        if ![Kind::Concurrency, Kind::WarmingUp].contains(&kind) {
            made_of_units!(Rule::of(kind, five()), |rule| refunds_all(rule));
        }
    }
    refunds_all((TokenBucket::new(five()), SlidingWindow::new(five())));
    refunds_all(SlidingCounter::new(five()).block_for(SECOND).after(3));
}

/// Some calls succeed and some fail. Only the failures count, and not longer than without the successes.
fn extends_nothing_else<A: Algorithm>(algorithm: A) {
    for clock in TickingClock::both() {
        clock.set(Duration::from_secs(1_000));
        let rule = format!("{algorithm:?}");
        let ours = limiter(algorithm.clone(), &clock);
        let reference = limiter(algorithm.clone(), &clock);
        let service = limited(settling(&ours), behind());
        for _ in 0..LIMIT - 1 {
            Call::start(&service, 1).costs(1);
            assert!(reference.check(&()).is_allowed());
        }
        for _ in 0..30 {
            clock.advance(SECOND / 10 + Duration::from_nanos(1));
            let call = Call::start(&service, 1);
            assert!(call.goes_on(), "{rule}");
            clock.advance(Duration::from_nanos(7));
            call.costs(0);
            assert_eq!(ours.peek(&()).remaining(), reference.peek(&()).remaining(), "{rule}");
        }
        assert_eq!(ours.peek(&()).remaining(), LIMIT, "{rule}");
    }
}

#[test]
fn refunded_units_extend_nothing_else() {
    use Kind::*;
    for kind in [FixedWindow, Aligned, SlidingWindow, SlidingCounter, SlidingLog] {
        made_of_units!(Rule::of(kind, five()), |rule| extends_nothing_else(rule));
    }
}

/// Asserts that no call is admitted that would be denied if each call had been charged its actual cost from the
/// beginning.
///
/// `other` makes the same algorithm as `rule`, or one that admits all that `rule` admits. The actual cost of each call
/// is at least `least`.
fn assert_refund_never_exceeds_charge<A: Algorithm, B: Algorithm>(
    rule: fn(Quota) -> A,
    other: fn(Quota) -> B,
    least: u64,
) {
    for (seed, clock) in (0..300).flat_map(|seed| TickingClock::both().map(|clock| (seed, clock))) {
        let nanos = |nanos| Duration::from_nanos(nanos) * unit(&clock);
        let mut random = Random::new(seed);
        let limit = 1 + random.below(9);
        let quota = Quota::per(limit, nanos(PERIOD)).unwrap();
        let (rule, kinder) = (rule(quota), other(quota));
        let mut now = 1_000_000;
        clock.set(nanos(now));
        let limiter = limiter(rule.clone(), &clock);
        let service = limited(settling(&limiter), behind());
        // The arrival, the charge and the actual cost of each call.
        let mut calls: Vec<(u64, u64)> = Vec::new();
        let mut open: Vec<(Call, usize)> = Vec::new();
        for _ in 0..20 {
            now += random.below(PERIOD / 3);
            clock.set(nanos(now));
            let cost = 1 + random.below(limit);
            let call = Call::start(&service, cost);
            if call.goes_on() {
                open.push((call, calls.len()));
                calls.push((now, cost));
            }
            if !open.is_empty() && random.one_in(2) {
                let at = random.below(open.len() as u64) as usize;
                let (call, at) = open.swap_remove(at);
                let actual = random.within(least..=calls[at].1);
                calls[at].1 = actual;
                call.costs(actual);
            }
            let clock = TickingClock::still();
            clock.set(nanos(1_000_000));
            let other = RateLimiter::builder(kinder.clone()).clock(clock.clone()).build();
            for (came, cost) in &calls {
                clock.set(nanos(*came));
                assert!(other.check_n(&(), *cost).is_allowed(), "seed {seed}: {rule:?}");
            }
            clock.set(nanos(now));
            let (ours, best) = (limiter.peek(&()).remaining(), other.peek(&()).remaining());
            assert!(ours <= best, "seed {seed}, at {now}: {ours} and not {best}: {rule:?}");
        }
    }
}

#[test]
fn refund_never_exceeds_charge() {
    let aligned = |quota| FixedWindow::new(quota).aligned();
    assert_refund_never_exceeds_charge(aligned, aligned, 0);
    assert_refund_never_exceeds_charge(SlidingLog::new, SlidingLog::new, 0);
    assert_refund_never_exceeds_charge(SlidingWindow::new, SlidingLog::new, 0);
    assert_refund_never_exceeds_charge(TokenBucket::new, TokenBucket::new, 0);
    let leaky = |quota| LeakyBucket::new(quota).queue(0);
    assert_refund_never_exceeds_charge(leaky, leaky, 0);
    let bursty = |quota| Smooth::bursty(quota).queue(0);
    assert_refund_never_exceeds_charge(bursty, bursty, 0);
    // The windows begin with a call, so this call must have a cost above 0.
    assert_refund_never_exceeds_charge(FixedWindow::new, FixedWindow::new, 1);
    assert_refund_never_exceeds_charge(SlidingCounter::new, SlidingCounter::new, 1);
}
