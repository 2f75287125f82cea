//! Many threads and few keys. Exactly as many calls are admitted as the algorithm allows.

use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::clock::{AnyClock, Clock, ManualClock, Nanos};
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimiter};

const THREADS: usize = 8;
const ROUNDS: usize = 1_000;

/// Calls `round(thread, n)` in every thread at once. When all threads have finished, calls `between(n)` in one of them.
///
/// An error from `between` fails the test at the end. A thread that panicked would leave the other threads waiting.
fn rounds(
    rounds: usize,
    round: impl Fn(usize, usize) + Sync,
    between: impl Fn(usize) -> Result<(), String> + Sync,
) {
    let (barrier, complaint) = (Barrier::new(THREADS), Mutex::new(None));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (barrier, complaint, round, between) = (&barrier, &complaint, &round, &between);
            scope.spawn(move || {
                for n in 0..rounds {
                    barrier.wait();
                    round(thread, n);
                    if barrier.wait().is_leader()
                        && let Err(text) = between(n)
                    {
                        complaint.lock().unwrap().get_or_insert(format!("round {n}: {text}"));
                    }
                }
            });
        }
    });
    assert_eq!(complaint.into_inner().unwrap(), None);
}

fn same(admitted: u64, due: u64) -> Result<(), String> {
    if admitted == due { Ok(()) } else { Err(format!("{admitted} admitted, {due} due")) }
}

fn at_most(admitted: u64, due: u64) -> Result<(), String> {
    if admitted <= due { Ok(()) } else { Err(format!("{admitted} admitted, at most {due} due")) }
}

/// Returns how many of `calls` are admitted.
fn admitted<A: Algorithm, K: Hash + ?Sized>(limiter: &RateLimiter<A>, key: &K, calls: u64) -> u64 {
    (0..calls).map(|_| u64::from(limiter.check(key).is_allowed())).sum()
}

fn frozen<A: Algorithm>(algorithm: A, max_keys: usize) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).max_keys(max_keys).build()
}

/// Runs the same test with each algorithm, and with the number that it admits at one instant.
macro_rules! with_each_algorithm {
    ($test:ident, $quota:expr) => {
        let quota: Quota = $quota;
        $test(TokenBucket::new(quota), quota.capacity());
        $test(SlidingWindow::new(quota), quota.limit());
        $test(FixedWindow::new(quota), quota.limit());
        $test(FixedWindow::new(quota).aligned(), quota.limit());
        $test(LeakyBucket::new(quota), 1);
    };
}

fn quota() -> Quota {
    Quota::per_minute(20)
}

fn racing_for_new_keys<A: Algorithm>(algorithm: A, capacity: u64) {
    let limiter = frozen(algorithm, 100_000);
    let count = AtomicU64::new(0);
    rounds(
        ROUNDS,
        |_, round| {
            count.fetch_add(admitted(&limiter, &round, 10), Ordering::Relaxed);
        },
        |_| same(count.swap(0, Ordering::Relaxed), capacity),
    );
}

#[test]
fn threads_that_race_for_a_new_key_share_one_budget() {
    with_each_algorithm!(racing_for_new_keys, quota());
}

fn racing_after_a_reset<A: Algorithm>(algorithm: A, capacity: u64) {
    let limiter = frozen(algorithm, 100_000);
    let count = AtomicU64::new(0);
    rounds(
        ROUNDS,
        |_, _| {
            count.fetch_add(admitted(&limiter, "one key", 10), Ordering::Relaxed);
        },
        |_| {
            limiter.reset("one key");
            same(count.swap(0, Ordering::Relaxed), capacity)
        },
    );
}

#[test]
fn a_key_that_is_reset_has_one_budget_again() {
    with_each_algorithm!(racing_after_a_reset, quota());
}

fn costs_of_all_sizes<A: Algorithm>(algorithm: A, capacity: u64) {
    let limiter = frozen(algorithm, 100_000);
    let spent = AtomicU64::new(0);
    rounds(
        ROUNDS,
        |thread, round| {
            for cost in [1 + thread as u64, 3, 2, 1, 1, 1, 1, 1] {
                if limiter.check_n(&round, cost).is_allowed() {
                    spent.fetch_add(cost, Ordering::Relaxed);
                }
            }
        },
        |_| same(spent.swap(0, Ordering::Relaxed), capacity),
    );
}

#[test]
fn calls_of_many_costs_spend_the_budget_to_the_unit() {
    // At the end, eight threads ask for five single units each, so no unit is left.
    costs_of_all_sizes(TokenBucket::new(quota()), 20);
    costs_of_all_sizes(SlidingWindow::new(quota()), 20);
    costs_of_all_sizes(FixedWindow::new(quota()), 20);
}

fn many_keys<A: Algorithm>(algorithm: A, capacity: u64) {
    const KEYS: usize = 1_000;
    let limiter = frozen(algorithm, 100_000);
    let counts: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    rounds(
        30,
        |thread, _| {
            for n in 0..KEYS {
                let key = (n + thread * 125) % KEYS;
                counts[key].fetch_add(admitted(&limiter, &key, 1), Ordering::Relaxed);
            }
        },
        |_| Ok(()),
    );
    for (key, count) in counts.iter().enumerate() {
        assert_eq!(count.load(Ordering::Relaxed), capacity, "key {key} of {limiter:?}");
    }
}

#[test]
fn threads_on_many_keys_do_not_see_each_other() {
    with_each_algorithm!(many_keys, quota());
}

fn flooded<A: Algorithm>(algorithm: A, capacity: u64) {
    for cost in [0, 1] {
        let builder = RateLimiter::builder(algorithm.clone()).clock(ManualClock::new()).max_keys(4);
        let limiter = builder.on_full(OnFull::Reject).build();
        let count = AtomicU64::new(0);
        rounds(
            ROUNDS / 2,
            |thread, round| {
                for n in 0..10 {
                    let _ = limiter.check_n(&(round, thread, n), cost);
                    count.fetch_add(admitted(&limiter, &round, 3), Ordering::Relaxed);
                }
            },
            |_| {
                at_most(count.swap(0, Ordering::Relaxed), capacity)?;
                at_most(limiter.len() as u64, 4)?;
                limiter.reset_all();
                Ok(())
            },
        );
    }
}

#[test]
fn a_flood_of_new_keys_gives_no_key_a_second_budget() {
    with_each_algorithm!(flooded, quota());
}

/// All threads make calls until no unit is left. Then the clock advances. In each round, as many calls are admitted as
/// for a single thread.
fn saturated<A: Algorithm>(algorithm: A, _capacity: u64) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).build();
    let alone = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    let count = AtomicU64::new(0);
    rounds(
        ROUNDS,
        |_, _| {
            count.fetch_add(admitted(&limiter, "key", 20), Ordering::Relaxed);
        },
        |round| {
            let due = admitted(&alone, "key", 20);
            clock.advance(Duration::from_nanos(1 + 7_919 * (round as u64 * round as u64 % 1_009)));
            same(count.swap(0, Ordering::Relaxed), due)
        },
    );
}

#[test]
fn as_time_goes_on_threads_get_what_one_caller_would_get() {
    with_each_algorithm!(saturated, Quota::per(20, Duration::from_millis(17)).unwrap());
}

#[test]
fn while_the_clock_moves_exactly_what_it_brings_is_admitted() {
    // The bucket is never full, so no token is lost. No thread can be late by a whole period.
    let quota = Quota::per(28, Duration::from_secs(240)).unwrap().burst(10_000);
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(quota).start_empty();
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
    const TICKS: u64 = 20_000;
    let early = thread::scope(|scope| {
        for _ in 1..THREADS {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    count.fetch_add(admitted(&limiter, "key", 10), Ordering::Relaxed);
                }
            });
        }
        let early = (1..=TICKS).find(|tick| {
            clock.advance(Duration::from_millis(11));
            count.load(Ordering::Relaxed) > 7 * 11 * tick / 60_000
        });
        done.store(true, Ordering::Release);
        early
    });
    assert_eq!(early, None, "admitted too much by that tick");
    let rest = admitted(&limiter, "key", 10_000);
    assert_eq!(count.load(Ordering::Relaxed) + rest, 7 * 11 * TICKS / 60_000);
}

const PERIOD: u64 = 10;

/// A clock that advances by a nanosecond at each reading. A thread that has read the clock may be delayed before it
/// uses the reading.
#[derive(Debug, Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        let now = self.0.fetch_add(1, Ordering::SeqCst);
        if now.is_multiple_of(64) {
            thread::yield_now();
        }
        Nanos(now)
    }

    fn sleep_until(&self, _: Nanos) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }
}

fn delayed_between_reading_and_acting<A: Algorithm>(algorithm: A, _capacity: u64) {
    let clock = AnyClock::from(Ticking::default());
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    let count = AtomicU64::new(0);
    rounds(
        20,
        |_, _| {
            count.fetch_add(admitted(&limiter, "key", 5_000), Ordering::Relaxed);
        },
        |_| at_most(count.load(Ordering::Relaxed), 1 + clock.now().0.div_ceil(PERIOD)),
    );
}

/// The period is shorter than the delay of a thread can be, although the clock never steps back.
#[test]
fn a_thread_that_is_delayed_after_reading_the_clock_admits_nothing_extra() {
    with_each_algorithm!(
        delayed_between_reading_and_acting,
        Quota::per(1, Duration::from_nanos(PERIOD)).unwrap()
    );
}
