//! The task that makes the trips of a key, one after another, while calls of this process hold permits of the key or
//! wait for permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;
use tokio::runtime::Handle;

use super::listener::Listener;
use super::record::Rules;
use super::records::Records;
use super::script::{Arguments, Outcome};
use super::steps::{Step, Trip};
use crate::algorithm::Concurrency;
use crate::clock::Nanos;
use crate::store::redis::answer::{Answer, Verdict};
use crate::store::redis::error::{RedisError, RedisErrorKind};
use crate::store::redis::link::{Keys, Link};
use crate::store::redis::links::{Attempted, Links};
use crate::store::redis::names::Registered;
use crate::store::redis::route::Route;
use crate::store::redis::scripts::Script;
use crate::store::shared_key::KeyText;

/// The part of a limiter that its clones, its permits and its tasks share.
pub(super) struct Shared {
    pub(super) links: Links,
    pub(super) key_text: KeyText,
    pub(super) algorithm: Concurrency,
    pub(super) rules: Rules,
    pub(super) arguments: Arguments,
    pub(super) script: Script,
    /// The channel of this process.
    pub(super) channel: String,
    pub(super) listener: Arc<Listener>,
    pub(super) keys: DashMap<Arc<str>, Arc<Records>>,
    /// `true` if the limiter was dropped.
    pub(super) is_closed: AtomicBool,
    pub(super) _name: Registered,
}

impl Shared {
    /// Returns the records of a key. If the runtime of their task is not driven, other records take their place, and
    /// the new calls of the former task fail at their deadlines.
    pub(super) fn records(&self, key: &Arc<str>, now: Nanos) -> Arc<Records> {
        let new = || Arc::new(Records::new(Arc::clone(key), self.rules));
        let mut records = self.keys.entry(Arc::clone(key)).or_insert_with(new);
        if records.lock().is_stuck(now) {
            *records = new();
        }
        Arc::clone(&records)
    }

    /// Starts the task that makes the trips of a key.
    pub(super) fn serve(self: &Arc<Self>, records: &Arc<Records>, runtime: &Handle) {
        let (shared, records) = (Arc::clone(self), Arc::clone(records));
        runtime.spawn(Served { shared, records, has_ended: false }.serve());
    }
}

/// The records of a key, while a task serves them.
struct Served {
    shared: Arc<Shared>,
    records: Arc<Records>,
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
                shared.listener.listen(&shared.links, &shared.channel, &records.key);
            }
        }
        self.has_ended = true;
    }

    /// Returns the next trip, once there is one. Returns `None` if no call of this process has a record.
    async fn next_trip(&self) -> Option<Trip> {
        let Self { shared, records, .. } = self;
        loop {
            let link = shared.links.any();
            let is_closed = shared.is_closed.load(Ordering::Acquire);
            let step = records.lock().next(&shared.rules, is_closed, link.now());
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
        self.shared.links.attempt(route, last, self.execute(&route.link, route.is_asking, trip, first)).await
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
        let add = |command: &mut _| arguments.add_to(command, &trip.operations);
        let Answer { verdict, text, .. } = link.eval(script, keys, not_after, add).await?;
        let outcome = match verdict {
            Verdict::Late => return Ok(None),
            Verdict::Done => Outcome::parse(&text),
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
        let Self { shared, records, .. } = self;
        if self.has_ended {
            shared.keys.remove_if(&records.key, |_, present| {
                Arc::ptr_eq(present, records) && present.lock().is_idle()
            });
        } else {
            records.lock().abandon();
        }
    }
}
