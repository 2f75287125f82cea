//! Calls that are cancelled at random times leave their slots to the other waiters, which are released in order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, RateLimiter};

use super::{INTERVAL, MS, bucket, busy};
use crate::support::{PolledByHand, Random, scaled};

/// Every third of a hundred queued calls times out at a random time. The other calls are released in order, one per
/// interval.
#[tokio::test(start_paused = true)]
async fn when_every_third_times_out_the_rest_is_released_one_per_interval() {
    for seed in 0..500 {
        let limiter = RateLimiter::new(bucket());
        let mut random = Random::new(seed);
        let start = Instant::now();
        let left = Arc::new(Mutex::new(Vec::new()));
        let mut calls = JoinSet::new();
        for n in 0..100 {
            let (acquire, left) = (limiter.acquire("key"), left.clone());
            let patience = if n % 3 == 2 { MS * random.below(10_000) as u32 } else { Duration::MAX };
            let call = async move {
                assert!(acquire.await.is_allowed());
                left.lock().unwrap().push((n, start.elapsed()));
            };
            calls.spawn(async move { timeout(patience, call).await.unwrap_or(()) });
        }
        calls.join_all().await;
        let left = left.lock().unwrap();
        for (nth, (_, at)) in (0..).zip(left.iter()) {
            assert_eq!(*at, INTERVAL * nth, "seed {seed}: {left:?}");
        }
        assert!(left.is_sorted(), "seed {seed}: {left:?}");
        for n in (0..100).filter(|n| n % 3 != 2) {
            assert!(left.iter().any(|(other, _)| *other == n), "seed {seed}: {n} is missing");
        }
    }
}

#[test]
fn random_operations_of_eight_handles_leave_no_waiter_behind() {
    for seed in 0..scaled(10_000) {
        let mut random = Random::new(seed);
        let (limiter, clock) = busy();
        // Calls arrive at most as fast as they are released, so that the queue also becomes short.
        let mut handles: [Option<PolledByHand<Acquire<LeakyBucket>>>; 8] = Default::default();
        let mut time = Duration::ZERO;
        let mut admitted = Vec::new();
        let mut note = |decision: Decision| {
            assert!(decision.is_allowed(), "seed {seed}");
            admitted.push(decision);
        };
        for _ in 0..64 {
            let handle = &mut handles[random.below(8) as usize];
            match (random.below(8), handle.as_mut()) {
                (0 | 1, None) => *handle = Some(PolledByHand::new(limiter.clone().acquire(&()))),
                (0, Some(call)) => {
                    call.abandon();
                    *handle = None;
                }
                (1, Some(call)) => drop(call.moves()),
                (2..5, Some(call)) => {
                    let ended = call.run() || call.poll();
                    if ended {
                        note(call.output.unwrap());
                        *handle = None;
                    }
                }
                (5, _) => {
                    let step = INTERVAL / 4 * random.below(6) as u32;
                    clock.advance(step);
                    time += step;
                }
                (6, _) => assert!(limiter.check_n(&(), 0).is_allowed()),
                _ => {}
            }
        }
        // A call that was moved has not been polled since. A real task would poll it.
        for handle in &mut handles {
            if handle.as_mut().is_some_and(PolledByHand::poll) {
                note(handle.take().unwrap().output.unwrap());
            }
        }
        // No more calls are admitted than there were slots.
        assert!(admitted.len() as u128 <= time.as_nanos() / INTERVAL.as_nanos(), "seed {seed}");
        // From here on, one call is released per interval, and each is woken.
        let mut before = None;
        while handles.iter().any(Option::is_some) {
            let mut waited = Duration::ZERO;
            let mut left = 0;
            while left == 0 {
                clock.advance(MS * 5);
                waited += MS * 5;
                assert!(waited <= INTERVAL, "seed {seed}: a call is stuck");
                for handle in &mut handles {
                    if handle.as_mut().is_some_and(PolledByHand::run) {
                        *handle = None;
                        left += 1;
                    }
                }
            }
            assert_eq!(left, 1, "seed {seed}");
            assert!(before.is_none_or(|()| waited == INTERVAL), "seed {seed}: after {waited:?}");
            before = Some(());
        }
    }
}
