//! Refunds and resets.

use std::time::Duration;

use super::super::tested::{Env, Subject, until};
use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use crate::quota::Quota;

list! {
    a_refund_returns_units
    a_refund_never_returns_more_than_was_charged
    a_refund_of_an_unused_key_changes_nothing
    a_refund_after_the_window_has_ended_changes_nothing
    a_reset_makes_a_key_fresh
    a_reset_leaves_other_keys_alone
}

const HOUR: Quota = Quota::per_hour(7);

async fn a_refund_returns_units<M: Subject>(env: Env<M>) {
    let (bucket, window) = (env.limiter(TokenBucket::new(HOUR)), env.limiter(SlidingWindow::new(HOUR)));
    assert_eq!(bucket.exhaust("a").await.0, 7);
    bucket.refund("a", 3).await;
    assert_eq!(bucket.exhaust("a").await.0, 3);
    assert_eq!(window.exhaust("a").await.0, 7);
    window.refund("a", 3).await;
    assert_eq!(window.exhaust("a").await.0, 3);
}

async fn a_refund_never_returns_more_than_was_charged<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.take_n("a", 2).await, 5);
    limiter.refund("a", 5).await;
    assert_eq!(limiter.remaining("a").await, 7);
    limiter.refund("a", u64::MAX).await;
    assert_eq!(limiter.exhaust("a").await.0, 7);
}

async fn a_refund_of_an_unused_key_changes_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    limiter.refund("a", 3).await;
    assert_eq!(limiter.exhaust("a").await.0, 7);
}

async fn a_refund_after_the_window_has_ended_changes_nothing<M: Subject>(env: Env<M>) {
    let period = Duration::from_millis(200);
    let limiter = env.limiter(FixedWindow::new(Quota::per(4, period).unwrap_or(HOUR)));
    let first = limiter.timed("a").await;
    until(first.after + period).await;
    limiter.refund("a", 1).await;
    assert_eq!(limiter.remaining("a").await, 4);
}

async fn a_reset_makes_a_key_fresh<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingWindow::new(HOUR));
    assert_eq!(limiter.exhaust("a").await.0, 7);
    limiter.reset("a").await;
    let fresh = limiter.peek("a").await;
    assert_eq!((fresh.remaining(), fresh.reset_after()), (7, Duration::ZERO));
    assert_eq!(limiter.exhaust("a").await.0, 7);
    // A key that was never used can be reset as well.
    limiter.reset("b").await;
    assert_eq!(limiter.exhaust("b").await.0, 7);
}

async fn a_reset_leaves_other_keys_alone<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.exhaust("a").await.0, 7);
    assert_eq!(limiter.take("b").await, 6);
    limiter.reset("b").await;
    assert!(!limiter.check("a").await.is_allowed());
}
