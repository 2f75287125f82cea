//! The counters of one thread: a set of counters for each slice of time. Only that thread writes the counters, and any
//! thread may read them.
//!
//! There is no lock: the thread adds by plain loads and stores. At its first event in a new slice of time, the thread
//! overwrites an old set of counters: it sets the number of the set to [`NONE`], clears the counters, and then sets the
//! number of the new slice. A reader reads the number before and after the counters. If the number has changed, the
//! reader discards the counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::slice::{Event, Slice};
use crate::clock::Nanos;

/// The number of a set of counters that is not in use, or is being overwritten. Slices of time have numbers from 1 on.
const NONE: u64 = 0;

/// The set of counters of one slice of time.
#[derive(Debug)]
struct Counters {
    /// The number of the slice of time that is counted here: 1 for the first slice of the clock, 2 for the next, and so
    /// on.
    number: AtomicU64,
    admitted: AtomicU64,
    denied: AtomicU64,
    queued: AtomicU64,
    successes: AtomicU64,
    errors: AtomicU64,
    borrowed: AtomicU64,
    response_time: AtomicU64,
    min_response_time: AtomicU64,
}

impl Counters {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            number: AtomicU64::new(NONE),
            admitted: zero(),
            denied: zero(),
            queued: zero(),
            successes: zero(),
            errors: zero(),
            borrowed: zero(),
            response_time: zero(),
            min_response_time: AtomicU64::new(u64::MAX),
        }
    }

    /// Clears the counters, and begins the slice of time `number`.
    #[cold]
    fn begin(&self, number: u64) {
        self.number.store(NONE, Ordering::Relaxed);
        fence(Ordering::Release);
        let Self { admitted, denied, queued, successes, errors, borrowed, response_time, .. } = self;
        for counter in [admitted, denied, queued, successes, errors, borrowed, response_time] {
            counter.store(0, Ordering::Relaxed);
        }
        self.min_response_time.store(u64::MAX, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
    }

    #[inline]
    fn add(&self, event: Event) {
        match event {
            Event::Admitted => add(&self.admitted, 1),
            Event::Released(borrowed) => {
                add(&self.admitted, 1);
                add(&self.queued, 1);
                add(&self.borrowed, borrowed);
            }
            Event::Denied => add(&self.denied, 1),
            Event::Succeeded(time) => self.add_response(&self.successes, time),
            Event::Failed(time) => self.add_response(&self.errors, time),
        }
    }

    #[inline]
    fn add_response(&self, counter: &AtomicU64, time: u64) {
        add(counter, 1);
        add(&self.response_time, time);
        if time < self.min_response_time.load(Ordering::Relaxed) {
            self.min_response_time.store(time, Ordering::Relaxed);
        }
    }

    /// Returns the number of the slice of time, and its counts. Returns `None` if the set of counters is not in use, or
    /// is overwritten during the read.
    fn read(&self) -> Option<(u64, Slice)> {
        let number = self.number.load(Ordering::Acquire);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let slice = Slice {
            admitted: read(&self.admitted),
            denied: read(&self.denied),
            queued: read(&self.queued),
            successes: read(&self.successes),
            errors: read(&self.errors),
            borrowed: read(&self.borrowed),
            response_nanos: read(&self.response_time),
            min_nanos: read(&self.min_response_time),
        };
        fence(Ordering::Acquire);
        (number != NONE && self.number.load(Ordering::Relaxed) == number).then_some((number, slice))
    }
}

/// Adds to a counter that only the present thread changes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// The latest slices in which one thread has counted.
#[derive(Debug)]
pub(super) struct Ring {
    slices: Box<[Counters]>,
    /// The length of a slice, in nanoseconds.
    length: u64,
    /// The index of the counters of the latest event, and the clock reading at which their slice of time began. At
    /// first, the index is out of range. Only the thread of the ring uses both fields.
    latest: AtomicUsize,
    began: AtomicU64,
}

impl Ring {
    pub(super) fn new(slices: usize, length: u64) -> Self {
        let slices: Box<[_]> = (0..slices).map(|_| Counters::new()).collect();
        Self { latest: AtomicUsize::new(slices.len()), began: AtomicU64::new(0), slices, length }
    }

    /// Counts an event at `now`. Only one thread may call this method on a ring.
    #[inline]
    pub(super) fn add(&self, now: Nanos, event: Event) {
        // If `now` is before the slice, the difference wraps, and is above the length.
        let is_within = now.0.wrapping_sub(self.began.load(Ordering::Relaxed)) < self.length;
        match self.slices.get(self.latest.load(Ordering::Relaxed)) {
            Some(slice) if is_within => slice.add(event),
            _ => self.turn_to(now).add(event),
        }
    }

    /// Returns the counters of the slice at `now`, which later events use as well.
    #[cold]
    fn turn_to(&self, now: Nanos) -> &Counters {
        let number = now.0 / self.length;
        let at = (number % self.slices.len() as u64) as usize;
        let slice = &self.slices[at];
        if slice.number.load(Ordering::Relaxed) != number + 1 {
            slice.begin(number + 1);
        }
        self.latest.store(at, Ordering::Relaxed);
        self.began.store(number * self.length, Ordering::Relaxed);
        slice
    }

    /// Returns the slices, each with its number, in any order.
    pub(super) fn read(&self) -> impl Iterator<Item = (u64, Slice)> {
        self.slices.iter().filter_map(Counters::read)
    }
}
