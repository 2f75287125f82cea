//! The calls of a key that share trips, for leases and for permits. While there is something to do for a key, a task
//! makes the trips of the key, one after another.
//!
//! A key is locked while its entry in the table of the limiter may be locked, too. So nobody who has locked a key locks
//! the table.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::error::RedisError;
use super::link::Route;
use super::links::{Attempted, Links};
use tower_throttle::clock::Nanos;

/// The calls of a key in this process, which a task serves.
#[derive(Debug)]
pub(super) struct Served<C> {
    key: Arc<str>,
    locked: Mutex<Locked<C>>,
    /// Wakes the task.
    wake: Notify,
}

#[derive(Debug)]
struct Locked<C> {
    task: Task,
    calls: C,
}

/// The keys of a limiter that are served.
pub(super) type ServedKeys<C> = DashMap<Arc<str>, Arc<Served<C>>>;

/// The calls of a key, which trips decide in batches.
pub(super) trait Batches: Send + 'static {
    /// The settings of all keys of the limiter.
    type Rules;
    type Trip: Send + Sync;
    /// What a trip has found, and changed.
    type Found: Send;

    /// Returns what the task does at `now`.
    fn next(&mut self, rules: &Self::Rules, now: Nanos) -> Step<Self::Trip>;

    /// Returns the deadlines of the calls of a trip, if it has any.
    fn deadlines(trip: &Self::Trip) -> Option<Deadlines>;

    /// Ends a trip that began at `sent`.
    fn finish(&mut self, rules: &Self::Rules, trip: Self::Trip, found: Self::Found, sent: Nanos, now: Nanos);

    /// Ends a trip that has failed.
    fn fail(&mut self, rules: &Self::Rules, trip: Self::Trip, error: &RedisError, now: Nanos);

    /// Ends a trip that has changed nothing, and that is made again. Either the trip was too late for one of its calls,
    /// or another node has the key.
    fn put_back(&mut self, rules: &Self::Rules, trip: Self::Trip);

    /// Ends the calls that no task serves any more, because the runtime of their task has ended. Returns the runtime on
    /// which the next task is started at once, if any.
    fn abandon(&mut self, rules: &Self::Rules, now: Nanos) -> Option<Handle>;

    /// Returns whether nothing is left to do.
    fn is_idle(&self) -> bool;

    /// Returns whether the calls show that their task is not driven, so that new calls replace them in the table.
    fn is_stuck(&self, _now: Nanos) -> bool {
        false
    }
}

/// A limiter whose keys are served.
pub(super) trait Serves: Send + Sync + 'static {
    type Calls: Batches;

    /// `true` if a trip without calls asks the circuit breaker. Calls have asked it when they began.
    const ASKS_BREAKER: bool;

    fn links(&self) -> &Links;

    fn keys(&self) -> &ServedKeys<Self::Calls>;

    /// Returns the calls of a key that had none.
    fn new_calls(&self) -> Self::Calls;

    /// Returns the settings of the keys. No key is locked meanwhile.
    fn rules(&self) -> RulesOf<Self>;

    /// Returns the time for which a task may be late before another task replaces it, in nanoseconds.
    fn patience(&self) -> u64;

    /// Makes a trip. Returns `None` if the server has executed it after `not_after`, and has changed nothing.
    fn make(
        &self,
        route: &Route,
        key: &str,
        trip: &TripOf<Self>,
        not_after: Nanos,
    ) -> impl Future<Output = Result<Option<FoundOf<Self>>, RedisError>> + Send;

    /// Is called when a trip of the key has ended.
    fn tripped(&self, _served: &Served<Self::Calls>) {}
}

type RulesOf<L> = <<L as Serves>::Calls as Batches>::Rules;
type TripOf<L> = <<L as Serves>::Calls as Batches>::Trip;
type FoundOf<L> = <<L as Serves>::Calls as Batches>::Found;

/// The next step of a task.
#[derive(Debug)]
pub(super) enum Step<T> {
    Trip(T),
    /// Waits until the task is woken, or until this time.
    Wait(Nanos),
    End,
}

/// The first and the last deadline of the calls of a trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadlines {
    pub(super) first: Nanos,
    pub(super) last: Nanos,
}

/// What is known of the task of a key.
#[derive(Debug, Default)]
struct Task {
    /// The number of the last task that was started.
    number: u64,
    is_running: bool,
    /// The time at which the task was first woken since it last reacted.
    woken_at: Option<Nanos>,
    /// The time at which the task goes on without being woken.
    due: Nanos,
}

/// The task of a key. When it ends, or when a runtime drops it, a later call starts another task.
struct Running<L: Serves> {
    limiter: Arc<L>,
    served: Arc<Served<L::Calls>>,
    number: u64,
    has_ended: bool,
}

/// Changes the calls of a key, and wakes their task. Starts a task on `runtime` if no task is running, or if the
/// running task is late.
pub(super) fn change<L: Serves>(
    limiter: &Arc<L>,
    key: &Arc<str>,
    runtime: &Handle,
    change: impl FnOnce(&Arc<Served<L::Calls>>, &mut L::Calls),
) -> Arc<Served<L::Calls>> {
    let now = limiter.links().any().now();
    let new = || Arc::new(Served::new(Arc::clone(key), limiter.new_calls()));
    let mut entry = limiter.keys().entry(Arc::clone(key)).or_insert_with(new);
    if entry.with(|calls| calls.is_stuck(now)) {
        *entry = new();
    }
    // The entry is locked meanwhile, so that the calls are not removed from the table.
    let task = entry.change(now, limiter.patience(), |calls| change(&entry, calls));
    let served = Arc::clone(&entry);
    drop(entry);
    start(limiter, task, &served, runtime);
    served
}

/// If `task` is a number, starts the task with this number.
pub(super) fn start<L: Serves>(
    limiter: &Arc<L>,
    task: Option<u64>,
    served: &Arc<Served<L::Calls>>,
    runtime: &Handle,
) {
    if let Some(number) = task {
        let (limiter, served) = (Arc::clone(limiter), Arc::clone(served));
        runtime.spawn(Running { limiter, served, number, has_ended: false }.run());
    }
}

impl<C: Batches> Served<C> {
    pub(super) fn new(key: Arc<str>, calls: C) -> Self {
        let locked = Locked { task: Task::default(), calls };
        Self { key, locked: Mutex::new(locked), wake: Notify::new() }
    }

    pub(super) fn key(&self) -> &Arc<str> {
        &self.key
    }

    /// Reads or changes the calls. Does not wake the task.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut C) -> R) -> R {
        f(&mut self.lock().calls)
    }

    /// Changes the calls, and wakes the task. If no task is running, or if the running task is late by `patience`,
    /// returns the number of the task that the caller must start.
    #[must_use]
    pub(super) fn change(&self, now: Nanos, patience: u64, change: impl FnOnce(&mut C)) -> Option<u64> {
        let mut locked = self.lock();
        change(&mut locked.calls);
        let started = locked.task.wake(now, patience);
        drop(locked);
        self.wake();
        started
    }

    /// If no task is running, or if the running task is late, returns the number of the task that the caller must
    /// start. Does not wake the task.
    #[must_use]
    pub(super) fn tend(&self, now: Nanos, patience: u64) -> Option<u64> {
        self.lock().task.replace(now, patience)
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Returns what the task with this number does at `now`. A trip without calls ends at `deadline`.
    pub(super) fn next(&self, number: u64, rules: &C::Rules, now: Nanos, deadline: Nanos) -> Step<C::Trip> {
        let Locked { task, calls } = &mut *self.lock();
        if !task.is_present(number) {
            return Step::End;
        }
        let step = calls.next(rules, now);
        match &step {
            Step::Trip(trip) => task.goes_on(C::deadlines(trip).map_or(deadline, |calls| calls.last)),
            Step::Wait(until) => task.goes_on(*until),
            Step::End => task.end(),
        }
        step
    }

    /// Records that the task with this number has ended or, unless `has_ended`, that its runtime has dropped it.
    /// Returns the number and the runtime of a task that the caller must start, if any.
    #[must_use]
    pub(super) fn abandon(
        &self,
        number: u64,
        has_ended: bool,
        rules: &C::Rules,
        now: Nanos,
    ) -> Option<(u64, Handle)> {
        let Locked { task, calls } = &mut *self.lock();
        if !task.is_present(number) {
            // This task may have taken the notification of the other task.
            self.wake();
            return None;
        }
        if has_ended {
            return None;
        }
        task.end();
        let runtime = calls.abandon(rules, now)?;
        Some((task.replace(now, 0)?, runtime))
    }

    fn is_idle(&self) -> bool {
        let locked = self.lock();
        !locked.task.is_running && locked.calls.is_idle()
    }

    fn lock(&self) -> MutexGuard<'_, Locked<C>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deadlines {
    /// Returns the first and the last of these deadlines, if there are any.
    pub(super) fn of(deadlines: impl IntoIterator<Item = Nanos>) -> Option<Self> {
        deadlines.into_iter().fold(None, |all, deadline| Some(Self::with(all, deadline)))
    }

    /// Returns these deadlines with another one.
    pub(super) fn with(all: Option<Self>, deadline: Nanos) -> Self {
        let Self { first, last } = all.unwrap_or(Self { first: deadline, last: deadline });
        Self { first: first.min(deadline), last: last.max(deadline) }
    }
}

impl<L: Serves> Running<L> {
    async fn run(mut self) {
        let mut next_route = None;
        while let Some(trip) = self.next_trip().await {
            let is_first = next_route.is_none();
            let links = self.limiter.links();
            let route = next_route.take().unwrap_or_else(|| links.route(&self.served.key));
            let sent = route.link.now();
            let deadlines = L::Calls::deadlines(&trip);
            let admitted = if L::ASKS_BREAKER && is_first && deadlines.is_none() {
                route.link.admit(sent)
            } else {
                Ok(())
            };
            let made = match admitted {
                Ok(()) => {
                    let Deadlines { first, last } =
                        deadlines.unwrap_or_else(|| Deadlines::with(None, route.link.deadline()));
                    let made = pin!(self.limiter.make(&route, &self.served.key, &trip, first));
                    links.attempt(&route, last, made).await
                }
                Err(error) => Attempted::Over(Err(error)),
            };
            match self.end_trip(trip, made, sent) {
                ControlFlow::Continue(next) => next_route = next,
                ControlFlow::Break(()) => break,
            }
            self.limiter.tripped(&self.served);
        }
        self.has_ended = true;
    }

    /// Returns the next trip, once there is one. Returns `None` if nothing is left to do, or if another task has taken
    /// over.
    async fn next_trip(&self) -> Option<TripOf<L>> {
        let Self { limiter, served, number, .. } = self;
        let link = limiter.links().any();
        loop {
            let step = served.next(*number, &limiter.rules(), link.now(), link.deadline());
            match step {
                Step::Trip(trip) => return Some(trip),
                Step::Wait(until) => {
                    link.until(until, served.wake.notified()).await;
                }
                Step::End => return None,
            }
        }
    }

    /// Ends a trip that began at `sent`. If the trip must be made again, returns its next route. Breaks if another task
    /// has taken over, which makes its own trips.
    fn end_trip(
        &self,
        trip: TripOf<L>,
        made: Attempted<FoundOf<L>>,
        sent: Nanos,
    ) -> ControlFlow<(), Option<Route>> {
        let rules = self.limiter.rules();
        let now = self.limiter.links().any().now();
        let Locked { task, calls } = &mut *self.served.lock();
        if !task.is_present(self.number) {
            return ControlFlow::Break(());
        }
        match made {
            Attempted::Over(Ok(found)) => calls.finish(&rules, trip, found, sent, now),
            Attempted::Over(Err(error)) => calls.fail(&rules, trip, &error, now),
            Attempted::Again(next) => {
                calls.put_back(&rules, trip);
                return ControlFlow::Continue(Some(next));
            }
        }
        ControlFlow::Continue(None)
    }
}

impl<L: Serves> Drop for Running<L> {
    fn drop(&mut self) {
        let Self { limiter, served, number, has_ended } = self;
        let rules = limiter.rules();
        let now = limiter.links().any().now();
        let next = served.abandon(*number, *has_ended, &rules, now);
        let is_done = |present: &Arc<_>| Arc::ptr_eq(present, served) && served.is_idle();
        limiter.keys().remove_if(&served.key, |_, present| is_done(present));
        if let Some((number, runtime)) = next {
            start(limiter, Some(number), served, &runtime);
        }
    }
}

impl Task {
    fn is_late(&self, now: Nanos, patience: u64) -> bool {
        let is_late = |since: Nanos| now > since.saturating_add(patience);
        is_late(self.due) || self.woken_at.is_some_and(is_late)
    }

    /// Records that the task is woken. Returns the number of a new task if no task is running, or if the running task
    /// has not reacted for `patience` nanoseconds because its runtime does not drive it.
    fn wake(&mut self, now: Nanos, patience: u64) -> Option<u64> {
        let started = self.replace(now, patience);
        if started.is_none() {
            self.woken_at.get_or_insert(now);
        }
        started
    }

    fn replace(&mut self, now: Nanos, patience: u64) -> Option<u64> {
        if self.is_running && !self.is_late(now, patience) {
            return None;
        }
        *self = Self { number: self.number + 1, is_running: true, woken_at: None, due: now };
        Some(self.number)
    }

    /// Returns whether no other task has replaced the task with this number.
    fn is_present(&self, number: u64) -> bool {
        self.number == number
    }

    /// Records that the task has run, and runs again by `due`.
    fn goes_on(&mut self, due: Nanos) {
        self.woken_at = None;
        self.due = due;
    }

    fn end(&mut self) {
        self.is_running = false;
    }
}
