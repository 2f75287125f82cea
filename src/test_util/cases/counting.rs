//! The number of admitted calls, and the reports of decisions.

use std::time::Duration;

use super::super::tested::{Env, MakeTested, Subject};
use crate::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket};
use crate::quota::Quota;

list! {
    a_token_bucket_admits_its_burst_and_no_more
    a_fixed_window_admits_its_limit_and_no_more
    a_sliding_window_admits_its_limit_and_no_more
    a_sliding_counter_admits_its_limit_and_no_more
    a_leaky_bucket_admits_one_call_at_a_time
    remaining_counts_down
    the_limit_is_reported
    a_key_that_was_never_used_is_fresh
    a_cost_is_charged_all_or_none
    a_cost_of_zero_is_free
    a_cost_above_the_limit_is_denied_without_a_wait
    the_largest_cost_is_denied
    a_denial_charges_nothing
    denials_delay_nothing
    a_peek_charges_nothing
    a_peek_predicts_the_check
}

const HOUR: Quota = Quota::per_hour(7);

async fn admits<A: Algorithm, M: MakeTested<A>>(env: Env<M>, algorithm: A, limit: u64) {
    let limiter = env.limiter(algorithm);
    let (admitted, denied) = limiter.exhaust("a").await;
    assert_eq!(admitted, limit);
    let wait = denied.retry_after();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(3_600), "{wait:?}");
    assert_eq!(denied.decision.remaining(), 0);
    assert!(!limiter.check("a").await.is_allowed(), "a second denial");
}

async fn a_token_bucket_admits_its_burst_and_no_more<M: Subject>(env: Env<M>) {
    admits(env.clone(), TokenBucket::new(HOUR), 7).await;
    admits(env, TokenBucket::new(HOUR.burst(3)), 3).await;
}

async fn a_fixed_window_admits_its_limit_and_no_more<M: Subject>(env: Env<M>) {
    admits(env, FixedWindow::new(HOUR), 7).await;
}

async fn a_sliding_window_admits_its_limit_and_no_more<M: Subject>(env: Env<M>) {
    // A unit is available again at most one period and one slice after its call.
    let limiter = env.limiter(SlidingWindow::new(HOUR));
    let (admitted, denied) = limiter.exhaust("a").await;
    assert_eq!(admitted, 7);
    assert!(denied.retry_after() <= Duration::from_secs(3_960), "{:?}", denied.retry_after());
}

async fn a_sliding_counter_admits_its_limit_and_no_more<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingCounter::new(HOUR));
    let (admitted, denied) = limiter.exhaust("a").await;
    assert_eq!(admitted, 7);
    assert!(denied.retry_after() <= Duration::from_secs(7_200), "{:?}", denied.retry_after());
}

async fn a_leaky_bucket_admits_one_call_at_a_time<M: Subject>(env: Env<M>) {
    admits(env, LeakyBucket::new(HOUR), 1).await;
}

async fn remaining_counts_down<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    for left in (0..7).rev() {
        let decision = limiter.check("a").await;
        assert_eq!((decision.is_allowed(), decision.remaining()), (true, left));
    }
}

async fn the_limit_is_reported<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR.burst(3)));
    assert_eq!(limiter.check("a").await.limit(), 3);
    assert_eq!(limiter.check_n("a", 3).await.limit(), 3, "of a denial");
    assert_eq!(limiter.peek("a").await.limit(), 3, "of a peek");
}

async fn a_key_that_was_never_used_is_fresh<M: Subject>(env: Env<M>) {
    let fresh = env.limiter(TokenBucket::new(HOUR)).peek("a").await;
    assert_eq!((fresh.is_allowed(), fresh.remaining(), fresh.reset_after()), (true, 7, Duration::ZERO));
    assert_eq!(fresh.retry_after(), None);
}

async fn a_cost_is_charged_all_or_none<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.take_n("a", 5).await, 2);
    assert!(!limiter.check_n("a", 3).await.is_allowed());
    assert_eq!(limiter.take_n("a", 2).await, 0);
}

async fn a_cost_of_zero_is_free<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.take_n("a", 0).await, 7);
    assert!(limiter.check_n("a", 7).await.is_allowed());
    let free = limiter.check_n("a", 0).await;
    assert_eq!((free.is_allowed(), free.remaining()), (true, 0), "of a used-up key");
}

async fn a_cost_above_the_limit_is_denied_without_a_wait<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    let denied = limiter.check_n("a", 8).await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, None));
    assert_eq!(limiter.remaining("a").await, 7);
}

async fn the_largest_cost_is_denied<M: Subject>(env: Env<M>) {
    for cost in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 53] {
        let limiter = env.limiter(SlidingWindow::new(HOUR));
        assert!(!limiter.check_n("a", cost).await.is_allowed(), "{cost}");
        assert!(!limiter.peek_n("a", cost).await.is_allowed(), "{cost}");
        assert_eq!(limiter.remaining("a").await, 7, "{cost}");
    }
}

async fn a_denial_charges_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    assert!(limiter.check_n("a", 4).await.is_allowed());
    for _ in 0..10 {
        assert!(!limiter.check_n("a", 4).await.is_allowed());
    }
    assert_eq!(limiter.take_n("a", 3).await, 0);
}

async fn denials_delay_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    let (_, first) = limiter.exhaust("a").await;
    for _ in 0..20 {
        let next = limiter.timed("a").await;
        let passed = next.after - first.before;
        assert!(next.retry_after() <= first.retry_after(), "it grows");
        assert!(next.retry_after() + passed >= first.retry_after(), "it shrinks faster than time passes");
    }
}

async fn a_peek_charges_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingWindow::new(HOUR));
    for _ in 0..10 {
        assert_eq!(limiter.remaining("a").await, 7);
    }
    assert_eq!(limiter.take_n("a", 7).await, 0);
    for _ in 0..10 {
        assert!(!limiter.peek("a").await.is_allowed());
    }
}

async fn a_peek_predicts_the_check<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    for cost in [3, 2, 3, 2, 1, 0, 8] {
        let (peek, check) = (limiter.peek_n("a", cost).await, limiter.check_n("a", cost).await);
        assert_eq!(peek.is_allowed(), check.is_allowed(), "{cost}");
        assert_eq!(peek.retry_after().is_some(), check.retry_after().is_some(), "{cost}");
        assert!(peek.retry_after() >= check.retry_after(), "{cost}");
    }
}
