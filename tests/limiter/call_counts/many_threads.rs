//! Eight threads lose no count of a limiter, a layer or a queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tower::Layer;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::middleware::Shadow;
use tower_throttle::stats::Timeline;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{answers, hourly, passes};
use crate::support::{self, PolledByHand, Random};

const THREADS: u64 = 8;
/// The number of calls that all threads together make to each of ten subjects. It is a tenth of the number in
/// `.ci/nightly`.
const CALLS: u64 = 100_000;

/// Makes `calls` calls on eight threads together. Each call gets a random number. Returns how many calls were admitted.
fn on_threads(calls: u64, call: impl Fn(&mut Random) -> bool + Sync) -> u64 {
    let admitted = AtomicU64::new(0);
    support::on_threads(THREADS, |thread| {
        let mut random = Random::new(thread);
        let mine = (0..calls / THREADS).filter(|_| call(&mut random)).count();
        admitted.fetch_add(mine as u64, Ordering::Relaxed);
    });
    admitted.into_inner()
}

/// Verifies that a limiter counts each of the calls that many threads make, for a few keys and for many.
fn limiter_is_exact<A: Algorithm>(algorithm: A, calls: u64) {
    for (keys, is_running) in [(1, false), (1_000, false), (1_000, true)] {
        let builder = RateLimiter::builder(algorithm.clone()).max_keys(500);
        let limiter = if is_running { builder } else { builder.clock(ManualClock::new()) }.build();
        let admitted = on_threads(calls / 3, |random| limiter.check(&random.below(keys)).is_allowed());
        let stats = limiter.stats().calls;
        assert_eq!(
            (stats.admitted, stats.ended()),
            (admitted, calls / 3 / THREADS * THREADS),
            "{algorithm:?}"
        );
        assert_eq!(stats.queued + stats.cancelled + stats.closed, 0, "{algorithm:?}");
    }
}

fn every_limiter_is_exact(calls: u64) {
    let quota = Quota::per_second(1_000);
    limiter_is_exact(FixedWindow::new(quota), calls);
    limiter_is_exact(SlidingWindow::new(quota), calls);
    limiter_is_exact(SlidingCounter::new(quota), calls);
    limiter_is_exact(SlidingLog::new(quota), calls);
    limiter_is_exact(TokenBucket::new(quota), calls);
    limiter_is_exact(LeakyBucket::new(quota), calls);
    limiter_is_exact(Smooth::bursty(quota), calls);
    limiter_is_exact((TokenBucket::new(quota), FixedWindow::new(hourly(2_000))), calls);
}

fn layers_are_exact(calls: u64) {
    let by = |shift: u32| from_fn(move |request: &u64| Some(request >> shift & 0xf));
    let shadow = Shadow::on();
    let bucket = || RateLimiter::new(TokenBucket::new(Quota::per_second(500)));
    let window = || RateLimiter::new(SlidingWindow::new(Quota::per_second(2_000)));
    // The timelines cover six minutes, which is longer than the test. The slices are short, so the threads often begin
    // a new one.
    let timeline = || Timeline::new().slices(3_600).slice_length(Duration::from_millis(100));
    let (alone, both) = (timeline(), timeline());
    let first = RateLimitLayer::with_limiter(by(0), bucket()).name("alone").responder(ErrorResponder);
    let first = first.timeline(&alone);
    let shadowed = first.clone().shadow(&shadow);
    let second = RateLimitLayer::with_limiter(by(4), bucket()).name("first").timeline(&both);
    let third = RateLimitLayer::with_limiter(by(8), window()).name("second").timeline(&both);
    let joined = second.clone().and(third).responder(ErrorResponder);
    let made = calls / 3 / THREADS * THREADS;

    let service = first.layer(answers::<u64>());
    let admitted = on_threads(calls / 3, |random| passes(&service, random.below(0x1000)));
    let stats = first.stats().calls;
    assert_eq!((stats.admitted, stats.admitted + stats.denied), (admitted, made));
    let total = alone.total();
    assert_eq!((total.admitted, total.denied, total.successes), (admitted, stats.denied, admitted));

    let service = shadowed.layer(answers::<u64>());
    assert_eq!(on_threads(calls / 3, |random| passes(&service, random.below(0x1000))), made);
    let in_shadow = first.stats().calls;
    assert_eq!(in_shadow.denied, stats.denied);
    assert_eq!(in_shadow.admitted - stats.admitted + in_shadow.shadow_denied, made);
    assert_eq!(in_shadow.shadow_denied, shadow.denied());
    let total = alone.total();
    let passed = admitted + made;
    assert_eq!((total.admitted, total.denied, total.successes), (passed, stats.denied, passed));

    let service = joined.layer(answers::<u64>());
    let admitted = on_threads(calls / 3, |random| passes(&service, random.below(0x1000)));
    for policy in joined.stats() {
        let stats = policy.calls;
        assert_eq!((stats.admitted, stats.ended()), (admitted, made), "{}", policy.name);
        assert_eq!(stats.denied + stats.denied_by_others, made - admitted, "{}", policy.name);
    }
    let (total, denied) =
        (both.total(), joined.stats().iter().map(|policy| policy.calls.denied).sum::<u64>());
    assert_eq!((total.admitted, total.denied, total.successes), (2 * admitted, denied, 2 * admitted));
    assert_eq!(second.stats().calls, joined.stats()[0].calls, "clones of a layer share their counters");
}

/// Calls of many threads that are queued, cancelled, admitted and denied.
fn queues_are_exact(calls: u64) {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(20_000)).queue(4));
    let ended = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, ended) = (&limiter, &ended);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let mut random = Random::new(thread);
                runtime.block_on(async {
                    for _ in 0..calls / THREADS {
                        let call = limiter.acquire(&random.below(64));
                        if random.below(4) == 0 {
                            let _ = PolledByHand::new(call).poll();
                        } else {
                            let _ = call.await;
                        }
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
    });
    let stats = limiter.stats().calls;
    assert_eq!(stats.ended(), ended.into_inner());
    assert!(stats.queued >= stats.cancelled, "{stats:?}");
}

#[test]
fn eight_threads_lose_no_count() {
    every_limiter_is_exact(CALLS);
    layers_are_exact(CALLS);
    queues_are_exact(CALLS / 100);
}

#[test]
#[ignore = "ten million calls: .ci/nightly runs it"]
fn eight_threads_lose_no_count_of_ten_million_calls() {
    every_limiter_is_exact(10 * CALLS);
    layers_are_exact(10 * CALLS);
    queues_are_exact(CALLS / 10);
}
