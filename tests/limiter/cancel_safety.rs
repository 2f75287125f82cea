//! Cancel safety. A cancelled call is not charged, and all remaining waiters are woken.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep, timeout};
use tower::{Layer, Service, ServiceExt};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Alarm, PolledByHand, Random, scaled};

const MS: Duration = Duration::from_millis(1);
const MICROSECOND: Duration = Duration::from_micros(1);
const INTERVAL: Duration = Duration::from_millis(100);

/// Returns a limit of ten a second with a queue that is long enough.
fn bucket() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(1_000)
}

/// Returns a limit of a thousand a second, with which a stall of 5 ms makes five slots overdue. These slots are used at
/// once.
fn thousand_a_second() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(1_000)).queue(1_000)
}

fn manual() -> (RateLimiter<LeakyBucket>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(bucket()).clock(clock.clone()).build(), clock)
}

/// Returns a limiter whose first call has just been admitted, so that the next call is released in 100 ms.
fn busy() -> (RateLimiter<LeakyBucket>, ManualClock) {
    let (limiter, clock) = manual();
    assert!(limiter.check(&()).is_allowed());
    (limiter, clock)
}

fn waiting(limiter: &RateLimiter<LeakyBucket>) -> PolledByHand<Acquire<LeakyBucket>> {
    let mut call = PolledByHand::new(limiter.acquire(&()));
    assert!(!call.poll());
    call
}

/// Cancels every third of a hundred queued calls at a random time. The other calls are released in order, one per
/// interval.
async fn every_third_is_cancelled(seed: u64, aborted: bool) {
    let limiter = RateLimiter::new(bucket());
    let mut random = Random::new(seed);
    let start = Instant::now();
    let left = Arc::new(Mutex::new(Vec::new()));
    let mut calls = Vec::new();
    for n in 0..100 {
        let (acquire, left) = (limiter.acquire("key"), left.clone());
        let patience = match n % 3 {
            2 => MS * random.below(10_000) as u32,
            _ => Duration::MAX,
        };
        let call = async move {
            assert!(acquire.await.is_allowed());
            left.lock().unwrap().push((n, start.elapsed()));
        };
        let call = match aborted {
            true => tokio::spawn(call),
            false => tokio::spawn(async move { timeout(patience, call).await.unwrap_or(()) }),
        };
        calls.push((patience, n, call));
    }
    if aborted {
        let mut impatient: Vec<_> = calls.iter().filter(|(patience, ..)| *patience < Duration::MAX).collect();
        impatient.sort_by_key(|(patience, n, _)| (*patience, *n));
        for (patience, _, call) in impatient {
            tokio::time::sleep_until(start + *patience).await;
            call.abort();
        }
    }
    for (_, _, call) in calls {
        assert!(call.await.is_ok_and(|()| true) || aborted, "seed {seed}");
    }
    let left = left.lock().unwrap();
    for (nth, (_, at)) in (0..).zip(left.iter()) {
        assert_eq!(*at, INTERVAL * nth, "seed {seed}: {left:?}");
    }
    assert!(left.is_sorted(), "seed {seed}: {left:?}");
    for n in (0..100).filter(|n| n % 3 != 2) {
        assert!(left.iter().any(|(other, _)| *other == n), "seed {seed}: {n} is missing");
    }
}

#[tokio::test(start_paused = true)]
async fn when_every_third_times_out_the_rest_is_released_one_per_interval() {
    for seed in 0..500 {
        every_third_is_cancelled(seed, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn when_every_third_is_aborted_the_rest_is_released_one_per_interval() {
    for seed in 500..1_000 {
        every_third_is_cancelled(seed, true).await;
    }
}

#[test]
fn an_acquire_dropped_at_any_poll_has_charged_nothing_unless_it_was_ready() {
    // Each step of the clock wakes the call.
    let run = |polls: usize| {
        let (limiter, clock) = busy();
        let mut call = PolledByHand::new(limiter.acquire(&()));
        let mut time = Duration::ZERO;
        for poll in 0..polls {
            if poll > 0 {
                clock.advance(MS * 10);
                time += MS * 10;
                assert!(call.alarm.rang());
            }
            call.poll();
        }
        let (polled, ready) = (call.polls, call.output.is_some());
        let mut behind = waiting(&limiter);
        call.abandon();
        // The call has used no slot, as if it had never been made.
        while !behind.run() {
            clock.advance(MS);
            time += MS;
        }
        (polled, ready, time)
    };
    let mut polls = 1;
    while !run(polls).1 {
        polls += 1;
    }
    assert_eq!(polls, 11);
    assert_eq!(run(polls), (polls, true, INTERVAL * 2));
    for before in 0..polls {
        assert_eq!(run(before), (before, false, INTERVAL));
    }
}

/// A service that takes three polls, and counts the calls that began and those that finished.
#[derive(Clone, Default)]
struct Slow {
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Service<()> for Slow {
    type Response = ();
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<(), Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let ended = self.ended.clone();
        Box::pin(async move {
            for _ in 0..3 {
                let mut woken = false;
                poll_fn(|cx| match std::mem::replace(&mut woken, true) {
                    true => Poll::Ready(()),
                    false => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                })
                .await;
            }
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }
}

#[test]
fn a_response_dropped_at_any_poll_has_called_and_charged_both_or_neither() {
    let run = |polls: usize| {
        let (limiter, clock) = busy();
        let slow = Slow::default();
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
        let mut service = layer.layer(slow.clone());
        // The request joins the queue in `call`, before the first poll.
        let mut call = PolledByHand::new(service.call(()));
        let mut behind = waiting(&limiter);
        let mut time = Duration::ZERO;
        for poll in 0..polls {
            if !call.alarm.rang() {
                assert!(poll > 0);
                clock.advance(MS * 20);
                time += MS * 20;
                assert!(call.alarm.rang());
            }
            call.poll();
        }
        let (begun, ready) = (slow.begun.load(Ordering::SeqCst), call.output.is_some());
        call.abandon();
        while !behind.run() {
            clock.advance(MS);
            time += MS;
        }
        assert_eq!(slow.begun.load(Ordering::SeqCst), begun, "no other call began");
        assert_eq!(slow.ended.load(Ordering::SeqCst), usize::from(ready));
        (begun, ready, time)
    };
    let mut polls = 1;
    while !run(polls).1 {
        polls += 1;
    }
    // Five polls while the call is queued, one poll after its release, and three more polls until the service has
    // answered.
    assert_eq!(polls, 9);
    for before in 0..=polls {
        let called = before >= 6;
        let expected = (usize::from(called), before == polls, INTERVAL * (1 + u32::from(called)));
        assert_eq!(run(before), expected, "dropped after {before} polls");
    }
}

#[test]
fn an_unobserved_release_goes_to_the_next_waiter() {
    let (limiter, clock) = busy();
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    let mut third = waiting(&limiter);
    clock.advance(INTERVAL);
    // The poll of the second call finds that the scheduled time of the first call has come, and releases the first
    // call.
    assert!(!second.run());
    first.abandon();
    assert!(second.run(), "the slot belongs to the second one now");
    assert!(!third.run());
    clock.advance(INTERVAL);
    assert!(third.run());
}

#[test]
fn a_release_goes_back_although_others_were_denied_meanwhile() {
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
        // Any call for the key releases the waiter whose scheduled time has come.
        let mut touch = PolledByHand::new(limiter.acquire_n(&(), 0));
        assert!(touch.poll());
        let _ = other(&limiter);
        call.abandon();
        // No other call for the key has been admitted meanwhile.
        assert!(limiter.check(&()).is_allowed(), "after {what}");
    }
}

#[test]
fn a_release_stays_charged_once_another_was_admitted() {
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

#[tokio::test(start_paused = true)]
async fn a_waiter_that_moves_to_another_task_is_woken_there() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let mut calls = [(); 3].map(|()| waiting(&limiter));
    let old = calls.each_mut().map(PolledByHand::moves);
    for call in &mut calls {
        assert!(!call.poll());
    }
    let before = old.each_ref().map(|alarm| alarm.times());
    for call in &mut calls {
        // The call before it has been released by then.
        advance(INTERVAL).await;
        assert!(call.alarm.rang(), "it missed its wakeup");
        assert!(call.poll());
    }
    assert_eq!(old.map(|alarm| alarm.times()), before, "the old task is left in peace");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_moves_up_is_woken_where_it_is() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    second.moves();
    assert!(!second.poll());
    first.abandon();
    assert!(!second.run());
    advance(INTERVAL).await;
    assert!(second.run());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_released_by_another_call_is_woken_at_once() {
    let limiter = RateLimiter::new(thousand_a_second());
    assert!(limiter.check(&()).is_allowed());
    let mut line = [(); 6].map(|()| waiting(&limiter));
    line[1].abandon();
    line[2].abandon();
    // The calls behind the cancelled ones were woken. The task of the first call is stuck.
    assert_eq!(line.each_mut().map(|call| call.alarm.rang()), [false, false, true, true, false, false]);
    advance(MS * 3).await;
    assert!(!limiter.check(&()).is_allowed());
    // Three calls are released. The last call is now the first waiter.
    assert_eq!(line.each_mut().map(|call| call.alarm.rang()), [true, false, false, true, true, true]);
    for call in [0, 3, 4] {
        assert!(line[call].poll());
    }
    assert!(!line[5].poll());
    advance(MS).await;
    assert!(line[5].run());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_never_polled_is_not_queued() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let unpolled = limiter.acquire(&());
    assert_eq!(limiter.acquire(&()).await.delay(), INTERVAL);
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_never_polled_delays_the_next_waiters_by_less_than_an_interval() {
    let limiter = RateLimiter::new(bucket());
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let mut service = layer.layer(Slow::default());
    assert!(limiter.check(&()).is_allowed());
    let unpolled = service.ready().await.unwrap().call(());
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for n in 2..10 {
        let acquire = limiter.acquire(&());
        calls.spawn(async move {
            assert!(acquire.await.is_allowed());
            // The call is released when the timer of the next call ends. Its slot is then overdue by as much as a stall
            // may last.
            assert_eq!(start.elapsed(), INTERVAL * (n + 1) - MS * 5);
        });
    }
    calls.join_all().await;
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_task_is_stuck_delays_the_next_waiters_by_less_than_an_interval() {
    let limiter = RateLimiter::new(bucket());
    assert!(limiter.check(&()).is_allowed());
    let start = Instant::now();
    // The call is polled only once.
    let stuck = waiting(&limiter);
    let mut leaves = waiting(&limiter);
    let mut calls = JoinSet::new();
    for n in 2..10 {
        let acquire = limiter.acquire(&());
        calls.spawn(async move {
            assert!(acquire.await.is_allowed());
            (n, start.elapsed())
        });
    }
    sleep(MS * 50).await;
    leaves.abandon();
    let mut seen = calls.join_all().await;
    seen.sort_unstable();
    // The scheduled time of the stuck call is 100 ms. It is released when the timer of the next call ends, at 200 ms.
    // This is a stall, so the schedule moves, and the other calls are released from 295 ms on.
    assert_eq!(seen, (2..10).map(|n| (n, INTERVAL * (n + 1) - MS * 5)).collect::<Vec<_>>());
    drop(stuck);
}

#[test]
fn random_operations_of_eight_handles_leave_no_waiter_behind() {
    for seed in 0..scaled(10_000) {
        let mut random = Random::new(seed);
        let (limiter, clock) = busy();
        // Calls arrive at most as fast as they are released, so that the queue also becomes short.
        let mut handles: [Option<PolledByHand<Acquire<LeakyBucket>>>; 8] = Default::default();
        let mut time = Duration::ZERO;
        let mut admitted = Vec::new();
        let mut note = |decision: Decision| {
            assert!(decision.is_allowed(), "seed {seed}");
            admitted.push(decision);
        };
        for _ in 0..64 {
            let handle = &mut handles[random.below(8) as usize];
            match (random.below(8), handle.as_mut()) {
                (0 | 1, None) => *handle = Some(PolledByHand::new(limiter.clone().acquire(&()))),
                (0, Some(call)) => {
                    call.abandon();
                    *handle = None;
                }
                (1, Some(call)) => drop(call.moves()),
                (2..5, Some(call)) => {
                    let ended = call.run() || call.poll();
                    if ended {
                        note(call.output.unwrap());
                        *handle = None;
                    }
                }
                (5, _) => {
                    let step = INTERVAL / 4 * random.below(6) as u32;
                    clock.advance(step);
                    time += step;
                }
                (6, _) => assert!(limiter.check_n(&(), 0).is_allowed()),
                _ => {}
            }
        }
        // A call that was moved has not been polled since. A real task would poll it.
        for handle in &mut handles {
            if handle.as_mut().is_some_and(PolledByHand::poll) {
                note(handle.take().unwrap().output.unwrap());
            }
        }
        // No more calls are admitted than there were slots.
        assert!(admitted.len() as u128 <= time.as_nanos() / INTERVAL.as_nanos(), "seed {seed}");
        // From here on, one call is released per interval, and each is woken.
        let mut before = None;
        while handles.iter().any(Option::is_some) {
            let mut waited = Duration::ZERO;
            let mut left = 0;
            while left == 0 {
                clock.advance(MS * 5);
                waited += MS * 5;
                assert!(waited <= INTERVAL, "seed {seed}: a call is stuck");
                for handle in &mut handles {
                    if handle.as_mut().is_some_and(PolledByHand::run) {
                        *handle = None;
                        left += 1;
                    }
                }
            }
            assert_eq!(left, 1, "seed {seed}");
            assert!(before.is_none_or(|()| waited == INTERVAL), "seed {seed}: after {waited:?}");
            before = Some(());
        }
    }
}

/// A waker that runs one function when it is woken, and another function when it is dropped.
struct Trap<W: Fn() + Send + Sync + 'static, D: Fn() + Send + Sync + 'static> {
    woken: W,
    dropped: D,
}

impl<W: Fn() + Send + Sync, D: Fn() + Send + Sync> Wake for Trap<W, D> {
    fn wake(self: Arc<Self>) {
        (self.woken)();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        (self.woken)();
    }
}

impl<W: Fn() + Send + Sync, D: Fn() + Send + Sync> Drop for Trap<W, D> {
    fn drop(&mut self) {
        (self.dropped)();
    }
}

/// Runs `run`. If `run` deadlocks, fails instead of hanging.
fn without_a_deadlock(run: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        run();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(Duration::from_secs(20)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
        _ => thread.join().unwrap(),
    }
}

/// Returns a function for a waker. The function uses the same key and the same clock in many ways.
fn anything(limiter: &RateLimiter<LeakyBucket>, clock: &ManualClock) -> impl Fn() + Send + Sync + use<> {
    let (limiter, clock) = (limiter.clone(), clock.clone());
    let own = Mutex::new(Some(waiting(&limiter)));
    move || {
        let Some(own) = own.lock().unwrap().take() else { return };
        let _ = limiter.check(&());
        let _ = limiter.peek(&());
        let _ = limiter.check(&"another");
        drop(own);
        let mut new = pin!(limiter.acquire(&()));
        let _ = new.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        clock.advance(Duration::ZERO);
        limiter.reset(&"another");
    }
}

fn poll_with(call: &mut Pin<Box<Acquire<LeakyBucket>>>, waker: Waker) -> bool {
    call.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
}

#[test]
fn a_waker_may_do_anything_when_it_is_dropped() {
    // The waker is replaced by another waker, is dropped with its future, or is dropped when the future is ready.
    for way in 0..3 {
        without_a_deadlock(move || {
            let (limiter, clock) = busy();
            let mut call = Box::pin(limiter.acquire(&()));
            let trap = Trap { woken: || {}, dropped: anything(&limiter, &clock) };
            assert!(!poll_with(&mut call, Arc::new(trap).into()));
            match way {
                0 => assert!(!poll_with(&mut call, Waker::noop().clone())),
                1 => drop(call),
                _ => {
                    clock.advance(INTERVAL);
                    // The call of the waker's function is released.
                    let _ = limiter.check(&());
                    clock.advance(INTERVAL);
                    assert!(poll_with(&mut call, Waker::noop().clone()));
                }
            }
        });
    }
}

#[test]
fn a_waker_may_do_anything_when_it_is_woken() {
    // The waker is woken by the clock, by the cancellation of the call before it, or by a reset.
    for way in 0..3 {
        without_a_deadlock(move || {
            let (limiter, clock) = busy();
            let before = waiting(&limiter);
            let mut call = Box::pin(limiter.acquire(&()));
            let trap = Trap { woken: anything(&limiter, &clock), dropped: || {} };
            assert!(!poll_with(&mut call, Arc::new(trap).into()));
            match way {
                0 => clock.advance(INTERVAL),
                1 => drop(before),
                _ => limiter.reset(&()),
            }
            clock.advance(INTERVAL * 10);
            assert!(poll_with(&mut call, Waker::noop().clone()));
        });
    }
}

#[test]
fn a_future_may_be_dropped_by_its_own_waker() {
    without_a_deadlock(|| {
        let (limiter, clock) = busy();
        let own = Arc::new(Mutex::new(None));
        let trap = {
            let own = own.clone();
            let woken = move || {
                // The future must be dropped outside of the lock, because a future that is dropped may wake its waker.
                let call = own.lock().unwrap().take();
                drop(call);
            };
            Trap { woken, dropped: || {} }
        };
        let mut call = Box::pin(limiter.acquire(&()));
        assert!(!poll_with(&mut call, Arc::new(trap).into()));
        *own.lock().unwrap() = Some(call);
        clock.advance(INTERVAL);
        assert!(own.lock().unwrap().is_none());
        // The call was dropped before it was polled again, so it has not been charged.
        assert!(limiter.check(&()).is_allowed());
    });
}

/// A call that waits until it is released, or is cancelled after some polls.
struct Patient {
    call: Pin<Box<Acquire<LeakyBucket>>>,
    polls: u64,
    entered: Option<Arc<AtomicUsize>>,
    /// The number of all polls, and the number of tasks that have ended.
    seen: Arc<[AtomicUsize; 2]>,
}

impl Drop for Patient {
    fn drop(&mut self) {
        self.seen[1].fetch_add(1, Ordering::SeqCst);
    }
}

impl Future for Patient {
    type Output = Option<Decision>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Decision>> {
        let polled = self.call.as_mut().poll(cx);
        self.seen[0].fetch_add(1, Ordering::SeqCst);
        if let Some(entered) = self.entered.take() {
            entered.fetch_add(1, Ordering::SeqCst);
        }
        match (polled, self.polls) {
            (Poll::Ready(decision), _) => Poll::Ready(Some(decision)),
            (Poll::Pending, 0) => Poll::Ready(None),
            (Poll::Pending, _) => {
                self.polls -= 1;
                Poll::Pending
            }
        }
    }
}

/// Lets many tasks on several threads wait for one key, while another thread moves the clock by one interval at a time,
/// to the last slot. Returns the decisions of the calls that were not cancelled, and how long a new call would then
/// have to wait.
fn stress(seed: u64, tasks: usize, impatient: bool) -> (Vec<Decision>, Duration) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    // With these intervals, no call is overdue by more than 5 ms, even if a thread is late.
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1_000_000)).queue(1_000);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let (entered, seen) =
        (Arc::new(AtomicUsize::new(0)), Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
    let mut random = Random::new(seed);
    let mut calls = JoinSet::new();
    for _ in 0..tasks {
        let polls = match impatient && random.one_in(3) {
            true => 1 + random.below(tasks as u64),
            false => u64::MAX,
        };
        let call = Box::pin(limiter.acquire(&()));
        let call = Patient { call, polls, entered: Some(entered.clone()), seen: seen.clone() };
        calls.spawn_on(call, runtime.handle());
    }
    // All calls arrive at one instant.
    while entered.load(Ordering::SeqCst) < tasks {
        thread::yield_now();
    }
    let moving = thread::spawn({
        let clock = clock.clone();
        let mut random = Random::new(!seed);
        move || {
            for _ in 1..tasks {
                let polls = seen[0].load(Ordering::SeqCst);
                clock.advance(MICROSECOND);
                // The time limit of an hour is in the time of the clock, which advances only after a poll. So the hour
                // cannot be over before the tasks were polled, even on a busy machine.
                while seen[0].load(Ordering::SeqCst) == polls && seen[1].load(Ordering::SeqCst) < tasks {
                    thread::yield_now();
                }
                for _ in 0..random.below(200) {
                    thread::yield_now();
                }
            }
        }
    });
    let joined = runtime.block_on(async { timeout(Duration::from_secs(60), calls.join_all()).await });
    let decisions = joined.unwrap_or_else(|_| panic!("seed {seed}: a call is stuck"));
    moving.join().unwrap();
    let admitted = decisions.into_iter().flatten().collect();
    (admitted, limiter.peek(&()).retry_after().unwrap_or_default())
}

#[test]
fn on_many_threads_as_many_calls_are_released_as_there_are_slots() {
    for seed in 0..scaled(20) {
        let (mut admitted, next) = stress(seed, 300, false);
        admitted.sort_by_key(Decision::delay);
        assert_eq!(admitted.len(), 300);
        for (n, decision) in (0..).zip(&admitted) {
            assert!(
                decision.is_allowed() && decision.delay() >= MICROSECOND * n,
                "seed {seed}: {n} is early"
            );
        }
        // All slots are used, including the slot of this instant, and no others.
        assert_eq!(next, MICROSECOND, "seed {seed}");
    }
}

#[test]
fn on_many_threads_cancelled_calls_leave_no_waiter_behind() {
    for seed in 0..scaled(20) {
        let (mut admitted, next) = stress(seed, 300, true);
        admitted.sort_by_key(Decision::delay);
        assert!(admitted.len() >= 150 && admitted.len() < 300, "seed {seed}: {}", admitted.len());
        for (n, decision) in (0..).zip(&admitted) {
            assert!(
                decision.is_allowed() && decision.delay() >= MICROSECOND * n,
                "seed {seed}: {n} is early"
            );
        }
        assert!(next <= MICROSECOND, "seed {seed}: {next:?}");
    }
}

#[test]
fn a_runtime_that_ends_cancels_its_waiters() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_hour(1)).queue(10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        assert!(limiter.acquire(&()).await.is_allowed());
        for _ in 0..10 {
            tokio::spawn(limiter.acquire(&()));
        }
        tokio::task::yield_now().await;
        let mut refused = PolledByHand::new(limiter.acquire(&()));
        assert!(refused.poll() && !refused.output.unwrap().is_allowed(), "the queue is full");
    });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _context = other.enter();
    let mut line: Vec<_> = (0..10).map(|_| waiting(&limiter)).collect();
    let mut refused = PolledByHand::new(limiter.acquire(&()));
    assert!(refused.poll() && !refused.output.unwrap().is_allowed());
    line.clear();
    assert!(limiter.peek(&()).retry_after().unwrap() <= Duration::from_secs(3_600));
}

#[test]
fn a_custom_alarm_is_counted() {
    // A test of the helper for these tests. The alarm is counted when it is woken, and only then.
    let alarm = Alarm::new();
    assert!(!alarm.rang());
    Waker::from(alarm.clone()).wake();
    assert!(alarm.rang() && !alarm.rang() && alarm.times() == 1);
}
