//! Each policy of joined layers is settled, a refund admits queued calls, and calls in progress end whatever they
//! cost.

use axum::body::Body;
use http::Response;
use tower_throttle::algorithm::{Concurrency, FixedWindow, LeakyBucket};
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};

use super::{Call, Outcome, SECOND, actual, behind, limiter, settling};
use crate::reference_service::{cost_of, limited};
use crate::support::TickingClock;

#[test]
fn joined_policies_are_settled_independently() {
    for clock in TickingClock::both() {
        let hour = || limiter(FixedWindow::new(Quota::per_hour(10)), &clock);
        let (plain, settled, halved) = (hour(), hour(), hour());
        let half = |response: &Response<Body>| actual(response).map(|actual| actual / 2);
        let of_half =
            RateLimitLayer::with_limiter(Global, halved.clone()).cost(cost_of as fn(&_) -> _).settle(half);
        let as_charged = RateLimitLayer::with_limiter(Global, plain.clone()).cost(cost_of as fn(&_) -> _);
        let service = limited(as_charged.and(settling(&settled)).and(of_half), behind());
        let left = || [&plain, &settled, &halved].map(|limiter| limiter.peek(&()).remaining());
        let call = Call::start(&service, 4);
        assert_eq!(left(), [6, 6, 6]);
        call.costs(2);
        assert_eq!(left(), [6, 8, 9]);
        Call::start(&service, 1).costs(6);
        assert_eq!(left(), [5, 2, 6]);
        // One limit denies the call, so no layer settles it.
        assert!(!Call::start(&service, 3).goes_on());
        assert_eq!(left(), [5, 2, 6]);
        let mut call = Call::start(&service, 2);
        call.ends(Outcome::Fails);
        assert_eq!(left(), [3, 0, 4]);
    }
}

#[test]
fn after_a_refund_the_next_queued_call_is_admitted_sooner() {
    for clock in TickingClock::both() {
        let line = limiter(LeakyBucket::new(Quota::per_second(1)).queue(5), &clock);
        let service = limited(settling(&line), behind());
        let a = Call::start(&service, 4);
        let mut b = Call::start(&service, 1);
        *b.door.0.lock().unwrap() = Some(Outcome::Costs(None));
        clock.advance(SECOND);
        assert!(!b.hand.poll(), "three more seconds");
        a.costs(2);
        assert!(!b.hand.run(), "one more second, as if the call had cost two from the beginning");
        clock.advance(SECOND);
        assert!(b.hand.run(), "woken and admitted");
    }
}

#[test]
fn a_call_in_progress_is_free_when_it_ends_whatever_its_cost() {
    for clock in TickingClock::both() {
        let limiter = limiter(Concurrency::per_key(3), &clock);
        let service = limited(settling(&limiter), behind());
        for actual in [0, 1, 3] {
            let mut call = Call::start(&service, 1);
            call.ends(Outcome::Costs(Some(actual)));
            assert_eq!(limiter.peek(&()).remaining(), 2, "its body has not ended");
            drop(call);
            assert_eq!(limiter.peek(&()).remaining(), 3);
        }
    }
}
