//! Calls of `acquire` on a `LeakyBucket` with a queue.

mod support;

use std::future::{Future, pending};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use support::{Case, counted, program};
use tower_throttle_instructions::algorithm::LeakyBucket;
use tower_throttle_instructions::clock::{Clock, Nanos};
use tower_throttle_instructions::{Decision, Quota, RateLimiter};

/// The interval between two calls of the bucket, in nanoseconds.
const INTERVAL: u64 = 1_000;

fn main() {
    program(&[
        // The bucket has leaked before each call.
        Case::new("admitted", |calls| {
            let (limiter, clock) = limiter(8);
            let admitted = counted(|| {
                (0..calls)
                    .filter(|_| {
                        clock.advance();
                        poll(pin!(limiter.acquire("key"))).is_some_and(|decision| decision.is_allowed())
                    })
                    .count()
            });
            assert_eq!(admitted, calls);
        })
        .at_most(976.0, 3.0),
        // Each call is queued alone, and admitted one interval later.
        Case::new("queued and admitted", |calls| walk(0, calls)).at_most(5_200.0, 11.0),
        // Each call is queued behind four others. Then the first is admitted.
        Case::new("behind four, admitted", |calls| walk(4, calls)).at_most(5_120.0, 11.0),
        // The queue is full.
        Case::new("denied by a full queue", |calls| {
            let (limiter, _) = limiter(1);
            assert!(poll(pin!(limiter.acquire("key"))).is_some());
            let mut waiter = pin!(limiter.acquire("key"));
            assert!(poll(waiter.as_mut()).is_none());
            let denied = counted(|| {
                (0..calls)
                    .filter(|_| {
                        poll(pin!(limiter.acquire("key"))).is_some_and(|decision| !decision.is_allowed())
                    })
                    .count()
            });
            assert_eq!(denied, calls);
        })
        .at_most(2_200.0, 3.0),
    ]);
}

/// Queues a call behind `ahead` others, and admits the first call of the queue, as often as `calls` says.
fn walk(ahead: usize, calls: usize) {
    let (limiter, clock) = limiter(8);
    assert!(poll(pin!(limiter.acquire("key"))).is_some_and(|decision| decision.is_allowed()));
    let acquire = || {
        let mut call = Box::pin(limiter.acquire("key"));
        assert!(poll(call.as_mut()).is_none(), "the call is queued");
        call
    };
    let mut waiters: Vec<_> = (0..ahead).map(|_| acquire()).collect();
    let mut first = 0;
    counted(|| {
        for _ in 0..calls {
            let call = acquire();
            // The oldest call makes room for the new one.
            let mut oldest = match waiters.get_mut(first) {
                Some(oldest) => std::mem::replace(oldest, call),
                None => call,
            };
            first = if first + 1 < ahead { first + 1 } else { 0 };
            clock.advance();
            let decision = poll(oldest.as_mut());
            assert!(black_box(decision).is_some_and(|decision| decision.is_allowed()), "it is admitted");
        }
    });
}

fn limiter(places: u64) -> (RateLimiter<LeakyBucket>, Hand) {
    let clock = Hand(Arc::new(AtomicU64::new(3_600_000_000_000)));
    let bucket = LeakyBucket::new(Quota::per_second(1_000_000_000 / INTERVAL)).queue(places);
    (RateLimiter::builder(bucket).clock(clock.clone()).build(), clock)
}

fn poll<F: Future<Output = Decision>>(call: Pin<&mut F>) -> Option<Decision> {
    match call.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => Some(black_box(decision)),
        Poll::Pending => None,
    }
}

/// A clock that is advanced by hand.
#[derive(Clone, Debug)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    /// Advances the clock by one interval.
    fn advance(&self) {
        // Only one thread uses the clock. So no locked instruction is needed, which would be counted.
        self.0.store(self.0.load(Ordering::Relaxed) + INTERVAL, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    fn is_monotonic(&self) -> bool {
        true
    }

    fn sleep_until(&self, _: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(pending())
    }
}
