//! Starts the calls of a model and judges their results.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc;
use shuttle::thread;
use tower_throttle::clock::Nanos;

use super::clock::Time;
use super::queue_model::{INTERVAL, Line};

/// Counts the steps of the models, in the order in which they happen. The counting itself is not a step, because it
/// never yields to the scheduler.
#[derive(Clone, Default)]
pub(crate) struct Stamps(Arc<AtomicUsize>);

impl Stamps {
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// An admitted call. The fields say when it arrived, as far as this is known from outside, and how long it waited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    key: u64,
    joining: (usize, Nanos),
    joined: (usize, Nanos),
    pub(crate) delay: Duration,
}

impl Passed {
    fn earliest(&self) -> Nanos {
        self.joining.1.saturating_add(Nanos::from(self.delay).0)
    }

    fn latest(&self) -> Nanos {
        self.joined.1.saturating_add(Nanos::from(self.delay).0)
    }
}

/// Asserts that no call was admitted before its slot, or before a call that was in the queue when it arrived.
pub(crate) fn judge(passed: &[Passed]) {
    for one in passed {
        for other in passed.iter().filter(|other| other.key == one.key && other.joined.0 < one.joining.0) {
            assert!(other.earliest() <= one.latest(), "overtaken: {other:?} by {one:?}");
        }
        // The slot at zero is already taken.
        let mut leave: Vec<_> =
            passed.iter().filter(|other| other.key == one.key).map(Passed::latest).collect();
        leave.sort();
        for (slot, left) in (1..).zip(leave) {
            assert!(left >= Nanos::from(INTERVAL * slot), "too early: {left:?} in {passed:?}");
        }
    }
}

/// The limiter and the clock of a model, and the log of its calls.
#[derive(Clone)]
pub(crate) struct Stage<L, C> {
    pub(crate) line: L,
    pub(crate) clock: C,
    stamps: Stamps,
}

impl<L: Line, C: Time> Stage<L, C> {
    /// Uses the slot at zero of each key.
    pub(crate) fn new(line: impl Fn(C) -> L, keys: &[u64]) -> Self {
        let clock = C::new();
        let line = line(clock.clone());
        keys.iter().for_each(|key| assert!(line.check(*key)));
        Self { line, clock, stamps: Stamps::default() }
    }

    /// Starts a call, in a thread, that waits until it is admitted. The call reports when it is queued, and when it is
    /// admitted.
    pub(crate) fn stays(&self, key: u64, tells: mpsc::Sender<Step>) -> thread::JoinHandle<Passed> {
        let Self { line, clock, stamps } = self.clone();
        thread::spawn(move || {
            let mut call = Box::pin(line.join(key));
            let now = clock.now();
            let joining = (stamps.next(), now);
            // A different task polls the call later.
            let first = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let stamp = stamps.next();
            let joined_at = (stamp, clock.now());
            tells.send(Step::Joined).unwrap();
            let delay = match first {
                Poll::Ready(delay) => delay,
                Poll::Pending => block_on(call),
            };
            // The receiver may have been dropped.
            let _ = tells.send(Step::Left);
            Passed { key, joining, joined: joined_at, delay }
        })
    }

    /// Starts a call that is dropped after some polls, unless it is admitted before.
    pub(crate) fn quits(&self, key: u64) -> thread::JoinHandle<Option<Passed>> {
        let Self { line, clock, stamps } = self.clone();
        thread::spawn(move || {
            let polls = thread_rng().gen_range(0..3);
            let mut call = pin!(line.join(key));
            let now = clock.now();
            let joining = (stamps.next(), now);
            let delay = block_on(poll_fn(|cx| {
                let polled = (0..polls).find_map(|_| match call.as_mut().poll(cx) {
                    Poll::Ready(delay) => Some(delay),
                    Poll::Pending => None,
                });
                Poll::Ready(polled)
            }))?;
            let stamp = stamps.next();
            Some(Passed { key, joining, joined: (stamp, clock.now()), delay })
        })
    }

    /// Advances the clock to the next slot of each key. If no timer fires, touches each queue, so that it admits.
    pub(crate) fn turn(&self, keys: &[u64]) {
        self.clock.tick(INTERVAL);
        if !C::RINGS {
            keys.iter().for_each(|key| self.line.touch(*key));
        }
    }

    /// Asserts that all slots until now are used, and that the next slot is one interval from now.
    pub(crate) fn ends(&self, keys: &[u64]) {
        for key in keys {
            assert!(!self.line.check(*key), "a slot was not charged");
        }
        self.clock.tick(INTERVAL);
        for key in keys {
            assert!(self.line.check(*key), "a slot was lost");
            assert!(!self.line.check(*key), "a slot was given twice");
        }
    }
}

/// The outcomes of the calls that are not cancelled.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Step {
    Joined,
    Left,
}

/// The number of calls that have reported each step.
#[derive(Default)]
pub(crate) struct Progress {
    joined: usize,
    left: usize,
}

impl Progress {
    pub(crate) fn wait(&mut self, reported: &mpsc::Receiver<Step>, joined: usize, left: usize) {
        while self.joined < joined || self.left < left {
            match reported.recv().unwrap() {
                Step::Joined => self.joined += 1,
                Step::Left => self.left += 1,
            }
        }
        assert!(self.left <= self.joined);
    }
}

pub(crate) fn all<T: 'static>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}
