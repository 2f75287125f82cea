//! The queues of this process, for calls that wait for a window or for units of a bucket with leases.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::Mutex;

use super::calls::CountedCall;
use super::error::RedisError;
use super::link::Link;
use tower_throttle::Decision;
use tower_throttle::algorithm::QueueConfig;
use tower_throttle::clock::Nanos;
use tower_throttle::limiter::Decided;
use tower_throttle::store_support::{is_barred, with_queue_full};

/// The queues of the keys for which calls of this process wait.
#[derive(Debug, Default)]
pub(super) struct WaitQueues(DashMap<Arc<str>, Arc<WaitQueue>>);

/// The queue of a key. The first call of the queue holds the lock `first`. The other calls get the lock in the order in
/// which they requested it.
#[derive(Debug, Default)]
struct WaitQueue {
    first: Mutex<()>,
    len: AtomicU64,
}

/// A place in a queue. When the last place of a queue is dropped, the queue is removed.
struct Place<'a> {
    queues: &'a WaitQueues,
    key: &'a Arc<str>,
    queue: Arc<WaitQueue>,
    ahead: u64,
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
    /// Decides the call by `check`, which charges it, and which is called again when units may be available. `peek`
    /// decides the call without charging it.
    ///
    /// A call that arrives while no call is queued is checked at once, and is queued only if it is denied. So calls
    /// that only await their trips are not queued, and share their trips. A call that arrives while others are queued
    /// is queued at once, so that it does not overtake them. Returns `None` if the limiter is closed while the call is
    /// queued.
    pub(super) async fn until_decided<C, P>(
        &self,
        call: &mut CountedCall<'_>,
        check: impl Fn() -> C,
        peek: impl Fn() -> P,
    ) -> Result<Option<Decided>, RedisError>
    where
        C: Future<Output = Result<Decided, RedisError>>,
        P: Future<Output = Result<Decided, RedisError>>,
    {
        let Self { queues, link, key, places, .. } = *self;
        let arrived = link.now();
        let latest = arrived.saturating_add(self.max_wait);
        let mut retry = None;
        if !queues.0.contains_key(key) {
            let decided = check().await?;
            retry = self.retry(decided.decision(), latest);
            if retry.is_none() {
                return Ok(Some(decided));
            }
        }
        let place = queues.join(key);
        if place.ahead >= places {
            let peeked = peek().await?;
            let is_in_time =
                peeked.decision().is_allowed() || self.retry(peeked.decision(), latest).is_some();
            return Ok(Some(with_decision(peeked, |peeked| match is_in_time {
                true => with_queue_full(denied_behind(peeked)),
                false => denied_behind(peeked),
            })));
        }
        call.wait();
        let first = call.unless_closed(link.until(latest, place.queue.first.lock())).await;
        let Some(first) = first else { return Ok(None) };
        let Some(_first) = first else {
            return Ok(Some(with_decision(peek().await?, denied_behind)));
        };
        loop {
            if let Some(retry) = retry
                && call.unless_closed(link.sleep_until(retry)).await.is_none()
            {
                return Ok(None);
            }
            let decided = check().await?;
            retry = self.retry(decided.decision(), latest);
            if retry.is_none() {
                let waited = link.now().saturating_since(arrived);
                return Ok(Some(with_decision(decided, |decision| match decision.is_allowed() {
                    true => decision.with_delay(waited),
                    false => decision,
                })));
            }
        }
    }

    /// Returns the time at which a call with this decision is checked again. Returns `None` if the call is allowed or
    /// does not wait any longer.
    fn retry(&self, decision: &Decision, latest: Nanos) -> Option<Nanos> {
        if decision.is_allowed() || is_barred(decision) || decision.never_fits() {
            return None;
        }
        let wait = decision.retry_after().map(|wait| Nanos::from(wait).0).or(self.unknown_wait)?;
        Some(self.link.now().saturating_add(wait)).filter(|retry| *retry <= latest)
    }
}

/// Returns the denial of a call that must not overtake the calls that are queued before it. The call is denied even if
/// units are available. `peeked` is the decision without regard to the queued calls, so its wait is not that of the
/// call. The wait is unknown, unless it does not depend on the queued calls.
fn denied_behind(peeked: Decision) -> Decision {
    if is_barred(&peeked) || peeked.never_fits() {
        return peeked;
    }
    let reset = Nanos::from(peeked.reset_after()).0;
    Decision::deny(peeked.limit(), 0, None, reset).with_unknown_wait(true)
}

/// Returns the same result of a call, with another decision.
fn with_decision(decided: Decided, change: impl FnOnce(Decision) -> Decision) -> Decided {
    let (decision, reservation, info) = decided.into_parts();
    let decided = Decided::new(change(decision), reservation);
    match info {
        Some(info) => decided.with_info(info),
        None => decided,
    }
}

impl WaitQueues {
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
        let (places, max_wait) = (config.places(), max_wait.min(config.max_wait()));
        QueuedCall { queues: self, link, key, places, max_wait, unknown_wait }
    }

    fn join<'a>(&'a self, key: &'a Arc<str>) -> Place<'a> {
        let entry = self.0.entry(Arc::clone(key)).or_default();
        let ahead = entry.len.fetch_add(1, Ordering::AcqRel);
        let queue = Arc::clone(&entry);
        drop(entry);
        Place { queues: self, key, queue, ahead }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Places are added only while the entry is locked, as it is here.
        let dashmap::Entry::Occupied(entry) = self.queues.0.entry(Arc::clone(self.key)) else { return };
        if entry.get().len.fetch_sub(1, Ordering::AcqRel) == 1 {
            entry.remove();
        }
    }
}
