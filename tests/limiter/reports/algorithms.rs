//! What an algorithm reports about a call is compared with later calls.

use super::*;

/// Makes a call, and returns its decision. Returns an error that tells what the decision, or that of a peek, reports
/// wrongly.
fn checked<A: Algorithm>(rule: &A, state: &mut A::State, now: Nanos, cost: u64) -> Result<Decision, String> {
    let mut looked = state.clone();
    let peek = rule.peek(&mut looked, now, cost);
    let reported = rule.check(state, now, cost);
    let after = rule.check(&mut looked, now, cost);
    if after != reported {
        return Err(format!("{reported:?}: a peek changed it: {after:?}"));
    }
    if (peek.is_allowed(), peek.retry_after()) != (reported.is_allowed(), reported.retry_after()) {
        return Err(format!("{reported:?}: peek {peek:?}"));
    }
    if cost == 0 && !reported.is_allowed() {
        return Err(format!("{reported:?}: cost 0"));
    }
    if let Some(wait) = reported.retry_after() {
        let wait = nanos(wait);
        let at = |d: u64| rule.peek(&mut state.clone(), now.saturating_add(d), cost).is_allowed();
        if wait == 0 || at(wait - 1) || at(wait / 2) || !at(wait) {
            return Err(format!("{reported:?}: retry, {}, {}", at(wait.saturating_sub(1)), at(wait)));
        }
    }
    for reported in [reported, rule.peek(&mut state.clone(), now, 0)] {
        let mut copy = state.clone();
        let more = (0..100).take_while(|_| rule.check(&mut copy, now, 1).is_allowed()).count() as u64;
        if more != reported.remaining() {
            return Err(format!("{reported:?}: remaining, not {more}"));
        }
    }
    Ok(reported)
}

/// Returns whether the key becomes fresh when `reset_after` has passed, and not before.
fn has_true_reset<A: Algorithm>(rule: &A, state: &A::State, now: Nanos, decision: Decision) -> bool {
    let reset = nanos(decision.reset_after());
    let is_fresh = |after| rule.is_fresh(state, now.saturating_add(after));
    is_fresh(reset) && (reset == 0 || !is_fresh(reset - 1))
}

/// Asserts that all that an algorithm reports is true, after calls, refunds, replacements and steps back of the clock.
fn of_one<A: Algorithm>(name: &str, make: impl Fn(&mut Random) -> A) {
    for seed in 0..scaled(SEEDS) {
        let r = &mut Random::new(seed);
        let rules = [make(r), make(r)];
        let mut log = Vec::new();
        let mut now = Nanos(r.one_of(&[0, 5, 1 << 40]));
        let mut current = 0;
        let mut state = rules[0].new_state(now, now);
        for _ in 0..r.within(1..=40) {
            match r.below(20) {
                0..8 => now = now.saturating_add(r.one_of(&[0, 1, 2, 5, 9, 100, 999, UNIT, 7 * UNIT])),
                8 => now = Nanos(now.0.saturating_sub(r.one_of(&[1, 3, 10, 100, 3 * UNIT, 1 << 30]))),
                9 => {
                    let cost = r.within(0..=7);
                    log.push(format!("refund {cost} at {now:?}"));
                    rules[current].refund(&mut state, now, cost, None);
                }
                10 => {
                    let next = r.below(2) as usize;
                    log.push(format!("replace {current} by {next} at {now:?}"));
                    rules[next].migrate(&mut state, &rules[current], now);
                    current = next;
                }
                _ => {
                    let cost = r.within(0..=7);
                    log.push(format!("check {cost} at {now:?}"));
                    let rule = &rules[current];
                    let checked = checked(rule, &mut state, now, cost);
                    let is_true =
                        matches!(checked, Ok(decision) if has_true_reset(rule, &state, now, decision));
                    assert!(is_true, "{name} seed {seed}: {checked:?} {rules:?}\n  {}", log.join("\n  "));
                }
            }
        }
    }
}

/// Asserts that the reports are true if one key is called with several tiers.
fn of_tiers<A: Algorithm + PartialEq>(name: &str, make: impl Fn(&mut Random) -> A) {
    for seed in 0..scaled(SEEDS) {
        let r = &mut Random::new(seed);
        let rules: Vec<Tiered<A>> = (0..r.within(1..=11)).map(|_| Tiered::new(make(r))).collect();
        let mut now = Nanos(1 << 30);
        let mut state = rules[0].new_state(now, now);
        let mut log = Vec::new();
        for _ in 0..r.within(1..=40) {
            match r.below(10) {
                0..3 => now = now.saturating_add(r.one_of(&[1, 5, 30, 100, 999, 7 * UNIT])),
                3 => now = Nanos(now.0.saturating_sub(r.one_of(&[1, 3, 100, 3 * UNIT, 1 << 30]))),
                _ => {
                    let (at, cost) = (r.below(rules.len() as u64) as usize, r.within(0..=7));
                    log.push(format!("check {cost} by {at} at {now:?}"));
                    let checked = checked(&rules[at], &mut state, now, cost);
                    assert!(
                        checked.is_ok(),
                        "{name} seed {seed}: {checked:?} {rules:?}\n  {}",
                        log.join("\n  ")
                    );
                }
            }
        }
    }
}

#[test]
fn reports_of_tuples_are_true() {
    of_one("bucket, fixed", |r| (TokenBucket::new(quota(r)), FixedWindow::new(quota(r))));
    of_one("counter, log, sliding", |r| {
        (SlidingCounter::new(quota(r)), SlidingLog::new(quota(r)), SlidingWindow::new(quota(r)))
    });
    of_one("leaky, fixed", |r| (LeakyBucket::new(quota(r)), FixedWindow::new(quota(r)).aligned()));
}

#[test]
fn reports_of_lockouts_are_true() {
    of_one("fixed", |r| block(FixedWindow::new(quota(r)), r));
    of_one("bucket", |r| block(TokenBucket::new(quota(r)), r));
    of_one("leaky", |r| block(LeakyBucket::new(quota(r)), r));
    of_one("tuple", |r| block((TokenBucket::new(quota(r)), SlidingLog::new(quota(r))), r));
    of_one("tuple of lockouts", |r| {
        let (a, b) = (FixedWindow::new(quota(r)), SlidingCounter::new(quota(r)));
        (block(a, r), block(b, r))
    });
}

#[test]
fn reports_of_a_window_with_priority_are_true() {
    of_one("priority", |r| SlidingWindow::new(quota(r)).slices(3).priority(50));
}

#[test]
fn reports_of_tiers_are_true() {
    of_one("one tier that is replaced", |r| Tiered::new(TokenBucket::new(quota(r))));
    of_tiers("bucket", |r| TokenBucket::new(quota(r)));
    of_tiers("fixed", |r| FixedWindow::new(quota(r)));
    of_tiers("log", |r| SlidingLog::new(quota(r)));
    of_tiers("counter", |r| SlidingCounter::new(quota(r)));
    of_tiers("window", |r| SlidingWindow::new(quota(r)).slices(3));
    of_tiers("tuple", |r| (SlidingLog::new(quota(r)), TokenBucket::new(quota(r))));
    of_tiers("leaky", |r| LeakyBucket::new(quota(r)));
    of_tiers("lockout", |r| block(FixedWindow::new(quota(r)), r));
}
