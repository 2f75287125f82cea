//! With a full table, joint calls exceed no limit.

use std::time::Duration;

use tower::{Layer, service_fn};
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::limiter::OnFull;
use tower_throttle::{ErrorResponder, RateLimitLayer, RateLimiter};

use super::{Key, Keys, Ledger, at_once, both, frozen, hourly, key, passes, watched};
use crate::support::{Random, scaled};

/// Keys are added to a table that is nearly full. No key exceeds the limit, all calls end, and no place in the table is
/// lost.
#[test]
fn a_table_that_overflows_lets_no_key_exceed_a_limit() {
    const LIMIT: u64 = 12;
    watched(|| {
        for (seed, max_keys) in (0..).zip([1, 2, 3, 7, 64, 100]) {
            let clock = ManualClock::new();
            let build = || {
                RateLimiter::builder(TokenBucket::new(hourly(LIMIT)))
                    .clock(clock.clone())
                    .max_keys(max_keys)
                    .on_full(OnFull::Reject)
            };
            let (first, second) = (build().build(), build().build());
            let ledger = Ledger::default();
            at_once(|thread| {
                let mut random = Random::new(seed * 100 + thread);
                let (mut there, mut back) = (both!(first, second), both!(second, first));
                let mut twice = both!(first, first);
                for _ in 0..scaled(10_000) {
                    let (one, two) = (random.below(120), random.below(120));
                    match random.below(3) {
                        0 if passes(&mut there, [one, two, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        1 if passes(&mut back, [two, one, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        2 if passes(&mut twice, [one, two, 0]) => ledger.note(&[('a', one), ('a', two)]),
                        _ => {}
                    }
                }
            });
            for (limiter, name) in [(&first, 'a'), (&second, 'b')] {
                assert!(limiter.len() <= max_keys);
                for key in 0..120 {
                    assert!(ledger.used(name, key) <= LIMIT, "{max_keys} keys: {key} of {name} exceeds it");
                    let left = limiter.peek(&key).remaining();
                    assert!(
                        left <= LIMIT - ledger.used(name, key),
                        "{max_keys} keys: {key} of {name}: {left} left"
                    );
                }
            }
            // All units are available again, and all places in the table are free.
            clock.advance(Duration::from_secs(7_200));
            for key in 1_000..3_000_u64 {
                let _ = first.check_n(&key, 0);
                let _ = second.check_n(&key, 0);
            }
            assert_eq!((first.len(), second.len()), (0, 0), "{max_keys} keys: places were lost");
        }
    });
}

/// A denial charges nothing and takes no place in the table. So a flood of keys that another limit denies does not fill
/// the table.
#[test]
fn a_key_that_another_limit_denies_takes_no_slot() {
    let (first, second) = (frozen(TokenBucket::new(hourly(5)), 3), frozen(FixedWindow::new(hourly(1)), 3));
    let mut service = both!(first, second);
    assert!(passes(&mut service, [0, 0, 0]));
    for key in 1..1_000 {
        assert!(!passes(&mut service, [key, 0, 0]));
        assert_eq!((first.len(), second.len()), (1, 1), "{key}");
    }
    // So the table has room for other keys.
    assert!(passes(&mut service, [1, 1, 0]) && passes(&mut service, [2, 2, 0]));
    assert_eq!((first.peek(&1_u64).remaining(), second.len()), (4, 3));
}
