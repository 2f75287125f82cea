//! A tuple of limits on one key reports and charges what each limit alone would: all of them, or none.

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::{Decision, Quota};

use crate::support::{Random, effective_window, limiter};

const SECOND: u64 = 1_000_000_000;
/// The number of calls in one case.
const CALLS: usize = 24;
/// Waits beyond 584 years from the clock's zero are not exact.
const LONG: Duration = Duration::from_nanos(i64::MAX as u64);

/// Returns a quota that a few calls can use up, or sometimes an extreme quota.
fn quota(random: &mut Random) -> Quota {
    let limit = match random.below(8) {
        0 => 1,
        1 => u64::MAX >> random.below(64),
        _ => 1 + random.below(12),
    };
    let period = match random.below(8) {
        0 => 1,
        1 => i64::MAX as u64 >> random.below(63),
        2 => 1 + random.below(100),
        _ => SECOND / (1 + random.below(7)),
    };
    let quota = Quota::per(limit, Duration::from_nanos(period)).unwrap();
    if random.one_in(3) { quota.burst(1 + random.below(20)) } else { quota }
}

/// An algorithm that can be made from random numbers.
trait Kind: Algorithm + PartialEq {
    fn any(random: &mut Random) -> Self;
}

impl Kind for TokenBucket {
    fn any(random: &mut Random) -> Self {
        let bucket = Self::new(quota(random));
        if random.one_in(4) { bucket.start_empty() } else { bucket }
    }
}

impl Kind for FixedWindow {
    fn any(random: &mut Random) -> Self {
        let window = Self::new(quota(random));
        if random.one_in(2) { window.aligned() } else { window }
    }
}

impl Kind for SlidingWindow {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random)).slices(1 + random.below(12) as usize)
    }
}

impl Kind for SlidingCounter {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random))
    }
}

impl Kind for SlidingLog {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random))
    }
}

/// No call is queued. A call that cannot be admitted at once is denied.
impl Kind for LeakyBucket {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random)).queue(0)
    }
}

impl Kind for Smooth {
    fn any(random: &mut Random) -> Self {
        let quota = quota(random);
        let smooth = match random.below(2) {
            0 => Self::bursty(quota),
            _ => Self::warming_up(quota, Duration::from_millis(random.below(5_000))),
        };
        smooth.queue(0)
    }
}

/// Runs a check with each pair of the seven kinds.
macro_rules! with_each_pair {
    ($test:ident, $cases:expr) => {
        with_each_pair!(
            $test, $cases,
            TokenBucket FixedWindow SlidingWindow SlidingCounter SlidingLog LeakyBucket Smooth
        );
    };
    ($test:ident, $cases:expr, $($first:ident)+) => {
        let mut random = Random::new(0x709e_7e12);
        $(
            with_each_pair!(@second $test, $cases, random, $first);
        )+
    };
    (@second $test:ident, $cases:expr, $random:ident, $first:ident) => {
        for _ in 0..$cases {
            $test::<$first, TokenBucket>($random.word());
            $test::<$first, FixedWindow>($random.word());
            $test::<$first, SlidingWindow>($random.word());
            $test::<$first, SlidingCounter>($random.word());
            $test::<$first, SlidingLog>($random.word());
            $test::<$first, LeakyBucket>($random.word());
            $test::<$first, Smooth>($random.word());
        }
    };
}
/// The number of cases for each of the 49 pairs. In all, there are more than 10,000 cases.
const CASES: usize = 210;

/// Returns the next reading of the clock. It is a later reading, the reported time, or an earlier reading.
fn next_time(random: &mut Random, now: u64, reported: Option<&Decision>) -> u64 {
    let reported =
        |span: fn(&Decision) -> Duration| reported.map_or(0, |reported| Nanos::from(span(reported)).0);
    let retry = reported(|decision| decision.retry_after().unwrap_or_default());
    let on = match random.below(16) {
        0..=5 => 0,
        6 => 1,
        7 => retry,
        8 => retry.saturating_sub(1),
        9 => reported(Decision::reset_after),
        10 => random.below(100),
        11 => return now.saturating_sub(random.below(100)),
        12 => return now.saturating_sub(random.below(3 * SECOND)),
        13 => random.below(100 * SECOND),
        _ => random.below(SECOND),
    };
    now.saturating_add(on).min(1 << 61)
}

fn next_cost(random: &mut Random) -> u64 {
    match random.below(16) {
        0 => 0,
        1 => u64::MAX >> random.below(64),
        2 | 3 => 1 + random.below(12),
        4 => u64::MAX,
        _ => 1 + random.below(2),
    }
}

/// Returns the index of the decision that the tuple must report. Each decision has the window over which its remaining
/// units spread.
///
/// If there are denials, this is the denial with the longest wait. Otherwise, it is the decision with the fewest
/// remaining units and, of several such decisions, the one with the longest window. Of equal decisions, it is the
/// first.
fn most_urgent(each: &[(Decision, Option<Duration>)]) -> usize {
    let denied = each.iter().any(|(decision, _)| !decision.is_allowed());
    let mut chosen: Option<usize> = None;
    for (at, (decision, window)) in each.iter().enumerate() {
        if decision.is_allowed() == denied {
            continue;
        }
        let beats = |(other, others): &(Decision, Option<Duration>)| match denied {
            true => {
                let wait = |decision: &Decision| decision.retry_after().unwrap_or(Duration::MAX);
                wait(decision) > wait(other)
            }
            false => {
                decision.remaining() < other.remaining()
                    || decision.remaining() == other.remaining() && window > others
            }
        };
        if chosen.is_none_or(|chosen| beats(&each[chosen])) {
            chosen = Some(at);
        }
    }
    chosen.unwrap()
}

/// Asserts that the tuple's decision is composed of the decisions of its members.
fn assert_merged(got: &Decision, each: &[(Decision, Option<Duration>)], case: &str) {
    let index = most_urgent(each);
    let (reported, _) = each[index];
    let remaining = each.iter().map(|(decision, _)| decision.remaining()).min().unwrap();
    let reset = each.iter().map(|(decision, _)| decision.reset_after()).max().unwrap();
    let expected = (reported.is_allowed(), index, reported.limit(), remaining, reported.retry_after(), reset);
    let got = (
        got.is_allowed(),
        got.limit_index(),
        got.limit(),
        got.remaining(),
        got.retry_after(),
        got.reset_after(),
    );
    assert_eq!(got, expected, "{case}, each alone: {each:?}");
}

/// A tuple, and copies of its members that are called one by one. Before each call, both copies are peeked at.
struct Mutants<A: Algorithm, B: Algorithm> {
    pair: (A, B),
    state: (A::State, B::State),
    alone: (A::State, B::State),
}

impl<A: Algorithm, B: Algorithm> Mutants<A, B> {
    fn new(pair: (A, B), now: Nanos) -> Self {
        let fresh = || (pair.0.new_state(Nanos::ZERO, now), pair.1.new_state(Nanos::ZERO, now));
        Self { state: pair.new_state(Nanos::ZERO, now), alone: fresh(), pair }
    }

    fn looks(&mut self, now: Nanos, cost: u64) -> [Decision; 2] {
        let (a, b) = &mut self.alone;
        [self.pair.0.peek(a, now, cost), self.pair.1.peek(b, now, cost)]
    }

    /// Returns each decision with the window over which its remaining units spread.
    fn windows(&self, each: [Decision; 2]) -> [(Decision, Option<Duration>); 2] {
        let [a, b] = each;
        [(a, effective_window(&self.pair.0, &a)), (b, effective_window(&self.pair.1, &b))]
    }

    /// Returns the decisions of the members in the tuple, from peeks at a copy of the state.
    fn inside(&self, now: Nanos, cost: u64) -> [Decision; 2] {
        let (mut a, mut b) = self.state.clone();
        [self.pair.0.peek(&mut a, now, cost), self.pair.1.peek(&mut b, now, cost)]
    }

    fn call(&mut self, now: Nanos, cost: u64, case: &str) -> Decision {
        let looked = self.pair.peek(&mut self.state, now, cost);
        let looks = self.looks(now, cost);
        assert_merged(&looked, &self.windows(looks), case);
        let got = self.pair.check(&mut self.state, now, cost);
        let each = match looks.iter().all(Decision::is_allowed) {
            true => {
                let (a, b) = &mut self.alone;
                [self.pair.0.check(a, now, cost), self.pair.1.check(b, now, cost)]
            }
            false => looks,
        };
        assert_merged(&got, &self.windows(each), case);
        for cost in [0, 1, cost] {
            assert_eq!(self.inside(now, cost), self.looks(now, cost), "{case}: what is left in each");
        }
        got
    }

    /// Asserts that the same call is denied at every instant before its `retry_after`, and allowed at this instant.
    fn wait_is_true(&self, now: Nanos, cost: u64, denied: &Decision, random: &mut Random, case: &str) {
        let allowed = |at: u64| self.pair.check(&mut self.state.clone(), Nanos(at), cost).is_allowed();
        let Some(wait) = denied.retry_after() else {
            assert!(!allowed(now.0.saturating_add(i64::MAX as u64)), "{case}: it never fits");
            return;
        };
        let wait = Nanos::from(wait).0;
        assert!(wait > 0, "{case}: denied for no time");
        if wait > Nanos::from(LONG).0 {
            return;
        }
        let then = now.0 + wait;
        assert!(allowed(then), "{case}: denied when the wait is over");
        for before in [then - 1, now.0 + wait / 2, now.0 + random.below(wait), now.0] {
            assert!(!allowed(before), "{case}: allowed {} ns before", then - before);
        }
    }
}

fn as_two_alone<A: Kind, B: Kind>(seed: u64) {
    let mut random = Random::new(seed);
    let pair = (A::any(&mut random), B::any(&mut random));
    let mut now = random.below(10 * SECOND);
    let case = format!("seed {seed:#x}: {pair:?}");
    let mut mutants = Mutants::new(pair, Nanos(now));
    let mut reported = None;
    for _ in 0..CALLS {
        now = next_time(&mut random, now, reported.as_ref());
        let cost = next_cost(&mut random);
        let decision = mutants.call(Nanos(now), cost, &case);
        if !decision.is_allowed() {
            mutants.wait_is_true(Nanos(now), cost, &decision, &mut random, &case);
        }
        if random.one_in(6) {
            let back = random.below(4);
            mutants.pair.refund(&mut mutants.state, Nanos(now), back, None);
            mutants.pair.0.refund(&mut mutants.alone.0, Nanos(now), back, None);
            mutants.pair.1.refund(&mut mutants.alone.1, Nanos(now), back, None);
        }
        if random.one_in(12) {
            let next = (A::any(&mut random), B::any(&mut random));
            next.migrate(&mut mutants.state, &mutants.pair, Nanos(now));
            next.0.migrate(&mut mutants.alone.0, &mutants.pair.0, Nanos(now));
            next.1.migrate(&mut mutants.alone.1, &mutants.pair.1, Nanos(now));
            mutants.pair = next;
        }
        let fresh = mutants.pair.0.is_fresh(&mutants.alone.0, Nanos(now))
            && mutants.pair.1.is_fresh(&mutants.alone.1, Nanos(now));
        assert_eq!(mutants.pair.is_fresh(&mutants.state, Nanos(now)), fresh, "{case}");
        let seen =
            mutants.pair.0.last_update(&mutants.alone.0).max(mutants.pair.1.last_update(&mutants.alone.1));
        assert_eq!(mutants.pair.last_update(&mutants.state), seen, "{case}");
        reported = Some(decision);
    }
}

#[test]
fn a_tuple_reports_and_charges_what_each_alone_would() {
    with_each_pair!(as_two_alone, CASES);
}

/// Tuples that are nested or long decide like flat ones.
#[test]
fn nesting_of_tuples_changes_no_decision() {
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let a = TokenBucket::any(&mut random);
        let b = FixedWindow::any(&mut random);
        let c = SlidingLog::any(&mut random);
        let d = SlidingCounter::any(&mut random);
        let e = LeakyBucket::any(&mut random);
        let clock = ManualClock::new();
        let flat = limiter((a.clone(), b.clone(), c.clone(), d.clone(), e.clone()), &clock);
        let deep = limiter((((a.clone(), b.clone()), c.clone()), (d.clone(), e.clone())), &clock);
        let right = limiter((a, (b, (c, (d, e)))), &clock);
        let (mut now, mut reported) = (0, None);
        for _ in 0..CALLS {
            now = next_time(&mut random, now, reported.as_ref());
            clock.set(Duration::from_nanos(now));
            let cost = next_cost(&mut random);
            let decision = flat.check_n(&(), cost);
            assert_eq!(decision, deep.check_n(&(), cost), "seed {seed}");
            assert_eq!(decision, right.check_n(&(), cost), "seed {seed}");
            let window = effective_window(&flat.algorithm(), &decision);
            assert_eq!(window, effective_window(&deep.algorithm(), &decision), "seed {seed}");
            assert_eq!(window, effective_window(&right.algorithm(), &decision), "seed {seed}");
            reported = Some(decision);
        }
    }
}

/// The remaining units of the reported limit spread over the window of that limit, and not over the window of another
/// limit.
fn window_of_the_reported_limit<A: Kind, B: Kind>(seed: u64) {
    let mut random = Random::new(seed);
    let mut mutants = Mutants::new((A::any(&mut random), B::any(&mut random)), Nanos::ZERO);
    let case = format!("seed {seed:#x}: {:?}", mutants.pair);
    let mut now = 0;
    for _ in 0..6 {
        let looks = mutants.looks(Nanos(now), 1);
        let each = mutants.windows(looks);
        let got = mutants.pair.peek(&mut mutants.state, Nanos(now), 1);
        let (_, window) = each[most_urgent(&each)];
        assert_eq!(effective_window(&mutants.pair, &got), window, "{case}: {got:?} of {each:?}");
        let _ = mutants.call(Nanos(now), 1, &case);
        now += random.below(SECOND / 4);
    }
}

#[test]
fn a_tuples_window_is_that_of_the_reported_limit() {
    with_each_pair!(window_of_the_reported_limit, 10);
}
