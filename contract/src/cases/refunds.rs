//! Units that are given back: refunds, resets, and calls whose actual cost is known only when they end. A limiter may
//! settle a call after the settling method has returned.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use crate::case::{Env, until};
use crate::tested::Subject;

list! {
    a_refund_returns_units
    a_refund_never_returns_more_than_was_charged
    a_refund_of_an_unused_key_changes_nothing
    a_refund_after_the_window_has_ended_changes_nothing
    a_reset_makes_a_key_fresh
    a_reset_leaves_other_keys_alone
    settling_lower_returns_the_difference
    settling_higher_charges_the_difference
    settling_higher_than_available_makes_debt
    settling_a_call_of_cost_0_charges_what_it_used
    settling_the_same_changes_nothing
    a_call_that_is_not_settled_keeps_its_charge
    a_denied_call_has_nothing_to_settle
    settling_a_call_of_an_ended_window_changes_nothing
}

const SEVEN_AN_HOUR: Quota = Quota::per_hour(7);

async fn a_refund_returns_units<M: Subject>(env: Env<M>) {
    let (bucket, window) =
        (env.limiter(TokenBucket::new(SEVEN_AN_HOUR)), env.limiter(SlidingWindow::new(SEVEN_AN_HOUR)));
    assert_eq!(bucket.exhaust("a").await.0, 7);
    bucket.refund("a", 3).await;
    assert_eq!(bucket.exhaust("a").await.0, 3);
    assert_eq!(window.exhaust("a").await.0, 7);
    window.refund("a", 3).await;
    assert_eq!(window.exhaust("a").await.0, 3);
}

async fn a_refund_never_returns_more_than_was_charged<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(SEVEN_AN_HOUR));
    assert_eq!(limiter.take_n("a", 2).await, 5);
    limiter.refund("a", 5).await;
    assert_eq!(limiter.remaining("a").await, 7);
    limiter.refund("a", u64::MAX).await;
    assert_eq!(limiter.exhaust("a").await.0, 7);
}

async fn a_refund_of_an_unused_key_changes_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(SEVEN_AN_HOUR));
    limiter.refund("a", 3).await;
    assert_eq!(limiter.exhaust("a").await.0, 7);
}

async fn a_refund_after_the_window_has_ended_changes_nothing<M: Subject>(env: Env<M>) {
    let period = Duration::from_millis(200);
    let limiter = env.limiter(FixedWindow::new(Quota::per(4, period).unwrap_or(SEVEN_AN_HOUR)));
    let first = limiter.timed("a").await;
    until(first.after + period).await;
    limiter.refund("a", 1).await;
    assert_eq!(limiter.remaining("a").await, 4);
}

async fn a_reset_makes_a_key_fresh<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingWindow::new(SEVEN_AN_HOUR));
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
    let limiter = env.limiter(FixedWindow::new(SEVEN_AN_HOUR));
    assert_eq!(limiter.exhaust("a").await.0, 7);
    assert_eq!(limiter.take("b").await, 6);
    limiter.reset("b").await;
    assert!(!limiter.check("a").await.is_allowed());
}

const TEN_AN_HOUR: Quota = Quota::per_hour(10);

async fn settling_lower_returns_the_difference<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(TEN_AN_HOUR));
    let (decision, reservation) = limiter.charge("a", 5).await;
    assert_eq!((decision.is_allowed(), decision.remaining()), (true, 5));
    reservation.settle(2);
    limiter.becomes("a", 8).await;
    let (_, reservation) = limiter.charge("a", 8).await;
    reservation.settle(0);
    limiter.becomes("a", 8).await;
}

async fn settling_higher_charges_the_difference<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingWindow::new(TEN_AN_HOUR));
    let (_, reservation) = limiter.charge("a", 2).await;
    reservation.settle(7);
    limiter.becomes("a", 3).await;
}

async fn settling_higher_than_available_makes_debt<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(TEN_AN_HOUR));
    let (_, reservation) = limiter.charge("a", 2).await;
    reservation.settle(15);
    limiter.becomes("a", 0).await;
    // Five of the refunded units pay the debt.
    limiter.refund("a", 6).await;
    assert_eq!(limiter.remaining("a").await, 1);
}

async fn settling_a_call_of_cost_0_charges_what_it_used<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(TEN_AN_HOUR));
    let (decision, reservation) = limiter.charge("a", 0).await;
    assert_eq!((decision.is_allowed(), decision.remaining()), (true, 10));
    reservation.settle(4);
    limiter.becomes("a", 6).await;
}

async fn settling_the_same_changes_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(TEN_AN_HOUR));
    let (_, reservation) = limiter.charge("a", 4).await;
    reservation.settle(4);
    limiter.becomes("a", 6).await;
}

async fn a_call_that_is_not_settled_keeps_its_charge<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(TEN_AN_HOUR));
    let (_, reservation) = limiter.charge("a", 4).await;
    drop(reservation);
    assert_eq!(limiter.exhaust("a").await.0, 6);
}

async fn a_denied_call_has_nothing_to_settle<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(TEN_AN_HOUR));
    assert_eq!(limiter.exhaust("a").await.0, 10);
    let (decision, reservation) = limiter.charge("a", 1).await;
    assert_eq!((decision.is_allowed(), reservation.is_empty()), (false, true));
}

async fn settling_a_call_of_an_ended_window_changes_nothing<M: Subject>(env: Env<M>) {
    let period = Duration::from_millis(300);
    let limiter = env.limiter(FixedWindow::new(Quota::per(4, period).unwrap_or(TEN_AN_HOUR)));
    let (_, reservation) = limiter.charge("a", 3).await;
    until(Instant::now() + period).await;
    let start = Instant::now();
    assert_eq!(limiter.take_n("a", 2).await, 2);
    reservation.settle(0);
    sleep(Duration::from_millis(50)).await;
    let remaining = limiter.remaining("a").await;
    // The units of the present window were charged by another call, so they stay charged. If the machine has stalled,
    // that window may have ended.
    assert!(remaining == 2 || start.elapsed() >= period, "{remaining}");
}
