//! Calls whose futures are kept, and not polled any more, while other calls for their key go on.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::faults::swaps;
use super::flights::settle;
use super::joined::decide;
use super::limiter;
use super::staged::Staged;
use crate::call::RedisReply;
use crate::error::RedisError;
use crate::in_process::RedisInProcess;
use crate::lease::RedisLeases;
use crate::limiter::RedisLimiter;
use crate::store::RedisStore;
use tower_throttle::Decision;
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, StoredAlgorithm, Tiered, TokenBucket,
};
use tower_throttle::limiter::Attempt;

const MS: Duration = Duration::from_millis(1);
/// The time in which one unit becomes available.
const PERIOD: Duration = Duration::from_millis(300);
/// A time after which a call is lost. The clock is paused, so it passes at once.
const LOST: Duration = Duration::from_secs(3_600);

type Call = Pin<Box<RedisReply<Decision>>>;

fn quota() -> Quota {
    Quota::per(1, PERIOD).unwrap()
}

/// What the tests need of a limiter.
trait Limits: fmt::Debug {
    fn acquire(&self) -> RedisReply<Decision>;
    fn refund(&self) -> RedisReply<()>;
    fn reset(&self) -> RedisReply<bool>;
    fn replace(&self);
    fn close(&self);
}

impl<A: StoredAlgorithm> Limits for RedisLimiter<A> {
    fn acquire(&self) -> RedisReply<Decision> {
        self.acquire("a")
    }

    fn refund(&self) -> RedisReply<()> {
        self.refund("a", 1)
    }

    fn reset(&self) -> RedisReply<bool> {
        self.reset("a")
    }

    fn replace(&self) {
        self.replace(self.algorithm());
    }

    fn close(&self) {
        self.close();
    }
}

impl Limits for RedisLeases {
    fn acquire(&self) -> RedisReply<Decision> {
        self.acquire("a")
    }

    fn refund(&self) -> RedisReply<()> {
        self.refund("a", 1)
    }

    fn reset(&self) -> RedisReply<bool> {
        self.reset("a")
    }

    fn replace(&self) {}

    fn close(&self) {
        self.close();
    }
}

/// Joint calls of a bucket that queues them.
#[derive(Debug)]
struct Joined(RedisLimiter<LeakyBucket>);

impl Limits for Joined {
    fn acquire(&self) -> RedisReply<Decision> {
        let limiter = self.0.clone();
        RedisReply::new(async move {
            let decided = decide(&limiter, "a", [Attempt::new(1)]).await?;
            Ok(*decided[0].as_ref().unwrap().decided.decision())
        })
    }

    fn refund(&self) -> RedisReply<()> {
        self.0.refund("a", 1)
    }

    fn reset(&self) -> RedisReply<bool> {
        self.0.reset("a")
    }

    fn replace(&self) {
        self.0.replace(self.0.algorithm());
    }

    fn close(&self) {
        self.0.close();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    None,
    Refund,
    Reset,
    Replace,
    Close,
    Drop,
}

const EVENTS: [Event; 6] =
    [Event::None, Event::Refund, Event::Reset, Event::Replace, Event::Close, Event::Drop];

/// Polls a call once.
fn begun_call(mut call: Call) -> Call {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    call
}

/// Waits for the first of several calls, and polls none of the others afterwards.
async fn first_of(calls: &mut Vec<Call>) -> Result<Decision, RedisError> {
    poll_fn(|cx| {
        for at in 0..calls.len() {
            if let Poll::Ready(decided) = calls[at].as_mut().poll(cx) {
                drop(calls.remove(at));
                return Poll::Ready(decided);
            }
        }
        Poll::Pending
    })
    .await
}

/// Takes the unit, and polls `count` further calls for `polled`. Then makes three more calls, which are polled, and
/// asserts that each of them is decided, and how late the last of them is.
async fn calls_behind_go_on(limiter: &impl Limits, count: u32, polled: Duration, event: Event) {
    let shown = format!("{count} kept, polled for {polled:?}, {event:?}");
    assert!(limiter.acquire().await.unwrap().is_allowed());
    let start = Instant::now();
    let mut kept: Vec<Call> = Vec::new();
    for _ in 0..count {
        let mut call = Box::pin(limiter.acquire());
        if polled.is_zero() {
            kept.push(begun_call(call));
        } else if timeout(polled, &mut call).await.is_err() {
            kept.push(call);
        } else {
            assert!(polled > PERIOD, "{shown}");
        }
    }
    let behind: Vec<_> = (0..3).map(|_| tokio::spawn(limiter.acquire())).collect();
    settle().await;
    match event {
        Event::None => {}
        Event::Refund => limiter.refund().await.unwrap(),
        Event::Reset => assert!(limiter.reset().await.unwrap(), "{shown}"),
        Event::Replace => limiter.replace(),
        Event::Close => limiter.close(),
        Event::Drop => kept.truncate(kept.len().saturating_sub(1)),
    }
    for call in behind {
        let decided = timeout(LOST, call).await;
        let decided = decided.unwrap_or_else(|_| panic!("a call behind is lost: {shown}"));
        let decision = decided.unwrap().unwrap();
        assert_eq!(decision.is_allowed(), event != Event::Close, "{decision:?}: {shown}");
    }
    // Each kept call may use one unit, or delay the others by a deadline and a few milliseconds.
    let longest = (count + 4) * PERIOD + count * 60 * MS;
    assert!(start.elapsed() < longest, "{:?}: {shown}", start.elapsed());
    for call in kept {
        let decided = timeout(LOST, call).await.unwrap_or_else(|_| panic!("a kept call is lost: {shown}"));
        // A call whose trip was under way when the limiter was closed is decided by the trip.
        if event != Event::Close || polled < PERIOD {
            let decision = decided.unwrap();
            assert_eq!(decision.is_allowed(), event != Event::Close, "{decision:?}: {shown}");
        }
    }
}

/// Makes the calls with one and with three kept calls, which are left during their first trips, while they sleep, and
/// when they ask again.
async fn walk_of<L: Limits>(build: impl Fn() -> L) {
    for event in EVENTS {
        for (count, polled) in
            [(1, Duration::ZERO), (3, Duration::ZERO), (1, 20 * MS), (3, 20 * MS), (1, PERIOD + MS / 2)]
        {
            calls_behind_go_on(&build(), count, polled, event).await;
        }
    }
}

async fn walk<L: Limits>(build: impl Fn(&RedisStore) -> L) {
    walk_of(|| build(&RedisInProcess::new(MS).connect())).await;
}

#[tokio::test(start_paused = true)]
async fn calls_behind_a_future_that_is_kept_and_not_polled_go_on() {
    walk(|store| limiter(store, FixedWindow::new(quota()))).await;
    walk(|store| limiter(store, SlidingWindow::new(quota()))).await;
    walk(|store| limiter(store, SlidingLog::new(quota()))).await;
    walk(|store| limiter(store, (TokenBucket::new(quota()), FixedWindow::new(quota())))).await;
    walk(|store| limiter(store, Tiered::new(FixedWindow::new(quota())))).await;
    walk(|store| limiter(store, TokenBucket::new(quota()))).await;
    walk(|store| limiter(store, LeakyBucket::new(quota()).queue(9))).await;
    walk(|store| store.limiter("test", TokenBucket::new(quota())).lease(1).build().unwrap()).await;
    walk_of(|| Joined(limiter(&swaps(&Staged::new()), LeakyBucket::new(quota()).queue(9)))).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_four_calls_at_once_may_acquire_for_each_item() {
    let limiter = limiter(&RedisInProcess::new(MS).connect(), FixedWindow::new(quota()));
    let start = Instant::now();
    let (mut begun, mut calls) = (0, Vec::<Call>::new());
    for item in 0..10 {
        while begun < 10 && calls.len() < 4 {
            calls.push(Box::pin(limiter.acquire("a")));
            begun += 1;
        }
        assert!(timeout(LOST, first_of(&mut calls)).await.expect("the stream hangs").unwrap().is_allowed());
        let own = timeout(LOST, limiter.acquire("a")).await.unwrap_or_else(|_| panic!("item {item} hangs"));
        assert!(own.unwrap().is_allowed());
    }
    // Nineteen units after the first, and at most a deadline for a call that was left during its trip.
    assert!(start.elapsed() < 19 * PERIOD + 10 * 60 * MS, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_call_asks_at_a_time_and_each_kept_future_costs_a_few_milliseconds_once() {
    let server = RedisInProcess::new(MS);
    let limiter = limiter(&server.connect(), FixedWindow::new(quota()));
    assert!(limiter.acquire("a").await.unwrap().is_allowed());
    let mut kept: Vec<Call> = Vec::new();
    for _ in 0..40 {
        let mut call: Call = Box::pin(limiter.acquire("a"));
        assert!(timeout(5 * MS, &mut call).await.is_err());
        kept.push(call);
    }
    let behind: Vec<_> = (0..100).map(|_| tokio::spawn(limiter.acquire("a"))).collect();
    settle().await;
    let (mut ended, trips) = (Vec::new(), server.trips());
    for call in behind {
        assert!(call.await.unwrap().unwrap().is_allowed());
        ended.push(Instant::now());
    }
    let between: Vec<_> = ended.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(between.iter().all(|time| *time < PERIOD + 10 * MS), "{between:?}");
    // Each call makes a trip that denies it, and then two that admit it.
    let trips = server.trips() - trips;
    assert!(trips <= 4 * 100, "{trips} trips");
    // A kept call goes on when it is polled again, and is then the first.
    let other = tokio::spawn(limiter.acquire("a"));
    settle().await;
    let start = Instant::now();
    assert!(kept.remove(0).await.unwrap().is_allowed());
    assert!(start.elapsed() < PERIOD + 10 * MS && !other.is_finished(), "{:?}", start.elapsed());
}
