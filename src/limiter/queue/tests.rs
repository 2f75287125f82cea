use super::*;
use crate::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, QueueConfig, QuotaPolicy, Semaphore, Usage,
};
use crate::clock::AnyClock;
use crate::decision::Decision;
use crate::limiter::observed::Observed;
use crate::limiter::options::{OnClose, OnFull};
use crate::limiter::room::Room;
use crate::quota::Quota;
use crate::stats::UnitCounts;
use crate::sys::lock::atomic::AtomicU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

const MS: u64 = 1_000_000;

#[test]
fn a_waiter_costs_what_the_documentation_says() {
    assert_eq!(size_of::<Waiter<LeakyBucket>>(), 112);
}

struct Bench<A: Algorithm> {
    config: ShardConfig<A>,
    shared: Shared,
    state: A::State,
    queue: Queue<A>,
    wake: Vec<Waker>,
}

impl<A: Algorithm> Bench<A> {
    fn of(algorithm: A) -> Self {
        let state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        let shared = Shared {
            observed: Observed::new(None),
            clock: AnyClock::default(),
            room: Room::new(1, OnFull::Reject, &algorithm, Nanos::ZERO),
            waiting: Semaphore::new(100_000),
            paused: Semaphore::new(10),
            max_debt: 0,
            on_close: OnClose::Reject,
            resets: AtomicU64::new(0),
            calls: Arc::default(),
            units: UnitCounts::default(),
        };
        let config = ShardConfig { algorithm, one_unit: Usage::NONE, first: None, closed: false };
        Self { config, shared, state, queue: Queue::default(), wake: Vec::new() }
    }

    /// Runs `change` on the key, locked at `at`. The key has a queue, even if no call waits.
    fn with<R>(&mut self, at: u64, change: impl FnOnce(&mut Key<'_, A>) -> R) -> R {
        let Self { config, shared, state, queue, wake } = self;
        let access = &mut Access { shared, tier: None, now: Nanos(at), wake };
        let Access { shared, tier, now, wake } = access;
        let key = &mut Key {
            config,
            tier: *tier,
            state,
            queue: Some(queue),
            vacant: None,
            shared,
            wake,
            now: *now,
        };
        change(key)
    }
}

impl Bench<LeakyBucket> {
    fn new(bucket: LeakyBucket) -> Self {
        Self::of(bucket)
    }

    fn admit(&mut self, at: u64) {
        self.with(at, |key| key.admit_due());
    }

    fn try_enqueue(&mut self, at: u64, cost: u64) -> Enqueued {
        self.with(at, |key| key.acquire(Attempt::new(cost).wait(), None))
    }

    fn ticket(&mut self, at: u64, cost: u64) -> u64 {
        match self.try_enqueue(at, cost) {
            Enqueued::Queued(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn decided(&mut self, at: u64) -> Decision {
        match self.try_enqueue(at, 1) {
            Enqueued::Decided(decision) => decision,
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, at: u64, ticket: u64) -> PollTurn {
        self.with(at, |key| key.poll(ticket, Waker::noop()).0)
    }

    fn cancel(&mut self, at: u64, ticket: u64) {
        self.with(at, |key| key.schedule().and_then(|mut schedule| schedule.cancel(ticket)));
    }

    fn passes(&mut self, at: u64, ticket: u64) -> bool {
        matches!(self.ask(at, ticket), PollTurn::Ready(..))
    }
}

fn ten_a_second() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(3)
}

/// A bucket that makes up for a stall of up to five milliseconds, which is five intervals.
fn thousand_a_second() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(1_000)).queue(3)
}

#[test]
fn five_at_one_instant() {
    let mut bench = Bench::new(ten_a_second());
    let first = bench.decided(0);
    assert!(first.is_allowed());
    assert_eq!((first.limit(), first.remaining()), (1, 0));
    let tickets = [(); 3].map(|()| bench.ticket(0, 1));
    let fifth = bench.decided(0);
    assert!(!fifth.is_allowed());
    assert_eq!(fifth.retry_after(), Some(Duration::from_millis(100)));
    for (n, ticket) in (1..).zip(tickets) {
        assert!(!bench.passes(n * 100 * MS - 1, ticket));
        assert!(bench.passes(n * 100 * MS, ticket));
    }
    assert!(bench.queue.is_unused(Nanos::ZERO));
}

#[test]
fn waiters_behind_a_cancelled_one_move_up() {
    let mut bench = Bench::new(ten_a_second());
    assert!(bench.decided(0).is_allowed());
    let [first, second, third] = [(); 3].map(|()| bench.ticket(0, 1));
    bench.cancel(0, second);
    assert!(bench.passes(100 * MS, first));
    assert!(bench.passes(200 * MS, third));
}

#[test]
fn an_unobserved_admission_gives_its_slot_back() {
    let mut bench = Bench::new(ten_a_second());
    assert!(bench.decided(0).is_allowed());
    let [first, second] = [(); 2].map(|()| bench.ticket(0, 1));
    bench.admit(100 * MS);
    bench.cancel(100 * MS, first);
    assert!(bench.passes(100 * MS, second));
}

#[test]
fn a_slot_is_not_given_back_once_another_has_followed() {
    let mut bench = Bench::new(thousand_a_second());
    assert!(bench.decided(0).is_allowed());
    let [first, second, third] = [(); 3].map(|()| bench.ticket(0, 1));
    bench.admit(2 * MS);
    bench.cancel(2 * MS, first);
    assert!(bench.passes(2 * MS, second));
    assert!(!bench.passes(3 * MS - 1, third));
    assert!(bench.passes(3 * MS, third));
}

#[test]
fn a_queue_advances_though_its_first_waiter_is_never_polled() {
    let mut bench = Bench::new(thousand_a_second());
    assert!(bench.decided(0).is_allowed());
    let [_asleep, second] = [(); 2].map(|()| bench.ticket(0, 1));
    assert!(bench.passes(2 * MS, second));
}

#[test]
fn overdue_slots_are_admitted_at_once() {
    let mut bench = Bench::new(LeakyBucket::new(Quota::per_second(5_000)).queue(10));
    assert!(bench.decided(0).is_allowed());
    let tickets = [(); 10].map(|()| bench.ticket(0, 1));
    // The timer ticks in milliseconds, so five slots have passed.
    bench.admit(MS);
    assert_eq!(bench.queue.answered.len(), 5);
    assert!(bench.passes(2 * MS, tickets[9]));
}

#[test]
fn a_cost_holds_back_the_next() {
    let mut bench = Bench::new(ten_a_second());
    assert!(bench.decided(0).is_allowed());
    let heavy = bench.ticket(0, 5);
    let next = bench.ticket(0, 1);
    assert!(bench.passes(100 * MS, heavy));
    assert!(!bench.passes(600 * MS - 1, next));
    assert!(bench.passes(600 * MS, next));
}

#[test]
fn a_call_that_would_wait_too_long_is_denied_at_once() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(9).max_wait(Duration::from_millis(150));
    let mut bench = Bench::new(bucket);
    let first = bench.decided(0);
    assert_eq!((first.limit(), first.remaining()), (1, 0));
    let _second = bench.ticket(0, 1);
    let third = bench.decided(0);
    assert_eq!(third.retry_after(), Some(Duration::from_millis(50)));
    assert!(!bench.decided(50 * MS - 1).is_allowed());
    bench.ticket(50 * MS, 1);
}

#[test]
fn a_clock_set_back_does_not_hold_up_earlier_calls() {
    let mut bench = Bench::new(ten_a_second());
    let hour = 3_600_000 * MS;
    assert!(bench.decided(hour).is_allowed());
    let [first, second] = [(); 2].map(|()| bench.ticket(hour + 10 * MS, 1));
    // The clock is set back by an hour. 90 ms of the interval are left, as before.
    assert!(!bench.passes(0, first));
    assert!(bench.passes(90 * MS, first));
    assert!(bench.passes(190 * MS, second));
}

#[test]
fn a_peek_while_the_clock_is_set_back_leaves_the_waits_as_they_are() {
    let hour = 3_600_000 * MS;
    fn look<A: Algorithm>(algorithm: A, cost: u64, back: u64, [first, second]: [u64; 2]) {
        let ms = |ms| Some(Duration::from_millis(ms));
        let mut bench = Bench::of(algorithm);
        let [_, _, last] = [(); 3].map(|()| {
            let enqueued = bench.with(first, |key| key.acquire(Attempt::new(cost).wait(), None));
            if let Enqueued::Queued(ticket) = enqueued { Some(ticket) } else { None }
        });
        let last = last.expect("two calls wait");
        assert!(matches!(bench.with(second, |key| key.poll(last, Waker::noop()).0), PollTurn::Waits(_)));
        let left = 300 - (second - first) / MS;
        for _ in 0..2 {
            // A copy of the key observes the clock, and the key does not.
            assert_eq!(bench.with(back, |key| key.peek(1)).retry_after(), ms(left));
            assert_eq!(bench.with(second, |key| key.peek(1)).retry_after(), ms(left));
        }
        assert_eq!(bench.with(back, |key| key.peek(1)).retry_after(), ms(left));
        assert_eq!(bench.with(second, |key| key.check(1)).retry_after(), ms(left));
    }
    look(ten_a_second(), 1, 0, [hour, hour + 10 * MS]);
    // Only the bucket goes back by ten seconds.
    let both = (ten_a_second(), FixedWindow::new(Quota::per_day(100)));
    look(both, 1, hour - 10_000 * MS, [hour, hour + 10 * MS]);
    // The latest reading is that of the poll. Only the queue has recorded it.
    let short = LeakyBucket::new(Quota::per(1, Duration::from_millis(10)).unwrap()).queue(30);
    look(short, 10, hour + 20 * MS, [hour, hour + 50 * MS]);
}

#[test]
fn a_clock_set_back_does_not_hold_up_the_denial_of_a_call_whose_wait_is_unknown() {
    let mut bench = Bench::of(Concurrency::per_key(1).queue(3).max_wait(Duration::from_millis(100)));
    let hour = 3_600_000 * MS;
    let mut acquire = |at| bench.with(at, |key| key.acquire(Attempt::new(1), None));
    assert!(matches!(acquire(hour), Enqueued::Decided(decision) if decision.is_allowed()));
    let Enqueued::Queued(ticket) = acquire(hour) else { panic!("the permit is taken") };
    let mut poll = |at| bench.with(at, |key| key.poll(ticket, Waker::noop()).0);
    assert!(matches!(poll(hour + 40 * MS), PollTurn::Waits(_)));
    // The clock is set back by an hour. 60 ms of the maximum wait are left, as before.
    assert!(matches!(poll(40 * MS), PollTurn::Waits(_)));
    assert!(matches!(poll(100 * MS - 1), PollTurn::Waits(_)));
    assert!(matches!(poll(100 * MS), PollTurn::Ready(decision, _) if !decision.is_allowed()));
}

#[test]
fn without_a_queue_no_call_waits() {
    for bucket in [ten_a_second().queue(0), ten_a_second().max_wait(Duration::ZERO)] {
        let mut bench = Bench::new(bucket);
        assert!(bench.decided(0).is_allowed());
        assert_eq!(bench.decided(30 * MS).retry_after(), Some(Duration::from_millis(70)));
        assert!(!bench.decided(100 * MS - 1).is_allowed());
        assert!(bench.decided(100 * MS).is_allowed());
    }
}

/// An algorithm that admits a call each nanosecond. As with a window, one late admission delays all later ones. The
/// algorithm counts all admissions, including simulated ones.
#[derive(Clone, Debug, Default)]
struct Gate {
    leaves: Arc<AtomicUsize>,
    /// The place of a call of another key, which leaves it when it is asked when a call of this key is admitted.
    other: Arc<Mutex<Option<QueueSlot>>>,
}

/// The state of a key: the latest clock reading, and the time of the next admission.
type Times = (Nanos, Nanos);

impl Gate {
    /// Returns the number of admissions since the last use of this method.
    fn take(&self) -> usize {
        self.leaves.swap(0, Ordering::Relaxed)
    }
}

impl Algorithm for Gate {
    type State = Times;

    fn new_state(&self, _: Nanos, now: Nanos) -> Times {
        (now, now)
    }

    fn last_update(&self, (now, _): &Times) -> Nanos {
        *now
    }

    fn check(&self, times: &mut Times, later: Nanos, cost: u64) -> Decision {
        let decision = self.peek(times, later, cost);
        if decision.is_allowed() && cost > 0 {
            self.leaves.fetch_add(1, Ordering::Relaxed);
            times.1 = later.saturating_add(cost);
        }
        decision
    }

    fn peek(&self, (now, next): &mut Times, later: Nanos, cost: u64) -> Decision {
        *now = later;
        let wait = next.saturating_since(later);
        match wait == 0 || cost == 0 {
            true => Decision::allow(1, u64::from(wait == 0), wait),
            false => Decision::deny(1, 0, Some(wait), wait),
        }
    }

    fn refund(&self, _: &mut Times, _: Nanos, _: u64, _: Option<Nanos>) {}

    fn migrate(&self, _: &mut Times, _: &Self, _: Nanos) {}

    fn is_fresh(&self, _: &Times, _: Nanos) -> bool {
        false
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::new(100_001, Duration::from_nanos(100_001))
    }

    fn queue_config(&self) -> Option<QueueConfig> {
        Some(QueueConfig::enabled(100_000))
    }

    fn ready_at(&self, (now, next): &mut Times, later: Nanos, _: u64) -> Option<Nanos> {
        *now = later;
        drop(self.other.lock().unwrap().take());
        Some(later.max(*next))
    }
}

/// The last place of all keys becomes free while a call is denied that has found it taken.
#[test]
fn a_call_that_finds_all_places_taken_is_told_a_wait_though_one_is_free_meanwhile() {
    let gate = Gate::default();
    let mut bench = Bench::of(gate.clone());
    bench.shared.waiting = Semaphore::new(1);
    *gate.other.lock().unwrap() = bench.shared.waiting.try_acquire_one();
    let mut acquire = || match bench.with(0, |key| key.acquire(Attempt::new(1).wait(), None)) {
        Enqueued::Decided(decision) => decision,
        Enqueued::Queued(ticket) => panic!("{ticket} waits"),
    };
    assert!(acquire().is_allowed());
    let denied = acquire();
    assert!(denied.is_queue_full());
    assert_eq!(denied.retry_after(), Some(Duration::from_nanos(1)));
    assert!(gate.other.lock().unwrap().is_none());
}

/// Most operations on a queue take constant time, however long the queue is, even if timers are late and admitted calls
/// are cancelled.
#[test]
fn arrivals_and_cancellations_do_not_recompute_the_projection() {
    for length in [100_u64, 10_000] {
        let gate = Gate::default();
        let mut bench = Bench::of(gate.clone());
        let enter =
            |bench: &mut Bench<Gate>, now| match bench.with(now, |key| key.acquire(Attempt::new(1), None)) {
                Enqueued::Queued(ticket) => ticket,
                Enqueued::Decided(_) => 0,
            };
        let tickets: Vec<_> = (0..=length).map(|_| enter(&mut bench, 0)).collect();
        assert_eq!(gate.take() as u64, length + 1, "each once, real or simulated");

        // One call is admitted every ten nanoseconds, although one could be admitted every nanosecond.
        for late in 1..20 {
            enter(&mut bench, late * 10);
            let admissions = gate.take();
            assert!(admissions <= 2, "one leaves, one arrives: {admissions}");
        }
        // Answered calls are cancelled one after another, before they are polled. Each time, the next waiter is
        // admitted instead.
        for ticket in &tickets[1..20] {
            bench.with(200, |key| key.cancel(*ticket));
            let admissions = gate.take();
            assert!(admissions <= 2, "one admitted for one cancelled: {admissions}");
        }
        // A call that needs its exact wait recomputes the projection, once.
        gate.take();
        let call = Attempt::new(1).with_max_wait(Duration::from_nanos(1));
        assert!(matches!(bench.with(200, |key| key.acquire(call, None)), Enqueued::Decided(_)));
        assert!(gate.take() as u64 >= length - 40);
        assert!(matches!(bench.with(200, |key| key.acquire(call, None)), Enqueued::Decided(_)));
        assert!(gate.take() <= 1, "and the next knows it");
    }
}
