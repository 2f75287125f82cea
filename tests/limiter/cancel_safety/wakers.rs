//! A waker may use the limiter and drop futures when it is woken or dropped, without a deadlock.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use super::{INTERVAL, busy, waiting};
use crate::support::ends_within;

/// A waker that runs one function when it is woken, and another function when it is dropped.
struct Trap<W: Fn() + Send + Sync + 'static, D: Fn() + Send + Sync + 'static> {
    woken: W,
    dropped: D,
}

impl<W: Fn() + Send + Sync, D: Fn() + Send + Sync> Wake for Trap<W, D> {
    fn wake(self: Arc<Self>) {
        (self.woken)();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        (self.woken)();
    }
}

impl<W: Fn() + Send + Sync, D: Fn() + Send + Sync> Drop for Trap<W, D> {
    fn drop(&mut self) {
        (self.dropped)();
    }
}

fn without_a_deadlock(run: impl FnOnce() + Send + 'static) {
    ends_within(Duration::from_secs(20), run);
}

/// Returns a function for a waker. The function uses the same key and the same clock in many ways.
fn anything(limiter: &RateLimiter<LeakyBucket>, clock: &ManualClock) -> impl Fn() + Send + Sync + use<> {
    let (limiter, clock) = (limiter.clone(), clock.clone());
    let own = Mutex::new(Some(waiting(&limiter)));
    move || {
        let Some(own) = own.lock().unwrap().take() else { return };
        let _ = limiter.check(&());
        let _ = limiter.peek(&());
        let _ = limiter.check(&"another");
        drop(own);
        let mut new = pin!(limiter.acquire(&()));
        let _ = new.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        clock.advance(Duration::ZERO);
        limiter.reset(&"another");
    }
}

fn poll_with(call: &mut Pin<Box<Acquire<LeakyBucket>>>, waker: Waker) -> bool {
    call.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
}

#[test]
fn a_waker_may_do_anything_when_it_is_dropped() {
    // The waker is replaced by another waker, is dropped with its future, or is dropped when the future is ready.
    for way in 0..3 {
        without_a_deadlock(move || {
            let (limiter, clock) = busy();
            let mut call = Box::pin(limiter.acquire(&()));
            let trap = Trap { woken: || {}, dropped: anything(&limiter, &clock) };
            assert!(!poll_with(&mut call, Arc::new(trap).into()));
            match way {
                0 => assert!(!poll_with(&mut call, Waker::noop().clone())),
                1 => drop(call),
                _ => {
                    clock.advance(INTERVAL);
                    // The call of the waker's function is admitted.
                    let _ = limiter.check(&());
                    clock.advance(INTERVAL);
                    assert!(poll_with(&mut call, Waker::noop().clone()));
                }
            }
        });
    }
}

#[test]
fn a_waker_may_do_anything_when_it_is_woken() {
    // The waker is woken by the clock, by the cancellation of the call before it, or by a reset.
    for way in 0..3 {
        without_a_deadlock(move || {
            let (limiter, clock) = busy();
            let before = waiting(&limiter);
            let mut call = Box::pin(limiter.acquire(&()));
            let trap = Trap { woken: anything(&limiter, &clock), dropped: || {} };
            assert!(!poll_with(&mut call, Arc::new(trap).into()));
            match way {
                0 => clock.advance(INTERVAL),
                1 => drop(before),
                _ => _ = limiter.reset(&()),
            }
            clock.advance(INTERVAL * 10);
            assert!(poll_with(&mut call, Waker::noop().clone()));
        });
    }
}

#[test]
fn a_future_may_be_dropped_by_its_own_waker() {
    without_a_deadlock(|| {
        let (limiter, clock) = busy();
        let own = Arc::new(Mutex::new(None));
        let trap = {
            let own = own.clone();
            let woken = move || {
                // The future must be dropped outside of the lock, because a future that is dropped may wake its waker.
                let call = own.lock().unwrap().take();
                drop(call);
            };
            Trap { woken, dropped: || {} }
        };
        let mut call = Box::pin(limiter.acquire(&()));
        assert!(!poll_with(&mut call, Arc::new(trap).into()));
        *own.lock().unwrap() = Some(call);
        clock.advance(INTERVAL);
        assert!(own.lock().unwrap().is_none());
        // The call was dropped before it was polled again, so it has not been charged.
        assert!(limiter.check(&()).is_allowed());
    });
}
