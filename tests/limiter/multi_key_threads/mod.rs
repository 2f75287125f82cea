//! Many threads that use several keys at once, in every order. The totals are exact, and there is no deadlock.

mod deadlocks;
mod full_table;
mod totals;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tower::Service;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

use crate::support::{Now, ends_within, on_threads};

const THREADS: u64 = 8;

/// Runs `test`. If `test` does not end, fails instead of hanging.
fn watched(test: impl FnOnce() + Send + 'static) {
    ends_within(Duration::from_secs(120), test);
}

/// Calls `run` in eight threads at once, with the number of the thread.
fn at_once(run: impl Fn(u64) + Sync) {
    on_threads(THREADS, run);
}

fn frozen<A: Algorithm>(algorithm: A, max_keys: usize) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).max_keys(max_keys).build()
}

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

/// A request with a key for each layer.
type Keys = [u64; 3];

type Key<const AT: usize> = fn(&Keys) -> Option<u64>;

fn key<const AT: usize>(keys: &Keys) -> Option<u64> {
    Some(keys[AT])
}

/// Returns whether the service admits the call. The call must not be queued.
fn passes<S: Service<Keys>>(service: &mut S, keys: Keys) -> bool {
    service.call(keys).now().is_ok()
}

/// Returns `first.and(second)`. The first limiter has the first key of a request, and the second limiter has the second
/// key.
macro_rules! both {
    ($first:expr, $second:expr) => {{
        let first = RateLimitLayer::with_limiter(from_fn(key::<0> as Key<0>), $first.clone());
        let second = RateLimitLayer::with_limiter(from_fn(key::<1> as Key<1>), $second.clone());
        let layers = first.and(second).responder(ErrorResponder);
        layers.layer(service_fn(async |_: Keys| Ok::<_, ()>(())))
    }};
}
use both;

/// The units that admitted calls have used, for each limiter and key.
#[derive(Default)]
struct Ledger(Mutex<HashMap<(char, u64), u64>>);

impl Ledger {
    fn note(&self, passed: &[(char, u64)]) {
        let mut ledger = self.0.lock().unwrap();
        for entry in passed {
            *ledger.entry(*entry).or_default() += 1;
        }
    }

    fn used(&self, limiter: char, key: u64) -> u64 {
        self.0.lock().unwrap().get(&(limiter, key)).copied().unwrap_or(0)
    }
}
