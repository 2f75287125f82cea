//! Calls of `acquire`: how many of them wait, how long they wait, and what denied calls report.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower_throttle::algorithm::*;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Attempt;
use tower_throttle::store_support::{JointOutcome, decide_in_memory, memory_part};
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::support::PolledByHand;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn two_a_second() -> Quota {
    Quota::per_second(2)
}

fn limiter<A: Algorithm>(algorithm: A) -> (RateLimiter<A>, ManualClock) {
    limiter_of(algorithm, 10_000)
}

fn limiter_of<A: Algorithm>(algorithm: A, max_queued: usize) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    let builder = RateLimiter::builder(algorithm).clock(clock.clone()).max_queued(max_queued);
    (builder.build(), clock)
}

fn start<F: Future>(future: F) -> PolledByHand<F> {
    let mut call = PolledByHand::new(future);
    call.poll();
    call
}

fn queued<F: Future<Output: std::fmt::Debug>>(future: F) -> PolledByHand<F> {
    let call = start(future);
    assert!(call.is_pending(), "decided at once: {:?}", call.output);
    call
}

fn denied<F: Future<Output = Decision>>(future: F) -> Decision {
    let decision = start(future).output.expect("decided at once");
    assert!(!decision.is_allowed());
    decision
}

fn use_up<A: Algorithm>(limiter: &RateLimiter<A>, key: &str) {
    while let Ok(permit) = limiter.try_acquire_permit(key) {
        // The call stays in progress.
        std::mem::forget(permit);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_tasks_wait_for_a_bucket_with_a_burst_of_one() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(50).burst(1)));
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let acquire = limiter.acquire("key");
        tasks.spawn(async move { (acquire.await.is_allowed(), begin.elapsed()) });
    }
    let mut ended = tasks.join_all().await;
    ended.sort_unstable();
    let expected: Vec<_> = (0..10).map(|nth| (true, MS * 20 * nth)).collect();
    assert_eq!(ended, expected);
}

/// Returns how many of 50 calls are queued if the algorithm admits none of them at once.
fn waiting_of_fifty<A: Algorithm>(algorithm: A) -> usize {
    let (limiter, _clock) = limiter(algorithm);
    use_up(&limiter, "key");
    let calls: Vec<_> = (0..50).map(|_| start(limiter.acquire_permit("key"))).collect();
    let waiting = calls.iter().filter(|call| call.is_pending()).count();
    assert_eq!(limiter.queued(), waiting);
    waiting
}

#[test]
fn any_number_of_calls_waits_unless_the_algorithm_bounds_its_queue() {
    macro_rules! bounds {
        ($algorithm:expr) => {{
            let algorithm = $algorithm;
            let name = stringify!($algorithm);
            assert_eq!(waiting_of_fifty(algorithm.clone()), 50, "{name}");
            assert_eq!(waiting_of_fifty(algorithm.clone().queue(0)), 0, "{name}");
            assert_eq!(waiting_of_fifty(algorithm.clone().queue(7)), 7, "{name}");
            assert_eq!(waiting_of_fifty(algorithm.clone().queue(7).max_wait(SECOND * 90)), 7, "{name}");
            assert_eq!(waiting_of_fifty(algorithm.clone().max_wait(SECOND * 90).queue(7)), 7, "{name}");
            assert_eq!(waiting_of_fifty(algorithm.clone().max_wait(SECOND * 90)), 2, "{name}");
            assert_eq!(waiting_of_fifty(algorithm.clone().overflow(QueueOverflow::RejectNew)), 2, "{name}");
            assert_eq!(waiting_of_fifty(Tiered::new(algorithm.clone())), 50, "{name}");
            assert_eq!(waiting_of_fifty(algorithm.block_for(SECOND).after(100)), 50, "{name}");
        }};
    }
    bounds!(TokenBucket::new(two_a_second()));
    bounds!(FixedWindow::new(two_a_second()));
    bounds!(SlidingWindow::new(two_a_second()));
    bounds!(SlidingCounter::new(two_a_second()));
    bounds!(SlidingLog::new(two_a_second()));
    bounds!(Concurrency::per_key(2));
}

#[test]
fn a_leaky_bucket_and_a_smooth_limiter_keep_a_queue_as_long_as_their_burst() {
    let three = two_a_second().burst(3);
    assert_eq!(waiting_of_fifty(LeakyBucket::new(three)), 3);
    assert_eq!(waiting_of_fifty(LeakyBucket::new(three).queue(7)), 7);
    assert_eq!(waiting_of_fifty(Smooth::bursty(three)), 3);
    assert_eq!(waiting_of_fifty(Smooth::bursty(three).queue(7)), 7);
}

#[test]
fn a_tuple_has_the_shortest_queue_that_one_of_its_members_sets() {
    let (bucket, window) = (TokenBucket::new(two_a_second()), FixedWindow::new(two_a_second()));
    assert_eq!(waiting_of_fifty((bucket.clone(), window.clone())), 50);
    assert_eq!(waiting_of_fifty((bucket.clone().queue(7), window.clone())), 7);
    assert_eq!(waiting_of_fifty((bucket.clone(), window.clone().queue(7))), 7);
    assert_eq!(waiting_of_fifty((bucket.clone().queue(9), window.queue(7))), 7);
    assert_eq!(waiting_of_fifty((bucket, LeakyBucket::new(two_a_second().burst(3)))), 3);
}

#[test]
fn one_key_may_take_every_place_of_the_total() {
    let (limiter, clock) = limiter_of(TokenBucket::new(two_a_second().burst(1)), 3);
    use_up(&limiter, "a");
    use_up(&limiter, "b");
    let mut calls: Vec<_> = (0..3).map(|_| queued(limiter.acquire("a"))).collect();
    // `max_queued` calls are queued. The next call of the same key can be queued when the first waiter is admitted. A
    // call of another key is admitted at that time.
    assert_eq!(denied(limiter.acquire("a")).retry_after(), Some(MS * 500));
    assert_eq!(denied(limiter.acquire("b")).retry_after(), Some(MS * 500));
    clock.set(MS * 500 - Duration::from_nanos(1));
    assert_eq!(denied(limiter.acquire("a")).retry_after(), Some(Duration::from_nanos(1)));
    clock.set(MS * 500);
    assert!(calls[0].run());
    calls.push(queued(limiter.acquire("a")));
    let decision = denied(limiter.acquire("a"));
    assert_eq!((decision.retry_after(), decision.remaining()), (Some(MS * 500), 0));
    // If the calls of other keys take all places, a call must wait until it can be admitted at once.
    use_up(&limiter, "b");
    assert_eq!(denied(limiter.acquire("b")).retry_after(), Some(MS * 500));
    assert_eq!(denied(limiter.acquire_n("c", 2)).retry_after(), None, "never fits");
}

#[test]
fn when_the_total_is_full_retry_after_says_when_there_is_a_place() {
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(5).max_wait(MS * 150);
    let (limiter, clock) = limiter_of(rule, 2);
    assert!(start(limiter.acquire("a")).output.unwrap().is_allowed());
    // The first waiter is admitted at 100 ms. The next call would be admitted at 200 ms, so from 50 ms on, its wait is
    // at most 150 ms.
    let mut first = queued(limiter.acquire("a"));
    let decision = denied(limiter.acquire("a"));
    assert_eq!((decision.retry_after(), decision.remaining()), (Some(MS * 50), 0));
    clock.set(MS * 50);
    let _second = queued(limiter.acquire("a"));
    // `max_queued` calls are queued. A place is free from 100 ms on, and the wait is short enough from 150 ms on.
    assert_eq!(denied(limiter.acquire("a")).retry_after(), Some(MS * 100));
    // The first call must be admitted on time, because a slot that is long overdue moves the schedule.
    clock.set(MS * 100);
    assert!(first.run());
    clock.set(MS * 150 - Duration::from_nanos(1));
    assert_eq!(denied(limiter.acquire("a")).retry_after(), Some(Duration::from_nanos(1)));
    clock.set(MS * 150);
    let _third = queued(limiter.acquire("a"));
    // The oldest waiter is displaced only if the queue of its own key is full.
    let rule = TokenBucket::new(two_a_second().burst(1)).queue(5).overflow(QueueOverflow::DropOldest);
    let (limiter, _clock) = limiter_of(rule, 2);
    use_up(&limiter, "a");
    let _calls: Vec<_> = (0..2).map(|_| queued(limiter.acquire("a"))).collect();
    assert_eq!(denied(limiter.acquire("a")).retry_after(), Some(MS * 500));
}

/// A displaced call is told when its own maximum wait, not only that of the queue, fits again.
#[test]
fn a_displaced_call_is_told_when_it_would_not_wait_too_long() {
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(1).overflow(QueueOverflow::DropOldest);
    let (limiter, clock) = limiter(rule);
    assert!(limiter.check("key").is_allowed());
    clock.set(MS * 50);
    let impatient = || limiter.call("key").max_wait(MS * 50).acquire();
    let mut oldest = queued(impatient());
    let mut newer = queued(limiter.acquire("key"));
    assert!(oldest.run());
    // The newer call takes the slot at 100 ms, and the next is at 200 ms.
    assert_eq!(oldest.output.unwrap().retry_after(), Some(MS * 100));
    clock.set(MS * 100);
    assert!(newer.run());
    clock.set(MS * 150 - Duration::from_nanos(1));
    assert_eq!(denied(impatient()).retry_after(), Some(Duration::from_nanos(1)));
    clock.set(MS * 150);
    let _again = queued(impatient());
}

/// Asserts that a call that waits at most `patience` is denied at every instant before its `retry_after`, and queued at
/// this instant.
fn is_kept<A: Algorithm>(name: &str, algorithm: A) {
    let (limiter, clock) = limiter(algorithm);
    use_up(&limiter, "key");
    let wait = limiter.peek("key").retry_after().expect(name);
    let short = wait / 4;
    let decision = denied(limiter.call("key").max_wait(short).acquire());
    assert_eq!((decision.retry_after(), decision.remaining()), (Some(wait - short), 0), "{name}");
    assert_eq!(
        denied(limiter.call("key").max_wait(Duration::ZERO).acquire()).retry_after(),
        Some(wait),
        "{name}"
    );
    drop(queued(limiter.call("key").max_wait(wait).acquire()));
    drop(queued(limiter.call("key").cost(2).max_wait(Duration::MAX).acquire()));
    clock.set(wait - short - Duration::from_nanos(1));
    assert_eq!(
        denied(limiter.call("key").max_wait(short).acquire()).retry_after(),
        Some(Duration::from_nanos(1)),
        "{name}"
    );
    clock.set(wait - short);
    let mut call = queued(limiter.call("key").max_wait(short).acquire());
    assert_eq!(limiter.queued(), 1);
    clock.set(wait);
    assert!(call.run(), "{name}");
    let decision = call.output.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.delay(), short, "{name}");
}

#[test]
fn acquire_within_denies_at_once_what_would_wait_longer() {
    macro_rules! of_each {
        ($($algorithm:expr),+ $(,)?) => { $(is_kept(stringify!($algorithm), $algorithm);)+ };
    }
    of_each!(
        TokenBucket::new(two_a_second()),
        FixedWindow::new(two_a_second()),
        SlidingWindow::new(two_a_second()),
        SlidingLog::new(two_a_second()),
        SlidingCounter::new(two_a_second()),
        Tiered::new(TokenBucket::new(two_a_second())),
        (TokenBucket::new(two_a_second()), SlidingLog::new(two_a_second())),
        TokenBucket::new(two_a_second()).block_for(SECOND).after(100),
        LeakyBucket::new(two_a_second()),
    );
}

#[test]
fn an_algorithm_with_a_shorter_max_wait_keeps_it() {
    let (limiter, _clock) = limiter(TokenBucket::new(two_a_second()).max_wait(MS * 100));
    use_up(&limiter, "key");
    assert_eq!(denied(limiter.call("key").max_wait(SECOND).acquire()).retry_after(), Some(MS * 400));
}

#[test]
fn as_many_calls_wait_as_their_own_max_wait_allows() {
    let (limiter, _clock) = limiter(LeakyBucket::new(Quota::per_second(10)).queue(9));
    // One call is admitted at once, and the others at 100, 200 and 300 ms.
    let decision = start(limiter.call("key").max_wait(MS * 300).acquire()).output.unwrap();
    assert_eq!((decision.is_allowed(), decision.remaining()), (true, 0));
    let _calls: Vec<_> = (0..3).map(|_| queued(limiter.call("key").max_wait(MS * 300).acquire())).collect();
    let decision = denied(limiter.call("key").max_wait(MS * 300).acquire());
    assert_eq!((decision.remaining(), decision.retry_after()), (0, Some(MS * 100)));
    let _another = queued(limiter.acquire("key"));
}

#[test]
fn a_call_for_a_permit_is_denied_after_its_duration() {
    let (limiter, clock) = limiter(Concurrency::per_key(1));
    let permit = limiter.try_acquire_permit("key").unwrap();
    assert!(start(limiter.call("key").max_wait(Duration::ZERO).acquire_permit()).output.unwrap().is_err());
    let mut short = queued(limiter.call("key").max_wait(MS * 30).acquire_permit());
    let mut long = queued(limiter.call("key").max_wait(MS * 60).acquire_permit());
    clock.set(MS * 30 - Duration::from_nanos(1));
    assert!(!short.run() && !long.run());
    clock.set(MS * 30);
    assert!(short.run() && !long.run());
    let denied = short.output.unwrap().unwrap_err();
    let decision = denied.decision();
    assert_eq!((decision.retry_after(), decision.delay()), (None, MS * 30));
    assert_eq!(limiter.queued(), 1);
    drop(permit);
    assert!(long.run());
    let permit = long.output.unwrap().unwrap();
    assert!(limiter.try_acquire_permit("key").is_err(), "it is held");
    drop(permit);
    assert!(limiter.try_acquire_permit("key").is_ok());
}

#[test]
fn a_permit_of_a_timed_algorithm_is_denied_at_once() {
    let (limiter, clock) = limiter(TokenBucket::new(two_a_second()));
    use_up(&limiter, "key");
    let denied = start(limiter.call("key").max_wait(MS * 499).acquire_permit()).output.unwrap().unwrap_err();
    assert_eq!(denied.to_string(), "rate limit exceeded: retry after 1ms");
    assert_eq!(denied.decision().retry_after(), Some(MS));
    let mut call = queued(limiter.call("key").max_wait(MS * 500).acquire_permit());
    clock.set(MS * 500);
    assert!(call.run() && call.output.unwrap().is_ok());
}

#[test]
fn a_denial_by_a_full_queue_names_the_queue() {
    let (limiter, _clock) = limiter(TokenBucket::new(two_a_second()).queue(1));
    use_up(&limiter, "key");
    let _queued = queued(limiter.acquire("key"));
    let denied = start(limiter.acquire("key")).output.unwrap().into_result().unwrap_err();
    let wait = denied.decision().retry_after().unwrap();
    assert_eq!(denied.to_string(), format!("rate limit exceeded: the queue is full, retry after {wait:?}"));
    assert_eq!(
        denied.decision().to_string(),
        format!("denied, 0 of 2 left, the queue is full, retry after {wait:?}")
    );
}

#[test]
fn a_fallback_that_queues_no_requests_denies_a_joint_call_at_once_though_the_limiter_in_redis_would_queue_it()
{
    let (fallback, _) = limiter(TokenBucket::new(Quota::per_minute(1)));
    let decide = || {
        // The call can be settled, so it is not plain.
        let attempt = Attempt::new(1).wait().with_reservation();
        decide_in_memory([Some(memory_part(&fallback, "key", attempt))].into_iter().collect())
    };
    for is_allowed in [true, false] {
        let JointOutcome::Ready(decided) = decide() else { panic!("it must not wait") };
        let (decision, _) = decided.into_iter().flatten().next().unwrap().decided.into_parts();
        assert_eq!(decision.is_allowed(), is_allowed);
    }
}
