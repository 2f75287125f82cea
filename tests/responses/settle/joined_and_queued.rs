//! Each policy of joined layers and each limit of a tuple is settled, and so are calls that were queued.

use axum::body::Body;
use http::Response;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};

use super::{Call, Outcome, SECOND, actual, behind, five, limiter, settling};
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
        // One layer denies the call, so no layer settles it.
        assert!(!Call::start(&service, 3).goes_on());
        assert_eq!(left(), [5, 2, 6]);
        let mut call = Call::start(&service, 2);
        call.ends(Outcome::Fails);
        assert_eq!(left(), [3, 0, 4]);
    }
}

#[test]
fn each_limit_of_a_tuple_gets_back_the_units_that_still_count() {
    for clock in TickingClock::both() {
        let second_and_hour = (FixedWindow::new(five()), FixedWindow::new(Quota::per_hour(20)));
        let limiter = limiter(second_and_hour, &clock);
        let service = limited(settling(&limiter), behind());
        let call = Call::start(&service, 4);
        clock.advance(SECOND);
        assert!(limiter.check_n(&(), 5).is_allowed());
        call.costs(0);
        // The limit of this second is used up, and five of the 20 units of the hour are used.
        assert_eq!(limiter.peek(&()).remaining(), 0);
        for _ in 0..3 {
            clock.advance(SECOND);
            assert!(limiter.check_n(&(), 5).is_allowed());
        }
        clock.advance(SECOND);
        assert_eq!(limiter.peek(&()).remaining(), 0);
    }
}

#[test]
fn a_queued_call_is_settled_from_its_release() {
    for clock in TickingClock::both() {
        let line = limiter(TokenBucket::new(Quota::per_second(1).burst(2)).queue(5), &clock);
        let service = limited(settling(&line), behind());
        let [mut a, mut b, mut c] = [2, 2, 2].map(|cost| Call::start(&service, cost));
        a.ends(Outcome::Costs(None));
        clock.advance(SECOND * 2);
        assert!(!b.hand.poll() && !c.hand.poll());
        // The call arrived two seconds ago, but was released just now. Both its units still count, and the next call is
        // released.
        b.ends(Outcome::Costs(Some(0)));
        assert!(!c.hand.poll());
        c.ends(Outcome::Costs(Some(2)));
        assert_eq!(line.peek(&()).remaining(), 0);
        clock.advance(SECOND * 2);
        assert_eq!(line.peek(&()).remaining(), 2);
    }
}

#[test]
fn a_refund_releases_the_next_queued_call_sooner() {
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
        assert!(b.hand.run(), "woken and released");
    }
}
