//! Calls whose actual cost is known only when they end. A store may settle a call after the settling method has
//! returned.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::tested::{Env, Subject, until};
use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use crate::quota::Quota;

list! {
    settling_lower_returns_the_difference
    settling_higher_charges_the_difference
    settling_higher_than_available_makes_no_debt
    settling_a_call_of_cost_0_charges_what_it_used
    settling_the_same_changes_nothing
    a_call_that_is_not_settled_keeps_its_charge
    a_denied_call_has_nothing_to_settle
    settling_a_call_of_an_ended_window_changes_nothing
}

const HOUR: Quota = Quota::per_hour(10);

async fn settling_lower_returns_the_difference<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    let (decision, reservation) = limiter.charge("a", 5).await;
    assert_eq!((decision.is_allowed(), decision.remaining()), (true, 5));
    reservation.settle(2);
    limiter.becomes("a", 8).await;
    let (_, reservation) = limiter.charge("a", 8).await;
    reservation.settle(0);
    limiter.becomes("a", 8).await;
}

async fn settling_higher_charges_the_difference<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingWindow::new(HOUR));
    let (_, reservation) = limiter.charge("a", 2).await;
    reservation.settle(7);
    limiter.becomes("a", 3).await;
}

async fn settling_higher_than_available_makes_no_debt<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    let (_, reservation) = limiter.charge("a", 2).await;
    reservation.settle(u64::MAX);
    limiter.becomes("a", 0).await;
    limiter.refund("a", 1).await;
    assert_eq!(limiter.remaining("a").await, 1);
}

async fn settling_a_call_of_cost_0_charges_what_it_used<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    let (decision, reservation) = limiter.charge("a", 0).await;
    assert_eq!((decision.is_allowed(), decision.remaining()), (true, 10));
    reservation.settle(4);
    limiter.becomes("a", 6).await;
}

async fn settling_the_same_changes_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    let (_, reservation) = limiter.charge("a", 4).await;
    reservation.settle(4);
    limiter.becomes("a", 6).await;
}

async fn a_call_that_is_not_settled_keeps_its_charge<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    let (_, reservation) = limiter.charge("a", 4).await;
    drop(reservation);
    assert_eq!(limiter.exhaust("a").await.0, 6);
}

async fn a_denied_call_has_nothing_to_settle<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.exhaust("a").await.0, 10);
    let (decision, reservation) = limiter.charge("a", 1).await;
    assert_eq!((decision.is_allowed(), reservation.is_empty()), (false, true));
}

async fn settling_a_call_of_an_ended_window_changes_nothing<M: Subject>(env: Env<M>) {
    let period = Duration::from_millis(300);
    let limiter = env.limiter(FixedWindow::new(Quota::per(4, period).unwrap_or(HOUR)));
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
