//! A queue that is removed, because its calls have left it or were cancelled, leaves no state.

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_throttle::{Decision, RateLimiter};

use super::{MS, ten_a_second};

#[tokio::test(start_paused = true)]
async fn no_state_remains_of_a_removed_queue() {
    let limiter = RateLimiter::builder(ten_a_second().queue(3)).max_keys(50).build();
    for round in 0..20 {
        let mut calls = JoinSet::new();
        for key in 0..40 {
            for n in 0..4 {
                let call = timeout(MS * 150 * (1 + n % 2), limiter.acquire(&(round, key)));
                calls.spawn(async move { call.await.is_ok() });
            }
        }
        calls.join_all().await;
        assert!(limiter.len() <= 50);
        sleep(MS * 500).await;
    }
    // All keys are fresh, so each key has a place in the table, and its calls can be queued.
    let mut calls = JoinSet::new();
    for key in 0..50 {
        for _ in 0..4 {
            calls.spawn(limiter.acquire(&("last", key)));
        }
    }
    assert!(calls.join_all().await.iter().all(Decision::is_allowed));
}
