//! Concurrent operations of threads, and what must be true afterwards.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc;
use shuttle::thread;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::key::from_fn;
use tower_throttle::limiter::OnFull;
use tower_throttle::{ErrorResponder, Meter, Quota, RateLimitLayer, RateLimiter};

use super::clock::{Strict, Time};
use super::harness::{Progress, Stage, all, judge};
use super::queue_model::{INTERVAL, Line, Real, one_per_interval};
use super::two_limiters::{BUDGETS, Key, Keys, Pair, call};

/// Some calls join the queue and stay, and others are cancelled. Only as many slots come as there are calls that stay.
/// In the end, all these calls have been admitted, and no slot is left.
pub(crate) fn as_many_slots_as_waiters_that_stay<L: Line, C: Time, const KEYS: usize>(
    line: impl Fn(C) -> L,
    keys: [u64; KEYS],
    stay: u32,
) {
    let stage = Stage::new(line, &keys);
    let (tells, reported) = mpsc::channel();
    let quit: Vec<_> = keys.iter().map(|key| stage.quits(*key)).collect();
    let stayers: Vec<_> = keys.iter().flat_map(|key| (0..stay).map(|_| *key)).collect();
    let stayers: Vec<_> = stayers.into_iter().map(|key| stage.stays(key, tells.clone())).collect();
    Progress::default().wait(&reported, stayers.len(), 0);
    assert!(all(quit).iter().all(Option::is_none), "no slot has come");
    (0..stay).for_each(|_| stage.turn(&keys));
    judge(&all(stayers));
    stage.ends(&keys);
}

/// Calls join the queue and are cancelled while slots come.
pub(crate) fn slots_come_meanwhile<L: Line, C: Time, const KEYS: usize>(
    line: impl Fn(C) -> L,
    keys: [u64; KEYS],
) {
    const STAY: u32 = 2;
    let stage = Stage::new(line, &keys);
    let (tells, reported) = mpsc::channel();
    let turns = stage.clone();
    let ticker = thread::spawn(move || turns.turn(&keys));
    let quit: Vec<_> = keys.iter().map(|key| stage.quits(*key)).collect();
    let stayers: Vec<_> = keys.iter().flat_map(|key| [*key; STAY as usize]).collect();
    let stayers: Vec<_> = stayers.into_iter().map(|key| stage.stays(key, tells.clone())).collect();
    Progress::default().wait(&reported, stayers.len(), 0);
    ticker.join().unwrap();
    let mut passed: Vec<_> = all(quit).into_iter().flatten().collect();
    (0..STAY).for_each(|_| stage.turn(&keys));
    passed.extend(all(stayers));
    judge(&passed);
    stage.clock.tick(INTERVAL);
    for key in keys {
        assert!(stage.line.check(key), "a slot was lost");
        assert!(!stage.line.check(key), "a slot was given twice");
    }
}

/// A call is admitted, and dropped before it observes that. At the same time, another call joins the queue, and
/// a third call would be admitted at once. One of the other two calls gets the slot of the dropped call, and not both.
pub(crate) fn unused_admission<L: Line, C: Time>(line: impl Fn(C) -> L, late: bool) {
    let stage = Stage::new(line, &[0]);
    let mut untold = Box::pin(stage.line.join(0));
    assert!(untold.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    stage.clock.tick(INTERVAL);
    stage.line.touch(0);
    if late {
        stage.clock.tick(INTERVAL);
    }
    let drops = thread::spawn(move || drop(untold));
    let line = stage.line.clone();
    let checks = thread::spawn(move || line.check(0));
    let (tells, reported) = mpsc::channel();
    let stays = stage.stays(0, tells);
    Progress::default().wait(&reported, 1, 0);
    drops.join().unwrap();
    if checks.join().unwrap() {
        stage.turn(&[0]);
    }
    stays.join().unwrap();
    stage.ends(&[0]);
}

/// The operation of a second thread while calls are queued.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Act {
    Nothing,
    Refund,
    Reset,
    /// The algorithm is replaced by one with twice the rate.
    Replace,
}

/// Two calls join the queue, a third call is admitted or denied, and another thread makes other operations. Units are
/// counted exactly, and each call is woken at its scheduled time.
pub(crate) fn another_thread_interferes<C: Time>(act: Act) {
    let stage = Stage::new(Real::new::<C>, &[0]);
    let (tells, reported) = mpsc::channel();
    let limiter = stage.line.0.clone();
    let acts = thread::spawn(move || match act {
        Act::Nothing => {}
        Act::Refund => limiter.refund(&0_u64, 1),
        Act::Reset => _ = limiter.reset(&0_u64),
        Act::Replace => limiter.replace(LeakyBucket::new(Quota::per_second(2_000_000)).queue(8)),
    });
    let stayers: Vec<_> = (0..2).map(|_| stage.stays(0, tells.clone())).collect();
    let line = stage.line.clone();
    let passed = thread::spawn(move || line.check(0)).join().unwrap();
    acts.join().unwrap();
    // One of the three calls got the refunded unit.
    let came_back = matches!(act, Act::Refund | Act::Reset);
    assert!(came_back || !passed, "there was nothing to pass by");
    let interval = if act == Act::Replace { INTERVAL / 2 } else { INTERVAL };
    let mut gone = usize::from(came_back && !passed);
    let mut due = vec![Duration::ZERO; gone];
    let mut so_far = Progress::default();
    so_far.wait(&reported, 2, gone);
    for turn in 1.. {
        if gone == 2 {
            break;
        }
        stage.clock.tick(interval);
        if !C::RINGS {
            stage.line.touch(0);
        }
        gone += 1;
        due.push(interval * turn);
        so_far.wait(&reported, 2, gone);
    }
    let mut delays: Vec<_> = all(stayers).into_iter().map(|passed| passed.delay).collect();
    delays.sort();
    assert_eq!(delays, due);
    assert!(!stage.line.check(0), "a slot was not charged");
    stage.clock.tick(interval);
    assert!(stage.line.check(0), "a slot was lost");
    assert!(!stage.line.check(0), "a slot was given twice");
}

/// Three threads take units of both limiters, in either order. As many calls are admitted as the smaller limit allows,
/// and both limiters are charged for these calls.
pub(crate) fn all_or_none<P: Pair>(pair: impl Fn() -> P) {
    let pair = pair();
    let threads: Vec<_> = [false, true, true]
        .into_iter()
        .map(|crossed| {
            let pair = pair.clone();
            thread::spawn(move || u64::from(pair.take(crossed)))
        })
        .collect();
    let here = u64::from(pair.take(false));
    let passed = here + all(threads).into_iter().sum::<u64>();
    assert_eq!(pair.left().map(|left| left + passed), BUDGETS, "both are charged for those who passed");
    assert_eq!(passed, BUDGETS[1], "as many pass as the least allows");
}

/// Calls are queued in two queues at once, in either order. One of the calls is cancelled, before slots come or while
/// they come.
pub(crate) fn two_queues<C: Time>(meanwhile: bool) {
    let clock = C::new();
    let build = || RateLimiter::builder(one_per_interval()).clock(clock.clone()).build();
    let lines = [build(), build()];
    let [first, second] = &lines;
    let budget = RateLimiter::builder(TokenBucket::new(Quota::per_hour(5))).clock(clock.clone()).build();
    assert!(first.check(&0_u64).is_allowed() && second.check(&0_u64).is_allowed());
    let (joined, waits) = mpsc::channel();
    let layers = {
        let key = (|_: &Keys| Some(0_u64)) as Key;
        let (first, second, budget) = (first.clone(), second.clone(), budget.clone());
        move |crossed| {
            let (first, second) = if crossed { (&second, &first) } else { (&first, &second) };
            RateLimitLayer::with_limiter(from_fn(key), first.clone())
                .and(RateLimitLayer::with_limiter(from_fn(key), budget.clone()))
                .and(RateLimitLayer::with_limiter(from_fn(key), second.clone()))
                .responder(ErrorResponder)
                .layer(service_fn(async |_: Keys| Ok::<_, ()>(())))
        }
    };
    let stays: Vec<_> = [false, true]
        .into_iter()
        .map(|crossed| {
            let (layers, joined) = (layers.clone(), joined.clone());
            thread::spawn(move || {
                let call = layers(crossed).call([0, 0]);
                joined.send(()).unwrap();
                assert!(block_on(call).is_ok());
            })
        })
        .collect();
    let quits = thread::spawn(move || {
        let mut call = pin!(layers(true).call([0, 0]));
        // The call may be admitted at once. Then this must be reported here, since it is not known otherwise.
        let polls = thread_rng().gen_range(u8::from(meanwhile)..3);
        block_on(poll_fn(|cx| Poll::Ready((0..polls).any(|_| call.as_mut().poll(cx).is_ready()))))
    });
    let turn = || {
        clock.tick(INTERVAL);
        lines.iter().filter(|_| !C::RINGS).for_each(|line| assert!(line.check_n(&0_u64, 0).is_allowed()));
    };
    if meanwhile {
        turn();
    }
    stays.iter().for_each(|_| waits.recv().unwrap());
    let passed = quits.join().unwrap();
    assert!(meanwhile || !passed, "no slot has come");
    turn();
    turn();
    all(stays);
    assert_eq!(budget.peek(&0_u64).remaining(), 3 - u64::from(passed), "charged once, or not at all");
    if !meanwhile {
        assert!(lines.iter().all(|line| !line.check(&0_u64).is_allowed()), "a slot was not charged");
    }
    clock.tick(INTERVAL);
    assert!(lines.iter().all(|line| line.check(&0_u64).is_allowed()), "a slot was lost");
    assert!(lines.iter().all(|line| !line.check(&0_u64).is_allowed()), "a slot was given twice");
}

/// New keys are used with a table of two places: one key at a time, two keys at once in either order, and queued calls.
/// One key is reset.
pub(crate) fn the_table_is_full([one, alike, apart]: [u64; 3]) {
    let clock = Strict::new();
    let limiter = RateLimiter::builder(one_per_interval())
        .clock(clock.clone())
        .max_keys(2)
        .on_full(OnFull::Reject)
        .build();
    let bounded = |limiter: &RateLimiter<LeakyBucket>| assert!(limiter.len() <= 2, "the bound is kept");
    let together = [[alike, apart], [apart, alike]].map(|keys| {
        let limiter = limiter.clone();
        thread::spawn(move || {
            // The call is admitted, denied, or queued and cancelled.
            let mut call = pin!(call(&limiter, &limiter, keys));
            bounded(&limiter);
            let passed = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(true);
            bounded(&limiter);
            passed
        })
    });
    let resets = {
        let limiter = limiter.clone();
        thread::spawn(move || {
            limiter.reset(&one);
            bounded(&limiter);
        })
    };
    let passed = [one, one].map(|key| {
        let passed = limiter.check(&key).is_allowed();
        bounded(&limiter);
        passed
    });
    // For a new key, one call is admitted or queued at once, unless the table is full.
    let other = block_on(limiter.acquire(&(one + 10_000)));
    bounded(&limiter);
    resets.join().unwrap();
    let passed = passed.into_iter().filter(|passed| *passed).count();
    let together = all(together.into()).into_iter().filter(|passed| *passed).count();
    assert!(passed <= 2 && together <= 1, "{passed} and {together} passed, and {other:?}");
    // After a while, all keys are fresh, and all places in the table are free.
    clock.tick(Duration::from_secs(100));
    for key in 20_000..20_006_u64 {
        let _ = limiter.check_n(&key, 0);
    }
    assert_eq!(limiter.len(), 0, "places were lost");
}

/// Two threads count units of a call while its response ends. Each unit is charged once, before or after the end.
pub(crate) fn a_metered_call_ends() {
    let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_hour(100))).clock(Strict::new()).build();
    let meter = Meter::new();
    let response = {
        let mut request = http::Request::new(());
        request.extensions_mut().insert(meter.clone());
        let layer =
            RateLimitLayer::with_limiter(from_fn(|_: &http::Request<()>| Some(0_u64)), limiter.clone());
        let inner = service_fn(async |_: http::Request<()>| Ok::<_, ()>(http::Response::new(())));
        block_on(layer.metered().layer(inner).call(request)).unwrap()
    };
    // A meter that is not used until the end would keep the estimate.
    meter.add(0);
    let counts: Vec<_> = [3, 5]
        .into_iter()
        .map(|units| {
            let meter = meter.clone();
            thread::spawn(move || {
                meter.add(units);
                meter.add(units);
            })
        })
        .collect();
    drop(response);
    all(counts);
    assert_eq!(100 - limiter.peek(&0_u64).remaining(), 16, "each unit is charged once");
}
