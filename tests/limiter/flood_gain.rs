//! Callers that try to gain units by floods of keys of their own, which evict the key that they want to use.

use std::time::Duration;

use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

/// Keys that the caller invents. The key of interest is 7.
const INVENTED_KEYS: u64 = 1 << 40;
const KEY: u64 = 7;

/// If calls of one key always examined the same part of the table, a caller could find a second key that evicts the
/// first, and that the first evicts, and could then use both without a limit.
#[test]
fn no_key_is_evicted_by_another_again_and_again() {
    for seed in 1..=40 {
        let window = FixedWindow::new(Quota::per_day(1_000));
        let limiter = RateLimiter::builder(window).clock(ManualClock::new()).max_keys(1_000).build();
        let new_keys = INVENTED_KEYS * seed..;
        // All keys of the table have used two units, so that the key of interest is the least used.
        for key in new_keys.clone().take(1_500) {
            let _ = (limiter.check(&key), limiter.check(&key));
        }
        let mut helper = None;
        for key in new_keys.skip(1_500).take(20_000) {
            if limiter.peek(&KEY).remaining() == 1_000 {
                let _ = limiter.check(&KEY);
            }
            let _ = limiter.check(&key);
            if limiter.peek(&KEY).remaining() == 1_000 {
                helper = Some(key);
                break;
            }
            let _ = limiter.check(&key);
        }
        let helper = helper.expect("a key that has evicted the key of interest once");
        let admitted = (0..20_000).filter(|_| {
            let _ = limiter.check(&helper);
            limiter.check(&KEY).is_allowed()
        });
        let admitted = admitted.count();
        assert!(admitted <= 1_010, "{admitted} of 1,000 are admitted");
    }
}

/// A key that has used one unit of the small limit, and many units of the large one, is not evicted as if it had used
/// a single unit.
#[test]
fn a_flood_gives_back_no_units_of_the_larger_of_two_limits() {
    let clock = ManualClock::new();
    let limits = (TokenBucket::new(Quota::per_second(10)), FixedWindow::new(Quota::per_day(10_000)));
    let limiter = RateLimiter::builder(limits).clock(clock.clone()).max_keys(1_000).build();
    let (mut keys, mut admitted) = (INVENTED_KEYS.., 0);
    for _ in 0..12 {
        for _ in 0..80 {
            clock.advance(Duration::from_millis(100));
            admitted += u64::from(limiter.check(&KEY).is_allowed());
        }
        clock.advance(Duration::from_secs(2));
        for key in keys.by_ref().take(2_000) {
            clock.advance(Duration::from_millis(5));
            let _ = limiter.check(&key);
        }
        clock.advance(Duration::from_secs(2));
    }
    for _ in 0..9_500 {
        clock.advance(Duration::from_millis(100));
        admitted += u64::from(limiter.check(&KEY).is_allowed());
    }
    assert_eq!(admitted, 10_000);
}
