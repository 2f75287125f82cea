//! Units that are charged after the fact while no caller waits for them.

use std::time::Duration;

use http::{Request, Response};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceExt, service_fn};

use super::faults::swaps;
use super::flights::settle;
use super::limiter;
use super::staged::{Mode, Staged};
use crate::limiter::RedisLimiter;
use crate::store::RedisStore;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, Tiered,
    TokenBucket,
};
use tower_throttle::clock::Nanos;
use tower_throttle::key::Global;
use tower_throttle::{Meter, Quota, RateLimitLayer, RateLimiter};

const MS: Duration = Duration::from_millis(1);
const LIMIT: u64 = 100_000;

/// Returns a limiter, and the meter of a call that has ended and was charged one unit.
async fn metered(store: &RedisStore) -> (RedisLimiter<FixedWindow>, Meter) {
    let limiter = limiter(store, FixedWindow::new(Quota::per_hour(LIMIT)));
    let meter = meter_of(&limiter).await;
    (limiter, meter)
}

async fn meter_of(limiter: &RedisLimiter<FixedWindow>) -> Meter {
    let answer =
        service_fn(|_: Request<String>| async { Ok::<_, std::io::Error>(Response::new(String::new())) });
    let service = RateLimitLayer::with_limiter(Global, limiter.clone()).metered().layer(answer);
    let (mut request, meter) = (Request::new(String::new()), Meter::new());
    request.extensions_mut().insert(meter.clone());
    drop(service.oneshot(request).await.unwrap());
    meter
}

/// Returns the units that were charged and not charged, and the number of charges that failed.
fn counts(limiter: &RedisLimiter<FixedWindow>) -> [u64; 3] {
    let stats = limiter.stats();
    [stats.units.charged, stats.units.uncharged, stats.store.settle_errors]
}

/// Returns the units that were charged late, according to the server.
async fn used(limiter: &RedisLimiter<FixedWindow>) -> u64 {
    LIMIT - 1 - limiter.peek(&()).await.unwrap().remaining()
}

#[tokio::test(start_paused = true)]
async fn units_that_a_meter_counts_during_a_trip_are_one_charge() {
    let server = Staged::new();
    let store = swaps(&server);
    let (limiter, meter) = metered(&store).await;
    server.commands();
    server.set(Mode::Hold);
    for _ in 0..20_000 {
        meter.add(2);
    }
    settle().await;
    assert_eq!(store.flush(Duration::ZERO).await, 20_000);
    server.resume();
    assert_eq!(store.flush(Duration::from_secs(1)).await, 0);
    assert_eq!(server.commands().len(), 4, "two trips, each of which reads and writes");
    assert_eq!((counts(&limiter), used(&limiter).await), ([40_000, 0, 0], 40_000));
}

#[tokio::test(start_paused = true)]
async fn units_that_were_not_charged_during_an_outage_are_charged_when_it_is_over() {
    for mode in [
        Mode::Fail("OOM command not allowed when used memory > 'maxmemory'."),
        Mode::Fail("CLUSTERDOWN Hash slot not served"),
        Mode::Hang,
        Mode::Hold,
    ] {
        let server = Staged::new();
        let store = swaps(&server);
        let (limiter, meter) = metered(&store).await;
        server.set(mode.clone());
        for _ in 0..100 {
            meter.add(3);
            advance(50 * MS).await;
            settle().await;
        }
        assert_eq!((counts(&limiter), store.flush(Duration::ZERO).await), ([0; 3], 100), "{mode:?}");
        let most = if store.stats().is_circuit_open { 60 } else { 250 };
        assert!(server.commands().len() < most, "{mode:?}");
        // Nobody uses the limiter any more.
        let other = super::limiter(&store, FixedWindow::new(Quota::per_hour(LIMIT)));
        drop((limiter, meter));
        server.resume();
        let start = Instant::now();
        assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
        assert!(start.elapsed() <= 900 * MS, "{mode:?}: {:?}", start.elapsed());
        assert_eq!((used(&other).await, store.stats().settle_errors), (300, 0), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn units_whose_reply_is_lost_are_not_sent_again() {
    let server = Staged::new();
    let store = swaps(&server);
    let (limiter, meter) = metered(&store).await;
    server.set(Mode::Hold);
    meter.add(5);
    settle().await;
    server.resume();
    server.set(Mode::Withhold);
    settle().await;
    // These units wait meanwhile.
    meter.add(7);
    let start = Instant::now();
    assert_eq!(store.flush(Duration::from_secs(1)).await, 2);
    server.set(Mode::Serve);
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    // The server has charged them, but the process does not know.
    assert_eq!((counts(&limiter), used(&limiter).await), ([7, 5, 1], 12));
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_comes_late_tells_what_was_charged() {
    let server = Staged::new();
    let store = swaps(&server);
    let (limiter, meter) = metered(&store).await;
    server.set(Mode::Hold);
    meter.add(5);
    settle().await;
    server.resume();
    server.set(Mode::Withhold);
    settle().await;
    let start = Instant::now();
    advance(700 * MS).await;
    server.resume();
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    assert_eq!(start.elapsed(), 700 * MS);
    assert_eq!((counts(&limiter), used(&limiter).await), ([5, 0, 0], 5));
}

#[test]
fn units_that_wait_when_their_runtime_ends_are_counted_as_lost_with_their_limiter_at_the_latest() {
    for (mode, lost) in
        [(Mode::Hold, 1), (Mode::Fail("OOM command not allowed when used memory > 'maxmemory'."), 0)]
    {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (store, limiter) = runtime.block_on(async {
            let server = Staged::new();
            let store = swaps(&server);
            let (limiter, meter) = metered(&store).await;
            server.set(mode.clone());
            for _ in 0..3 {
                meter.add(4);
                settle().await;
            }
            (store, limiter)
        });
        assert_eq!(counts(&limiter), [0; 3], "{mode:?}");
        drop(runtime);
        // Those that were not sent may still be charged by another runtime.
        assert_eq!((counts(&limiter), store.stats().settle_errors), ([0, 4 * lost, lost], lost), "{mode:?}");
        drop(limiter);
        assert_eq!(store.stats().settle_errors, 3, "{mode:?}");
        let other = Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(other.block_on(store.flush(Duration::ZERO)), 0);
    }
}

/// A limiter, and a meter on each of two runtimes: `meter` on the first one, and `other` on the second one.
struct TwoRuntimes {
    first: Runtime,
    second: Runtime,
    server: Staged,
    store: RedisStore,
    limiter: RedisLimiter<FixedWindow>,
    meter: Meter,
    other: Meter,
}

impl TwoRuntimes {
    fn new() -> Self {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let server = first.block_on(async { Staged::new() });
        let store = swaps(&server);
        let (limiter, meter) = first.block_on(metered(&store));
        let other = second.block_on(meter_of(&limiter));
        Self { first, second, server, store, limiter, meter, other }
    }

    /// Lets four units of the first runtime fail, which then wait for another try.
    fn fail_units_of_first(&self) {
        self.server.set(Mode::Fail("OOM command not allowed when used memory > 'maxmemory'."));
        self.first.block_on(async {
            self.meter.add(4);
            while !self.store.stats().is_circuit_open {
                tokio::task::yield_now().await;
            }
        });
    }
}

#[test]
fn units_of_a_runtime_are_charged_though_another_one_whose_units_wait_is_not_driven() {
    let two = TwoRuntimes::new();
    two.fail_units_of_first();
    let TwoRuntimes { second, server, store, limiter, other, .. } = two;
    second.block_on(async {
        // The task of the first runtime counts as abandoned after a time.
        let start = Instant::now();
        server.resume();
        while store.flush(50 * MS).await > 0 {
            other.add(1);
            assert!(start.elapsed() < Duration::from_secs(20), "the units wait for ever");
        }
        assert_eq!(counts(&limiter)[1..], [0, 0]);
    });
}

#[test]
fn units_of_a_runtime_are_charged_though_another_one_whose_units_wait_has_ended() {
    let two = TwoRuntimes::new();
    two.fail_units_of_first();
    let TwoRuntimes { first, second, server, store, limiter, other, .. } = two;
    second.block_on(async { other.add(2) });
    drop(first);
    assert_eq!(counts(&limiter), [0; 3]);
    server.resume();
    second.block_on(async {
        other.add(1);
        assert_eq!(store.flush(Duration::from_secs(20)).await, 0);
        // The other meter has counted a call as well.
        assert_eq!((counts(&limiter), used(&limiter).await), ([7, 0, 0], 8));
    });
}

#[test]
fn units_that_waited_for_a_trip_when_its_runtime_ended_are_charged_by_the_next_charge_on_another() {
    let TwoRuntimes { first, second, server, store, limiter, meter, other } = TwoRuntimes::new();
    server.set(Mode::Hold);
    first.block_on(async {
        for units in [4, 8] {
            meter.add(units);
            settle().await;
        }
    });
    drop(first);
    assert_eq!(counts(&limiter), [0, 4, 1], "the trip of the first units was under way");
    server.set(Mode::Fail("OOM command not allowed when used memory > 'maxmemory'."));
    second.block_on(async {
        // The trip of these units fails.
        other.add(2);
        settle().await;
        server.resume();
        assert_eq!(store.flush(Duration::from_secs(20)).await, 0);
        assert_eq!(counts(&limiter), [10, 4, 1]);
    });
}

#[tokio::test(start_paused = true)]
async fn late_units_of_two_tiers_are_charged_to_their_tiers() {
    let [free, paid] = [50, 400].map(|limit| FixedWindow::new(Quota::per_hour(limit)));
    let server = Staged::new();
    let store = swaps(&server);
    let (redis, memory) =
        (limiter(&store, Tiered::new(free.clone())), RateLimiter::new(Tiered::new(free.clone())));
    let mut calls = Vec::new();
    for tier in [&free, &paid, &free, &paid, &free, &paid] {
        let there = redis.call("a").tier(tier).reserve().await.unwrap().unwrap();
        calls.push((there, memory.call("a").tier(tier).reserve().unwrap()));
    }
    server.commands();
    server.set(Mode::Hold);
    for (units, (there, here)) in (2..).zip(calls) {
        there.settle(units);
        here.settle(units);
    }
    settle().await;
    server.resume();
    assert_eq!(store.flush(Duration::from_secs(1)).await, 0);
    assert_eq!(server.commands().len(), 4, "the second trip has a charge for each tier");
    for tier in [&free, &paid] {
        let peeked = redis.call("a").tier(tier).peek().await.unwrap();
        assert_eq!(peeked.remaining(), memory.call("a").tier(tier).peek().remaining());
    }
    assert_eq!(redis.stats().units, memory.stats().units);
}

#[tokio::test(start_paused = true)]
async fn late_units_are_charged_to_the_algorithm_that_has_replaced_another() {
    let server = Staged::new();
    let store = swaps(&server);
    let (limiter, meter) = metered(&store).await;
    server.set(Mode::Hang);
    meter.add(30);
    advance(60 * MS).await;
    settle().await;
    limiter.replace(FixedWindow::new(Quota::per_hour(50)));
    server.resume();
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    assert_eq!(limiter.peek(&()).await.unwrap().remaining(), 19);
}

/// Charges units one by one, and at once.
fn charge_both<A: Algorithm>(algorithm: &A)
where
    A::State: Clone,
{
    for max_debt in [1, 5, u64::MAX >> 1] {
        for before in [0, 3, 7] {
            let mut each = algorithm.new_state(Nanos::ZERO, Nanos(1));
            let _ = algorithm.check(&mut each, Nanos(1), before);
            let mut sum = each.clone();
            let now = Nanos(1_000_000_001);
            let charged: u64 = (0..18).map(|_| algorithm.charge(&mut each, now, 1, max_debt)).sum();
            assert_eq!(charged, algorithm.charge(&mut sum, now, 18, max_debt), "{algorithm:?}, {max_debt}");
            for state in [&mut each, &mut sum] {
                algorithm.refund(state, now, 12, None);
            }
            assert_eq!(algorithm.peek(&mut each, now, 1), algorithm.peek(&mut sum, now, 1), "{algorithm:?}");
        }
    }
}

/// `Smooth` always charges a call that is due, so the last of the parts may exceed the debt by a unit.
#[test]
fn a_sum_of_a_smooth_limiter_makes_no_more_debt_than_its_parts() {
    let algorithm = Smooth::bursty(Quota::per_hour(10));
    for max_debt in [1, 5, 30] {
        let mut each = algorithm.new_state(Nanos::ZERO, Nanos(1));
        let mut sum = each.clone();
        let charged: u64 = (0..18).map(|_| algorithm.charge(&mut each, Nanos(1), 1, max_debt)).sum();
        let at_once = algorithm.charge(&mut sum, Nanos(1), 18, max_debt);
        assert!(at_once <= charged && charged <= at_once + 1, "{charged}, {at_once}");
        let [each, sum] = [each, sum].map(|mut state| algorithm.peek(&mut state, Nanos(1), 1).retry_after());
        assert!(sum <= each, "{sum:?}, {each:?}");
    }
}

#[test]
fn a_sum_is_charged_up_to_the_same_debt_as_its_parts() {
    let quota = Quota::per_hour(10);
    charge_both(&FixedWindow::new(quota));
    charge_both(&SlidingWindow::new(quota));
    charge_both(&SlidingCounter::new(quota));
    charge_both(&SlidingLog::new(quota));
    charge_both(&TokenBucket::new(quota));
    charge_both(&LeakyBucket::new(quota));
    charge_both(&(TokenBucket::new(quota), FixedWindow::new(Quota::per_hour(15))));
    charge_both(&Tiered::new(FixedWindow::new(quota)));
}
