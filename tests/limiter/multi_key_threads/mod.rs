//! Many threads that use several keys at once, in every order. The totals are exact, and there is no deadlock.

mod deadlocks;
mod full_table;
mod totals;

use std::collections::HashMap;
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tower::Service;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

use crate::support::PolledByHand;

const THREADS: usize = 8;

/// Runs `test` in a thread of its own. If `test` does not end, fails instead of hanging.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let runs = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("threads wait for each other"),
        _ => runs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Calls `run` in eight threads at once, with the number of the thread.
fn at_once(run: impl Fn(usize) + Sync) {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (start, run) = (&start, &run);
            scope.spawn(move || {
                start.wait();
                run(number);
            });
        }
    });
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
    let mut call = PolledByHand::new(service.call(keys));
    assert!(call.poll(), "no call is queued");
    call.output.unwrap().is_ok()
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
