//! The counts of limiters and layers. Each call is counted once, whatever its outcome, on one thread and on many.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hash::Hash;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tower::util::ServiceFn;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::limiter::OnClose;
use tower_throttle::middleware::Shadow;
use tower_throttle::stats::{CallStats, Timeline};
use tower_throttle::store::OnFull;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, Random};

const THREADS: u64 = 8;
/// The number of calls that all threads together make to each of ten subjects. It is a tenth of the number in
/// `.ci/nightly`.
const CALLS: u64 = 100_000;

type Answers = Ready<Result<(), Infallible>>;

fn answers<Req>() -> ServiceFn<fn(Req) -> Answers> {
    service_fn(|_| ready(Ok(())))
}

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

fn frozen<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).build()
}

/// Returns the counts as a text. Counts of zero are left out.
fn text(stats: CallStats) -> String {
    let CallStats { admitted, denied, queue_full, table_full, closed, denied_by_others, .. } = stats;
    let CallStats { cancelled, shadow_denied, queued, .. } = stats;
    [
        ("admitted", admitted),
        ("denied", denied),
        ("queue full", queue_full),
        ("table full", table_full),
        ("closed", closed),
        ("denied by others", denied_by_others),
        ("cancelled", cancelled),
        ("shadow", shadow_denied),
        ("queued", queued),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(name, count)| format!("{count} {name}"))
    .collect::<Vec<_>>()
    .join(", ")
}

fn counted<A: Algorithm>(limiter: &RateLimiter<A>) -> String {
    text(limiter.stats().calls)
}

#[test]
fn checks_and_permits_count_and_peeks_do_not() {
    let limiter = frozen(TokenBucket::new(hourly(2)));
    assert_eq!(counted(&limiter), "");
    let _ = (limiter.check("a"), limiter.peek("a"), limiter.check_n("a", 1), limiter.check("a"));
    assert_eq!(counted(&limiter), "2 admitted, 1 denied");
    // A cost of 0 is always allowed, and a cost above the limit never.
    let _ = (limiter.check_n("b", 0), limiter.check_n("b", 3));
    limiter.refund("a", 1);
    limiter.reset("a");
    assert_eq!(counted(&limiter), "3 admitted, 2 denied");
    let permits = frozen(Concurrency::per_key(1));
    let permit = permits.try_acquire_permit("a").unwrap();
    assert!(permits.try_acquire_permit("a").is_err());
    drop(permit);
    assert_eq!(counted(&permits), "1 admitted, 1 denied");
}

#[test]
fn a_queued_call_is_counted_when_it_joins_and_when_it_ends() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1)).queue(2);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let mut calls = [(); 4].map(|()| PolledByHand::new(limiter.acquire("a")));
    let polled = calls.each_mut().map(PolledByHand::poll);
    assert_eq!(polled, [true, false, false, true]);
    assert_eq!(counted(&limiter), "1 admitted, 1 queue full, 2 queued");
    let [_, second, third, _] = calls;
    drop(second);
    assert_eq!(counted(&limiter), "1 admitted, 1 queue full, 1 cancelled, 2 queued");
    clock.advance(Duration::from_secs(1));
    // The call is released, but not counted as admitted yet, because its caller may still drop it.
    assert_eq!(limiter.stats().calls.admitted, 1);
    let mut third = third;
    assert!(third.poll());
    assert_eq!(counted(&limiter), "2 admitted, 1 queue full, 1 cancelled, 2 queued");
    assert_eq!(limiter.stats().calls.ended(), 4);
}

#[test]
fn a_released_call_that_is_dropped_is_counted_as_cancelled() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::builder(LeakyBucket::new(Quota::per_second(1)).queue(2)).clock(clock.clone()).build();
    let mut calls = [(); 2].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false]);
    clock.advance(Duration::from_secs(5));
    let _ = limiter.peek("a");
    drop(calls);
    assert_eq!(counted(&limiter), "1 admitted, 1 cancelled, 1 queued");
}

#[test]
fn a_full_total_counts_as_a_full_queue_and_a_wait_too_long_as_a_denial() {
    let bucket = LeakyBucket::new(Quota::per_second(1)).queue(9);
    let limiter = RateLimiter::builder(bucket).clock(ManualClock::new()).max_queued(1).build();
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, true]);
    let mut late = PolledByHand::new(limiter.acquire_within("a", Duration::from_millis(1)));
    assert!(late.poll());
    assert_eq!(counted(&limiter), "1 admitted, 1 denied, 1 queue full, 1 queued");
}

#[test]
fn a_waiter_that_makes_room_for_a_newer_call_counts_as_a_full_queue() {
    use tower_throttle::algorithm::QueueOverflow;
    let bucket = TokenBucket::new(Quota::per_second(1).burst(1)).queue(1).overflow(QueueOverflow::DropOldest);
    let limiter = frozen(bucket);
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, false]);
    let [_, mut oldest, _newest] = calls;
    assert!(oldest.poll());
    assert_eq!(counted(&limiter), "1 admitted, 1 queue full, 2 queued");
}

#[test]
fn a_full_table_and_a_closed_limiter_are_counted() {
    let limiter = RateLimiter::builder(FixedWindow::new(hourly(5)))
        .clock(ManualClock::new())
        .max_keys(1)
        .on_full(OnFull::Reject)
        .build();
    let _ = (limiter.check("a"), limiter.check("b"), limiter.check("b"));
    assert_eq!(counted(&limiter), "1 admitted, 2 table full");
    let clone = limiter.clone();
    limiter.close();
    let _ = (clone.check("a"), clone.check("b"));
    assert_eq!(counted(&limiter), "1 admitted, 2 table full, 2 closed");
    let open = RateLimiter::builder(FixedWindow::new(hourly(1)))
        .clock(ManualClock::new())
        .on_close(OnClose::Allow)
        .build();
    open.close();
    let _ = (open.check("a"), open.check("a"));
    assert_eq!(counted(&open), "2 admitted");
}

#[test]
fn closing_a_limiter_counts_its_waiters_as_closed() {
    let limiter = frozen(LeakyBucket::new(hourly(1)).queue(2));
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, false]);
    limiter.close();
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true; 3]);
    assert_eq!(counted(&limiter), "1 admitted, 2 closed, 2 queued");
}

#[test]
fn a_replaced_algorithm_goes_on_counting() {
    let limiter = frozen(TokenBucket::new(hourly(1)));
    let _ = (limiter.check("a"), limiter.check("a"));
    limiter.replace(TokenBucket::new(hourly(3)));
    let _ = (limiter.check("a"), limiter.check("a"), limiter.check("a"));
    assert_eq!(counted(&limiter), "3 admitted, 2 denied");
}

/// Calls a service with a request. Returns whether it was admitted at once.
fn passes<S, Req>(service: &S, request: Req) -> bool
where
    S: Service<Req, Response = ()> + Clone,
{
    let mut call = PolledByHand::new(service.clone().call(request));
    call.poll() && call.output.is_some_and(|output| output.is_ok())
}

#[test]
fn policies_that_share_a_limiter_count_on_their_own_and_the_limiter_counts_all() {
    let limiter = frozen(TokenBucket::new(hourly(3)));
    let layer = || RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let (first, second) = (layer().name("first"), layer().name("second"));
    let service = first.clone().layer(answers());
    assert!(passes(&service, ()) && passes(&service, ()));
    assert!(passes(&second.layer(answers()), ()) && !passes(&second.layer(answers()), ()));
    let _ = limiter.check("another key");
    assert_eq!(first.stats().name, "first");
    assert_eq!(text(first.stats().calls), "2 admitted");
    assert_eq!(text(second.stats().calls), "1 admitted, 1 denied");
    assert_eq!(counted(&limiter), "4 admitted, 1 denied");
    drop((first, service));
    let third = layer();
    assert_eq!(text(third.stats().calls), "");
    assert_eq!(counted(&limiter), "4 admitted, 1 denied", "also those of a policy that is gone");
}

#[test]
fn shadow_mode_counts_what_it_let_through() {
    let shadow = Shadow::new();
    let layer = RateLimitLayer::with_limiter(Global, frozen(TokenBucket::new(hourly(1))))
        .shadow(&shadow)
        .responder(ErrorResponder);
    let service = layer.layer(answers());
    assert!(passes(&service, ()) && passes(&service, ()) && passes(&service, ()));
    assert_eq!(text(layer.stats().calls), "1 admitted, 2 shadow");
    shadow.set(false);
    assert!(!passes(&service, ()));
    assert_eq!(text(layer.stats().calls), "1 admitted, 1 denied, 2 shadow");
}

#[test]
fn joined_policies_count_a_request_each() {
    let (bucket, window) = (frozen(TokenBucket::new(hourly(3))), frozen(FixedWindow::new(hourly(2))));
    let layer = RateLimitLayer::with_limiter(Global, bucket.clone())
        .name("bucket")
        .and(RateLimitLayer::with_limiter(Global, window.clone()).name("window"))
        .responder(ErrorResponder);
    let service = layer.layer(answers());
    assert_eq!([(); 4].map(|()| passes(&service, ())), [true, true, false, false]);
    let stats = layer.stats();
    let lines: Vec<_> =
        stats.iter().map(|policy| format!("{}: {}", policy.name, text(policy.calls))).collect();
    assert_eq!(lines, ["bucket: 2 admitted, 2 denied by others", "window: 2 admitted, 2 denied"]);
    assert_eq!(counted(&bucket), "2 admitted, 2 denied by others");
}

#[test]
fn a_joined_call_that_waits_is_counted_when_it_ends() {
    let clock = ManualClock::new();
    let queue = RateLimiter::builder(LeakyBucket::new(Quota::per_second(1)).queue(3)).clock(clock.clone());
    let queue = queue.build();
    let window = RateLimiter::builder(FixedWindow::new(hourly(9))).clock(clock.clone()).build();
    let layer = RateLimitLayer::with_limiter(Global, queue.clone())
        .and(RateLimitLayer::with_limiter(Global, window.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(answers::<()>());
    let mut calls = [(); 4].map(|()| PolledByHand::new(service.clone().call(())));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, false, false]);
    assert_eq!([counted(&queue), counted(&window)], ["1 admitted, 3 queued", "1 admitted"]);
    let [_, second, mut third, mut fourth] = calls;
    drop(second);
    clock.advance(Duration::from_secs(1));
    assert!(third.poll());
    queue.close();
    assert!(fourth.poll());
    assert_eq!(counted(&queue), "2 admitted, 1 closed, 1 cancelled, 3 queued");
    assert_eq!(counted(&window), "2 admitted, 1 denied by others, 1 cancelled");
}

/// Makes `calls` calls on eight threads together. Each call gets a random number. Returns how many calls were admitted.
fn on_threads(calls: u64, call: impl Fn(&mut Random) -> bool + Sync) -> u64 {
    let (start, admitted) = (Barrier::new(THREADS as usize), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (start, admitted, call) = (&start, &admitted, &call);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                start.wait();
                let mine = (0..calls / THREADS).filter(|_| call(&mut random)).count();
                admitted.fetch_add(mine as u64, Ordering::Relaxed);
            });
        }
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
    let shadow = Shadow::new();
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

/// Calls of many threads that are queued, cancelled, released and denied.
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

/// The keys have different types, and the counts do not depend on the type.
#[test]
fn a_count_does_not_depend_on_the_type_of_the_key() {
    fn one(key: &(impl Hash + ?Sized)) -> CallStats {
        let limiter = frozen(TokenBucket::new(hourly(1)));
        let _ = limiter.check(key);
        limiter.stats().calls
    }
    assert_eq!(one("a"), one(&7_u64));
}
