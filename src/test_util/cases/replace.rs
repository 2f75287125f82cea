//! Algorithms that are replaced while keys are in use.

use super::super::tested::{Env, Subject};
use crate::algorithm::{FixedWindow, TokenBucket};
use crate::quota::Quota;

list! {
    a_replaced_algorithm_is_reported
    what_was_used_stays_used_under_a_higher_limit
    a_lower_limit_applies_at_once
    a_slower_rate_returns_no_units
    clones_follow_a_replaced_algorithm
}

async fn a_replaced_algorithm_is_reported<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(10)));
    assert_eq!(limiter.limiter.algorithm().quota(), Quota::per_hour(10));
    limiter.limiter.replace(TokenBucket::new(Quota::per_hour(20)));
    assert_eq!(limiter.limiter.algorithm().quota(), Quota::per_hour(20));
    assert_eq!(limiter.check("a").await.limit(), 20);
}

async fn what_was_used_stays_used_under_a_higher_limit<M: Subject>(env: Env<M>) {
    let bucket = env.limiter(TokenBucket::new(Quota::per_hour(10)));
    assert_eq!(bucket.take_n("a", 8).await, 2);
    bucket.limiter.replace(TokenBucket::new(Quota::per_hour(100)));
    assert_eq!(bucket.take("a").await, 91);
    let window = env.limiter(FixedWindow::new(Quota::per_hour(10)));
    assert_eq!(window.take_n("a", 8).await, 2);
    window.limiter.replace(FixedWindow::new(Quota::per_hour(100)));
    assert_eq!(window.take("a").await, 91);
}

async fn a_lower_limit_applies_at_once<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(10)));
    assert_eq!(limiter.take_n("a", 4).await, 6);
    limiter.limiter.replace(FixedWindow::new(Quota::per_hour(5)));
    assert_eq!(limiter.exhaust("a").await.0, 1);
    assert_eq!(limiter.exhaust("b").await.0, 5);
}

async fn a_slower_rate_returns_no_units<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(1_000)));
    assert_eq!(limiter.take_n("a", 1_000).await, 0);
    limiter.limiter.replace(TokenBucket::new(Quota::per_hour(1).burst(1_000)));
    assert!(!limiter.check("a").await.is_allowed());
}

async fn clones_follow_a_replaced_algorithm<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(2)));
    let clone = limiter.clone();
    assert_eq!(clone.exhaust("a").await.0, 2);
    limiter.limiter.replace(FixedWindow::new(Quota::per_hour(3)));
    assert_eq!(clone.exhaust("a").await.0, 1);
}
