//! The task that makes the trips of a key, one after another, while this process holds units of the key.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::bucket::{Found, Touched};
use super::held::{Action, Call, Held, Rules, Step, Trip};
use super::script::add_arguments;
use crate::answer::{Answer, Verdict};
use crate::asked::result_of;
use crate::error::{RedisError, RedisErrorKind};
use crate::link::Keys;
use crate::links::Attempted;
use crate::links::Links;
use crate::names::Registered;
use crate::route::Route;
use crate::scripts::Script;
use crate::wait_queue::WaitQueues;
use tower_throttle::Decision;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::Nanos;
use tower_throttle::store::KeyText;
use tower_throttle::store_support::random_u64;

/// The maximum number of keys of a limiter for which a process holds units. While there are more keys, no units are
/// leased, and each call makes a trip.
const MAX_KEYS: usize = 10_000;

/// The part of a limiter that its clones and its tasks share.
pub(super) struct Shared {
    pub(super) links: Links,
    pub(super) key_text: KeyText,
    pub(super) algorithm: TokenBucket,
    pub(super) rules: Rules,
    pub(super) prefix: String,
    pub(super) script: Script,
    pub(super) held: DashMap<Arc<str>, Arc<Held>>,
    pub(super) leases: Leases,
    pub(super) queues: WaitQueues,
    /// `true` if the limiter was dropped.
    pub(super) is_closed: AtomicBool,
    pub(super) _name: Registered,
}

/// The source of the names of leases. A name consists of a random number, which is chosen once for each limiter, and a
/// number that no other lease of the limiter has.
pub(super) struct Leases {
    process: u64,
    next: AtomicU64,
}

impl Leases {
    pub(super) fn new() -> Self {
        Self { process: random_u64(), next: AtomicU64::new(0) }
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Shared {
    /// Decides a call that does not wait, without a trip. Returns `None` if a trip must decide the call.
    pub(super) fn decide(&self, key: &Arc<str>, cost: u64) -> Option<Decision> {
        let held = self.held.get(key)?;
        held.lock().decide(&self.rules, cost, self.links.any().now())
    }

    /// Returns the units of the key that this process holds. If the runtime of their task is not driven, replaces them
    /// by a new value without units. The calls of the former task then fail at their deadlines.
    fn held(&self, key: &Arc<str>, now: Nanos) -> Arc<Held> {
        let new = || Arc::new(Held::new(Arc::clone(key), self.leases.next()));
        let mut held = self.held.entry(Arc::clone(key)).or_insert_with(new);
        if held.is_stuck(now) {
            *held = new();
        }
        Arc::clone(&held)
    }

    /// Decides a call in the next trip of its key.
    pub(super) async fn ask(
        self: &Arc<Self>,
        key: &Arc<str>,
        action: Action,
        cost: u64,
    ) -> Result<Decision, RedisError> {
        let runtime = RedisError::current_runtime()?;
        let link = &*self.links.route(key).link;
        link.breaker.admit(link.now())?;
        let deadline = link.deadline();
        let (reply, answer) = oneshot::channel();
        let held = self.held(key, link.now());
        if held.push(Call { action, cost, deadline, reply }) {
            self.serve(&held, &runtime);
        }
        let refund = if action == Action::Check { cost } else { 0 };
        let mut asked = Asked { shared: self, held: &held, refund, answer, runtime };
        let received = link.until(deadline, &mut asked.answer).await;
        result_of(link, deadline, received, &mut asked.answer)
    }

    /// Starts the task that makes the trips of a key.
    fn serve(self: &Arc<Self>, held: &Arc<Held>, runtime: &Handle) {
        let (shared, held) = (Arc::clone(self), Arc::clone(held));
        runtime.spawn(Served { shared, held, has_ended: false }.serve());
    }
}

/// A call that awaits its decision. If the call is dropped after it was charged, its units are refunded.
struct Asked<'a> {
    shared: &'a Arc<Shared>,
    held: &'a Arc<Held>,
    refund: u64,
    answer: oneshot::Receiver<Result<Decision, RedisError>>,
    runtime: Handle,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(decision)) = self.answer.try_recv()
            && decision.is_allowed()
            && self.refund > 0
            && self.held.refund(self.refund)
        {
            self.shared.serve(self.held, &self.runtime);
        }
    }
}

/// The units of a key and the calls for it, while a task serves them.
struct Served {
    shared: Arc<Shared>,
    held: Arc<Held>,
    has_ended: bool,
}

impl Served {
    async fn serve(mut self) {
        let mut next_route = None;
        while let Some(trip) = self.next_trip().await {
            let Self { shared, held, .. } = &self;
            let route = next_route.take().unwrap_or_else(|| shared.links.route(&held.key));
            let sent = route.link.now();
            match self.make(&route, &trip).await {
                Attempted::Over(Ok((now, touched))) => {
                    held.lock().finish(&shared.rules, trip, touched, now, sent);
                }
                // Another node has the key, or the trip was too late for one of its calls.
                Attempted::Again(next) => {
                    held.lock().put_back(trip);
                    next_route = Some(next);
                }
                Attempted::Over(Err(error)) => {
                    held.lock().fail(shared.leases.next());
                    trip.calls.into_iter().for_each(|call| drop(call.reply.send(Err(error.clone()))));
                }
            }
        }
        self.has_ended = true;
    }

    /// Returns the next trip, once there is one. Returns `None` if the process holds no units of the key, has none to
    /// refund, and no call has arrived for some time.
    async fn next_trip(&self) -> Option<Trip> {
        let Self { shared, held, .. } = self;
        loop {
            let link = shared.links.any();
            let is_brief = shared.is_closed.load(Ordering::Acquire) || shared.held.len() > MAX_KEYS;
            let step = held.lock().next(&shared.rules, is_brief, link.now());
            match step {
                Step::Trip(trip) => return Some(trip),
                Step::Wait(until) => {
                    link.until(until, held.wake.notified()).await;
                }
                Step::End => return None,
            }
        }
    }

    /// Makes a trip. The result is the server's time in microseconds, and the changes that the trip has made.
    async fn make(&self, route: &Route, trip: &Trip) -> Attempted<(u64, Touched)> {
        let first = trip.calls.iter().map(|call| call.deadline).min();
        let last = trip.calls.iter().map(|call| call.deadline).max();
        let deadline = route.link.deadline();
        let (first, last) = (first.unwrap_or(deadline), last.unwrap_or(deadline));
        self.shared.links.attempt(route, last, pin!(self.touch(route, trip, first))).await
    }

    /// Executes the script. Returns `None` if the server has executed it too late for one of its calls, and has changed
    /// nothing.
    async fn touch(
        &self,
        route: &Route,
        trip: &Trip,
        not_after: Nanos,
    ) -> Result<Option<(u64, Touched)>, RedisError> {
        let Shared { rules, prefix, script, leases, .. } = &*self.shared;
        let link = &*route.link;
        let keys = Keys { texts: &[&*self.held.key], is_asking: route.is_asking };
        let name = format!("{:016x}.{}", leases.process, trip.lease);
        let add =
            |command: &mut _, _: &mut _| add_arguments(command, &rules.bucket, prefix, &name, &trip.ask);
        let Answer { verdict, now, text } = link.eval(script, keys, not_after, add).await?;
        let found = match verdict {
            Verdict::Late => return Ok(None),
            Verdict::Done => Found::parse(&text),
            Verdict::Other => None,
        };
        let Some(found) = found else {
            let shown: String = text.chars().take(60).collect();
            let detail = format!("the value is {shown:?}, not that of a limiter with leases and this quota");
            return Err(RedisError::new(RedisErrorKind::Foreign, detail));
        };
        // The script has made the same changes on the server.
        let touched = rules.bucket.touch(&found, now.0 / 1_000, &trip.ask);
        if touched.has_changed {
            link.breaker.wrote();
        }
        Ok(Some((now.0 / 1_000, touched)))
    }
}

/// When the task ends, or when a runtime drops it, a later call starts another task.
impl Drop for Served {
    fn drop(&mut self) {
        let Self { shared, held, .. } = self;
        shared.held.remove_if(&held.key, |_, present| Arc::ptr_eq(present, held));
        if !self.has_ended {
            let _calls = held.lock().abandon(shared.leases.next());
        }
    }
}
