//! A lockout is compared with a model.

use super::*;

/// A model of a lockout. It has the key's own time, the number of denials in a window that begins with the first
/// denial, and the end of the lockout.
#[test]
fn a_lockout_agrees_with_a_model() {
    for seed in 0..scaled(SEEDS) {
        let r = &mut Random::new(seed);
        let inner = FixedWindow::new(quota(r));
        let window = nanos(inner.policy().window);
        let (duration, after, prolongs) =
            (r.one_of(&[1, 5, 50, 500, 20 * UNIT]), r.within(1..=4), r.one_in(3));
        let rule = inner.clone().block_for(Duration::from_nanos(duration)).after(after);
        let rule = if prolongs { rule.extend_on_retry() } else { rule };
        let mut now = Nanos(1 << 20);
        let (mut state, mut plain) = (rule.new_state(now, now), inner.new_state(now, now));
        let (mut last, mut time) = (now.0, 0_u64);
        let (mut began, mut denied, mut until) = (0, 0, 0);
        let mut log = Vec::new();
        for _ in 0..60 {
            match r.below(12) {
                0..3 => now = now.saturating_add(r.one_of(&[1, 5, 30, 100, 999, 7 * UNIT])),
                3 => now = Nanos(now.0.saturating_sub(r.one_of(&[1, 3, 100, 3 * UNIT]))),
                act => {
                    let (cost, look) = (r.within(0..=7), act == 4);
                    // The key's own time.
                    let mut behind = 0;
                    if now.0 >= last {
                        time += now.0 - last;
                        last = now.0;
                    } else if last - now.0 <= window {
                        behind = last - now.0;
                    } else {
                        last = now.0;
                    }
                    let would = inner.peek(&mut plain, now, cost);
                    let is_locked_out = until > time;
                    let expected = if cost == 0 {
                        None
                    } else if is_locked_out || !would.is_allowed() {
                        let (mut b, mut n, mut u) = (began, denied, until);
                        if is_locked_out {
                            if prolongs {
                                u = time + duration;
                            }
                        } else {
                            if n == 0 || time - b >= window {
                                (b, n) = (time, 0);
                            }
                            n += 1;
                            if n >= after {
                                n = 0;
                                u = time + duration;
                            }
                        }
                        if !look {
                            (began, denied, until) = (b, n, u);
                        }
                        let rest = if u > time { u - time + behind } else { 0 };
                        Some(match would.is_allowed() {
                            true => Some(rest),
                            false => would.retry_after().map(|wait| nanos(wait).max(rest)),
                        })
                    } else {
                        if !look {
                            let _ = inner.check(&mut plain, now, cost);
                        }
                        None
                    };
                    let reported = if look {
                        rule.peek(&mut state, now, cost)
                    } else {
                        rule.check(&mut state, now, cost)
                    };
                    log.push(format!("{cost} {look} {now:?} {reported:?}"));
                    let reported = (!reported.is_allowed()).then(|| reported.retry_after().map(nanos));
                    assert_eq!(reported, expected, "{seed} {rule:?}\n{}", log.join("\n"));
                }
            }
        }
    }
}
