//! Pauses of a key, during which no call of it passes.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::retry::Policy;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingLog, Smooth, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, PolledByHand, TickingClock};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const NANO: Duration = Duration::from_nanos(1);

fn limiter<A: Algorithm>(algorithm: A) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    clock.advance(100 * SECOND);
    (limiter, clock)
}

/// Queues 100 calls, pauses the key, and returns when each call has passed, in milliseconds after the pause began.
fn departures<A: Algorithm>(algorithm: A) -> Vec<u128> {
    let (limiter, clock) = limiter(algorithm);
    let mut calls: Vec<_> = (0..100)
        .map(|_| {
            let mut call = PolledByHand::new(limiter.acquire("key"));
            call.poll();
            call
        })
        .filter(PolledByHand::is_pending)
        .collect();
    clock.advance(37 * MS);
    assert!(limiter.pause("key", 2 * SECOND));
    let mut passed = Vec::new();
    for ms in (0..20_000).step_by(10) {
        while calls.iter().any(PolledByHand::is_woken) {
            calls.iter_mut().for_each(|call| {
                call.run();
            });
        }
        let ready = calls.iter().take_while(|call| call.output.is_some()).count();
        assert!(calls[ready..].iter().all(PolledByHand::is_pending), "out of order at {ms}");
        passed.extend(vec![ms; ready]);
        calls.drain(..ready);
        if ms == 1_000 {
            let new = limiter.check("key");
            assert!(!new.is_allowed() && new.remaining() == 0 && new.retry_after() >= Some(SECOND));
        }
        clock.advance(10 * MS);
    }
    assert!(calls.is_empty());
    passed
}

#[test]
fn no_queued_call_passes_in_a_pause_and_the_rate_is_kept_after_it() {
    let paced: Vec<u128> = (0..99).map(|call| 2_000 + 100 * call).collect();
    assert_eq!(departures(LeakyBucket::new(Quota::per_second(10)).queue(100)), paced);
    // The bucket has filled.
    let bucket: Vec<u128> = (0..99 - 4).map(|call: u128| 2_000 + 100 * call.saturating_sub(4)).collect();
    assert_eq!(departures(TokenBucket::new(Quota::per_second(10).burst(5))), bucket);
    let window = departures(FixedWindow::new(Quota::per_second(10)));
    assert!(window[0] == 2_000 && window.len() == 90, "{window:?}");
    assert!((10..90).all(|call| window[call] - window[call - 10] >= 900), "{window:?}");
    let log = departures(SlidingLog::new(Quota::per_second(10)));
    assert!(log[0] == 2_000 && (10..90).all(|call| log[call] - log[call - 10] >= 1_000), "{log:?}");
    // The permits of a second were stored.
    assert_eq!(departures(Smooth::bursty(Quota::per_second(10))), [2_000; 10]);
}

#[test]
fn a_denial_has_the_rest_of_the_pause_or_a_longer_wait_by_the_rule() {
    let (limiter, clock) = limiter(TokenBucket::new(Quota::per_second(1).burst(5)));
    assert!(limiter.pause("key", 3 * SECOND));
    clock.advance(SECOND);
    assert_eq!(limiter.peek("key").retry_after(), Some(2 * SECOND));
    assert_eq!(limiter.check_n("key", 5).retry_after(), Some(2 * SECOND));
    assert!(limiter.check_n("key", 6).never_fits() && limiter.check_n("key", 0).is_allowed());
    let (checked, peeked) = (limiter.check_n("key", 0), limiter.peek_n("key", 0));
    for decision in [checked, peeked, limiter.acquire_n("key", 0).now(), limiter.check("key")] {
        assert_eq!(decision.reset_after(), 2 * SECOND);
    }
    limiter.charge("key", 9);
    // 9 missing, of which 2 are refilled at the end of the pause
    assert_eq!(limiter.check("key").retry_after(), Some(5 * SECOND));
    limiter.refund("key", 9);
    clock.advance(2 * SECOND - NANO);
    assert_eq!(limiter.check("key").retry_after(), Some(NANO));
    clock.advance(NANO);
    assert!(limiter.peek_n("key", 5).is_allowed() && limiter.check_n("key", 5).is_allowed());
}

#[test]
fn a_later_pause_zero_and_a_reset_end_it_and_a_replacement_keeps_it() {
    let (limiter, _clock) = limiter(TokenBucket::new(Quota::per_second(1).burst(5)));
    let left = || limiter.check_n("key", 5).retry_after();
    assert!(limiter.pause("key", 9 * SECOND) && limiter.pause("key", SECOND));
    assert_eq!(left(), Some(SECOND));
    limiter.replace(TokenBucket::new(Quota::per_second(2).burst(5)));
    assert_eq!(left(), Some(SECOND));
    assert!(!limiter.pause("key", Duration::ZERO));
    assert!(limiter.check("key").is_allowed());
    assert!(limiter.pause("key", Duration::MAX) && limiter.reset("key"));
    assert!(limiter.check("key").is_allowed());
    assert!(!limiter.pause("other", Duration::ZERO) && limiter.len() == 1);
    limiter.close();
    assert!(!limiter.pause("key", SECOND) && limiter.check("key").is_closed());
}

#[test]
fn a_remembered_denial_does_not_go_round_a_pause() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)));
    for _ in 0..9 {
        let _ = limiter.check("key");
    }
    assert!(limiter.pause("key", 9_000 * SECOND));
    for _ in 0..9 {
        assert!(limiter.check("key").retry_after() > Some(8_000 * SECOND));
    }
    assert_eq!(limiter.stats().calls.admitted, 1);
}

#[test]
fn a_lockout_counts_no_denial_of_a_pause() {
    let rule = TokenBucket::new(Quota::per_second(5)).block_for(60 * SECOND).after(3);
    let (limiter, clock) = limiter(rule);
    assert!(limiter.pause("key", SECOND));
    for _ in 0..9 {
        let denied = limiter.check("key");
        assert!(!denied.is_locked_out() && denied.retry_after() == Some(SECOND));
    }
    clock.advance(SECOND);
    assert!(limiter.check("key").is_allowed());
    assert!(limiter.lock_out("key", 9 * SECOND) && limiter.pause("key", SECOND));
    assert!(limiter.check("key").is_locked_out());
    assert_eq!(limiter.check("key").retry_after(), Some(9 * SECOND));
}

#[test]
fn permits_are_denied_and_waiting_permits_wait() {
    let (limiter, clock) = limiter(Concurrency::per_key(1).queue(9));
    let permit = limiter.try_acquire_permit("key").unwrap();
    let mut first = PolledByHand::new(limiter.acquire_permit("key"));
    first.poll();
    assert!(limiter.pause("key", SECOND));
    drop(permit);
    first.run();
    assert!(first.is_pending());
    clock.advance(SECOND);
    first.run();
    assert!(first.output.is_some_and(|output| output.is_ok()));
    assert!(limiter.pause("other", SECOND));
    let denied = limiter.try_acquire_permit("other").unwrap_err();
    assert_eq!(denied.decision().retry_after(), Some(SECOND));
}

/// The total is full, so the call cannot be queued. Nobody knows when other calls end, but the pause is known.
#[test]
fn a_call_that_the_total_denies_is_told_the_rest_of_the_pause() {
    let (limiter, _) = limiter(Concurrency::per_key(1).total(2).queue(5));
    let _held = ["b", "c"].map(|key| limiter.try_acquire_permit(key).unwrap());
    assert!(limiter.pause("a", 10 * SECOND));
    let mut call = PolledByHand::new(limiter.acquire_permit("a"));
    assert!(call.poll());
    let denied = call.output.take().unwrap().unwrap_err();
    assert_eq!(denied.decision().retry_after(), Some(10 * SECOND));
}

/// A pause asks the queue, which a tuple with a lockout has for nothing else.
#[test]
fn a_member_that_locks_out_is_not_forgotten_in_a_pause() {
    fn assert_locked_out<A: Algorithm>(algorithm: A) {
        let (limiter, clock) = limiter(algorithm);
        while !limiter.check("key").is_locked_out() {}
        clock.advance(60 * SECOND);
        assert!(limiter.pause("key", SECOND));
        for denied in [limiter.peek("key"), limiter.check("key")] {
            assert!(denied.is_locked_out(), "{denied}");
            assert_eq!(denied.retry_after(), Some(3_540 * SECOND));
        }
    }
    let window = FixedWindow::new(Quota::per_minute(5)).block_for(3_600 * SECOND).after(3);
    let bucket = TokenBucket::new(Quota::per_second(100));
    assert_locked_out((window.clone(), bucket.clone()));
    assert_locked_out((bucket, window));
}

/// Neither of two lockouts counts the denials of a pause.
#[test]
fn members_that_lock_out_count_no_denial_of_a_pause() {
    let window = || FixedWindow::new(Quota::per_minute(5)).block_for(3_600 * SECOND).after(3);
    let (limiter, clock) = limiter((window(), window()));
    assert!(limiter.pause("a", SECOND));
    assert!((0..10).all(|_| !limiter.check("a").is_allowed()));
    clock.advance(SECOND);
    assert!(limiter.check("a").is_allowed());
}

#[test]
fn a_queued_call_whose_maximum_wait_ends_in_the_pause_is_denied_then() {
    let (limiter, clock) = limiter(LeakyBucket::new(Quota::per_second(10)).queue(9).max_wait(SECOND));
    assert!(limiter.check("key").is_allowed());
    let mut call = PolledByHand::new(limiter.acquire("key"));
    call.poll();
    assert!(limiter.pause("key", 5 * SECOND));
    call.run();
    clock.advance(SECOND - NANO);
    call.run();
    assert!(call.is_pending());
    clock.advance(NANO);
    call.run();
    let denied = call.output.expect("its time is over");
    // A call waits only if the pause ends in time.
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(3 * SECOND)));
    assert_eq!(limiter.acquire("key").now().retry_after(), Some(3 * SECOND));
}

#[test]
fn a_paused_key_is_not_evicted_and_a_pause_that_is_over_takes_no_place() {
    let clock = ManualClock::new();
    let window = FixedWindow::new(Quota::per_day(1));
    let limiter = RateLimiter::builder(window.clone()).clock(clock.clone()).max_keys(100).build();
    assert!(limiter.pause("key", SECOND));
    for key in 0..10_000 {
        assert!(limiter.check(&key).is_allowed());
    }
    assert_eq!(limiter.check("key").retry_after(), Some(SECOND));
    let limiter = RateLimiter::builder(window).clock(clock.clone()).max_keys(20_000).build();
    assert!((0..10_000).all(|key| limiter.pause(&key, SECOND)));
    assert!(!limiter.pause("one more", SECOND) && limiter.pause(&7, SECOND));
    clock.advance(SECOND);
    assert!(limiter.pause("one more", SECOND));
    for key in 20_000..60_000 {
        assert!(limiter.check(&key).is_allowed());
    }
}

#[test]
fn a_clock_that_is_set_back_adds_at_most_a_period() {
    let (limiter, clock) = limiter(TokenBucket::new(Quota::per_second(1)));
    assert!(limiter.pause("key", 5 * SECOND));
    clock.set(10 * SECOND);
    assert_eq!(limiter.peek("key").retry_after(), Some(5 * SECOND));
    assert_eq!(limiter.check("key").retry_after(), Some(5 * SECOND));
    clock.advance(5 * SECOND);
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn settlements_charges_and_refunds_work_during_a_pause() {
    let (limiter, clock) = limiter(TokenBucket::new(Quota::per_second(1).burst(10)));
    let [less, more] = [2, 4].map(|cost| limiter.call("key").cost(cost).reserve().unwrap());
    assert!(limiter.pause("key", 2 * SECOND));
    let settled = less.settle(1).unwrap();
    assert_eq!((settled.is_allowed(), settled.remaining()), (true, 0), "no call passes now");
    more.settle(8);
    limiter.refund("key", 1);
    limiter.charge("key", 1);
    assert!(limiter.try_acquire_permit("key").is_err());
    clock.advance(2 * SECOND);
    // 1 + 8 of 10 are used, and 2 are refilled
    assert_eq!(limiter.peek("key").remaining(), 3);
    assert!(limiter.pause("key", SECOND) && limiter.check_n("key", 4).retry_after() == Some(SECOND));
}

#[test]
fn a_joined_call_sees_the_pause_of_one_limit_and_charges_none() {
    let (one, _) = limiter(TokenBucket::new(Quota::per_hour(5)));
    let clock = ManualClock::new();
    let paced = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let two = RateLimiter::builder(paced).clock(clock.clone()).build();
    let by_name = || from_fn(|name: &&'static str| Some(*name));
    let layer = RateLimitLayer::with_limiter(by_name(), one.clone())
        .and(RateLimitLayer::with_limiter(by_name(), two.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(|_: &str| async { Ok::<_, Infallible>(()) }));
    assert!(one.pause("a", SECOND) && two.pause("b", SECOND));
    assert!(service.clone().oneshot("a").now().is_err());
    assert_eq!((one.check_n("a", 0).remaining(), two.check("a").is_allowed()), (0, true));
    // In the queue of the second limit, the call waits.
    let mut call = PolledByHand::new(service.clone().oneshot("b"));
    assert!(!call.poll() && !two.peek("b").is_allowed());
    clock.advance(SECOND - NANO);
    assert!(!call.run());
    clock.advance(NANO);
    assert!(call.run() && call.output.unwrap().is_ok());
    assert_eq!(one.peek("b").remaining(), 4);
}

#[test]
fn a_pause_is_kept_by_a_clock_that_moves_at_each_reading() {
    let clock = TickingClock::new();
    let paced = LeakyBucket::new(Quota::per_second(1_000)).queue(5);
    let limiter = RateLimiter::builder(paced).clock(clock.clone()).build();
    assert!(limiter.pause("key", SECOND));
    let left = limiter.check("key").retry_after().unwrap();
    assert!(left < SECOND && left > SECOND - Duration::from_nanos(100), "{left:?}");
    let mut calls: Vec<_> = (0..3).map(|_| PolledByHand::new(limiter.acquire("key"))).collect();
    calls.iter_mut().for_each(|call| assert!(!call.poll()));
    clock.advance(SECOND - Duration::from_micros(1));
    calls.iter_mut().for_each(|call| assert!(!call.run()));
    clock.advance(Duration::from_micros(1));
    assert_eq!([0, 1, 2].map(|at| calls[at].run()), [true, false, false]);
    clock.advance(2 * MS);
    assert!(calls.iter_mut().all(PolledByHand::run));
}

/// Retries at once what the host has refused. The limit holds the retry until the pause is over.
#[derive(Clone)]
struct Obedient(Option<RateLimiter<LeakyBucket>>);

impl<E> Policy<Request<()>, Response<()>, E> for Obedient {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Request<()>, result: &mut Result<Response<()>, E>) -> Option<Self::Future> {
        let response = result.as_ref().ok()?;
        let seconds = response.headers().get("retry-after")?.to_str().ok()?.parse().ok()?;
        if let Some(limiter) = &self.0 {
            limiter.pause("host", Duration::from_secs(seconds));
        }
        Some(ready(()))
    }

    fn clone_request(&mut self, _: &Request<()>) -> Option<Request<()>> {
        Some(Request::new(()))
    }
}

/// Makes 30 calls through a retry around a limit of ten a second. The host refuses calls from 0.5 s on until 1.7 s.
/// Returns the times of the refused calls, and of the others, in milliseconds.
async fn retry_stack(pauses: bool) -> (Vec<u128>, Vec<u128>) {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)).queue(100));
    let begin = Instant::now();
    let seen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let host = {
        let seen = Arc::clone(&seen);
        service_fn(move |_: Request<()>| {
            let at = begin.elapsed().as_millis();
            let (refused, served) = &mut *seen.lock().unwrap();
            let response = if (500..1_700).contains(&at) {
                refused.push(at);
                Response::builder().status(429).header("retry-after", "2").body(())
            } else {
                served.push(at);
                Response::builder().body(())
            };
            ready(Ok::<_, Infallible>(response.unwrap()))
        })
    };
    let by_host = from_fn(|_: &Request<()>| Some("host"));
    let stack = ServiceBuilder::new()
        .retry(Obedient(pauses.then(|| limiter.clone())))
        .layer(RateLimitLayer::with_limiter(by_host, limiter).responder(ErrorResponder))
        .service(host);
    let mut calls = JoinSet::new();
    for _ in 0..30 {
        calls.spawn(stack.clone().oneshot(Request::new(())));
    }
    assert!(calls.join_all().await.into_iter().all(|response| response.unwrap().status() == 200));
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pauses_is_refused_once_and_not_twelve_times() {
    let (refused, _) = retry_stack(false).await;
    assert_eq!(refused.len(), 12);
    let (refused, served) = retry_stack(true).await;
    assert_eq!(refused, [500]);
    let after: Vec<u128> = (0..25).map(|call| 2_500 + 100 * call).collect();
    assert_eq!((served.len(), &served[5..]), (30, &*after));
}

#[test]
fn a_clock_that_is_set_back_keeps_what_is_left_of_a_pause_whose_waiter_leaves() {
    let (limiter, clock) = limiter(Concurrency::per_key(5).queue(3));
    assert!(limiter.pause("key", 10 * SECOND));
    let mut waiter = PolledByHand::new(limiter.acquire_permit("key"));
    assert!(!waiter.poll());
    // beyond what is left of the pause
    clock.set(88 * SECOND);
    drop(waiter);
    assert_eq!(limiter.peek("key").retry_after(), Some(10 * SECOND));
    clock.advance(10 * SECOND - NANO);
    assert_eq!(limiter.peek("key").retry_after(), Some(NANO));
    clock.advance(NANO);
    assert!(limiter.peek("key").is_allowed());
}

/// An algorithm that queues no call decides alone once a pause is over, though the key has a queue until then.
#[test]
fn the_first_denial_after_a_pause_counts_once() {
    fn look<A: Algorithm>(algorithm: A) {
        let (limiter, clock) = limiter(algorithm);
        assert!(limiter.check("key").is_allowed());
        assert!(limiter.pause("key", SECOND));
        clock.advance(SECOND);
        assert!(!limiter.acquire("key").now().is_locked_out(), "the first denial of two");
        assert!(limiter.acquire("key").now().is_locked_out(), "the second");
    }
    let hourly = || FixedWindow::new(Quota::per_hour(1));
    let bucket = || TokenBucket::new(Quota::per_second(100));
    look((hourly().block_for(3_600 * SECOND).after(2), bucket()));
    look((bucket().block_for(3_600 * SECOND).after(2), bucket(), hourly().block_for(SECOND * 60).after(2)));
    let priority = FixedWindow::new(Quota::per_second(100)).priority(50);
    look((hourly(), priority).block_for(3_600 * SECOND).after(2));
}

#[test]
fn a_lockout_whose_own_limit_allows_a_call_counts_no_denial_after_a_pause() {
    let logins = FixedWindow::new(Quota::per_hour(100)).block_for(3_600 * SECOND).after(1);
    let (limiter, clock) = limiter((logins, TokenBucket::new(Quota::per_second(1))));
    assert!(limiter.pause("key", SECOND));
    clock.advance(SECOND);
    assert!(limiter.acquire("key").now().is_allowed());
    assert!(limiter.pause("key", 100 * MS));
    clock.advance(100 * MS);
    let denied = limiter.acquire("key").now();
    assert_eq!((denied.is_locked_out(), denied.retry_after()), (false, Some(900 * MS)));
}
