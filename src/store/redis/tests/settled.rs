//! Cases in which Redis once decided otherwise than the store in memory.

use std::time::Duration;

use tokio::time::advance;

use super::faults::swaps;
use super::limit;
use super::staged::Staged;
use crate::algorithm::{FixedWindow, LeakyBucket, StoredAlgorithm, TokenBucket};
use crate::decision::Decision;
use crate::limiter::RateLimiter;
use crate::quota::Quota;
use crate::store::{Acquired, Attempt, KeyedStore, Reservation};

const MS: Duration = Duration::from_millis(1);

/// Makes a call with the key `a` that can be settled.
async fn charge<A: StoredAlgorithm, S: KeyedStore<A, str>>(
    store: &S,
    tier: Option<&A>,
    cost: u64,
) -> (Decision, Reservation) {
    let attempt = Attempt::new(cost).with_reservation();
    let attempt = tier.map_or(attempt, |tier| attempt.with_algorithm(tier));
    match store.acquire(KeyedStore::<A, str>::key(store, "a"), attempt) {
        Acquired::Ready(decision, reservation) => (decision, reservation),
        Acquired::Pending(wait) => wait.await.unwrap_or_else(|error| panic!("{}", error.into())),
    }
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_queue_are_denied_only_if_no_units_are_left() {
    let server = Staged::new();
    let limit = limit(&swaps(&server), FixedWindow::new(Quota::per_hour(2)).queue(0));
    let [first, second, third] = [1; 3].map(|cost| charge(&limit, None, cost));
    let (first, second, third) = tokio::join!(first, second, third);
    assert_eq!([first, second, third].map(|(decision, _)| decision.is_allowed()), [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_behind_the_clock_tells_the_wait_until_it_has_a_place() {
    async fn waits<A: StoredAlgorithm>(algorithm: A) {
        let server = Staged::new();
        let limit = limit(&swaps(&server), algorithm);
        assert!(charge(&limit, None, 1).await.0.is_allowed());
        server.set_ahead(-500_000);
        let limiter = RateLimiter::with_store(limit.clone());
        // The key's time stands still for 500 ms, and the next unit takes a second after that.
        let wait = limiter.acquire("a").await.unwrap().retry_after();
        assert_eq!(wait, Some(1_500 * MS), "{:?}", limiter.algorithm());
        advance(1_499 * MS).await;
        assert!(!limiter.acquire("a").await.unwrap().is_allowed());
        advance(MS).await;
        assert!(limiter.acquire("a").await.unwrap().is_allowed());
    }
    waits(LeakyBucket::new(Quota::per_second(1)).queue(0)).await;
    waits(TokenBucket::new(Quota::per_second(1)).queue(0)).await;
}
