//! The trips of a limiter to the server. At most one trip is made at a time for a key. Calls that arrive during a trip
//! are decided together in the next trip, up to 256 of them, in the order in which they arrived. Charges for which no
//! caller waits are one call, which has the place of the first of them.
//!
//! A trip decides its calls by a script, or by reading the state and writing the new state.
//!
//! The limiter remembers for a short time which keys have no units available. So a client that retries at once causes
//! no trips.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::ops::Bound;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use dashmap::{DashMap, Entry};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::{RedisError, RedisErrorKind};
use super::flight::{Awaited, PolledFlight};
use super::link::{Answer, Route, Swap};
use super::links::{Attempted, Links};
use super::names::{Registered, words};
use super::served::Deadlines;
use super::settlements::Unsettled;
use super::states::{Operation, Outcome, Plan, States};
use tower_throttle::Decision;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;

/// The maximum number of calls that one trip decides. The number is bounded because the server executes nothing else
/// while a script runs.
const MAX_BATCH: usize = 256;
/// The number of sets over which keys are distributed by their hashes. Each set has at most [`SET_KEYS`] keys. In a
/// full set, a new key replaces the key whose request was sent first.
const SETS: usize = 1_024;
const SET_KEYS: usize = 10;
/// The time, in nanoseconds, for which the reply to a charge is awaited after its deadline, if no caller waits for it.
/// A runtime that is busy with other tasks may receive a reply late. Meanwhile, another flight may take over.
const LATE_REPLY: u64 = 5_000_000_000;
/// The pauses, in nanoseconds, after which charges that were not made are tried again. While no link admits one, the
/// pause doubles, from the first of these to the second.
const RETRY_PAUSES: (u64, u64) = (50_000_000, 400_000_000);
/// The time, in nanoseconds, after which a task that tries charges again counts as abandoned: twice its longest pause.
const ABANDONED: u64 = 2 * RETRY_PAUSES.1;
/// The maximum number of keys whose charges wait for another try. Charges of more keys are lost.
const MAX_RETRIES: usize = 10_000;
/// The maximum numbers of keys whose charges are tried again at once, and that are looked at for this.
const RETRIED: (usize, usize) = (256, 1_000);

/// The trips of a limiter, for all its keys. The limiter's clones and its flights share this value.
pub(super) struct Trips<A: StoredAlgorithm> {
    links: Links,
    plan: RwLock<Arc<Plan<A>>>,
    /// The generation of the algorithm of `plan`.
    generation: AtomicU64,
    /// `true` if scripts decide the calls of each algorithm that has a script.
    scripts: bool,
    /// The keys for which a trip is under way, each with the calls that wait for its next trip.
    flights: DashMap<Arc<str>, Waiting<A>>,
    flights_begun: AtomicU64,
    retries: Retries<A>,
    denials: Denials<A>,
}

/// The charges of a key that wait for another try: one for each tier.
type Charges<A> = SmallVec<[Pending<A>; 1]>;

/// Charges that were certainly not made, and that a task tries again.
#[derive(Debug)]
struct Retries<A> {
    queue: Mutex<RetryQueue<A>>,
    /// The time after which the task counts as abandoned, because its runtime is not driven, or 0 if there is no task:
    /// 1 if its runtime has ended. Changed only while the queue is locked.
    until: AtomicU64,
}

#[derive(Debug)]
struct RetryQueue<A> {
    charges: BTreeMap<Arc<str>, Charges<A>>,
    /// The key that was tried last.
    last: Option<Arc<str>>,
    /// The number of the latest task.
    task: u64,
}

/// The task that tries charges again. If a runtime drops the task, the charges wait for another one. They are lost when
/// the limiter is dropped meanwhile.
struct RetryTask<A: StoredAlgorithm> {
    trips: Arc<Trips<A>>,
    number: u64,
    has_ended: bool,
}

/// The calls that wait for the next trip of a key.
struct Waiting<A> {
    /// The number of the [`Flight`] that makes the next trip.
    flight: u64,
    /// The time at which the present trip ends at the latest, if the runtime of the flight is driven.
    ends: Nanos,
    calls: VecDeque<Pending<A>>,
    /// The number of calls that have left `calls`.
    taken: u64,
    /// The calls that are charges for which no caller waits, one for each tier: the numbers of calls that arrived
    /// before.
    charges: SmallVec<[u64; 2]>,
    present: PolledFlight,
}

/// The trips for a key, which are made one after another. Each key in the table of flights has one flight.
struct Flight<A: StoredAlgorithm> {
    trips: Arc<Trips<A>>,
    key: Arc<str>,
    number: u64,
    /// `true` if a request that may change the state was sent, and the server has not answered it.
    may_have_written: AtomicBool,
    has_ended: bool,
}

/// A call that will be decided in a trip.
#[derive(Debug)]
struct Pending<A> {
    operation: Operation<A>,
    /// The time until which the caller waits for the result.
    deadline: Nanos,
    /// `None` if no caller waits for the result.
    reply: Option<oneshot::Sender<Reply>>,
    /// The settlement or the charge that the operation makes, which is counted when its trip has ended.
    unsettled: Option<Unsettled>,
}

/// The route and the plan of a trip.
type Prepared<A> = (Route, Arc<Plan<A>>);

/// The reply to a call.
type Reply = Result<Outcome, RedisError>;

/// The value of a key, as a trip has found it.
struct Found {
    value: Vec<u8>,
    /// The server's time at which the value was read.
    now: Nanos,
    /// The time at which the request was sent, by this process's clock. The server read the value later.
    sent: Nanos,
}

/// The states of keys that had no unit available after their last decision.
///
/// With such a state, this process denies a call as long as the units of the call cannot be available. During this
/// time, other processes can only take more units, unless they reset the key or give units back. The work of each call
/// is bounded by the size of a set, even if a flood of keys fills all sets.
#[derive(Debug)]
struct Denials<A: StoredAlgorithm> {
    sets: Box<[Mutex<Vec<Remembered<A>>>]>,
    hasher: RandomState,
    /// The maximum time for which a state is remembered, in nanoseconds. With 0, no state is remembered.
    longest: u64,
    /// The number of times that states were forgotten.
    forgotten: AtomicU64,
}

#[derive(Debug)]
struct Remembered<A: StoredAlgorithm> {
    key: Arc<str>,
    plan: Arc<Plan<A>>,
    state: A::State,
    /// The server's time at which the state was read.
    now: Nanos,
    /// The time at which the request was sent, by this process's clock. The server read the state later.
    sent: Nanos,
}

impl<A: StoredAlgorithm> Trips<A> {
    /// Creates the trips of a limiter. `scripts` is `true` if scripts decide the calls of each algorithm that has a
    /// script.
    pub(super) fn new(links: Links, plan: Arc<Plan<A>>, scripts: bool, remember_denials: Duration) -> Self {
        Self {
            links,
            generation: AtomicU64::new(plan.info().generation()),
            plan: RwLock::new(plan),
            scripts,
            flights: DashMap::new(),
            flights_begun: AtomicU64::default(),
            retries: Retries::default(),
            denials: Denials::new(remember_denials),
        }
    }

    pub(super) fn plan(&self) -> Arc<Plan<A>> {
        Arc::clone(&self.plan.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the generation of the present algorithm. Takes no lock.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the algorithm of the limiter with this name, and at last its generation. If the states of the new
    /// algorithm cannot be kept in Redis, the old algorithm stays in use, and the error is logged.
    pub(super) fn replace(&self, algorithm: A, name: &Registered) {
        // While the lock is held, no other algorithm gets the same generation.
        let mut current = self.plan.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = current.replaced_by(algorithm, self.links.any().source(), self.scripts);
        let plan = match replaced {
            Ok(plan) => plan,
            Err(error) => {
                drop(current);
                return log_not_replaced(&error);
            }
        };
        name.set(plan.frame().unit(), words::<A>(&plan.info()));
        *current = Arc::clone(&plan);
        self.denials.clear();
        self.generation.store(plan.info().generation(), Ordering::Release);
    }

    /// Returns the denial of a call if a remembered state denies the call. `plan` is the present plan.
    pub(super) fn known_denial(
        &self,
        plan: &Arc<Plan<A>>,
        key: &Arc<str>,
        call: &Operation<A>,
    ) -> Option<Decision> {
        self.denials.answer(key, plan, call, self.links.any().now())
    }

    /// Remembers a state that was read at `now` by a request that was sent at `sent`. Does nothing if states were
    /// forgotten since [`forgotten`](Self::forgotten) returned `forgotten`.
    pub(super) fn remember(
        &self,
        key: &Arc<str>,
        plan: &Arc<Plan<A>>,
        state: A::State,
        now: Nanos,
        sent: Nanos,
        forgotten: u64,
    ) {
        if self.denials.forgotten() == forgotten {
            self.denials.remember(key, plan, state, now, sent);
        }
    }

    /// Returns how often states were forgotten.
    pub(super) fn forgotten(&self) -> u64 {
        self.denials.forgotten()
    }

    /// Forgets the state of a key.
    pub(super) fn forget(&self, key: &str) {
        self.denials.forget(key);
    }

    /// Sends an operation to the server, and returns its outcome. It is decided by `plan`, unless it waits for another
    /// trip of its key. Returns an error if there is no outcome by the deadline. If the operation is a charge,
    /// `unsettled` counts it.
    pub(super) async fn ask(
        self: &Arc<Self>,
        plan: &Arc<Plan<A>>,
        key: &Arc<str>,
        operation: Operation<A>,
        unsettled: Option<Unsettled>,
    ) -> Reply {
        let (runtime, route, deadline) = self.links.begin(key).await?;
        let link = Arc::clone(&route.link);
        let (reply, answer) = oneshot::channel();
        let call = Pending { operation: operation.clone(), deadline, reply: Some(reply), unsettled };
        let is_one_trip = plan.script(iter::once(&operation)).is_some();
        let mut flight = self.send_polled(key, call, Some((route, Arc::clone(plan))), &runtime);
        // A call that needs several trips is made in a task, since the caller may not be polled between the trips. So
        // is a trial, for which other calls wait.
        if (!is_one_trip || link.is_open())
            && let Some(flight) = flight.take()
        {
            flight.spawn();
        }
        let undo = |reply: Reply| {
            if let Ok(outcome) = reply
                && let Some(undo) = operation.clone().undone(&outcome)
            {
                self.tell(key, undo, None, &runtime);
            }
        };
        Awaited::new(answer, flight, undo).result(&link, deadline).await
    }

    /// Sends an operation without waiting for its outcome. The operation is lost if the server cannot execute it within
    /// the deadline. If the operation is a settlement, `unsettled` counts it.
    pub(super) fn tell(
        self: &Arc<Self>,
        key: &Arc<str>,
        operation: Operation<A>,
        unsettled: Option<Unsettled>,
        runtime: &Handle,
    ) {
        let deadline = self.links.any().deadline();
        self.send(key, Pending { operation, deadline, reply: None, unsettled }, runtime);
    }

    /// Makes a charge for which no caller waits. Together with other such charges of its key, it is tried until it is
    /// made, or may have been made, or the limiter is dropped after the runtime has ended.
    pub(super) fn charge(
        self: &Arc<Self>,
        key: &Arc<str>,
        operation: Operation<A>,
        unsettled: Unsettled,
        runtime: &Handle,
    ) {
        let link = self.links.route(key).link;
        let charge =
            Pending { operation, deadline: link.deadline(), reply: None, unsettled: Some(unsettled) };
        let now = link.now();
        if let Some(number) = self.retries.abandoned(now) {
            self.start_retrying(number, runtime);
        }
        match link.admit(now) {
            Ok(()) => self.send(key, charge, runtime),
            Err(open) => self.retry_later(key, charge, open, runtime),
        }
    }

    /// Lets a charge that was not made, because of `error`, wait for another try.
    fn retry_later(
        self: &Arc<Self>,
        key: &Arc<str>,
        charge: Pending<A>,
        error: RedisError,
        runtime: &Handle,
    ) {
        if let Some(number) = self.retries.add(key, charge, error, self.links.any().now()) {
            self.start_retrying(number, runtime);
        }
    }

    fn start_retrying(self: &Arc<Self>, number: u64, runtime: &Handle) {
        runtime.spawn(RetryTask { trips: Arc::clone(self), number, has_ended: false }.run());
    }

    /// Adds a call to the next trip of its key, which a task makes.
    fn send(self: &Arc<Self>, key: &Arc<str>, call: Pending<A>, runtime: &Handle) {
        if let Some(flight) = self.send_polled(key, call, None, runtime) {
            flight.spawn();
        }
    }

    /// Adds a call to the next trip of its key. If no trip is under way, returns a new flight, which makes the trip.
    /// The caller must poll or spawn that flight. `prepared` is for this trip, if it is known already.
    fn send_polled(
        self: &Arc<Self>,
        key: &Arc<str>,
        call: Pending<A>,
        prepared: Option<Prepared<A>>,
        runtime: &Handle,
    ) -> Option<PolledFlight> {
        let number = self.flights_begun.fetch_add(1, Ordering::Relaxed);
        let ends = call.deadline;
        let flight = |batch, prepared| {
            let trips = Arc::clone(self);
            let key = Arc::clone(key);
            let may_have_written = AtomicBool::new(false);
            let flight = Flight { trips, key, number, may_have_written, has_ended: false };
            PolledFlight::new(flight.run(batch, prepared), runtime)
        };
        let present = match self.flights.entry(Arc::clone(key)) {
            Entry::Occupied(mut waiting) => {
                let waiting = waiting.get_mut();
                waiting.add(call);
                // The present trip should have ended at `waiting.ends`. If it is still under way one deadline after
                // that time, its flight counts as abandoned.
                let now = self.links.any().now();
                if now > waiting.ends.saturating_add(ends.saturating_since(now)) {
                    // The runtime of the present flight is not driven, so a new flight takes over.
                    waiting.flight = number;
                    waiting.present = flight(waiting.take_batch(Vec::new(), ends), None);
                }
                waiting.present.clone()
            }
            Entry::Vacant(place) => {
                let present = flight(vec![call], prepared);
                drop(place.insert(Waiting {
                    flight: number,
                    ends,
                    calls: VecDeque::new(),
                    taken: 0,
                    charges: SmallVec::new(),
                    present: present.clone(),
                }));
                return Some(present);
            }
        };
        // The table of flights is unlocked here, since a flight that ends locks the table.
        present.spawn();
        None
    }
}

impl<A> Pending<A> {
    /// Returns whether this is a charge for which no caller waits.
    fn is_charge(&self) -> bool {
        self.reply.is_none() && self.unsettled.is_some() && !self.operation.gives_units()
    }

    /// Adds another charge to this one. Returns the other charge if it is of another tier.
    fn add(&mut self, mut charge: Self) -> Option<Self>
    where
        A: StoredAlgorithm,
    {
        if !self.operation.add(&charge.operation) {
            return Some(charge);
        }
        self.deadline = charge.deadline;
        self.unsettled.iter_mut().zip(charge.unsettled.take()).for_each(|(sum, more)| sum.add(more));
        None
    }

    /// Returns whether the caller has dropped the call.
    fn is_cancelled(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Counts a settlement, and sends the result to the caller. If the caller has dropped the call, and the call was
    /// charged, returns the operation that undoes the charge.
    fn answer(mut self, result: Reply) -> Option<Operation<A>> {
        if let Some(unsettled) = self.unsettled.take() {
            unsettled.end(result.as_ref().map(Outcome::settled));
        }
        let sent = self.reply?.send(result);
        let Err(Ok(outcome)) = sent else { return None };
        self.operation.undone(&outcome)
    }
}

impl<A: StoredAlgorithm> Waiting<A> {
    /// Adds a call. A charge for which no caller waits is added to that of the same tier.
    fn add(&mut self, mut call: Pending<A>) {
        if call.is_charge() {
            for number in &self.charges {
                match self.calls[(number - self.taken) as usize].add(call) {
                    Some(other) => call = other,
                    None => return,
                }
            }
            self.charges.push(self.taken + self.calls.len() as u64);
        }
        self.calls.push_back(call);
    }

    /// Adds the calls of the next trip to `batch`, and sets the time at which that trip ends at the latest. `deadline`
    /// is that of a call that begins now. Nobody waits for a charge, so its time begins with the trip.
    fn take_batch(&mut self, mut batch: Vec<Pending<A>>, deadline: Nanos) -> Vec<Pending<A>> {
        let count = self.calls.len().min(MAX_BATCH);
        batch.extend(self.calls.drain(..count));
        self.taken += count as u64;
        self.charges.retain(|number| *number >= self.taken);
        batch.iter_mut().filter(|call| call.is_charge()).for_each(|charge| charge.deadline = deadline);
        self.ends = batch.iter().map(|call| call.deadline).max().unwrap_or(self.ends);
        batch
    }
}

impl<A: StoredAlgorithm> Flight<A> {
    /// Makes the trips. `prepared` is for the first trip, if it is known already.
    async fn run(mut self, mut batch: Vec<Pending<A>>, mut prepared: Option<Prepared<A>>) {
        loop {
            let (route, plan) =
                prepared.take().unwrap_or_else(|| (self.trips.links.route(&self.key), self.trips.plan()));
            let undone = self.trip(batch, route, &plan).await;
            batch = match self.next(undone) {
                Some(next) => next,
                None => return,
            };
        }
    }

    /// Returns the calls of the next trip: first `undone`, the operations that undo the charges of dropped calls, then
    /// the calls that have waited longest for a trip, at most 256. If there are neither, ends the flight and returns
    /// `None`. If another flight has taken over, adds `undone` to the next trip of the key and returns `None`.
    fn next(&mut self, undone: Vec<Operation<A>>) -> Option<Vec<Pending<A>>> {
        let deadline = self.trips.links.any().deadline();
        let undo = |operation| Pending { operation, deadline, reply: None, unsettled: None };
        let undone: Vec<_> = undone.into_iter().map(undo).collect();
        if let Entry::Occupied(mut waiting) = self.trips.flights.entry(Arc::clone(&self.key))
            && waiting.get().flight == self.number
        {
            let batch = waiting.get_mut().take_batch(undone, deadline);
            if batch.is_empty() {
                waiting.remove();
                self.has_ended = true;
                return None;
            }
            return Some(batch);
        }
        // Another flight has taken over.
        self.has_ended = true;
        for call in undone {
            self.trips.send(&self.key, call, &Handle::current());
        }
        None
    }

    /// Decides the calls of one trip. Returns the operations that undo the charges of calls that were dropped during
    /// the trip.
    async fn trip(
        &self,
        mut batch: Vec<Pending<A>>,
        mut route: Route,
        plan: &Arc<Plan<A>>,
    ) -> Vec<Operation<A>> {
        self.may_have_written.store(false, Ordering::Relaxed);
        loop {
            let link = &*route.link;
            let now = link.now();
            // Calls that were cancelled, or whose deadline has passed, are not sent.
            batch.retain(|call| !call.is_cancelled());
            for call in batch.extract_if(.., |call| call.deadline <= now) {
                self.fail(call, link.deadline_error(), true);
            }
            let Some(Deadlines { first, last }) = Deadlines::of(batch.iter().map(|call| call.deadline))
            else {
                return Vec::new();
            };
            let attempted = {
                let is_over = AtomicBool::new(false);
                let mut decided = pin!(async {
                    let decided = self.decide_batch(&route, plan, &batch, first).await;
                    is_over.store(true, Ordering::Relaxed);
                    decided
                });
                let attempted = self.trips.links.attempt(&route, last, decided.as_mut()).await;
                let may_have_written =
                    !is_over.load(Ordering::Relaxed) && self.may_have_written.load(Ordering::Relaxed);
                match attempted {
                    // The reply tells what was charged, even if it comes too late for callers.
                    Attempted::Over(Err(error))
                        if may_have_written && batch.iter().any(Pending::is_charge) =>
                    {
                        let end = link.now().saturating_add(LATE_REPLY);
                        match link.until(end, decided).await {
                            Some(Ok(Some(outcomes))) => Attempted::Over(Ok(outcomes)),
                            _ => Attempted::Over(Err(error)),
                        }
                    }
                    attempted => attempted,
                }
            };
            match attempted {
                Attempted::Over(outcomes) => return self.answer(plan, batch, outcomes),
                Attempted::Again(next) => route = next,
            }
        }
    }

    /// Answers a call whose trip has failed. A charge for which no caller waits is tried again if `is_retried`.
    fn fail(&self, call: Pending<A>, error: RedisError, is_retried: bool) {
        if is_retried && call.is_charge() {
            self.trips.retry_later(&self.key, call, error, &Handle::current());
        } else {
            _ = call.answer(Err(error));
        }
    }

    fn answer(
        &self,
        plan: &Arc<Plan<A>>,
        batch: Vec<Pending<A>>,
        outcomes: Result<Vec<Outcome>, RedisError>,
    ) -> Vec<Operation<A>> {
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                let is_uncharged = !self.may_have_written.load(Ordering::Relaxed);
                let may_pass = error.kind().is_outage()
                    || matches!(error.kind(), RedisErrorKind::Open | RedisErrorKind::Unserved);
                batch.into_iter().for_each(|call| self.fail(call, error.clone(), is_uncharged && may_pass));
                return Vec::new();
            }
        };
        // Neither units that are given back nor debt are in a state that was remembered before.
        if batch.iter().any(|call| call.operation.gives_units() || call.unsettled.is_some()) {
            self.trips.denials.forget(&self.key);
        }
        debug_assert_eq!(batch.len(), outcomes.len(), "{plan:?}");
        let answered = batch.into_iter().zip(outcomes);
        answered.filter_map(|(call, outcome)| call.answer(Ok(outcome))).collect()
    }

    /// Decides the calls in one or more round trips. Returns `None` if the server's clock was already past `not_after`,
    /// so that nothing was changed.
    async fn decide_batch(
        &self,
        route: &Route,
        plan: &Arc<Plan<A>>,
        batch: &[Pending<A>],
        not_after: Nanos,
    ) -> Result<Option<Vec<Outcome>>, RedisError> {
        let keys = &[&*self.key];
        let sent = route.link.now();
        let found = match plan.script(batch.iter().map(|call| &call.operation)) {
            Some((script, pack)) => match route.eval(script, keys, not_after, |_, last| pack(last)).await? {
                Answer::Done(now, value) => {
                    // The script has decided the calls from the state in `found`, with the same result as the
                    // algorithm. So the decisions are computed here from that state.
                    let found = Found { value, now, sent };
                    let (outcomes, mut state, has_written) = found.apply(plan, batch)?;
                    if has_written {
                        route.link.wrote();
                    } else {
                        self.probe(route, plan, &mut state, &found, not_after).await;
                    }
                    self.remember(plan, state, &found, &outcomes);
                    return Ok(Some(outcomes));
                }
                Answer::Other(now, value) => Some((now, value)),
                Answer::Late => None,
            },
            None => route.read(keys, not_after).await?,
        };
        let Some((now, value)) = found else { return Ok(None) };
        let found = Found { value, now, sent };
        // The future of these further trips is large, and most flights do not need it.
        Box::pin(self.compare_and_set(route, plan, batch, not_after, found)).await
    }

    async fn compare_and_set(
        &self,
        route: &Route,
        plan: &Arc<Plan<A>>,
        batch: &[Pending<A>],
        not_after: Nanos,
        mut found: Found,
    ) -> Result<Option<Vec<Outcome>>, RedisError> {
        let has_turns = self.trips.links.has_turns();
        let mut has_lost = false;
        loop {
            let (outcomes, mut state, must_write) = found.apply(plan, batch)?;
            let mut after = state.write(plan, found.now).unwrap_or_default();
            if !must_write {
                after.clone_from(&found.value);
            }
            // A process whose first write failed may have taken the turn. Such a process writes the state even if the
            // state is unchanged, so that its turn ends.
            if after == found.value && !has_lost {
                self.probe(route, plan, &mut state, &found, not_after).await;
            } else {
                let ttl = state.time_to_live(&plan.algorithm, found.now);
                let sent = route.link.now();
                let swap = Swap::new(&found.value, &after, ttl);
                self.may_have_written.store(true, Ordering::Relaxed);
                let swapped = if has_turns {
                    route.swap_in_turn(&self.key, not_after, swap).await
                } else {
                    route.swap(&[&*self.key], not_after, &[swap]).await
                };
                // A connection that ends may have sent the request.
                let is_unknown =
                    matches!(&swapped, Err(error) if error.kind() == RedisErrorKind::Unreachable);
                self.may_have_written.store(is_unknown, Ordering::Relaxed);
                match swapped? {
                    Answer::Done(..) => {}
                    // Another process has changed the state since it was read, or it is the turn of another process.
                    // The calls are decided again, from the state in the reply.
                    Answer::Other(now, value) => {
                        found = Found { value, now, sent };
                        has_lost = has_turns;
                        continue;
                    }
                    Answer::Late => return Ok(None),
                }
            }
            self.remember(plan, state, &found, &outcomes);
            return Ok(Some(outcomes));
        }
    }

    /// Writes the state unchanged, if only a trip that writes can close the circuit breaker. The calls are decided
    /// already, so a failure of this write affects only the breaker.
    async fn probe(
        &self,
        route: &Route,
        plan: &Plan<A>,
        state: &mut States<A>,
        found: &Found,
        not_after: Nanos,
    ) {
        if found.value.is_empty() || !route.link.needs_write() {
            return;
        }
        let ttl = state.time_to_live(&plan.algorithm, found.now);
        let swaps = [Swap::new(&found.value, &found.value, ttl)];
        // A large future, which is seldom needed.
        let _ = Box::pin(route.swap(&[&*self.key], not_after, &swaps)).await;
    }

    fn remember(&self, plan: &Arc<Plan<A>>, state: States<A>, found: &Found, outcomes: &[Outcome]) {
        // If another flight has taken over, the state may have changed since it was read.
        let is_current =
            || self.trips.flights.get(&self.key).is_some_and(|waiting| waiting.flight == self.number);
        if outcomes.iter().any(|outcome| !outcome.decision().is_allowed()) && is_current() {
            self.trips.denials.remember(&self.key, plan, state.into_own(), found.now, found.sent);
        }
    }
}

impl<A> Default for Retries<A> {
    fn default() -> Self {
        let queue = RetryQueue { charges: BTreeMap::new(), last: None, task: 0 };
        Self { queue: Mutex::new(queue), until: AtomicU64::new(0) }
    }
}

impl<A: StoredAlgorithm> Retries<A> {
    /// Adds a charge, which was not made because of `error`. Returns the number of the task that the caller must start,
    /// if there is none.
    #[must_use]
    fn add(&self, key: &Arc<str>, charge: Pending<A>, error: RedisError, now: Nanos) -> Option<u64> {
        let mut queue = self.put(key, charge, error)?;
        let until = self.until.load(Ordering::Relaxed);
        (until == 0 || now.0 > until).then(|| self.next_task(&mut queue, now))
    }

    /// Adds a charge of a runtime that has ended. If there is no task, the next caller starts one.
    fn park(&self, key: &Arc<str>, charge: Pending<A>, error: RedisError) {
        if let Some(_locked) = self.put(key, charge, error)
            && self.until.load(Ordering::Relaxed) == 0
        {
            self.until.store(1, Ordering::Relaxed);
        }
    }

    /// Adds a charge, and returns the locked queue. Returns `None` if the charge is lost.
    fn put(
        &self,
        key: &Arc<str>,
        charge: Pending<A>,
        error: RedisError,
    ) -> Option<MutexGuard<'_, RetryQueue<A>>> {
        let mut queue = self.lock();
        if queue.charges.len() >= MAX_RETRIES && !queue.charges.contains_key(key) {
            drop(queue);
            let _ = charge.answer(Err(error));
            return None;
        }
        let charges = queue.charges.entry(Arc::clone(key)).or_default();
        let other = charges.iter_mut().try_fold(charge, |charge, sum| sum.add(charge));
        charges.extend(other);
        Some(queue)
    }
}

impl<A> Retries<A> {
    /// Returns the number of the task that the caller must start because the present one is abandoned.
    fn abandoned(&self, now: Nanos) -> Option<u64> {
        let is_abandoned = || (1..now.0).contains(&self.until.load(Ordering::Relaxed));
        if !is_abandoned() {
            return None;
        }
        let mut queue = self.lock();
        is_abandoned().then(|| self.next_task(&mut queue, now))
    }

    fn next_task(&self, queue: &mut RetryQueue<A>, now: Nanos) -> u64 {
        queue.task += 1;
        self.until.store(now.saturating_add(ABANDONED).0, Ordering::Relaxed);
        queue.task
    }

    /// Takes the charges of the key that has waited longest for a try.
    fn next(&self) -> Option<(Arc<str>, Charges<A>)> {
        let mut queue = self.lock();
        let after = |key: &Arc<str>| {
            let later = queue.charges.range::<str, _>((Bound::Excluded(&**key), Bound::Unbounded)).next();
            later.map(|(key, _)| Arc::clone(key))
        };
        let key = queue.last.as_ref().and_then(after);
        let key = key.or_else(|| queue.charges.first_key_value().map(|(key, _)| Arc::clone(key)))?;
        queue.last = Some(Arc::clone(&key));
        queue.charges.remove_entry(&*key)
    }

    /// Returns the number of keys. If it is zero, or if another task has taken over, the task with this number ends.
    fn len_or_end(&self, number: u64, now: Nanos) -> usize {
        let queue = self.lock();
        if queue.task != number {
            return 0;
        }
        let until = if queue.charges.is_empty() { 0 } else { now.saturating_add(ABANDONED).0 };
        self.until.store(until, Ordering::Relaxed);
        queue.charges.len()
    }

    /// Ends the task with this number because its runtime has ended, unless another task has taken over. The charges
    /// may be those of other runtimes, so the next caller starts another task.
    fn end(&self, number: u64) {
        let queue = self.lock();
        if queue.task == number {
            self.until.store(u64::from(!queue.charges.is_empty()), Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RetryQueue<A>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: StoredAlgorithm> RetryTask<A> {
    async fn run(mut self) {
        let link = self.trips.links.any();
        let mut pause = RETRY_PAUSES.0;
        loop {
            link.sleep_until(link.now().saturating_add(pause)).await;
            let waiting = self.trips.retries.len_or_end(self.number, link.now());
            if waiting == 0 {
                break;
            }
            pause = match self.retry(waiting) {
                0 => RETRY_PAUSES.1.min(pause * 2),
                _ => RETRY_PAUSES.0,
            };
        }
        self.has_ended = true;
    }

    /// Sends the charges of some of the `waiting` keys. Returns how many keys these are.
    fn retry(&self, waiting: usize) -> usize {
        let trips = &self.trips;
        let runtime = Handle::current();
        let mut sent = 0;
        for _ in 0..waiting.min(RETRIED.1) {
            let Some((key, charges)) = trips.retries.next() else { break };
            let link = trips.links.route(&key).link;
            let admitted = link.admit(link.now());
            for charge in charges {
                match admitted.clone() {
                    Ok(()) => trips.send(&key, Pending { deadline: link.deadline(), ..charge }, &runtime),
                    Err(open) => trips.retry_later(&key, charge, open, &runtime),
                }
            }
            sent += usize::from(admitted.is_ok());
            if sent == RETRIED.0 {
                break;
            }
        }
        sent
    }
}

impl<A: StoredAlgorithm> Drop for RetryTask<A> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.trips.retries.end(self.number);
        }
    }
}

/// If the flight panics, or a runtime drops the flight, the calls that wait for its trips get an error, and the key can
/// be used again. If a flight panics while it is polled by the call that began it, that call panics.
impl<A: StoredAlgorithm> Drop for Flight<A> {
    fn drop(&mut self) {
        if !self.has_ended {
            let is_own = |_: &Arc<str>, waiting: &Waiting<A>| waiting.flight == self.number;
            let Some((key, waiting)) = self.trips.flights.remove_if(&self.key, is_own) else { return };
            // The charges that wait were not sent, and may be those of other runtimes. If no task tries charges again,
            // the next charge starts one.
            for charge in waiting.calls.into_iter().filter(Pending::is_charge) {
                let error = RedisError::new(RedisErrorKind::NoRuntime, "the runtime of the trips has ended");
                self.trips.retries.park(&key, charge, error);
            }
        }
    }
}

impl Found {
    /// Applies the calls in order to the state. Returns the outcomes, the new state, and whether that state must be
    /// written.
    fn apply<A: StoredAlgorithm>(
        &self,
        plan: &Plan<A>,
        batch: &[Pending<A>],
    ) -> Result<(Vec<Outcome>, States<A>, bool), RedisError> {
        let mut state = plan.decode(&self.value, self.now)?;
        let mut must_write = false;
        let apply = |call: &Pending<A>| {
            let (outcome, changed) = state.apply(plan, &call.operation, self.now);
            must_write |= changed;
            outcome
        };
        let outcomes = batch.iter().map(apply).collect();
        Ok((outcomes, state, must_write))
    }
}

impl<A: StoredAlgorithm> Denials<A> {
    fn new(longest: Duration) -> Self {
        let longest = Nanos::from(longest).0;
        let sets = if longest == 0 { 0 } else { SETS };
        let sets = (0..sets).map(|_| Mutex::default()).collect();
        Self { sets, hasher: RandomState::new(), longest, forgotten: AtomicU64::default() }
    }

    /// Returns the set of a key, or `None` if this store remembers no states.
    fn set(&self, key: &str) -> Option<MutexGuard<'_, Vec<Remembered<A>>>> {
        let sets = self.sets.len() as u64;
        // The index is below the number of sets, so it fits.
        let index = self.hasher.hash_one(key).checked_rem(sets)? as usize;
        Some(self.sets[index].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Remembers a state, if no unit is available in the state now, but a unit can become available later.
    fn remember(&self, key: &Arc<str>, plan: &Arc<Plan<A>>, mut state: A::State, now: Nanos, sent: Nanos) {
        // If a denial changes the state, each call must be sent.
        if self.longest == 0 || plan.algorithm.counts_denials() {
            return;
        }
        let one = plan.algorithm.peek(&mut state, now, 1);
        if one.is_allowed() || one.never_fits() {
            return;
        }
        let Some(mut set) = self.set(key) else { return };
        let remembered = Remembered { key: Arc::clone(key), plan: Arc::clone(plan), state, now, sent };
        let same = set.iter().position(|old| old.key == *key);
        let oldest = || (0..set.len()).filter(|_| set.len() >= SET_KEYS).min_by_key(|old| set[*old].sent);
        match same.or_else(oldest) {
            Some(place) => set[place] = remembered,
            None => set.push(remembered),
        }
    }

    /// Returns the denial of a call at `local`, a time of this process's clock, if the remembered state denies the
    /// call.
    fn answer(
        &self,
        key: &Arc<str>,
        plan: &Arc<Plan<A>>,
        call: &Operation<A>,
        local: Nanos,
    ) -> Option<Decision> {
        if self.longest == 0 || call.cost() == 0 {
            return None;
        }
        let mut set = self.set(key)?;
        let place = set.iter().position(|remembered| remembered.key == *key)?;
        let remembered = &set[place];
        let elapsed = local.saturating_since(remembered.sent);
        let mut decision = None;
        if elapsed <= self.longest && Arc::ptr_eq(plan, &remembered.plan) {
            let now = remembered.now.saturating_add(elapsed);
            // A denial that adds its tier to the key must be sent, since the wait is true only if the tier is kept.
            let (outcome, must_write) = call.apply(plan, &mut remembered.state.clone(), now);
            decision = Some(outcome.decision()).filter(|decision| !decision.is_allowed() && !must_write);
        }
        if decision.is_none() {
            set.swap_remove(place);
        }
        decision
    }

    /// Returns how often states were forgotten. If this number has changed since a state was read, the state must not
    /// be remembered.
    fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    fn forget(&self, key: &str) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        if let Some(mut set) = self.set(key) {
            set.retain(|remembered| *remembered.key != *key);
        }
    }

    fn clear(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        for set in &self.sets {
            set.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

#[cfg(feature = "tracing")]
fn log_not_replaced(error: &RedisError) {
    tracing::error!(target: "tower_throttle", event = "not_replaced", reason = %error,
        "tower-throttle[R04]: the algorithm was not replaced");
}

#[cfg(not(feature = "tracing"))]
fn log_not_replaced(_: &RedisError) {}

#[cfg(test)]
mod tests;
