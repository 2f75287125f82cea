//! Calls that wait behind calls whose futures are kept and not polled: in a `FuturesUnordered` whose owner awaits
//! something else, for example.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, Service, ServiceExt};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, patient, waits};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The time for which a call waits for the first call of its queue to be polled, and a tick of tokio's timer.
const GRACE: Duration = Duration::from_millis(4);

/// Takes a unit, queues `ahead` calls and one behind them, and runs `change` half a second later. Returns how long the
/// last call has waited, and whether it was admitted. The calls before it are awaited, or polled once and then kept.
async fn last_of<A: Algorithm>(
    algorithm: A,
    ahead: usize,
    awaited: bool,
    change: impl Fn(&RateLimiter<A>),
) -> (Duration, bool) {
    let limiter = RateLimiter::new(algorithm);
    assert!(limiter.check("key").is_allowed());
    let (start, mut tasks, mut kept) = (Instant::now(), JoinSet::new(), Vec::new());
    for _ in 0..ahead {
        if awaited {
            tasks.spawn(patient(limiter.acquire("key")));
            tokio::task::yield_now().await;
        } else {
            kept.push(waits(limiter.acquire("key")));
        }
    }
    let last = tokio::spawn(patient(limiter.acquire("key")));
    sleep(SECOND / 2).await;
    change(&limiter);
    let admitted = last.await.unwrap().is_allowed();
    let waited = start.elapsed();
    tasks.join_all().await;
    assert!(kept.iter_mut().all(PolledByHand::poll), "a call before the last is still queued");
    (waited, admitted)
}

/// Asserts that the last of `ahead` calls and one more waits at most half as long again as it does if all calls are
/// awaited, and no longer if there is only one call before it.
async fn holds<A: Algorithm>(algorithm: A, ahead: usize, change: impl Fn(&RateLimiter<A>) + Copy) {
    let (shortest, _) = last_of(algorithm.clone(), ahead, true, change).await;
    let (waited, admitted) = last_of(algorithm.clone(), ahead, false, change).await;
    let longest = if ahead == 1 { shortest } else { shortest * 3 / 2 };
    let longest = longest + GRACE * (ahead + 1) as u32;
    assert!(admitted && waited <= longest, "{ahead} before it, {algorithm:?}: {waited:?}, not {shortest:?}");
}

/// Runs `$holds` with one unit a second and a tenth of the period, by each algorithm that queues calls.
macro_rules! each_queue {
    ($holds:ident) => {
        let (slow, fast) = (Quota::per_second(1), Quota::per_second(10).burst(1));
        $holds(LeakyBucket::new(slow).queue(99), LeakyBucket::new(fast).queue(99)).await;
        $holds(Smooth::bursty(slow).queue(99), Smooth::bursty(fast).queue(99)).await;
        $holds(TokenBucket::new(slow).queue(99), TokenBucket::new(fast).queue(99)).await;
        let fast = Quota::per(1, SECOND / 10).unwrap();
        $holds(FixedWindow::new(slow).queue(99), FixedWindow::new(fast).queue(99)).await;
        $holds(SlidingWindow::new(slow).queue(99), SlidingWindow::new(fast).queue(99)).await;
        $holds(SlidingLog::new(slow).queue(99), SlidingLog::new(fast).queue(99)).await;
        $holds(SlidingCounter::new(slow).queue(99), SlidingCounter::new(fast).queue(99)).await;
        let pair =
            |quota| (FixedWindow::new(quota).queue(99), TokenBucket::new(Quota::per_second(9)).queue(99));
        $holds(pair(slow), pair(fast)).await;
        $holds(Tiered::new(SlidingLog::new(slow).queue(99)), Tiered::new(SlidingLog::new(fast).queue(99)))
            .await;
    };
}

#[tokio::test(start_paused = true)]
async fn a_call_behind_calls_that_are_not_polled_waits_at_most_half_as_long_again() {
    async fn each<A: Algorithm>(slow: A, _: A) {
        for ahead in [1, 2, 3, 4, 7, 40] {
            holds(slow.clone(), ahead, |_| {}).await;
        }
    }
    each_queue!(each);
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_first_calls_are_not_polled_goes_on_after_any_change_of_its_key() {
    async fn each<A: Algorithm>(slow: A, fast: A) {
        for ahead in [1, 2, 9] {
            holds(slow.clone(), ahead, |limiter| limiter.refund("key", 1)).await;
            holds(slow.clone(), ahead, |limiter| _ = limiter.reset("key")).await;
            holds(slow.clone(), ahead, RateLimiter::reset_all).await;
            holds(slow.clone(), ahead, |limiter| limiter.charge("key", 3)).await;
            holds(slow.clone(), ahead, |limiter| limiter.replace(fast.clone())).await;
            // None of the calls before it has used the higher rate.
            let (shortest, _) = last_of(slow.clone(), ahead, true, |_| {}).await;
            let (waited, admitted) =
                last_of(fast.clone(), ahead, false, |limiter| limiter.replace(slow.clone())).await;
            let longest = shortest * 3 / 2 + GRACE * (ahead + 1) as u32;
            assert!(admitted && waited <= longest, "{ahead} before it, {slow:?}: {waited:?}");
            let (waited, admitted) = last_of(slow.clone(), ahead, false, RateLimiter::close).await;
            assert!(!admitted && waited == SECOND / 2, "{slow:?}: {waited:?}");
        }
    }
    each_queue!(each);
}

#[tokio::test(start_paused = true)]
async fn a_higher_rate_is_used_though_the_first_call_is_not_polled() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_hour(1)).queue(9));
    assert!(limiter.check("key").is_allowed());
    let _kept = waits(limiter.acquire("key"));
    let last = tokio::spawn(limiter.acquire("key"));
    tokio::task::yield_now().await;
    let start = Instant::now();
    limiter.replace(LeakyBucket::new(Quota::per_second(10)).queue(9));
    assert!(last.await.unwrap().is_allowed());
    assert!(start.elapsed() <= 200 * MS + 2 * GRACE, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_queue_goes_on_though_calls_among_those_that_are_not_polled_are_cancelled() {
    for dropped in 0..9 {
        let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(1)).queue(99));
        assert!(limiter.check("key").is_allowed());
        let mut kept: Vec<_> = (0..9).map(|_| waits(limiter.acquire("key"))).collect();
        let (start, last) = (Instant::now(), tokio::spawn(limiter.acquire("key")));
        sleep(SECOND / 2).await;
        drop(kept.remove(dropped));
        assert!(last.await.unwrap().is_allowed());
        assert!(start.elapsed() <= SECOND * 15 + GRACE * 10, "{dropped}: {:?}", start.elapsed());
    }
}

/// Every third call is awaited, and the others are polled once.
#[tokio::test(start_paused = true)]
async fn calls_that_are_awaited_among_others_wait_at_most_half_as_long_again() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(1)).queue(99));
    assert!(limiter.check("key").is_allowed());
    let (start, mut tasks, mut kept) = (Instant::now(), JoinSet::new(), Vec::new());
    for place in 1..60_u32 {
        if place % 3 == 0 {
            let call = patient(limiter.acquire("key"));
            tasks.spawn(async move { (call.await.is_allowed(), place, start.elapsed()) });
            tokio::task::yield_now().await;
        } else {
            kept.push(waits(limiter.acquire("key")));
        }
    }
    for (is_allowed, place, waited) in tasks.join_all().await {
        assert!(is_allowed && waited <= (SECOND * 3 / 2 + GRACE) * place, "{place}: {waited:?}");
    }
}

/// A first call that is woken late, as in a busy process, must not make all others follow it.
#[tokio::test(start_paused = true)]
async fn a_queued_call_is_polled_seldom() {
    for (limit, late) in [(1, 0), (10, 0), (1_000, 0), (10, 7), (1_000, 7)] {
        let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(limit)).queue(1_000));
        assert!(limiter.check("key").is_allowed());
        let mut tasks = JoinSet::new();
        for place in 1..=1_000_u32 {
            let call = limiter.acquire("key");
            tasks.spawn(async move {
                let (mut polls, mut call) = (0, std::pin::pin!(call));
                let admitted = std::future::poll_fn(|cx| {
                    polls += 1;
                    call.as_mut().poll(cx)
                });
                let admitted = admitted.await.is_allowed();
                // The executor is busy now and then.
                if place % 100 == 0 {
                    tokio::time::advance(MS * late).await;
                }
                (admitted, polls)
            });
            tokio::task::yield_now().await;
        }
        let calls = tasks.join_all().await;
        assert!(calls.iter().all(|(is_allowed, _)| *is_allowed));
        let most = calls.iter().map(|(_, polls)| *polls).max().unwrap();
        let all = calls.iter().map(|(_, polls)| *polls).sum::<u32>();
        assert!(most <= 16 && all <= 13_000, "{limit} a second: {most} of one call, {all} of all");
    }
}

/// As in any fair semaphore, a permit that was given to a call is not free, also if its future is not polled.
#[tokio::test(start_paused = true)]
async fn a_permit_goes_to_the_next_call_though_the_one_before_is_not_polled() {
    let limiter = RateLimiter::new(Concurrency::per_key(2).queue(9));
    let mut permits = [(); 2].map(|()| limiter.try_acquire_permit("key").ok());
    let mut kept = waits(limiter.acquire_permit("key"));
    let mut last = waits(limiter.acquire_permit("key"));
    permits[0] = None;
    assert!(!last.run(), "the first call was given the permit");
    permits[1] = None;
    assert!(last.run() && last.output.take().unwrap().is_ok());
    assert!(kept.run() && kept.output.take().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn joined_calls_wait_at_most_half_as_long_again_behind_joined_calls_that_are_not_polled() {
    let limit = |per_second| {
        let bucket = LeakyBucket::new(Quota::per_second(per_second)).queue(99);
        RateLimitLayer::with_limiter(Global, RateLimiter::new(bucket))
    };
    for ahead in [1, 2, 9_usize] {
        let layer = limit(1).and(limit(2)).responder(ErrorResponder);
        let mut service = layer.layer(tower::service_fn(async |()| Ok::<_, tower::BoxError>(())));
        service.ready().await.unwrap().call(()).await.unwrap();
        let mut kept = Vec::new();
        for _ in 0..ahead {
            kept.push(waits(service.ready().await.unwrap().call(())));
        }
        let start = Instant::now();
        let last = service.ready().await.unwrap().call(());
        timeout(SECOND * 100, last).await.expect("it is admitted").unwrap();
        let intervals = if ahead == 1 { SECOND * 2 } else { SECOND * (ahead as u32 + 1) * 3 / 2 };
        assert!(start.elapsed() <= intervals + GRACE * 10, "{ahead}: {:?}", start.elapsed());
    }
}

/// The waits in the queue of a tuple with a `Concurrency` are unknown, also while only the bucket is used up.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_units_and_a_permit_is_admitted_though_those_before_it_are_not_polled() {
    for ahead in [1, 2, 3, 40_u32] {
        for is_held in [false, true] {
            let permits = u64::from(ahead) + 1;
            let bucket = TokenBucket::new(Quota::per_second(1).burst(permits)).queue(99);
            let limiter = RateLimiter::new((Concurrency::per_key(permits).queue(99), bucket));
            let mut permit = limiter.call("key").cost(permits).acquire_permit().await.ok();
            assert!(permit.is_some());
            // If the permits are held, it is unknown how long the calls wait when they arrive.
            permit = permit.filter(|_| is_held);
            let start = Instant::now();
            let _kept: Vec<_> = (0..ahead).map(|_| waits(limiter.acquire_permit("key"))).collect();
            let last = tokio::spawn(limiter.acquire_permit("key"));
            sleep(SECOND / 2).await;
            drop(permit);
            let admitted = timeout(SECOND * 1_000, last).await.expect("it waits for ever").unwrap();
            let longest = if ahead == 1 { SECOND * 2 } else { SECOND * (ahead + 1) * 3 / 2 };
            let waited = start.elapsed();
            assert!(admitted.is_ok() && waited >= SECOND * (ahead + 1), "{ahead}, {is_held}: {waited:?}");
            assert!(waited <= longest + SECOND / 2 + GRACE * (ahead + 1), "{ahead}, {is_held}: {waited:?}");
        }
    }
}
