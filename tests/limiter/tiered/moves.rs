//! A key that moves between tiers keeps its used units, and gets no more than the largest tier allows.

use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, Tiered,
    TokenBucket,
};
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

use super::{MS, SECOND, limiter, takes, tiered};
use crate::support::{PolledByHand, Random};

/// Runs a test with each kind of algorithm whose units are counted.
macro_rules! with_each_kind {
    ($test:ident) => {
        $test(TokenBucket::new);
        $test(FixedWindow::new);
        $test(|quota| FixedWindow::new(quota).aligned());
        $test(SlidingWindow::new);
        $test(SlidingCounter::new);
        $test(SlidingLog::new);
    };
}

fn moves<A: Algorithm + PartialEq>(rule: impl Fn(Quota) -> A) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (from, to) = (1 + random.below(60), 1 + random.below(60));
        let (old, new) = (rule(Quota::per_hour(from)), rule(Quota::per_hour(to)));
        let (limiter, _clock) = tiered(old.clone());
        let used = random.below(from + 1);
        assert!(limiter.call("key").cost(used).tier(&old).check().is_allowed());
        let left = to - used.min(to);
        let case = format!("seed {seed}: {used} of {from}, then {to}: {new:?}");
        assert_eq!(limiter.call("key").tier(&new).peek().remaining(), left, "{case}");
        // A peek does not move the key to another tier.
        assert_eq!(limiter.call("key").tier(&old).peek().remaining(), from - used, "{case}");
        // The key is neither reset nor locked out.
        assert_eq!(takes(&limiter, &new, "key"), left, "{case}");
        let wait = limiter.call("key").tier(&new).peek().retry_after().unwrap();
        assert!(wait <= 3_600 * 2 * SECOND, "{case}: {wait:?}");
        assert_eq!(limiter.call("other").tier(&new).peek().remaining(), to, "{case}");
    }
}

#[test]
fn a_user_that_moves_keeps_its_usage_up_to_the_capacity_of_the_new_tier() {
    with_each_kind!(moves);
}

fn looks<A: Algorithm + PartialEq>(rule: impl Fn(Quota) -> A) {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let tiers = [(); 3].map(|()| {
            let period = MS * (1 + random.below(3_000) as u32);
            rule(Quota::per(1 + random.below(20), period).unwrap().burst(1 + random.below(30)))
        });
        let (limiter, clock) = tiered(tiers[0].clone());
        for _ in 0..40 {
            clock.advance(MS * random.below(700) as u32);
            let tier = &tiers[random.below(3) as usize];
            let looked = limiter.call("key").tier(tier).peek();
            let again = limiter.call("key").tier(tier).peek();
            let called = limiter.call("key").tier(tier).check();
            let case = format!("seed {seed}: {tier:?}");
            assert_eq!(looked, again, "{case}");
            assert_eq!(
                (looked.is_allowed(), looked.retry_after()),
                (called.is_allowed(), called.retry_after()),
                "{case}"
            );
            match called.is_allowed() {
                true => assert_eq!(called.remaining() + 1, looked.remaining(), "{case}"),
                false => assert_eq!(called, looked, "{case}"),
            }
            if let Some(wait) = called.retry_after() {
                // As long as no call is made, the reported wait is exact to the nanosecond.
                clock.advance(wait - Duration::from_nanos(1));
                assert!(!limiter.call("key").tier(tier).peek().is_allowed(), "{case}");
                clock.advance(Duration::from_nanos(1));
                assert!(limiter.call("key").tier(tier).peek().is_allowed(), "{case}");
            }
        }
    }
}

#[test]
fn a_peek_with_a_tier_reports_what_a_call_with_it_would() {
    with_each_kind!(looks);
}

/// As long as the key has used no more units than the smaller tier can hold, a thousand moves between the tiers change
/// nothing.
fn to_and_fro_below<A: Algorithm + PartialEq>(rule: impl Fn(Quota) -> A) {
    let (small, large) = (rule(Quota::per_hour(10)), rule(Quota::per_hour(1_000)));
    let (limiter, _clock) = tiered(small.clone());
    assert!(limiter.call("key").cost(4).tier(&large).check().is_allowed());
    for _ in 0..1_000 {
        assert_eq!(limiter.call("key").cost(0).tier(&small).check().remaining(), 6);
        assert_eq!(limiter.call("key").cost(0).tier(&large).check().remaining(), 996);
    }
    assert_eq!((takes(&limiter, &small, "key"), takes(&limiter, &large, "key")), (6, 990), "{small:?}");
}

#[test]
fn a_key_that_moves_to_and_fro_keeps_a_small_usage() {
    with_each_kind!(to_and_fro_below);
}

/// A client may be able to choose the tier, for example by a login or a search. Both tiers together must not admit more
/// than the larger tier.
fn to_and_fro<A: Algorithm + PartialEq>(rule: impl Fn(Quota) -> A) {
    let (small, large) = (rule(Quota::per_hour(10)), rule(Quota::per_hour(1_000)));
    let (limiter, _clock) = tiered(small.clone());
    let mut admitted = 0;
    for _ in 0..1_000 {
        admitted += takes(&limiter, &large, "key") + takes(&limiter, &small, "key");
        assert!(admitted <= 1_000, "{admitted} at one instant, of {large:?}");
    }
    assert_eq!(admitted, 1_000);
}

#[test]
fn a_key_that_moves_to_and_fro_a_thousand_times_gets_no_more_than_the_larger_tier_allows() {
    with_each_kind!(to_and_fro);
}

/// An app has as many tiers as routes. Calls with one tier do not make another tier forget what the key has used.
fn many_tiers<A: Algorithm + PartialEq>(rule: impl Fn(Quota) -> A) {
    let (large, small) = (rule(Quota::per_hour(1_000)), rule(Quota::per_hour(10)));
    let (limiter, _clock) = tiered(small.clone());
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += takes(&limiter, &large, "key");
        for limit in 1..=20 {
            let _ = limiter.call("key").tier(&rule(Quota::per_hour(limit))).check();
        }
    }
    assert!(admitted <= 1_000, "{admitted} by {large:?}");
}

#[test]
fn a_key_with_twenty_tiers_gets_no_more_than_the_largest_allows() {
    with_each_kind!(many_tiers);
}

#[test]
fn nine_more_tiers_do_not_make_the_first_forget_its_units() {
    let big = FixedWindow::new(Quota::per_hour(100));
    let (limiter, _clock) = tiered(big.clone());
    assert!(limiter.check_n("key", 100).is_allowed());
    for limit in 1..=9 {
        let _ = limiter.call("key").tier(&FixedWindow::new(Quota::per_hour(limit))).check();
    }
    assert!(!limiter.call("key").tier(&big).peek().is_allowed());
}

/// A call with the large tier is queued, then the small tier is called, and then the queued call is cancelled. Its
/// refund must not give back units of the small tier.
#[test]
fn a_cancelled_call_of_one_tier_refunds_nothing_to_another() {
    let (small, large) = (FixedWindow::new(Quota::per_hour(3)), FixedWindow::new(Quota::per_hour(1_000)));
    let (limiter, clock) = tiered(small.clone());
    let line = self::limiter(LeakyBucket::new(Quota::per_hour(1)).queue(1_000), &clock);
    assert!(line.check(&()).is_allowed());
    let chosen = large.clone();
    let layer = RateLimitLayer::with_limiter(from_fn(|(): &()| Some("key")), limiter.clone())
        .tier(move |(): &(), _: &&str| chosen.clone())
        .and(RateLimitLayer::with_limiter(Global, line))
        .responder(ErrorResponder);
    let mut service = layer.layer(service_fn(async |()| Ok::<_, ()>(())));
    let mut logins = 0;
    for _ in 0..10 {
        let mut waits = PolledByHand::new(service.call(()));
        assert!(!waits.poll());
        logins += takes(&limiter, &small, "key");
        waits.abandon();
        logins += takes(&limiter, &small, "key");
    }
    assert!(logins <= 3, "{logins}, of 3 an hour");
}

fn denied_by_another<A: Algorithm + PartialEq>(rule: impl Fn(Quota) -> A) {
    let (small, large) = (rule(Quota::per_hour(10)), rule(Quota::per_hour(1_000)));
    let (limiter, _clock) = tiered(small.clone());
    assert!(limiter.call("key").cost(900).tier(&large).check().is_allowed());
    assert!(!limiter.call("key").tier(&small).check().is_allowed());
    assert_eq!(limiter.call("key").tier(&large).peek().remaining(), 100, "by a denial, of {large:?}");
    assert!(limiter.call("key").cost(0).tier(&small).check().is_allowed());
    assert_eq!(limiter.call("key").tier(&large).peek().remaining(), 100, "by a call of cost 0, of {large:?}");
}

#[test]
fn a_denial_by_a_smaller_tier_gives_nothing_back_to_the_larger() {
    with_each_kind!(denied_by_another);
}

/// A key moves between tiers at any time. Over any span, no more is admitted than the larger burst and what the faster
/// rate brings.
fn move_over_time<A: Algorithm + PartialEq>(of: impl Fn(TokenBucket) -> A) {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let burst = 30;
        let slow = of(TokenBucket::new(Quota::per(7, SECOND).unwrap().burst(burst)));
        let fast = of(TokenBucket::new(Quota::per(1_013, 11 * SECOND).unwrap().burst(burst)));
        let (limiter, clock) = tiered(slow.clone());
        let (mut nanos, mut admitted) = (0_u64, 0_u64);
        for _ in 0..2_000 {
            let step = random.below(3_000_000);
            clock.advance(Duration::from_nanos(step));
            nanos += step;
            let rule = if random.one_in(2) { &slow } else { &fast };
            let cost = random.below(4);
            if limiter.call("key").cost(cost).tier(rule).check().is_allowed() {
                admitted += cost;
            }
            let due = burst + (u128::from(nanos) * 1_013 / 11_000_000_000) as u64;
            assert!(admitted <= due, "seed {seed}: {admitted} by {nanos} ns, {due} due");
        }
    }
}

#[test]
fn moves_over_time_bring_no_more_than_the_faster_tier_would() {
    move_over_time(|bucket| bucket);
    move_over_time(|bucket| (bucket, wide()));
}

/// A caller moves between tiers on purpose. Whenever one tier has nothing left, the caller calls the other tier.
#[test]
fn calling_the_other_tier_whenever_one_is_spent_gets_no_more_than_the_faster_allows() {
    let slow = TokenBucket::new(Quota::per_second(9).burst(10));
    let fast = TokenBucket::new(Quota::per_second(10));
    let (limiter, clock) = tiered(slow.clone());
    let mut admitted = 0;
    for _ in 0..10_000 {
        admitted += takes(&limiter, &fast, "key") + takes(&limiter, &slow, "key");
        clock.advance(MS * 10);
    }
    assert!(admitted <= 10 + 1_000, "{admitted} in 100 s, at ten a second");
}

#[test]
fn a_charge_of_a_tier_comes_back_in_that_tier_and_a_reset_clears_it() {
    let (small, large) = (TokenBucket::new(Quota::per_hour(10)), TokenBucket::new(Quota::per_hour(100)));
    let (limiter, _clock) = tiered(small.clone());
    assert!(limiter.call("key").cost(50).tier(&large).check().is_allowed());
    limiter.refund("key", 20);
    assert_eq!(limiter.call("key").tier(&large).peek().remaining(), 70);
    limiter.refund("key", 1_000);
    assert_eq!(limiter.call("key").tier(&large).peek().remaining(), 100);
    assert!(limiter.call("key").cost(50).tier(&large).check().is_allowed());
    limiter.reset("key");
    assert_eq!(
        (limiter.peek("key").remaining(), limiter.call("key").tier(&large).peek().remaining()),
        (10, 100)
    );
    assert!(limiter.is_empty());
}

/// A window that denies no call of a test.
fn wide() -> FixedWindow {
    FixedWindow::new(Quota::per_hour(1_000_000))
}

/// Both tiers admit a call each 100 ms.
fn counts_in_another_tier<A: Algorithm + PartialEq>(one: A, other: A) {
    let (limiter, clock) = tiered(one.clone());
    assert!(limiter.call("key").tier(&one).check().is_allowed());
    clock.advance(MS * 50);
    assert!(!limiter.call("key").tier(&other).check().is_allowed());
    clock.advance(MS * 50);
    assert!(limiter.call("key").cost(5).tier(&other).check().is_allowed());
    clock.advance(MS * 100);
    let denied = limiter.call("key").tier(&one).check();
    assert_eq!(denied.retry_after(), Some(MS * 400), "five intervals were used");
}

#[test]
fn a_cost_in_one_tier_with_slots_counts_in_the_other() {
    let ten = Quota::per_second(10);
    counts_in_another_tier(LeakyBucket::new(ten).queue(0), LeakyBucket::new(ten).queue(1));
    counts_in_another_tier(Smooth::bursty(ten).queue(0), Smooth::bursty(ten).queue(1));
    let [one, other] = [0, 1].map(|places| (LeakyBucket::new(ten).queue(places), wide()));
    counts_in_another_tier(one, other);
    let [one, other] = [0, 1].map(|places| (Smooth::bursty(ten).queue(places), wide()));
    counts_in_another_tier(one, other);
}

#[test]
fn units_of_a_tier_that_is_a_tuple_count_in_each_member() {
    let rule =
        |second, day| (TokenBucket::new(Quota::per_second(second)), FixedWindow::new(Quota::per_day(day)));
    let (free, paid) = (rule(10, 100), rule(100, 1_000));
    let (limiter, clock) = tiered(free.clone());
    assert!(limiter.call("key").tier(&free).check().is_allowed());
    assert!(limiter.call("key").cost(90).tier(&paid).check().is_allowed());
    clock.advance(SECOND);
    // 91 units were used today since the first call with `free`.
    assert_eq!(limiter.call("key").tier(&free).check().remaining(), 8);
}

#[test]
fn replacing_the_default_tier_keeps_its_used_units() {
    let small = TokenBucket::new(Quota::per_hour(10));
    let (limiter, _clock) = tiered(TokenBucket::new(Quota::per_hour(1_000)));
    assert!(limiter.check_n("key", 900).is_allowed());
    let _ = limiter.call("key").tier(&small).check();
    limiter.replace(Tiered::new(TokenBucket::new(Quota::per_hour(1_001))));
    assert_eq!(limiter.peek("key").remaining(), 101);
}

#[test]
fn a_call_of_cost_0_in_another_tier_leaves_a_fresh_tier_fresh() {
    let (minute, hour) = (FixedWindow::new(Quota::per_minute(10)), FixedWindow::new(Quota::per_hour(100)));
    let other = FixedWindow::new(Quota::per_hour(101));
    let (limiter, clock) = tiered(minute.clone());
    assert!(limiter.call("key").cost(10).tier(&minute).check().is_allowed());
    clock.advance(SECOND * 59);
    assert!(limiter.call("key").cost(50).tier(&hour).check().is_allowed());
    clock.advance(SECOND);
    assert!(limiter.call("key").tier(&minute).peek().is_allowed());
    let _ = limiter.call("key").cost(0).tier(&other).check();
    let peek = limiter.call("key").tier(&minute).peek();
    assert!(peek.is_allowed(), "a call of another tier that cost nothing changed it: {peek:?}");
}

#[test]
fn a_call_of_cost_0_in_another_tier_leaves_a_full_bucket_full() {
    let (free, day) = (TokenBucket::new(Quota::per_second(10)), TokenBucket::new(Quota::per_day(1_000)));
    let other = TokenBucket::new(Quota::per_day(1_001));
    let (limiter, clock) = tiered(free.clone());
    assert!(limiter.call("key").tier(&free).check().is_allowed());
    assert!(limiter.call("key").cost(500).tier(&day).check().is_allowed());
    clock.advance(SECOND * 60);
    assert_eq!(limiter.call("key").tier(&free).peek().remaining(), 10);
    let _ = limiter.call("key").cost(0).tier(&other).check();
    assert_eq!(limiter.call("key").tier(&free).peek().remaining(), 10);
}
