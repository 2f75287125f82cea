//! A queue that is joined with other limits: a call is charged when it is queued, and a call that is denied or
//! cancelled leaves the other calls of its limiters as they were.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::time::Duration;

use tower::util::ServiceFn;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{Concurrency, FixedWindow, LeakyBucket, QueueOverflow, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::OnClose;
use tower_throttle::stats::UnitStats;
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, PolledByHand, limiter, waits};

const INTERVAL: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);

/// Returns a limit of ten a second with a queue that is long enough.
fn queue() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(1_000)
}

type Answers = std::future::Ready<Result<(), Infallible>>;

fn answers() -> ServiceFn<fn(()) -> Answers> {
    service_fn(|()| std::future::ready(Ok(())))
}

/// Returns a service behind both limiters, with one key each.
macro_rules! joined {
    ($first:expr, $second:expr) => {
        RateLimitLayer::with_limiter(Global, $first.clone())
            .and(RateLimitLayer::with_limiter(Global, $second.clone()))
            .responder(ErrorResponder)
            .layer(answers())
    };
}

fn passes<F, E>(call: F) -> bool
where
    F: Future<Output = Result<(), E>>,
{
    call.now().is_ok()
}

fn window(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_minute(limit))
}

#[test]
fn the_other_limit_is_charged_when_the_call_is_queued() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(3)), &clock));
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    // The request joins the queue in `call`, before any poll.
    let mut second = PolledByHand::new(service.call(()));
    assert_eq!(bucket.peek(&()).remaining(), 1);
    let mut third = waits(service.call(()));
    assert_eq!(bucket.peek(&()).remaining(), 0);
    // The queue would accept the call, but the bucket denies it.
    assert!(!passes(service.call(())));
    clock.advance(INTERVAL);
    assert!(second.run() && !third.run());
    clock.advance(INTERVAL);
    assert!(third.run());
    // The call is charged once, and not again when it is admitted.
    clock.advance(Duration::from_secs(1_200) - INTERVAL * 2);
    assert_eq!(bucket.peek(&()).remaining(), 1);
    assert_eq!(line.peek(&()).remaining(), 1);
}

#[test]
fn a_cancelled_call_refunds_nothing_to_a_closed_limiter_that_has_charged_nothing() {
    let clock = ManualClock::new();
    let line = limiter(queue(), &clock);
    let closed = RateLimiter::builder(window(5)).clock(clock.clone()).on_close(OnClose::Allow).build();
    assert!(closed.check_n(&(), 3).is_allowed());
    closed.close();
    assert!(line.check(&()).is_allowed());
    drop(waits(joined!(line, closed).call(())));
    assert_eq!(closed.peek(&()).remaining(), 2);
}

#[test]
fn an_exhausted_total_is_reported_also_if_another_limit_denies_the_call() {
    let clock = ManualClock::new();
    let window = limiter(window(1), &clock);
    let calls = limiter(Concurrency::per_key(1).total(1).queue(5), &clock);
    let mut service = joined!(window, calls);
    let mut held = PolledByHand::new(calls.acquire_permit(&()));
    assert!(held.poll() && window.check(&()).is_allowed());
    let mut denied = PolledByHand::new(service.call(()));
    assert!(denied.poll(), "no call waits for an exhausted total");
    let Some(Err(Error::Limited(decision))) = denied.output else { panic!("it is denied") };
    assert_eq!(decision.retry_after(), None, "it is not known when the call in progress ends");
    assert_eq!(calls.stats().calls.queue_full, 1);
}

/// The first limit is reset, or its algorithm is replaced, while the call is queued by both, and then charges it.
#[test]
fn a_call_that_is_cancelled_in_one_queue_is_refunded_by_another_that_has_charged_it_since_a_reset() {
    let bucket = |burst| TokenBucket::new(Quota::per_hour(1).burst(burst)).queue(5);
    let changes: [fn(&RateLimiter<TokenBucket>); 3] = [
        |first| assert!(first.reset(&())),
        RateLimiter::reset_all,
        |first| first.replace(TokenBucket::new(Quota::per_hour(1).burst(2)).queue(5)),
    ];
    for change in changes {
        let clock = ManualClock::new();
        let (first, second) = (limiter(bucket(1), &clock), limiter(bucket(1), &clock));
        assert!(first.check(&()).is_allowed() && second.check(&()).is_allowed());
        let mut call = waits(joined!(first, second).call(()));
        change(&first);
        assert!(!call.run() && first.queued() == 0 && second.queued() == 1);
        assert_eq!(first.peek(&()).remaining(), 0);
        drop(call);
        assert_eq!(first.peek(&()).remaining(), 1);
    }
}

#[test]
fn a_settlement_charges_the_units_that_a_due_waiter_leaves() {
    let clock = ManualClock::new();
    let limiter = limiter(window(3).queue(5), &clock);
    let inner = service_fn(|_: u64| -> Ready<Result<u64, Infallible>> { ready(Ok(4)) });
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).cost(|cost: &u64| *cost);
    let mut service = layer.settle(|actual: &u64| Some(*actual)).responder(ErrorResponder).layer(inner);
    let mut call = PolledByHand::new(service.call(3));
    // The call is charged at once. Its response is polled only after the window has ended.
    let mut waiter = waits(limiter.acquire(&()));
    clock.advance(MINUTE);
    assert!(call.poll());
    assert!(waiter.run());
    assert_eq!(limiter.peek(&()).remaining(), 1, "the waiter has one unit, and the settlement one");
}

#[test]
fn a_denied_call_displaces_no_waiter() {
    let clock = ManualClock::new();
    let short = limiter(window(1).queue(1).overflow(QueueOverflow::DropOldest), &clock);
    let full = window(2).queue(2).overflow(QueueOverflow::DropOldest).max_wait(MINUTE);
    let full = limiter(full, &clock);
    assert!(short.check(&()).is_allowed() && full.check_n(&(), 2).is_allowed());
    let mut waiter = waits(short.acquire(&()));
    let _others = [waits(full.acquire(&())), waits(full.acquire(&()))];
    // In the place of its oldest waiter, `full` would admit a call of two units only after two minutes.
    let both = RateLimitLayer::with_limiter(Global, short.clone())
        .and(RateLimitLayer::with_limiter(Global, full.clone()).cost(|(): &()| 2))
        .responder(ErrorResponder);
    assert!(!passes(both.layer(answers()).call(())));
    assert_eq!(full.stats().calls.queue_full, 1);
    clock.advance(MINUTE);
    assert!(waiter.run() && waiter.output.unwrap().is_allowed());
}

/// The units of a waiter count in the total of its own tier, so a call of another tier gains nothing in its place.
#[test]
fn a_call_that_is_denied_for_the_total_of_its_tier_displaces_no_waiter() {
    for is_first in [true, false] {
        let clock = ManualClock::new();
        let short = limiter(window(1).queue(1).overflow(QueueOverflow::DropOldest), &clock);
        let calls = || Concurrency::per_key(1).queue(1).overflow(QueueOverflow::DropOldest);
        let (full, paid) = (limiter(Tiered::new(calls().total(10)), &clock), calls().total(1));
        assert!(short.check(&()).is_allowed());
        let mut waiter = waits(short.acquire(&()));
        let _in_progress = full.call(&()).tier(&paid).permit().unwrap();
        let _other = waits(full.acquire_permit(&()));
        let short = RateLimitLayer::with_limiter(Global, short.clone());
        let tier = paid.clone();
        let full =
            RateLimitLayer::with_limiter(Global, full.clone()).tier(move |(): &(), (): &()| tier.clone());
        let is_denied = match is_first {
            true => !passes(full.and(short).responder(ErrorResponder).layer(answers()).call(())),
            false => !passes(short.and(full).responder(ErrorResponder).layer(answers()).call(())),
        };
        assert!(is_denied, "one call of this tier is in progress");
        clock.advance(MINUTE);
        assert!(waiter.run() && waiter.output.unwrap().is_allowed(), "it was displaced");
    }
}

/// A closed limiter charges nothing, so there is nothing to settle, above or below the cost of the call.
#[test]
fn a_call_that_a_closed_limiter_admits_settles_nothing() {
    for (on_close, cost, actual) in [(OnClose::Allow, 3, 1), (OnClose::Allow, 3, 4), (OnClose::Reject, 0, 4)]
    {
        let clock = ManualClock::new();
        let open = limiter(window(5), &clock);
        let closed = RateLimiter::builder(window(5)).clock(clock.clone()).on_close(on_close).build();
        assert!(closed.check_n(&(), 3).is_allowed());
        closed.close();
        let inner = service_fn(move |(): ()| -> Ready<Result<u64, Infallible>> { ready(Ok(actual)) });
        let settled = |limiter: &RateLimiter<FixedWindow>| {
            let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).cost(move |(): &()| cost);
            layer.settle(|actual: &u64| Some(*actual))
        };
        let mut service = settled(&open).and(settled(&closed)).responder(ErrorResponder).layer(inner);
        assert_eq!(service.call(()).now().unwrap(), actual);
        assert_eq!(open.peek(&()).remaining(), 5 - actual);
        assert_eq!(closed.stats().units, UnitStats::default(), "of {cost}, at {actual}");
        assert_eq!(closed.peek_n(&(), 0).remaining(), 2, "of {cost}, at {actual}");
    }
}
