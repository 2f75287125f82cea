//! Keys whose quota is replaced, or that machines use with different quotas.

use std::time::Duration;

use tokio::time::advance;

use super::faults::swaps;
use super::flights::settle;
use super::limiter;
use super::staged::Staged;
use crate::error::RedisErrorKind;
use crate::in_process::RedisInProcess;
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, StoredAlgorithm, Tiered, TokenBucket,
};

const MS: Duration = Duration::from_millis(1);

/// Returns the short and the long quota.
fn quotas() -> [Quota; 2] {
    [Quota::per_second(10), Quota::per_day(10)]
}

/// Uses up the units of the first algorithm, so that the second denies a call, and asserts that it still does so when
/// the first algorithm has forgotten the units. `debt` units are charged in addition.
async fn stays_used_up<A: StoredAlgorithm>(algorithms: [A; 2], debt: u64) {
    let shown = format!("{algorithms:?}, {debt}");
    for is_replaced in [true, false] {
        let server = RedisInProcess::new(MS);
        let [short, long] = algorithms.clone();
        let old = limiter(&server.connect(), short);
        assert!(old.check_n("a", 10).await.unwrap().is_allowed(), "{shown}");
        old.charge("a", debt).await.unwrap();
        let new = if is_replaced {
            old.replace(long);
            old.clone()
        } else {
            limiter(&server.connect(), long)
        };
        for _ in 0..2 {
            assert!(!new.check("a").await.unwrap().is_allowed(), "{shown}");
        }
        advance(1_300 * MS + Duration::from_millis(100 * debt)).await;
        if !is_replaced {
            // Its state may have been dropped, and be made from that of the other process.
            let mut denied = 0;
            while !old.check_n("a", 2).await.unwrap().is_allowed() {
                advance(1_000 * MS).await;
                denied += 1;
                assert!(denied < 4, "the old process has its units: {shown}");
            }
        }
        assert!(!new.check("a").await.unwrap().is_allowed(), "the new process admits more: {shown}");
        advance(10_000 * MS).await;
        assert!(!new.check("a").await.unwrap().is_allowed(), "the new process admits more: {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_used_up_stays_so_when_a_longer_period_replaces_a_short_one() {
    for debt in [0, 15] {
        stays_used_up(quotas().map(FixedWindow::new), debt).await;
        stays_used_up(quotas().map(SlidingWindow::new), debt).await;
        stays_used_up(quotas().map(SlidingCounter::new), debt).await;
        stays_used_up(quotas().map(SlidingLog::new), debt).await;
        stays_used_up(quotas().map(TokenBucket::new), debt).await;
        stays_used_up(quotas().map(|quota| LeakyBucket::new(quota).queue(9)), debt).await;
        stays_used_up(quotas().map(|quota| (TokenBucket::new(quota), FixedWindow::new(quota))), debt).await;
        stays_used_up(quotas().map(|quota| Tiered::new(FixedWindow::new(quota))), debt).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peek_with_another_quota_writes_nothing() {
    let server = Staged::new();
    let [short, long] = quotas().map(FixedWindow::new);
    let (old, new) = (limiter(&swaps(&server), short), limiter(&swaps(&server), long));
    assert!(old.check_n("a", 10).await.unwrap().is_allowed());
    let before = server.texts();
    assert!(!new.peek("a").await.unwrap().is_allowed());
    assert_eq!(server.texts(), before);
    assert!(!new.check("a").await.unwrap().is_allowed());
    let text = server.texts().into_values().next().unwrap();
    assert!(text.ends_with("\nf:10/86400000000000") && text.contains("f:10/1000000000\0"), "{text:?}");
}

#[tokio::test(start_paused = true)]
async fn a_denial_with_another_quota_is_remembered_only_once_its_state_was_written() {
    let server = Staged::new();
    let [short, long] = quotas().map(FixedWindow::new);
    let old = limiter(&swaps(&server), short);
    let store = super::store(server.clone(), super::settings(false, Duration::from_secs(1)));
    let new = limiter(&store, long);
    assert!(old.check_n("a", 10).await.unwrap().is_allowed());
    server.set_full(true);
    assert_eq!(new.check("a").await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
    server.set_full(false);
    advance(50 * MS).await;
    server.commands();
    assert!(!new.check("a").await.unwrap().is_allowed());
    assert!(server.commands().len() >= 2, "it reads and writes");
    assert!(!new.check("a").await.unwrap().is_allowed());
    assert!(server.commands().is_empty(), "the denial is remembered");
}

/// The state is converted by the trip of the call, and its part of a unit is rounded when it is stored.
#[tokio::test(start_paused = true)]
async fn a_cancelled_call_that_converted_the_state_gives_its_units_back() {
    let server = Staged::new();
    let old = limiter(&swaps(&server), TokenBucket::new(Quota::per_second(3).burst(2)));
    let new = limiter(&swaps(&server), TokenBucket::new(Quota::per_second(10).burst(2)).queue(5));
    assert!(old.check_n("a", 2).await.unwrap().is_allowed());
    advance(Duration::from_micros(1_001)).await;
    let waiting = tokio::spawn(new.acquire("a"));
    settle().await;
    assert!(!waiting.is_finished());
    waiting.abort();
    settle().await;
    let wait = new.acquire("a").await.unwrap().delay();
    assert!(wait > 99 * MS && wait <= 100 * MS, "{wait:?}");
}
