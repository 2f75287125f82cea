//! The records of a key in a process, with the results of trips and the times set by the tests.

use tokio::sync::oneshot::error::TryRecvError;

use super::super::*;

const MS: u64 = 1_000_000;
const RULES: Rules = Rules { limit: 1, lease: 3_000 * MS, deadline: 50 * MS };

type Answer = oneshot::Receiver<Result<AcquiredPermit, RedisError>>;

/// The records of a key, and the number of their task.
struct Setting {
    records: Records,
    task: u64,
}

fn at(millis: u64) -> Nanos {
    Nanos(millis * MS)
}

/// Returns the result of a trip at `now`, in microseconds, which has found these states.
fn outcome(now: u64, found: &[Found]) -> Outcome {
    Outcome {
        now,
        held: 1,
        waiting: 5,
        until_expiry: 3_000_000,
        has_changed: true,
        is_proof: true,
        is_unsent: false,
        found: found.to_vec(),
    }
}

impl Setting {
    fn new() -> Self {
        Self { records: Records::new("a".into(), State::default()), task: 0 }
    }

    fn change(&mut self, millis: u64, change: impl FnOnce(&mut State)) {
        if let Some(task) = self.records.change(at(millis), RULES.patience(), change) {
            self.task = task;
        }
    }

    /// Adds a call that waits without a time limit.
    fn call(&mut self, number: u64, millis: u64) -> Answer {
        self.call_until(number, millis, Nanos::MAX)
    }

    fn call_until(&mut self, number: u64, millis: u64, latest: Nanos) -> Answer {
        let (reply, answer) = oneshot::channel();
        let call = PermitCall { arrived: at(millis), deadline: at(millis + 50), latest: Some(latest), reply };
        self.change(millis, |state| state.enter(number, 1, call));
        answer
    }

    fn next(&self, millis: u64) -> Step<Trip> {
        self.next_of(self.task, millis)
    }

    fn next_of(&self, task: u64, millis: u64) -> Step<Trip> {
        self.records.next(task, &RULES, at(millis), at(millis + 50))
    }

    fn trip(&mut self, millis: u64) -> Trip {
        match self.next(millis) {
            Step::Trip(trip) => trip,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a trip with this result, and returns its operations.
    fn trips(&mut self, millis: u64, found: &[Found]) -> Vec<(Kind, u64)> {
        let trip = self.trip(millis);
        let made = trip.operations.iter().map(|Operation { kind, number, .. }| (*kind, *number)).collect();
        let outcome = outcome(millis * 1_000, found);
        self.records.with(|state| state.finish(&RULES, trip, outcome, at(millis), at(millis)));
        made
    }

    /// Returns the time until which the task waits, in milliseconds.
    fn waits(&mut self, millis: u64) -> u64 {
        match self.next(millis) {
            Step::Wait(until) => until.0 / MS,
            other => panic!("{other:?}"),
        }
    }
}

fn holds(fence: u64) -> Found {
    Found::Holds { fence, held: 1 }
}

#[test]
fn a_permit_is_valid_for_a_lease_from_the_beginning_of_the_last_trip_that_renewed_it() {
    let mut setting = Setting::new();
    let mut answer = setting.call(0, 0);
    assert_eq!(setting.trips(10, &[holds(7)]), [(Kind::Queue, 0)]);
    let grant = answer.try_recv().unwrap().unwrap().permit.unwrap();
    let valid_until = || grant.valid_until.borrow().0 / MS;
    assert_eq!((grant.fence, valid_until()), (7, 10 + 3_000 - 3_000 / 64 - 1));
    assert_eq!(setting.waits(10), 1_010);
    let trip = setting.trip(1_010);
    // A trip that failed renews nothing, and another one follows soon.
    let error = RedisError::new(RedisErrorKind::Late, "");
    setting.records.with(|state| state.fail(&RULES, trip, &error, at(1_060)));
    assert_eq!(setting.waits(1_060), 1_110);
    assert_eq!(valid_until(), 2_963);
    assert_eq!(setting.trips(1_110, &[holds(7)]), [(Kind::Keep, 0)]);
    assert_eq!(valid_until(), 4_063);
    // Nothing renews the permit any more.
    let trip = setting.trip(2_200);
    setting.records.with(|state| state.fail(&RULES, trip, &error, at(2_250)));
    assert_eq!(setting.trip(4_064).operations[0].kind, Kind::Leave, "it is lost");
    assert_eq!(*grant.valid_until.borrow(), Nanos::ZERO);
}

#[test]
fn a_waiter_that_the_server_has_lost_is_queued_again_and_denied_if_the_queue_is_full() {
    let mut setting = Setting::new();
    let mut answer = setting.call(0, 0);
    setting.trips(0, &[Found::Waits(0)]);
    assert_eq!(setting.trips(25, &[Found::None]), [(Kind::Keep, 0)]);
    assert_eq!(setting.trips(26, &[Found::None]), [(Kind::Queue, 0)]);
    let denied = answer.try_recv().unwrap().unwrap();
    assert!(denied.permit.is_none() && denied.decision.is_queue_full());
    assert!(matches!(setting.next(27), Step::End));
}

#[test]
fn a_message_about_a_record_that_the_server_has_lost_since_then_is_ignored() {
    let mut setting = Setting::new();
    let mut answer = setting.call(0, 0);
    setting.trips(0, &[Found::Waits(0)]);
    // The server's time of the grant, in microseconds, was 20,000. The message is late.
    setting.trips(25, &[Found::None]);
    setting.trips(26, &[Found::Waits(3)]);
    setting.records.with(|state| state.receive(&RULES, 0, 20_000, 1, at(27)));
    assert_eq!(answer.try_recv().unwrap_err(), TryRecvError::Empty);
    setting.records.with(|state| state.receive(&RULES, 0, 27_000, 1, at(28)));
    assert_eq!(answer.try_recv().unwrap().unwrap().permit.unwrap().fence, 27_000);
}

#[test]
fn a_reply_after_the_message_renews_the_permit() {
    let mut setting = Setting::new();
    let mut answer = setting.call(0, 0);
    setting.trips(0, &[Found::Waits(0)]);
    let trip = setting.trip(1_000);
    setting.records.with(|state| state.receive(&RULES, 0, 1_000_500, 1, at(1_001)));
    let grant = answer.try_recv().unwrap().unwrap().permit.unwrap();
    assert_eq!(grant.valid_until.borrow().0 / MS, 2_953);
    let outcome = Outcome { waiting: 1, until_expiry: 0, ..outcome(1_000_000, &[Found::Waits(0)]) };
    setting.records.with(|state| state.finish(&RULES, trip, outcome, at(1_000), at(1_002)));
    assert_eq!(grant.valid_until.borrow().0 / MS, 3_953);
}

#[test]
fn a_grant_that_the_server_has_lost_ends_although_the_place_in_the_queue_is_left() {
    let mut setting = Setting::new();
    let mut answer = setting.call(0, 0);
    setting.trips(0, &[Found::Waits(0)]);
    setting.records.with(|state| state.receive(&RULES, 0, 20_000, 1, at(27)));
    let grant = answer.try_recv().unwrap().unwrap().permit.unwrap();
    // A replica without the grant has become the master.
    assert_eq!(setting.trips(1_000, &[Found::Waits(0)]), [(Kind::Keep, 0)]);
    assert_eq!(*grant.valid_until.borrow(), Nanos::ZERO);
    assert_eq!(setting.trips(1_001, &[]), [(Kind::Leave, 0)]);
}

#[test]
fn new_calls_do_not_postpone_the_polls_for_the_first_waiter() {
    let mut setting = Setting::new();
    let _first = setting.call(0, 0);
    setting.trips(0, &[Found::Waits(2)]);
    assert_eq!(setting.waits(1), 25);
    let _second = setting.call(1, 20);
    assert_eq!(setting.trips(20, &[Found::Waits(300)]), [(Kind::Queue, 1)]);
    assert_eq!(setting.waits(21), 25);
    let made = setting.trips(25, &[Found::Waits(1), Found::Waits(299)]);
    assert_eq!(made, [(Kind::Keep, 0), (Kind::Keep, 1)]);
}

#[test]
fn new_calls_are_sent_first_and_leave_room_for_the_others() {
    let mut setting = Setting::new();
    let waiters: Vec<_> = (0..1_000).map(|number| setting.call(number, 0)).collect();
    for _ in 0..8 {
        let count = setting.trip(0).operations.len();
        setting.trips(0, &vec![Found::Waits(9); count]);
    }
    let new: Vec<_> = (1_000..1_500).map(|number| setting.call(number, 1_000)).collect();
    for number in 0..200 {
        setting.change(1_000, |state| state.leave(number, at(4_000)));
    }
    let made = setting.trips(1_000, &[Found::Waits(9); 256]);
    let firsts = [0, 128, 192].map(|index: usize| made[index]);
    assert_eq!(firsts, [(Kind::Queue, 1_000), (Kind::Leave, 0), (Kind::Keep, 200)]);
    assert_eq!(made.len(), 256);
    drop((waiters, new));
}

#[test]
fn a_call_whose_wait_is_over_when_it_is_queued_is_denied() {
    let mut setting = Setting::new();
    let mut answer = setting.call_until(0, 0, at(10));
    let trip = setting.trip(0);
    let outcome = Outcome { waiting: 1, until_expiry: 0, ..outcome(0, &[Found::Waits(0)]) };
    setting.records.with(|state| state.finish(&RULES, trip, outcome, at(0), at(11)));
    assert!(answer.try_recv().unwrap().unwrap().permit.is_none());
    assert_eq!(setting.trips(11, &[]), [(Kind::Leave, 0)]);
}

#[test]
fn a_task_that_is_not_driven_is_replaced_and_its_trips_are_made_again() {
    let mut setting = Setting::new();
    let mut answer = setting.call(0, 0);
    let late = setting.trip(0);
    let first = setting.task;
    setting.change(400, |_| {});
    assert_eq!(setting.task, first, "it is not late enough");
    let _second = setting.call(1, 426);
    assert_ne!(setting.task, first);
    // The deadline of the first call is over, so its caller removes it.
    setting.change(426, |state| state.leave(0, at(3_426)));
    assert_eq!(setting.trips(427, &[Found::Waits(0)]), [(Kind::Queue, 1), (Kind::Leave, 0)]);
    assert!(matches!(setting.next_of(first, 428), Step::End));
    assert!(answer.try_recv().is_err());
    drop(late);
}

#[test]
fn a_record_is_removed_if_the_runtime_ended_during_the_trip_that_created_it() {
    let mut setting = Setting::new();
    let _call = setting.call(0, 0);
    let _lost = setting.trip(0);
    assert!(setting.records.abandon(setting.task, false, &RULES, at(1)).is_none());
    // The call gets an error, and ends.
    setting.change(2, |state| state.leave(0, at(3_002)));
    assert_eq!(setting.trips(2, &[]), [(Kind::Leave, 0)]);
}

#[test]
fn a_task_whose_runtime_ends_during_a_trip_leaves_records_for_the_next_task_to_remove() {
    let mut setting = Setting::new();
    let _waiter = setting.call(0, 0);
    setting.trips(0, &[Found::Waits(0)]);
    let _new = setting.call(1, 5);
    let _lost = setting.trip(5);
    assert!(setting.records.abandon(setting.task, false, &RULES, at(6)).is_none());
    let _next = setting.call(2, 10);
    let made = setting.trips(10, &[Found::Waits(1)]);
    assert_eq!(made, [(Kind::Queue, 2), (Kind::Leave, 1)]);
}
