//! What an administrator does with a limiter that is in use: locking keys out, lifting lockouts, and resetting all
//! keys.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Lockout, SlidingLog, Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimiter};

use crate::support::PolledByHand;

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// Five calls an hour. The third denial within an hour locks the key out for ten seconds.
fn logins() -> Lockout<FixedWindow> {
    FixedWindow::new(Quota::per_hour(5)).block_for(10 * SECOND).after(3)
}

fn limiter() -> (RateLimiter<Lockout<FixedWindow>>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(logins()).clock(clock.clone()).build(), clock)
}

#[test]
fn a_key_is_locked_out_for_exactly_the_given_time() {
    let (limiter, clock) = limiter();
    let _ = limiter.check("used");
    for key in ["used", "new"] {
        assert!(limiter.lock_out(key, 100 * SECOND));
        for decision in [limiter.peek(key), limiter.check(key)] {
            assert!(decision.is_locked_out());
            assert_eq!(decision.retry_after(), Some(100 * SECOND), "{decision:?}");
        }
    }
    assert!(limiter.check("other").is_allowed());
    clock.advance(100 * SECOND - NANO);
    assert_eq!(limiter.check("new").retry_after(), Some(NANO));
    clock.advance(NANO);
    assert_eq!(limiter.check("new").remaining(), 4);
    assert_eq!(limiter.check("used").remaining(), 3);
}

#[test]
fn a_second_lockout_replaces_the_first() {
    let (limiter, clock) = limiter();
    for duration in [100 * SECOND, 3 * SECOND, 50 * SECOND] {
        assert!(limiter.lock_out("key", duration));
        assert_eq!(limiter.peek("key").retry_after(), Some(duration));
    }
    clock.advance(50 * SECOND);
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn a_retry_does_not_shorten_a_lockout_that_it_extends() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(logins().extend_on_retry()).clock(clock.clone()).build();
    assert!(limiter.lock_out("key", 100 * SECOND));
    for rest in [100, 15, 10] {
        clock.set((100 - rest) * SECOND);
        assert_eq!(limiter.check("key").retry_after(), Some(rest * SECOND));
    }
    clock.advance(9 * SECOND);
    assert_eq!(limiter.check("key").retry_after(), Some(10 * SECOND));
}

#[test]
fn a_lockout_of_no_time_is_none() {
    let (limiter, _clock) = limiter();
    assert!(limiter.lock_out("key", 100 * SECOND));
    assert!(!limiter.lock_out("key", Duration::ZERO));
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn a_lifted_lockout_forgets_denials_and_keeps_charged_units() {
    let (limiter, _clock) = limiter();
    for _ in 0..8 {
        let _ = limiter.check("key");
    }
    assert!(limiter.check("key").is_locked_out(), "the third denial began a lockout");
    assert!(limiter.lift_lockout("key"));
    for denials in 1..=3 {
        let decision = limiter.check("key");
        assert_eq!(decision.remaining(), 0);
        assert_eq!(decision.is_locked_out(), denials == 3, "{denials}");
    }
    // A key that is not locked out, and a key that is not in the table.
    assert!(!limiter.lift_lockout("other"));
    assert_eq!(limiter.len(), 1);
}

/// An administrator who has a text instead of the address learns that there was nothing to do.
#[test]
fn the_result_says_that_a_key_of_another_type_had_nothing() {
    let (limiter, clock) = limiter();
    let (address, text) = (IpAddr::from([192, 0, 2, 1]), "192.0.2.1".to_owned());
    assert!(limiter.lock_out(&address, 100 * SECOND));
    assert!(!limiter.lift_lockout(&text) && limiter.check(&address).is_locked_out());
    assert!(limiter.lift_lockout(&address) && limiter.check(&address).is_allowed());
    assert!(!limiter.reset(&text) && !limiter.call(&text).reset());
    assert!(limiter.call(&address).reset() && !limiter.reset(&address));
    // Denials count as well, until they expire.
    for is_over in [false, true] {
        let _ = (limiter.check_n(&address, 6), limiter.check_n(&address, 6));
        clock.advance(if is_over { 3_600 * SECOND } else { 3_599 * SECOND });
        assert_eq!(limiter.lift_lockout(&address), !is_over);
        assert!(!limiter.lift_lockout(&address));
    }
}

#[test]
fn a_reset_says_whether_the_key_had_used_anything() {
    fn says<A: Algorithm>(algorithm: A) {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let permit = limiter.try_acquire_permit("key").unwrap();
        assert!(limiter.reset("key"));
        drop(permit);
        assert!(!limiter.reset("key"));
        drop(limiter.try_acquire_permit("key").unwrap());
        clock.advance(2 * HOUR);
        assert!(!limiter.reset("key"), "it is as a new key is: {:?}", limiter.algorithm());
    }
    const HOUR: Duration = Duration::from_secs(3_600);
    let quota = Quota::per_hour(5);
    says(FixedWindow::new(quota));
    says(SlidingLog::new(quota));
    says(TokenBucket::new(quota));
    says(LeakyBucket::new(quota));
    says(Tiered::new(TokenBucket::new(quota)));
    says(logins());
    says(Concurrency::per_key(5));
    says((TokenBucket::new(quota), Concurrency::per_key(5)));
}

#[test]
fn a_lockout_survives_a_clock_that_is_set_back() {
    let (limiter, clock) = limiter();
    clock.set(60 * SECOND);
    let _ = limiter.check("key");
    clock.set(40 * SECOND);
    // The clock is further behind than the second lockout lasts.
    for lockout in [100 * SECOND, 10 * SECOND] {
        assert!(limiter.lock_out("key", lockout));
        assert_eq!(limiter.peek("key").retry_after(), Some(lockout));
    }
    clock.advance(10 * SECOND - NANO);
    assert!(limiter.check("key").is_locked_out());
    clock.advance(NANO);
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn a_key_without_a_place_cannot_be_locked_out() {
    let builder =
        RateLimiter::builder(logins()).max_keys(1).on_full(OnFull::Reject).clock(ManualClock::new());
    let limiter = builder.build();
    assert!(limiter.lock_out("first", 100 * SECOND));
    assert!(!limiter.lock_out("second", 100 * SECOND));
    let decision = limiter.check("second");
    assert_eq!((decision.is_locked_out(), decision.is_table_full()), (false, true));
    assert!(limiter.check("first").is_locked_out());
}

#[test]
fn all_keys_are_reset() {
    let clock = ManualClock::new();
    let builder = RateLimiter::builder(TokenBucket::new(Quota::per_hour(2))).clock(clock).max_keys(5_000);
    let limiter = builder.on_full(OnFull::Reject).build();
    for key in 0..6_000 {
        assert!(limiter.check_n(&key, 2).is_allowed() || key >= 5_000);
    }
    limiter.reset_all();
    for key in 0..6_000 {
        assert_eq!(limiter.peek(&key).remaining(), 2, "{key}");
    }
    assert_eq!(limiter.len(), 0, "keys without units have no place");
    assert!(limiter.check_n(&1, 2).is_allowed() && !limiter.check(&1).is_allowed());
}

#[test]
fn all_keys_are_reset_while_other_threads_make_calls() {
    let builder = RateLimiter::builder(TokenBucket::new(Quota::per_hour(2))).clock(ManualClock::new());
    let limiter = builder.max_keys(50).on_full(OnFull::Reject).build();
    thread::scope(|scope| {
        for first in 0..3 {
            let limiter = &limiter;
            scope.spawn(move || {
                for key in (first..).take(20_000) {
                    let _ = limiter.check(&(key % 300));
                }
            });
        }
        for _ in 0..200 {
            limiter.reset_all();
        }
    });
    limiter.reset_all();
    assert_eq!(limiter.len(), 0);
    assert!((0..300).all(|key| limiter.peek(&key).remaining() == 2));
}

#[test]
fn a_reset_of_all_keys_admits_the_first_waiter_and_keeps_the_pace_of_the_others() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::builder(LeakyBucket::new(Quota::per_second(1)).queue(2)).clock(clock.clone()).build();
    assert!(limiter.check("a").is_allowed());
    let mut waiters = [(); 2].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert!(waiters.iter_mut().all(|waiter| !waiter.poll()));
    limiter.reset_all();
    assert!(waiters[0].poll() && !waiters[1].poll());
    clock.advance(SECOND - NANO);
    assert!(!waiters[1].poll());
    clock.advance(NANO);
    assert!(waiters[1].poll());
}

#[test]
fn a_reset_of_all_keys_keeps_calls_in_progress() {
    let builder = RateLimiter::builder(Concurrency::per_key(1)).max_keys(1).on_full(OnFull::Reject);
    let limiter = builder.build();
    let permits = ["own", "other"].map(|key| limiter.try_acquire_permit(key).ok());
    assert!(permits[1].is_none());
    limiter.reset_all();
    assert!(limiter.try_acquire_permit("own").is_err());
    assert!(limiter.try_acquire_permit("other").is_err());
    drop(permits);
    assert!(limiter.try_acquire_permit("own").is_ok());
}
