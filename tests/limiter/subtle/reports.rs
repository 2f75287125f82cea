//! What an algorithm reports about a call is compared with later calls.

use super::*;

struct Truth {
    remaining: bool,
    reset: bool,
}

/// Asserts that all that an algorithm reports is true, after any calls.
fn truth<A: Algorithm>(
    name: &str,
    seeds: std::ops::Range<u64>,
    make: impl Fn(&mut Random) -> Vec<A>,
    only: Truth,
) {
    let mut wrong = 0;
    for seed in seeds {
        let r = &mut Random::new(seed);
        let rules = make(r);
        let mut log = Vec::new();
        let mut now = Nanos(r.one_of(&[0, 5, 1 << 40]));
        let mut current = 0;
        let mut state = rules[0].new_state(now, now);
        let mut bad = None;
        'ops: for _ in 0..r.within(1..=40) {
            match r.below(20) {
                0..8 => now = now.saturating_add(r.one_of(&[0, 1, 2, 5, 9, 100, 999, UNIT, 7 * UNIT])),
                8 => now = Nanos(now.0.saturating_sub(r.one_of(&[1, 3, 10, 100, 3 * UNIT, 1 << 30]))),
                9 => {
                    let cost = r.within(0..=7);
                    log.push(format!("refund {cost} at {now:?}"));
                    rules[current].refund(&mut state, now, cost, None);
                }
                10 => {
                    let next = r.below(rules.len() as u64) as usize;
                    log.push(format!("adapt {current} -> {next} at {now:?}"));
                    rules[next].migrate(&mut state, &rules[current], now);
                    current = next;
                }
                _ => {
                    let cost = r.within(0..=7);
                    let rule = &rules[current];
                    let mut looked = state.clone();
                    let peek = rule.peek(&mut looked, now, cost);
                    let reported = rule.check(&mut state, now, cost);
                    let after = rule.check(&mut looked, now, cost);
                    log.push(format!("check {cost} at {now:?}: {reported:?}"));
                    if after != reported {
                        bad = Some(format!("a look changed it: {after:?}"));
                        break 'ops;
                    }
                    if (peek.is_allowed(), peek.retry_after())
                        != (reported.is_allowed(), reported.retry_after())
                    {
                        bad = Some(format!("peek {peek:?}"));
                        break 'ops;
                    }
                    if cost == 0 && !reported.is_allowed() {
                        bad = Some("cost 0".into());
                        break 'ops;
                    }
                    if let Some(wait) = reported.retry_after() {
                        let wait = nanos(wait);
                        let at =
                            |d: u64| rule.peek(&mut state.clone(), now.saturating_add(d), cost).is_allowed();
                        if wait == 0 || at(wait - 1) || at(wait / 2) || !at(wait) {
                            bad = Some(format!(
                                "retry {wait}: {} {} {}",
                                at(wait.saturating_sub(1)),
                                at(wait / 2),
                                at(wait)
                            ));
                            break 'ops;
                        }
                    }
                    if only.remaining {
                        for reported in [reported, rule.peek(&mut state.clone(), now, 0)] {
                            let mut copy = state.clone();
                            let more = (0..100)
                                .take_while(|_| rule.check(&mut copy, now, 1).is_allowed())
                                .count() as u64;
                            if more != reported.remaining() {
                                bad = Some(format!("remaining {} not {more}", reported.remaining()));
                                break 'ops;
                            }
                        }
                    }
                    if only.reset {
                        let reset = nanos(reported.reset_after());
                        if !rule.is_fresh(&state, now.saturating_add(reset))
                            || reset > 0 && rule.is_fresh(&state, now.saturating_add(reset - 1))
                        {
                            bad = Some(format!("reset {reset}"));
                            break 'ops;
                        }
                    }
                }
            }
        }
        if let Some(bad) = bad {
            wrong += 1;
            if wrong == 1 {
                println!("{name} seed {seed}: {bad}\n  {:?}\n  {}", rules, log.join("\n  "));
            }
        }
    }
    println!("{name}: {wrong} wrong");
    assert_eq!(wrong, 0, "{name}");
}

const ALL: Truth = Truth { remaining: true, reset: true };

#[test]
fn reports_of_a_bucket_and_a_fixed_window_are_true() {
    truth(
        "bucket, fixed",
        0..scaled(N),
        |r| (0..2).map(|_| (TokenBucket::new(quota(r)), FixedWindow::new(quota(r)))).collect(),
        ALL,
    );
}

#[test]
fn reports_of_a_tuple_of_three_windows_are_true() {
    truth(
        "counter, log, sliding",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    (SlidingCounter::new(quota(r)), SlidingLog::new(quota(r)), SlidingWindow::new(quota(r)))
                })
                .collect()
        },
        ALL,
    );
}

#[test]
fn reports_of_a_leaky_bucket_and_an_aligned_window_are_true() {
    truth(
        "leaky, fixed",
        0..scaled(N),
        |r| (0..2).map(|_| (LeakyBucket::new(quota(r)), FixedWindow::new(quota(r)).aligned())).collect(),
        ALL,
    );
}

#[test]
fn reports_of_a_lockout_of_a_fixed_window_are_true() {
    truth(
        "blocking fixed",
        0..scaled(N),
        |r| (0..2).map(|_| block(FixedWindow::new(quota(r)), r)).collect(),
        ALL,
    );
}

#[test]
fn reports_of_a_lockout_of_a_token_bucket_are_true() {
    truth(
        "blocking bucket",
        0..scaled(N),
        |r| (0..2).map(|_| block(TokenBucket::new(quota(r)), r)).collect(),
        ALL,
    );
}

#[test]
fn reports_of_a_lockout_of_a_tuple_are_true() {
    truth(
        "blocking tuple",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    let t = (TokenBucket::new(quota(r)), SlidingLog::new(quota(r)));
                    block(t, r)
                })
                .collect()
        },
        ALL,
    );
}

#[test]
fn reports_of_a_tuple_of_lockouts_are_true() {
    truth(
        "tuple of blocking",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    let a = FixedWindow::new(quota(r));
                    let b = SlidingCounter::new(quota(r));
                    (block(a, r), block(b, r))
                })
                .collect()
        },
        ALL,
    );
}

#[test]
fn reports_of_a_lockout_of_a_leaky_bucket_are_true() {
    truth(
        "blocking leaky",
        0..scaled(N),
        |r| {
            (0..2)
                .map(|_| {
                    let a = LeakyBucket::new(quota(r));
                    block(a, r)
                })
                .collect()
        },
        ALL,
    );
}

#[test]
fn reports_of_a_window_with_priority_are_true() {
    truth(
        "priority",
        0..scaled(N),
        |r| (0..2).map(|_| SlidingWindow::new(quota(r)).slices(3).priority(50)).collect(),
        ALL,
    );
}

#[test]
fn reports_of_a_tiered_algorithm_that_is_replaced_are_true() {
    truth("tiered", 0..scaled(N), |r| (0..2).map(|_| Tiered::new(TokenBucket::new(quota(r)))).collect(), ALL);
}
