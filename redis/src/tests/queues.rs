//! Calls that are queued in their own process, since the state does not show which calls wait.

use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceExt, service_fn};

use super::faults::swaps;
use super::flights::settle;
use super::limiter;
use super::staged::Staged;
use crate::limiter::RedisLimiter;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, Smooth, StoredAlgorithm, Tiered, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

const MS: Duration = Duration::from_millis(1);

fn window(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_hour(limit))
}

fn build<A: StoredAlgorithm>(algorithm: A) -> RedisLimiter<A> {
    limiter(&swaps(&Staged::new()), algorithm)
}

/// Makes ten calls at once that wait for up to `max_wait`.
async fn ten<A: StoredAlgorithm>(limiter: &RedisLimiter<A>, max_wait: Duration) -> Vec<Decision> {
    let calls: Vec<_> =
        (0..10).map(|_| tokio::spawn(limiter.call("a").max_wait(max_wait).acquire())).collect();
    let mut decisions = Vec::new();
    for call in calls {
        decisions.push(call.await.unwrap().unwrap());
    }
    decisions
}

fn admitted(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| decision.is_allowed() && decision.delay() == Duration::ZERO).count()
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_are_not_queued_while_there_are_units() {
    assert_eq!(admitted(&ten(&build(window(100).queue(1)), 1_000 * MS).await), 10);
    assert_eq!(admitted(&ten(&build(window(100)), Duration::ZERO).await), 10);
    let tiers = ten(&build(Tiered::new(window(3))), Duration::ZERO).await;
    assert_eq!(admitted(&tiers), 3);
    assert!(tiers[3..].iter().all(|denied| !denied.is_allowed() && !denied.is_queue_full()));
}

#[tokio::test(start_paused = true)]
async fn only_a_call_that_would_be_in_time_finds_the_queue_full() {
    let limiter = build(window(1).queue(1));
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let waiting = tokio::spawn(limiter.acquire("a"));
    settle().await;
    for (max_wait, is_full) in [(10 * MS, false), (Duration::MAX, true)] {
        let denied = limiter.call("a").max_wait(max_wait).acquire().await.unwrap();
        assert_eq!((denied.is_allowed(), denied.is_queue_full()), (false, is_full), "{max_wait:?}");
        assert_eq!(denied.retry_after(), None, "the wait behind the queue is unknown");
        assert!(!denied.never_fits());
    }
    assert!(!waiting.is_finished());
    assert_eq!(waiting.await.unwrap().unwrap().delay().as_secs(), 3_600);
}

#[tokio::test(start_paused = true)]
async fn a_call_does_not_overtake_those_that_wait() {
    let limiter = build(window(2).queue(2));
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let start = Instant::now();
    let first = tokio::spawn(limiter.acquire_n("a", 2));
    settle().await;
    let second = tokio::spawn(limiter.acquire("a"));
    settle().await;
    let in_haste = limiter.call("a").max_wait(Duration::ZERO).acquire().await.unwrap();
    assert!(!in_haste.is_allowed(), "the unit that is left is not for a later call");
    assert!(limiter.acquire("a").await.unwrap().is_queue_full());
    advance(1_000 * MS).await;
    assert!(!first.is_finished() && !second.is_finished());
    let delays = [first.await, second.await].map(|call| call.unwrap().unwrap().delay().as_secs());
    assert_eq!(delays, [3_600, 7_200]);
    assert_eq!(start.elapsed().as_secs(), 7_200);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_fits_is_denied_at_once_and_takes_no_place() {
    /// Returns the time after which a call of this cost is denied, and that of a call behind it.
    async fn denied<A: StoredAlgorithm>(algorithm: A, cost: u64) {
        let limiter = build(algorithm);
        assert!(limiter.acquire("a").await.unwrap().is_allowed());
        let waiting = tokio::spawn(limiter.acquire("a"));
        settle().await;
        assert!(!waiting.is_finished());
        let start = Instant::now();
        let denied = limiter.acquire_n("a", cost).await.unwrap();
        assert!(denied.never_fits() && !denied.is_queue_full(), "{denied:?}");
        assert_eq!(start.elapsed(), Duration::ZERO, "{limiter:?}");
        assert!(waiting.await.unwrap().unwrap().is_allowed());
    }
    denied(window(1).queue(2), 2).await;
    denied((window(1).queue(2), window(5)), 2).await;
    denied(Tiered::new(window(1).queue(2)), 2).await;
    denied(window(1).queue(2).block_for(1_000 * MS).after(10), 2).await;
    // All places are taken.
    denied(window(1).queue(1), 2).await;
}

/// Makes calls at once, and then stalls. Returns how many calls are admitted by the end of the stall.
async fn admitted_after<A: StoredAlgorithm>(algorithm: A, calls: u64, stall: Duration) -> usize {
    let limiter = build(algorithm);
    let calls: Vec<_> = (0..calls).map(|_| tokio::spawn(limiter.acquire("a"))).collect();
    settle().await;
    advance(stall).await;
    for _ in 0..100 {
        settle().await;
    }
    calls.iter().filter(|call| call.is_finished()).count()
}

/// A new key has stored ten permits, so eleven calls pass at once. The next one is due after 100 ms.
#[tokio::test(start_paused = true)]
async fn a_stall_of_the_process_stores_no_permits() {
    let smooth = || Smooth::bursty(Quota::per_second(10)).queue(20);
    let wide = window(1_000_000).queue(2_000);
    let stall = 1_100 * MS;
    assert_eq!(admitted_after(smooth(), 21, stall).await, 12);
    assert_eq!(admitted_after((smooth(), wide.clone()), 21, stall).await, 12);
    assert_eq!(admitted_after(Tiered::new((wide, smooth())), 21, stall).await, 12);
}

/// Tokio's timer is up to a millisecond late.
#[tokio::test(start_paused = true)]
async fn a_late_timer_does_not_lower_the_rate_of_calls_that_wait() {
    let wide = || window(1_000_000).queue(900);
    /// Makes as many calls as pass at once, and those of 200 ms.
    async fn lasts_200_ms<A: StoredAlgorithm>(algorithm: A, calls: u64) {
        let (limiter, start) = (build(algorithm), Instant::now());
        let calls: Vec<_> = (0..calls).map(|_| tokio::spawn(limiter.acquire("a"))).collect();
        for call in calls {
            assert!(call.await.unwrap().unwrap().is_allowed());
        }
        let elapsed = start.elapsed();
        assert!(elapsed >= 200 * MS && elapsed <= 202 * MS, "{elapsed:?} {limiter:?}");
    }
    for rate in [300, 3_000] {
        let quota = Quota::per_second(rate).burst(1);
        let (leaky, bucket) = (LeakyBucket::new(quota).queue(900), TokenBucket::new(quota).queue(900));
        let calls = rate / 5 + 1;
        lasts_200_ms((leaky.clone(), wide()), calls).await;
        lasts_200_ms((wide(), bucket), calls).await;
        lasts_200_ms(Tiered::new(leaky.clone()), calls).await;
        lasts_200_ms(leaky.block_for(1_000 * MS).after(1_000), calls).await;
    }
    // A new key has stored 300 permits.
    let smooth = || Smooth::bursty(Quota::per_second(300)).queue(900);
    lasts_200_ms(smooth(), 361).await;
    lasts_200_ms((smooth(), wide()), 361).await;
}

/// The queue of calls with priority is one of a process, and Redis does not know it.
#[tokio::test(start_paused = true)]
async fn the_priority_of_a_tier_has_no_effect_in_redis() {
    let hello =
        service_fn(|_: Request<String>| async { Ok::<_, std::io::Error>(Response::new(String::new())) });
    // The status of the second of two requests with priority, and its wait.
    macro_rules! second {
        ($limiter:expr) => {{
            let service = RateLimitLayer::with_limiter(Global, $limiter)
                .tier(|_: &Request<String>, _: &_| window(1).priority(100))
                .priority(|_: &Request<String>| true)
                .layer(hello);
            let call = || service.clone().oneshot(Request::new(String::new()));
            assert_eq!(call().await.unwrap().status(), 200);
            let start = Instant::now();
            (call().await.unwrap().status().as_u16(), start.elapsed().as_secs())
        }};
    }
    let in_memory = second!(RateLimiter::new(Tiered::new(window(1))));
    assert_eq!(in_memory, (200, 3_600), "it waits for the next window");
    assert_eq!(second!(build(Tiered::new(window(1)))), (429, 0), "it is denied, and not queued");
}
