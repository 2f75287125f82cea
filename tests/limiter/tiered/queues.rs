//! Calls of several tiers wait in one queue, and share the stored permits of `Smooth`.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Smooth, Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{MS, SECOND, fast, limiter, slow, takes, tiered, waits};
use crate::support::{Now, PolledByHand, Random, patient};

#[tokio::test(start_paused = true)]
async fn calls_of_two_tiers_wait_in_one_queue_in_order() {
    let limiter = RateLimiter::new(Tiered::new(slow()));
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..30_u32 {
        let call = limiter.call("key").tier(&fast()).acquire();
        calls.spawn(async move { (n, patient(call).await.is_allowed(), start.elapsed()) });
        tokio::task::yield_now().await;
    }
    // The queue of the slower tier has three places, and all of them are taken.
    assert!(!limiter.call("key").tier(&slow()).acquire().await.is_allowed());
    let mut left = calls.join_all().await;
    left.sort_unstable();
    assert!(left.iter().all(|(_, passed, _)| *passed));
    assert!(left.is_sorted_by_key(|(.., at)| *at), "{left:?}");
    assert!(limiter.call("key").tier(&fast()).peek().retry_after().is_some_and(|wait| wait <= 500 * MS));
}

/// A queued call and a call that is admitted at once both report the limit of their own tier.
#[tokio::test(start_paused = true)]
async fn a_queued_call_reports_the_limit_of_its_tier() {
    let of_burst = |burst| TokenBucket::new(Quota::per_second(20).burst(burst)).queue(9);
    let (limiter, tier) = (RateLimiter::new(Tiered::new(of_burst(2))), of_burst(5));
    let first = limiter.call("key").tier(&tier).cost(5).acquire().await;
    let second = limiter.call("key").tier(&tier).acquire().await;
    assert_eq!((first.limit(), first.remaining(), first.delay()), (5, 0, Duration::ZERO));
    assert_eq!((second.limit(), second.remaining(), second.delay()), (5, 0, MS * 50));
}

#[test]
fn a_peek_with_a_tier_is_true_while_others_wait() {
    let reported = |decision: Decision| (decision.is_allowed(), decision.retry_after());
    for (mine, other) in [(slow(), fast()), (fast(), slow())] {
        let (limiter, clock) = tiered(slow());
        assert!(limiter.call("key").tier(&mine).check().is_allowed());
        let _waits = waits(limiter.call("key").tier(&mine).acquire());
        clock.advance(MS * 7);
        let looked = reported(limiter.call("key").tier(&other).peek());
        assert_eq!(looked, reported(limiter.call("key").tier(&other).check()), "{other:?} after {mine:?}");
    }
}

/// If a slower tier is called while calls are queued, these calls are admitted later, and are not polled again and
/// again until then.
#[test]
fn waiters_sleep_on_when_a_slower_tier_is_called() {
    let (limiter, clock) = tiered(fast());
    assert!(limiter.call("key").tier(&fast()).check().is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.call("key").tier(&fast()).acquire())).collect();
    assert!(!limiter.call("key").tier(&slow()).check().is_allowed());
    let mut left = Vec::new();
    for ms in 1..=3_000 {
        clock.advance(MS);
        for (n, call) in line.iter_mut().enumerate().filter(|(_, call)| call.is_pending()) {
            let before = call.polls;
            while call.is_pending() && call.alarm.rang() {
                call.poll();
                assert!(call.polls - before < 50, "call {n} spins at {ms} ms");
            }
            if !call.is_pending() {
                left.push((n, ms));
            }
        }
    }
    assert!(left.len() == 3 && left.is_sorted(), "{left:?}");
}

#[test]
fn one_kind_of_smooth_follows_another_in_order() {
    let (cold, warm) = (
        Smooth::warming_up(Quota::per_second(4), SECOND).queue(9),
        Smooth::bursty(Quota::per_second(8)).queue(9),
    );
    let (limiter, clock) = tiered(cold.clone());
    for rule in [&cold, &warm, &cold, &warm] {
        let decision = limiter.call("key").tier(rule).check();
        let wait = decision.retry_after().unwrap_or_default();
        assert!(wait <= SECOND, "{decision:?}");
        clock.advance(wait);
        assert!(decision.is_allowed() || limiter.call("key").tier(rule).check().is_allowed());
    }
}

#[test]
fn a_call_of_cost_0_leaves_the_stored_permits_of_other_tiers() {
    let (stored, other) = (Smooth::bursty(Quota::per_second(8)), Smooth::bursty(Quota::per_second(2)));
    let (limiter, clock) = tiered(other.clone());
    assert!(limiter.call("key").tier(&stored).check().is_allowed());
    clock.advance(10 * SECOND);
    assert!(limiter.call("key").cost(0).tier(&other).check().is_allowed());
    clock.advance(MS);
    assert_eq!(takes(&limiter, &stored, "key"), 9);
}

/// Waiters whose time has come are admitted only once, in the projection as in the queue.
#[test]
fn a_peek_with_another_tier_beside_a_queue_reports_what_a_check_does() {
    let log = |limit| SlidingLog::new(Quota::per(limit, Duration::from_nanos(10)).unwrap()).queue(5);
    let mut beside_a_line = 0;
    for seed in 0..5_000 {
        let mut random = Random::new(seed);
        let (rule, other) = (log(1 + random.below(4)), log(1 + random.below(4)));
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(Tiered::new(rule)).clock(clock.clone()).build();
        let mut line: Vec<_> = (0..6)
            .map(|_| {
                clock.advance(Duration::from_nanos(random.below(4)));
                let mut call = PolledByHand::new(limiter.acquire_n("key", 1 + random.below(3)));
                call.poll();
                call
            })
            .collect();
        // Some waiters might have been admitted, but not polled since.
        clock.advance(Duration::from_nanos(random.below(30)));
        let seen = limiter.call("key").tier(&other).peek();
        let reported = limiter.call("key").tier(&other).check();
        beside_a_line += u64::from(limiter.queued() > 0);
        let of = |decision: Decision| (decision.is_allowed(), decision.retry_after());
        assert_eq!(of(seen), of(reported), "seed {seed}");
        line.iter_mut().for_each(|call| _ = call.poll());
    }
    assert!(beside_a_line > 1_000, "{beside_a_line}");
}

/// A call of a slow tier is denied while calls of a fast tier wait. It charges nothing, so one waiter is admitted for
/// each slot of the fast tier, whichever of the calls comes first.
#[test]
fn after_a_denied_call_of_another_tier_each_slot_admits_one_waiter() {
    let ways = [
        "check",
        "acquire",
        "a joint call that its own tier denies",
        "a joint call that another limit denies",
    ];
    for (way, is_late) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let (limiter, clock) = tiered(LeakyBucket::new(Quota::per_second(10)).queue(5));
        let other = self::limiter(TokenBucket::new(Quota::per_second(1)), &clock);
        let tier = |places| LeakyBucket::new(Quota::per_second(1)).queue(places);
        let is_admitted = |way| match way {
            "check" => limiter.call("key").tier(&tier(0)).check().is_allowed(),
            "acquire" => limiter.call("key").tier(&tier(0)).acquire().now().is_allowed(),
            _ => {
                // The other limit denies the call if its unit is used up, and the tier denies it if it has no queue.
                let of_other = way == "a joint call that another limit denies";
                assert!(!of_other || other.check("key").is_allowed());
                let slow = tier(if of_other { 9 } else { 0 });
                let by_key = from_fn(|(): &()| Some("key"));
                let layer = RateLimitLayer::with_limiter(by_key, limiter.clone())
                    .tier(move |(): &(), _: &&str| slow.clone())
                    .and(RateLimitLayer::with_limiter(by_key, other.clone()))
                    .responder(ErrorResponder);
                layer.layer(service_fn(async |()| Ok::<_, ()>(()))).call(()).now().is_ok()
            }
        };
        assert!(limiter.acquire("key").now().is_allowed());
        let mut line = [(); 3].map(|()| waits(limiter.acquire("key")));
        assert!(is_late || !is_admitted(way), "{way}");
        clock.advance(MS * 100);
        assert!(!is_late || !is_admitted(way), "{way}");
        let admitted = line.each_mut().map(PolledByHand::poll);
        assert_eq!(admitted, [true, false, false], "{way}: one slot has passed");
    }
}

#[test]
fn a_denied_call_of_a_smaller_tier_does_not_block_a_waiter_with_priority() {
    let window = |limit| FixedWindow::new(Quota::per_second(limit)).priority(50);
    let (limiter, clock) = tiered(window(10));
    assert!(limiter.check_n("key", 10).is_allowed());
    let mut held = waits(limiter.call("key").cost(5).priority().acquire());
    assert!(!limiter.call("key").tier(&window(2)).check().is_allowed());
    clock.advance(SECOND);
    assert!(held.poll(), "a denied call of another tier has locked the queue");
}

#[test]
fn a_lockout_in_tiers_counts_denials_while_calls_are_queued() {
    let rule =
        |rate, places| LeakyBucket::new(Quota::per_second(rate)).queue(places).block_for(SECOND * 5).after(2);
    let (fast, slow) = (rule(10, 1), rule(1, 0));
    let (limiter, _clock) = tiered(fast);
    assert!(limiter.acquire("key").now().is_allowed());
    let _held = waits(limiter.acquire("key"));
    for _ in 0..5 {
        assert!(!limiter.call("key").tier(&slow).acquire().now().is_allowed());
    }
    let last = limiter.call("key").tier(&slow).acquire().now();
    assert_eq!(last.retry_after(), Some(SECOND * 5), "denied six times");
}

/// A call whose slot is more than a period ahead must not look like a step back of the clock.
#[test]
fn a_tier_lets_no_call_wait_longer_than_its_maximum() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(20).max_wait(MS * 1_500);
    let (limiter, clock) = tiered(bucket);
    let mut line: Vec<_> = (0..20).map(|_| PolledByHand::new(limiter.acquire("key"))).collect();
    line.retain_mut(|call| !call.poll() || call.output.unwrap().is_allowed());
    assert_eq!(line.len(), 16, "one call is admitted, and fifteen wait");
    for _ in 0..15 {
        clock.advance(MS * 100);
        line.retain_mut(|call| !call.run());
    }
    assert!(line.is_empty(), "a call waits longer");
}

/// A queued call is charged to the other tiers when it is admitted, and not when it arrived.
#[test]
fn a_queued_call_is_charged_to_the_other_tiers_at_its_admission() {
    let slow = TokenBucket::new(Quota::per(1, 10 * SECOND).unwrap().burst(2)).queue(5);
    let fast = TokenBucket::new(Quota::per_second(1));
    let (limiter, clock) = tiered(slow.clone());
    assert!(limiter.call("key").cost(2).check().is_allowed());
    assert!(!limiter.call("key").tier(&fast).check().is_allowed());
    let mut call = waits(limiter.call("key").acquire());
    clock.advance(10 * SECOND);
    assert!(call.poll());
    let denied = limiter.call("key").tier(&fast).check();
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(SECOND)));
}

/// An admitted waiter whose future is dropped before its poll gives back what it was charged in every tier.
#[test]
fn a_cancelled_admission_is_undone_in_every_tier() {
    fn look<A: Algorithm + PartialEq>(of: impl Fn(Quota) -> A) {
        let (one, two) = (of(Quota::per_second(1)), of(Quota::per_hour(2)));
        let (limiter, clock) = tiered(one.clone());
        assert!(limiter.call("key").tier(&two).check().is_allowed());
        let [first, second] = [(); 2].map(|()| waits(limiter.call("key").tier(&one).acquire()));
        clock.advance(2 * SECOND);
        assert!(!limiter.call("key").check().is_allowed(), "this admits the first");
        drop(second);
        assert_eq!(limiter.call("key").tier(&two).peek().remaining(), 0, "{one:?}");
        drop(first);
        let left = [&one, &two].map(|tier| limiter.call("key").tier(tier).peek().remaining());
        assert_eq!(left, [1, 1], "{one:?}");
    }
    look(|quota| TokenBucket::new(quota).queue(5));
    look(|quota| SlidingWindow::new(quota).queue(5));
    look(|quota| SlidingLog::new(quota).queue(5));
}

/// A waiter whose admission adds its tier to the key gives back what it was charged, whatever states the key had.
#[test]
fn a_cancelled_admission_that_has_added_its_tier_is_undone() {
    fn left<A: Algorithm + PartialEq>(free: &A, paid: &A, prepare: &str) -> u64 {
        let (limiter, clock) = tiered(free.clone());
        if prepare == "a pause" {
            assert!(limiter.pause("key", SECOND));
        } else {
            assert!(limiter.call("key").tier(paid).check().is_allowed());
        }
        let _first = waits(limiter.call("key").tier(paid).acquire());
        let second = waits(limiter.call("key").cost(9).acquire());
        clock.advance(SECOND);
        if prepare == "a reset" {
            limiter.reset("key");
        }
        // Before the second leaves, both are admitted.
        drop(second);
        let left = limiter.peek("key").remaining();
        assert_eq!(limiter.check("key").remaining(), left - 1);
        left
    }
    fn look<A: Algorithm + PartialEq>(of: impl Fn(TokenBucket) -> A) {
        let free = of(TokenBucket::new(Quota::per_minute(10)).queue(5));
        let paid = of(TokenBucket::new(Quota::per_second(1)).queue(5));
        let all = ["a call", "a reset", "a pause"].map(|prepare| left(&free, &paid, prepare));
        assert_eq!(all, [9; 3], "one unit of ten is that of the first waiter: {free:?}");
    }
    look(|bucket| bucket);
    look(|bucket| (bucket, FixedWindow::new(Quota::per_hour(1_000)).queue(5)));
    look(|bucket| bucket.block_for(SECOND).after(100));
}

/// An admission adds a tier to a key with the most tiers, and so removes another. Both are undone.
#[test]
fn a_cancelled_admission_brings_the_tier_back_that_it_has_removed() {
    let hourly = |limit| TokenBucket::new(Quota::per(limit, 3_600 * SECOND).unwrap()).queue(5);
    let fast = TokenBucket::new(Quota::per(100, 10 * SECOND).unwrap()).queue(5);
    let (limiter, clock) = tiered(hourly(101));
    for tier in (101..132).map(hourly).chain([fast.clone()]) {
        assert!(limiter.call("key").tier(&tier).check().is_allowed());
    }
    assert!(limiter.pause("key", SECOND));
    let _first = waits(limiter.call("key").tier(&hourly(101)).acquire());
    let second = waits(limiter.call("key").cost(9).tier(&hourly(1_000)).acquire());
    clock.advance(SECOND);
    // Before the second leaves, both are admitted, and the fast tier is removed, since it is fresh first.
    drop(second);
    let left =
        [hourly(101), hourly(131), fast].map(|tier| limiter.call("key").tier(&tier).peek().remaining());
    assert_eq!(left, [101 - 33, 131 - 33, 100 - 33 + 10]);
}

/// Calls that are denied between an admission and its undoing count as denials of their tier.
#[test]
fn denials_after_an_admission_that_is_undone_stay_counted() {
    let of = |limit| FixedWindow::new(Quota::per_minute(limit)).queue(5).block_for(60 * SECOND).after(3);
    let (limiter, clock) = tiered(of(1));
    assert!(limiter.pause("key", SECOND));
    let added = waits(limiter.call("key").tier(&of(2)).cost(2).acquire());
    clock.advance(SECOND);
    for _ in 0..2 {
        // The first of them admits the waiter.
        assert!(!limiter.call("key").tier(&of(2)).check().is_allowed());
    }
    drop(added);
    assert!(limiter.call("key").cost(2).tier(&of(2)).check().is_allowed());
    assert!(limiter.call("key").tier(&of(2)).check().is_locked_out(), "the third denial");
}
