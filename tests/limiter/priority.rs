//! Calls with priority. They borrow from the next window, wait for it, and never exceed the limit.

use std::future::ready;
use std::time::Duration;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, QueueOverflow, SlidingCounter, SlidingLog, SlidingWindow,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::Acquire;
use tower_throttle::stats::Timeline;
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, PolledByHand, Random, limiter, scaled, waits};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn four_a_second() -> Quota {
    Quota::per_second(4)
}

fn first<A: Algorithm>(limiter: &RateLimiter<A>, cost: u64) -> PolledByHand<Acquire<A>> {
    PolledByHand::new(limiter.call("key").cost(cost).priority().acquire())
}

#[test]
fn a_call_with_priority_takes_from_the_next_window_and_waits_for_it() {
    let clock = ManualClock::new();
    let limiter = limiter(FixedWindow::new(four_a_second()).priority(50), &clock);
    assert!(limiter.check_n("key", 4).is_allowed());
    clock.advance(MS * 300);
    let (mut one, mut two, mut three) = (first(&limiter, 1), first(&limiter, 1), first(&limiter, 1));
    assert!(!one.run() && !two.run());
    assert!(three.run(), "half of the next window is taken");
    let denied = three.output.unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(denied.retry_after(), Some(MS * 700));
    clock.advance(MS * 699);
    assert!(!one.run());
    clock.advance(MS);
    assert!(one.run() && two.run());
    assert_eq!(one.output.unwrap().delay(), MS * 700);
    let left = limiter.peek("key");
    assert_eq!((left.remaining(), left.limit()), (2, 4), "what they took is taken");
}

#[test]
fn queued_calls_keep_their_order_and_cancelled_ones_are_undone() {
    let clock = ManualClock::new();
    let limiter = limiter(SlidingLog::new(four_a_second()).priority(100), &clock);
    assert!(limiter.check_n("key", 3).is_allowed());
    let mut heavy = first(&limiter, 2);
    assert!(!heavy.run());
    let overtaking = limiter.check("key");
    assert!(!overtaking.is_allowed(), "one unit is free, but not for it");
    assert_eq!((overtaking.limit(), overtaking.retry_after()), (4, Some(SECOND)));
    assert_eq!(limiter.check_n("key", 5).retry_after(), None, "five never fit");
    heavy.abandon();
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn without_priority_it_is_the_window_itself() {
    let clock = ManualClock::new();
    let (plain, lending) =
        (SlidingWindow::new(four_a_second()), SlidingWindow::new(four_a_second()).priority(50));
    let (plain, lending) = (limiter(plain, &clock), limiter(lending, &clock));
    let mut random = Random::new(7);
    for _ in 0..20_000 {
        clock.advance(MS * random.below(400) as u32);
        let cost = random.below(6);
        let expected = plain.check_n("key", cost);
        let mut call = PolledByHand::new(lending.acquire_n("key", cost));
        assert!(call.run(), "no call is queued");
        let reported = |decision: Decision| {
            let spans = (decision.retry_after(), decision.reset_after(), decision.delay());
            (decision.is_allowed(), decision.limit(), decision.remaining(), spans)
        };
        assert_eq!(reported(call.output.unwrap()), reported(expected));
        assert_eq!(lending.peek("key"), plain.peek("key"));
    }
}

/// Makes random calls, some of which are cancelled or polled late. No span of a period has more units than `limits`
/// limits, all waiters are admitted in order, at the reported times, and no ordinary call waits or overtakes.
fn holds<A: Algorithm>(limits: u64, make: impl Fn(Quota, u8) -> A) {
    for seed in 0..scaled(10_000) {
        let random = &mut Random::new(seed);
        let (limit, period) = (random.within(1..=6), random.one_of(&[7, 10, 100]));
        let (percent, is_late) = (random.one_of(&[10, 34, 50, 60, 100]), random.one_in(2));
        let rule = make(Quota::per(limit, Duration::from_nanos(period)).unwrap(), percent);
        let clock = ManualClock::new();
        let limiter = limiter(rule.clone(), &clock);
        let (mut now, mut waiting, mut admitted) = (0, Vec::new(), Vec::new());
        let settle = |waiting: &mut Vec<(u64, u64, PolledByHand<Acquire<A>>)>, admitted: &mut Vec<_>| {
            let mut is_behind_another = false;
            waiting.retain_mut(|(cost, came, call)| {
                let left = call.run();
                is_behind_another |= !left;
                if left {
                    assert!(!is_behind_another, "the waiters are admitted in order");
                    let decision = call.output.unwrap();
                    assert!(decision.is_allowed());
                    admitted.push((*came + decision.delay().as_nanos() as u64, *cost));
                }
                !left
            });
        };
        for _ in 0..60 {
            if !is_late || random.one_in(3) {
                settle(&mut waiting, &mut admitted);
            }
            let cost = 1 + random.below(3);
            let (call, may_wait) = match random.below(12) {
                0..5 => {
                    let step = random.one_of(&[1, 2, 5, 9, 30, 100]);
                    now += step;
                    clock.advance(Duration::from_nanos(step));
                    continue;
                }
                5 if !waiting.is_empty() => {
                    drop(waiting.remove(random.below(waiting.len() as u64) as usize));
                    continue;
                }
                5..7 => {
                    let decision = limiter.check_n("key", cost);
                    assert!(!decision.is_allowed() || limiter.queued() == 0, "no call overtakes");
                    admitted.extend(decision.is_allowed().then_some((now, cost)));
                    continue;
                }
                7 => (limiter.acquire_n("key", cost), false),
                _ => (limiter.call("key").cost(cost).priority().acquire(), true),
            };
            let mut call = PolledByHand::new(call);
            match call.poll() {
                false => {
                    assert!(may_wait, "an ordinary call does not wait");
                    waiting.push((cost, now, call));
                }
                true if call.output.unwrap().is_allowed() => {
                    assert_eq!(limiter.queued(), 0, "no call overtakes");
                    admitted.push((now, cost));
                }
                true => {}
            }
        }
        for _ in 0..200 {
            clock.advance(Duration::from_nanos(random.one_of(&[1, period])));
            settle(&mut waiting, &mut admitted);
        }
        assert!(waiting.is_empty(), "seed {seed}: a call is stuck");
        for (at, _) in &admitted {
            let within = admitted.iter().filter(|(other, _)| (*at..at + period).contains(other));
            let units = within.map(|(_, cost)| cost).sum::<u64>();
            assert!(units <= limit * limits, "seed {seed}: {units} from {at}: {admitted:?} {rule:?}");
        }
    }
}

#[test]
fn the_limit_holds_for_every_caller() {
    holds(1, |quota, percent| SlidingLog::new(quota).priority(percent));
    holds(1, |quota, percent| SlidingWindow::new(quota).slices(3).priority(percent));
    holds(2, |quota, percent| FixedWindow::new(quota).priority(percent));
    holds(2, |quota, percent| SlidingCounter::new(quota).priority(percent));
}

/// No more than a part of the next window is borrowed at a time.
#[test]
fn more_is_not_borrowed_than_may_be() {
    for seed in 0..300 {
        let (random, clock) = (&mut Random::new(seed), ManualClock::new());
        let limiter = limiter(SlidingLog::new(Quota::per_second(5)).priority(60), &clock);
        let mut waiting = Vec::new();
        for _ in 0..200 {
            clock.advance(MS * random.below(150) as u32);
            waiting.retain_mut(|(_, call): &mut (u64, PolledByHand<_>)| !call.run());
            let cost = 1 + random.below(3);
            let mut call = first(&limiter, cost);
            if !call.run() {
                waiting.push((cost, call));
            }
            let borrowed: u64 = waiting.iter().map(|(cost, _)| cost).sum();
            assert!(borrowed <= 3, "60 % of five units may be borrowed");
        }
    }
}

#[test]
fn a_denied_call_with_priority_learns_when_it_may_be_queued() {
    let clock = ManualClock::new();
    let limiter = limiter(SlidingLog::new(four_a_second()).priority(50), &clock);
    for _ in 0..4 {
        assert!(limiter.check("key").is_allowed());
        clock.advance(MS * 100);
    }
    let mut waiting: Vec<_> = (0..2).map(|_| first(&limiter, 1)).collect();
    waiting.iter_mut().for_each(|call| assert!(!call.run()));
    let retry = |limiter: &RateLimiter<_>| {
        let mut call = first(limiter, 1);
        call.run().then(|| call.output.unwrap().retry_after().unwrap())
    };
    // The first waiter is admitted at 1 s, and then there is a place in the queue.
    assert_eq!(retry(&limiter), Some(MS * 600));
    clock.advance(MS * 599);
    assert_eq!(retry(&limiter), Some(MS));
    clock.advance(MS);
    assert_eq!(retry(&limiter), None, "it waits");
}

#[test]
fn retry_after_is_exact_if_a_call_needs_the_window_after_the_borrowed_one() {
    let clock = ManualClock::new();
    let limiter = limiter(FixedWindow::new(four_a_second()).priority(50), &clock);
    assert!(limiter.check_n("key", 4).is_allowed());
    let mut held = waits(limiter.call("key").cost(2).priority().acquire());
    let denied = limiter.check_n("key", 3);
    assert_eq!(limiter.peek_n("key", 3).retry_after(), denied.retry_after());
    clock.advance(SECOND);
    assert!(held.poll());
    clock.advance(MS * 999);
    assert!(!limiter.check_n("key", 3).is_allowed());
    clock.advance(MS);
    assert!(limiter.peek_n("key", 3).is_allowed());
    assert_eq!(denied.retry_after(), Some(SECOND * 2));
}

#[test]
fn an_ordinary_call_waits_for_the_window_after_one_that_is_borrowed_as_a_whole() {
    let limiter = limiter(FixedWindow::new(Quota::per_second(1)).priority(100), &ManualClock::new());
    assert!(limiter.check("key").is_allowed());
    let _held = waits(limiter.call("key").priority().acquire());
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND * 2));
    assert_eq!(limiter.acquire("key").now().retry_after(), Some(SECOND * 2));
}

#[test]
fn a_waiter_that_costs_more_than_the_new_limit_does_not_block_the_key() {
    let clock = ManualClock::new();
    let limiter = limiter(FixedWindow::new(Quota::per_second(10)).priority(50), &clock);
    assert!(limiter.check_n("key", 10).is_allowed());
    let mut held = waits(limiter.call("key").cost(5).priority().acquire());
    limiter.replace(FixedWindow::new(four_a_second()).priority(50));
    clock.advance(SECOND * 100);
    let _ = (held.poll(), limiter.check("key"));
    clock.advance(SECOND * 100);
    let _ = limiter.check("key");
    assert!(limiter.check("key").is_allowed(), "the key is locked");
}

#[test]
fn remaining_counts_no_calls_with_priority_that_would_be_queued() {
    let limiter = limiter(FixedWindow::new(four_a_second()).priority(50), &ManualClock::new());
    let reported = limiter.call("key").priority().acquire().now();
    let mut calls = [(); 10].map(|()| first(&limiter, 1));
    let passed = calls.each_mut().map(|call| call.run() && call.output.unwrap().is_allowed());
    let more = passed.into_iter().filter(|passed| *passed).count() as u64;
    assert_eq!((reported.limit(), reported.remaining(), more), (4, 3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_layer_takes_the_priority_of_requests_from_a_closure() {
    let layer = RateLimitLayer::new(Global, SlidingWindow::new(four_a_second()).priority(50))
        .priority(|path: &&str| *path == "/pay")
        .responder(ErrorResponder);
    let mut service = layer.layer(service_fn(|path: &'static str| async move { Ok::<_, ()>(path) }));
    for _ in 0..4 {
        assert_eq!(service.ready().await.unwrap().call("/").await.unwrap(), "/");
    }
    assert!(matches!(service.ready().await.unwrap().call("/").await, Err(Error::Limited(_))));
    let start = tokio::time::Instant::now();
    assert_eq!(service.ready().await.unwrap().call("/pay").await.unwrap(), "/pay");
    assert_eq!(start.elapsed(), SECOND);
}

#[test]
#[should_panic(expected = "over 100 %")]
fn more_than_the_whole_window_cannot_be_borrowed() {
    let _ = FixedWindow::new(four_a_second()).priority(101);
}

#[test]
fn borrowing_calls_wait_no_longer_than_the_max_wait_of_the_window() {
    let rule = FixedWindow::new(Quota::per_hour(4)).max_wait(SECOND).priority(50);
    let limiter = RateLimiter::builder(rule).clock(ManualClock::new()).build();
    assert!(limiter.check_n("a", 4).is_allowed());
    let mut payment = PolledByHand::new(limiter.call("a").priority().acquire());
    assert!(payment.poll(), "an hour is too long");
}

#[test]
fn priority_may_be_set_before_the_other_settings_of_the_queue() {
    let window = SlidingWindow::new(four_a_second()).slices(4);
    let last = window.clone().queue(9).overflow(QueueOverflow::DropOldest).max_wait(SECOND).priority(50);
    let first = window.priority(50).overflow(QueueOverflow::DropOldest).max_wait(SECOND);
    for window in [last, first.clone(), first.clone().queue(9), first.queue(0)] {
        let limiter = limiter(window, &ManualClock::new());
        assert!(limiter.check_n("key", 4).is_allowed());
        let mut calls = [(); 3].map(|()| self::first(&limiter, 1));
        assert_eq!(calls.each_mut().map(PolledByHand::run), [false, false, true]);
        assert!(!calls[2].output.unwrap().is_allowed(), "it displaces no call");
        assert!(PolledByHand::new(limiter.acquire("key")).run(), "no other call waits");
    }
}

#[test]
fn a_call_with_priority_on_a_limit_without_priority_is_like_any_other() {
    let clock = ManualClock::new();
    let timeline = Timeline::new().clock(clock.clone());
    let limiter = limiter(FixedWindow::new(four_a_second()).queue(1), &clock);
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone())
        .priority(|()| true)
        .timeline(&timeline)
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(|()| ready(Ok::<_, ()>(()))));
    let mut calls = [(); 6].map(|()| PolledByHand::new(service.clone().oneshot(())));
    assert_eq!(calls.each_mut().map(PolledByHand::run), [true, true, true, true, false, true]);
    assert!(calls[5].output.take().unwrap().is_err(), "the queue is full");
    clock.advance(SECOND);
    assert!(calls[4].run());
    let total = timeline.total();
    assert_eq!((total.queued, total.borrowed), (1, 0));

    assert!(limiter.check_n("key", 4).is_allowed());
    let (mut one, mut two) = (first(&limiter, 1), first(&limiter, 1));
    assert!(!one.run() && two.run());
    let mut other = PolledByHand::new(limiter.acquire("key"));
    assert!(other.run());
    assert_eq!(two.output, other.output);
}
