//! The records of a key: the calls of this process that hold permits, or wait for permits.
//!
//! The [task](crate::served) of a key asks the records for its next trip, makes the trip, and passes the result to the
//! records. The operations of a trip, and what the trip finds, are part of this file because only the records know what
//! they mean.
//!
//! The file is long because calls, trips, messages and the time change the same records, and each of these changes
//! relies on the others.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::connection::Command;
use crate::error::{RedisError, RedisErrorKind};
use crate::frame::{foreign, newer_version_in_hash, shown};
use crate::link::{Answer, Link, Route};
use crate::script::{Script, TimeSource};
use crate::served::{Batches, Deadlines, Served, Step};
use tower_throttle::Decision;
use tower_throttle::clock::Nanos;
use tower_throttle::store_support::with_queue_full;

/// The maximum number of new calls in a trip, the maximum number of new calls and removed records together, and the
/// maximum number of all operations.
const MAX_BATCH: [usize; 3] = [128, 192, 256];
/// The number of waiters, beginning with the first one, whose states are read when the queue is polled.
const POLLED: usize = 16;
/// The maximum pause after a failed trip, in nanoseconds.
const RETRY: u64 = 50_000_000;
/// The minimum time between two polls, in nanoseconds.
const SHORTEST: u64 = 25_000_000;
/// The maximum number of waiters ahead that counts as few.
const NEAR: u64 = 3;
/// The maximum time between two polls if few waiters are ahead, and the maximum time otherwise, in nanoseconds.
const LONGEST: (u64, u64) = (1_000_000_000, 5_000_000_000);
/// The time between two polls for each waiter ahead, in nanoseconds, while the speed of the queue is not known.
const PER_WAITER: u64 = 5_000_000;

/// The records of a key, which a task serves.
pub(super) type Records = Served<State>;

/// The settings of all keys of a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(super) limit: u64,
    /// The time for which the server keeps a record after a renewal, in nanoseconds.
    pub(super) lease: u64,
    /// The deadline of calls, in nanoseconds.
    deadline: u64,
}

/// A call that has no permit yet.
#[derive(Debug)]
pub(super) struct PermitCall {
    arrived: Nanos,
    /// The time until which the server must have replied.
    deadline: Nanos,
    /// The time until which the call waits for a permit. `None` if the call does not wait.
    latest: Option<Nanos>,
    reply: Reply,
}

/// The result of a call: the decision and, if the call was admitted, its permit.
#[derive(Debug)]
pub(super) struct AcquiredPermit {
    decision: Decision,
    permit: Option<Grant>,
}

/// A permit that the server has granted.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    fence: u64,
    /// The time until which the permit is valid. Each renewal postpones this time. The time is zero if the permit was
    /// lost.
    valid_until: watch::Receiver<Nanos>,
}

/// A trip of a key.
#[derive(Debug)]
pub(crate) struct Trip {
    operations: Vec<Operation>,
    peeks: Vec<Peek>,
    /// The deadlines of the calls of the trip, if it has any.
    deadlines: Option<Deadlines>,
}

/// The reply of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The server's time, in microseconds.
    now: u64,
    /// The units that all records hold.
    held: u64,
    /// The number of records that wait.
    waiting: u64,
    /// No record expires before this time has passed, in microseconds.
    until_expiry: u64,
    has_changed: bool,
    /// `true` if the first write was one that a full server refuses. Once a script has deleted something, a full server
    /// refuses none of its writes.
    is_proof: bool,
    /// `true` if a message to a waiter could not be sent.
    is_unsent: bool,
    /// The states of the records in the trip, except those that were to be removed.
    found: Vec<Found>,
}

/// The script that hands out permits.
#[derive(Debug)]
pub(super) struct PermitScript {
    script: Script,
    arguments: Arguments,
}

/// The arguments of the script that are the same in all trips of a limiter.
#[derive(Clone, Debug)]
struct Arguments {
    /// The name of the process.
    process: String,
    limit: u64,
    /// The lease of each record, in microseconds.
    lease: u64,
    /// The maximum number of waiters.
    places: u64,
    /// The beginning of the names of channels. The rest is the name of the process.
    channel: String,
}

/// The kind of an operation on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To remove the record.
    Leave,
    /// To renew the record.
    Keep,
    /// To get a permit, or to wait for one.
    Queue,
    /// To get a permit without waiting.
    Try,
}

/// An operation on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operation {
    kind: Kind,
    number: u64,
    units: u64,
}

/// The state of a record after a trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Holds {
        fence: u64,
        /// The units that all records hold.
        held: u64,
    },
    /// The record waits, behind at most this number of other records.
    Waits(u64),
    /// The server has no such record, because it was denied or has expired.
    None,
}

/// What the lock of the records protects.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The records by their numbers, in the order in which they were created.
    records: BTreeMap<u64, Record>,
    /// The numbers of the records that the server may still have, but must remove, each with the time at which the
    /// record expires.
    leaving: BTreeMap<u64, Nanos>,
    /// The runtime on which a call has left last. If the runtime of the task ends, the next task is started there once.
    left_on: Option<Handle>,
    peeks: Vec<Peek>,
    polls: PollSchedule,
    /// After a failed trip, the time of the next attempt to renew or remove records.
    retry_at: Nanos,
    last_error: Option<RedisError>,
}

#[derive(Debug)]
struct Record {
    units: u64,
    /// The beginning of the last trip that has renewed the record, or that may have created it.
    renewed: Nanos,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Asking {
        call: PermitCall,
        phase: Phase,
        /// The minimum fencing token of a valid message. A message with a smaller token is about a record that the
        /// server has lost.
        min_fence: u64,
    },
    /// The call holds a permit until the time in `valid_until`.
    Held {
        valid_until: watch::Sender<Nanos>,
        /// The time at which the process was informed of the grant.
        granted_at: Nanos,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No trip has contained an operation on the record yet.
    New,
    /// A trip may have created the record.
    Sent,
    /// The record waits in the queue of the server.
    Queued,
    /// The server has lost the record, which must be queued again.
    Lost,
}

/// The sender of the result of a call.
type Reply = oneshot::Sender<Result<AcquiredPermit, RedisError>>;

/// A call that is decided without a charge.
#[derive(Debug)]
struct Peek {
    units: u64,
    deadline: Nanos,
    reply: oneshot::Sender<Result<Decision, RedisError>>,
}

/// The polls of a key's queue. The fewer waiters are ahead of the first waiter of this process, the more often the
/// queue is polled.
#[derive(Debug, Default)]
struct PollSchedule {
    next: Nanos,
    interval: u64,
    /// The number of waiters ahead at the last poll, and the time of that poll.
    last: Option<(u64, Nanos)>,
}

impl Rules {
    /// Creates the rules of a limiter. `deadline` is the time for which a call waits for the server.
    pub(super) fn new(limit: u64, lease: Duration, deadline: Duration) -> Self {
        Self { limit, lease: Nanos::from(lease).0, deadline: Nanos::from(deadline).0 }
    }

    /// Returns the decision on a call of `units`, without a charge, while `held` units are held and `waiting` calls
    /// wait.
    fn peek(&self, units: u64, held: u64, waiting: u64) -> Decision {
        let left = self.left(held, waiting);
        if units <= left { Decision::allow(self.limit, left, 0) } else { self.deny(units, held, waiting) }
    }

    /// Returns the time for which a task may be late before another task replaces it, in nanoseconds.
    pub(super) fn patience(&self) -> u64 {
        (2 * self.deadline).clamp(self.lease / 8, self.lease / 4)
    }

    /// Returns the time until which this process may use a permit that was renewed by a trip that began at `sent`. The
    /// server keeps the record for longer, because the clocks of the server and of the process may run at different
    /// speeds.
    fn valid_until(&self, sent: Nanos) -> Nanos {
        sent.saturating_add(self.lease - self.lease / 64)
    }

    /// Returns how many units are left for a new call. While other calls wait, no units are left.
    fn left(&self, held: u64, waiting: u64) -> u64 {
        if waiting > 0 { 0 } else { self.limit.saturating_sub(held) }
    }

    /// Returns the decision on a call of `units` whose time to wait is over.
    pub(super) fn deny_waiter(&self, units: u64) -> Decision {
        self.deny(units, self.limit, 1)
    }

    /// Returns the decision on a call of `units` that gets no permit.
    fn deny(&self, units: u64, held: u64, waiting: u64) -> Decision {
        Decision::deny(self.limit, self.left(held, waiting), None, 0).with_unknown_wait(units <= self.limit)
    }
}

impl PermitCall {
    /// Creates a call, to which the server must have replied by `deadline`. The call waits for a permit until `latest`,
    /// if at all.
    pub(super) fn new(arrived: Nanos, deadline: Nanos, latest: Option<Nanos>, reply: Reply) -> Self {
        Self { arrived, deadline, latest, reply }
    }
}

impl AcquiredPermit {
    /// Returns the decision and the permit to the call, which has received this value at `now`. Returns an error if the
    /// permit was lost meanwhile.
    pub(super) fn received(self, now: Nanos) -> Result<(Decision, Option<Grant>), RedisError> {
        if self.permit.as_ref().is_some_and(|grant| *grant.valid_until.borrow() <= now) {
            // The process was suspended meanwhile.
            return Err(RedisError::new(RedisErrorKind::Late, "the permit was lost before the call got it"));
        }
        Ok((self.decision, self.permit))
    }
}

impl Grant {
    /// Returns the fencing token.
    pub(super) fn fence(&self) -> u64 {
        self.fence
    }

    /// Waits until the permit is no longer valid. This does not need the task that renews the permit, which may have
    /// ended.
    pub(super) async fn lost(mut self, link: &Link) {
        loop {
            let until = *self.valid_until.borrow_and_update();
            if until <= link.now() {
                return;
            }
            match link.until(until, self.valid_until.changed()).await {
                // The permit was renewed, or lost.
                Some(Ok(())) => {}
                // Nothing renews the permit any more.
                Some(Err(_)) => link.sleep_until(until).await,
                None => {}
            }
        }
    }
}

impl PermitScript {
    /// Creates the script of a limiter. `process` is the name of this process, `places` is the maximum number of
    /// waiters of a key, and `channel` is the beginning of the names of channels for messages.
    pub(super) fn new(
        source: TimeSource,
        rules: &Rules,
        places: u64,
        process: String,
        channel: String,
    ) -> Self {
        let arguments =
            Arguments { process, limit: rules.limit, lease: rules.lease / 1_000, places, channel };
        Self { script: Script::of_hash(source, PERMITS), arguments }
    }

    /// Executes the script for a key. Returns `None` if the server has executed it too late for one of its calls, and
    /// has changed nothing.
    pub(super) async fn execute(
        &self,
        route: &Route,
        key: &str,
        trip: &Trip,
        not_after: Nanos,
    ) -> Result<Option<Outcome>, RedisError> {
        let add = |command: &mut Command, _: &mut _| self.arguments.add_to(command, &trip.operations);
        let (outcome, newer, reply) = match route.eval(&self.script, &[key], not_after, add).await? {
            Answer::Late => return Ok(None),
            Answer::Done(now, reply) => (Outcome::parse(&reply, now.0 / 1_000), None, reply),
            Answer::Other(_, reply) => (None, newer_version_in_hash(&reply, PREFIX), reply),
        };
        let Some(outcome) = outcome else {
            let shown = shown(&reply);
            return Err(foreign(newer, || format!("the value is {shown}, not the permits of a limiter")));
        };
        if outcome.is_proof {
            route.link.wrote();
        }
        Ok(Some(outcome))
    }
}

impl Arguments {
    /// Adds the arguments of the script to a command.
    fn add_to(&self, command: &mut Command, operations: &[Operation]) {
        let Self { process, limit, lease, places, channel } = self;
        command.word(PREFIX).word(process).number(*limit).number(*lease).number(*places);
        let operations: Vec<_> = operations.iter().map(Operation::text).collect();
        command.word(channel).word(operations.join(" "));
    }
}

impl Operation {
    fn text(&self) -> String {
        let Self { kind, number, units } = self;
        let letter = match kind {
            Kind::Leave => 'l',
            Kind::Keep => 'k',
            Kind::Queue => 'q',
            Kind::Try => 't',
        };
        format!("{letter}{number}:{units}")
    }
}

impl Outcome {
    /// Returns whether a message to a waiter could not be sent, because the user may not publish.
    pub(super) fn is_unsent(&self) -> bool {
        self.is_unsent
    }

    /// Parses the reply of the script.
    fn parse(reply: &[u8], now: u64) -> Option<Self> {
        let mut words = std::str::from_utf8(reply).ok()?.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (held, waiting, until_expiry) = (number()?, number()?, number()?);
        let (wrote, is_unsent) = (number()?, number()? > 0);
        let (has_changed, is_proof) = (wrote > 0, wrote > 1);
        let found = words.map(Found::parse).collect::<Option<_>>()?;
        Some(Self { now, held, waiting, until_expiry, has_changed, is_proof, is_unsent, found })
    }
}

impl Found {
    fn parse(word: &str) -> Option<Self> {
        let rest = word.get(1..)?;
        match word.as_bytes().first()? {
            b'h' => {
                let (fence, held) = rest.split_once(':')?;
                Some(Self::Holds { fence: fence.parse().ok()?, held: held.parse().ok()? })
            }
            b'w' => rest.parse().ok().map(Self::Waits),
            b'n' if rest.is_empty() => Some(Self::None),
            _ => None,
        }
    }
}

impl State {
    /// Adds a call.
    pub(super) fn enter(&mut self, number: u64, units: u64, call: PermitCall) {
        self.records.insert(number, Record::new(units, call));
    }

    /// Adds a call of `units` that is decided without a charge.
    pub(super) fn peek(
        &mut self,
        units: u64,
        deadline: Nanos,
        reply: oneshot::Sender<Result<Decision, RedisError>>,
    ) {
        self.peeks.push(Peek { units, deadline, reply });
    }

    /// Removes a call that was dropped, or that has ended. `expires` is the time at which the server removes the call's
    /// record by itself.
    pub(super) fn leave(&mut self, number: u64, expires: Nanos) {
        if let Some(record) = self.records.remove(&number)
            && record.phase() != Some(Phase::New)
        {
            self.leaving.insert(number, expires);
        }
    }

    /// Records the runtime on which a call has left.
    pub(super) fn left_on(&mut self, runtime: &Handle) {
        self.left_on = Some(runtime.clone());
    }

    /// Returns whether the call with this number waits for a permit.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        self.records.get(&number).is_some_and(Record::waits)
    }

    /// Returns how many calls wait.
    pub(super) fn waiting(&self) -> u64 {
        self.records.values().filter(|record| record.waits()).count() as u64
    }

    /// Adds the calls that have not been decided.
    fn add_new(&mut self, trip: &mut Trip, now: Nanos) {
        for (number, record) in &mut self.records {
            let units = record.units;
            let Stage::Asking { call, phase: phase @ (Phase::New | Phase::Sent), .. } = &mut record.stage
            else {
                continue;
            };
            if call.deadline > now && trip.operations.len() < MAX_BATCH[0] {
                *phase = Phase::Sent;
                record.renewed = now;
                let kind = if call.latest.is_some() { Kind::Queue } else { Kind::Try };
                trip.operations.push(Operation { kind, number: *number, units });
                trip.deadlines = Some(Deadlines::with(trip.deadlines, call.deadline));
            }
        }
    }

    /// Adds the records that must be renewed or polled. Returns the time at which the next record must be renewed or
    /// polled, or at which the first permit expires, whichever is earlier.
    fn add_renewals(&mut self, trip: &mut Trip, rules: &Rules, now: Nanos) -> Nanos {
        let mut next = Nanos::MAX;
        let mut waiters = 0;
        let must_poll = self.polls.is_due(now);
        for (number, record) in &self.records {
            let mut due = record.renewed.saturating_add(rules.lease / 3);
            let kind = match &record.stage {
                Stage::Asking { phase: Phase::New | Phase::Sent, .. } => continue,
                Stage::Asking { phase, .. } => {
                    waiters += 1;
                    let is_polled = must_poll && waiters <= POLLED;
                    due = if is_polled || *phase == Phase::Lost { now } else { due };
                    if *phase == Phase::Lost { Kind::Queue } else { Kind::Keep }
                }
                Stage::Held { valid_until, .. } => {
                    next = next.min(*valid_until.borrow());
                    Kind::Keep
                }
            };
            let due = due.max(self.retry_at);
            if due <= now && trip.operations.len() < MAX_BATCH[2] {
                trip.operations.push(Operation { kind, number: *number, units: record.units });
            } else {
                next = next.min(due);
            }
        }
        if waiters > 0 { next.min(self.polls.next().max(self.retry_at)) } else { next }
    }

    /// Removes the records that have expired because they could not be renewed.
    fn expire(&mut self, rules: &Rules, now: Nanos) {
        self.leaving.retain(|_, expires| *expires > now);
        let is_over = |record: &Record| match &record.stage {
            Stage::Asking { .. } => record.waits() && rules.valid_until(record.renewed) <= now,
            Stage::Held { valid_until, .. } => *valid_until.borrow() <= now,
        };
        let over: Vec<_> =
            self.records.iter().filter(|(_, record)| is_over(record)).map(|(number, _)| *number).collect();
        for number in over {
            self.leaving.insert(number, now.saturating_add(rules.lease));
            if let Some(record) = self.records.remove(&number) {
                let late = || RedisError::new(RedisErrorKind::Late, "the place in the queue has expired");
                record.end(Err(self.last_error.clone().unwrap_or_else(late)));
            }
        }
    }

    /// Processes a message that says that a call has a permit.
    pub(super) fn receive(&mut self, rules: &Rules, number: u64, fence: u64, held: u64, now: Nanos) {
        if let Some(Record { stage: Stage::Asking { min_fence, .. }, .. }) = self.records.get(&number)
            && fence >= *min_fence
        {
            self.grant(rules, number, fence, held, now);
        }
    }

    /// Records that a call has a permit. The permit is valid for a little less than a lease since the last renewal of
    /// the record.
    fn grant(&mut self, rules: &Rules, number: u64, fence: u64, held: u64, now: Nanos) {
        let Some(record) = self.records.get_mut(&number) else { return };
        let valid = rules.valid_until(record.renewed);
        if let Stage::Held { valid_until, .. } = &record.stage {
            valid_until.send_replace(valid);
            return;
        }
        let (sender, receiver) = watch::channel(valid);
        let stage = Stage::Held { valid_until: sender, granted_at: now };
        if let Stage::Asking { call, phase, .. } = mem::replace(&mut record.stage, stage) {
            let has_waited = matches!(phase, Phase::Queued | Phase::Lost);
            let delay = if has_waited { now.saturating_since(call.arrived) } else { 0 };
            let decision =
                Decision::allow(rules.limit, rules.limit.saturating_sub(held), 0).with_delay(delay);
            let permit = Some(Grant { fence, valid_until: receiver });
            // If the caller is gone, its `Place` removes the record.
            let _ = call.reply.send(Ok(AcquiredPermit { decision, permit }));
        }
    }

    /// Records that a trip that began at `sent` has found a call in the queue. A call whose time to wait is over is
    /// denied.
    fn wait(&mut self, rules: &Rules, number: u64, sent: Nanos, now: Nanos) {
        let Some(record) = self.records.get_mut(&number) else { return };
        match &mut record.stage {
            // A message has arrived before the reply.
            Stage::Held { valid_until, granted_at, .. } if sent <= *granted_at => {
                valid_until.send_replace(rules.valid_until(record.renewed));
            }
            // The server has lost the grant, but not the place in the queue.
            Stage::Held { .. } => {
                self.leaving.insert(number, now.saturating_add(rules.lease));
                let late = RedisError::new(RedisErrorKind::Late, "the server has lost the permit");
                self.end(number, Err(late));
            }
            Stage::Asking { call, .. } if call.latest.is_some_and(|latest| latest <= now) => {
                let decision = rules.deny(record.units, rules.limit, 1);
                self.leaving.insert(number, now.saturating_add(rules.lease));
                self.end(number, Ok(AcquiredPermit { decision, permit: None }));
            }
            Stage::Asking { phase, .. } => *phase = Phase::Queued,
        }
    }

    /// Records that the server has no record of a call: it has denied the call, or it has lost the record.
    fn miss(&mut self, rules: &Rules, operation: Operation, outcome: &Outcome) {
        let Some(record) = self.records.get_mut(&operation.number) else { return };
        if let (Stage::Asking { phase, min_fence, .. }, Kind::Keep) = (&mut record.stage, operation.kind) {
            *phase = Phase::Lost;
            *min_fence = outcome.now;
            return;
        }
        let decision = rules.deny(record.units, outcome.held, outcome.waiting);
        let decision = if operation.kind == Kind::Queue { with_queue_full(decision) } else { decision };
        self.end(operation.number, Ok(AcquiredPermit { decision, permit: None }));
    }

    fn end(&mut self, number: u64, result: Result<AcquiredPermit, RedisError>) {
        if let Some(record) = self.records.remove(&number) {
            record.end(result);
        }
    }
}

impl Batches for State {
    type Rules = Rules;
    type Trip = Trip;
    type Found = Outcome;

    fn next(&mut self, rules: &Rules, now: Nanos) -> Step<Trip> {
        self.expire(rules, now);
        let mut trip = Trip { operations: Vec::new(), peeks: Vec::new(), deadlines: None };
        // New calls come first, because their deadlines are near.
        self.add_new(&mut trip, now);
        let mut next = if self.leaving.is_empty() { Nanos::MAX } else { self.retry_at };
        if now >= self.retry_at {
            next = Nanos::MAX;
            let leave = |number: &u64| Operation { kind: Kind::Leave, number: *number, units: 0 };
            trip.operations.extend(self.leaving.keys().take(MAX_BATCH[1] - trip.operations.len()).map(leave));
        }
        next = next.min(self.add_renewals(&mut trip, rules, now));
        for peek in mem::take(&mut self.peeks) {
            if peek.deadline > now {
                trip.deadlines = Some(Deadlines::with(trip.deadlines, peek.deadline));
                trip.peeks.push(peek);
            } else {
                let _ = peek.reply.send(Err(RedisError::new(RedisErrorKind::Late, "")));
            }
        }
        if !trip.operations.is_empty() || !trip.peeks.is_empty() {
            Step::Trip(trip)
        } else if next < Nanos::MAX {
            Step::Wait(next)
        } else {
            // New calls that have expired are removed by their callers.
            Step::End
        }
    }

    fn deadlines(trip: &Trip) -> Option<Deadlines> {
        trip.deadlines
    }

    fn finish(&mut self, rules: &Rules, trip: Trip, outcome: Outcome, sent: Nanos, now: Nanos) {
        let Outcome { held, waiting, until_expiry, .. } = &outcome;
        self.retry_at = Nanos::ZERO;
        self.last_error = None;
        for peek in trip.peeks {
            let decision = rules.peek(peek.units, *held, *waiting);
            let _ = peek.reply.send(Ok(decision));
        }
        let mut found = outcome.found.iter();
        let mut places = Vec::new();
        for operation in trip.operations {
            let number = operation.number;
            if operation.kind == Kind::Leave {
                self.leaving.remove(&number);
                continue;
            }
            let (Some(found), Some(record)) = (found.next(), self.records.get_mut(&number)) else { continue };
            match *found {
                Found::Holds { fence, held } => {
                    record.renewed = sent;
                    self.grant(rules, number, fence, held, now);
                }
                Found::Waits(ahead) => {
                    record.renewed = sent;
                    places.push((number, ahead));
                    self.wait(rules, number, sent, now);
                }
                Found::None => self.miss(rules, operation, &outcome),
            }
        }
        // The polls are for the first waiter.
        let first = self.records.iter().find(|(_, record)| record.waits()).map(|(number, _)| *number);
        if first.is_none() {
            self.polls = PollSchedule::default();
        }
        // A trip without the first waiter only decides new calls or renews records, and says nothing about the first
        // waiter. If the server has lost records, another waiter of this process may be ahead of the first waiter.
        let has_first = places.iter().any(|(number, _)| Some(*number) == first);
        if let Some(ahead) = places.into_iter().map(|(_, ahead)| ahead).min().filter(|_| has_first) {
            self.polls.observe(ahead, until_expiry.saturating_mul(1_000), rules.lease, now);
        }
    }

    fn put_back(&mut self, _: &Rules, trip: Trip) {
        self.peeks.extend(trip.peeks);
    }

    /// New calls get the error. The other records are renewed later.
    fn fail(&mut self, rules: &Rules, trip: Trip, error: &RedisError, now: Nanos) {
        self.retry_at = now.saturating_add(RETRY.min(rules.lease / 16));
        self.last_error = Some(error.clone());
        for peek in trip.peeks {
            let _ = peek.reply.send(Err(error.clone()));
        }
        for Operation { number, .. } in trip.operations {
            if self.records.get(&number).is_some_and(|record| record.phase() == Some(Phase::Sent)) {
                // The server may have created the record, unless this error came before the first write.
                if !error.detail().starts_with("NOPERM") {
                    self.leaving.insert(number, now.saturating_add(rules.lease));
                }
                self.end(number, Err(error.clone()));
            }
        }
    }

    /// New calls end with an error. The other records are renewed by the next task, if that task is started in time.
    fn abandon(&mut self, rules: &Rules, now: Nanos) -> Option<Handle> {
        self.peeks.clear();
        let next = self.left_on.take();
        if self.records.is_empty() && next.is_none() {
            // No call is left that starts another task when it ends.
            self.leaving.clear();
        }
        for (number, record) in &self.records {
            if record.phase() == Some(Phase::Sent) {
                self.leaving.insert(*number, now.saturating_add(rules.lease));
            }
        }
        self.records.retain(|_, record| !matches!(record.phase(), Some(Phase::New | Phase::Sent)));
        next.filter(|_| !self.is_idle())
    }

    fn is_idle(&self) -> bool {
        self.records.is_empty() && self.leaving.is_empty() && self.peeks.is_empty()
    }
}

impl Record {
    fn new(units: u64, call: PermitCall) -> Self {
        let stage = Stage::Asking { call, phase: Phase::New, min_fence: 0 };
        Self { units, renewed: Nanos::ZERO, stage }
    }

    /// Returns the phase of a call that has no permit yet.
    fn phase(&self) -> Option<Phase> {
        match self.stage {
            Stage::Asking { phase, .. } => Some(phase),
            Stage::Held { .. } => None,
        }
    }

    /// Returns whether the call waits for a permit.
    fn waits(&self) -> bool {
        matches!(self.phase(), Some(Phase::Queued | Phase::Lost))
    }

    /// Sends the result to the caller, or reports that the caller's permit was lost. A caller that is gone needs no
    /// result.
    fn end(self, result: Result<AcquiredPermit, RedisError>) {
        match self.stage {
            Stage::Asking { call, .. } => drop(call.reply.send(result)),
            Stage::Held { valid_until, .. } => drop(valid_until.send(Nanos::ZERO)),
        }
    }
}

impl PollSchedule {
    fn is_due(&self, now: Nanos) -> bool {
        now >= self.next
    }

    /// Returns the time of the next poll.
    fn next(&self) -> Nanos {
        self.next
    }

    /// Records that the first waiter of this process is behind `ahead` other waiters, and that no record expires within
    /// `until_expiry` nanoseconds.
    fn observe(&mut self, ahead: u64, until_expiry: u64, lease: u64, now: Nanos) {
        let is_near = ahead <= NEAR;
        let longest = if is_near { LONGEST.0 } else { LONGEST.1 }.min(lease / 3);
        let interval = match self.last {
            Some((last, _)) if ahead == last => self.interval.saturating_mul(2),
            _ if is_near => SHORTEST,
            // This is three quarters of the time after which the waiter will be the first in the queue, at the speed
            // since the last poll.
            Some((last, at)) if ahead < last => {
                let each = now.saturating_since(at) / (last - ahead);
                // The queue may move faster from now on.
                (each.saturating_mul(3 * (ahead + 1)) / 4).min(ahead.saturating_mul(4 * PER_WAITER))
            }
            // This is the first poll, or another call has become the first waiter.
            _ => ahead.saturating_mul(PER_WAITER),
        };
        self.interval = interval.clamp(SHORTEST.min(longest), longest);
        self.last = Some((ahead, now));
        // If few waiters are ahead, the queue is also polled when a record may have expired. Timers have a resolution
        // of one millisecond.
        let expiry = if is_near { until_expiry.saturating_add(1_000_000) } else { u64::MAX };
        self.next = now.saturating_add(self.interval.min(expiry));
    }
}

/// The script that hands out permits.
///
/// The key is a hash. A *record* is a call that holds a permit or waits for one. Its name consists of the process and a
/// number.
///
/// | field | contents |
/// |---|---|
/// | `s` | the prefix, the units that are held, the number of waiters, the tickets of the first waiter and of the next one, a time before which no record expires, the longest lease, and the last fencing token |
/// | `r` and a name | `h` if the record holds a permit, `w` if it waits; its units, the time at which it expires, its lease, and its fencing token or ticket |
/// | `q` and a ticket | the name of the waiter that has this ticket, and the limit of its process |
///
/// Each trip of a process renews some of its records. A record that was not renewed for the time of its lease expires.
/// If the clock was set back so far that no record would expire within the longest lease, the remaining time of each
/// record is lowered to the record's lease. Expired records are removed. Then permits are handed over to the first
/// waiters, each by the limit of its own process, and a message is sent to the process of each of these waiters. A
/// record that is given a permit in this way keeps the time at which it expires. A script skips at most 2,000 tickets
/// of waiters that have left the queue, so that it does not block the server. The next script continues there.
///
/// Arguments: the prefix, the process, the limit, the lease in microseconds, the maximum number of waiters, the
/// beginning of the names of channels, and the operations. An operation is a letter, the number of a record, a colon,
/// and the units of the record. `l` removes a record. `k` renews a record. `q` and `t` renew the record if it exists,
/// and create it otherwise. If there are too few free permits, or if other records wait, the new record of `q` waits,
/// and that of `t` is denied. A `q` that would have to wait is denied if the queue is full, or if its units exceed the
/// limit.
const PERMITS: &str = "\
local prefix, own, limit, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local places, channel = tonumber(ARGV[5]), ARGV[6]
local held, waiting, head, tail, first, longest, fence = 0, 0, 0, 0, 0, lease, 0
local s = c('HGET', KEYS[1], 's')
if s then
  held, waiting, head, tail, first, longest, fence =
    string.match(s, '^ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$', #prefix + 1)
  if not held or string.sub(s, 1, #prefix) ~= prefix then return 'O' .. stamp .. s end
  held, waiting, head, tail = held + 0, waiting + 0, head + 0, tail + 0
  first, longest, fence = first + 0, math.max(longest, lease), fence + 0
elseif c('EXISTS', KEYS[1]) == 1 then return 'O' .. stamp .. 'a hash'
elseif string.find(ARGV[7], '[qt]') then
  local refusal = refused_hash()
  if refusal then return refusal end
end
local changed, wrote, unsent = false, 1, 0
local function parse(text)
  local state, units, ends, of, mark = string.match(text or '', '^([hw]) (%d+) (%d+) (%d+) (%d+)$')
  if state then return state, units + 0, ends + 0, of + 0, mark + 0 end
end
local function read(name) return parse(c('HGET', KEYS[1], 'r' .. name)) end
local function write(name, state, units, ends, of, mark)
  if not changed then changed, wrote = true, 2 end
  if first == 0 or ends < first then first = ends end
  c('HSET', KEYS[1], 'r' .. name, string.format('%s %d %d %d %d', state, units, ends, of, mark))
end
local function remove(name, state, units, mark)
  changed = true
  c('HDEL', KEYS[1], 'r' .. name)
  if state == 'h' then held = math.max(held - units, 0)
  else
    waiting = math.max(waiting - 1, 0)
    c('HDEL', KEYS[1], string.format('q%d', mark))
    if mark == tail - 1 then tail = mark end
  end
end
if first > 0 and (now >= first or first > now + longest) then
  local fields = c('HGETALL', KEYS[1])
  first, changed = 0, true
  for i = 1, #fields, 2 do
    local name = string.match(fields[i], '^r(.+)$')
    local state, units, ends, of, mark
    if name then state, units, ends, of, mark = parse(fields[i + 1]) end
    if state then
      if ends <= now then remove(name, state, units, mark)
      elseif ends > now + of then write(name, state, units, now + of, of, mark)
      elseif first == 0 or ends < first then first = ends end
    end
  end
end
local function grant(name, units, ends, of)
  fence, held = math.max(now, fence + 1), held + units
  write(name, 'h', units, ends, of, fence)
end
local function hand_over()
  local free = 2000
  while waiting > 0 and head < tail do
    local place = string.format('q%d', head)
    local name, most = string.match(c('HGET', KEYS[1], place) or '', '^(.+) (%d+)$')
    local state, units, ends, of
    if name then state, units, ends, of = read(name) end
    if state == 'w' and held > 0 and held + units > most + 0 then return end
    head, changed = head + 1, true
    if name then c('HDEL', KEYS[1], place) end
    if state == 'w' then
      waiting = waiting - 1
      grant(name, units, ends, of)
      local process, number = string.match(name, '^(.+)%.(%d+)$')
      local sent = redis.pcall('PUBLISH', channel .. process, string.format('%s %d %d', number, fence, held))
      if type(sent) == 'table' then unsent = 1 end
    end
    if state ~= 'w' then
      free = free - 1
      if free == 0 then return end
    end
  end
  if waiting == 0 then head, tail = 0, 0 end
end
for kind, number in string.gmatch(ARGV[7], '(%a)(%d+)') do
  local name = own .. '.' .. number
  local state, had, _, _, mark = read(name)
  if state and kind == 'l' then remove(name, state, had, mark)
  elseif state then write(name, state, had, now + lease, lease, mark) end
end
hand_over()
local results = ''
for kind, number, units in string.gmatch(ARGV[7], '([kqt])(%d+):(%d+)') do
  local name, result = own .. '.' .. number, nil
  local state, _, _, _, mark = read(name)
  units = units + 0
  if not state and kind ~= 'k' then
    if waiting == 0 and held + units <= limit then
      grant(name, units, now + lease, lease)
      state, mark = 'h', fence
    elseif kind == 'q' and waiting < places and units <= limit then
      state, mark = 'w', tail
      c('HSET', KEYS[1], string.format('q%d', tail), string.format('%s %d', name, limit))
      waiting, tail = waiting + 1, tail + 1
      write(name, state, units, now + lease, lease, mark)
    end
  end
  if state == 'h' then result = string.format(' h%d:%d', mark, held)
  elseif state == 'w' then result = string.format(' w%d', math.max(mark - head, 0))
  else result = ' n' end
  results = results .. result
end
if changed then
  local numbers = string.format(' %d %d %d %d %d %d %d', held, waiting, head, tail, first, longest, fence)
  c('HSET', KEYS[1], 's', prefix .. numbers)
  c('PEXPIRE', KEYS[1], math.ceil(longest / 1000) + 1)
end
first = math.max(first - now, 0)
return 'D' .. stamp .. string.format('%d %d %d %d %d', held, waiting, first, changed and wrote or 0, unsent) .. results
";

/// The beginning of the field `s`: the version of the format, and the unit of the states.
pub(super) const PREFIX: &str = "1 permits";

#[cfg(test)]
mod tests;
