//! A queue decides together with lockouts, totals and tiers.

use tower_throttle::Quota;
use tower_throttle::algorithm::*;

use super::{MS, on, per, poll, waits};

#[test]
fn the_builder_and_the_trait_agree_on_the_queue() {
    let bucket = TokenBucket::new(Quota::per_second(1)).queue(3);
    assert_eq!(bucket.queue_config().map(|queue| queue.places()), Some(3));
}

/// The queue denies the second call. The lockout counts this denial, but does not count a denied peek.
#[test]
fn a_refusal_of_the_queue_counts_for_a_lockout() {
    let algorithm = LeakyBucket::new(per(1, 100 * MS)).queue(1).block_for(1_000 * MS).after(2);
    let (clock, limiter) = on(algorithm);
    assert!(limiter.check("key").is_allowed());
    let mut call = waits(limiter.acquire("key"));
    for _ in 0..5 {
        let _ = limiter.peek("key");
    }
    let refused = poll(&mut Box::pin(limiter.acquire("key"))).unwrap();
    assert_eq!(refused.retry_after(), Some(100 * MS));
    let refused = poll(&mut Box::pin(limiter.acquire("key"))).unwrap();
    assert_eq!(refused.retry_after(), Some(1_000 * MS));
    clock.advance(100 * MS);
    assert!(poll(&mut call).unwrap().is_allowed(), "it was queued before the lockout");
    let barred = poll(&mut Box::pin(limiter.acquire("key"))).unwrap();
    assert_eq!(barred.retry_after(), Some(900 * MS), "it may not wait");
}

/// A waiter takes a place in the total of all keys, and the length of its wait is unknown.
#[test]
fn waiters_for_a_permit_count_in_the_total() {
    let (_clock, limiter) = on(Concurrency::per_key(1).total(2).queue(5));
    let held = limiter.try_acquire_permit("a").unwrap();
    let mut queued = crate::support::waits(limiter.acquire_permit("a"));
    let refused = limiter.try_acquire_permit("b").unwrap_err();
    assert!(!refused.decision().never_fits());
    assert_eq!(refused.decision().retry_after(), None);
    drop(held);
    assert!(queued.run());
    drop(queued.output.take().unwrap().unwrap());
    assert!(limiter.try_acquire_permit("b").is_ok());
}

/// Each queued call is released by the tier that it has chosen, in the order of arrival.
#[test]
fn a_queued_call_leaves_by_its_own_tier() {
    let free = TokenBucket::new(per(1, 100 * MS));
    let paid = TokenBucket::new(per(1, 10 * MS));
    let (clock, limiter) = on(Tiered::new(free.clone()));
    assert!(limiter.call("key").tier(&free).check().is_allowed());
    assert!(!limiter.call("key").tier(&paid).check().is_allowed(), "what is used counts for all tiers");
    let mut of_paid = waits(limiter.call("key").tier(&paid).acquire());
    let mut of_free = waits(limiter.call("key").tier(&free).acquire());
    let mut last = waits(limiter.call("key").tier(&paid).acquire());
    clock.advance(10 * MS);
    assert!(poll(&mut of_paid).is_some());
    assert!(poll(&mut of_free).is_none());
    assert!(poll(&mut last).is_none(), "no call overtakes another");
    // The bucket of the free tier was charged for the paid call, but by no more than its burst.
    clock.advance(100 * MS);
    assert!(poll(&mut of_free).is_some());
    clock.advance(10 * MS);
    assert!(poll(&mut last).is_some());
}

/// If a call is the first call of the key in a tier, the state of this tier begins when the call joins the queue.
#[test]
fn a_call_that_waits_in_a_new_tier_waits_by_its_rate() {
    let (free, paid) = (TokenBucket::new(per(1, 100 * MS)), TokenBucket::new(per(1, 10 * MS)));
    let (clock, limiter) = on(Tiered::new(free));
    assert!(limiter.check("key").is_allowed());
    let mut of_paid = waits(limiter.call("key").tier(&paid).acquire());
    clock.advance(5 * MS);
    assert!(poll(&mut of_paid).is_none());
    clock.advance(5 * MS);
    assert!(poll(&mut of_paid).unwrap().is_allowed());
}

/// A call whose slot is more than a period ahead must not look like a step back of the clock.
#[test]
fn a_tier_lets_no_call_wait_longer_than_its_maximum() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(20).max_wait(1_500 * MS);
    let (clock, limiter) = on(Tiered::new(bucket));
    let mut accepted: Vec<_> = (0..20).map(|_| Box::pin(limiter.acquire("key"))).collect();
    let mut waiting = Vec::new();
    let mut admitted = 0;
    for mut call in accepted.drain(..) {
        match poll(&mut call) {
            Some(decision) => admitted += u64::from(decision.is_allowed()),
            None => waiting.push(call),
        }
    }
    assert_eq!((admitted, waiting.len()), (1, 15));
    for _ in 0..15 {
        clock.advance(100 * MS);
        waiting.retain_mut(|call| poll(call).is_none());
    }
    assert!(waiting.is_empty(), "a call waits longer");
}
