//! The layer with a queue between tower's own layers, which reserve services, pass them on and cancel calls. In random
//! schedules, no wakeup is lost, and no reservation is lost.
//!
//! The clock is tokio's paused clock. A `ManualClock` would wake all waiters at each step, and so hide lost wakeups. A
//! schedule polls a task only if its waker was woken, as an executor does.

mod callers;
mod checks;
mod orders;
mod schedule;
mod stack;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;
use tower::{BoxError, Service};

const MS: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(4);

type Job = usize;
type Answer<'a> = Pin<Box<dyn Future<Output = Result<Job, BoxError>> + Send + 'a>>;

/// The service of jobs that each layer of a stack is.
trait Jobs: Service<Job, Response = Job, Error = BoxError, Future: Send> + Clone + Send + 'static {}

impl<S> Jobs for S where
    S: Service<Job, Response = Job, Error = BoxError, Future: Send> + Clone + Send + 'static
{
}

/// The record of a call.
#[derive(Clone, Copy, Debug)]
struct Call {
    made: Instant,
    /// The time at which the call arrived at the layer.
    came: Option<Instant>,
    /// The time at which the layer called the inner service.
    left: Option<Instant>,
    rejected: bool,
}

/// What is observed of a stack: in front of the layer, behind the layer, and in the innermost service.
#[derive(Debug)]
struct World {
    calls: Vec<Call>,
    /// The calls in the order in which they arrived at the layer.
    came: Vec<Job>,
    places: usize,
    /// `true` if every woken task is polled at once. Then the expected queue and its next slot are known.
    exact: bool,
    line: VecDeque<Job>,
    next: Instant,
    /// The readiness of the innermost service, and the tasks that wait for it.
    open: bool,
    callers: Vec<Waker>,
    /// The calls that the innermost service works on, and the maximum number of these calls.
    working: BTreeMap<Job, Work>,
    most: usize,
    /// `true` if, from now on, the innermost service answers at once.
    hurries: bool,
}

#[derive(Debug, Default)]
struct Work {
    done: bool,
    waker: Option<Waker>,
}

impl World {
    /// Records that a call arrives at the layer.
    fn comes(&mut self, job: Job) {
        let now = Instant::now();
        self.came.push(job);
        self.calls[job].came = Some(now);
        let passes = self.line.is_empty() && self.next <= now;
        if passes || self.line.len() < self.places {
            self.line.push_back(job);
        } else {
            self.calls[job].rejected = true;
        }
    }

    /// Records that the layer calls the inner service.
    fn leaves(&mut self, job: Job) {
        let now = Instant::now();
        let again = self.calls[job].left.replace(now);
        assert_eq!(again, None, "{job} is called twice");
        if self.exact {
            assert_eq!(self.line.pop_front(), Some(job), "it leaves before another");
            let slot = self.next.max(self.calls[job].came.unwrap());
            assert_eq!(now, slot, "{job} does not leave at its slot");
            self.next = slot + INTERVAL;
        }
    }

    /// Records the end of a call, whatever its result.
    fn ends(&mut self, job: Job) {
        self.line.retain(|other| *other != job);
    }

    /// Asserts that no call is still queued after its slot.
    fn assert_no_call_is_late(&self) {
        let late = self.line.front().filter(|_| self.next <= Instant::now());
        assert!(!self.exact || late.is_none(), "{late:?} is still queued");
    }

    /// Asserts that each admitted call had a slot of its own at that time, in the order of arrival.
    fn assert_slots(&self) {
        let mut free = None;
        for job in &self.came {
            let Call { came: Some(came), left: Some(left), .. } = self.calls[*job] else { continue };
            let slot = free.map_or(came, |free| came.max(free));
            assert!(left >= slot, "{job} left {:?} before its slot", slot - left);
            free = Some(slot + INTERVAL);
        }
    }

    /// Returns how many calls have arrived at the layer, and how many have left it.
    fn progress(&self) -> (usize, usize) {
        (self.came.len(), self.calls.iter().filter(|call| call.left.is_some()).count())
    }

    fn set_open(&mut self, open: bool) -> Vec<Waker> {
        self.open = open;
        if open { std::mem::take(&mut self.callers) } else { Vec::new() }
    }
}

#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<World>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
