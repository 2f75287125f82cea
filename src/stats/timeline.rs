//! Counts of the recent past, slice by slice.

use std::array::from_fn;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::clock::{AnyClock, Nanos};
use crate::sys::thread_number::{THREADS, thread_number};

/// The maximum number of times that a reader reads a ring. After the last time, the reader returns what it has read,
/// even if counts were moved during the read.
const MAX_READS: u32 = 1_000;
/// The number of the first slice of time.
const FIRST: u64 = 1;

/// The recent counts of a policy: by default, one [`Slice`] for each of the last 60 seconds.
///
/// Pass a timeline to a layer with [`timeline`](crate::middleware::RateLimitLayer::timeline), keep a clone, and read
/// the clone at any time. Clones share the counts. A layer without a timeline does no work for these counts. A layer
/// with a timeline reads the timeline's clock twice for an admitted request, and once for a denied request. Threads
/// that share slices read the clock once more for each of these events.
///
/// ```
/// use tower_throttle::stats::Timeline;
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let last_minute = Timeline::new();
/// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).timeline(&last_minute);
/// // later
/// let total = last_minute.total();
/// println!("{} admitted, {} denied", total.admitted, total.denied);
/// println!("{:?} on average", total.mean_response_time());
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// ```
///
/// # Guarantees
///
/// Totals are exact on any number of threads. Up to 128 threads of the process at a time count without a lock, each in
/// slices of its own. If 128 other threads already count without a lock when a thread first counts, that thread counts
/// under a lock until it ends, in slices that all such threads share. If the clock steps back from one reading to an
/// earlier one, only the slices between these two readings may be lost.
///
/// # Memory
///
/// A timeline needs 17 KiB and, for each thread that has counted, 72 bytes for each slice. All threads that share
/// slices need these bytes only once. When a thread has ended, its slices are reused by the next thread that begins to
/// count.
#[derive(Clone)]
pub struct Timeline {
    shared: Arc<Rings>,
}

struct Rings {
    size: Size,
    clock: AnyClock,
    /// The counts of the threads that have numbers, indexed by these numbers.
    rings: [Ring; THREADS],
    /// The counts of all other threads.
    rest: Mutex<Ring>,
}

impl Timeline {
    /// Creates a timeline of 60 slices of one second.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Size { slices: 60, length: 1_000_000_000 }, AnyClock::default())
    }

    fn with(size: Size, clock: AnyClock) -> Self {
        let (rings, rest) = (from_fn(|_| Ring::new()), Mutex::new(Ring::new()));
        Self { shared: Arc::new(Rings { size, clock, rings, rest }) }
    }

    /// Returns a new timeline that covers `slices` slices, including the present slice. Values below 1 are raised to 1,
    /// and values above 3,600 are lowered to 3,600.
    #[must_use]
    pub fn slices(self, slices: usize) -> Self {
        Self::with(Size { slices: slices.clamp(1, 3_600), ..self.shared.size }, self.shared.clock.clone())
    }

    /// Returns a new timeline whose slices have this length. A length below one millisecond is raised to one
    /// millisecond.
    #[must_use]
    pub fn slice_length(self, length: Duration) -> Self {
        let length = Nanos::from(length).0.max(1_000_000);
        Self::with(Size { length, ..self.shared.size }, self.shared.clock.clone())
    }

    /// Returns a new timeline with another clock. In tests, use the clock of the limiter.
    #[must_use]
    pub fn clock(self, clock: impl Into<AnyClock>) -> Self {
        Self::with(self.shared.size, clock.into())
    }

    /// Returns the present reading of the clock.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// Counts an event at `now`.
    // This function is inlined, so that only the code for one kind of event is left.
    #[inline(always)]
    pub(crate) fn record(&self, now: Nanos, event: Event) {
        let Rings { rings, size, .. } = &*self.shared;
        match thread_number() {
            Some(number) => rings[number].add(now, event, size),
            None => self.record_without_number(event),
        }
    }

    /// Counts an event of a thread that has no number. The clock is read under the lock. Otherwise, a thread that takes
    /// the lock later could use an earlier reading. The ring would then see a clock that steps back, and could lose the
    /// counts of slices.
    #[cold]
    fn record_without_number(&self, event: Event) {
        let Rings { rest, size, .. } = &*self.shared;
        let ring = rest.lock().unwrap_or_else(PoisonError::into_inner);
        ring.add(self.now(), event, size);
    }

    /// Returns the slices that the timeline covers, from the oldest slice to the present slice, each with the clock
    /// reading at which the slice began. Slices without any event are left out.
    #[must_use]
    pub fn recent(&self) -> Vec<(Duration, Slice)> {
        let Rings { size: Size { slices, length }, rings, rest, .. } = &*self.shared;
        let newest = self.now().0 / length + FIRST;
        let oldest = (newest + 1).saturating_sub(*slices as u64);
        let mut found: Vec<(u64, Slice)> = Vec::new();
        let rest = rest.lock().unwrap_or_else(PoisonError::into_inner).read();
        for (number, slice) in rings.iter().flat_map(Ring::read).chain(rest) {
            if (oldest..=newest).contains(&number) {
                match found.iter_mut().find(|(known, _)| *known == number) {
                    Some((_, known)) => known.add(&slice),
                    None => found.push((number, slice)),
                }
            }
        }
        found.sort_by_key(|(number, _)| *number);
        let start = |number: u64| Duration::from_nanos((number - FIRST).saturating_mul(*length));
        found.into_iter().map(|(number, slice)| (start(number), slice)).collect()
    }

    /// Returns the sum of all [recent](Timeline::recent) slices.
    #[must_use]
    pub fn total(&self) -> Slice {
        self.recent().iter().fold(Slice::default(), |mut total, (_, slice)| {
            total.add(slice);
            total
        })
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("slices", &self.shared.size.slices).finish_non_exhaustive()
    }
}

/// The counts of a policy in one slice of time, or the sum of the counts in several slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Slice {
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that this policy denied, except in shadow mode.
    pub denied: u64,
    /// Admitted requests that had waited in a queue.
    pub queued: u64,
    /// Responses of the inner service, whatever their status.
    pub successes: u64,
    /// Errors of the inner service.
    pub errors: u64,
    /// Units that requests with priority have borrowed from the next window.
    pub borrowed: u64,
    response_nanos: u64,
    min_nanos: u64,
}

impl Slice {
    /// Returns the sum of the times that the inner service took, for the responses and errors of this slice.
    #[must_use]
    pub fn response_time(&self) -> Duration {
        Duration::from_nanos(self.response_nanos)
    }

    /// Returns the shortest time that the inner service took for a response or an error of this slice. Returns `None`
    /// if there was neither.
    #[must_use]
    pub fn min_response_time(&self) -> Option<Duration> {
        (self.min_nanos < u64::MAX).then(|| Duration::from_nanos(self.min_nanos))
    }

    /// Returns the mean time that the inner service took for the responses and errors of this slice. Returns `None` if
    /// there was neither.
    #[must_use]
    pub fn mean_response_time(&self) -> Option<Duration> {
        self.response_nanos.checked_div(self.successes + self.errors).map(Duration::from_nanos)
    }

    fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.denied += other.denied;
        self.queued += other.queued;
        self.successes += other.successes;
        self.errors += other.errors;
        self.borrowed += other.borrowed;
        self.response_nanos = self.response_nanos.saturating_add(other.response_nanos);
        self.min_nanos = self.min_nanos.min(other.min_nanos);
    }
}

impl Default for Slice {
    fn default() -> Self {
        EMPTY
    }
}

/// The counts of a slice without any event.
const EMPTY: Slice = Slice {
    admitted: 0,
    denied: 0,
    queued: 0,
    successes: 0,
    errors: 0,
    borrowed: 0,
    response_nanos: 0,
    min_nanos: u64::MAX,
};

/// An event that is counted. Response times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Admitted,
    /// The request was admitted after a wait in a queue. The value is the number of units that the request has borrowed
    /// from the next window.
    Waited(u64),
    Denied,
    Succeeded(u64),
    Failed(u64),
}

/// The number of slices of a ring, and the length of a slice in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Size {
    slices: usize,
    length: u64,
}

/// The latest slices in which one thread has counted. A ring shares no cache line with other data.
///
/// Only one thread at a time writes the counters, and any thread may read them. There is no lock: the thread adds by
/// plain loads and stores. The counts of the slice of the latest event are in `latest`, and the counts of the other
/// slices are in `others`. At the first event in another slice, the thread moves the counts in `latest` to `others`.
/// During this move, `moves` is odd. A reader reads again if `moves` was odd, or changed during the read.
#[derive(Debug)]
#[repr(align(128))]
struct Ring {
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
    const BYTES_PER_SLICE: usize = size_of::<Counters>();

    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { latest: Counters::new(FIRST), began: zero(), moves: zero(), others: OnceLock::new() }
    }

    /// Counts an event at `now`. No two threads may call this method on a ring at the same time, and the size must
    /// always be the same.
    // This function is inlined, so that only the code for one kind of event is left.
    #[inline(always)]
    fn add(&self, now: Nanos, event: Event, size: &Size) {
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
    fn read(&self) -> Vec<(u64, Slice)> {
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
            Event::Waited(borrowed) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const MS: Duration = Duration::from_millis(1);

    /// Returns a timeline of five slices of 200 ms, as Sentinel's tests have.
    fn timeline() -> (Timeline, ManualClock) {
        let clock = ManualClock::new();
        (Timeline::new().slices(5).slice_length(200 * MS).clock(clock.clone()), clock)
    }

    fn count(timeline: &Timeline, event: Event) {
        timeline.record(timeline.now(), event);
    }

    /// Returns the number of admitted requests in each slice.
    fn admitted(timeline: &Timeline) -> Vec<(u128, u64)> {
        timeline.recent().iter().map(|(start, slice)| (start.as_millis(), slice.admitted)).collect()
    }

    /// A slice begins at a multiple of its length, and counts all events of its time, as in the tests of Sentinel's
    /// `LeapArray`.
    #[test]
    fn events_of_one_slice_are_counted_together() {
        let (timeline, clock) = timeline();
        assert_eq!(admitted(&timeline), []);
        for at in [1_000, 1_001, 1_199, 1_200, 1_399] {
            clock.set(at * MS);
            count(&timeline, Event::Admitted);
        }
        assert_eq!(admitted(&timeline), [(1_000, 3), (1_200, 2)]);
        assert_eq!(timeline.total().admitted, 5);
    }

    /// The oldest slice is cleared and used for the new time, as in the tests of Sentinel's `LeapArray`.
    #[test]
    fn the_oldest_slice_is_overwritten() {
        let (timeline, clock) = timeline();
        for at in (0..3_000).step_by(100) {
            clock.set(at * MS);
            count(&timeline, Event::Admitted);
        }
        let expected = [(2_000, 2), (2_200, 2), (2_400, 2), (2_600, 2), (2_800, 2)];
        assert_eq!(admitted(&timeline), expected);
    }

    /// Slices that are too old are not listed, even if they have not been overwritten, as in the tests of Sentinel's
    /// `LeapArray`.
    #[test]
    fn slices_that_are_over_for_too_long_are_not_listed() {
        let (timeline, clock) = timeline();
        count(&timeline, Event::Admitted);
        clock.set(999 * MS);
        assert_eq!(admitted(&timeline), [(0, 1)]);
        clock.set(1_000 * MS);
        assert_eq!(admitted(&timeline), []);
        count(&timeline, Event::Admitted);
        assert_eq!(admitted(&timeline), [(1_000, 1)]);
    }

    /// The totals cover all slices, and the shortest response time is `None` without a response or an error, as in the
    /// tests of Sentinel's `ArrayMetric`.
    #[test]
    fn totals_sum_all_slices() {
        let (timeline, clock) = timeline();
        assert_eq!(timeline.total(), Slice::default());
        assert_eq!(
            (timeline.total().min_response_time(), timeline.total().mean_response_time()),
            (None, None)
        );
        for event in [Event::Admitted, Event::Denied, Event::Succeeded(30_000_000), Event::Waited(3)] {
            count(&timeline, event);
        }
        clock.set(700 * MS);
        for event in [Event::Failed(10_000_000), Event::Succeeded(20_000_000), Event::Denied] {
            count(&timeline, event);
        }
        let total = timeline.total();
        assert_eq!((total.admitted, total.denied, total.queued, total.borrowed), (2, 2, 1, 3));
        assert_eq!((total.successes, total.errors), (2, 1));
        assert_eq!((total.response_time(), total.min_response_time()), (60 * MS, Some(10 * MS)));
        assert_eq!(total.mean_response_time(), Some(20 * MS));
    }

    /// Eight threads count at the same time, and no event is lost, as in the tests of Sentinel's `BucketLeapArray`.
    #[test]
    fn threads_lose_no_event() {
        const EACH: u64 = 20_000;
        let (timeline, _clock) = timeline();
        for round in 1..=2 {
            let each = || {
                for _ in 0..EACH {
                    count(&timeline, Event::Admitted);
                    count(&timeline, Event::Succeeded(3));
                }
            };
            thread::scope(|scope| {
                let threads = [(); 8].map(|()| scope.spawn(each));
                for thread in threads {
                    thread.join().unwrap();
                }
            });
            let total = timeline.total();
            assert_eq!((total.admitted, total.successes), (8 * EACH * round, 8 * EACH * round));
            assert_eq!(total.response_nanos, 3 * 8 * EACH * round);
        }
    }

    /// Threads that have no number share slices, and no event is lost.
    #[test]
    fn threads_without_a_number_lose_no_event() {
        const EACH: u64 = 1_000;
        let (timeline, clock) = timeline();
        for at in [0, 200] {
            clock.set(at * MS);
            thread::scope(|scope| {
                for _ in 0..8 {
                    let count = || timeline.record_without_number(Event::Admitted);
                    scope.spawn(move || (0..EACH).for_each(|_| count()));
                }
            });
            count(&timeline, Event::Admitted);
        }
        assert_eq!(admitted(&timeline), [(0, 8 * EACH + 1), (200, 8 * EACH + 1)]);
    }

    /// The docs promise these sizes.
    #[test]
    fn a_thread_needs_72_bytes_for_each_slice() {
        assert_eq!((Ring::BYTES_PER_SLICE, size_of::<Ring>()), (72, 128));
    }

    /// Unless the clock steps back, a reader never gets counters that mix the counts of two slices of time.
    #[test]
    fn a_reader_sees_no_slice_that_is_half_overwritten() {
        let timeline = Timeline::new().slices(2).slice_length(MS);
        thread::scope(|scope| {
            let counting = scope.spawn(|| {
                for _ in 0..200_000 {
                    count(&timeline, Event::Waited(0));
                }
            });
            while !counting.is_finished() {
                for (_, slice) in timeline.recent() {
                    // `admitted` is counted before `queued`, and read before `queued`.
                    assert!(slice.admitted <= slice.queued + 1, "{slice:?}");
                }
            }
        });
    }

    #[test]
    fn a_clock_that_steps_back_loses_at_most_the_slices_that_it_crosses() {
        let (timeline, clock) = timeline();
        for at in [0, 200, 400, 600, 800] {
            clock.set(at * MS);
            count(&timeline, Event::Admitted);
        }
        clock.set(450 * MS);
        count(&timeline, Event::Admitted);
        assert_eq!(admitted(&timeline), [(0, 1), (200, 1), (400, 2)], "later ones are not listed");
        clock.set(800 * MS);
        assert_eq!(admitted(&timeline), [(0, 1), (200, 1), (400, 2), (600, 1), (800, 1)]);
        // The clock steps back further than the timeline reaches.
        clock.set(5_000 * MS);
        count(&timeline, Event::Admitted);
        clock.set(100 * MS);
        count(&timeline, Event::Admitted);
        assert_eq!(timeline.total().admitted, 1);
    }
}
