//! Single calls.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use tower_throttle::algorithm::{QueueOverflow, Tiered};
use tower_throttle::limiter::OnClose;

use super::*;
use crate::support::ends_within;

#[test]
fn a_limit_without_a_total_is_no_shared_one() {
    let error = FairLimiter::builder(Concurrency::per_key(2)).try_build().unwrap_err();
    assert!(error.to_string().contains(".total(n)"), "{error}");
    let panic = catch_unwind(|| FairLimiter::new(Concurrency::per_key(2))).unwrap_err();
    assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains(".total(n)")));
    let tiers = Tiered::new(Concurrency::per_key(2));
    assert!(catch_unwind(AssertUnwindSafe(|| FairLimiter::new(tiers))).is_err());
    let (limiter, _) = fair(Concurrency::per_key(2).total(3));
    let held = taken(&limiter, "a");
    assert!(limiter.replace(Concurrency::per_key(9)).is_err());
    assert_eq!(limiter.algorithm(), limiter.algorithm());
    assert_eq!((limiter.algorithm().limit_per_key(), limiter.call("b").peek().limit()), (2, 2));
    drop(held);
}

#[test]
fn a_free_place_goes_to_the_caller_that_holds_the_fewest() {
    let (limiter, _) = fair(Concurrency::per_key(3).total(3));
    let mut flood: Vec<_> = (0..3).map(|_| taken(&limiter, "flood")).collect();
    let mut behind = [queued(&limiter, "flood"), queued(&limiter, "flood")];
    let mut late = queued(&limiter, "late");
    drop(flood.pop());
    let permit = admitted(&mut late);
    assert!(behind.iter_mut().all(|call| !call.run()));
    // The caller that came late holds one, and the flood two.
    let mut second = queued(&limiter, "late");
    drop(flood.pop());
    // Both hold one, and so the flood, which has received no less, is served in turn.
    assert_eq!([second.run(), behind[0].run()].into_iter().filter(|ready| *ready).count(), 1);
    drop((flood, permit, second, behind));
    is_unused(&limiter);
}

#[test]
fn what_remains_is_what_passes_without_waiting() {
    let (limiter, _) = fair(Concurrency::per_key(4).total(6));
    assert_eq!(limiter.call("a").peek().remaining(), 4);
    let held = limiter.call("a").cost(3).permit().unwrap();
    assert_eq!(limiter.call("a").peek().remaining(), 1);
    assert_eq!(limiter.call("b").peek().remaining(), 3);
    let two = limiter.call("b").cost(2).permit().unwrap();
    // One unit is free. A call of two units waits, of a caller that holds two.
    let mut large = waits(limiter.call("b").cost(2).acquire_permit());
    assert_eq!(limiter.call("b").peek().remaining(), 0, "its own call waits");
    assert_eq!(limiter.call("c").peek().remaining(), 1);
    assert_eq!(limiter.call("a").peek().remaining(), 0, "it holds more than the caller that waits");
    let denial = limiter.try_acquire_permit("a").unwrap_err();
    assert_eq!((denial.decision().limit(), denial.decision().retry_after()), (4, None));
    assert!(!denial.decision().never_fits());
    assert!(limiter.call("a").cost(5).permit().unwrap_err().decision().never_fits());
    let free = limiter.call("b").cost(0).permit().unwrap();
    assert!(free.is_empty());
    drop(held);
    drop((admitted(&mut large), two));
    is_unused(&limiter);
    assert_eq!(limiter.len(), 0);
}

#[test]
fn a_layer_waits_only_with_a_queue_and_a_task_always() {
    use tower_throttle::limiter::{Acquired, Attempt, LimiterFor};
    let tries = |algorithm: Concurrency, calls: usize| {
        let (limiter, _) = fair(algorithm);
        let _held = taken(&limiter, "a");
        let answers: Vec<_> = (0..calls).map(|_| limiter.acquire("a", Attempt::new(1))).collect();
        answers.iter().filter(|answer| matches!(answer, Acquired::Pending(_))).count()
    };
    let limit = || Concurrency::per_key(2).total(1);
    assert_eq!(tries(limit(), 3), 0);
    assert_eq!(tries(limit().queue(1), 3), 1);
    assert_eq!(tries(limit().queue(0), 3), 0);
    assert_eq!(tries(limit().max_wait(SECOND), 3), 2, "as many as the limit of a caller");
    let (limiter, _) = fair(limit());
    let _held = taken(&limiter, "a");
    let waiting: Vec<_> = (0..5).map(|_| queued(&limiter, "a")).collect();
    assert_eq!(limiter.stats().store.waiting, 5);
    drop(waiting);
}

#[test]
fn the_callers_own_bound_comes_first() {
    let (limiter, clock) = fair(Concurrency::per_key(1).total(1).queue(2));
    let held = taken(&limiter, "a");
    let mut waiting = [queued(&limiter, "a"), queued(&limiter, "a")];
    let denial = limiter.acquire_permit("a").now().unwrap_err();
    assert!(denial.decision().is_queue_full());
    assert!(waiting.iter_mut().all(|call| !call.run()));
    let mut other = queued(&limiter, "b");
    clock.advance(SECOND);
    drop(held);
    // The first caller has received a second of service meanwhile.
    let next = admitted(&mut other);
    drop((next, waiting));
    is_unused(&limiter);
}

#[test]
fn with_drop_oldest_the_callers_own_oldest_call_gives_its_place() {
    let algorithm = Concurrency::per_key(1).total(1).queue(2).overflow(QueueOverflow::DropOldest);
    let clock = ManualClock::new();
    let limiter = FairLimiter::builder(algorithm).clock(clock.clone()).max_queued(3).build();
    let held = taken(&limiter, "a");
    let [mut first, second] = [queued(&limiter, "b"), queued(&limiter, "b")];
    clock.advance(SECOND);
    let third = queued(&limiter, "b");
    let denial = denied(&mut first);
    assert!(denial.decision().is_queue_full());
    assert_eq!(denial.decision().delay(), SECOND);
    // `max_queued` is reached, and its own oldest call gives its place before anybody else is asked.
    let mut own = queued(&limiter, "c");
    let newest = queued(&limiter, "c");
    assert!(denied(&mut own).decision().is_queue_full());
    assert!(second.is_pending() && third.is_pending() && newest.is_pending());
    drop((held, second, third, newest));
    is_unused(&limiter);
}

#[test]
fn all_queues_are_full_and_the_longest_gives_its_newest_call() {
    let clock = ManualClock::new();
    let limiter =
        FairLimiter::builder(Concurrency::per_key(1).total(1)).clock(clock.clone()).max_queued(5).build();
    let held = taken(&limiter, "x");
    let mut flood: Vec<_> = (0..3).map(|_| queued(&limiter, "a")).collect();
    let mut other = [queued(&limiter, "b"), queued(&limiter, "b")];
    clock.advance(SECOND);
    let mut polite = queued(&limiter, "c");
    let denial = denied(&mut flood[2]);
    assert!(denial.decision().is_queue_full());
    assert_eq!(denial.decision().delay(), SECOND);
    // Two each: the one that began to wait last gives, but only to a caller that has none.
    let late = queued(&limiter, "d");
    assert!(denied(&mut other[1]).decision().is_queue_full());
    for key in ["a", "b", "c", "d"] {
        let denial = limiter.acquire_permit(key).now().unwrap_err();
        assert!(denial.decision().is_queue_full(), "{key}");
    }
    let stats = limiter.stats();
    assert_eq!((stats.calls.queue_full, stats.calls.queued, stats.store.waiting), (6, 7, 5));
    assert!(!polite.run());
    drop((held, late, polite, flood, other));
    is_unused(&limiter);
}

#[test]
fn tiers_differ_only_in_the_limit_of_a_caller() {
    let (free, paid) = (Concurrency::per_key(1).total(4), Concurrency::per_key(3).total(99).queue(7));
    let limiter = FairLimiter::new(Tiered::new(free.clone()));
    let held = limiter.call("a").tier(&paid).cost(2).permit().unwrap();
    assert!(limiter.call("a").permit().is_err() && limiter.call("a").tier(&free).permit().is_err());
    assert_eq!(limiter.call("a").tier(&paid).peek().remaining(), 1);
    assert_eq!(limiter.call("b").tier(&Concurrency::per_key(9)).peek().limit(), 4);
    // A call in the small tier waits for its own caller, and a call in the large one behind it.
    let mut small = waits(limiter.call("a").acquire_permit());
    let mut large = waits(limiter.call("a").tier(&paid).acquire_permit());
    drop(held);
    assert!(small.run() && large.run());
    drop((small, large));
    assert_eq!(limiter.call("b").tier(&paid).peek().remaining(), 3);
}

#[test]
fn a_replacement_admits_what_now_fits() {
    let (limiter, _) = fair(Concurrency::per_key(2).total(2));
    let held = [taken(&limiter, "a"), taken(&limiter, "b")];
    let mut waiting = ["a", "b", "c"].map(|key| queued(&limiter, key));
    limiter.replace(Concurrency::per_key(2).total(4).queue(9)).unwrap();
    let ready: Vec<_> = waiting.iter_mut().map(|call| call.run()).collect();
    assert_eq!(ready.iter().filter(|ready| **ready).count(), 2);
    assert!(ready[2], "the caller that holds nothing is the first");
    // Calls in progress stay, above a lower total.
    limiter.replace(Concurrency::per_key(1).total(1)).unwrap();
    assert_eq!(limiter.call("d").peek().remaining(), 0);
    drop((held, waiting));
    assert_eq!(limiter.call("d").peek().remaining(), 1);
}

#[test]
fn a_call_above_a_lower_limit_passes_once_nothing_is_in_its_way() {
    let (limiter, _) = fair(Concurrency::per_key(8).total(8));
    let held = limiter.call("a").cost(6).permit().unwrap();
    let other = limiter.call("b").cost(1).permit().unwrap();
    let mut above_total = waits(limiter.call("c").cost(8).acquire_permit());
    let mut above_per_key = waits(limiter.call("b").cost(4).acquire_permit());
    limiter.replace(Concurrency::per_key(2).total(5)).unwrap();
    drop(held);
    assert!(!above_total.run() && !above_per_key.run(), "one unit is in progress, of the second caller");
    drop(other);
    let large = admitted(&mut above_total);
    assert!(!above_per_key.run());
    drop(large);
    drop(admitted(&mut above_per_key));
    is_unused(&limiter);
}

#[test]
fn a_closed_limiter_denies_all_that_wait() {
    for on_close in [OnClose::Reject, OnClose::Allow] {
        let clock = ManualClock::new();
        let limiter = FairLimiter::builder(Concurrency::per_key(1).total(1))
            .clock(clock.clone())
            .on_close(on_close)
            .name("reports")
            .build();
        let held = taken(&limiter, "a");
        let mut waiting = ["a", "b"].map(|key| queued(&limiter, key));
        clock.advance(SECOND);
        limiter.clone().close();
        for call in &mut waiting {
            let denial = denied(call);
            assert!(denial.decision().is_closed());
            assert_eq!(denial.decision().delay(), SECOND);
        }
        let next = limiter.acquire_permit("b").now();
        match on_close {
            OnClose::Allow => assert!(next.unwrap().is_empty()),
            _ => assert!(next.unwrap_err().decision().is_closed()),
        }
        drop(held);
        assert_eq!((limiter.len(), limiter.stats().store.waiting), (0, 0));
    }
}

#[test]
fn a_cancelled_call_lets_those_behind_it_pass_and_gives_its_units_on() {
    let (limiter, _) = fair(Concurrency::per_key(4).total(4));
    let held = limiter.call("a").cost(3).permit().unwrap();
    let large = waits(limiter.call("b").cost(4).acquire_permit());
    let mut small = waits(limiter.call("c").cost(1).max_wait(SECOND).acquire_permit());
    drop(large);
    let permit = admitted(&mut small);
    let (mut first, mut second) = (queued(&limiter, "b"), queued(&limiter, "c"));
    drop(permit);
    // The first was admitted, and is dropped before it is polled.
    assert!(first.is_woken() && !second.is_woken());
    first.abandon();
    drop(admitted(&mut second));
    drop(held);
    is_unused(&limiter);
    let stats = limiter.stats().calls;
    assert_eq!((stats.cancelled, stats.queued), (2, 4));
    assert_eq!(stats.ended(), stats.admitted + stats.cancelled);
}

#[test]
fn a_call_waits_no_longer_than_its_maximum_wait() {
    let (limiter, clock) = fair(Concurrency::per_key(1).total(1).queue(9).max_wait(2 * SECOND));
    let held = taken(&limiter, "a");
    let mut short = waits(limiter.call("b").max_wait(SECOND).acquire_permit());
    let mut long = waits(limiter.call("b").max_wait(60 * SECOND).acquire_permit());
    assert!(limiter.call("b").max_wait(Duration::ZERO).acquire_permit().now().is_err());
    clock.advance(SECOND - Duration::from_nanos(1));
    assert!(!short.run());
    clock.advance(Duration::from_nanos(1));
    let denial = denied(&mut short);
    assert_eq!((denial.decision().delay(), denial.decision().is_queue_full()), (SECOND, false));
    // The clock is set back: the call waits no longer than two seconds from then on.
    clock.set(Duration::ZERO);
    assert!(!long.run());
    clock.advance(2 * SECOND);
    assert!(!denied(&mut long).decision().is_allowed());
    drop(held);
    is_unused(&limiter);
}

/// Calls that wait, each with its caller.
type Crowd = Vec<(usize, PolledByHand<FairAcquire>)>;

/// Ends a call. Returns the caller whose call is admitted in its place, and the permit of that call.
#[track_caller]
fn end(permit: Permit, crowd: &mut Crowd) -> (usize, Permit) {
    drop(permit);
    let at = crowd.iter().position(|(_, call)| call.is_woken()).expect("one is admitted");
    let (caller, mut call) = crowd.remove(at);
    (caller, admitted(&mut call))
}

/// Calls began to wait at a reading that the clock reaches again only after 1,000 s.
#[test]
fn a_clock_that_is_set_back_starves_no_caller() {
    let (limiter, clock) = fair(Concurrency::per_key(1).total(1));
    clock.set(SECOND * 1_000);
    let first = taken(&limiter, "first");
    let mut crowd: Crowd = (0..100).map(|nth| (nth % 2, queued(&limiter, ["a", "b"][nth % 2]))).collect();
    let (_, permit) = end(first, &mut crowd);
    clock.advance(SECOND);
    let (_, mut permit) = end(permit, &mut crowd);
    clock.set(Duration::ZERO);
    let mut got = [0; 2];
    for _ in 0..8 {
        clock.advance(SECOND);
        let caller;
        (caller, permit) = end(permit, &mut crowd);
        got[caller] += 1;
    }
    assert!(got.iter().all(|calls| *calls >= 3), "{got:?}");
}

/// Calls that began before any call waited are not charged for the time before that, although another call ended while
/// the clock was set back.
#[test]
fn a_clock_that_is_set_back_and_set_again_starves_no_caller() {
    let (limiter, clock) = fair(Concurrency::per_key(2).total(2));
    let [a, b] = ["a", "b"].map(|key| taken(&limiter, key));
    clock.set(SECOND * 1_000);
    let mut crowd: Crowd =
        (0..80).map(|nth| (nth % 4, queued(&limiter, ["a", "b", "c", "d"][nth % 4]))).collect();
    clock.set(SECOND);
    let (_, mut first) = end(b, &mut crowd);
    clock.set(SECOND * 1_001);
    let (_, mut second) = end(a, &mut crowd);
    let mut got = [0; 4];
    for _ in 0..16 {
        clock.advance(SECOND);
        let (caller, permit) = end(first, &mut crowd);
        got[caller] += 1;
        (first, second) = (second, permit);
    }
    assert!(got.iter().all(|calls| *calls >= 3), "{got:?}");
}

/// A waker that makes calls of all kinds when it is woken and when it is dropped, and counts how often.
struct Uses(FairLimiter, Arc<AtomicU64>);

impl Uses {
    fn the_limiter(&self) {
        let Self(limiter, count) = self;
        count.fetch_add(1, Ordering::SeqCst);
        for key in ["a", "b", "c"] {
            drop(limiter.try_acquire_permit(key));
            let call = pin!(limiter.acquire_permit(key));
            drop(call.poll(&mut Context::from_waker(Waker::noop())));
        }
        assert!(limiter.stats().calls.ended() > 0);
    }
}

impl Wake for Uses {
    fn wake(self: Arc<Self>) {
        self.the_limiter();
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        self.the_limiter();
    }
}

#[test]
fn no_waker_is_woken_or_dropped_under_the_lock() {
    // The call is admitted, cancelled, polled by another task, displaced by its own caller or by another one, closed,
    // admitted by a replacement, admitted by a cancelled call, and waits for too long.
    for way in 0..9 {
        ends_within(20 * SECOND, move || {
            let algorithm = Concurrency::per_key(2).total(2).queue(2);
            let algorithm = if way == 3 { algorithm.overflow(QueueOverflow::DropOldest) } else { algorithm };
            let clock = ManualClock::new();
            let limiter = FairLimiter::builder(algorithm.clone()).clock(clock.clone()).max_queued(3).build();
            let held = limiter.call("a").cost(2).permit().unwrap();
            let before = (way == 7).then(|| waits(limiter.call("b").cost(2).acquire_permit()));
            let after = (way == 4).then(|| queued(&limiter, "b"));
            let call = limiter.call("b").max_wait(if way == 8 { SECOND } else { Duration::MAX });
            let mut call = Box::pin(call.acquire_permit());
            let count = Arc::new(AtomicU64::new(0));
            let waker = Waker::from(Arc::new(Uses(limiter.clone(), count.clone())));
            assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            assert_eq!(count.load(Ordering::SeqCst), 0, "its waker is kept");
            let noop = &mut Context::from_waker(Waker::noop());
            let others = match way {
                3 => vec![queued(&limiter, "b"), queued(&limiter, "b")],
                4 => vec![queued(&limiter, "c"), queued(&limiter, "d")],
                _ => Vec::new(),
            };
            match way {
                0 => drop(held),
                2 => assert!(call.as_mut().poll(noop).is_pending()),
                5 => limiter.close(),
                6 => limiter.replace(algorithm.total(4)).unwrap(),
                7 => {
                    limiter.replace(algorithm.total(3)).unwrap();
                    drop(before);
                }
                8 => {
                    clock.advance(SECOND);
                    assert!(call.as_mut().poll(noop).is_ready());
                }
                _ => {}
            }
            drop(call);
            assert!(count.load(Ordering::SeqCst) > 0, "its waker is woken or dropped");
            drop((after, others));
        });
    }
}

/// A waker that panics when it is woken.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// Starts a call that must wait, and whose waker panics.
#[track_caller]
fn queued_with_a_broken_waker(call: FairAcquire) -> Pin<Box<FairAcquire>> {
    let mut call = Box::pin(call);
    let waker = Waker::from(Arc::new(Broken));
    assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    call
}

#[test]
fn a_waker_that_panics_when_a_call_has_waited_for_too_long_cancels_no_other_call() {
    let (limiter, clock) = fair(Concurrency::per_key(2).total(2));
    let held = taken(&limiter, "a");
    let mut late = waits(limiter.call("b").cost(2).max_wait(SECOND).acquire_permit());
    let behind = queued_with_a_broken_waker(limiter.acquire_permit("c"));
    clock.advance(SECOND);
    assert!(catch_unwind(AssertUnwindSafe(|| late.poll())).is_err(), "the call behind it passes");
    // This call gets the place in memory of the one that is denied.
    let mut next = queued(&limiter, "d");
    late.abandon();
    assert_eq!(limiter.stats().store.waiting, 1);
    drop(behind);
    drop((admitted(&mut next), held));
    is_unused(&limiter);
    let stats = limiter.stats().calls;
    assert_eq!((stats.cancelled, stats.denied, stats.admitted), (1, 1, 3), "with the last call of this test");
}

#[test]
fn a_call_whose_arrival_makes_a_waker_panic_does_not_wait() {
    let one = Concurrency::per_key(1).total(1).queue(1).overflow(QueueOverflow::DropOldest);
    let (limiter, _) = fair(one);
    let held = taken(&limiter, "a");
    let oldest = queued_with_a_broken_waker(limiter.acquire_permit("b"));
    let mut call = PolledByHand::new(limiter.acquire_permit("b"));
    assert!(catch_unwind(AssertUnwindSafe(|| call.poll())).is_err(), "the oldest call gives its place");
    assert_eq!(limiter.stats().store.waiting, 0);
    drop((call, oldest, held));
    is_unused(&limiter);
}
