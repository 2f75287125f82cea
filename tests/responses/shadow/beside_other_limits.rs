//! A limit in shadow mode neither denies nor queues requests that other limits admit.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tower::Service as _;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::Shadow;
use tower_throttle::{Decision, Quota, RateLimitLayer};

use super::{ask, hourly, limiter, mark, marked};
use crate::generators::{KINDS, Rule, made};
use crate::header_parser::ParsedFields;
use crate::reference_service::limited;
use crate::support::{PolledByHand, Random};

#[test]
fn beside_a_limit_it_neither_denies_nor_delays() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let (real, watched) = (1 + random.below(9), 1 + random.below(9));
        let (clock, shadow) = (ManualClock::new(), Shadow::on());
        let [of_real, of_watched] = [real, watched].map(|limit| limiter(hourly(limit), &clock));
        let layer = || RateLimitLayer::with_limiter(Global, of_real.clone()).name("real");
        let in_shadow =
            RateLimitLayer::with_limiter(Global, of_watched.clone()).name("watched").shadow(&shadow);
        let service = match random.one_in(2) {
            true => limited(layer().and(in_shadow), marked()),
            false => limited(in_shadow.and(layer()), marked()),
        };
        let (mut left, mut left_of_watched, mut denied) = (real, watched, 0);
        for _ in 0..30 {
            if random.one_in(8) {
                clock.advance(Duration::from_secs(3_600));
                (left, left_of_watched) = (real, watched);
            }
            if random.one_in(8) {
                shadow.set(!shadow.is_on());
            }
            let response = ask(&service);
            let on = shadow.is_on();
            let passes = left > 0 && (on || left_of_watched > 0);
            let would_be_denied = passes && left_of_watched == 0;
            if passes {
                // A call that the limit would deny is not charged.
                left -= 1;
                left_of_watched = left_of_watched.saturating_sub(1);
            }
            denied += u64::from(would_be_denied);
            assert_eq!(response.status() == 200, passes, "seed {seed}");
            assert_eq!(mark(&response).is_some(), would_be_denied, "seed {seed}");
            assert_eq!(shadow.denied(), denied, "seed {seed}");
            assert_eq!(of_real.peek(&()).remaining(), left, "seed {seed}");
            assert_eq!(of_watched.peek(&()).remaining(), left_of_watched, "seed {seed}");
            let reported = ParsedFields::read(response.headers());
            let names: Vec<_> = reported.policies.iter().map(|policy| policy.name.as_str()).collect();
            assert_eq!(names.contains(&"watched"), !on, "seed {seed}");
            assert!(names.contains(&"real"), "seed {seed}");
        }
    }
}

#[test]
fn no_request_is_queued() {
    for kind in KINDS {
        let rule = Rule { places: 3, ..Rule::of(kind, Quota::per_hour(2)) };
        made!(rule, |rule| {
            let (clock, shadow) = (ManualClock::new(), Shadow::on());
            let limiter = limiter(rule, &clock);
            let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).shadow(&shadow);
            let service = limited(layer, marked());
            let open: Vec<_> = (0..9).map(|_| ask(&service)).collect();
            assert!(open.iter().all(|response| response.status() == 200), "{kind:?}");
            let marks = open.iter().filter(|response| mark(response).is_some()).count() as u64;
            assert_eq!((shadow.denied(), limiter.queued()), (marks, 0), "{kind:?}");
            assert!((7..=8).contains(&marks), "{kind:?}: {marks} of 9, at 1 or 2 an hour");
        });
    }
    // Algorithms that deny calls, configured to queue them instead.
    fn holds_nobody<A: Algorithm>(rule: A) {
        let shadow = Shadow::on();
        let limiter = limiter(rule, &ManualClock::new());
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).shadow(&shadow);
        let service = limited(layer, marked());
        let open: Vec<_> = (0..9).map(|_| ask(&service)).collect();
        assert_eq!((open.len(), shadow.denied(), limiter.queued()), (9, 7, 0), "{limiter:?}");
    }
    holds_nobody(TokenBucket::new(Quota::per_hour(2)).queue(3));
    holds_nobody(hourly(2).queue(3).max_wait(Duration::from_secs(9_999)));
    holds_nobody(Concurrency::per_key(2).queue(3));
    holds_nobody((TokenBucket::new(Quota::per_hour(2)).queue(3), hourly(3).queue(3)));
}

#[test]
fn an_enforced_queue_holds_requests_and_a_shadow_one_does_not() {
    let (clock, shadow) = (ManualClock::new(), Shadow::on());
    let real = limiter(LeakyBucket::new(Quota::per_second(1)).queue(5), &clock);
    let watched = limiter(LeakyBucket::new(Quota::per_hour(1)).queue(5), &clock);
    let in_shadow = RateLimitLayer::with_limiter(Global, watched.clone()).shadow(&shadow);
    let layers = in_shadow.and(RateLimitLayer::with_limiter(Global, real.clone()));
    let service = limited(layers, marked());
    assert_eq!(mark(&ask(&service)), None);
    let mut calls = [0, 1].map(|_| PolledByHand::new(service.clone().call(Request::new(Body::empty()))));
    assert!(calls.iter_mut().all(|call| !call.poll()));
    assert_eq!(
        (real.queued(), watched.queued(), shadow.denied()),
        (2, 0, 0),
        "not called until they are admitted"
    );
    for (n, call) in calls.iter_mut().enumerate() {
        clock.advance(Duration::from_secs(1));
        assert!(call.run());
        let response = call.output.take().unwrap().unwrap();
        assert!(mark(&response).is_some() && response.status() == 200);
        assert_eq!(
            response.extensions().get::<Decision>().unwrap().delay(),
            Duration::from_secs(n as u64 + 1)
        );
        assert_eq!(shadow.denied(), n as u64 + 1);
    }
}

#[test]
fn with_several_shadow_limits_the_last_one_marks() {
    let [a, b] = [Shadow::on(), Shadow::on()];
    let minutely = || RateLimitLayer::new(Global, FixedWindow::new(Quota::per_minute(1))).shadow(&a);
    let by_hour = || RateLimitLayer::new(Global, hourly(1)).shadow(&b);
    let wait = |response: &Response<Body>| mark(response).and_then(|decision| decision.retry_after());
    for (service, last) in [
        (limited(minutely(), limited(by_hour(), marked())), 3_600),
        (limited(by_hour(), limited(minutely(), marked())), 60),
        (limited(minutely().and(by_hour()), marked()), 3_600),
    ] {
        let denied = [a.denied(), b.denied()];
        assert_eq!(mark(&ask(&service)), None);
        let seconds = wait(&ask(&service)).unwrap().as_secs_f64();
        assert!((last as f64 - 30.0..=last as f64).contains(&seconds), "{seconds}");
        assert_eq!([a.denied(), b.denied()], denied.map(|denied| denied + 1));
    }
}
