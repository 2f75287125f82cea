//! Each algorithm gets random numbers and queue settings, and has a naive model.

use tower_throttle::Quota;
use tower_throttle::algorithm::*;

use super::line::QueueConfig;
use super::naive_queue::{Bucket, Bursty, Leaky, Naive, window};
use super::{SECOND, ns, quota};
use crate::oracle::model::{Counter, Fixed, Sliding};
use crate::support::Random;

/// The queue settings of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) places: Option<u64>,
    pub(super) max_wait: Option<u64>,
    pub(super) drops_oldest: bool,
}

impl Wish {
    fn any(random: &mut Random, period: u64) -> Self {
        let places = (!random.one_in(4)).then(|| random.below(6));
        let max_wait = random.one_in(2).then(|| random.below(period * 3));
        Self { places, max_wait, drops_oldest: random.one_in(3) }
    }

    /// Returns the settings for an algorithm whose queue has `default` places, unless another number is set.
    fn of_queue(self, default: u64) -> QueueConfig {
        let Self { places, max_wait, drops_oldest } = self;
        QueueConfig { places: places.unwrap_or(default), max_wait, drops_oldest }
    }

    /// Returns the settings for all other algorithms. Any number of calls can wait, unless the queue is bounded.
    fn of(self, default: u64) -> QueueConfig {
        let is_set = self.max_wait.is_some() || self.drops_oldest;
        self.of_queue(if is_set { default } else { u64::MAX })
    }
}

/// Returns the settings of a tuple: the shorter queue, and the shorter `max_wait`.
pub(super) fn both(one: QueueConfig, other: QueueConfig) -> QueueConfig {
    let max_wait = match (one.max_wait, other.max_wait) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let drops_oldest = one.drops_oldest && other.drops_oldest;
    QueueConfig { places: one.places.min(other.places), max_wait, drops_oldest }
}

macro_rules! reported {
    ($rule:expr, $wish:expr) => {{
        let (mut rule, wish) = ($rule, $wish);
        if let Some(places) = wish.places {
            rule = rule.queue(places);
        }
        if let Some(max_wait) = wish.max_wait {
            rule = rule.max_wait(ns(max_wait));
        }
        if wish.drops_oldest {
            rule = rule.overflow(QueueOverflow::DropOldest);
        }
        rule
    }};
}

/// Small numbers, so that all edges are hit.
pub(super) struct Numbers {
    pub(super) limit: u64,
    pub(super) period: u64,
    pub(super) burst: u64,
    pub(super) wish: Wish,
}

impl Numbers {
    pub(super) fn any(random: &mut Random) -> Self {
        let period = random.one_of(&[7, 10, 12, 60, 100]);
        let (limit, burst) = (random.within(1..=6), random.within(1..=6));
        Self { limit, period, burst, wish: Wish::any(random, period) }
    }

    /// Returns parameters with which each unit takes a whole number of nanoseconds.
    pub(super) fn whole(random: &mut Random) -> Self {
        let mut numbers = Self::any(random);
        numbers.period = numbers.period.next_multiple_of(numbers.limit);
        numbers
    }

    /// Returns the same numbers with a period of milliseconds. A step of the clock is then a stall, after which slots
    /// are overdue by more than 5 ms.
    pub(super) fn slowed(mut self) -> Self {
        self.period *= 1_000_000;
        self.wish.max_wait = self.wish.max_wait.map(|wait| wait * 1_000_000);
        self
    }

    fn quota(&self) -> Quota {
        quota(self.limit, self.period).burst(self.burst)
    }

    pub(super) fn bucket(&self, empty: bool) -> (TokenBucket, Naive, QueueConfig) {
        let bucket = reported!(TokenBucket::new(self.quota()), self.wish);
        let bucket = if empty { bucket.start_empty() } else { bucket };
        let naive = Bucket::new(self.limit, self.period, self.burst, empty);
        (bucket, Naive::Bucket(naive), self.wish.of(self.burst))
    }

    pub(super) fn leaky(&self) -> (LeakyBucket, Naive, QueueConfig) {
        let bucket = reported!(LeakyBucket::new(self.quota()), self.wish);
        (bucket, Naive::Leaky(Leaky::new(self.limit, self.period)), self.wish.of_queue(self.burst))
    }

    pub(super) fn fixed(&self, aligned: bool) -> (FixedWindow, Naive, QueueConfig) {
        let rule = reported!(FixedWindow::new(self.quota()), self.wish);
        let rule = if aligned { rule.aligned() } else { rule };
        let naive = Fixed::new(&window(self.limit, self.period, 1, aligned), 0);
        (rule, Naive::Fixed(naive), self.wish.of(self.limit))
    }

    pub(super) fn sliced(&self, slices: u64) -> (SlidingWindow, Naive, QueueConfig) {
        let rule = reported!(SlidingWindow::new(self.quota()).slices(slices as usize), self.wish);
        let naive = Sliding::sliced(&window(self.limit, self.period, slices, false), 0);
        (rule, Naive::Sliding(naive), self.wish.of(self.limit))
    }

    pub(super) fn log(&self) -> (SlidingLog, Naive, QueueConfig) {
        let rule = reported!(SlidingLog::new(self.quota()), self.wish);
        let naive = Sliding::exact(&window(self.limit, self.period, 1, false), 0);
        (rule, Naive::Sliding(naive), self.wish.of(self.limit))
    }

    pub(super) fn counter(&self) -> (SlidingCounter, Naive, QueueConfig) {
        let rule = reported!(SlidingCounter::new(self.quota()), self.wish);
        let naive = Counter::new(&window(self.limit, self.period, 1, false), 0);
        (rule, Naive::Counter(naive), self.wish.of(self.limit))
    }

    /// The interval is a whole number of nanoseconds, and the period is one second, because the limiter stores one
    /// second.
    pub(super) fn bursty(&self, random: &mut Random) -> (Smooth, Naive, QueueConfig, u64) {
        let limit = random.one_of(&[1, 2, 4, 5, 8]);
        let wish = Wish::any(random, SECOND);
        let rule = reported!(Smooth::bursty(quota(limit, SECOND)), wish);
        (rule, Naive::Bursty(Bursty::new(SECOND / limit)), wish.of_queue(limit), SECOND / limit / 4)
    }
}
