//! A full table evicts the least used keys, counts what it evicts, and never exceeds its maximum.

use tower_throttle::algorithm::{Concurrency, FixedWindow};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimiter};

use super::{DAY, INVENTED, INVENTED_KEYS, MAX_KEYS, SECOND, assert_full, bucket, daily};
use crate::support::PolledByHand;

/// All keys are equally used. A key that keeps calling stays limited, and a key that makes no calls gets its quota once
/// more.
#[test]
fn under_a_limit_of_one_a_key_is_admitted_at_most_twice_in_a_flood() {
    let clock = ManualClock::new();
    let limiter = |on_full| {
        let builder = RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(clock.clone());
        builder.max_keys(MAX_KEYS).on_full(on_full).build()
    };
    for seed in 0..3 {
        let table = limiter(OnFull::EvictLeastUsed);
        let (mut calling, mut silent) = (0, u64::from(table.check(&2_u64).is_allowed()));
        for key in 0..INVENTED {
            clock.advance(SECOND / 10_000);
            if key % (MAX_KEYS as u64 / 4) == 0 {
                calling += u64::from(table.check(&1_u64).is_allowed());
            }
            assert!(table.check(&(INVENTED_KEYS * (seed + 1) + key)).is_allowed(), "no key is locked out");
        }
        silent += u64::from(table.check(&2_u64).is_allowed());
        assert!(calling <= 2 && silent <= 2, "{calling} and {silent}");
        assert!(table.stats().store.evicted_at_limit >= INVENTED - MAX_KEYS as u64, "{:?}", table.stats());
    }
    // This treatment is for limits where one more quota is too much.
    let table = limiter(OnFull::Reject);
    assert!(table.check(&1_u64).is_allowed());
    let admitted = (0..INVENTED).filter(|key| table.check(&(INVENTED_KEYS + key)).is_allowed()).count();
    assert_eq!(admitted, MAX_KEYS - 1);
    assert!(!table.check(&1_u64).is_allowed() && !table.check(&1_u64).is_table_full());
    assert_eq!(table.stats().calls.table_full, INVENTED - MAX_KEYS as u64 + 1);
}

/// The least used keys are evicted first. Keys that are at their limits or locked out are not evicted.
#[test]
fn a_key_at_its_limit_is_not_evicted_while_less_used_ones_could_go() {
    let clock = ManualClock::new();
    let rule = FixedWindow::new(Quota::per_day(5)).block_for(DAY).after(3);
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).max_keys(MAX_KEYS).build();
    let locked_out = |key: &u64| !limiter.peek(key).is_allowed();
    for key in 0..1_000_u64 {
        for _ in 0..5 + key % 2 * 3 {
            let _ = limiter.check(&key);
        }
    }
    clock.advance(SECOND);
    for key in 0..INVENTED {
        assert!(limiter.check(&(INVENTED_KEYS + key)).is_allowed());
    }
    assert_eq!((0..1_000_u64).filter(locked_out).count(), 1_000);
    assert_eq!(limiter.len(), MAX_KEYS);
    let stats = limiter.stats();
    assert_eq!(stats.store.evicted, INVENTED - (MAX_KEYS as u64 - 1_000));
    assert_eq!((stats.store.evicted_at_limit, stats.calls.table_full), (0, 0));
}

#[test]
fn calls_in_progress_and_queued_calls_are_never_evicted() {
    let limiter =
        RateLimiter::builder(Concurrency::per_key(1).queue(9)).clock(ManualClock::new()).max_keys(10).build();
    let permits: Vec<_> = (0..10_u64).map(|key| limiter.try_acquire_permit(&key).unwrap()).collect();
    let mut queued = PolledByHand::new(limiter.acquire_permit(&3_u64));
    assert!(!queued.poll());
    for key in 10..522_u64 {
        let denial = limiter.try_acquire_permit(&key).unwrap_err();
        assert_full(denial.decision());
        assert_full(limiter.call(&key).reserve().unwrap_err().decision());
        assert!(limiter.call(&key).cost(0).permit().is_ok(), "a cost of 0 needs no room");
    }
    assert_eq!(limiter.stats().calls.table_full, 2 * 512);
    assert_eq!((limiter.stats().store.evicted, limiter.len()), (0, 10));
    drop(permits);
    assert!(queued.poll(), "the queued call has its permit");
    // Key 3 is in use. The 512 calls that were made while the table was full have no effect any more.
    let permits: Vec<_> = (10..19_u64).map(|key| limiter.try_acquire_permit(&key).unwrap()).collect();
    assert_full(limiter.try_acquire_permit(&19_u64).unwrap_err().decision());
    drop(permits);
    assert!((1_000..2_000_u64).all(|key| limiter.try_acquire_permit(&key).is_ok()));
}

#[test]
fn a_table_that_was_never_full_counts_nothing() {
    let limiter = RateLimiter::builder(bucket()).clock(ManualClock::new()).max_keys(MAX_KEYS).build();
    assert!((0..MAX_KEYS).all(|key| limiter.check(&key).is_allowed()));
    let (store, calls) = (limiter.stats().store, limiter.stats().calls);
    assert_eq!((store.evicted, store.evicted_at_limit, calls.table_full), (0, 0, 0));
    assert_eq!((store.keys, calls.admitted), (MAX_KEYS as u64, MAX_KEYS as u64));
    let _ = limiter.check("one more");
    assert_eq!((limiter.stats().store.evicted, limiter.stats().store.evicted_at_limit), (1, 0));
}

/// Eight threads make calls for new keys with a full table. The table does not exceed its maximum, and no call is
/// denied for lack of room.
#[test]
fn the_bound_holds_under_eight_threads() {
    let limiter = RateLimiter::builder(FixedWindow::new(daily())).max_keys(100).build();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let limiter = &limiter;
            scope.spawn(move || {
                for key in 0..5_000 {
                    let decision = limiter.check(&(thread * 5_000 + key));
                    assert!(decision.is_allowed(), "{decision:?}");
                    assert!(limiter.len() <= 100);
                }
            });
        }
    });
    assert_eq!(limiter.len(), 100);
    assert_eq!(limiter.stats().store.evicted, 40_000 - 100);
}
