//! Permits of a `FairLimiter`.

mod support;

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use support::checks::keys;
use support::clock::Steps;
use support::{Case, counted, program};
use tower_throttle_instructions::RateLimiter;
use tower_throttle_instructions::algorithm::Concurrency;
use tower_throttle_instructions::limiter::{FairAcquire, FairLimiter, Permit};

/// The number of calls in progress at a time.
const PLACES: usize = 10;

fn main() {
    program(&[
        // For comparison: a limit for each key, without a total.
        Case::new("RateLimiter: a permit", |calls| {
            let limiter = RateLimiter::builder(Concurrency::per_key(4)).clock(Steps::new()).build();
            let keys = keys(100);
            permits(calls, |call| limiter.try_acquire_permit(&keys[call % 100]).ok());
        }),
        Case::new("a permit", |calls| {
            let limiter =
                FairLimiter::builder(Concurrency::per_key(4).total(100)).clock(Steps::new()).build();
            let keys = keys(100);
            permits(calls, |call| limiter.try_acquire_permit(&keys[call % 100]).ok());
        })
        .at_most(1_105.0, 6.0),
        Case::new("10 callers wait", |calls| crowd(10, calls)).at_most(4_200.0, 20.0),
        Case::new("1,000 callers wait", |calls| crowd(1_000, calls)).at_most(5_400.0, 20.0),
        Case::new("100,000 callers wait", |calls| crowd(100_000, calls)).at_most(6_400.0, 20.0),
    ]);
}

/// Takes and drops as many permits as `calls` says.
fn permits(calls: usize, take: impl Fn(usize) -> Option<Permit>) {
    let walk = |calls| (0..calls).filter(|call| black_box(take(*call)).is_some()).count();
    assert_eq!(walk(200), 200);
    assert_eq!(counted(|| walk(calls)), calls);
}

/// Ends calls while `callers` callers wait with one call each: the next one is admitted, and the one that has ended
/// makes a new call.
fn crowd(callers: usize, calls: usize) {
    let limit = Concurrency::per_key(4).total(PLACES as u64);
    let limiter = FairLimiter::builder(limit).clock(Steps::new()).max_queued(callers).build();
    let keys = keys(callers + PLACES);
    let woken = Arc::new(AtomicUsize::new(usize::MAX));
    let waker = |caller| Waker::from(Arc::new(Alarm { caller, woken: woken.clone() }));
    let wakers: Vec<_> = (0..keys.len()).map(waker).collect();
    let mut waiting: Vec<Option<Pin<Box<FairAcquire>>>> = (0..keys.len()).map(|_| None).collect();
    let mut held: Vec<Option<(usize, Permit)>> = Vec::new();
    for caller in 0..keys.len() {
        let mut call = Box::pin(limiter.acquire_permit(&keys[caller]));
        match poll(&mut call, &wakers[caller]) {
            Some(permit) => held.push(Some((caller, permit))),
            None => waiting[caller] = Some(call),
        }
    }
    assert_eq!(held.len(), PLACES);
    let mut walk = |calls| {
        for call in 0..calls {
            let Some((ended, permit)) = held[call % PLACES].take() else { panic!("a call is in progress") };
            drop(permit);
            let next = woken.load(Ordering::Relaxed);
            let mut admitted = waiting[next].take().expect("it waits");
            held[call % PLACES] = Some((next, poll(&mut admitted, &wakers[next]).expect("it was admitted")));
            let mut again = Box::pin(limiter.acquire_permit(&keys[ended]));
            assert!(poll(&mut again, &wakers[ended]).is_none(), "it waits");
            waiting[ended] = Some(again);
        }
    };
    walk(1_000);
    counted(|| walk(calls));
}

struct Alarm {
    caller: usize,
    woken: Arc<AtomicUsize>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.woken.store(self.caller, Ordering::Relaxed);
    }
}

fn poll(call: &mut Pin<Box<FairAcquire>>, waker: &Waker) -> Option<Permit> {
    match call.as_mut().poll(&mut Context::from_waker(waker)) {
        Poll::Ready(permit) => Some(permit.expect("nothing is full")),
        Poll::Pending => None,
    }
}
