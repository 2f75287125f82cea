//! Calls of a `FairLimiter` in several threads. No unit is lost, and no call sleeps while the first one fits: it would
//! never end, which is a deadlock.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::thread;
use tower_throttle::algorithm::Concurrency;
use tower_throttle::limiter::{Denied, FairAcquire, FairLimiter, Permit};

use super::clock::{Strict, Time};
use super::harness::all;

const WAIT: Duration = Duration::from_micros(1);

type Waiting = Pin<Box<FairAcquire>>;

fn fair(clock: Strict, total: u64) -> FairLimiter {
    FairLimiter::builder(Concurrency::per_key(total).total(total)).clock(clock).max_queued(2).build()
}

/// Takes permits that are free.
fn taken(limiter: &FairLimiter, key: u64, cost: u64) -> Permit {
    limiter.call(&key).cost(cost).permit().expect("the units are free")
}

/// Starts a call that must wait, in a task that is never woken.
fn queued(limiter: &FairLimiter, key: u64, cost: u64) -> Waiting {
    let mut call = Box::pin(limiter.call(&key).cost(cost).acquire_permit());
    assert!(is_pending(&mut call), "the call waits");
    call
}

fn is_pending(call: &mut Waiting) -> bool {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Waits for a permit, in a thread of its own, and gives it back.
fn passes(limiter: &FairLimiter, key: u64) -> thread::JoinHandle<()> {
    let limiter = limiter.clone();
    thread::spawn(move || drop(block_on(limiter.acquire_permit(&key)).expect("it is admitted")))
}

/// Drops a value in a thread of its own.
fn dropped<T: Send + 'static>(value: T) -> thread::JoinHandle<()> {
    thread::spawn(move || drop(value))
}

fn is_unused(limiter: &FairLimiter, total: u64) {
    assert_eq!(limiter.stats().store.waiting, 0, "a call waits");
    drop(taken(limiter, 9, total));
}

pub(crate) fn an_arrival_meets_a_release() {
    let limiter = fair(Strict::new(), 1);
    let held = taken(&limiter, 0, 1);
    let threads = vec![passes(&limiter, 0), dropped(held), passes(&limiter, 1)];
    all(threads);
    is_unused(&limiter, 1);
}

pub(crate) fn the_first_is_cancelled_at_a_release() {
    let limiter = fair(Strict::new(), 2);
    let held = [taken(&limiter, 0, 1), taken(&limiter, 1, 1)];
    let large = queued(&limiter, 2, 2);
    let [one, other] = held;
    let threads = vec![passes(&limiter, 3), dropped(large), dropped(one)];
    all(threads);
    drop(other);
    is_unused(&limiter, 2);
}

pub(crate) fn an_admitted_call_is_dropped() {
    let limiter = fair(Strict::new(), 1);
    let held = taken(&limiter, 0, 1);
    let first = queued(&limiter, 1, 1);
    drop(held);
    let threads = vec![passes(&limiter, 2), dropped(first), passes(&limiter, 3)];
    all(threads);
    is_unused(&limiter, 1);
}

/// The newest call of the caller with most of them is displaced, while it is polled or dropped.
pub(crate) fn a_call_is_displaced(polled: bool) {
    let limiter = fair(Strict::new(), 1);
    let held = taken(&limiter, 0, 1);
    let (first, mut newest) = (queued(&limiter, 1, 1), queued(&limiter, 1, 1));
    let other = thread::spawn(move || {
        if polled {
            let poll = newest.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            // If it is admitted before the other call arrives, its permit is dropped here.
            if let Poll::Ready(Err(denied)) = poll {
                assert!(denied.decision().is_queue_full());
            }
        }
        drop(newest);
    });
    let threads = vec![passes(&limiter, 2), other, dropped(first), dropped(held)];
    all(threads);
    is_unused(&limiter, 1);
}

pub(crate) fn the_limiter_is_closed_while_calls_arrive() {
    let limiter = fair(Strict::new(), 1);
    let held = taken(&limiter, 0, 1);
    let calls: Vec<_> = (0..2_u64)
        .map(|key| {
            let limiter = limiter.clone();
            thread::spawn(move || match block_on(limiter.acquire_permit(&key)) {
                Ok(permit) => drop(permit),
                Err(denied) => assert!(denied.decision().is_closed()),
            })
        })
        .collect();
    let closing = limiter.clone();
    let mut threads = vec![thread::spawn(move || closing.close()), dropped(held)];
    threads.extend(calls);
    all(threads);
    let store = limiter.stats().store;
    assert_eq!((store.waiting, store.keys), (0, 0));
}

pub(crate) fn the_maximum_wait_ends_at_the_admission() {
    let clock = Strict::new();
    let limiter = fair(clock.clone(), 1);
    let held = taken(&limiter, 0, 1);
    let call = limiter.call(&1_u64).max_wait(WAIT).acquire_permit();
    let waits = thread::spawn(move || {
        let ended: Result<Permit, Denied> = block_on(call);
        drop(ended);
    });
    let ticks = thread::spawn(move || {
        // The call may not have arrived, so there are two.
        clock.tick(WAIT);
        clock.tick(WAIT);
    });
    let threads = vec![waits, ticks, passes(&limiter, 2), dropped(held)];
    all(threads);
    is_unused(&limiter, 1);
}
