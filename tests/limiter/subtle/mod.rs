//! Combined algorithms, queues, and joint calls. There are single cases that once failed, checks of reports against
//! later calls, queues that are replayed, models computed by hand, and stress tests.

mod cases;
mod extremes;
mod joint;
mod queues;
mod reports;
mod threads;
mod tiers;
mod world;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::*;
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::{FromFn, from_fn};
use tower_throttle::limiter::Acquire;
use tower_throttle::limiter::OnFull;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, Random, effective_window, scaled};

type Held<A> = Pin<Box<Acquire<A>>>;

fn on<A: Algorithm>(rule: A) -> (ManualClock, RateLimiter<A>) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
    (clock, limiter)
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn waits<A: Algorithm>(call: Acquire<A>) -> Held<A> {
    let mut call = Box::pin(call);
    assert!(poll(&mut call).is_none(), "it should wait");
    call
}

fn now<A: Algorithm>(call: Acquire<A>) -> Decision {
    poll(&mut Box::pin(call)).expect("decided at once")
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn nanos(d: Duration) -> u64 {
    d.as_nanos() as u64
}

const UNIT: u64 = 1_000;

fn quota(r: &mut Random) -> Quota {
    let limit = r.within(1..=6);
    let period = r.one_of(&[1, 3, 7, 10, 100]) * r.one_of(&[1, 10, UNIT]);
    Quota::per(limit, Duration::from_nanos(period.max(2))).unwrap().burst(r.within(1..=6))
}

fn block<A: Algorithm>(rule: A, r: &mut Random) -> Lockout<A> {
    let rule = Algorithm::block_for(rule, Duration::from_nanos(r.one_of(&[1, 5, 50, 500, 20 * UNIT])))
        .after(r.within(1..=4));
    if r.one_in(3) { rule.extend_on_retry() } else { rule }
}

const N: u64 = 10_000;

/// The failures of a random test: for each kind, their number and the shortest text.
#[derive(Default)]
struct Failures<'a>(BTreeMap<&'a str, (u64, String)>);

impl<'a> Failures<'a> {
    fn add(&mut self, kind: &'a str, text: String) {
        let (count, shortest) = self.0.entry(kind).or_insert_with(|| (0, text.clone()));
        *count += 1;
        if text.len() < shortest.len() {
            *shortest = text;
        }
    }

    /// Prints the failures, and panics if there are any.
    fn assert_none(&self, name: &str) {
        for (kind, (count, text)) in &self.0 {
            println!("=== {kind} x {count}\n{text}");
        }
        assert!(self.0.is_empty(), "{name}");
    }
}
