//! Long runs, after which nothing is left, and what is kept meanwhile.

use std::collections::VecDeque;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::support::{Random, scaled};

#[tokio::test(start_paused = true)]
async fn ten_thousand_waiters_with_random_patience_leave_nothing() {
    let limiter = FairLimiter::new(Concurrency::per_key(3).total(20));
    let mut random = Random::new(7);
    let mut calls = JoinSet::new();
    for _ in 0..10_000 {
        let (key, patience) = (random.below(500), MS * random.within(1..=20_000) as u32);
        let (limiter, length) = (limiter.clone(), MS * random.within(1..=300) as u32);
        calls.spawn(async move {
            let Ok(permit) = timeout(patience, limiter.acquire_permit(&key)).await else { return false };
            sleep(length).await;
            permit.is_ok()
        });
    }
    let served = calls.join_all().await.into_iter().filter(|served| *served).count();
    let stats = limiter.stats();
    assert_eq!(stats.calls.admitted, served as u64);
    assert_eq!(stats.calls.ended(), 10_000);
    assert!(stats.calls.cancelled > 1_000 && served > 1_000, "{stats:?}");
    is_unused(&limiter);
    for _ in 0..1_000 {
        drop(taken(&limiter, "a"));
    }
    assert_eq!((limiter.len(), limiter.stats().store.waiting), (0, 0));
}

/// Calls of new callers, with lengths from 1 to 4,096 ms, in a crowd that never ends.
#[test]
fn no_more_callers_are_remembered_than_wait() {
    let (limiter, clock) = fair(Concurrency::per_key(1).total(10));
    let mut random = Random::new(3);
    let mut waiting = VecDeque::new();
    let mut held = Vec::new();
    let mut most = 0;
    for key in 0..scaled(300_000) {
        let mut call = PolledByHand::new(limiter.acquire_permit(&key));
        if call.poll() {
            held.push((random.within(0..=12), call.output.take().unwrap().unwrap()));
        } else {
            waiting.push_back(call);
        }
        if waiting.len() < 1_000 {
            continue;
        }
        // The next call that ends is one of a random length.
        let (length, permit) = held.swap_remove(random.below(held.len() as u64) as usize);
        clock.advance(MS * (1 << length));
        drop(permit);
        let at = waiting.iter().position(PolledByHand::is_woken).expect("one is admitted");
        let mut call = waiting.swap_remove_back(at).unwrap();
        held.push((random.within(0..=12), admitted(&mut call)));
        let remembered = limiter.len() - waiting.len() - held.len();
        most = most.max(remembered);
    }
    println!("{most} callers are remembered at most, besides 1,000 that wait");
    assert!(most <= 1_000 + 16 + 2, "{most}");
    drop((held, waiting));
    for _ in 0..1_000 {
        drop(taken(&limiter, "a"));
    }
    assert_eq!(limiter.len(), 0);
}
