//! A call of any limiter that is dropped at any poll is as if it had never been made or, once it was admitted, as if it
//! had ended then.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{Layer, Service};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::{Denied, FairLimiter, Permit};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{INTERVAL, MS, busy, thousand_a_second, waiting};
use crate::support::{PolledByHand, limiter};

type Call = Pin<Box<dyn Future<Output = ()>>>;

/// One way to call a limiter, and the limiter.
struct Subject {
    clock: ManualClock,
    /// Makes a call that is in progress for this many polls after the one that finds that it was admitted.
    call: Box<dyn Fn(usize) -> Call>,
    /// The number of calls that were admitted and have begun to work.
    begun: Arc<AtomicUsize>,
    /// Describes the state of the limiters, and takes units of other keys for that.
    state: Box<dyn Fn() -> String>,
}

/// The work of a call.
async fn work(polls: usize) {
    let mut left = polls;
    poll_fn(|_| {
        let is_over = left == 0;
        left = left.saturating_sub(1);
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A service that counts its calls.
#[derive(Clone, Default)]
struct Works(Arc<AtomicUsize>);

impl Service<usize> for Works {
    type Response = ();
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<(), Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, polls: usize) -> Self::Future {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            work(polls).await;
            Ok(())
        })
    }
}

/// Returns calls that hold a permit while they work.
fn with_permits<F>(
    clock: ManualClock,
    acquire: impl Fn() -> F + 'static,
    state: Box<dyn Fn() -> String>,
) -> Subject
where
    F: Future<Output = Result<Permit, Denied>> + 'static,
{
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let call = move |polls| -> Call {
        let (call, count) = (acquire(), count.clone());
        Box::pin(async move {
            let permit = call.await.expect("it is admitted");
            count.fetch_add(1, Ordering::SeqCst);
            work(polls).await;
            drop(permit);
        })
    };
    Subject { clock, call: Box::new(call), begun, state }
}

/// Returns calls to a service behind a layer.
fn through<L>(clock: ManualClock, layer: L, state: Box<dyn Fn() -> String>) -> Subject
where
    L: Layer<Works>,
    L::Service: Service<usize, Response = (), Error = Error<Infallible>> + 'static,
{
    let works = Works::default();
    let begun = works.0.clone();
    let service = RefCell::new(layer.layer(works));
    let call = move |polls| -> Call {
        let call = service.borrow_mut().call(polls);
        Box::pin(async move { call.await.expect("it is admitted") })
    };
    Subject { clock, call: Box::new(call), begun, state }
}

fn state<A: Algorithm>(limiter: &RateLimiter<A>) -> Box<dyn Fn() -> String> {
    let limiter = limiter.clone();
    Box::new(move || {
        let (left, of_another_key) = (limiter.peek(&()).remaining(), limiter.peek(&1).remaining());
        // The total of all keys is seen only by what it admits.
        let of_more: Vec<_> = (2..9).filter_map(|key| limiter.try_acquire_permit(&key).ok()).collect();
        let queued = limiter.queued();
        format!("{left} left, {of_another_key} of another key, {} of more, {queued} queued;", of_more.len())
    })
}

/// What is seen of the calls around the one that is dropped.
#[derive(Debug, PartialEq)]
struct Seen {
    /// The tick at which the call behind it was admitted.
    next: Option<usize>,
    /// The state of the limiters when all calls have ended.
    state: String,
}

/// The time between two polls of the call that is dropped. Slots are 4 ms before a poll, so that an admission is first
/// noticed by the call behind.
const TICK: Duration = Duration::from_millis(10);

/// A first call is admitted, and dropped before the fifth tick. A second one is polled at each tick. It works for
/// `work` polls, and is dropped after `most`. A third one arrives behind it, and is polled when it is woken.
///
/// Returns what is seen, the number of polls of the second call, and after how many of them it began.
fn run(subject: &Subject, second: Option<(usize, usize)>) -> (Seen, usize, Option<usize>) {
    let Subject { clock, call, begun, state } = subject;
    let has_begun = |count| begun.load(Ordering::SeqCst) >= count;
    let mut first = PolledByHand::new(call(usize::MAX));
    assert!(!first.poll() && has_begun(1));
    let (work, most) = second.unwrap_or((0, 0));
    let mut second = second.map(|_| PolledByHand::new(call(work)));
    let (mut third, mut next, mut admitted_at) = (None::<PolledByHand<Call>>, None, None);
    for tick in 0..60 {
        match tick {
            0 => {}
            1 => clock.advance(MS * 4),
            _ => clock.advance(TICK),
        }
        if tick == 5 {
            first.abandon();
        }
        let mut third_runs = || {
            let third = third.get_or_insert_with(|| PolledByHand::new(call(0)));
            if third.run() && next.is_none() {
                next = Some(tick);
            }
        };
        if tick > 0 {
            third_runs();
        }
        if let Some(call) = second.as_mut().filter(|call| call.is_pending()) {
            if call.polls >= most {
                call.abandon();
            } else {
                let before = has_begun(2);
                call.poll();
                if !before && has_begun(2) {
                    admitted_at = Some(call.polls);
                }
            }
        }
        third_runs();
    }
    let polls = second.map_or(0, |call| call.polls);
    (Seen { next, state: state() }, polls, admitted_at)
}

/// The polls for which the second call works.
const WORK: usize = 3;

fn holds(name: &str, subject: impl Fn() -> Subject) {
    let (never, ..) = run(&subject(), None);
    assert!(never.next.is_some(), "{name}: the third call is stuck");
    let (whole, polls, admitted_at) = run(&subject(), Some((WORK, usize::MAX)));
    let admitted_at = admitted_at.expect("the second call is admitted");
    assert_eq!(polls, admitted_at + WORK, "{name}");
    assert!(admitted_at > 4 && whole.next > Some(admitted_at), "{name}: {admitted_at}, {whole:?}");
    for most in 0..polls {
        let (seen, ..) = run(&subject(), Some((WORK, most)));
        if most < admitted_at {
            assert_eq!(seen, never, "{name}, after {most} polls: it was never made");
        } else {
            // A call that ends by itself does so in a poll, and this one is dropped instead of the next poll.
            let (ended, ..) = run(&subject(), Some((most + 1 - admitted_at, usize::MAX)));
            assert_eq!(seen, ended, "{name}, after {most} polls: it ended then");
        }
    }
}

/// The limiter by itself, and a layer.
fn alone<A: Algorithm>(new: impl Fn() -> A) {
    let name = format!("{:?}", new());
    holds(&name, || {
        let clock = ManualClock::new();
        let limiter = limiter(new(), &clock);
        let state = state(&limiter);
        with_permits(clock, move || limiter.acquire_permit(&()), state)
    });
    holds(&format!("a layer of {name}"), || {
        let clock = ManualClock::new();
        let limiter = limiter(new(), &clock);
        let state = state(&limiter);
        through(clock, RateLimitLayer::with_limiter(Global, limiter).responder(ErrorResponder), state)
    });
}

/// Two layers that are joined, in both orders.
fn joined<A: Algorithm, B: Algorithm>(a: impl Fn() -> A, b: impl Fn() -> B) {
    let name = format!("{:?} and {:?}", a(), b());
    for is_reversed in [false, true] {
        holds(&name, || {
            let clock = ManualClock::new();
            let (a, b) = (limiter(a(), &clock), limiter(b(), &clock));
            let (of_a, of_b) = (state(&a), state(&b));
            let state = Box::new(move || of_a() + &of_b());
            let a = RateLimitLayer::with_limiter(Global, a);
            let b = RateLimitLayer::with_limiter(Global, b);
            if is_reversed {
                through(clock, b.and(a).responder(ErrorResponder), state)
            } else {
                through(clock, a.and(b).responder(ErrorResponder), state)
            }
        });
    }
}

const TEN: Quota = Quota::per_second(10);

fn one_in(period: Duration) -> Quota {
    Quota::per(1, period).unwrap()
}

fn line() -> LeakyBucket {
    LeakyBucket::new(TEN).queue(9)
}

fn tokens() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(9))
}

fn one() -> Concurrency {
    Concurrency::per_key(1).total(3).queue(9)
}

#[test]
fn a_call_of_units_that_is_dropped_was_never_made_or_has_ended() {
    let window = one_in(INTERVAL);
    alone(line);
    alone(|| Smooth::bursty(TEN).queue(9));
    alone(|| TokenBucket::new(TEN.burst(1)).queue(9));
    alone(|| FixedWindow::new(window).queue(9));
    alone(|| SlidingWindow::new(window).queue(9));
    alone(|| SlidingLog::new(window).queue(9));
    alone(|| SlidingCounter::new(window).queue(9));
    alone(|| Tiered::new(TokenBucket::new(TEN.burst(1)).queue(9)));
    alone(|| SlidingLog::new(window).queue(9).block_for(MS).after(1_000));
    alone(|| (SlidingLog::new(window).queue(9), tokens().queue(9)));
}

#[test]
fn a_call_in_progress_that_is_dropped_was_never_made_or_has_ended() {
    alone(one);
    alone(|| (tokens().queue(9), one()));
    alone(|| (one(), line()));
    alone(|| (line(), one()));
    let fair = || {
        let clock = ManualClock::new();
        let limiter =
            FairLimiter::builder(Concurrency::per_key(1).total(1).queue(9)).clock(clock.clone()).build();
        let seen = limiter.clone();
        let state = Box::new(move || format!("{:?}, {:?}", seen.call(&()).peek(), seen.stats().store));
        (clock, limiter, state)
    };
    holds("a fair limiter", || {
        let (clock, limiter, state) = fair();
        with_permits(clock, move || limiter.acquire_permit(&()), state)
    });
    holds("a layer of a fair limiter", || {
        let (clock, limiter, state) = fair();
        through(clock, RateLimitLayer::with_limiter(Global, limiter).responder(ErrorResponder), state)
    });
}

#[test]
fn a_joint_call_that_is_dropped_was_never_made_or_has_ended() {
    let window = one_in(INTERVAL);
    joined(line, tokens);
    joined(line, || FixedWindow::new(one_in(INTERVAL * 2)).queue(9));
    joined(line, one);
    joined(one, tokens);
    joined(|| SlidingLog::new(window).queue(9), || FixedWindow::new(Quota::per_hour(9)));
}

#[test]
fn an_admission_that_was_not_observed_returns_its_slot() {
    type Other = fn(&RateLimiter<LeakyBucket>) -> Decision;
    let others: [(&str, Other); 4] = [
        ("nothing", |limiter| limiter.check_n(&(), 0)),
        ("a look", |limiter| limiter.peek(&())),
        ("a denied check", |limiter| limiter.check(&())),
        ("a call that waits and leaves", |limiter| {
            waiting(limiter).abandon();
            limiter.peek(&())
        }),
    ];
    for (what, other) in others {
        let (limiter, clock) = busy();
        let mut call = waiting(&limiter);
        clock.advance(INTERVAL);
        // Any call for the key admits the waiter whose scheduled time has come.
        let mut touch = PolledByHand::new(limiter.acquire_n(&(), 0));
        assert!(touch.poll());
        let _ = other(&limiter);
        call.abandon();
        // No other call for the key has been admitted meanwhile.
        assert!(limiter.check(&()).is_allowed(), "after {what}");
    }
}

#[test]
fn an_admission_stays_charged_once_another_was_admitted() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(thousand_a_second()).clock(clock.clone()).build();
    assert!(limiter.check(&()).is_allowed());
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    clock.advance(MS * 2);
    assert!(second.run());
    first.abandon();
    assert_eq!(limiter.check(&()).retry_after(), Some(MS));
}
