//! The counters in which one thread at a time counts: a set of counters for each slice of time. Only that thread writes
//! the counters, and any thread may read them.
//!
//! There is no lock: the thread adds by plain loads and stores. The counts of the slice of the latest event are in
//! `latest`, and the counts of the other slices are in `others`. At the first event in another slice, the thread moves
//! the counts in `latest` to `others`. During this move, `moves` is odd. A reader reads again if `moves` was odd, or
//! changed during the read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;

use super::slice::{EMPTY, Event, Slice};
use crate::clock::Nanos;

/// The maximum number of times that a reader reads a ring. After the last time, the reader returns what it has read,
/// even if counts were moved during the read.
const MAX_READS: u32 = 1_000;
/// The number of the first slice of time.
pub(super) const FIRST: u64 = 1;

/// The number of slices of a ring, and the length of a slice in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) slices: usize,
    pub(super) length: u64,
}

/// The set of counters of one slice of time.
#[derive(Debug)]
struct Counters {
    /// The number of the slice of time that is counted here: 1 for the first slice of the clock, 2 for the next, and so
    /// on. 0 if no slice is counted here.
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
    fn new(number: u64) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            number: AtomicU64::new(number),
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

    fn write(&self, number: u64, slice: &Slice) {
        self.number.store(number, Ordering::Relaxed);
        self.admitted.store(slice.admitted, Ordering::Relaxed);
        self.denied.store(slice.denied, Ordering::Relaxed);
        self.queued.store(slice.queued, Ordering::Relaxed);
        self.successes.store(slice.successes, Ordering::Relaxed);
        self.errors.store(slice.errors, Ordering::Relaxed);
        self.borrowed.store(slice.borrowed, Ordering::Relaxed);
        self.response_time.store(slice.response_nanos, Ordering::Relaxed);
        self.min_response_time.store(slice.min_nanos, Ordering::Relaxed);
    }

    #[inline(always)]
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

    /// Returns the number of the slice of time, and its counts.
    fn read(&self) -> (u64, Slice) {
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
        (read(&self.number), slice)
    }
}

/// Adds to a counter that only the present thread changes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// The latest slices in which one thread has counted. A ring shares no cache line with other data.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Ring {
    /// The counts of the slice of the latest event or, before the first event, of the clock's first slice.
    latest: Counters,
    /// The clock reading at which the slice of `latest` began.
    began: AtomicU64,
    /// The number of times that a move of counts has begun or ended.
    moves: AtomicU64,
    /// The counts of the other slices. This list is created when counts are first moved.
    others: OnceLock<Box<[Counters]>>,
}

impl Ring {
    #[cfg(test)]
    pub(super) const BYTES_PER_SLICE: usize = size_of::<Counters>();

    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { latest: Counters::new(FIRST), began: zero(), moves: zero(), others: OnceLock::new() }
    }

    /// Counts an event at `now`. No two threads may call this method on a ring at the same time, and the size must
    /// always be the same.
    // This function is inlined, so that only the code for one kind of event is left.
    #[inline(always)]
    pub(super) fn add(&self, now: Nanos, event: Event, size: &Size) {
        // If `now` is before the slice, the difference wraps, and so exceeds the length.
        if now.0.wrapping_sub(self.began.load(Ordering::Relaxed)) >= size.length {
            self.turn_to(now, size);
        }
        self.latest.add(event);
    }

    /// Makes the slice at `now` the latest one.
    #[cold]
    fn turn_to(&self, now: Nanos, size: &Size) {
        let number = now.0 / size.length + FIRST;
        let others = self.others.get_or_init(|| (0..size.slices).map(|_| Counters::new(0)).collect());
        let place = |number: u64| &others[(number % size.slices as u64) as usize];
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let (old, counts) = self.latest.read();
        place(old).write(old, &counts);
        // If the clock has stepped back to a slice with counts, counting continues from these counts.
        let (known, counts) = place(number).read();
        self.latest.write(number, if known == number { &counts } else { &EMPTY });
        if known == number {
            place(number).write(number, &EMPTY);
        }
        self.began.store((number - FIRST) * size.length, Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(2), Ordering::Release);
    }

    /// Returns the slices that have counts, each with its number, in any order. If counts are moved during each of
    /// [`MAX_READS`] reads, a slice may be missing or be returned twice.
    pub(super) fn read(&self) -> Vec<(u64, Slice)> {
        for attempt in 1.. {
            let moves = self.moves.load(Ordering::Acquire);
            let sets = self.others.get().into_iter().flatten().chain([&self.latest]);
            let read: Vec<_> = sets.map(Counters::read).filter(|(_, slice)| *slice != EMPTY).collect();
            fence(Ordering::Acquire);
            let is_whole = moves.is_multiple_of(2) && self.moves.load(Ordering::Relaxed) == moves;
            if is_whole || attempt == MAX_READS {
                return read;
            }
            thread::yield_now();
        }
        unreachable!("the last attempt returns")
    }
}
