//! Many threads that use several keys at once, in every order. The totals are exact, and there is no deadlock.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::store::OnFull;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, Random, scaled};

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

fn tuples_are_exact<A: Algorithm, B: Algorithm>(pair: (A, B), due: u64) {
    for round in 0..200_u64 {
        let limiter = frozen(pair.clone(), 4);
        let spent = AtomicU64::new(0);
        at_once(|thread| {
            for cost in [1 + thread as u64, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1] {
                if limiter.check_n(&round, cost).is_allowed() {
                    spent.fetch_add(cost, Ordering::Relaxed);
                }
            }
        });
        assert_eq!(spent.into_inner(), due, "round {round} of {pair:?}");
        assert_eq!(limiter.peek(&round).remaining(), 0);
    }
}

#[test]
fn threads_charging_a_tuple_get_what_its_smallest_limit_allows() {
    watched(|| {
        tuples_are_exact((TokenBucket::new(hourly(40)), FixedWindow::new(hourly(25))), 25);
        tuples_are_exact((SlidingWindow::new(hourly(17)), SlidingLog::new(hourly(30))), 17);
        tuples_are_exact((SlidingCounter::new(hourly(22)), TokenBucket::new(hourly(90).burst(19))), 19);
    });
}

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

/// Joins two limiters in both orders, with keys that cross, so that threads lock the keys in opposite orders.
fn crossing<A: Algorithm, B: Algorithm>(a: A, b: B, of_a: u64, of_b: u64) {
    const KEYS: u64 = 6;
    for seed in 0..scaled(30) {
        let (first, second) = (frozen(a.clone(), 1_000), frozen(b.clone(), 1_000));
        let ledger = Ledger::default();
        at_once(|thread| {
            let mut random = Random::new(seed * 100 + thread as u64);
            let (mut there, mut back) = (both!(first, second), both!(second, first));
            for _ in 0..3_000 {
                let (one, two) = (random.below(KEYS), random.below(KEYS));
                match thread % 2 {
                    0 if passes(&mut there, [one, two, 0]) => ledger.note(&[('a', one), ('b', two)]),
                    1 if passes(&mut back, [two, one, 0]) => ledger.note(&[('a', one), ('b', two)]),
                    _ => {}
                }
            }
        });
        for key in 0..KEYS {
            let (in_a, in_b) = (ledger.used('a', key), ledger.used('b', key));
            assert_eq!(first.peek(&key).remaining(), of_a - in_a, "seed {seed}: {key} of {a:?}");
            assert_eq!(second.peek(&key).remaining(), of_b - in_b, "seed {seed}: {key} of {b:?}");
        }
        // No call was denied that both limiters would have admitted.
        let mut there = both!(first, second);
        for (one, two) in (0..KEYS).flat_map(|one| (0..KEYS).map(move |two| (one, two))) {
            assert!(!passes(&mut there, [one, two, 0]), "seed {seed}: {one} and {two} were left over");
        }
    }
}

#[test]
fn joined_limits_are_neither_exceeded_nor_undercharged_in_any_lock_order() {
    watched(|| {
        crossing(TokenBucket::new(hourly(40)), FixedWindow::new(hourly(31)), 40, 31);
        crossing(SlidingLog::new(hourly(23)), SlidingCounter::new(hourly(37)), 23, 37);
        crossing(SlidingWindow::new(hourly(29)), TokenBucket::new(hourly(5).burst(50)), 29, 50);
    });
}

/// One limiter is three times in a layer, with keys in any order. A key is charged as often as it occurs.
#[test]
fn one_limiter_several_times_in_a_layer_is_charged_for_each() {
    const KEYS: u64 = 5;
    const LIMIT: u64 = 200;
    watched(|| {
        for seed in 0..scaled(20) {
            let limiter = frozen(TokenBucket::new(hourly(LIMIT)), 1_000);
            let layer = RateLimitLayer::with_limiter(from_fn(key::<0> as Key<0>), limiter.clone())
                .and(RateLimitLayer::with_limiter(from_fn(key::<1> as Key<1>), limiter.clone()))
                .and(RateLimitLayer::with_limiter(from_fn(key::<2> as Key<2>), limiter.clone()))
                .responder(ErrorResponder);
            let ledger = Ledger::default();
            at_once(|thread| {
                let mut random = Random::new(seed * 100 + thread as u64);
                let mut service = layer.layer(service_fn(async |_: Keys| Ok::<_, ()>(())));
                for _ in 0..2_000 {
                    let keys = [(); 3].map(|()| random.below(KEYS));
                    if passes(&mut service, keys) {
                        ledger.note(&keys.map(|key| ('a', key)));
                    }
                }
            });
            let left: Vec<_> = (0..KEYS).map(|key| LIMIT - ledger.used('a', key)).collect();
            let reported: Vec<_> = (0..KEYS).map(|key| limiter.peek(&key).remaining()).collect();
            assert_eq!(reported, left, "seed {seed}");
            assert!(left.iter().filter(|left| **left > 2).count() <= 1, "seed {seed}: {left:?} left over");
        }
    });
}

#[test]
fn a_layer_joined_with_its_clone_costs_two() {
    let limiter = frozen(FixedWindow::new(hourly(5)), 100);
    let layer = RateLimitLayer::with_limiter(from_fn(key::<0> as Key<0>), limiter.clone());
    let twice = layer.clone().and(layer).responder(ErrorResponder);
    let mut service = twice.layer(service_fn(async |_: Keys| Ok::<_, ()>(())));
    let passed: Vec<_> = (0..4).map(|_| passes(&mut service, [7, 0, 0])).collect();
    assert_eq!(passed, [true, true, false, false]);
    assert_eq!(limiter.peek(&7_u64).remaining(), 1);
}

/// Returns a limiter whose table has only one place, which is taken, and pairs of keys that share a bucket.
fn crowded<A: Algorithm>(algorithm: A, groups: usize) -> (RateLimiter<A>, Vec<[u64; 2]>) {
    let builder = RateLimiter::builder(algorithm).clock(ManualClock::new()).max_keys(1);
    let limiter = builder.on_full(OnFull::ShareBuckets).build();
    assert!(limiter.check("the only place").is_allowed());
    let full = limiter.peek(&0_u64).remaining();
    let mut found: Vec<[u64; 2]> = Vec::new();
    for one in 0.. {
        if found.len() == groups {
            break;
        }
        if limiter.peek(&one).remaining() < full {
            continue;
        }
        assert!(limiter.check(&one).is_allowed());
        if let Some(other) = (one + 1..one + 5_000).find(|other| {
            limiter.peek(other).remaining() < full
                && !found.iter().any(|[one, _]| same(&limiter, *one, *other))
        }) {
            found.push([one, other]);
        }
    }
    for [one, _] in &found {
        limiter.refund(one, 1);
    }
    assert!(found.iter().flatten().all(|key| limiter.peek(key).remaining() == full));
    (limiter, found)
}

/// Returns whether two keys without a place in the table share a bucket. If so, a charge of one key also counts for the
/// other.
fn same<A: Algorithm>(limiter: &RateLimiter<A>, one: u64, other: u64) -> bool {
    let before = limiter.peek(&other).remaining();
    assert!(limiter.check(&one).is_allowed());
    let after = limiter.peek(&other).remaining();
    limiter.refund(&one, 1);
    after < before
}

/// Both keys of a request share one bucket. The bucket is charged twice or not at all.
#[test]
fn two_keys_in_one_shared_bucket_are_charged_both_or_not_at_all() {
    let (limiter, groups) = crowded(FixedWindow::new(hourly(3)), 1);
    let [one, other] = groups[0];
    let mut service = both!(limiter, limiter);
    assert!(passes(&mut service, [one, other, 0]));
    assert_eq!(limiter.peek(&one).remaining(), 1);
    assert!(!passes(&mut service, [one, other, 0]), "one unit is left, and two are asked for");
    assert_eq!(limiter.peek(&one).remaining(), 1, "nothing was taken");
}

/// The table is full, and all keys share buckets. The totals of the buckets are exact as well.
#[test]
fn shared_buckets_are_exact_in_any_lock_order() {
    const LIMIT: u64 = 300;
    watched(|| {
        for seed in 0..10 {
            let (first, a) = crowded(FixedWindow::new(hourly(LIMIT)), 4);
            let (second, b) = crowded(TokenBucket::new(hourly(LIMIT)), 4);
            let ledger = Ledger::default();
            at_once(|thread| {
                let mut random = Random::new(seed * 100 + thread as u64);
                let (mut there, mut back) = (both!(first, second), both!(second, first));
                for _ in 0..1_000 {
                    let (one, two) = (random.below(4), random.below(4));
                    let (in_a, in_b) = (a[one as usize], b[two as usize]);
                    let (in_a, in_b) = (in_a[random.below(2) as usize], in_b[random.below(2) as usize]);
                    match thread % 2 {
                        0 if passes(&mut there, [in_a, in_b, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        1 if passes(&mut back, [in_b, in_a, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        _ => {}
                    }
                }
            });
            let left = |groups: &[[u64; 2]], of: &dyn Fn(u64) -> u64| -> Vec<[u64; 2]> {
                groups.iter().map(|group| group.map(of)).collect()
            };
            let due =
                |limiter| (0..4).map(|group| [LIMIT - ledger.used(limiter, group); 2]).collect::<Vec<_>>();
            assert_eq!(left(&a, &|key| first.peek(&key).remaining()), due('a'), "seed {seed}");
            assert_eq!(left(&b, &|key| second.peek(&key).remaining()), due('b'), "seed {seed}");
        }
    });
}

/// Keys are added to a table that is nearly full, and evicted from it. No key exceeds twice the limit, all calls end,
/// and no place in the table is lost.
#[test]
fn a_table_that_overflows_lets_no_key_exceed_a_limit() {
    const LIMIT: u64 = 12;
    watched(|| {
        for (seed, max_keys) in (0..).zip([1, 2, 3, 7, 64, 100]) {
            let clock = ManualClock::new();
            let build = || {
                RateLimiter::builder(TokenBucket::new(hourly(LIMIT)))
                    .clock(clock.clone())
                    .max_keys(max_keys)
                    .on_full(OnFull::ShareBuckets)
            };
            let (first, second) = (build().build(), build().build());
            let ledger = Ledger::default();
            at_once(|thread| {
                let mut random = Random::new(seed * 100 + thread as u64);
                let (mut there, mut back) = (both!(first, second), both!(second, first));
                let mut twice = both!(first, first);
                for _ in 0..scaled(10_000) {
                    let (one, two) = (random.below(120), random.below(120));
                    match random.below(3) {
                        0 if passes(&mut there, [one, two, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        1 if passes(&mut back, [two, one, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        2 if passes(&mut twice, [one, two, 0]) => ledger.note(&[('a', one), ('a', two)]),
                        _ => {}
                    }
                }
            });
            for (limiter, name) in [(&first, 'a'), (&second, 'b')] {
                assert!(limiter.len() <= max_keys);
                for key in 0..120 {
                    assert!(ledger.used(name, key) <= LIMIT, "{max_keys} keys: {key} of {name} exceeds it");
                    let left = limiter.peek(&key).remaining();
                    assert!(
                        left <= LIMIT - ledger.used(name, key),
                        "{max_keys} keys: {key} of {name}: {left} left"
                    );
                }
            }
            // All units are available again, and all places in the table are free.
            clock.advance(Duration::from_secs(7_200));
            for key in 1_000..3_000_u64 {
                let _ = first.check_n(&key, 0);
                let _ = second.check_n(&key, 0);
            }
            assert_eq!((first.len(), second.len()), (0, 0), "{max_keys} keys: places were lost");
        }
    });
}

/// A denial charges nothing and takes no place in the table. So a flood of keys that another limit denies does not fill
/// the table.
#[test]
fn a_key_that_another_limit_denies_takes_no_slot() {
    let (first, second) = (frozen(TokenBucket::new(hourly(5)), 3), frozen(FixedWindow::new(hourly(1)), 3));
    let mut service = both!(first, second);
    assert!(passes(&mut service, [0, 0, 0]));
    for key in 1..1_000 {
        assert!(!passes(&mut service, [key, 0, 0]));
        assert_eq!((first.len(), second.len()), (1, 1), "{key}");
    }
    // So the table has room for other keys.
    assert!(passes(&mut service, [1, 1, 0]) && passes(&mut service, [2, 2, 0]));
    assert_eq!((first.peek(&1_u64).remaining(), second.len()), (4, 3));
}

/// Makes all operations of a limiter at once, in threads that lock several keys.
#[test]
fn resets_replacements_refunds_peeks_and_joined_calls_never_deadlock() {
    watched(|| {
        let clock = ManualClock::new();
        let bucket = |n: u64| TokenBucket::new(Quota::per_second(1 + n));
        let log = |n: u64| SlidingLog::new(Quota::per_second(1 + n));
        let first = RateLimiter::builder(bucket(5)).clock(clock.clone()).max_keys(20).build();
        let second = RateLimiter::builder(log(5)).clock(clock.clone()).max_keys(20).build();
        at_once(|thread| {
            let mut random = Random::new(thread as u64);
            let (mut there, mut back) = (both!(first, second), both!(second, first));
            for _ in 0..20_000 {
                let (one, two) = (random.below(60), random.below(60));
                match random.below(12) {
                    0 => first.reset(&one),
                    1 => second.reset(&two),
                    2 if random.one_in(20) => first.replace(bucket(random.below(9))),
                    3 if random.one_in(20) => second.replace(log(random.below(9))),
                    4 => first.refund(&one, 1),
                    5 => assert!(second.peek(&two).limit() <= 9),
                    6 => assert!(first.check(&one).limit() <= 9),
                    7 => clock.advance(Duration::from_millis(random.below(400))),
                    8 => assert!(format!("{first:?}{second:?}").len() < 1_000),
                    9 => {
                        passes(&mut back, [two, one, 0]);
                    }
                    _ => {
                        passes(&mut there, [one, two, 0]);
                    }
                }
                assert!(first.len() <= 20 && second.len() <= 20);
            }
        });
        // No place in the table is lost, and no lock is still held.
        clock.advance(Duration::from_secs(100));
        for key in 1_000..3_000_u64 {
            let _ = (first.check_n(&key, 0), second.check_n(&key, 0));
        }
        assert_eq!((first.len(), second.len()), (0, 0));
    });
}

type Call = Pin<Box<dyn Future<Output = bool>>>;

/// Starts a call that is queued at once.
fn call<S>(service: &mut S, keys: Keys) -> PolledByHand<Call>
where
    S: Service<Keys, Future: 'static>,
{
    let call = service.call(keys);
    PolledByHand::new(Box::pin(async move { call.await.is_ok() }))
}

/// Queues and other limits are joined in both orders. Each waiter is released or cancelled, and none is forgotten.
#[test]
fn waiting_calls_of_two_queues_in_both_orders_all_end() {
    watched(|| {
        let clock = ManualClock::new();
        let build = |places| {
            let queue = LeakyBucket::new(Quota::per_second(100)).queue(places);
            RateLimiter::builder(queue).clock(clock.clone()).build()
        };
        let (first, second) = (build(50), build(30));
        let smooth = Smooth::bursty(Quota::per_second(100)).queue(40);
        let third = RateLimiter::builder(smooth).clock(clock.clone()).build();
        let done = AtomicBool::new(false);
        let ended = Arc::new(AtomicU64::new(0));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (first, second, third) = (first.clone(), second.clone(), third.clone());
                    let ended = ended.clone();
                    scope.spawn(move || {
                        let mut random = Random::new(thread as u64);
                        let (mut there, mut back) = (both!(first, second), both!(second, first));
                        let (mut round, mut again) = (both!(third, first), both!(second, third));
                        for _ in 0..300 {
                            let keys = [random.below(2), random.below(2), 0];
                            let mut calls = [
                                call(&mut there, keys),
                                call(&mut back, keys),
                                call(&mut round, keys),
                                call(&mut again, keys),
                            ];
                            if random.one_in(3) {
                                calls[0].poll();
                                calls[random.below(4) as usize].abandon();
                            }
                            while calls.iter_mut().map(PolledByHand::run).filter(|ended| !ended).count() > 0 {
                                thread::yield_now();
                            }
                            ended.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    clock.advance(Duration::from_millis(10));
                    thread::yield_now();
                }
            });
            for worker in workers {
                worker.join().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(ended.load(Ordering::Relaxed), 300 * THREADS as u64);
    });
}
