//! A queue that is joined with other limits. A call is charged when it is queued, and refunded when it is cancelled.
//! Both limits deny a call, or neither does.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::util::ServiceFn;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, Random};

const MS: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// Returns a limit of ten a second with a queue that is long enough.
fn queue() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(1_000)
}

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
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

/// Starts a call that must be queued.
fn waits<F: Future>(call: F) -> PolledByHand<F> {
    let mut call = PolledByHand::new(call);
    assert!(!call.poll(), "it waits");
    call
}

fn passes<F, E>(call: F) -> bool
where
    F: Future<Output = Result<(), E>>,
{
    let mut call = PolledByHand::new(call);
    assert!(call.poll(), "it does not wait");
    call.output.unwrap().is_ok()
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
    // The call is charged once, and not again when it is released.
    clock.advance(Duration::from_secs(1_200) - INTERVAL * 2);
    assert_eq!(bucket.peek(&()).remaining(), 1);
    assert_eq!(line.peek(&()).remaining(), 1);
}

#[test]
fn a_call_that_either_denies_is_charged_by_neither_and_not_queued() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(2)), &clock));
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    let mut waiting = waits(service.call(()));
    for _ in 0..100 {
        assert!(!passes(service.call(())), "the bucket is empty");
    }
    clock.advance(INTERVAL);
    assert!(waiting.run());
    clock.advance(INTERVAL);
    assert!(line.check(&()).is_allowed(), "no other call was queued");

    let short = limiter(LeakyBucket::new(Quota::per_second(10)).queue(1), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(50)), &clock);
    // The queue is the second limit. The first limit is not charged either.
    let mut service = joined!(bucket, short);
    assert!(passes(service.call(())));
    let waiting = waits(service.call(()));
    for _ in 0..100 {
        assert!(!passes(service.call(())), "the queue is full");
    }
    assert_eq!(bucket.peek(&()).remaining(), 48);
    drop(waiting);
    assert_eq!(bucket.peek(&()).remaining(), 49);
}

#[test]
fn a_queue_longer_than_max_wait_charges_no_key() {
    let clock = ManualClock::new();
    let line = limiter(queue().max_wait(INTERVAL * 2), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(50)), &clock);
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    let _line = [(); 2].map(|()| waits(service.call(())));
    let mut refused = PolledByHand::new(service.call(()));
    assert!(refused.poll());
    let Some(Err(Error::Limited(decision))) = refused.output else { panic!("it is refused") };
    assert_eq!(decision.retry_after(), Some(INTERVAL));
    assert_eq!(bucket.peek(&()).remaining(), 47);
}

/// Drops a call after `polls` polls. Returns the remaining units of the bucket when the next call is released, the time
/// of this release, and whether the dropped call was ready.
fn dropped_after(polls: usize, line_first: bool) -> (u64, Duration, bool) {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(9)), &clock));
    assert!(line.check(&()).is_allowed());
    let mut call: PolledByHand<std::pin::Pin<Box<dyn Future<Output = bool>>>> = match line_first {
        true => {
            let call = joined!(line, bucket).call(());
            PolledByHand::new(Box::pin(async move { call.await.is_ok() }))
        }
        false => {
            let call = joined!(bucket, line).call(());
            PolledByHand::new(Box::pin(async move { call.await.is_ok() }))
        }
    };
    let mut behind = waits(line.acquire(&()));
    let mut time = Duration::ZERO;
    for poll in 0..polls {
        if poll > 0 {
            clock.advance(MS * 20);
            time += MS * 20;
        }
        call.poll();
    }
    let ready = call.output.is_some();
    call.abandon();
    let left = bucket.peek(&()).remaining();
    while !behind.run() {
        clock.advance(MS);
        time += MS;
    }
    (left, time, ready)
}

#[test]
fn a_call_dropped_at_any_poll_is_charged_by_both_or_by_neither() {
    for line_first in [true, false] {
        for polls in 0..=5 {
            assert_eq!(dropped_after(polls, line_first), (9, INTERVAL, false), "after {polls} polls");
        }
        assert_eq!(dropped_after(6, line_first), (8, INTERVAL * 2, true));
    }
}

#[test]
fn waiters_behind_a_cancelled_one_move_up_and_its_unit_is_free() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(4)), &clock));
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    let mut calls = [(); 3].map(|()| waits(service.call(())));
    assert!(!passes(service.call(())));
    calls[0].abandon();
    let mut newcomer = waits(service.call(()));
    assert!(!passes(service.call(())), "one unit came back, not two");
    clock.advance(INTERVAL);
    assert!(calls[1].run() && !calls[2].run());
    clock.advance(INTERVAL);
    assert!(calls[2].run() && !newcomer.run());
    clock.advance(INTERVAL);
    assert!(newcomer.run());
}

/// The calls are cancelled as in a server: every third call at a random time. The other calls are released in order,
/// one per interval.
#[tokio::test(start_paused = true)]
async fn when_every_third_of_a_hundred_is_cancelled_the_bucket_is_charged_for_the_rest() {
    for seed in 0..100 {
        let (line, bucket) =
            (RateLimiter::new(queue()), RateLimiter::new(TokenBucket::new(Quota::per_day(100))));
        let service = joined!(line, bucket);
        let mut random = Random::new(seed);
        let (start, mut calls) = (Instant::now(), JoinSet::new());
        for n in 0..100_u64 {
            let patience = if n % 3 == 2 { MS * random.below(9_000) as u32 } else { Duration::MAX };
            let call = service.clone().oneshot(());
            calls.spawn(async move {
                let left = tokio::time::timeout(patience, call).await.is_ok_and(|answer| answer.is_ok());
                (left, n, start.elapsed())
            });
            tokio::task::yield_now().await;
        }
        let mut left: Vec<_> = calls.join_all().await;
        left.retain(|(left, ..)| *left);
        left.sort_by_key(|(_, n, _)| *n);
        for (nth, (_, n, at)) in (0..).zip(&left) {
            assert_eq!(*at, INTERVAL * nth, "seed {seed}: {n}");
        }
        assert!(left.len() >= 67);
        // A hundredth of a unit, which the bucket has regained in the meantime, may be missing from the refund.
        let (due, reported) = (100 - left.len() as u64, bucket.peek(&()).remaining());
        assert!((due - 1..=due).contains(&reported), "seed {seed}: {reported} left, {due} due");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_in_two_queues_waits_for_both() {
    let slow = LeakyBucket::new(Quota::per_second(4)).queue(100);
    for slow_first in [true, false] {
        let (fast, slow) = (RateLimiter::new(queue()), RateLimiter::new(slow.clone()));
        let (start, mut calls) = (Instant::now(), JoinSet::new());
        for n in 0..10_u32 {
            let call: std::pin::Pin<Box<dyn Future<Output = bool> + Send>> = match slow_first {
                true => {
                    let call = joined!(slow, fast).call(());
                    Box::pin(async move { call.await.is_ok() })
                }
                false => {
                    let call = joined!(fast, slow).call(());
                    Box::pin(async move { call.await.is_ok() })
                }
            };
            calls.spawn(async move { (n, call.await, start.elapsed()) });
        }
        let mut left = calls.join_all().await;
        left.sort_unstable();
        assert_eq!(left, (0..10).map(|n| (n, true, MS * 250 * n)).collect::<Vec<_>>());
        // Both limits are free one interval after their last slots. The fast limit has been free for a long time.
        assert!(fast.check(&()).is_allowed());
        assert_eq!(slow.check(&()).retry_after(), Some(MS * 250));
    }
}

/// Drops a call that is in two queues, after `polls` polls. Returns when the next call in each queue is released, and
/// whether the dropped call was ready.
fn dropped_in_two_queues(polls: usize) -> (Duration, Duration, bool) {
    let clock = ManualClock::new();
    let fast = limiter(queue(), &clock);
    let slow = limiter(LeakyBucket::new(Quota::per_second(4)).queue(100), &clock);
    assert!(fast.check(&()).is_allowed() && slow.check(&()).is_allowed());
    let mut call = PolledByHand::new(joined!(fast, slow).call(()));
    let mut behind = [waits(fast.acquire(&())), waits(slow.acquire(&()))];
    let (mut time, mut left) = (Duration::ZERO, [None; 2]);
    let mut go = |time: &mut Duration, behind: &mut [PolledByHand<_>; 2]| {
        clock.advance(MS * 10);
        *time += MS * 10;
        for (behind, left) in behind.iter_mut().zip(&mut left) {
            if left.is_none() && behind.run() {
                *left = Some(*time);
            }
        }
        left[0].zip(left[1])
    };
    for poll in 0..polls {
        if poll > 0 {
            go(&mut time, &mut behind);
        }
        call.poll();
    }
    let ready = call.output.is_some();
    call.abandon();
    loop {
        if let Some((fast, slow)) = go(&mut time, &mut behind) {
            return (fast, slow, ready);
        }
    }
}

#[test]
fn a_call_in_two_queues_dropped_at_any_poll_frees_its_slot_in_both() {
    for polls in 0..=10 {
        // The dropped call was ahead of the other calls in both queues, and leaves both.
        assert_eq!(dropped_in_two_queues(polls), (INTERVAL, MS * 250, false), "after {polls} polls");
    }
    for polls in 11..=20 {
        // The slot of the dropped call in the first queue was at 100 ms, and was not used. It is given back, so the
        // next call may be released at once.
        let now = MS * 10 * polls as u32;
        assert_eq!(dropped_in_two_queues(polls), (now, MS * 250, false), "after {polls} polls");
    }
    for polls in 21..=25 {
        // The next call was released in its own slot.
        assert_eq!(dropped_in_two_queues(polls), (INTERVAL * 2, MS * 250, false), "after {polls} polls");
    }
    assert_eq!(dropped_in_two_queues(26), (INTERVAL * 2, MS * 500, true));
}

#[test]
fn a_call_released_but_not_polled_gives_back_both_when_dropped() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(9)), &clock));
    assert!(line.check(&()).is_allowed());
    let call = waits(joined!(line, bucket).call(()));
    clock.advance(INTERVAL);
    // Any call for the key releases the waiter whose scheduled time has come.
    assert!(line.check_n(&(), 0).is_allowed());
    drop(call);
    assert_eq!(bucket.peek(&()).remaining(), 9);
    assert!(line.check(&()).is_allowed());
}

#[tokio::test(start_paused = true)]
async fn smooth_queues_with_other_limits_too() {
    let smooth = RateLimiter::new(Smooth::bursty(Quota::per_second(5)).queue(10));
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(8)));
    let service = joined!(smooth, bucket);
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..10_u32 {
        let call = service.clone().oneshot(());
        calls.spawn(async move { (call.await.is_ok(), n, start.elapsed()) });
        tokio::task::yield_now().await;
    }
    let mut left = calls.join_all().await;
    left.retain(|(passed, ..)| *passed);
    left.sort_unstable();
    assert_eq!(left, (0..8).map(|n| (true, n, MS * 200 * n)).collect::<Vec<_>>());
    // The two calls that the bucket denied were not queued.
    assert_eq!(smooth.check(&()).retry_after(), Some(MS * 200));
}

/// A layer with a tuple queues calls only if each member of the tuple is configured to queue calls.
#[tokio::test(start_paused = true)]
async fn a_tuple_holds_requests_if_each_member_does() {
    let bucket = || TokenBucket::new(Quota::per_hour(5));
    let start = Instant::now();
    let mut refuses =
        RateLimitLayer::new(Global, (queue(), bucket())).responder(ErrorResponder).layer(answers());
    assert!(refuses.call(()).await.is_ok());
    let Err(Error::Limited(decision)) = refuses.call(()).await else { panic!("it waited") };
    assert_eq!((decision.retry_after(), decision.limit_index()), (Some(INTERVAL), 0));
    let tuple = (queue(), bucket().queue(3));
    let mut holds = RateLimitLayer::new(Global, tuple).responder(ErrorResponder).layer(answers());
    assert!(holds.call(()).await.is_ok() && start.elapsed().is_zero());
    assert!(holds.call(()).await.is_ok());
    assert_eq!(start.elapsed(), INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn a_cost_of_zero_does_not_wait_in_joined_queues() {
    let (line, bucket) = (RateLimiter::new(queue()), RateLimiter::new(TokenBucket::new(Quota::per_hour(1))));
    let free = |cost: u64| {
        RateLimitLayer::with_limiter(Global, line.clone())
            .cost(move |(): &()| cost)
            .and(RateLimitLayer::with_limiter(Global, bucket.clone()).cost(move |(): &()| cost))
            .responder(ErrorResponder)
            .layer(answers())
    };
    assert!(passes(free(1).call(())));
    let start = Instant::now();
    for _ in 0..100 {
        assert!(free(0).oneshot(()).await.is_ok());
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(!passes(free(1).call(())));
    assert!(!passes(free(u64::MAX).call(())));
}

/// Returns a limiter whose queue releases no call for a minute, to be joined with another limit. One call has just been
/// admitted.
fn stuck(clock: &ManualClock) -> RateLimiter<LeakyBucket> {
    let line = limiter(LeakyBucket::new(Quota::per_minute(1)).queue(1_000), clock);
    assert!(line.check(&()).is_allowed());
    line
}

/// Checks that a call that is cancelled late gives back the units of its charge that still count, and no units that are
/// already available again.
fn is_cancelled_late<A: Algorithm>(algorithm: A) {
    let clock = ManualClock::new();
    clock.set(SECOND * 1_000);
    let (line, other) = (stuck(&clock), limiter(algorithm.clone(), &clock));
    let call = joined!(line, other).call(());
    let most = other.peek(&()).remaining();
    clock.advance(SECOND * 5);
    // The unit of the call and all other units are available again, and other calls take them all.
    let full = other.peek(&()).remaining();
    assert!(full > most);
    assert!(other.check_n(&(), full).is_allowed());
    drop(call);
    assert_eq!(other.peek(&()).remaining(), 0, "it was others' units: {algorithm:?}");
}

#[test]
fn a_call_cancelled_late_takes_no_units_from_others_of_a_token_bucket() {
    is_cancelled_late(TokenBucket::new(Quota::per_second(3)));
}

#[test]
fn a_call_cancelled_late_takes_no_units_from_others_of_a_window() {
    is_cancelled_late(FixedWindow::new(Quota::per_second(3)));
    is_cancelled_late(FixedWindow::new(Quota::per_second(3)).aligned());
    is_cancelled_late(SlidingWindow::new(Quota::per_second(3)));
    is_cancelled_late(SlidingLog::new(Quota::per_second(3)));
    is_cancelled_late(SlidingCounter::new(Quota::per_second(3)));
}

/// Random runs, in which calls are queued and cancelled, and other calls are admitted. In any period, no more than the
/// limit is admitted.
fn served_within<A: Algorithm>(algorithm: A, limit: usize) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        let (line, other) = (stuck(&clock), limiter(algorithm.clone(), &clock));
        let mut service = joined!(line, other);
        let (mut time, mut calls, mut served) = (Duration::ZERO, Vec::new(), Vec::new());
        for _ in 0..100 {
            match random.below(5) {
                0 => {
                    let mut call = PolledByHand::new(service.call(()));
                    if !call.poll() {
                        calls.push(call);
                    }
                }
                1 if !calls.is_empty() => drop(calls.swap_remove(random.below(calls.len() as u64) as usize)),
                2 => {
                    let step = MS * random.below(400) as u32;
                    clock.advance(step);
                    time += step;
                }
                _ if other.check(&()).is_allowed() => served.push(time),
                _ => {}
            }
        }
        for window in served.windows(limit + 1) {
            let span = window[limit] - window[0];
            assert!(span >= SECOND, "seed {seed}: {} within {span:?}, of {algorithm:?}", limit + 1);
        }
    }
}

/// The unit of the fast limit is available again long before the unit of the slow limit.
#[test]
fn a_call_cancelled_late_takes_no_units_from_others_of_any_member_of_a_tuple() {
    let pair = (TokenBucket::new(Quota::per_second(3)), FixedWindow::new(Quota::per_day(1_000)));
    is_cancelled_late(pair.clone());
    is_cancelled_late((pair.1.clone(), pair.0.clone()));
    is_cancelled_late((FixedWindow::new(Quota::per_second(3)), SlidingLog::new(Quota::per_day(1_000))));
    is_cancelled_late(pair.0.block_for(SECOND * 100).after(5));
}

/// If the clock is set back after a charge, the charge does not become newer, because the key's time is the latest
/// reading that it has observed.
#[test]
fn a_call_cancelled_after_the_clock_was_set_back_takes_no_units_from_others() {
    fn holds<A: Algorithm>(algorithm: A) {
        let clock = ManualClock::new();
        clock.set(SECOND * 100);
        let (line, other) = (stuck(&clock), limiter(algorithm.clone(), &clock));
        let call = joined!(line, other).call(());
        clock.advance(SECOND);
        assert!(other.check(&()).is_allowed());
        clock.set(SECOND * 100);
        drop(call);
        clock.set(SECOND * 101);
        assert_eq!(other.peek(&()).remaining(), 0, "it was another's unit: {algorithm:?}");
    }
    holds(TokenBucket::new(Quota::per_second(1)));
    holds(FixedWindow::new(Quota::per_second(1)));
    holds(SlidingLog::new(Quota::per_second(1)));
    holds(LeakyBucket::new(Quota::per_second(1)).queue(0));
}

#[test]
fn with_any_cancelled_waiter_admitted_calls_stay_within_a_bucket() {
    let clocks = (0..300).map(|seed| (Random::new(seed), ManualClock::new()));
    for (seed, (mut random, clock)) in clocks.enumerate() {
        let (line, other) = (stuck(&clock), limiter(TokenBucket::new(Quota::per_second(4).burst(3)), &clock));
        let mut service = joined!(line, other);
        let (mut time, mut calls, mut served) = (0_u64, Vec::new(), Vec::new());
        for _ in 0..150 {
            match random.below(6) {
                0 | 1 => {
                    let mut call = PolledByHand::new(service.call(()));
                    if !call.poll() {
                        calls.push(call);
                    }
                }
                2 if !calls.is_empty() => drop(calls.swap_remove(random.below(calls.len() as u64) as usize)),
                3 => {
                    let step = random.below(400);
                    clock.advance(MS * step as u32);
                    time += step;
                }
                _ if other.check(&()).is_allowed() => served.push(time),
                _ => {}
            }
        }
        for (first, from) in served.iter().enumerate() {
            for (last, to) in served.iter().enumerate().skip(first) {
                let due = 3 + (to - from) * 4 / 1_000;
                assert!(
                    ((last - first) as u64) < due,
                    "seed {seed}: {} from {from} to {to} ms",
                    last - first + 1
                );
            }
        }
    }
}

#[test]
fn with_any_cancelled_waiter_admitted_calls_stay_within_a_log() {
    served_within(SlidingLog::new(Quota::per_second(4)), 4);
}

#[test]
fn with_any_cancelled_waiter_admitted_calls_stay_within_a_window() {
    served_within(SlidingWindow::new(Quota::per_second(4)), 4);
}

/// If a call is cancelled at the instant of its charge, the state is as before. There is one exception: a sliding
/// window gives back the oldest units, so others count longer.
#[test]
fn a_call_cancelled_at_once_leaves_no_trace() {
    fn holds<A: Algorithm>(algorithm: A, oldest: bool) {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let clock = ManualClock::new();
            let line = limiter(queue(), &clock);
            let (other, alone) = (limiter(algorithm.clone(), &clock), limiter(algorithm.clone(), &clock));
            let mut service = joined!(line, other);
            for _ in 0..30 {
                clock.advance(MS * random.below(200) as u32);
                let cost = random.below(3);
                assert_eq!(other.check_n(&(), cost), alone.check_n(&(), cost), "seed {seed}");
                let _ = line.check(&());
                let mut call = PolledByHand::new(service.call(()));
                assert!(!call.poll() || call.output.as_ref().unwrap().is_err());
                drop(call);
                assert_eq!(
                    other.peek(&()).remaining(),
                    alone.peek(&()).remaining(),
                    "seed {seed}: {algorithm:?}"
                );
                if oldest {
                    // Both limiters continue with the same clock.
                    other.reset(&());
                    alone.reset(&());
                } else {
                    assert_eq!(other.peek_n(&(), 9), alone.peek_n(&(), 9), "seed {seed}: {algorithm:?}");
                }
            }
        }
    }
    holds(TokenBucket::new(Quota::per_second(9)), false);
    holds(FixedWindow::new(Quota::per_second(9)), false);
    holds(SlidingWindow::new(Quota::per_second(9)), true);
    holds(SlidingLog::new(Quota::per_second(9)), true);
}

/// For all keys of a request, calls have the same order, whichever queue is called first.
#[tokio::test(start_paused = true)]
async fn calls_with_queues_of_their_own_and_one_in_common_are_all_released() {
    let common = RateLimiter::new(queue());
    let own = RateLimiter::new(LeakyBucket::new(Quota::per_second(2)).queue(100));
    let by_user = from_fn(|user: &u64| Some(*user));
    let layer = RateLimitLayer::with_limiter(Global, common.clone())
        .and(RateLimitLayer::with_limiter(by_user, own.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(async |user: u64| Ok::<_, Infallible>(user)));
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..40_u64 {
        let call = service.clone().oneshot(n % 4);
        calls.spawn(async move {
            assert!(call.await.is_ok());
            (n, start.elapsed())
        });
        tokio::task::yield_now().await;
    }
    for (n, at) in calls.join_all().await {
        let (nth, own) = (INTERVAL * n as u32, MS * 500 * (n / 4) as u32);
        // The queue of the user is free at the first call of each user. The call is charged there at its arrival, and
        // not at its scheduled time in the common queue.
        assert_eq!(at, nth.max(own), "{n}");
    }
}

#[test]
fn a_denial_reports_when_both_would_accept_it() {
    let clock = ManualClock::new();
    let line = limiter(LeakyBucket::new(Quota::per_second(10)).queue(1), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_second(4).burst(3)), &clock);
    let mut service = joined!(line, bucket);
    let refused = |service: &mut _| -> Option<Decision> {
        let mut call = PolledByHand::new(Service::call(service, ()));
        match call.poll() {
            true => match call.output.unwrap() {
                Err(Error::Limited(decision)) => Some(decision),
                _ => None,
            },
            false => {
                std::mem::forget(call);
                None
            }
        }
    };
    assert_eq!(refused(&mut service), None);
    assert_eq!(refused(&mut service), None);
    // The queue is full for 100 ms. The bucket has one more token.
    let wait = refused(&mut service).unwrap().retry_after().unwrap();
    assert_eq!(wait, INTERVAL);
    clock.advance(wait - Duration::from_nanos(1));
    assert!(refused(&mut service).is_some());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(refused(&mut service), None);
    // Now the bucket is empty, too, and its wait is longer.
    let wait = refused(&mut service).unwrap().retry_after().unwrap();
    assert_eq!(wait, MS * 150);
    clock.advance(wait - Duration::from_nanos(1));
    assert!(refused(&mut service).is_some());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(refused(&mut service), None);
}
