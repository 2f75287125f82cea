//! A denial says whether a lockout, a full queue, a full table or a closed limiter is its reason.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Lockout, QueueOverflow, Smooth, Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::{Attempt, OnFull};
use tower_throttle::middleware::Rejection;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::calls::{Calls, InProgress, OfUnits, acquire};
use crate::support::{Now, waits};

const MINUTE: Quota = Quota::per_minute(1);

/// Returns the reasons that a decision states.
fn reasons(decision: &Decision) -> Vec<&'static str> {
    let all = [
        (decision.is_locked_out(), "locked out"),
        (decision.is_queue_full(), "queue full"),
        (decision.is_table_full(), "table full"),
        (decision.is_closed(), "closed"),
        (decision.never_fits(), "never fits"),
    ];
    let reasons: Vec<_> = all.into_iter().filter_map(|(is_reason, name)| is_reason.then_some(name)).collect();
    assert!(reasons.is_empty() || !decision.is_allowed(), "{decision:?}");
    reasons
}

/// One call a minute. The second denial within a minute locks the key out for an hour.
fn log_in() -> Lockout<FixedWindow> {
    FixedWindow::new(MINUTE).block_for(Duration::from_secs(3_600)).after(2)
}

fn limiter<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).build()
}

/// Makes calls until the key is locked out, and verifies that the calls, and peeks before them, say so.
fn locks_out<C: Calls>(algorithm: impl Algorithm) {
    let limiter = limiter(algorithm);
    let check = || C::check(&limiter, "key", 1).0;
    let (first, _held) = C::check(&limiter, "key", 1);
    assert!(first.is_allowed());
    let none = [""; 0];
    assert_eq!(reasons(&limiter.peek("key")), none);
    assert_eq!(reasons(&check()), none, "the first denial");
    assert_eq!(reasons(&limiter.peek("key")), ["locked out"], "a call would begin the lockout");
    assert_eq!(reasons(&check()), ["locked out"], "the second denial begins the lockout");
    assert_eq!(reasons(&limiter.peek("key")), ["locked out"]);
    assert_eq!(reasons(&check()), ["locked out"]);
    assert_eq!(reasons(limiter.try_acquire_permit("key").unwrap_err().decision()), ["locked out"]);
    let (acquired, _) = acquire(&limiter, "key", Attempt::new(1)).now();
    assert_eq!(reasons(&acquired), ["locked out"]);
    let denied = limiter.acquire_permit("key").now();
    assert_eq!(reasons(denied.unwrap_err().decision()), ["locked out"]);
    assert_eq!(reasons(&C::check(&limiter, "key", 0).0), none, "a cost of 0 is allowed");
    assert_eq!(reasons(&C::check(&limiter, "other", 1).0), none);
    assert!(limiter.reset("key"));
    assert_eq!(reasons(&limiter.peek("key")), none);
}

#[test]
fn a_denial_says_that_the_key_is_locked_out() {
    locks_out::<OfUnits>(log_in());
    locks_out::<OfUnits>(log_in().extend_on_retry());
    locks_out::<OfUnits>(Tiered::new(log_in()));
    locks_out::<OfUnits>(
        Tiered::new(FixedWindow::new(MINUTE)).block_for(Duration::from_secs(3_600)).after(2),
    );
    locks_out::<InProgress>(Concurrency::per_key(1).block_for(Duration::from_secs(3_600)).after(2));
}

/// The reported limit of a tuple may be another one, with a longer wait.
#[test]
fn a_tuple_says_that_one_of_its_limits_locks_the_key_out() {
    let day = || TokenBucket::new(Quota::per_day(1));
    locks_out::<OfUnits>((log_in(), day()));
    locks_out::<OfUnits>((day(), log_in()));
    locks_out::<OfUnits>(((day(), FixedWindow::new(MINUTE)), log_in()));
    locks_out::<OfUnits>((day(), FixedWindow::new(MINUTE)).block_for(Duration::from_secs(3_600)).after(2));
    locks_out::<InProgress>((Concurrency::per_key(1), log_in()));
}

#[test]
fn a_queue_of_a_lockout_says_why_it_denies() {
    let algorithm = LeakyBucket::new(MINUTE).queue(1).block_for(Duration::from_secs(3_600)).after(2);
    let limiter = limiter(algorithm);
    assert!(limiter.check("key").is_allowed());
    let _queued = waits(limiter.acquire("key"));
    let acquire = || reasons(&limiter.acquire("key").now());
    assert_eq!(acquire(), ["queue full"]);
    assert_eq!(acquire(), ["locked out", "queue full"], "the denial by the queue begins the lockout");
    assert_eq!(acquire(), ["locked out"]);
}

#[test]
fn a_denial_says_that_the_queue_is_full() {
    fn fills<A: Algorithm>(algorithm: A) {
        let limiter = RateLimiter::builder(algorithm).clock(ManualClock::new()).max_queued(2).build();
        let mut held = Vec::new();
        let mut acquire = |key| {
            let (decision, reservation) = acquire(&limiter, key, Attempt::new(1)).now();
            held.push(reservation);
            decision
        };
        let queued = |key: &'static str| waits(limiter.acquire_permit(key));
        let none = [""; 0];
        assert!(acquire("key").is_allowed());
        let _first = queued("key");
        assert_eq!(reasons(&acquire("key")), ["queue full"]);
        let permit = limiter.acquire_permit("key").now();
        assert_eq!(reasons(permit.unwrap_err().decision()), ["queue full"]);
        let permit = limiter.try_acquire_permit("key");
        assert_eq!(reasons(permit.unwrap_err().decision()), none, "it would not wait");
        assert_eq!(reasons(&limiter.peek("key")), none, "it would not wait");
        assert!(acquire("second").is_allowed());
        let _second = queued("second");
        assert!(acquire("third").is_allowed());
        let denied = acquire("third");
        assert_eq!(reasons(&denied), ["queue full"], "`max_queued`");
        let calls = limiter.stats().calls;
        assert_eq!((calls.queue_full, calls.denied), (3, 1));
    }
    fills(LeakyBucket::new(MINUTE).queue(1));
    fills(TokenBucket::new(MINUTE).queue(1));
    fills(FixedWindow::new(MINUTE).queue(1));
    fills((TokenBucket::new(MINUTE).queue(1), FixedWindow::new(MINUTE).queue(3)));
    fills(Concurrency::per_key(1).queue(1));
}

#[test]
fn a_call_that_may_not_wait_is_not_denied_by_its_queue() {
    let none = [""; 0];
    for bucket in [
        LeakyBucket::new(MINUTE).queue(0),
        LeakyBucket::new(MINUTE).queue(1).max_wait(Duration::from_secs(1)),
    ] {
        let limiter = limiter(bucket);
        assert!(limiter.check("key").is_allowed());
        let denied = limiter.acquire("key").now();
        assert!(!denied.is_allowed());
        assert_eq!(reasons(&denied), none);
    }
}

#[test]
fn a_displaced_call_says_that_the_queue_is_full() {
    let limiter = limiter(LeakyBucket::new(MINUTE).queue(1).overflow(QueueOverflow::DropOldest));
    assert!(limiter.check("key").is_allowed());
    let [mut oldest, _newest] = [(); 2].map(|()| waits(limiter.acquire("key")));
    assert!(oldest.run(), "it is displaced");
    assert_eq!(reasons(&oldest.output.unwrap()), ["queue full"]);
}

#[test]
fn a_denial_says_that_the_table_is_full_or_the_limiter_closed() {
    let limiter = RateLimiter::builder(log_in()).max_keys(1).on_full(OnFull::Reject).build();
    assert!(limiter.check("key").is_allowed());
    let text = |key: &str| limiter.check(key).into_result().unwrap_err().to_string();
    assert_eq!(reasons(&limiter.check("new")), ["table full"]);
    assert_eq!(text("new"), "the rate limiter has no room for the key");
    limiter.close();
    assert_eq!(reasons(&limiter.check("key")), ["closed"]);
    assert_eq!(text("key"), "the rate limiter is closed");
    assert_eq!(reasons(&limiter.check("new")), ["closed"]);
}

/// Each policy that denies a joint call says why.
#[tokio::test]
async fn the_decisions_of_joined_layers_say_why_they_deny() {
    type Seen = Arc<Mutex<Vec<(String, Vec<&'static str>)>>>;
    let seen = Seen::default();
    let record = seen.clone();
    let queued = limiter(LeakyBucket::new(MINUTE).queue(1));
    let layer = RateLimitLayer::with_limiter(Global, limiter(log_in()))
        .name("log-in")
        .and(RateLimitLayer::with_limiter(Global, queued.clone()).name("queued"))
        .responder(ErrorResponder)
        .on_reject(move |rejection: &Rejection<'_>, _: &()| {
            let reports = rejection.policies().iter();
            let denials = reports.filter(|report| !report.decision().is_allowed());
            let reasons = denials.map(|report| (report.name().to_owned(), reasons(report.decision())));
            *record.lock().unwrap() = reasons.collect();
        });
    let service = layer.layer(service_fn(async |_: ()| Ok::<_, Infallible>(())));
    let call = async || {
        let admitted = service.clone().oneshot(()).await.is_ok();
        (admitted, std::mem::take(&mut *seen.lock().unwrap()))
    };
    let denied = |name: &str, reasons: &[&'static str]| (name.to_owned(), reasons.to_vec());
    assert_eq!(call().await, (true, vec![]));
    let _waiting = waits(queued.acquire(&()));
    let (log_in, queue) = (|reasons| denied("log-in", reasons), denied("queued", &["queue full"]));
    assert_eq!(call().await, (false, vec![log_in(&[]), queue.clone()]));
    assert_eq!(call().await, (false, vec![log_in(&["locked out"]), queue.clone()]));
    assert_eq!(call().await, (false, vec![log_in(&["locked out"]), queue]));
}

/// A closed limiter and a full table report the limit that an open limiter with room would.
#[test]
fn a_denial_for_another_reason_reports_the_same_limit() {
    fn same<A: Algorithm>(algorithm: A) {
        let builder = RateLimiter::builder(algorithm).clock(ManualClock::new());
        let limiter = builder.max_keys(1).on_full(OnFull::Reject).build();
        let limit = limiter.peek("key").limit();
        let denied = (0..10_000_u64).map(|key| limiter.check(&key)).find(Decision::is_table_full).unwrap();
        assert_eq!(denied.limit(), limit, "{limiter:?}");
        limiter.close();
        let denied = limiter.check("key");
        assert_eq!((denied.is_closed(), denied.limit()), (true, limit), "{limiter:?}");
    }
    same(LeakyBucket::new(Quota::per_second(10)));
    same(Smooth::bursty(Quota::per_second(10)));
    same(TokenBucket::new(Quota::per_second(10).burst(3)).queue(5));
    same(FixedWindow::new(Quota::per_second(10)).priority(50));
}
