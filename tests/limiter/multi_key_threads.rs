//! Threads that use several keys at once, in every order: all operations of a limiter, and queues that are joined in
//! both orders, end without a deadlock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{LeakyBucket, SlidingLog, Smooth, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, PolledByHand, Random, ends_within, on_threads, scaled};

const THREADS: u64 = 8;

/// Runs `test`. If `test` does not end, fails instead of hanging.
fn watched(test: impl FnOnce() + Send + 'static) {
    ends_within(Duration::from_secs(120), test);
}

/// Calls `run` in eight threads at once, with the number of the thread.
fn at_once(run: impl Fn(u64) + Sync) {
    on_threads(THREADS, run);
}

/// A request with a key for each of two layers.
type Keys = [u64; 2];

type Key<const AT: usize> = fn(&Keys) -> Option<u64>;

fn key<const AT: usize>(keys: &Keys) -> Option<u64> {
    Some(keys[AT])
}

/// Returns whether the service admits the call. The call must not be queued.
fn passes<S: Service<Keys>>(service: &mut S, keys: Keys) -> bool {
    service.call(keys).now().is_ok()
}

/// Returns `first.and(second)`. The first limiter has the first key of a request, and the second limiter has the second
/// key.
macro_rules! both {
    ($first:expr, $second:expr) => {{
        let first = RateLimitLayer::with_limiter(from_fn(key::<0> as Key<0>), $first.clone());
        let second = RateLimitLayer::with_limiter(from_fn(key::<1> as Key<1>), $second.clone());
        let layers = first.and(second).responder(ErrorResponder);
        layers.layer(service_fn(async |_: Keys| Ok::<_, ()>(())))
    }};
}

/// Makes all operations of a limiter at once, in threads that lock several keys.
#[test]
fn resets_replacements_refunds_peeks_and_joined_calls_never_deadlock() {
    watched(|| {
        let clock = ManualClock::new();
        let bucket = |n: u64| TokenBucket::new(Quota::per_second(1 + n));
        let log = |n: u64| SlidingLog::new(Quota::per_second(1 + n));
        let first = RateLimiter::builder(bucket(5)).clock(clock.clone()).max_keys(20).build();
        let second = RateLimiter::builder(log(5)).clock(clock.clone()).max_keys(20).build();
        at_once(|thread| {
            let mut random = Random::new(thread);
            let (mut there, mut back) = (both!(first, second), both!(second, first));
            for _ in 0..scaled(40_000) {
                let (one, two) = (random.below(60), random.below(60));
                match random.below(12) {
                    0 => _ = first.reset(&one),
                    1 => _ = second.reset(&two),
                    2 if random.one_in(20) => first.replace(bucket(random.below(9))),
                    3 if random.one_in(20) => second.replace(log(random.below(9))),
                    4 => first.refund(&one, 1),
                    5 => assert!(second.peek(&two).limit() <= 9),
                    6 => assert!(first.check(&one).limit() <= 9),
                    7 => clock.advance(Duration::from_millis(random.below(400))),
                    8 => assert!(format!("{first:?}{second:?}").len() < 1_000),
                    9 => {
                        passes(&mut back, [two, one]);
                    }
                    _ => {
                        passes(&mut there, [one, two]);
                    }
                }
                assert!(first.len() <= 20 && second.len() <= 20);
            }
        });
        // No place in the table is lost, and no lock is still held.
        clock.advance(Duration::from_secs(100));
        for key in 1_000..3_000_u64 {
            let _ = (first.check_n(&key, 0), second.check_n(&key, 0));
        }
        assert_eq!((first.len(), second.len()), (0, 0));
    });
}

type Call = Pin<Box<dyn Future<Output = bool>>>;

/// Starts a call that is queued at once.
fn call<S>(service: &mut S, keys: Keys) -> PolledByHand<Call>
where
    S: Service<Keys, Future: 'static>,
{
    let call = service.call(keys);
    PolledByHand::new(Box::pin(async move { call.await.is_ok() }))
}

/// Queues and other limits are joined in both orders. Each waiter is admitted or cancelled, and none is forgotten.
#[test]
fn waiting_calls_of_two_queues_in_both_orders_all_end() {
    watched(|| {
        let clock = ManualClock::new();
        let build = |places| {
            let queue = LeakyBucket::new(Quota::per_second(100)).queue(places);
            RateLimiter::builder(queue).clock(clock.clone()).build()
        };
        let (first, second) = (build(50), build(30));
        let smooth = Smooth::bursty(Quota::per_second(100)).queue(40);
        let third = RateLimiter::builder(smooth).clock(clock.clone()).build();
        let (rounds, done) = (scaled(600), AtomicBool::new(false));
        let ended = Arc::new(AtomicU64::new(0));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (first, second, third) = (first.clone(), second.clone(), third.clone());
                    let ended = ended.clone();
                    scope.spawn(move || {
                        let mut random = Random::new(thread);
                        let (mut there, mut back) = (both!(first, second), both!(second, first));
                        let (mut round, mut again) = (both!(third, first), both!(second, third));
                        for _ in 0..rounds {
                            let keys = [random.below(2), random.below(2)];
                            let mut calls = [
                                call(&mut there, keys),
                                call(&mut back, keys),
                                call(&mut round, keys),
                                call(&mut again, keys),
                            ];
                            if random.one_in(3) {
                                calls[0].poll();
                                calls[random.below(4) as usize].abandon();
                            }
                            while calls.iter_mut().map(PolledByHand::run).filter(|ended| !ended).count() > 0 {
                                thread::yield_now();
                            }
                            ended.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    clock.advance(Duration::from_millis(10));
                    thread::yield_now();
                }
            });
            for worker in workers {
                worker.join().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(ended.load(Ordering::Relaxed), rounds * THREADS);
    });
}
