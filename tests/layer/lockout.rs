//! Lockouts after too many denials, where calls are queued, in tuples, and over HTTP.

use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, PolledByHand, effective_window, limiter, waits};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn reset_lifts_a_lockout_and_a_refund_does_not() {
    let clock = ManualClock::new();
    let rule = TokenBucket::new(Quota::per_second(1)).block_for(SECOND * 60).after(2);
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
    for _ in 0..3 {
        let _ = limiter.check("key");
    }
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND * 60));
    limiter.refund("key", 1);
    assert_eq!(limiter.peek("key").retry_after(), Some(SECOND * 60));
    assert!(limiter.check("other").is_allowed());
    limiter.reset("key");
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn a_locked_out_key_is_kept_until_the_lockout_is_over() {
    let clock = ManualClock::new();
    let rule = TokenBucket::new(Quota::per_second(1)).block_for(SECOND * 60).after(1);
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).max_keys(10).build();
    let _ = (limiter.check("key"), limiter.check("key"));
    for n in 0..1_000 {
        clock.advance(SECOND / 20);
        let _ = limiter.check(&n);
    }
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND * 10));
}

#[tokio::test(start_paused = true)]
async fn a_queued_call_keeps_its_slot_and_a_new_call_is_denied() {
    let rule = LeakyBucket::new(Quota::per_second(1)).queue(2).block_for(SECOND * 10).after(2);
    let limiter = RateLimiter::new(rule);
    assert!(limiter.acquire("key").await.is_allowed());
    let mut waiting = [(); 2].map(|()| PolledByHand::new(limiter.acquire("key")));
    waiting.iter_mut().for_each(|call| assert!(!call.run()));
    assert_eq!(limiter.acquire("key").await.retry_after(), Some(SECOND), "the first denial");
    assert_eq!(
        limiter.acquire("key").await.retry_after(),
        Some(SECOND * 10),
        "the second begins the lockout"
    );
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND * 10));
    for call in &mut waiting {
        tokio::time::sleep(SECOND).await;
        assert!(call.run() && call.output.unwrap().is_allowed());
    }
    assert_eq!(limiter.acquire("key").await.retry_after(), Some(SECOND * 8));
    tokio::time::sleep(SECOND * 8).await;
    assert!(limiter.acquire("key").await.is_allowed());
}

#[test]
fn a_cancelled_call_does_not_end_a_lockout() {
    let clock = ManualClock::new();
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(1).block_for(SECOND * 5).after(1);
    let limiter = limiter(rule, &clock);
    assert!(limiter.acquire("key").now().is_allowed());
    let held = waits(limiter.acquire("key"));
    clock.advance(SECOND / 10);
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND * 5));
    drop(held);
    assert_eq!(limiter.peek("key").retry_after(), Some(SECOND * 5));
}

#[test]
fn a_call_admitted_during_a_lockout_reports_no_remaining_units() {
    let clock = ManualClock::new();
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(3).block_for(SECOND * 5).after(1);
    let limiter = limiter(rule, &clock);
    assert!(limiter.acquire("key").now().is_allowed());
    let mut line = [(); 3].map(|()| waits(limiter.acquire("key")));
    assert_eq!(limiter.acquire("key").now().retry_after(), Some(SECOND * 5));
    clock.advance(SECOND / 10);
    assert!(line[0].poll());
    let first = line[0].output.unwrap();
    assert!(!limiter.acquire("key").now().is_allowed());
    assert_eq!((first.remaining(), first.reset_after()), (0, Duration::from_millis(4_900)));
}

#[test]
fn a_peek_that_would_begin_a_lockout_reports_the_present_state() {
    let rule = FixedWindow::new(Quota::per_second(5)).block_for(SECOND * 5).after(1);
    let limiter = limiter(rule, &ManualClock::new());
    assert_eq!(limiter.check_n("key", 2).remaining(), 3);
    let peek = limiter.peek_n("key", 4);
    assert_eq!(peek.retry_after(), Some(SECOND * 5));
    assert_eq!((peek.remaining(), peek.reset_after()), (3, SECOND));
}

#[test]
fn a_call_of_cost_0_in_a_lockout_reports_the_nearest_limit_and_the_rest_of_the_lockout() {
    let rule = (TokenBucket::new(Quota::per_second(9)), FixedWindow::new(Quota::per_hour(2)));
    let rule = rule.block_for(SECOND * 5).after(1);
    let mut state = rule.new_state(Nanos(0), Nanos(0));
    assert!(rule.check(&mut state, Nanos(0), 2).is_allowed());
    assert!(!rule.check(&mut state, Nanos(0), 1).is_allowed());
    let free = rule.check(&mut state, Nanos(0), 0);
    assert_eq!((free.limit_index(), free.limit()), (1, 2));
    let rule = TokenBucket::new(Quota::per_second(9)).block_for(SECOND * 5).after(1);
    let mut state = rule.new_state(Nanos(0), Nanos(0));
    assert!(!rule.check(&mut state, Nanos(0), 10).is_allowed());
    let free = rule.check(&mut state, Nanos(0), 0);
    assert_eq!(effective_window(&rule, &free), Some(SECOND * 5), "{free:?}");
}

#[test]
fn a_joint_call_on_one_lockout_twice_counts_as_one_denial() {
    let rule = FixedWindow::new(Quota::per_second(1)).block_for(SECOND * 9).after(2);
    let limiter = limiter(rule, &ManualClock::new());
    assert!(limiter.check(&()).is_allowed());
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
    let twice = layer.clone().and(layer).responder(ErrorResponder);
    assert!(twice.layer(service_fn(async |()| Ok::<_, ()>(()))).call(()).now().is_err());
    assert_eq!(limiter.peek(&()).retry_after(), Some(SECOND * 9), "the second denial would begin it");
    let free = limiter.peek_n(&(), 0);
    assert!(free.remaining() == 0 && free.reset_after() <= SECOND, "one denial is no lockout: {free:?}");
}

#[test]
fn in_a_tuple_only_the_limit_that_denies_counts() {
    let clock = ManualClock::new();
    let minute = FixedWindow::new(Quota::per_minute(3)).block_for(SECOND * 600).after(2);
    let limiter =
        RateLimiter::builder((TokenBucket::new(Quota::per_second(1)), minute)).clock(clock.clone()).build();
    for _ in 0..50 {
        let _ = limiter.check("key");
    }
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND), "the bucket denied, and locks no key");
    for _ in 0..2 {
        clock.advance(SECOND);
        assert!(limiter.check("key").is_allowed());
    }
    clock.advance(SECOND);
    let _ = limiter.check("key");
    let denied = limiter.check("key");
    assert_eq!((denied.limit_index(), denied.retry_after()), (1, Some(SECOND * 600)));
}

#[test]
fn a_tuple_can_be_locked_out_as_a_whole() {
    let clock = ManualClock::new();
    let both = (TokenBucket::new(Quota::per_second(1)), FixedWindow::new(Quota::per_minute(3)));
    let limiter = RateLimiter::builder(both.block_for(SECOND * 600).after(1)).clock(clock.clone()).build();
    assert!(limiter.check("key").is_allowed());
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND * 600));
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn over_http_the_response_reports_the_rest_of_the_lockout() {
    use crate::support::{Client1, Server, request};
    use axum::Router;
    use axum::routing::get;
    use http::{Method, StatusCode};
    use tower_throttle::key::PeerIp;

    let rule = TokenBucket::new(Quota::per_minute(2)).block_for(SECOND * 900).after(2);
    let layer = RateLimitLayer::new(PeerIp::new(), rule);
    let server = Server::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;
    let mut client = Client1::http1(server.address).await;
    let mut seen = Vec::new();
    for _ in 0..5 {
        let got = client.send(request(Method::GET, "/")).await;
        let retry = if got.status == StatusCode::TOO_MANY_REQUESTS { got.retry_after() } else { 0 };
        seen.push((got.status.as_u16(), retry));
    }
    assert_eq!(seen[..3], [(200, 0), (200, 0), (429, 30)]);
    assert!(
        seen[3..].iter().all(|(status, retry)| *status == 429 && (890..=900).contains(retry)),
        "{seen:?}"
    );
}

#[test]
fn concurrency_beside_a_rate_leaves_the_window_of_the_rate() {
    let rate = FixedWindow::new(Quota::per_second(1));
    let rule = (rate, Concurrency::per_key(100)).block_for(SECOND * 60).after(2);
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
    for _ in 0..3 {
        // There is one denial in each second, so no window of a second has two denials.
        assert!(limiter.try_acquire_permit("a").is_ok());
        assert!(limiter.try_acquire_permit("a").is_err());
        clock.advance(SECOND);
    }
}

#[test]
fn concurrency_alone_counts_denials_for_as_long_as_it_locks_out() {
    let clock = ManualClock::new();
    let rule = Concurrency::per_key(1).block_for(SECOND * 60).after(2);
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
    let permit = limiter.try_acquire_permit("a").unwrap();
    assert!(limiter.try_acquire_permit("a").is_err());
    clock.advance(SECOND * 59);
    assert!(limiter.try_acquire_permit("a").is_err());
    drop(permit);
    assert_eq!(limiter.peek("a").retry_after(), Some(SECOND * 60));
}
