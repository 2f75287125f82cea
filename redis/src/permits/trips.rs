//! The task that makes the trips of a key, one after another, while calls of this process hold permits of the key or
//! wait for permits.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;
use tokio::runtime::Handle;

use super::listener::Listener;
use super::record::Rules;
use super::records::{Records, State};
use super::script::{Arguments, Outcome};
use super::steps::{Step, Trip};
use crate::answer::{Answer, Verdict};
use crate::error::{RedisError, RedisErrorKind};
use crate::link::{Keys, Link};
use crate::links::{Attempted, Links};
use crate::names::Registered;
use crate::route::Route;
use crate::scripts::Script;
use tower_throttle::algorithm::Concurrency;
use tower_throttle::clock::Nanos;
use tower_throttle::store::KeyText;

/// The part of a limiter that its clones, its permits and its tasks share.
pub(super) struct Shared {
    pub(super) links: Links,
    pub(super) key_text: KeyText,
    pub(super) algorithm: Concurrency,
    pub(super) rules: Rules,
    pub(super) arguments: Arguments,
    pub(super) script: Script,
    pub(super) listener: Arc<Listener>,
    pub(super) keys: DashMap<Arc<str>, Arc<Records>>,
    /// `true` if the limiter was dropped.
    pub(super) is_closed: AtomicBool,
    pub(super) _name: Registered,
}

impl Shared {
    /// Changes the records of a key, and wakes their task. Starts a task on `runtime` if no task is running, or if the
    /// running task is late.
    pub(super) fn change(
        self: &Arc<Self>,
        key: &Arc<str>,
        runtime: &Handle,
        change: impl FnOnce(&Arc<Records>, &mut State),
    ) -> Arc<Records> {
        let now = self.links.any().now();
        let new = || Arc::new(Records::new(Arc::clone(key), self.rules));
        let entry = self.keys.entry(Arc::clone(key)).or_insert_with(new);
        // The entry is locked meanwhile, so that the records are not removed from the table.
        let (task, records) = (entry.change(now, |state| change(&entry, state)), Arc::clone(&entry));
        drop(entry);
        self.start(task, &records, runtime);
        records
    }

    /// If `task` is a number, starts the task with this number, which makes the trips of a key.
    pub(super) fn start(self: &Arc<Self>, task: Option<u64>, records: &Arc<Records>, runtime: &Handle) {
        if let Some(number) = task {
            let (shared, records) = (Arc::clone(self), Arc::clone(records));
            runtime.spawn(Served { shared, records, number, has_ended: false }.serve());
        }
    }
}

/// The records of a key, while a task serves them.
struct Served {
    shared: Arc<Shared>,
    records: Arc<Records>,
    /// The number of the task.
    number: u64,
    has_ended: bool,
}

impl Served {
    async fn serve(mut self) {
        let mut next_route = None;
        while let Some(trip) = self.next_trip().await {
            let Self { shared, records, .. } = &self;
            let rules = &shared.rules;
            let is_first = next_route.is_none();
            let route = next_route.take().unwrap_or_else(|| shared.links.route(&records.key));
            let link = &*route.link;
            let sent = link.now();
            // New calls have asked the breaker already.
            let is_admitted = !is_first || trip.deadlines.is_some() || link.breaker.admit(sent).is_ok();
            let made = match is_admitted {
                true => self.make(&route, &trip, sent).await,
                false => Attempted::Over(Err(RedisError::new(RedisErrorKind::Open, ""))),
            };
            let now = link.now();
            let mut state = records.lock();
            if !state.task.is_present(self.number) {
                // Another task has taken over, and makes its own trips.
                break;
            }
            match made {
                Attempted::Over(Ok(outcome)) => state.finish(rules, trip, &outcome, sent, now),
                Attempted::Over(Err(error)) => state.fail(rules, trip, &error, now),
                // Another node has the key, or the trip was too late for one of its calls.
                Attempted::Again(next) => {
                    state.put_back(trip);
                    next_route = Some(next);
                }
            }
            let is_waiting = state.waiting() > 0;
            drop(state);
            if is_waiting {
                shared.listener.listen(&shared.links, &shared.arguments.channel, &records.key);
            }
        }
        self.has_ended = true;
    }

    /// Returns the next trip, once there is one. Returns `None` if nothing is left to do, or if another task has taken
    /// over.
    async fn next_trip(&self) -> Option<Trip> {
        let Self { shared, records, number, .. } = self;
        loop {
            let link = shared.links.any();
            let is_closed = shared.is_closed.load(Ordering::Acquire);
            let step = records.lock().next(&shared.rules, *number, is_closed, link.now());
            match step {
                Step::Trip(trip) => return Some(trip),
                Step::Wait(until) => {
                    link.until(until, records.wake.notified()).await;
                }
                Step::End => return None,
            }
        }
    }

    async fn make(&self, route: &Route, trip: &Trip, sent: Nanos) -> Attempted<Outcome> {
        // A trip without new calls ends early enough for another attempt before the records expire.
        let longest = sent.saturating_add(self.shared.rules.lease / 4);
        let (first, last) = trip.deadlines.unwrap_or_else(|| {
            let deadline = route.link.deadline().min(longest);
            (deadline, deadline)
        });
        let executed = pin!(self.execute(&route.link, route.is_asking, trip, first));
        self.shared.links.attempt(route, last, executed).await
    }

    /// Executes the script. Returns `None` if the server has executed it too late for one of its calls, and has changed
    /// nothing.
    async fn execute(
        &self,
        link: &Link,
        is_asking: bool,
        trip: &Trip,
        not_after: Nanos,
    ) -> Result<Option<Outcome>, RedisError> {
        let Shared { script, arguments, .. } = &*self.shared;
        let keys = Keys { texts: &[&*self.records.key], is_asking };
        let add = |command: &mut _, _: &mut _| arguments.add_to(command, &trip.operations);
        let Answer { verdict, now, text } = link.eval(script, keys, not_after, add).await?;
        let outcome = match verdict {
            Verdict::Late => return Ok(None),
            Verdict::Done => Outcome::parse(&text, now.0 / 1_000),
            Verdict::Other => None,
        };
        let Some(outcome) = outcome else {
            let shown: String = text.chars().take(60).collect();
            let detail = format!("the value is {shown:?}, not the permits of a limiter");
            return Err(RedisError::new(RedisErrorKind::Foreign, detail));
        };
        if outcome.has_changed {
            link.breaker.wrote();
        }
        Ok(Some(outcome))
    }
}

/// When the task ends, or when a runtime drops it, a later call starts another task.
impl Drop for Served {
    fn drop(&mut self) {
        let Self { shared, records, number, has_ended } = self;
        let now = shared.links.any().now();
        let mut state = records.lock();
        if !state.task.is_present(*number) {
            // This task may have taken the notification of the other task.
            records.wake.notify_one();
        } else if !*has_ended {
            state.abandon(&shared.rules, now);
        }
        drop(state);
        shared.keys.remove_if(&records.key, |_, present| present.lock().is_idle());
    }
}
