//! Each algorithm with its model.

use std::time::Duration;

use tower_throttle::algorithm::{
    FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};

use super::config::Rule;
use super::model::{Bucket, Counter, Fixed, Leaky, Sliding, Smooth as Paced};
use super::scenario::Setup;

pub(crate) fn token_bucket(rule: &Rule) -> TokenBucket {
    TokenBucket::new(rule.quota())
}

pub(crate) fn fixed_window(rule: &Rule) -> FixedWindow {
    let window = FixedWindow::new(rule.quota());
    if rule.aligned { window.aligned() } else { window }
}

pub(crate) fn sliding_window(rule: &Rule) -> SlidingWindow {
    SlidingWindow::new(rule.quota()).slices(rule.slices as usize)
}

pub(crate) fn sliding_log(rule: &Rule) -> SlidingLog {
    SlidingLog::new(rule.quota())
}

pub(crate) fn sliding_counter(rule: &Rule) -> SlidingCounter {
    SlidingCounter::new(rule.quota())
}

pub(crate) fn leaky_bucket(rule: &Rule) -> LeakyBucket {
    LeakyBucket::new(rule.quota())
}

pub(crate) fn smooth(rule: &Rule) -> Smooth {
    let Some(warm_up) = rule.warm_up else { return Smooth::bursty(rule.quota()) };
    let factor = rule.cold_factor as f64 / 1_024.0;
    Smooth::warming_up(rule.quota(), Duration::from_nanos(warm_up)).cold_factor(factor)
}

pub(crate) fn bucket(setup: &Setup) -> Bucket {
    Bucket::full(&setup.rule, setup.start)
}

pub(crate) fn fixed(setup: &Setup) -> Fixed {
    Fixed::new(&setup.rule, setup.start)
}

pub(crate) fn sliced(setup: &Setup) -> Sliding {
    Sliding::sliced(&setup.rule, setup.start)
}

pub(crate) fn log(setup: &Setup) -> Sliding {
    Sliding::exact(&setup.rule, setup.start)
}

pub(crate) fn counter(setup: &Setup) -> Counter {
    Counter::new(&setup.rule, setup.start)
}

pub(crate) fn leaky(setup: &Setup) -> Leaky {
    Leaky::new(&setup.rule, setup.start)
}

pub(crate) fn paced(setup: &Setup) -> Paced {
    Paced::new(&setup.rule, setup.created_at, setup.start)
}
