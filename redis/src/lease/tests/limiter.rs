//! The methods of a limiter that leases units, over a server in this process.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, advance, sleep};

use crate::call::RedisReply;
use crate::error::RedisErrorKind;
use crate::in_process::RedisInProcess;
use crate::joint::InRedis;
use crate::lease::RedisLeases;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::limiter::Attempt;
use tower_throttle::store_support::{JointKind, JointLimiter, JointOutcome};
use tower_throttle::{Decision, Quota};

const MS: Duration = Duration::from_millis(1);

fn limiter(server: &RedisInProcess, bucket: TokenBucket, units: u64) -> RedisLeases {
    server.machine().connect().limiter("api", bucket).lease(units).build().unwrap()
}

fn per_minute(burst: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_minute(60).burst(burst))
}

#[tokio::test(start_paused = true)]
async fn a_process_leases_more_units_the_more_it_spends() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, per_minute(1_000), 10);
    let mut trips = Vec::new();
    for call in 0..35 {
        let decision = limiter.check("a").await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.remaining(), 999 - call, "units that are leased count as remaining");
        if trips.last() != Some(&server.trips()) {
            trips.push(server.trips());
        }
    }
    assert_eq!(trips.len(), 6, "1, 2, 4, 8, and then 10 units at once");
}

#[tokio::test(start_paused = true)]
async fn a_lease_has_no_more_units_than_the_bucket() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, TokenBucket::new(Quota::per_second(1_000).burst(10)), u64::MAX);
    // Each trip wants twice as many units.
    for call in 0..500 {
        assert!(limiter.check("a").await.unwrap().is_allowed(), "call {call}");
        sleep(5 * MS).await;
    }
    assert!(server.trips() > 80, "{}", server.trips());
}

#[tokio::test(start_paused = true)]
async fn a_key_with_few_calls_leases_nothing() {
    let server = RedisInProcess::new(MS);
    let limiters = [(); 2].map(|()| limiter(&server, per_minute(10), 10));
    for call in 0..5 {
        let decision = limiters[call % 2].check("a").await.unwrap();
        assert_eq!(decision.remaining(), 9, "call {call}");
        sleep(Duration::from_millis(1_500)).await;
    }
    assert_eq!(server.trips(), 5);
}

#[tokio::test(start_paused = true)]
async fn units_that_are_not_spent_are_returned_after_a_second_or_with_the_limiter() {
    for is_dropped in [false, true] {
        let server = RedisInProcess::new(MS);
        let (first, second) = (limiter(&server, per_minute(100), 10), limiter(&server, per_minute(100), 10));
        for _ in 0..8 {
            assert!(first.check("a").await.unwrap().is_allowed());
        }
        assert_eq!(second.peek("a").await.unwrap().remaining(), 85, "7 units are leased");
        if is_dropped {
            drop(first);
            sleep(5 * MS).await;
        } else {
            sleep(Duration::from_millis(1_010)).await;
        }
        let refilled = u64::from(!is_dropped);
        assert_eq!(second.peek("a").await.unwrap().remaining(), 92 + refilled);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_is_lost() {
    let server = RedisInProcess::new(MS);
    let (machine, second) = (server.machine(), limiter(&server, per_minute(100), 10));
    let first = machine.connect().limiter("api", per_minute(100)).lease(10).build().unwrap();
    for _ in 0..8 {
        assert!(first.check("a").await.unwrap().is_allowed());
    }
    machine.cut_off();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(second.peek("a").await.unwrap().remaining(), 87, "two were refilled");
    let decision = first.check("a").await;
    assert_eq!(decision.unwrap_err().kind(), RedisErrorKind::Late, "its units can no longer be spent");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(second.peek("a").await.unwrap().remaining(), 89, "the units count as spent");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(second.peek("a").await.unwrap().remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn denials_are_remembered_and_tell_when_to_retry() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, TokenBucket::new(Quota::per_second(10).burst(4)), 10);
    assert_eq!(limiter.check_n("a", 4).await.unwrap().remaining(), 0);
    let denied = limiter.check("a").await.unwrap();
    let wait = denied.retry_after().unwrap();
    assert!(wait > 97 * MS && wait <= 100 * MS, "{wait:?}");
    let trips = server.trips();
    advance(wait - 5 * MS).await;
    let again = limiter.check("a").await.unwrap().retry_after().unwrap();
    assert!(again > Duration::ZERO && again <= 5 * MS, "{again:?}");
    assert_eq!(server.trips(), trips, "the process remembers the denial");
    advance(again).await;
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let never = limiter.check_n("a", 5).await.unwrap();
    assert!(!never.is_allowed() && never.never_fits());
    assert_eq!(limiter.check_n("b", 5).await.unwrap().remaining(), 4);
    assert!(limiter.check_n("a", 0).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_call_above_the_burst_is_denied_at_once_and_takes_no_place() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, TokenBucket::new(Quota::per_minute(1).burst(4)).queue(2), 10);
    assert!(limiter.check_n("a", 4).await.unwrap().is_allowed());
    let waiting = tokio::spawn(limiter.acquire("a"));
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    assert!(limiter.acquire_n("a", 5).await.unwrap().never_fits());
    assert!(start.elapsed() <= 2 * MS, "one trip");
    assert!(waiting.await.unwrap().unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_denial_that_waits_for_a_lease_has_no_retry_after() {
    let server = RedisInProcess::new(MS);
    let bucket = TokenBucket::new(Quota::per_minute(60).burst(20));
    let (first, second) = (limiter(&server, bucket.clone(), 10), limiter(&server, bucket, 10));
    for _ in 0..4 {
        assert!(first.check("a").await.unwrap().is_allowed());
    }
    let denied = second.check_n("a", 20).await.unwrap();
    assert!(!denied.is_allowed() && !denied.never_fits());
    assert_eq!(denied.retry_after(), None);
    let waited = Instant::now();
    assert!(second.acquire_n("a", 20).await.unwrap().is_allowed());
    assert!(waited.elapsed() > Duration::from_millis(3_900), "until all units are returned or refilled");
}

#[tokio::test(start_paused = true)]
async fn peek_refund_and_reset_keep_their_meaning() {
    let server = RedisInProcess::new(MS);
    let (first, second) = (limiter(&server, per_minute(100), 10), limiter(&server, per_minute(100), 10));
    assert_eq!(first.check_n("a", 50).await.unwrap().remaining(), 50);
    assert!(!second.peek_n("a", 51).await.unwrap().is_allowed());
    assert!(second.peek_n("a", 50).await.unwrap().is_allowed());
    second.refund("a", 20).await.unwrap();
    assert_eq!(first.peek("a").await.unwrap().remaining(), 70);
    for _ in 0..4 {
        assert!(first.check("a").await.unwrap().is_allowed());
    }
    second.reset("a").await.unwrap();
    let left = second.peek("a").await.unwrap().remaining();
    assert!((96..100).contains(&left), "the units that the first process has leased stay leased: {left}");
    assert_eq!(first.peek("b").await.unwrap().remaining(), 100);
    first.reset("a").await.unwrap();
    assert_eq!(first.peek("a").await.unwrap().remaining(), 100, "it holds units itself");
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_of_a_process_are_admitted_in_order_at_the_rate() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, TokenBucket::new(Quota::per_second(100).burst(10)), 5);
    let start = Instant::now();
    let calls: Vec<_> = (0..40).map(|_| tokio::spawn(limiter.acquire("a"))).collect();
    let mut last = Duration::ZERO;
    for call in calls {
        let decision = call.await.unwrap().unwrap();
        assert!(decision.is_allowed() && decision.delay() >= last, "{decision:?}");
        last = decision.delay();
    }
    let took = start.elapsed();
    assert!(took >= 300 * MS && took < 400 * MS, "{took:?}");
    let late = limiter.call("a").cost(10).max_wait(20 * MS).acquire().await.unwrap();
    assert!(!late.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_charge_nothing() {
    let server = RedisInProcess::new(2 * MS);
    let limiter = limiter(&server, per_minute(100), 10);
    for delay in [0, 1, 2] {
        let call = tokio::spawn(limiter.check_n("a", 10));
        tokio::task::yield_now().await;
        sleep(delay * MS).await;
        call.abort();
        sleep(Duration::from_millis(1_100)).await;
    }
    assert_eq!(limiter.peek("a").await.unwrap().remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_long_after_its_trip_charges_nothing() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, per_minute(100), 10);
    let mut call = Box::pin(limiter.check_n("a", 10));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The trip ends, and the task that made it ends as well, while the call is not polled.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(limiter.peek("a").await.unwrap().remaining(), 93);
    sleep(Duration::from_secs(2)).await;
    drop(call);
    sleep(5 * MS).await;
    assert_eq!(limiter.peek("a").await.unwrap().remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_gives_back_no_units_that_were_refilled() {
    let server = RedisInProcess::new(MS);
    let bucket = TokenBucket::new(Quota::per_second(10));
    let [first, second] = [(); 2].map(|()| limiter(&server, bucket.clone(), 10));
    let mut call = Box::pin(first.check_n("a", 10));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    sleep(3_000 * MS).await;
    assert!(second.check_n("a", 10).await.unwrap().is_allowed());
    drop(call);
    sleep(5 * MS).await;
    assert!(!second.check_n("a", 10).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_gives_back_its_units_at_once() {
    let server = RedisInProcess::new(MS);
    let [first, second] = [(); 2].map(|()| limiter(&server, per_minute(100), 10));
    let mut call = Box::pin(first.check_n("a", 50));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    sleep(5 * MS).await;
    assert_eq!(second.peek("a").await.unwrap().remaining(), 50);
    drop(call);
    sleep(5 * MS).await;
    assert_eq!(second.peek("a").await.unwrap().remaining(), 100);
}

/// Begins a call, and leaves it.
fn begun(limiter: &RedisLeases, cost: u64) -> Pin<Box<RedisReply<Decision>>> {
    let mut call = Box::pin(limiter.check_n("a", cost));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    call
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_during_a_trip_give_back_the_units_of_all() {
    let server = RedisInProcess::new(2 * MS);
    let limiter = limiter(&server, per_minute(100), 10);
    // They share a trip, in which the last one is denied.
    let calls = [30, 20, 60].map(|cost| begun(&limiter, cost));
    sleep(MS).await;
    drop(calls);
    sleep(5 * MS).await;
    assert_eq!(limiter.peek("a").await.unwrap().remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn an_old_call_that_is_dropped_with_a_new_one_takes_nothing_from_what_that_gives_back() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, TokenBucket::new(Quota::per_second(100)), 10);
    let old = begun(&limiter, 1);
    sleep(500 * MS).await;
    let new = begun(&limiter, 50);
    sleep(5 * MS).await;
    drop((old, new));
    sleep(5 * MS).await;
    assert_eq!(limiter.peek("a").await.unwrap().remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn calls_that_expire_while_they_wait_for_a_trip_are_late() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server, per_minute(100), 10);
    server.set_running(false);
    let first = tokio::spawn(limiter.check("a"));
    // The trip of the first call begins at the same time, so that both calls have the same deadline.
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    let second = tokio::spawn(limiter.check("a"));
    for call in [first, second] {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), RedisErrorKind::Late);
    }
}

#[tokio::test(start_paused = true)]
async fn a_trip_without_reply_loses_its_units_and_admits_no_more_than_the_limit() {
    let server = RedisInProcess::new(MS);
    let limiters = [(); 2].map(|()| limiter(&server, per_minute(40), 10));
    let mut admitted = 0;
    for round in 0..20 {
        server.set_running(round % 4 != 3);
        for limiter in &limiters {
            let calls: Vec<_> = (0..5).map(|_| tokio::spawn(limiter.check("a"))).collect();
            for call in calls {
                admitted += u64::from(call.await.unwrap().is_ok_and(|decision| decision.is_allowed()));
            }
        }
        server.set_running(true);
        sleep(60 * MS).await;
    }
    assert!((30..=44).contains(&admitted), "{admitted}");
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_errors_with_advice() {
    let server = RedisInProcess::new(MS);
    let build = |bucket, units, name: &str| server.connect().limiter(name, bucket).lease(units).build();
    let error = build(per_minute(10), 0, "api").unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Config);
    let large = TokenBucket::new(Quota::per_day(1_000_003));
    let error = build(large, 10, "api").unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Algorithm);
    assert!(error.to_string().contains("2^53"), "{error}");
    assert_eq!(build(per_minute(10), 10, "").unwrap_err().kind(), RedisErrorKind::Name);
    let local = RateLimiter::new(per_minute(10));
    let both = server.connect().limiter("api", per_minute(10)).fallback(local).lease(10).build();
    let error = both.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Config);
    assert!(error.to_string().contains("`fallback`"), "{error}");

    let store = server.connect();
    let _plain = store.limiter("api", per_minute(10)).build().unwrap();
    let both = store.limiter("api", per_minute(10)).lease(10).build();
    assert_eq!(both.unwrap_err().kind(), RedisErrorKind::Name);

    let both = store.limiter("api", per_minute(20)).lease(10).build();
    let error = both.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Name);
    let text = error.to_string();
    assert!(text.contains("\"api\"") && text.contains("TokenBucket 1/s burst 10 is not"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_limiter_with_another_quota_or_without_leases_has_units_of_its_own() {
    let server = RedisInProcess::new(MS);
    let limiters = [per_minute(10), per_minute(20)].map(|bucket| limiter(&server, bucket, 10));
    let plain = server.connect().limiter("api", per_minute(10)).build().unwrap();
    for _ in 0..10 {
        assert!(limiters[0].check("a").await.unwrap().is_allowed());
    }
    assert!(!limiters[0].check("a").await.unwrap().is_allowed());
    assert_eq!(limiters[1].check("a").await.unwrap().remaining(), 19);
    assert_eq!(plain.check("a").await.unwrap().remaining(), 9);
}

#[test]
fn a_runtime_that_is_not_driven_or_has_ended_holds_a_key_no_longer_than_two_deadlines() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for is_dropped in [false, true] {
        let (first, second) = (runtime(), runtime());
        let server = second.block_on(async { RedisInProcess::new(MS) });
        let limiter = second.block_on(async { limiter(&server, per_minute(100), 10) });
        // The trip begins, and then its runtime is no longer driven.
        let _call = first.spawn(limiter.check("a"));
        first.block_on(async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        });
        let _first = (!is_dropped).then_some(first);
        second.block_on(async {
            let mut late = 0;
            while let Err(error) = limiter.check("a").await {
                assert_eq!(error.kind(), RedisErrorKind::Late);
                late += 1;
            }
            assert!(late <= 2, "{late}");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_in_this_process_decides_all_limiters_but_no_joined_calls() {
    let server = RedisInProcess::new(MS);
    let stores = [(); 2].map(|()| server.machine().connect());
    let limiters = stores.map(|store| {
        let window = FixedWindow::new(Quota::per_hour(5));
        store.limiter("window", window).build().unwrap()
    });
    for left in [3, 1] {
        assert!(limiters[0].check("a").await.unwrap().is_allowed());
        assert_eq!(limiters[1].check("a").await.unwrap().remaining(), left);
    }
    let part = |key: &str| Some(limiters[0].joint_part(key, Attempt::new(1)));
    let JointOutcome::Pending(decided, _) = InRedis::decide(&mut [part("a"), part("b")], &mut |_, _| {})
    else {
        panic!("the keys have units left");
    };
    let error = decided.await.map(drop).unwrap_err();
    assert!(error.to_string().contains("joined calls"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_are_not_queued_while_there_are_units() {
    for places in [0, 1] {
        let server = RedisInProcess::new(MS);
        let bucket = TokenBucket::new(Quota::per_hour(100)).queue(places);
        let limiter = limiter(&server, bucket, 20);
        let calls: Vec<_> = (0..10).map(|_| tokio::spawn(limiter.acquire("a"))).collect();
        for call in calls {
            let decision = call.await.unwrap().unwrap();
            assert!(decision.is_allowed() && decision.delay().is_zero(), "{places} places: {decision:?}");
        }
    }
}
