//! Decisions and header fields after a replacement are those of the new algorithm, for used keys and for fresh keys.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::{Global, from_fn};
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{MS, SECOND, limiter, with_each_kind};
use crate::support::{Item, Random, scaled};

/// The table has no place for other keys.
#[test]
fn a_full_table_is_replaced_as_a_whole() {
    let clock = ManualClock::new();
    for kept in [1_usize, 5, 70] {
        let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_hour(100)))
            .clock(clock.clone())
            .max_keys(kept)
            .on_full(OnFull::Reject)
            .build();
        for key in 0..kept {
            assert!(limiter.check_n(&key, 40).is_allowed());
        }
        let left = |key: &usize| limiter.peek(key).remaining();
        limiter.replace(TokenBucket::new(Quota::per_hour(150)));
        assert_eq!(limiter.len(), kept);
        assert!((0..kept).all(|key| left(&key) == 110));
        let denial = limiter.check(&1_000_usize);
        assert_eq!((denial.is_table_full(), denial.limit()), (true, 150));
        limiter.replace(TokenBucket::new(Quota::per_hour(50)));
        assert!((0..kept).all(|key| left(&key) == 10));
    }
}

/// Returns the decisions of peeks with several costs.
fn looks<A: Algorithm>(limiter: &RateLimiter<A>) -> Vec<tower_throttle::Decision> {
    [0, 1, 2, 5, 9].map(|cost| limiter.peek_n("key", cost)).into()
}

fn unchanged<A: Algorithm>(rule: impl Fn(Quota) -> A) {
    for seed in 0..scaled(300) {
        let mut random = Random::new(seed);
        let period = Duration::from_nanos(1 + random.below(3_000_000_000));
        let quota = Quota::per(1 + random.below(20), period).unwrap().burst(1 + random.below(20));
        let clock = ManualClock::new();
        let (replaced, alone) = (limiter(rule(quota), &clock), limiter(rule(quota), &clock));
        for _ in 0..40 {
            clock.advance(Duration::from_nanos(random.below(400_000_000)));
            let cost = random.below(4);
            if random.one_in(3) {
                replaced.replace(rule(quota));
            }
            assert_eq!(replaced.check_n("key", cost), alone.check_n("key", cost), "seed {seed}: {alone:?}");
            if random.one_in(3) {
                replaced.replace(rule(quota));
            }
            assert_eq!(looks(&replaced), looks(&alone), "seed {seed}: {alone:?}");
            assert_eq!(replaced.len(), alone.len());
        }
    }
}

#[test]
fn an_equal_algorithm_changes_nothing() {
    with_each_kind!(unchanged);
    unchanged(|quota| TokenBucket::new(quota).start_empty());
    unchanged(LeakyBucket::new);
    unchanged(Smooth::bursty);
    unchanged(|quota| Smooth::warming_up(quota, SECOND));
}

fn never_seen<A: Algorithm>(rule: impl Fn(Quota) -> A) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut any = || {
            let period = MS * (1 + random.below(3_000) as u32);
            rule(Quota::per(1 + random.below(20), period).unwrap().burst(1 + random.below(20)))
        };
        let (old, new) = (any(), any());
        let clock = ManualClock::new();
        let created_at = random.below(5_000);
        clock.set(MS * created_at as u32);
        let limiter = limiter(old.clone(), &clock);
        let (then, later) = (created_at + random.below(3_000), random.below(3_000));
        clock.set(MS * then as u32);
        limiter.replace(new.clone());
        clock.advance(MS * later as u32);
        // The key decides like a key that was there all the time, and has used nothing.
        let nanos = |ms: u64| Nanos(ms * 1_000_000);
        let mut state = old.new_state(nanos(created_at), nanos(then));
        new.migrate(&mut state, &old, nanos(then));
        for cost in [0, 1, 7, 0] {
            let expected = new.check(&mut state, nanos(then + later), cost);
            assert_eq!(limiter.check_n("key", cost), expected, "seed {seed}: {old:?}, {new:?}");
        }
    }
}

#[test]
fn a_fresh_key_is_like_one_that_was_idle_all_the_time() {
    with_each_kind!(never_seen);
    never_seen(|quota| TokenBucket::new(quota).start_empty());
    never_seen(LeakyBucket::new);
    never_seen(Smooth::bursty);
    never_seen(|quota| Smooth::warming_up(quota, SECOND));
}

type Body = Empty<&'static [u8]>;

#[tokio::test]
async fn headers_report_the_new_quota_once_it_is_in_effect() {
    let (clock, pair) = (ManualClock::new(), |limit| {
        (TokenBucket::new(Quota::per_minute(limit)), FixedWindow::new(Quota::per_hour(limit * 5)))
    });
    let (one, two) = (limiter(FixedWindow::new(Quota::per_minute(3)), &clock), limiter(pair(4), &clock));
    let layer = RateLimitLayer::with_limiter(Global, one.clone())
        .name("one")
        .and(RateLimitLayer::with_limiter(from_fn(|_: &Request<Body>| Some("key")), two.clone()).name("two"));
    let service = layer.layer(service_fn(async |_: Request<Body>| Ok::<_, ()>(Response::new(Body::new()))));
    let reported = async || {
        let answer = service.clone().oneshot(Request::new(Body::new())).await.unwrap();
        let items = |field: &str| -> Vec<Item> {
            answer.headers().get_all(field).iter().map(|line| Item::read(line.to_str().unwrap())).collect()
        };
        let policies: Vec<_> = items("ratelimit-policy")
            .into_iter()
            .map(|item| (item.get("q"), item.get("w"), item.name))
            .collect();
        let left: Vec<_> = items("ratelimit").into_iter().map(|item| (item.get("r"), item.name)).collect();
        (answer.status().as_u16(), policies, left)
    };
    let name = str::to_owned;
    let policies = |one: u64, two: u64| {
        vec![(one, 60, name("one")), (two, 60, name("two")), (two * 5, 3_600, name("two-2"))]
    };
    assert_eq!(reported().await, (200, policies(3, 4), vec![(2, name("one")), (3, name("two"))]));
    one.replace(FixedWindow::new(Quota::per_minute(2)));
    assert_eq!(reported().await, (200, policies(2, 4), vec![(0, name("one")), (2, name("two"))]));
    assert_eq!(reported().await, (429, policies(2, 4), vec![(0, name("one")), (2, name("two"))]));
    two.replace(pair(1));
    one.replace(FixedWindow::new(Quota::per_minute(9)));
    assert_eq!(reported().await, (429, policies(9, 1), vec![(7, name("one")), (0, name("two"))]));
    two.replace(pair(10));
    assert_eq!(reported().await, (200, policies(9, 10), vec![(6, name("one")), (8, name("two"))]));
}
