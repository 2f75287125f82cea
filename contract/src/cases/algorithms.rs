//! Algorithms that contain others, and algorithms that are replaced while keys are in use.

use std::time::Duration;

use tokio::time::Instant;
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, Tiered, TokenBucket};
use tower_throttle::limiter::Limiter;

use crate::case::{Env, until};
use crate::tested::{Subject, TestedLimiter};

list! {
    a_tuple_admits_what_all_its_members_admit
    a_tuple_reports_the_member_that_denies
    a_tuple_charges_all_or_none
    a_tier_has_its_own_limit
    what_one_tier_uses_counts_in_the_others
    a_lockout_outlasts_what_caused_it
    a_replaced_algorithm_is_reported
    a_replacement_changes_the_generation
    what_was_used_stays_used_under_a_higher_limit
    a_lower_limit_applies_at_once
    a_slower_rate_returns_no_units
    clones_follow_a_replaced_algorithm
}

async fn a_tuple_admits_what_all_its_members_admit<M: Subject>(env: Env<M>) {
    let (wide, narrow) = (Quota::per_hour(9), Quota::per_hour(4));
    let limiter = env.limiter((TokenBucket::new(wide), FixedWindow::new(narrow)));
    assert_eq!(limiter.exhaust("a").await.0, 4);
    let limiter = env.limiter((TokenBucket::new(narrow), FixedWindow::new(wide)));
    assert_eq!(limiter.exhaust("a").await.0, 4);
}

async fn a_tuple_reports_the_member_that_denies<M: Subject>(env: Env<M>) {
    let both = (TokenBucket::new(Quota::per_hour(9)), FixedWindow::new(Quota::per_hour(4)));
    let limiter = env.limiter(both);
    assert_eq!(limiter.take_n("a", 3).await, 1);
    let denied = limiter.check_n("a", 2).await;
    assert_eq!((denied.is_allowed(), denied.limit_index(), denied.limit()), (false, 1, 4));
}

async fn a_tuple_charges_all_or_none<M: Subject>(env: Env<M>) {
    let period = Duration::from_millis(200);
    let window = FixedWindow::new(Quota::per(3, period).unwrap_or(Quota::per_second(3)));
    let limiter = env.limiter((TokenBucket::new(Quota::per_hour(5)), window));
    assert!(limiter.check_n("a", 3).await.is_allowed());
    // The bucket has two tokens left. If the calls that the window denies were charged to the bucket, these tokens
    // would be used up.
    for _ in 0..6 {
        if limiter.check("a").await.is_allowed() {
            // The call is admitted only if the machine has stalled for a whole window.
            limiter.refund("a", 1).await;
        }
    }
    until(Instant::now() + period).await;
    assert!(limiter.check_n("a", 2).await.is_allowed());
}

async fn a_tier_has_its_own_limit<M: Subject>(env: Env<M>) {
    let (free, paid) = (FixedWindow::new(Quota::per_hour(2)), FixedWindow::new(Quota::per_hour(5)));
    let limiter = env.limiter(Tiered::new(free));
    assert_eq!(limiter.exhaust("a").await.0, 2);
    let decision = limiter.check_tier("b", &Tiered::new(paid)).await;
    assert_eq!((decision.limit(), decision.remaining()), (5, 4));
}

async fn what_one_tier_uses_counts_in_the_others<M: Subject>(env: Env<M>) {
    let (free, paid) = (FixedWindow::new(Quota::per_hour(2)), FixedWindow::new(Quota::per_hour(5)));
    let limiter = env.limiter(Tiered::new(free));
    assert_eq!(limiter.exhaust("a").await.0, 2);
    for left in [2, 1, 0] {
        assert_eq!(limiter.check_tier("a", &Tiered::new(paid.clone())).await.remaining(), left);
    }
    assert!(!limiter.check("a").await.is_allowed());
}

async fn a_lockout_outlasts_what_caused_it<M: Subject>(env: Env<M>) {
    let window = FixedWindow::new(Quota::per_hour(2));
    let limiter = env.limiter(window.block_for(Duration::from_secs(7_200)).after(3));
    assert_eq!(limiter.take_n("a", 2).await, 0);
    for _ in 0..3 {
        assert!(!limiter.check("a").await.is_allowed());
    }
    let denied = limiter.timed("a").await;
    assert!(denied.retry_after() > Duration::from_secs(3_700), "{:?}", denied.retry_after());
    limiter.refund("a", 2).await;
    assert!(!limiter.check("a").await.is_allowed(), "units do not end a lockout");
    assert!(limiter.check("b").await.is_allowed(), "another key");
    limiter.reset("a").await;
    assert!(limiter.check("a").await.is_allowed(), "a reset does");
}

async fn a_replaced_algorithm_is_reported<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(10)));
    assert_eq!(limiter.limiter.info().quotas()[0].quota, 10);
    limiter.limiter.replace(TokenBucket::new(Quota::per_hour(20)));
    assert_eq!(limiter.limiter.info().quotas()[0].quota, 20);
    assert_eq!(limiter.check("a").await.limit(), 20);
}

async fn a_replacement_changes_the_generation<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(10))).limiter;
    let mut known = limiter.info().generation();
    assert_eq!(limiter.generation(), known, "a layer would ask for the info at each call");
    for limit in [20, 30] {
        limiter.replace(TokenBucket::new(Quota::per_hour(limit)));
        let (generation, info) = (limiter.generation(), limiter.info());
        assert!(generation > known, "a layer would not ask for the new info");
        assert_eq!((info.generation(), info.quotas()[0].quota), (generation, limit));
        known = generation;
    }
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
