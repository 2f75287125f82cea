//! The times of the parts of a check, and of checks that wait for a lock.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::clock::{AnyClock, ManualClock, Nanos};
use tower_throttle::limiter::Acquire;
use tower_throttle::{Quota, RateLimiter};

use super::report::print;
use super::{PEER, ours};
use crate::check::{Quotas, Subject, governor, keys};
use crate::interleave::{Contestant, Rounds};
use crate::table;
use crate::tsc::TscClock;

/// Prints the time in which a call in the middle of a long queue is cancelled and another call arrives, for each call
/// that waits.
pub fn cancellations() {
    let quota = Quota::per_second(1);
    let rows: Vec<_> = [100_u32, 1_000, 10_000]
        .into_iter()
        .map(|waiting| {
            let places = u64::from(waiting) * 2;
            let window = SlidingWindow::new(quota).queue(places).max_wait(Duration::MAX);
            vec![
                waiting.to_string(),
                cancelled(&LeakyBucket::new(quota).queue(places).max_wait(Duration::MAX), waiting),
                cancelled(&TokenBucket::new(quota).queue(places).max_wait(Duration::MAX), waiting),
                cancelled(&FixedWindow::new(quota).queue(places).max_wait(Duration::MAX), waiting),
                cancelled(&window, waiting),
            ]
        })
        .collect();
    let head = ["waiting", "LeakyBucket", "TokenBucket", "FixedWindow", "SlidingWindow"];
    table::print("a cancelled call and a new one, for each call that waits", &head, &rows);
}

fn cancelled<A: Algorithm + Clone>(algorithm: &A, waiting: u32) -> String {
    const TRIES: usize = 51;
    let poll = |call: &mut Pin<Box<Acquire<A>>>| {
        _ = Future::poll(call.as_mut(), &mut Context::from_waker(Waker::noop()));
    };
    let once = |_| {
        let limiter = RateLimiter::builder(algorithm.clone()).clock(ManualClock::new()).build();
        let mut calls: Vec<_> = (0..waiting).map(|_| Box::pin(limiter.acquire(&()))).collect();
        calls.iter_mut().for_each(poll);
        // The call that arrives next finds the queue without the cancelled call.
        let (middle, mut next) = (calls.swap_remove(calls.len() / 2), Box::pin(limiter.acquire(&())));
        let started = Instant::now();
        drop(middle);
        poll(&mut next);
        started.elapsed().as_nanos() as f64 / f64::from(waiting)
    };
    let mut times: Vec<_> = (0..TRIES).map(once).collect();
    times.sort_by(f64::total_cmp);
    format!("{:.0} ns", times[TRIES / 2])
}

/// Prints the time of each part of a check.
pub fn parts(rounds: usize) {
    const CALLS: u64 = 200_000;
    let timed = |name: &str, mut part: Box<dyn FnMut(u64) -> u64>| {
        Contestant::new(name, move || {
            let started = Instant::now();
            (0..CALLS).for_each(|at| _ = black_box(part(at)));
            started.elapsed()
        })
    };
    let (clock, hash, key) = (AnyClock::default(), std::hash::RandomState::new(), keys(1)[0]);
    let bucket = TokenBucket::new(Quotas::deep().ours);
    let (mut state, mut now) = (bucket.new_state(Nanos::ZERO, Nanos::ZERO), 0);
    let (spin, mutex) = (spin::mutex::SpinMutex::<_>::new(0), Mutex::new(0));
    let (started, tsc) = (Instant::now(), AnyClock::from(TscClock::new()));
    let (limiter, peer) = (ours(TokenBucket::new(Quotas::deep().ours), 100_000), governor(Quotas::deep()));
    let rounds = Rounds::of(
        vec![
            timed(PEER, Box::new(move |_| Subject::check(&peer, &key).into())),
            timed("a whole check", Box::new(move |_| Subject::check(&limiter, &key).into())),
            timed("clock", Box::new(move |_| clock.now().0)),
            timed("clock of std", Box::new(move |_| started.elapsed().as_nanos() as u64)),
            timed("clock of the time stamp counter", Box::new(move |_| tsc.now().0)),
            timed("hash of std", Box::new(move |_| hash.hash_one(key))),
            timed(
                "lock",
                Box::new(move |at| {
                    *spin.lock() += at;
                    at
                }),
            ),
            timed(
                "lock of std",
                Box::new(move |at| {
                    *mutex.lock().expect("no thread panics") += at;
                    at
                }),
            ),
            timed(
                "arithmetic and decision",
                Box::new(move |_| {
                    now += 100;
                    black_box(&bucket.check(&mut state, Nanos(now), 1)).remaining()
                }),
            ),
        ],
        rounds,
    );
    print("the parts of a check", &rounds);
}

/// Prints the times of single calls while eight threads use one key on all cores.
pub fn waits() {
    const CALLS: usize = 400_000;
    const THREADS: usize = 8;
    fn row<S: Subject + Sync>(name: &str, cores: &[CoreId], subject: &S) -> Vec<String> {
        let key = keys(1)[0];
        let call = |number: usize| {
            // The main thread is pinned to one core, and the threads would inherit that core.
            cores.get(number % cores.len().max(1)).map(|core| core_affinity::set_for_current(*core));
            let mut took = Vec::with_capacity(CALLS);
            let mut before = Instant::now();
            for _ in 0..CALLS {
                black_box(subject.check(&key));
                let now = Instant::now();
                took.push((now - before).as_nanos() as u64);
                before = now;
            }
            took
        };
        let mut took: Vec<u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || call(number))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
        });
        took.sort_unstable();
        let at = |of: f64| took[(((took.len() - 1) as f64) * of) as usize].to_string();
        [name.to_owned()].into_iter().chain([0.5, 0.99, 0.999, 0.9999, 1.0].map(at)).collect()
    }
    let (mutex, cores) = (Mutexed(Mutex::new(0)), &*core_affinity::get_core_ids().unwrap_or_default());
    let rows = [
        row(PEER, cores, &governor(Quotas::deep())),
        row("a mutex of std, and the clock", cores, &mutex),
        row("TokenBucket", cores, &ours(TokenBucket::new(Quotas::deep().ours), 100_000)),
    ];
    table::print(
        "eight threads, one key, nanoseconds",
        &["", "median", "99 %", "99.9 %", "99.99 %", "longest"],
        &rows,
    );
}

/// A number under a mutex of std, to compare the waits for a lock. Each call reads the clock.
struct Mutexed(Mutex<u64>);

impl Subject for Mutexed {
    fn check(&self, _: &IpAddr) -> bool {
        let mut count = self.0.lock().expect("no thread panics");
        *count += Instant::now().elapsed().as_nanos() as u64;
        true
    }
}
