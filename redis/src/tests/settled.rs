//! Settled calls and tiers: cases in which Redis once decided otherwise than the limiter in memory.

use std::time::Duration;

use tokio::time::advance;

use super::faults::swaps;
use super::flights::{begun, settle};
use super::joined::decide;
use super::limiter;
use super::staged::{Mode, Staged};
use crate::limiter::RedisLimiter;
use tower_throttle::Decision;
use tower_throttle::Quota;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, StoredAlgorithm, Tiered, TokenBucket};
use tower_throttle::limiter::{Acquired, Attempt, Limiter, LimiterFor, Reservation};
use tower_throttle::stats::UnitStats;

const MS: Duration = Duration::from_millis(1);

/// Makes a call with the key `a` that can be settled.
async fn charge<L: LimiterFor<str>>(
    limiter: &L,
    tier: Option<&L::Algorithm>,
    cost: u64,
) -> (Decision, Reservation) {
    let attempt = Attempt::new(cost).with_reservation();
    let attempt = tier.map_or(attempt, |tier| attempt.with_algorithm(tier));
    let decided = match limiter.acquire("a", attempt) {
        Acquired::Ready(decision, reservation) => return (decision, reservation),
        Acquired::Pending(wait) => wait.await.unwrap_or_else(|error| panic!("{}", error.into())),
    };
    decided.into_parts()
}

/// Returns the units that were charged, refunded and not charged.
fn units(limiter: &impl Limiter) -> [u64; 3] {
    let UnitStats { charged, refunded, uncharged, .. } = limiter.stats().units;
    [charged, refunded, uncharged]
}

#[tokio::test(start_paused = true)]
async fn units_of_a_fallback_are_counted_with_those_of_its_limiter() {
    let server = Staged::new();
    let local = RateLimiter::builder(FixedWindow::new(Quota::per_hour(5))).max_debt(1).build();
    let window = FixedWindow::new(Quota::per_hour(10));
    let redis = swaps(&server).limiter("test", window).fallback(local.clone()).build().unwrap();
    redis.charge("a", 2).await.unwrap();
    server.set(Mode::Fail("ERR"));
    redis.call("a").cost(3).reserve().await.unwrap().unwrap().settle(4);
    redis.charge("a", 9).await.unwrap();
    assert_eq!((units(&local), units(&redis)), ([3, 0, 7], [5, 0, 7]));
}

#[tokio::test(start_paused = true)]
async fn a_settlement_after_a_replacement_gives_nothing_back() {
    /// Replaces the algorithm while a call of 900 units is in progress, before or while its settlement is sent. Returns
    /// whether the key is denied afterwards, and the units that were counted as refunded.
    async fn replaced<A: StoredAlgorithm>(algorithms: [A; 2], is_sent: bool) -> (bool, u64) {
        let server = Staged::new();
        let [old, new] = algorithms;
        let limit = limiter(&swaps(&server), old);
        let (_, reservation) = charge(&limit, None, 900).await;
        assert!(limit.check_n("a", 100).await.unwrap().is_allowed());
        server.set(Mode::Hold);
        // The settlement waits for the trip of this call, and the next trip has the new algorithm.
        let peek = is_sent.then(|| tokio::spawn(limit.peek("a")));
        settle().await;
        if is_sent {
            reservation.settle(0);
            limit.replace(new);
            server.resume();
        } else {
            limit.replace(new);
            server.resume();
            assert!(!limit.check("a").await.unwrap().is_allowed(), "the units stay used");
            reservation.settle(0);
        }
        if let Some(peek) = peek {
            let _ = peek.await.unwrap().unwrap();
        }
        settle().await;
        (!limit.check("a").await.unwrap().is_allowed(), limit.stats().units.refunded)
    }
    for is_sent in [false, true] {
        let quotas = || [1_000, 10].map(Quota::per_hour);
        assert_eq!(replaced(quotas().map(FixedWindow::new), is_sent).await, (true, 0));
        assert_eq!(replaced(quotas().map(TokenBucket::new), is_sent).await, (true, 0));
        assert_eq!(
            replaced(quotas().map(|quota| Tiered::new(FixedWindow::new(quota))), is_sent).await,
            (true, 0)
        );
        let same = || [1_000; 2].map(|limit| FixedWindow::new(Quota::per_hour(limit)));
        assert_eq!(replaced(same(), is_sent).await, (true, 0), "as in memory");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_gives_nothing_back_after_a_replacement() {
    // With the same quota, the state is not converted.
    for replacing in [1_000, 10] {
        let server = Staged::new();
        let limit = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(1_000)));
        assert!(limit.check_n("a", 100).await.unwrap().is_allowed());
        server.set(Mode::Withhold);
        let call = begun(limit.check_n("a", 900));
        settle().await;
        // The state is read, and then written. The reply to the latter is withheld.
        server.resume();
        server.set(Mode::Withhold);
        settle().await;
        limit.replace(FixedWindow::new(Quota::per_hour(replacing)));
        drop(call);
        server.resume();
        settle().await;
        assert!(!limit.check("a").await.unwrap().is_allowed(), "replaced by {replacing} per hour");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dearer_settlement_after_a_replacement_is_charged_as_in_memory() {
    let quotas = || [20, 10].map(|limit| FixedWindow::new(Quota::per_hour(limit)));
    let [old, new] = quotas();
    let memory = RateLimiter::new(old.clone());
    let redis = limiter(&swaps(&Staged::new()), old);
    let (_, here) = charge(&memory, None, 3).await;
    let (_, there) = charge(&redis, None, 3).await;
    memory.replace(new.clone());
    redis.replace(new);
    here.settle(8);
    there.settle(8);
    settle().await;
    assert_eq!((memory.peek("a").remaining(), redis.peek("a").await.unwrap().remaining()), (2, 2));
    assert_eq!((units(&memory), units(&redis)), ([5, 0, 0], [5, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_joint_call_from_before_a_replacement_gives_nothing_back() {
    let [old, new] = [1_000, 10].map(|limit| FixedWindow::new(Quota::per_hour(limit)));
    let limit = limiter(&swaps(&Staged::new()), old);
    assert!(limit.check_n("a", 100).await.unwrap().is_allowed());
    let attempt = || [Attempt::new(900).with_reservation()];
    let decided = decide(&limit, "a", attempt()).await.unwrap().into_iter().flatten().next().unwrap();
    limit.replace(new);
    assert!(!limit.check("a").await.unwrap().is_allowed());
    decided.decided.into_parts().1.settle(0);
    settle().await;
    assert!(!limit.check("a").await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_charge_whose_state_was_dropped_gives_nothing_back() {
    let server = Staged::new();
    let limit = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(1_000)));
    let (_, reservation) = charge(&limit, None, 900).await;
    // Four other quotas, whose states are kept for longer.
    for most in 10..14 {
        let other = limiter(&swaps(&server), FixedWindow::new(Quota::per_day(most)));
        assert!(!other.check("a").await.unwrap().is_allowed());
    }
    assert_eq!(limit.peek("a").await.unwrap().remaining(), 987, "it is converted from the largest");
    reservation.settle(0);
    settle().await;
    assert_eq!(limit.peek("a").await.unwrap().remaining(), 987);
}

fn tiers() -> (RedisLimiter<Tiered<TokenBucket>>, Staged, [Tiered<TokenBucket>; 2]) {
    let server = Staged::new();
    let tiers = [TokenBucket::new(Quota::per_hour(10)), TokenBucket::new(Quota::per_second(5).burst(20))];
    let tiers = tiers.map(Tiered::new);
    (limiter(&swaps(&server), tiers[0].clone()), server, tiers)
}

#[tokio::test(start_paused = true)]
async fn a_new_key_has_only_the_tier_that_was_chosen() {
    let (limit, server, [_, paid]) = tiers();
    let mut calls = Vec::new();
    for left in (10..20).rev() {
        let (decision, reservation) = charge(&limit, Some(&paid), 1).await;
        assert_eq!((decision.remaining(), decision.reset_after()), (left, 200 * MS * (20 - left as u32)));
        calls.push(reservation);
    }
    assert_eq!(
        server.texts()["throttle:{a}:test:d(t)"].matches("t:").count(),
        2,
        "one in the unit, and one tier"
    );
    for reservation in calls {
        assert!(reservation.settle(0).is_none());
        settle().await;
    }
    // The user pays no longer.
    let (decision, _) = charge(&limit, None, 1).await;
    assert_eq!((decision.is_allowed(), decision.remaining()), (true, 9));
}

#[tokio::test(start_paused = true)]
async fn a_denial_of_a_new_tier_is_kept_and_its_wait_is_true() {
    let (limit, server, [_, paid]) = tiers();
    let free = Tiered::new(TokenBucket::new(Quota::per_hour(5)));
    assert!(charge(&limit, Some(&paid), 20).await.0.is_allowed());
    let (denied, _) = charge(&limit, Some(&free), 1).await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(Duration::from_secs(720))));
    let kept = server.texts();
    server.commands();
    assert!(!charge(&limit, Some(&free), 1).await.0.is_allowed());
    assert_eq!((server.texts(), server.commands().len()), (kept, 1), "only the first denial is written");
    // The other tier is fresh after four seconds.
    advance(Duration::from_secs(720) - MS).await;
    assert!(!charge(&limit, Some(&free), 1).await.0.is_allowed());
    advance(MS).await;
    assert!(charge(&limit, Some(&free), 1).await.0.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_tiers_are_all_fresh_is_a_new_key() {
    /// Returns the units that are left in the first tier, which the key used long ago.
    async fn left<L: LimiterFor<str, Algorithm = Tiered<TokenBucket>>>(
        limiter: L,
        paid: &Tiered<TokenBucket>,
    ) -> u64 {
        assert!(charge(&limiter, None, 1).await.0.is_allowed());
        advance(Duration::from_secs(360)).await;
        assert!(charge(&limiter, Some(paid), 20).await.0.is_allowed());
        advance(Duration::from_secs(4)).await;
        charge(&limiter, None, 1).await.0.remaining()
    }
    let (redis, _, [free, paid]) = tiers();
    assert_eq!(left(redis, &paid).await, 9);
    assert_eq!(left(RateLimiter::new(free), &paid).await, 9);
}

#[tokio::test(start_paused = true)]
async fn algorithms_that_differ_in_their_queues_are_one_tier_also_within_a_trip() {
    let server = Staged::new();
    let window = || FixedWindow::new(Quota::per_hour(10));
    let limit = limiter(&swaps(&server), Tiered::new(window()));
    let queued = Tiered::new(window().max_wait(Duration::ZERO).queue(3));
    // The first call makes a trip, and the other two are decided together in the next.
    let tiers = [None, Some(&queued), None];
    let [first, second, third] = tiers.map(|tier| charge(&limit, tier, 1));
    let (first, second, third) = tokio::join!(first, second, third);
    assert_eq!([first, second, third].map(|(decision, _)| decision.remaining()), [9, 8, 7]);
    assert_eq!(
        server.texts()["throttle:{a}:test:d(f)"].matches("f:10").count(),
        2,
        "one in the unit, and one tier"
    );
}

#[tokio::test(start_paused = true)]
async fn peeks_after_the_clock_was_set_back_tell_a_wait_that_ends() {
    let server = Staged::new();
    let limit = limiter(&swaps(&server), FixedWindow::new(Quota::per_minute(1)));
    assert!(limit.check("a").await.unwrap().is_allowed());
    server.set_ahead(-1_000_000_000);
    assert_eq!(limit.peek("a").await.unwrap().retry_after(), Some(60_000 * MS));
    advance(20_000 * MS).await;
    assert_eq!(limit.peek("a").await.unwrap().retry_after(), Some(40_000 * MS));
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_queue_are_denied_only_if_no_units_are_left() {
    let server = Staged::new();
    let limit = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(2)).queue(0));
    let [first, second, third] = [1; 3].map(|cost| charge(&limit, None, cost));
    let (first, second, third) = tokio::join!(first, second, third);
    assert_eq!([first, second, third].map(|(decision, _)| decision.is_allowed()), [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_behind_the_clock_tells_the_wait_until_it_has_a_place() {
    async fn waits<A: StoredAlgorithm>(algorithm: A) {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), algorithm);
        assert!(charge(&limiter, None, 1).await.0.is_allowed());
        server.set_ahead(-500_000);
        // The key's time stands still for 500 ms, and the next unit takes a second after that.
        let wait = limiter.acquire("a").await.unwrap().retry_after();
        assert_eq!(wait, Some(1_500 * MS), "{:?}", limiter.algorithm());
        advance(1_499 * MS).await;
        assert!(!limiter.acquire("a").await.unwrap().is_allowed());
        advance(MS).await;
        assert!(limiter.acquire("a").await.unwrap().is_allowed());
    }
    waits(LeakyBucket::new(Quota::per_second(1)).queue(0)).await;
    waits(TokenBucket::new(Quota::per_second(1)).queue(0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_behind_the_clock_that_is_too_long_tells_when_it_is_in_time() {
    async fn waits<A: StoredAlgorithm>(algorithm: A) {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), algorithm);
        assert!(limiter.acquire("a").await.unwrap().is_allowed());
        server.set_ahead(-500_000);
        // The next slot is 1500 ms away: the key's time stands still for the first 500 ms of them.
        let in_haste = async || limiter.call("a").max_wait(100 * MS).acquire().await.unwrap();
        assert_eq!(in_haste().await.retry_after(), Some(1_400 * MS), "{:?}", limiter.algorithm());
        advance(1_399 * MS).await;
        assert!(!in_haste().await.is_allowed());
        advance(MS).await;
        assert!(in_haste().await.is_allowed());
    }
    waits(LeakyBucket::new(Quota::per_second(1)).queue(3)).await;
    waits(TokenBucket::new(Quota::per_second(1)).queue(3)).await;
}

/// The state does not show how many calls wait, but for how many units.
#[tokio::test(start_paused = true)]
async fn a_call_finds_a_queue_full_by_the_units_of_the_calls_before_it() {
    /// Makes calls of these costs at once, after one that has used up the bucket. Returns the delays of those that are
    /// admitted, and otherwise the wait until the queue has a place.
    async fn waits(places: u64, first: u64, costs: &[u64]) -> Vec<Result<u64, u64>> {
        let bucket = TokenBucket::new(Quota::per_second(10)).queue(places);
        let limiter = limiter(&swaps(&Staged::new()), bucket);
        assert!(limiter.check_n("a", first).await.unwrap().is_allowed());
        let mut calls = Vec::new();
        for cost in costs {
            calls.push(tokio::spawn(limiter.acquire_n("a", *cost)));
            settle().await;
        }
        let mut waits = Vec::new();
        for call in calls {
            let decision = call.await.unwrap().unwrap();
            assert_eq!(decision.is_allowed(), !decision.is_queue_full());
            let millis = |wait: Duration| wait.as_millis() as u64;
            waits.push(match decision.is_allowed() {
                true => Ok(millis(decision.delay())),
                false => Err(millis(decision.retry_after().unwrap())),
            });
        }
        waits
    }
    assert_eq!(waits(2, 10, &[5]).await, [Ok(500)], "nobody waits before it");
    assert_eq!(waits(1, 10, &[10]).await, [Ok(1_000)]);
    assert_eq!(waits(2, 10, &[1, 5, 1]).await, [Ok(100), Ok(600), Err(500)]);
    assert_eq!(waits(2, 10, &[1, 1, 5]).await, [Ok(100), Ok(200), Err(100)]);
    assert_eq!(waits(2, 7, &[5, 1]).await, [Ok(200), Err(100)], "it waits for two units");
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_for_a_bucket_without_places() {
    let limiter = limiter(&swaps(&Staged::new()), TokenBucket::new(Quota::per_second(10)).queue(0));
    assert!(limiter.check_n("a", 7).await.unwrap().is_allowed());
    let denied = limiter.acquire_n("a", 5).await.unwrap();
    assert_eq!((denied.is_allowed(), denied.is_queue_full()), (false, false));
    assert_eq!(denied.retry_after(), Some(200 * MS));
}
