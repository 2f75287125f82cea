//! Calls that were admitted before the limiter was closed stay admitted, and no waiter is left behind.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{Algorithm, Concurrency, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::{Attempt, OnClose};
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{Now, assert_closed, limiter, quota, service};
use crate::support::PolledByHand;
use crate::support::calls::{Calls, InProgress, OfUnits, acquire};

/// A call whose scheduled time has come before the limiter is closed stays admitted.
#[test]
fn calls_admitted_before_stay_admitted() {
    let clock = ManualClock::new();
    let limiter = limiter(LeakyBucket::new(Quota::per_second(1)).queue(9), &clock);
    assert!(limiter.check("a").is_allowed());
    let [mut first, mut second] = [(); 2].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert!(!first.poll() && !second.poll());
    clock.advance(Duration::from_secs(1));
    // The scheduled time of the first call has come, but the call has not been polled.
    limiter.close();
    assert!(first.run() && first.output.unwrap().is_allowed());
    assert!(second.run());
    assert_closed(&second.output.unwrap());
}

#[test]
fn permits_stay_valid_and_are_released() {
    let rule = Concurrency::per_key(2).total(2);
    let limiter = RateLimiter::new(rule.clone());
    // This limiter has the same total.
    let other = RateLimiter::new(rule);
    let [first, second] = [(); 2].map(|()| limiter.try_acquire_permit("a").unwrap());
    limiter.close();
    assert!(other.try_acquire_permit("a").is_err());
    drop(first);
    let third = other.try_acquire_permit("a").unwrap();
    assert!(other.try_acquire_permit("b").is_err());
    drop(second);
    assert!(other.try_acquire_permit("b").is_ok());
    drop(third);
}

#[test]
fn on_close_allow_admits_without_counting() {
    fn passes<C: Calls>(rule: impl Algorithm) {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).on_close(OnClose::Allow).build();
        let _held = limiter.try_acquire_permit("a").unwrap();
        let mut waits = PolledByHand::new(limiter.acquire_permit("a"));
        assert!(!waits.poll());
        limiter.close();
        // Waiters are denied, too.
        assert!(waits.run() && waits.output.unwrap().unwrap_err().decision().is_closed());
        let before = limiter.peek("a");
        let mut all = Vec::new();
        let by_key = tower_throttle::key::from_fn(|(): &()| Some("a"));
        let mut service = service!(RateLimitLayer::with_limiter(by_key, limiter.clone()));
        let other = RateLimiter::new(Concurrency::per_key(99));
        let mut joined = service!(
            RateLimitLayer::with_limiter(by_key, other.clone())
                .and(RateLimitLayer::with_limiter(by_key, limiter.clone()))
        );
        for _ in 0..30 {
            assert!([("a", 1), ("b", u64::MAX)].iter().all(|(key, cost)| {
                let (decision, held) = C::check(&limiter, *key, *cost);
                decision.is_allowed() && held.is_empty()
            }));
            assert!(limiter.peek("a").is_allowed() && limiter.peek_n("a", u64::MAX).is_allowed());
            assert!(acquire(&limiter, "a", Attempt::new(1)).now().0.is_allowed());
            all.push(limiter.try_acquire_permit("a").unwrap());
            all.push(limiter.acquire_permit("a").now().unwrap());
            assert!(service.call(()).now().is_ok());
            assert!(joined.call(()).now().is_ok());
        }
        assert_eq!(limiter.peek("a"), before);
        drop(all);
        assert_eq!(limiter.peek("a"), before, "what was not counted is not given back");
        assert_eq!(other.peek("a").remaining(), 99);
        assert_eq!(limiter.len(), 1);
    }
    passes::<OfUnits>(LeakyBucket::new(quota()).queue(9));
    passes::<OfUnits>(TokenBucket::new(quota()).queue(9));
    passes::<OfUnits>(SlidingWindow::new(quota()).queue(9));
    passes::<InProgress>(Concurrency::per_key(1).queue(9));
    passes::<InProgress>((
        Concurrency::per_key(1).total(8).queue(9),
        TokenBucket::new(Quota::per_hour(9)).queue(9),
    ));
}

/// Calls arrive while the limiter is closed. No call is left waiting.
#[test]
fn closing_while_calls_arrive_leaves_no_waiter_behind() {
    const THREADS: usize = 8;
    for round in 0..20 {
        let rule = Concurrency::per_key(1).total(1_000).queue(1_000);
        let one = RateLimiter::builder(rule).clock(ManualClock::new()).build();
        let line = LeakyBucket::new(quota()).queue(10_000);
        let line = RateLimiter::builder(line).clock(ManualClock::new()).build();
        let (start, entered) = (Barrier::new(THREADS + 1), AtomicUsize::new(0));
        let calls: Vec<PolledByHand<Pin<Box<dyn Future<Output = bool> + Send>>>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (one, line, start, entered) = (&one, &line, &start, &entered);
                    scope.spawn(move || {
                        let both = RateLimitLayer::with_limiter(Global, one.clone())
                            .and(RateLimitLayer::with_limiter(Global, line.clone()));
                        let mut service = service!(both);
                        let mut calls = Vec::new();
                        start.wait();
                        for n in 0..60 {
                            let call: Pin<Box<dyn Future<Output = bool> + Send>> = match (n + thread) % 3 {
                                0 => {
                                    let call = one.acquire_permit(&(n % 5));
                                    Box::pin(async move {
                                        call.await.is_err_and(|denied| denied.decision().is_closed())
                                    })
                                }
                                1 => {
                                    let call = line.acquire(&(n % 5));
                                    Box::pin(async move { call.await.is_closed() })
                                }
                                _ => {
                                    let call = service.call(());
                                    Box::pin(async move { call.await.is_err() })
                                }
                            };
                            let mut call = PolledByHand::new(call);
                            call.poll();
                            entered.fetch_add(1, Ordering::SeqCst);
                            calls.push(call);
                        }
                        calls
                    })
                })
                .collect();
            start.wait();
            while entered.load(Ordering::SeqCst) < round * 20 {
                std::hint::spin_loop();
            }
            one.close();
            line.close();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for mut call in calls {
            assert!(call.run(), "round {round}: left waiting");
        }
        assert_eq!((one.queued(), line.queued()), (0, 0));
        assert_closed(one.try_acquire_permit(&0).unwrap_err().decision());
    }
}
