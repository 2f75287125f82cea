//! Algorithms and closures that panic leave the other limits as they were.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tower::{Layer, service_fn};
use tower_throttle::algorithm::{Algorithm, FixedWindow, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{ErrorResponder, RateLimitLayer, RateLimiter};

use super::{ask, hourly, limiter, served};
use crate::support::OwnAlgorithm;

type Moody = OwnAlgorithm<FixedWindow>;

/// Returns a window that panics while the flag is `true`.
fn moody(limit: u64) -> (Moody, Arc<AtomicBool>) {
    let angry = Arc::new(AtomicBool::new(false));
    let mood = angry.clone();
    let moody = OwnAlgorithm::new(FixedWindow::new(hourly(limit)), move |method| {
        let panics = matches!(method, "check" | "peek" | "migrate");
        assert!(!panics || !mood.load(Ordering::SeqCst), "this algorithm panics");
    });
    (moody, angry)
}

fn panics(run: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
}

#[test]
fn an_algorithm_that_panics_leaves_the_others_unchanged_and_no_lock_held() {
    let clock = ManualClock::new();
    let (moody, angry) = moody(5);
    for moody_first in [true, false] {
        let (other, moody) = (limiter(TokenBucket::new(hourly(5)), &clock), limiter(moody.clone(), &clock));
        let (of_other, of_moody) = (
            RateLimitLayer::with_limiter(Global, other.clone()),
            RateLimitLayer::with_limiter(Global, moody.clone()),
        );
        let mut call: Box<dyn FnMut() -> bool> = match moody_first {
            true => {
                let mut service = served!(of_moody.and(of_other));
                Box::new(move || ask(&mut service, ()).is_ok())
            }
            false => {
                let mut service = served!(of_other.and(of_moody));
                Box::new(move || ask(&mut service, ()).is_ok())
            }
        };
        assert!(call());
        angry.store(true, Ordering::SeqCst);
        for _ in 0..10 {
            panics(|| {
                call();
            });
        }
        angry.store(false, Ordering::SeqCst);
        assert_eq!((other.peek(&()).remaining(), moody.peek(&()).remaining()), (4, 4));
        for _ in 0..4 {
            assert!(call());
        }
        assert!(!call());
    }
}

/// An algorithm that panics leaves no place in the table occupied, so new keys still find a place.
#[test]
fn an_algorithm_that_panics_on_new_keys_loses_no_places() {
    let clock = ManualClock::new();
    let (moody, angry) = moody(5);
    let limiter = RateLimiter::builder(moody).clock(clock.clone()).max_keys(10).build();
    let other = limiter.clone();
    let mut service =
        served!(RateLimitLayer::with_limiter(from_fn(|key: &u64| Some(*key)), limiter.clone()).and(
            RateLimitLayer::with_limiter(Global, self::limiter(TokenBucket::new(hourly(1_000)), &clock))
        ));
    angry.store(true, Ordering::SeqCst);
    for key in 0..20_u64 {
        panics(|| {
            let _ = ask(&mut service, key);
        });
        panics(|| {
            let _ = other.check(&(key + 100));
        });
    }
    angry.store(false, Ordering::SeqCst);
    clock.advance(Duration::from_secs(7_200));
    for key in 1_000..1_100_u64 {
        assert!(limiter.check_n(&key, 0).is_allowed());
    }
    assert_eq!(limiter.len(), 0, "places were lost");
}

#[test]
fn a_replacement_that_panics_leaves_a_limiter_that_goes_on() {
    let clock = ManualClock::new();
    let ((moody, _), (next, angry)) = (moody(5), moody(9));
    let limiter = limiter(moody.clone(), &clock);
    for key in 0..200_u64 {
        assert!(limiter.check(&key).is_allowed());
    }
    angry.store(true, Ordering::SeqCst);
    panics(|| limiter.replace(next.clone()));
    angry.store(false, Ordering::SeqCst);
    assert!((0..200_u64).all(|key| limiter.check(&key).is_allowed()));
    limiter.replace(next);
    assert!((0..200_u64).all(|key| limiter.peek(&key).remaining() == 7));
    assert_eq!(limiter.algorithm().policy().quota, 9);
}

#[test]
fn closures_that_panic_charge_no_key() {
    let clock = ManualClock::new();
    let window = |limit| limiter(FixedWindow::new(hourly(limit)), &clock);
    let (first, second) = (window(5), limiter(Tiered::new(FixedWindow::new(hourly(5))), &clock));
    let layers = RateLimitLayer::with_limiter(
        from_fn(|at: &u8| {
            assert!(*at != 1, "no key");
            Some(())
        }),
        first.clone(),
    )
    .cost(|at: &u8| {
        assert!(*at != 2, "no cost");
        1
    })
    .and(
        RateLimitLayer::with_limiter(
            from_fn(|at: &u8| {
                assert!(*at != 3, "no key");
                Some(())
            }),
            second.clone(),
        )
        .cost(|at: &u8| {
            assert!(*at != 4, "no cost");
            1
        })
        .tier(|at: &u8, (): &()| {
            assert!(*at != 5, "no tier");
            FixedWindow::new(hourly(5))
        }),
    );
    let mut service = served!(layers);
    assert!(ask(&mut service, 0).is_ok());
    for at in 1..=5 {
        panics(|| {
            let _ = ask(&mut service, at);
        });
    }
    assert_eq!((first.peek(&()).remaining(), second.peek(&()).remaining()), (4, 4));
    assert!(ask(&mut service, 0).is_ok());
}
