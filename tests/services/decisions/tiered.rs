//! A tier for each call. Whatever keys move to whatever tiers, used units stay used.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, Tiered,
    TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Extension, Global, from_fn};
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Item, PolledByHand, Random};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

fn tiered<A: Algorithm + PartialEq>(algorithm: A) -> (RateLimiter<Tiered<A>>, ManualClock) {
    let clock = ManualClock::new();
    (limiter(Tiered::new(algorithm), &clock), clock)
}

/// Returns how many calls of cost 1 are admitted at one instant.
fn takes<A: Algorithm + PartialEq>(limiter: &RateLimiter<Tiered<A>>, rule: &A, key: &str) -> u64 {
    (0..).take_while(|_| limiter.tier(rule).check(key).is_allowed()).count() as u64
}

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

#[derive(Clone, Copy, Debug)]
struct User {
    id: u64,
    pays: bool,
}

type Body = Empty<&'static [u8]>;

fn of(user: User) -> Request<Body> {
    let mut request = Request::new(Body::new());
    request.extensions_mut().insert(user);
    request
}

async fn hello(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::new()))
}

/// Returns the status, name, quota, window and remaining units.
async fn reported<S, B>(service: &S, user: User) -> (u16, String, u64, u64, u64)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
{
    let answer = service.clone().oneshot(of(user)).await.unwrap();
    let item = |field: &str| {
        let mut lines = answer.headers().get_all(field).iter();
        let item = Item::read(lines.next().unwrap().to_str().unwrap());
        assert!(lines.next().is_none());
        item
    };
    let (policy, limit) = (item("ratelimit-policy"), item("ratelimit"));
    assert_eq!(policy.name, limit.name);
    (answer.status().as_u16(), limit.name.clone(), policy.get("q"), policy.get("w"), limit.get("r"))
}

#[tokio::test]
async fn a_user_gets_the_tier_of_the_request_and_its_quota_in_the_headers() {
    let (free, paid) = (TokenBucket::new(Quota::per_minute(3)), TokenBucket::new(Quota::per_hour(50)));
    let (limiter, _clock) = tiered(free.clone());
    let by_user = Extension::<User, _>::new(|user: &User| user.id);
    let layer = RateLimitLayer::with_limiter(by_user, limiter.clone()).name("api").tier(
        move |request: &Request<Body>, _: &_| {
            let pays = request.extensions().get::<User>().is_some_and(|user| user.pays);
            if pays { paid.clone() } else { free.clone() }
        },
    );
    let service = layer.layer(service_fn(hello));
    let (ann, bob) = (User { id: 1, pays: false }, User { id: 2, pays: true });
    let api = |status, quota, window, left| (status, "api".to_owned(), quota, window, left);
    assert_eq!(reported(&service, ann).await, api(200, 3, 60, 2));
    assert_eq!(reported(&service, bob).await, api(200, 50, 3_600, 49));
    assert_eq!(reported(&service, ann).await, api(200, 3, 60, 1));
    assert_eq!(reported(&service, ann).await, api(200, 3, 60, 0));
    assert_eq!(reported(&service, ann).await, api(429, 3, 60, 0));
    // Ann has become a paying user. The three units that she has used stay used.
    let ann = User { pays: true, ..ann };
    assert_eq!(reported(&service, ann).await, api(200, 50, 3_600, 46));
    assert_eq!(reported(&service, bob).await, api(200, 50, 3_600, 48));
}

#[tokio::test]
async fn a_tier_is_chosen_by_key_and_cost_alike() {
    let (small, large) = (FixedWindow::new(Quota::per_hour(10)), FixedWindow::new(Quota::per_hour(100)));
    let (limiter, _clock) = tiered(small.clone());
    let by_tenant = from_fn(|line: &String| line.split(' ').next().map(str::to_owned));
    let layer = RateLimitLayer::with_limiter(by_tenant, limiter.clone())
        .cost(|line: &String| line.len() as u64)
        .tier(move |line: &String, tenant: &String| {
            assert!(line.starts_with(tenant.as_str()));
            if tenant == "big" { large.clone() } else { small.clone() }
        })
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(async |_: String| Ok::<_, ()>(())));
    let call = async |line: &str| match service.clone().oneshot(line.to_owned()).await {
        Ok(()) => None,
        Err(Error::Limited(decision)) => Some((decision.limit(), decision.remaining())),
        Err(other) => panic!("{other:?}"),
    };
    assert_eq!(call("big and a line of 21").await, None);
    assert_eq!(call("ann and a line of 21").await, Some((10, 10)));
    assert_eq!(call("ann and").await, None);
    assert_eq!(call("ann and").await, Some((10, 3)));
    assert_eq!(limiter.check("ann").remaining(), 2);
}

fn moves<A: Algorithm + PartialEq>(rule: impl Fn(Quota) -> A) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (from, to) = (1 + random.below(60), 1 + random.below(60));
        let (old, new) = (rule(Quota::per_hour(from)), rule(Quota::per_hour(to)));
        let (limiter, _clock) = tiered(old.clone());
        let used = random.below(from + 1);
        assert!(limiter.tier(&old).check_n("key", used).is_allowed());
        let left = to - used.min(to);
        let case = format!("seed {seed}: {used} of {from}, then {to}: {new:?}");
        assert_eq!(limiter.tier(&new).peek("key").remaining(), left, "{case}");
        // A peek does not move the key to another tier.
        assert_eq!(limiter.tier(&old).peek("key").remaining(), from - used, "{case}");
        // The key is neither reset nor locked out.
        assert_eq!(takes(&limiter, &new, "key"), left, "{case}");
        let wait = limiter.tier(&new).peek("key").retry_after().unwrap();
        assert!(wait <= 3_600 * 2 * SECOND, "{case}: {wait:?}");
        assert_eq!(limiter.tier(&new).peek("other").remaining(), to, "{case}");
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
            let looked = limiter.tier(tier).peek("key");
            let again = limiter.tier(tier).peek("key");
            let called = limiter.tier(tier).check("key");
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
                assert!(!limiter.tier(tier).peek("key").is_allowed(), "{case}");
                clock.advance(Duration::from_nanos(1));
                assert!(limiter.tier(tier).peek("key").is_allowed(), "{case}");
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
    assert!(limiter.tier(&large).check_n("key", 4).is_allowed());
    for _ in 0..1_000 {
        assert_eq!(limiter.tier(&small).check_n("key", 0).remaining(), 6);
        assert_eq!(limiter.tier(&large).check_n("key", 0).remaining(), 996);
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
            let _ = limiter.tier(&rule(Quota::per_hour(limit))).check("key");
        }
    }
    assert!(admitted <= 1_000, "{admitted} by {large:?}");
}

#[test]
fn a_key_with_twenty_tiers_gets_no_more_than_the_largest_allows() {
    with_each_kind!(many_tiers);
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
    assert!(limiter.tier(&large).check_n("key", 900).is_allowed());
    assert!(!limiter.tier(&small).check("key").is_allowed());
    assert_eq!(limiter.tier(&large).peek("key").remaining(), 100, "by a denial, of {large:?}");
    assert!(limiter.tier(&small).check_n("key", 0).is_allowed());
    assert_eq!(limiter.tier(&large).peek("key").remaining(), 100, "by a call of cost 0, of {large:?}");
}

#[test]
fn a_denial_by_a_smaller_tier_gives_nothing_back_to_the_larger() {
    with_each_kind!(denied_by_another);
}

/// A key moves between tiers at any time. Over any span, no more is admitted than the larger burst and what the faster
/// rate brings.
#[test]
fn moves_over_time_bring_no_more_than_the_faster_tier_would() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let burst = 30;
        let slow = TokenBucket::new(Quota::per(7, SECOND).unwrap().burst(burst));
        let fast = TokenBucket::new(Quota::per(1_013, 11 * SECOND).unwrap().burst(burst));
        let (limiter, clock) = tiered(slow.clone());
        let (mut nanos, mut admitted) = (0_u64, 0_u64);
        for _ in 0..2_000 {
            let step = random.below(3_000_000);
            clock.advance(Duration::from_nanos(step));
            nanos += step;
            let rule = if random.one_in(2) { &slow } else { &fast };
            let cost = random.below(4);
            if limiter.tier(rule).check_n("key", cost).is_allowed() {
                admitted += cost;
            }
            let due = burst + (u128::from(nanos) * 1_013 / 11_000_000_000) as u64;
            assert!(admitted <= due, "seed {seed}: {admitted} by {nanos} ns, {due} due");
        }
    }
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
    assert!(limiter.tier(&large).check_n("key", 50).is_allowed());
    limiter.refund("key", 20);
    assert_eq!(limiter.tier(&large).peek("key").remaining(), 70);
    limiter.refund("key", 1_000);
    assert_eq!(limiter.tier(&large).peek("key").remaining(), 100);
    assert!(limiter.tier(&large).check_n("key", 50).is_allowed());
    limiter.reset("key");
    assert_eq!((limiter.peek("key").remaining(), limiter.tier(&large).peek("key").remaining()), (10, 100));
    assert!(limiter.is_empty());
}

/// Two layers have one limiter and one key, but different tiers. Both tiers must allow a call.
#[tokio::test]
async fn two_tiers_on_one_key_must_both_allow() {
    let (small, large) = (FixedWindow::new(Quota::per_minute(4)), FixedWindow::new(Quota::per_minute(1_000)));
    for small_first in [true, false] {
        let (limiter, _clock) = tiered(small.clone());
        let by = |rule: &FixedWindow| {
            let rule = rule.clone();
            RateLimitLayer::with_limiter(Global, limiter.clone()).tier(move |(): &(), (): &()| rule.clone())
        };
        let service = match small_first {
            true => by(&small).and(by(&large)),
            false => by(&large).and(by(&small)),
        };
        let service = service.responder(ErrorResponder).layer(service_fn(async |()| Ok::<_, ()>(())));
        let mut admitted = 0;
        for _ in 0..100 {
            admitted += u64::from(service.clone().oneshot(()).await.is_ok());
        }
        assert!(admitted <= 4, "{admitted} admitted, where one of the rules allows 4");
    }
}

#[tokio::test]
async fn a_chosen_tier_joins_other_layers() {
    let (free, paid) = (TokenBucket::new(Quota::per_minute(2)), TokenBucket::new(Quota::per_minute(5)));
    let (limiter, clock) = tiered(free.clone());
    let all = RateLimiter::builder(SlidingLog::new(Quota::per_minute(6))).clock(clock.clone()).build();
    let layer = RateLimitLayer::with_limiter(Extension::<User, _>::new(|user: &User| user.id), limiter)
        .tier(move |request: &Request<Body>, _: &_| {
            let pays = request.extensions().get::<User>().is_some_and(|user| user.pays);
            if pays { paid.clone() } else { free.clone() }
        })
        .and(RateLimitLayer::with_limiter(Global, all.clone()).name("all"));
    let service = layer.layer(service_fn(hello));
    let fields = async |user: User| {
        let answer = service.clone().oneshot(of(user)).await.unwrap();
        let lines = answer.headers().get_all("ratelimit-policy").iter();
        let quotas: Vec<_> = lines.map(|line| Item::read(line.to_str().unwrap()).get("q")).collect();
        (answer.status().as_u16(), quotas)
    };
    let (ann, bob) = (User { id: 1, pays: false }, User { id: 2, pays: true });
    assert_eq!(fields(ann).await, (200, vec![2, 6]));
    assert_eq!(fields(ann).await, (200, vec![2, 6]));
    assert_eq!(fields(ann).await, (429, vec![2, 6]));
    assert_eq!(all.peek(&()).remaining(), 4);
    for _ in 0..4 {
        assert_eq!(fields(bob).await, (200, vec![5, 6]));
    }
    assert_eq!(fields(bob).await, (429, vec![5, 6]));
    // All other units are used, and Bob's last unit is still there.
    clock.advance(Duration::from_secs(60));
    assert_eq!(fields(bob).await, (200, vec![5, 6]));
}

/// Polls the future, and fails if the future is polled again and again. With paused time, no other task would then run.
async fn patient<F: Future>(future: F) -> F::Output {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1_000, "it spins");
        future.as_mut().poll(cx)
    })
    .await
}

fn slow() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(2)).queue(3)
}

fn fast() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(20)).queue(50)
}

fn waits<A: Algorithm>(call: Acquire<A>) -> PolledByHand<Acquire<A>> {
    let mut call = PolledByHand::new(call);
    assert!(!call.poll(), "it waits");
    call
}

#[tokio::test(start_paused = true)]
async fn calls_of_two_tiers_wait_in_one_queue_in_order() {
    let limiter = RateLimiter::new(Tiered::new(slow()));
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..30_u32 {
        let call = limiter.tier(&fast()).acquire("key");
        calls.spawn(async move { (n, patient(call).await.is_allowed(), start.elapsed()) });
        tokio::task::yield_now().await;
    }
    // The queue of the slower tier has three places, and all of them are taken.
    assert!(!limiter.tier(&slow()).acquire("key").await.is_allowed());
    let mut left = calls.join_all().await;
    left.sort_unstable();
    assert!(left.iter().all(|(_, passed, _)| *passed));
    assert!(left.is_sorted_by_key(|(.., at)| *at), "{left:?}");
    assert!(limiter.tier(&fast()).peek("key").retry_after().is_some_and(|wait| wait <= 500 * MS));
}

/// A queued call and a call that is admitted at once both report the limit of their own tier.
#[tokio::test(start_paused = true)]
async fn a_queued_call_reports_the_limit_of_its_tier() {
    let limiter = RateLimiter::new(Tiered::new(slow()));
    let first = limiter.tier(&fast()).acquire("key").await;
    let second = limiter.tier(&fast()).acquire("key").await;
    assert_eq!((first.limit(), first.remaining(), first.delay()), (51, 50, Duration::ZERO));
    assert_eq!((second.limit(), second.remaining(), second.delay()), (51, 50, MS * 50));
}

#[test]
fn a_peek_with_a_tier_is_true_while_others_wait() {
    let reported = |decision: Decision| (decision.is_allowed(), decision.retry_after());
    for (mine, other) in [(slow(), fast()), (fast(), slow())] {
        let (limiter, clock) = tiered(slow());
        assert!(limiter.tier(&mine).check("key").is_allowed());
        let _waits = waits(limiter.tier(&mine).acquire("key"));
        clock.advance(MS * 7);
        let looked = reported(limiter.tier(&other).peek("key"));
        assert_eq!(looked, reported(limiter.tier(&other).check("key")), "{other:?} after {mine:?}");
    }
}

/// If a slower tier is called while calls are queued, these calls are released later, and are not polled again and
/// again until then.
#[test]
fn waiters_sleep_on_when_a_slower_tier_is_called() {
    let (limiter, clock) = tiered(fast());
    assert!(limiter.tier(&fast()).check("key").is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.tier(&fast()).acquire("key"))).collect();
    assert!(!limiter.tier(&slow()).check("key").is_allowed());
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
        let decision = limiter.tier(rule).check("key");
        let wait = decision.retry_after().unwrap_or_default();
        assert!(wait <= SECOND, "{decision:?}");
        clock.advance(wait);
        assert!(decision.is_allowed() || limiter.tier(rule).check("key").is_allowed());
    }
}

#[test]
fn a_call_of_cost_0_leaves_the_stored_permits_of_other_tiers() {
    let (stored, other) = (Smooth::bursty(Quota::per_second(8)), Smooth::bursty(Quota::per_second(2)));
    let (limiter, clock) = tiered(other.clone());
    assert!(limiter.tier(&stored).check("key").is_allowed());
    clock.advance(10 * SECOND);
    assert!(limiter.tier(&other).check_n("key", 0).is_allowed());
    clock.advance(MS);
    assert_eq!(takes(&limiter, &stored, "key"), 9);
}

/// Waiters whose time has come are released only once, in the projection as in the queue.
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
        // Some waiters might have been released, but not polled since.
        clock.advance(Duration::from_nanos(random.below(30)));
        let seen = limiter.tier(&other).peek("key");
        let reported = limiter.tier(&other).check("key");
        beside_a_line += u64::from(limiter.queued() > 0);
        let of = |decision: Decision| (decision.is_allowed(), decision.retry_after());
        assert_eq!(of(seen), of(reported), "seed {seed}");
        line.iter_mut().for_each(|call| _ = call.poll());
    }
    assert!(beside_a_line > 1_000, "{beside_a_line}");
}
