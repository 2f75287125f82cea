//! Denials that are decided without a lock, while other threads change the state.

use std::time::Duration;

use shuttle::thread;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::Clock;
use tower_throttle::{Quota, RateLimiter};

use super::clock::{Strict, Time};
use super::harness::all;
use super::models::Act;

const WAIT: Duration = Duration::from_secs(3_600);
const LATER: Duration = Duration::from_secs(10);

fn one_an_hour(clock: Strict) -> RateLimiter<TokenBucket> {
    RateLimiter::builder(TokenBucket::new(Quota::per_hour(1))).clock(clock).build()
}

/// A unit becomes available to a key that was denied, while other threads make calls. The thread's own call is
/// admitted, unless a call of another thread was.
pub(crate) fn a_unit_comes_back(act: Act) {
    let limiter = one_an_hour(Strict::new());
    let check = |limiter: &RateLimiter<TokenBucket>| u64::from(limiter.check(&0_u64).is_allowed());
    assert_eq!(check(&limiter) + check(&limiter) + check(&limiter), 1);
    let others: Vec<_> = (0..2)
        .map(|_| {
            let limiter = limiter.clone();
            thread::spawn(move || check(&limiter))
        })
        .collect();
    match act {
        Act::Nothing => {}
        Act::Refund => limiter.refund(&0_u64, 1),
        Act::Reset => _ = limiter.reset(&0_u64),
        Act::Replace => limiter.replace(TokenBucket::new(Quota::per_hour(2).burst(2))),
    }
    let admitted = check(&limiter) + all(others).into_iter().sum::<u64>();
    // The unit that was charged before is still charged, so one of two units is left.
    assert_eq!(admitted, u64::from(act != Act::Nothing), "a unit was lost, or was given twice");
    let calls = limiter.stats().calls;
    assert_eq!((calls.admitted, calls.denied), (1 + admitted, 5 - admitted), "each call is counted once");
}

/// Threads get denials for two keys of one shard, which have different waits, while time passes.
pub(crate) fn two_keys_are_denied([one, other]: [u64; 2]) {
    let clock = Strict::new();
    let limiter = one_an_hour(clock.clone());
    assert!(limiter.check(&one).is_allowed());
    clock.tick(LATER);
    assert!(limiter.check(&other).is_allowed());
    let threads: Vec<_> = [(one, WAIT), (other, WAIT + LATER), (one, WAIT)]
        .into_iter()
        .map(|(key, until)| {
            let (limiter, clock) = (limiter.clone(), clock.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let left = || until - Duration::from_nanos(clock.now().0);
                    let most = left();
                    let wait = limiter.check(&key).retry_after().expect("no unit is available");
                    assert!(wait <= most && wait >= left(), "the wait of another key");
                    // From now on, the denial of the other key may be remembered.
                    clock.tick(Duration::from_millis(1));
                }
            })
        })
        .collect();
    all(threads);
    assert_eq!(limiter.stats().calls.denied, 6);
}
