//! The queues of this process, for calls that wait for a window or for units of a bucket with leases.
//!
//! One call of a queue asks the server at a time, in the order of arrival. A future may stop being polled at any time,
//! also while its call sleeps or asks. So no call has a lock meanwhile: the queue only notes which call asks, until
//! when its answer must be there, and when the next question is due. If a question is due and the first call does not
//! ask, the next call asks a short time later, and goes on before the calls that it has overtaken. A call that was
//! overtaken is in its place again as soon as it is polled.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use dashmap::{DashMap, Entry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::calls::CountedCall;
use super::error::RedisError;
use super::link::Link;
use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, QueueConfig};
use tower_throttle::clock::Nanos;
use tower_throttle::limiter::Decided;
use tower_throttle::store_support::{default_max_queued, is_barred, with_queue_full};

/// The time that each call has to ask before the call behind it does, in nanoseconds.
const GRACE: u64 = 3_000_000;
/// The first two calls are woken when a question is due earlier than before. Each further call looks for itself after
/// at most this time for each call ahead of it, in nanoseconds.
const LOOK: u64 = 100_000_000;

/// The calls of this process that wait: the queues of their keys, and the places of all keys together.
#[derive(Debug)]
pub(super) struct WaitQueues {
    queues: DashMap<Arc<str>, Arc<Mutex<WaitQueue>>>,
    places: Arc<Semaphore>,
}

/// A place among the calls of all keys that wait. Dropping it frees the place.
pub(super) type TotalPlace = OwnedSemaphorePermit;

/// The queue of a key.
#[derive(Debug, Default)]
struct WaitQueue {
    /// The number of places.
    len: u64,
    /// The number of the next place.
    next_number: u64,
    /// The calls that wait for their turn, by the numbers of their places. Neither the call that asks nor the calls
    /// that were overtaken are among them.
    line: VecDeque<Waiter>,
    /// The call that asks.
    asking: Option<Asking>,
    /// The time of the next question, if no call asks.
    next_question: Nanos,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
}

/// A call that asks the server.
#[derive(Clone, Copy, Debug)]
struct Asking {
    number: u64,
    /// The deadline of its trip.
    until: Nanos,
}

/// The wakers that are to be woken once the queue is unlocked.
type ToWake = [Option<Waker>; 2];

/// A place in a queue. When the last place of a queue is dropped, the queue is removed.
struct Place<'a> {
    queues: &'a WaitQueues,
    link: &'a Link,
    key: &'a Arc<str>,
    queue: Arc<Mutex<WaitQueue>>,
    number: u64,
    _total: TotalPlace,
}

/// A call that may wait in a queue of this process.
pub(super) struct QueuedCall<'a> {
    queues: &'a WaitQueues,
    link: &'a Link,
    key: &'a Arc<str>,
    /// The number of calls that may be queued. At least 1.
    places: u64,
    /// The maximum wait, in nanoseconds.
    max_wait: u64,
    /// The time after which a call asks again if its denial does not tell the wait, in nanoseconds. `None` if such a
    /// call does not wait.
    unknown_wait: Option<u64>,
}

impl QueuedCall<'_> {
    /// Decides the call by `check`, which charges it, and which is called again when units may be available. `check`
    /// gets for how many nanoseconds the call can then be queued, and for how many it has been queued, if it has. It
    /// counts a denial only if the first time is too short. `deny` counts the denial of a call that finds no place, or
    /// that has waited too long, and returns how long the units of the call are not available.
    ///
    /// A call that arrives while no call is queued is checked at once, and is queued only if it is denied. So calls
    /// that only await their trips are not queued, and share their trips. A call that arrives while others are queued
    /// is queued at once, so that it does not overtake them. Returns `None` if the limiter is closed while the call is
    /// queued.
    pub(super) async fn until_decided<C, D>(
        &self,
        call: &mut CountedCall<'_>,
        check: impl Fn(u64, Option<u64>) -> C,
        deny: impl Fn() -> D,
    ) -> Result<Option<Decided>, RedisError>
    where
        C: Future<Output = Result<Decided, RedisError>>,
        D: Future<Output = Result<Decided, RedisError>>,
    {
        let Self { queues, link, key, places, .. } = *self;
        let arrived = link.now();
        let latest = arrived.saturating_add(self.max_wait);
        let time_left = || latest.saturating_since(link.now());
        let mut retry = None;
        if !queues.queues.contains_key(key) {
            let left = time_left();
            let decided = check(left, None).await?;
            retry = self.retry(decided.decision(), left, latest);
            if retry.is_none() {
                return Ok(Some(decided));
            }
        }
        let Some(place) = queues.join(link, key, places, retry) else {
            let denied = deny().await?;
            let is_in_time = denied.decision().is_allowed()
                || self.retry(denied.decision(), time_left(), latest).is_some();
            return Ok(Some(with_decision(denied, |denied| {
                if is_in_time { with_queue_full(denied_behind(denied)) } else { denied_behind(denied) }
            })));
        };
        call.wait();
        loop {
            match call.unless_closed(place.turn(latest)).await {
                None => return Ok(None),
                Some(true) => {}
                Some(false) => {
                    drop(place);
                    return Ok(Some(with_decision(deny().await?, denied_behind)));
                }
            }
            let left = time_left();
            let decided = check(left, Some(link.now().saturating_since(arrived))).await?;
            match self.retry(decided.decision(), left, latest) {
                Some(retry) => place.answered(retry),
                None => {
                    let waited = link.now().saturating_since(arrived);
                    return Ok(Some(with_decision(decided, |decision| {
                        if decision.is_allowed() { decision.with_delay(waited) } else { decision }
                    })));
                }
            }
        }
    }

    /// Returns the time at which a call with this decision is checked again, at the latest `latest`. When the call was
    /// checked, it could be queued for `left` nanoseconds. Returns `None` if the call is allowed or does not wait any
    /// longer.
    fn retry(&self, decision: &Decision, left: u64, latest: Nanos) -> Option<Nanos> {
        if decision.is_allowed() || is_barred(decision) || decision.never_fits() {
            return None;
        }
        let wait = decision.retry_after().map(|wait| Nanos::from(wait).0).or(self.unknown_wait)?;
        is_in_time(wait, left).then(|| self.link.now().saturating_add(wait).min(latest))
    }
}

/// Returns whether a call that must wait for `wait` nanoseconds can be queued, if it waits for at most `max_wait`. If
/// this is zero, the call cannot be queued.
pub(super) fn is_in_time(wait: u64, max_wait: u64) -> bool {
    wait.max(1) <= max_wait
}

/// Returns the denial of a call that must not overtake the calls that are queued before it. The call is denied even if
/// units are available. `decision` was made without regard to the queued calls, so its wait is not that of the call.
/// The wait is unknown, unless it does not depend on the queued calls.
fn denied_behind(decision: Decision) -> Decision {
    if is_barred(&decision) || decision.never_fits() {
        return decision;
    }
    let reset = Nanos::from(decision.reset_after()).0;
    Decision::deny(decision.limit(), 0, None, reset).with_unknown_wait(true)
}

/// Returns the same result of a call, with another decision.
fn with_decision(decided: Decided, change: impl FnOnce(Decision) -> Decision) -> Decided {
    let (decision, reservation) = decided.into_parts();
    Decided::new(change(decision), reservation)
}

impl WaitQueues {
    /// Creates the queues of a limiter, in which at most `max_queued` calls of all keys together wait.
    pub(super) fn new(algorithm: &impl Algorithm, max_queued: Option<usize>) -> Self {
        let default = || usize::try_from(default_max_queued(algorithm)).unwrap_or(usize::MAX);
        let places = max_queued.unwrap_or_else(default).min(Semaphore::MAX_PERMITS);
        Self { queues: DashMap::new(), places: Arc::new(Semaphore::new(places)) }
    }

    /// Takes a place for a call that waits. Returns `None` if as many calls as allowed wait already.
    pub(super) fn total_place(&self) -> Option<TotalPlace> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Returns a call that may wait in the queue of its key. The queue has at least one place. `max_wait` and
    /// `unknown_wait` are in nanoseconds. `unknown_wait` is the time after which the call asks again if its denial does
    /// not tell the wait. With `None`, such a call does not wait.
    pub(super) fn call<'a>(
        &'a self,
        link: &'a Link,
        key: &'a Arc<str>,
        config: &QueueConfig,
        max_wait: u64,
        unknown_wait: Option<u64>,
    ) -> QueuedCall<'a> {
        let places = config.places();
        let max_wait = max_wait.min(config.max_wait());
        QueuedCall { queues: self, link, key, places, max_wait, unknown_wait }
    }

    /// Adds a place to the queue of a key, unless the queue has as many as `places`, or all keys together have as many
    /// as allowed. The first question of a new queue is due at `retry`, or at once.
    fn join<'a>(
        &'a self,
        link: &'a Link,
        key: &'a Arc<str>,
        places: u64,
        retry: Option<Nanos>,
    ) -> Option<Place<'a>> {
        let total = self.total_place()?;
        let entry = self.queues.entry(Arc::clone(key)).or_default();
        let mut queue = lock(&entry);
        if queue.len >= places {
            return None;
        }
        if queue.len == 0 {
            queue.next_question = retry.unwrap_or_else(|| link.now());
        }
        let number = queue.next_number;
        queue.len += 1;
        queue.next_number += 1;
        drop(queue);
        let queue = Arc::clone(&entry);
        Some(Place { queues: self, link, key, queue, number, _total: total })
    }
}

impl Place<'_> {
    /// Waits until the call may ask. Returns `false` if `latest` is earlier.
    async fn turn(&self, latest: Nanos) -> bool {
        let mut sleep = pin!(self.link.sleep_until(latest));
        poll_fn(|cx| {
            loop {
                let (now, until) = (self.link.now(), self.link.deadline());
                // The wakers are dropped after the queue is unlocked.
                let (due, _wakers) = lock(&self.queue).turn(self.number, now, until, cx);
                match due {
                    None => return Poll::Ready(true),
                    Some(_) if now >= latest => return Poll::Ready(false),
                    Some(due) => sleep.set(self.link.sleep_until(due.min(latest))),
                }
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Records that the call was denied, and that the next question is due at `retry`.
    fn answered(&self, retry: Nanos) {
        let to_wake = lock(&self.queue).answered(self.number, retry);
        to_wake.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let now = self.link.now();
        // Places are added only while the entry is locked, as it is here.
        let Entry::Occupied(entry) = self.queues.queues.entry(Arc::clone(self.key)) else { return };
        let mut queue = lock(&self.queue);
        let (to_wake, _waker) = queue.leave(self.number, now);
        let is_empty = queue.len == 0;
        drop(queue);
        if is_empty {
            entry.remove();
        } else {
            drop(entry);
        }
        to_wake.into_iter().flatten().for_each(Waker::wake);
    }
}

impl WaitQueue {
    /// Lets the call ask if it is its turn at `now`. Its answer must be there at `until`. Otherwise returns the time at
    /// which the call looks again. Also returns wakers that are not needed any more.
    fn turn(
        &mut self,
        number: u64,
        now: Nanos,
        until: Nanos,
        cx: &Context<'_>,
    ) -> (Option<Nanos>, VecDeque<Waiter>) {
        let mut dropped = VecDeque::new();
        let mut waiter = Waiter { number, waker: cx.waker().clone() };
        let ahead = match self.line.binary_search_by_key(&number, |waiter| waiter.number) {
            Ok(ahead) => {
                mem::swap(&mut self.line[ahead], &mut waiter);
                dropped.push_back(waiter);
                ahead
            }
            Err(ahead) => {
                self.line.insert(ahead, waiter);
                ahead
            }
        };
        let due = match &self.asking {
            Some(asking) => asking.until.saturating_add(GRACE),
            None => self.next_question,
        };
        let due = due.saturating_add(GRACE.saturating_mul(ahead as u64));
        if now >= due {
            // The calls ahead of this call were not polled in time.
            dropped.extend(self.line.drain(..=ahead));
            self.asking = Some(Asking { number, until });
            return (None, dropped);
        }
        let look = if ahead < 2 { due } else { now.saturating_add(LOOK.saturating_mul(ahead as u64)) };
        (Some(due.min(look)), dropped)
    }

    /// Records that the call was denied. Does nothing if another call has asked meanwhile.
    fn answered(&mut self, number: u64, retry: Nanos) -> ToWake {
        if self.asking.is_none_or(|asking| asking.number != number) {
            return ToWake::default();
        }
        self.asking = None;
        self.next_question = retry;
        self.first_wakers()
    }

    /// Removes a call. If it was the first call, or the call that asks, the next question is due at once. Also returns
    /// a waker that is not needed any more.
    fn leave(&mut self, number: u64, now: Nanos) -> (ToWake, Option<Waiter>) {
        self.len -= 1;
        let place = self.line.binary_search_by_key(&number, |waiter| waiter.number).ok();
        let waiter = place.and_then(|place| self.line.remove(place));
        let was_asking = self.asking.take_if(|asking| asking.number == number).is_some();
        if !was_asking && place != Some(0) {
            return (ToWake::default(), waiter);
        }
        self.next_question = if was_asking { now } else { self.next_question.min(now) };
        (self.first_wakers(), waiter)
    }

    fn first_wakers(&self) -> ToWake {
        [0, 1].map(|place| self.line.get(place).map(|waiter| waiter.waker.clone()))
    }
}

fn lock(queue: &Mutex<WaitQueue>) -> MutexGuard<'_, WaitQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}
