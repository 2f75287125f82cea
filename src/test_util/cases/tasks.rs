//! Calls of many tasks at once, and calls that are dropped.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use super::super::tested::{Env, MakeTested, Subject, Tested, TestedStore};
use crate::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use crate::quota::Quota;

list! {
    concurrent_calls_on_a_bucket_admit_its_burst
    concurrent_calls_on_a_fixed_window_admit_its_limit
    concurrent_calls_on_a_sliding_window_admit_its_limit
    concurrent_calls_with_costs_admit_what_fits
    concurrent_calls_on_many_keys_admit_each_limit
    concurrent_checks_and_refunds_count_exactly
    a_dropped_call_charges_once_or_not_at_all
    a_call_that_was_never_polled_blocks_no_other
}

const TASKS: u64 = 8;
const CALLS: u64 = 20;
const HOUR: Quota = Quota::per_hour(50);

/// Runs `call` [`CALLS`] times in each of [`TASKS`] tasks. Returns the sum of all results.
async fn in_tasks<A, S, F, Fut>(limiter: &Tested<A, S>, call: F) -> u64
where
    A: Algorithm,
    S: TestedStore<A>,
    F: Fn(Tested<A, S>, u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = u64> + Send,
{
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limiter, call) = (limiter.clone(), call.clone());
        tasks.spawn(async move {
            let mut sum = 0;
            for number in 0..CALLS {
                sum += call(limiter.clone(), task * CALLS + number).await;
                yield_now().await;
            }
            sum
        });
    }
    tasks.join_all().await.into_iter().sum()
}

async fn admits_50<A: Algorithm, M: MakeTested<A>>(env: Env<M>, algorithm: A) {
    let limiter = env.limiter(algorithm);
    let admitted =
        in_tasks(&limiter, async |limiter: Tested<_, _>, _| u64::from(limiter.check("a").await.is_allowed()));
    assert_eq!(admitted.await, 50);
}

async fn concurrent_calls_on_a_bucket_admit_its_burst<M: Subject>(env: Env<M>) {
    admits_50(env, TokenBucket::new(HOUR)).await;
}

async fn concurrent_calls_on_a_fixed_window_admit_its_limit<M: Subject>(env: Env<M>) {
    admits_50(env, FixedWindow::new(HOUR)).await;
}

async fn concurrent_calls_on_a_sliding_window_admit_its_limit<M: Subject>(env: Env<M>) {
    admits_50(env, SlidingWindow::new(HOUR)).await;
}

async fn concurrent_calls_with_costs_admit_what_fits<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    let charged = in_tasks(&limiter, |limiter, number| async move {
        let cost = 1 + number % 4;
        if limiter.check_n("a", cost).await.is_allowed() { cost } else { 0 }
    });
    // The last calls include calls of cost 1, so all units are used.
    assert_eq!(charged.await, 50);
    assert_eq!(limiter.remaining("a").await, 0);
}

async fn concurrent_calls_on_many_keys_admit_each_limit<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(10)));
    let admitted = in_tasks(&limiter, |limiter, number| async move {
        let key = (number % 5).to_string();
        u64::from(limiter.check(&key).await.is_allowed())
    });
    assert_eq!(admitted.await, 50);
}

async fn concurrent_checks_and_refunds_count_exactly<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    in_tasks(&limiter, |limiter, _| async move {
        if limiter.check_n("a", 2).await.is_allowed() {
            limiter.refund("a", 2).await;
        }
        0
    })
    .await;
    assert_eq!(limiter.remaining("a").await, 50);
}

async fn a_dropped_call_charges_once_or_not_at_all<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    for number in 0..20 {
        let mut call = pin!(limiter.check("a"));
        // The call is dropped after zero, one or two polls.
        for _ in 0..number % 3 {
            if timeout(Duration::ZERO, &mut call).await.is_ok() {
                break;
            }
        }
    }
    let charged = 50 - limiter.remaining("a").await;
    assert!(charged <= 20, "{charged} charged by 20 calls");
    let admitted = limiter.exhaust("a").await.0;
    assert!(admitted <= 50 - charged, "{charged} charged, and {admitted} admitted");
    assert!(admitted + 20 >= 50, "only {admitted} admitted");
}

async fn a_call_that_was_never_polled_blocks_no_other<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    let kept = limiter.check("a");
    assert!(limiter.check("a").await.is_allowed());
    assert!(limiter.check("b").await.is_allowed());
    drop(kept);
    assert!(limiter.check("a").await.is_allowed());
}
