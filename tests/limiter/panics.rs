//! If an algorithm or a waker panics once, no other call is affected.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::*;
use tower_throttle::clock::{Clock, ManualClock, Nanos};
use tower_throttle::key::{PeerIp, from_fn};
use tower_throttle::limiter::{Acquire, AcquirePermit, Acquired, Attempt, LimiterFor, QueuedAcquire};
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{OwnAlgorithm, limiter};

#[derive(Default)]
struct Count(AtomicUsize);
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that panics.
struct Broken;
impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

type Queued<A> = Pin<Box<Acquire<A>>>;

/// Starts five calls that wait. The wakers of the calls at the indices `broken` panic.
fn five_waiting<A: Algorithm>(limiter: &RateLimiter<A>, broken: &[usize]) -> (Vec<Queued<A>>, Arc<Count>) {
    let woken = Arc::new(Count::default());
    let calls = (0..5).map(|nth| {
        let mut call = Box::pin(limiter.acquire("key"));
        let waker = match broken.contains(&nth) {
            true => Waker::from(Arc::new(Broken)),
            false => Waker::from(Arc::clone(&woken)),
        };
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        call
    });
    (calls.collect(), woken)
}

/// A panic at start-up names the line of the app's code that has the wrong setting.
#[test]
fn a_wrong_setting_panics_with_the_line_of_the_caller() {
    thread_local!(static AT: Cell<(u32, bool)> = const { Cell::new((0, false)) });
    let before = take_hook();
    set_hook(Box::new(move |panic| {
        AT.set(panic.location().map_or((0, false), |at| (at.line(), at.file() == file!())));
        before(panic);
    }));
    let minute = Quota::per_minute(1);
    let bucket = || TokenBucket::new(minute);
    let wrong: [(u32, &dyn Fn()); 15] = [
        (line!(), &|| _ = minute.burst(0)),
        (line!(), &|| _ = Quota::per_second(0)),
        (line!(), &|| _ = Quota::per_minute(0)),
        (line!(), &|| _ = Quota::per_hour(0)),
        (line!(), &|| _ = Quota::per_day(0)),
        (line!(), &|| _ = bucket().block_for(Duration::ZERO)),
        (line!(), &|| _ = bucket().block_for(Duration::MAX).after(0)),
        (line!(), &|| _ = (bucket(), bucket()).block_for(Duration::ZERO)),
        (line!(), &|| _ = FixedWindow::new(minute).priority(101)),
        (line!(), &|| _ = SlidingWindow::new(minute).slices(0)),
        (line!(), &|| _ = Smooth::warming_up(minute, Duration::from_secs(1)).cold_factor(0.5)),
        (line!(), &|| _ = Concurrency::per_key(0)),
        (line!(), &|| _ = Concurrency::per_key(1).total(0)),
        (line!(), &|| _ = PeerIp::new().ipv6_prefix(129)),
        (line!(), &|| _ = PeerIp::new().ipv4_prefix(33)),
    ];
    for (line, wrong) in wrong {
        assert!(catch_unwind(AssertUnwindSafe(wrong)).is_err(), "line {line}");
        assert_eq!(AT.get(), (line, true));
    }
}

#[test]
fn when_a_waker_panics_in_close_all_others_are_woken_and_the_panic_goes_on() {
    for broken in [&[0][..], &[2], &[4], &[0, 1, 4], &[0, 1, 2, 3, 4]] {
        let window = FixedWindow::new(Quota::per_minute(1)).queue(5);
        let limiter = RateLimiter::builder(window).clock(ManualClock::new()).build();
        assert!(limiter.check("key").is_allowed());
        let (mut calls, woken) = five_waiting(&limiter, broken);
        let panic = catch_unwind(AssertUnwindSafe(|| limiter.close())).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a waker that panics"));
        assert_eq!(woken.0.load(Ordering::SeqCst), 5 - broken.len(), "{broken:?}");
        for call in &mut calls {
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(decision) if decision.is_closed()), "{broken:?}");
        }
    }
}

#[test]
fn when_a_waker_panics_while_several_calls_are_admitted_all_others_are_woken() {
    let window = FixedWindow::new(Quota::per_minute(5)).queue(5);
    let limiter = RateLimiter::builder(window).clock(ManualClock::new()).build();
    assert!(limiter.check_n("key", 5).is_allowed());
    let (_calls, woken) = five_waiting(&limiter, &[1]);
    assert!(catch_unwind(AssertUnwindSafe(|| limiter.reset("key"))).is_err());
    assert_eq!(woken.0.load(Ordering::SeqCst), 4);
}

#[test]
fn when_a_waker_panics_the_others_that_wait_on_a_manual_clock_are_woken() {
    let clock = ManualClock::new();
    let woken = Arc::new(Count::default());
    let mut sleeps: Vec<_> = (0..5).map(|_| clock.sleep_until(Nanos(5))).collect();
    for (nth, sleep) in sleeps.iter_mut().enumerate() {
        let waker = if nth == 2 { Waker::from(Arc::new(Broken)) } else { Waker::from(Arc::clone(&woken)) };
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert!(catch_unwind(AssertUnwindSafe(|| clock.advance(Duration::from_secs(1)))).is_err());
    assert_eq!(woken.0.load(Ordering::SeqCst), 4);
}

#[test]
fn an_admitted_waiter_is_woken_though_the_algorithm_panics() {
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let concurrency = Concurrency::per_key(1).max_wait(Duration::from_secs(60));
    let fragile = OwnAlgorithm::new(concurrency, move |method| {
        assert!(method != "peek" || !is_broken.load(Ordering::SeqCst), "broken");
    });
    let limiter = limiter(fragile, &ManualClock::new());
    // If a waker panics as well, the process does not end.
    let permit = limiter.try_acquire_permit("b").unwrap();
    let mut waiting = Box::pin(limiter.acquire_permit("b"));
    let waker = Waker::from(Arc::new(Broken));
    assert!(Pin::as_mut(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    broken.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(permit))).is_err());
    broken.store(false, Ordering::SeqCst);

    let permit = limiter.try_acquire_permit("a").unwrap();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waiting = Box::pin(limiter.acquire_permit("a"));
    assert!(Pin::as_mut(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    broken.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(permit))).is_err());
    broken.store(false, Ordering::SeqCst);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "it has left the queue: nothing else will wake it");
    assert!(matches!(waiting.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
}

#[test]
fn a_call_whose_arrival_makes_a_waker_panic_does_not_wait() {
    let one = Concurrency::per_key(1).queue(1).overflow(QueueOverflow::DropOldest);
    let limiter = limiter(one, &ManualClock::new());
    let permit = limiter.try_acquire_permit("key").unwrap();
    let mut oldest = Box::pin(limiter.acquire_permit("key"));
    let waker = Waker::from(Arc::new(Broken));
    assert!(oldest.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut call = Box::pin(limiter.acquire_permit("key"));
    let polled =
        catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
    assert!(polled.is_err(), "the oldest call gives its place");
    assert_eq!(limiter.stats().store.waiting, 0);
    drop((call, oldest, permit));
    assert!(limiter.try_acquire_permit("key").is_ok());
}

/// Three calls that are admitted by an access that also wakes another call, whose waker panics.
#[test]
fn no_permit_is_lost_if_the_waker_of_another_call_panics() {
    type Queued = Pin<Box<AcquirePermit<Concurrency>>>;
    type Act = fn(&RateLimiter<Concurrency>, &mut Queued);
    fn poll(call: Pin<&mut AcquirePermit<Concurrency>>, waker: &Waker) -> bool {
        call.poll(&mut Context::from_waker(waker)).is_pending()
    }
    let polled: Act = |_, first| _ = poll(first.as_mut(), Waker::noop());
    let tries: Act = |limiter, _| _ = limiter.try_acquire_permit("key");
    let arrives: Act = |limiter, _| _ = poll(pin!(limiter.acquire_permit("key")), Waker::noop());
    for (act, cancelled) in [(polled, 1), (tries, 2), (arrives, 2)] {
        let clock = ManualClock::new();
        let limiter = limiter(Concurrency::per_key(3), &clock);
        assert!(limiter.pause("key", Duration::from_secs(1)));
        let mut first = Box::pin(limiter.acquire_permit("key"));
        assert!(poll(first.as_mut(), Waker::noop()));
        let mut second = Box::pin(limiter.acquire_permit("key"));
        assert!(poll(second.as_mut(), &Waker::from(Arc::new(Broken))));
        // The clock wakes all that sleep, and the queue has the waker, too.
        assert!(catch_unwind(AssertUnwindSafe(|| clock.advance(Duration::from_secs(1)))).is_err());
        let panic = catch_unwind(AssertUnwindSafe(|| act(&limiter, &mut first))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a waker that panics"));
        drop((first, second));
        let stats = limiter.stats().calls;
        let permits = [(); 3].map(|()| limiter.try_acquire_permit("key"));
        assert!(permits.iter().all(Result::is_ok), "cancelled: {cancelled}");
        assert_eq!((stats.admitted, stats.cancelled), (1, cancelled));
    }
}

#[test]
fn a_call_whose_arrival_makes_the_algorithm_panic_does_not_wait() {
    let minute = Quota::per_minute(1);
    let full = LeakyBucket::new(minute).queue(1).overflow(QueueOverflow::DropOldest);
    for bucket in [LeakyBucket::new(minute).queue(2), full] {
        let waits = |nth: usize| {
            let clock = ManualClock::new();
            let left = Arc::new(AtomicUsize::new(usize::MAX));
            let asked = Arc::clone(&left);
            let own = OwnAlgorithm::new(bucket.clone(), move |method| {
                assert!(method == "drop" || asked.fetch_sub(1, Ordering::SeqCst) != 0, "broken");
            });
            let limiter = limiter(own, &clock);
            assert!(limiter.check("key").is_allowed());
            let poll = |call: &mut Queued<_>| call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let mut first = Box::pin(limiter.acquire("key"));
            let woken = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&woken));
            assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            left.store(nth, Ordering::SeqCst);
            let mut call = Box::pin(limiter.acquire("key"));
            let polled = catch_unwind(AssertUnwindSafe(|| poll(&mut call)));
            left.store(usize::MAX, Ordering::SeqCst);
            drop(call);
            if let Poll::Ready(decision) = poll(&mut first) {
                assert!(decision.is_queue_full() && !decision.never_fits(), "method {nth}");
                assert!(woken.0.load(Ordering::SeqCst) > 0, "method {nth}");
            }
            drop(first);
            assert_eq!(limiter.stats().store.waiting, 0, "method {nth}");
            clock.advance(Duration::from_secs(60));
            assert!(limiter.check("key").is_allowed(), "method {nth}");
            polled.is_ok()
        };
        assert!((0..100).any(waits), "each method panics once, until no call is left");
    }
}

#[test]
fn a_call_whose_algorithm_panics_when_it_is_cloned_holds_no_permit() {
    type Act = fn(&RateLimiter<OwnAlgorithm<Concurrency>>) -> bool;
    let tries: Act = |limiter| limiter.try_acquire_permit("key").is_ok();
    let arrives: Act = |limiter| {
        let mut call = pin!(limiter.acquire_permit("key"));
        matches!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_)))
    };
    for (act, is_new) in [(tries, false), (tries, true), (arrives, false), (arrives, true)] {
        let ends = |nth: usize| {
            let left = Arc::new(AtomicUsize::new(usize::MAX));
            let asked = Arc::clone(&left);
            let own = OwnAlgorithm::new(Concurrency::per_key(1).total(1), move |method| {
                assert!(method != "clone" || asked.fetch_sub(1, Ordering::SeqCst) != 0, "broken");
            });
            let limiter = limiter(own, &ManualClock::new());
            assert!(is_new || tries(&limiter));
            left.store(nth, Ordering::SeqCst);
            let acted = catch_unwind(AssertUnwindSafe(|| act(&limiter)));
            left.store(usize::MAX, Ordering::SeqCst);
            assert!(tries(&limiter), "copy {nth}, new: {is_new}");
            acted.is_ok_and(|is_admitted| is_admitted)
        };
        assert!((0..100).any(ends), "each copy panics once, until no copy is left");
    }
}

type Fragile = OwnAlgorithm<TokenBucket>;

/// Returns a limiter whose keys start empty and queue calls, and the number of the methods after which one panics.
fn breaks_once(clock: &ManualClock) -> (RateLimiter<Fragile>, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let asked = Arc::clone(&left);
    let bucket = TokenBucket::new(Quota::per_minute(1)).start_empty().queue(1);
    let own = OwnAlgorithm::new(bucket, move |method| {
        assert!(method == "drop" || asked.fetch_sub(1, Ordering::SeqCst) != 0, "broken");
    });
    (limiter(own, clock), left)
}

fn starts_empty_without_waiters(limiter: &RateLimiter<Fragile>, clock: &ManualClock, nth: usize) {
    assert_eq!(limiter.stats().store.waiting, 0, "method {nth}");
    let decision = limiter.check("key");
    assert!(!decision.is_allowed(), "method {nth}");
    clock.advance(Duration::from_secs(60));
    assert!(limiter.check("key").is_allowed(), "method {nth}");
}

#[test]
fn a_new_key_whose_first_call_or_pause_makes_the_algorithm_panic_keeps_no_queue() {
    type Act = fn(&RateLimiter<Fragile>, &mut Option<Acquired<QueuedAcquire<Fragile>>>);
    let acquires: Act = |limiter, call| {
        let attempt = Attempt::new(1).wait().with_reservation();
        let call = call.insert(LimiterFor::acquire(limiter, "key", attempt));
        assert!(matches!(call, Acquired::Pending(_)));
    };
    let pauses: Act = |limiter, _| assert!(limiter.pause("key", Duration::from_secs(120)));
    for act in [acquires, pauses] {
        let ends = |nth: usize| {
            let clock = ManualClock::new();
            let (limiter, left) = breaks_once(&clock);
            let mut call = None;
            left.store(nth, Ordering::SeqCst);
            let acted = catch_unwind(AssertUnwindSafe(|| act(&limiter, &mut call)));
            left.store(usize::MAX, Ordering::SeqCst);
            drop(call);
            if acted.is_ok() {
                limiter.pause("key", Duration::ZERO);
            }
            starts_empty_without_waiters(&limiter, &clock, nth);
            acted.is_ok()
        };
        assert!((0..100).any(ends), "each method panics once, until no call is left");
    }
}

#[test]
fn a_call_that_is_dropped_leaves_its_queue_though_the_algorithm_panics() {
    for is_due in [false, true] {
        let ends = |nth: usize| {
            let clock = ManualClock::new();
            let (limiter, left) = breaks_once(&clock);
            let mut call = Box::pin(limiter.acquire("key"));
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            clock.advance(Duration::from_secs(if is_due { 60 } else { 0 }));
            left.store(nth, Ordering::SeqCst);
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(call)));
            left.store(usize::MAX, Ordering::SeqCst);
            assert_eq!(limiter.stats().store.waiting, 0, "method {nth}");
            clock.advance(Duration::from_secs(60));
            assert!(limiter.check("key").is_allowed(), "method {nth}");
            dropped.is_ok()
        };
        assert!((0..100).any(ends), "each method panics once, until no call is left");
    }
}

/// A call that has panicked in a poll keeps its ticket until its future is dropped.
#[test]
fn the_drop_of_a_call_that_has_panicked_cancels_no_other_call() {
    let clock = ManualClock::new();
    let is_broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&is_broken);
    let own = OwnAlgorithm::new(Concurrency::per_key(1).max_wait(Duration::from_secs(1)), move |method| {
        assert!(method != "peek" || !breaks.load(Ordering::SeqCst), "broken");
    });
    let limiter = limiter(own, &clock);
    let permit = limiter.try_acquire_permit("key").unwrap();
    let poll =
        |call: &mut Pin<Box<AcquirePermit<_>>>| call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let mut late = Box::pin(limiter.acquire_permit("key"));
    assert!(poll(&mut late).is_pending());
    clock.advance(Duration::from_secs(1));
    is_broken.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut late))).is_err());
    is_broken.store(false, Ordering::SeqCst);
    // The queue is removed, and the next call begins a new one.
    assert!(limiter.try_acquire_permit("key").is_err());
    let mut next = Box::pin(limiter.acquire_permit("key"));
    assert!(poll(&mut next).is_pending());
    drop(late);
    assert!(poll(&mut next).is_pending());
    assert_eq!(limiter.stats().store.waiting, 1);
    drop(permit);
    assert!(matches!(poll(&mut next), Poll::Ready(Ok(_))));
}

type Known = Arc<OnceLock<RateLimiter<OwnAlgorithm<Concurrency>>>>;

/// Returns a limiter whose algorithm makes a call of the key when a copy of it is dropped while the flag is `true`.
/// What an algorithm does when it is dropped may need a lock.
fn calls_when_dropped() -> (Known, Arc<AtomicBool>) {
    let known = Known::default();
    let is_watched = Arc::new(AtomicBool::new(false));
    let (dropped, watched) = (Arc::clone(&known), Arc::clone(&is_watched));
    let own = OwnAlgorithm::new(Concurrency::per_key(1), move |method| {
        if method == "drop" && watched.swap(false, Ordering::SeqCst) {
            let limiter = dropped.get().unwrap().clone();
            let (sender, receiver) = mpsc::channel();
            thread::spawn(move || sender.send(limiter.try_acquire_permit("key").is_err()));
            assert_eq!(receiver.recv_timeout(Duration::from_secs(5)), Ok(true), "the key is locked");
        }
    });
    known.get_or_init(|| limiter(own, &ManualClock::new()));
    (known, is_watched)
}

#[test]
fn the_algorithm_of_a_denied_waiter_is_dropped_while_no_lock_is_held() {
    let (known, is_polled) = calls_when_dropped();
    let limiter = known.get().unwrap();
    let _permit = limiter.try_acquire_permit("key").unwrap();
    let mut call = Box::pin(limiter.acquire_permit("key"));
    let mut poll = || call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    limiter.close();
    is_polled.store(true, Ordering::SeqCst);
    assert!(matches!(poll(), Poll::Ready(Err(denied)) if denied.decision().is_closed()));
    drop(call);
    assert!(!is_polled.load(Ordering::SeqCst), "it was dropped");
}

#[test]
fn the_algorithm_of_a_denied_joint_call_is_dropped_while_no_lock_is_held() {
    let (known, is_called) = calls_when_dropped();
    let limiter = known.get().unwrap();
    let _permit = limiter.try_acquire_permit("key").unwrap();
    let other = RateLimiter::new(FixedWindow::new(Quota::per_minute(9)));
    let service = joined(limiter, other.clone());
    is_called.store(true, Ordering::SeqCst);
    let mut call = pin!(service.clone().call(()));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(!is_called.load(Ordering::SeqCst), "it was dropped");
    assert_eq!(other.peek("key").remaining(), 9);
}

/// Returns a service with two joined limits, of which all calls have the same key.
fn joined<A: Algorithm, B: Algorithm>(
    first: &RateLimiter<A>,
    second: RateLimiter<B>,
) -> impl Service<(), Future: Future> + Clone {
    let key = || from_fn(|(): &()| Some("key"));
    RateLimitLayer::with_limiter(key(), first.clone())
        .and(RateLimitLayer::with_limiter(key(), second))
        .responder(ErrorResponder)
        .layer(service_fn(async |()| Ok::<_, Infallible>(())))
}

#[test]
fn a_joint_call_leaves_its_queue_if_an_algorithm_panics() {
    let clock = ManualClock::new();
    let bucket = limiter(TokenBucket::new(Quota::per_minute(1)).start_empty().queue(1), &clock);
    let fragile = OwnAlgorithm::new(Concurrency::per_key(1), |method| assert_ne!(method, "check"));
    let service = joined(&bucket, limiter(fragile, &clock));
    let call = || pin!(service.clone().call(())).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert_eq!(bucket.stats().store.waiting, 0);
    clock.advance(Duration::from_secs(60));
    assert!(bucket.check("key").is_allowed());
}

#[test]
fn a_joint_call_leaves_the_queue_of_an_algorithm_that_panics() {
    let waits = |nth: usize| {
        let clock = ManualClock::new();
        let (bucket, left) = breaks_once(&clock);
        let window = limiter(FixedWindow::new(Quota::per_minute(9)), &clock);
        let service = joined(&bucket, window);
        left.store(nth, Ordering::SeqCst);
        let mut call = None;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let call = call.insert(Box::pin(service.clone().call(())));
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }));
        left.store(usize::MAX, Ordering::SeqCst);
        drop(call);
        starts_empty_without_waiters(&bucket, &clock, nth);
        polled.is_ok()
    };
    assert!((0..100).any(waits), "each method panics once, until no call is left");
}

#[test]
fn a_joint_call_charges_no_tokens_if_an_algorithm_panics() {
    let clock = ManualClock::new();
    let two = limiter((TokenBucket::new(Quota::per_minute(2)), Concurrency::per_key(1)), &clock);
    let fragile = OwnAlgorithm::new(FixedWindow::new(Quota::per_minute(9)), |method| {
        assert_ne!(method, "check");
    });
    drop(two.try_acquire_permit("key").unwrap());
    let service = joined(&two, limiter(fragile, &clock));
    let call = || pin!(service.clone().call(())).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert!(two.try_acquire_permit("key").is_ok(), "its token is back");
}

#[test]
fn a_joint_call_charges_nothing_if_its_tier_panics_when_it_is_cloned() {
    let ends = |nth: usize| {
        let clock = ManualClock::new();
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let asked = Arc::clone(&left);
        let both = (TokenBucket::new(Quota::per_minute(2)), Concurrency::per_key(1));
        let tier = OwnAlgorithm::new(both, move |method| {
            assert!(method != "clone" || asked.fetch_sub(1, Ordering::SeqCst) != 0, "broken");
        });
        let two = limiter(Tiered::new(tier.clone()), &clock);
        drop(two.try_acquire_permit("key").unwrap());
        let key = || from_fn(|(): &()| Some("key"));
        let window = limiter(FixedWindow::new(Quota::per_minute(9)), &clock);
        let mut service = RateLimitLayer::with_limiter(key(), two.clone())
            .tier(move |(): &(), _: &&str| tier.clone())
            .and(RateLimitLayer::with_limiter(key(), window))
            .responder(ErrorResponder)
            .layer(service_fn(async |()| Ok::<_, Infallible>(())));
        left.store(nth, Ordering::SeqCst);
        let call = || pin!(service.call(())).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let called = catch_unwind(AssertUnwindSafe(call));
        left.store(usize::MAX, Ordering::SeqCst);
        assert_eq!(two.try_acquire_permit("key").is_ok(), called.is_err(), "copy {nth}");
        called.is_ok()
    };
    assert!((0..100).any(ends), "each copy panics once, until no copy is left");
}
