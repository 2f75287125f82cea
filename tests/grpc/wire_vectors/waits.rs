//! A rejection reports the wait of its decision, with every algorithm and with jitter.

use std::fmt::Debug;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body::Body;
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::middleware::HttpResponder;

use super::{per, rejection, second, through};
use crate::details::{Details, reported};
use crate::frames::one;
use crate::protobuf::denied;
use crate::service::limit;
use crate::support::Random;

#[tokio::test]
async fn a_wait_is_reported_to_the_nanosecond() {
    let nano = Duration::from_nanos(1);
    let minute = Duration::from_secs(60);
    for (wait, retry_after, pushback) in [
        (nano, "1", Some(1)),
        (Duration::new(0, 999_999), "1", Some(1)),
        (Duration::new(0, 1_000_000), "1", Some(1)),
        (Duration::new(0, 1_000_001), "1", Some(2)),
        (Duration::new(0, 999_999_999), "1", Some(1_000)),
        (Duration::new(1, 1), "2", Some(1_001)),
        (Duration::new(3, 0), "3", Some(3_000)),
        (minute - nano, "60", Some(60_000)),
        (minute, "60", Some(60_000)),
        (minute + nano, "61", Some(-1)),
        (Duration::from_secs(3_600), "3600", Some(-1)),
        (Duration::new(100 * 365 * 86_400, 7), "2147483647", Some(-1)),
    ] {
        let headers = second!(limit(per(1, wait), &ManualClock::new()));
        assert_eq!(reported(&headers), Details::new(Some(wait), &["default"], pushback));
        assert_eq!(one(&headers, "retry-after"), Some(retry_after), "{wait:?}");
    }
}

/// Makes calls at random times. Each rejection must report the decision of the limiter. Returns the number of
/// rejections.
async fn walk<A>(rule: A, random: &mut Random) -> usize
where
    A: Algorithm + Debug + Send + Sync + 'static,
    A::State: Send + 'static,
{
    let clock = ManualClock::new();
    let layer = limit(rule, &clock);
    let mut rejected = 0;
    for _ in 0..100 {
        clock.advance(Duration::from_nanos(random.below(500_000_000)));
        let decision = layer.limiter().peek(&());
        if decision.is_allowed() {
            assert!(!through(&layer).await.headers().contains_key("grpc-status"));
            continue;
        }
        let headers = rejection!(layer);
        let reported = reported(&headers);
        assert_eq!((reported.wait, reported.names), (decision.retry_after(), vec!["default".to_owned()]));
        rejected += 1;
    }
    rejected
}

#[tokio::test]
async fn with_every_algorithm_it_is_the_wait_of_the_decision() {
    let mut random = Random::new(6);
    for round in 0..10 {
        let period = Duration::from_nanos(random.within(1_000_000_000..=90_000_000_000));
        let quota = Quota::per(random.within(1..=5), period).unwrap();
        for rejected in [
            walk(TokenBucket::new(quota), &mut random).await,
            walk(LeakyBucket::new(quota).queue(0), &mut random).await,
            walk(FixedWindow::new(quota), &mut random).await,
            walk(SlidingWindow::new(quota), &mut random).await,
            walk(SlidingCounter::new(quota), &mut random).await,
            walk(SlidingLog::new(quota), &mut random).await,
            walk(Smooth::bursty(quota).queue(0), &mut random).await,
            walk(Smooth::warming_up(quota, period / 2).queue(0), &mut random).await,
            walk(TokenBucket::new(quota).block_for(period).after(3), &mut random).await,
        ] {
            assert!(rejected > 0, "round {round}: {quota:?} rejected no call");
        }
    }
}

#[tokio::test]
async fn a_cost_that_can_never_fit_is_not_to_be_retried() {
    let dear = |_: &Request<_>| 2;
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let never = limit(per(1, second), &clock).cost(dear);
    let headers = rejection!(never);
    assert_eq!(reported(&headers), Details::new(None, &["default"], Some(-1)));
    assert_eq!(one(&headers, "grpc-status-details-bin"), Some(denied(None, &["default"]).as_str()));

    let headers = rejection!(never.hidden());
    assert_eq!(reported(&headers), Details::new(None, &[], Some(-1)));
    assert_eq!(one(&headers, "grpc-status-details-bin"), Some("CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQ"));

    // Waiting does not help, even if another policy would allow the call later.
    let used = limit(per(1, second), &clock).name("later");
    assert!(used.limiter().check(&()).is_allowed());
    let never = limit(per(1, second), &clock).cost(dear).name("never");
    let headers = rejection!(used.and(never));
    assert_eq!(reported(&headers), Details::new(None, &["later", "never"], Some(-1)));
}

#[tokio::test]
async fn the_end_of_a_call_in_progress_is_not_known() {
    let layer = limit(Concurrency::per_key(1), &ManualClock::new());
    let _in_progress = layer.limiter().try_acquire_permit(&()).unwrap();
    let headers = rejection!(layer);
    assert_eq!(reported(&headers), Details::new(None, &["default"], None));
}

#[tokio::test]
async fn jitter_is_the_same_in_all_parts_that_report_a_wait() {
    let (wait, most) = (Duration::from_millis(59_000), Duration::from_secs(2));
    let layer = limit(per(1, wait), &ManualClock::new()).responder(HttpResponder::new().jitter(most));
    through(&layer).await;
    let mut waits = Vec::new();
    for _ in 0..500 {
        let headers = rejection!(layer);
        // `reported` compares the delay, the pushback, and `Retry-After`.
        let reported = reported(&headers).wait.unwrap();
        assert!((wait..=wait + most).contains(&reported), "{reported:?}");
        let field = one(&headers, "ratelimit").unwrap();
        assert_eq!(field, format!("\"default\";r=0;t={}", one(&headers, "retry-after").unwrap()));
        waits.push(reported);
    }
    waits.sort();
    // Each rejection draws one random time from the whole range. It is practically impossible that a quarter of the
    // range has none.
    let quarter = |at: u32| (wait + most * at / 4)..=(wait + most * (at + 1) / 4);
    assert!((0..4).all(|at| waits.iter().any(|wait| quarter(at).contains(wait))), "{waits:?}");
    assert!(waits.iter().any(|wait| wait.subsec_nanos() % 1_000_000 != 0), "{waits:?}");
}

#[tokio::test]
async fn jitter_adds_no_wait_where_no_wait_helps() {
    let jitter = HttpResponder::new().jitter(Duration::from_secs(5));
    let layer = limit(per(1, Duration::from_secs(1)), &ManualClock::new()).cost(|_: &Request<_>| 2);
    let headers = rejection!(layer.responder(jitter));
    assert_eq!(reported(&headers), Details::new(None, &["default"], Some(-1)));
}

#[tokio::test]
async fn jitter_may_exceed_any_timeout() {
    let second = Duration::from_secs(1);
    for most in [60 * second, u32::MAX * second, Duration::MAX] {
        let layer = limit(per(1, second), &ManualClock::new()).responder(HttpResponder::new().jitter(most));
        through(&layer).await;
        for _ in 0..100 {
            let wait = reported(&rejection!(layer)).wait.unwrap();
            assert!(wait >= second && wait <= most.saturating_add(second), "{wait:?}");
        }
    }
}
