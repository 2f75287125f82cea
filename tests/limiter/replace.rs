//! An algorithm is replaced while calls are made. No key is reset, locked out or lost, and no decision reports the old
//! quota.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::{Global, from_fn};
use tower_throttle::store::OnFull;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{Item, PolledByHand, Random, scaled};

const THREADS: usize = 8;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

fn frozen<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    limiter(algorithm, &ManualClock::new())
}

/// Runs a test with each kind of algorithm whose units are counted.
macro_rules! with_each_kind {
    ($test:ident) => {
        $test(TokenBucket::new);
        $test(FixedWindow::new);
        $test(|quota| FixedWindow::new(quota).aligned());
        $test(SlidingWindow::new);
        $test(SlidingCounter::new);
        $test(SlidingLog::new);
        $test(|quota| (TokenBucket::new(quota), FixedWindow::new(quota)));
    };
}

/// Makes calls from eight threads while `replacing` runs in another thread. Returns the number of admitted calls for
/// each key.
fn hammered<A: Algorithm>(
    limiter: &RateLimiter<A>,
    keys: usize,
    replacing: impl FnOnce() + Send,
) -> Vec<u64> {
    let counts: Vec<_> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    let (start, done) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (counts, start, done) = (&counts, &start, &done);
            scope.spawn(move || {
                start.wait();
                // Each thread makes one more round after the last replacement, so that no unit is left.
                let mut last = false;
                while !last {
                    last = done.load(Ordering::SeqCst);
                    for n in 0..keys {
                        let key = (n + thread * keys / THREADS) % keys;
                        while limiter.check(&key).is_allowed() {
                            counts[key].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        start.wait();
        replacing();
        done.store(true, Ordering::SeqCst);
    });
    counts.into_iter().map(AtomicU64::into_inner).collect()
}

fn raised<A: Algorithm>(rule: impl Fn(Quota) -> A + Sync) {
    for _ in 0..10 {
        let limiter = frozen(rule(Quota::per_hour(100)));
        let counts = hammered(&limiter, 40, || {
            thread::yield_now();
            limiter.replace(rule(Quota::per_hour(150)));
        });
        assert_eq!(counts, [150; 40], "{limiter:?}");
    }
}

#[test]
fn a_limit_raised_under_eight_threads_admits_the_difference_to_each_key() {
    with_each_kind!(raised);
}

fn raised_again_and_again<A: Algorithm>(rule: impl Fn(Quota) -> A + Sync) {
    let limiter = frozen(rule(Quota::per_hour(1)));
    let counts = hammered(&limiter, 25, || {
        // Several threads set each limit once. The largest limit is set last.
        thread::scope(|scope| {
            let (limiter, rule) = (&limiter, &rule);
            for _ in 0..3 {
                scope
                    .spawn(move || (1..=200).for_each(|limit| limiter.replace(rule(Quota::per_hour(limit)))));
            }
        });
        limiter.replace(rule(Quota::per_hour(200)));
    });
    // A lower limit in between cuts the used units, so more units than the last limit can be admitted. But in the end,
    // each key has used up the last limit.
    assert!(counts.iter().all(|count| *count >= 200), "{counts:?}");
    assert!((0..25_usize).all(|key| limiter.peek(&key).remaining() == 0));

    let limiter = frozen(rule(Quota::per_hour(1)));
    let counts =
        hammered(&limiter, 25, || (1..=300).for_each(|limit| limiter.replace(rule(Quota::per_hour(limit)))));
    assert_eq!(counts, [300; 25], "{limiter:?}");
}

#[test]
fn three_hundred_replacements_under_eight_threads_are_exact() {
    with_each_kind!(raised_again_and_again);
}

fn lowered<A: Algorithm>(rule: impl Fn(Quota) -> A + Sync) {
    for _ in 0..10 {
        let limiter = frozen(rule(Quota::per_hour(150)));
        let counts = hammered(&limiter, 40, || limiter.replace(rule(Quota::per_hour(100))));
        assert!(counts.iter().all(|count| (100..=150).contains(count)), "{counts:?} of {limiter:?}");
        assert!((0..40_usize).all(|key| limiter.peek(&key).remaining() == 0));
    }
}

#[test]
fn a_limit_lowered_under_eight_threads_admits_no_more_than_the_old_and_no_less_than_the_new() {
    with_each_kind!(lowered);
}

#[test]
fn each_call_is_decided_by_one_algorithm_and_after_the_return_by_the_new_one() {
    let limiter = frozen(FixedWindow::new(Quota::per_hour(1_000_000)));
    let (settled, done) = (AtomicU64::new(1_000_000), AtomicBool::new(false));
    thread::scope(|scope| {
        let (limiter, settled, done) = (&limiter, &settled, &done);
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(thread as u64);
                while !done.load(Ordering::Relaxed) {
                    let least = settled.load(Ordering::SeqCst);
                    let limit = limiter.check(&random.below(500)).limit();
                    let most = limiter.algorithm().policy().quota.max(settled.load(Ordering::SeqCst) + 1);
                    assert!((least..=most).contains(&limit), "{limit}, between {least} and {most}");
                }
            });
        }
        for limit in 1_000_001..1_000_400 {
            limiter.replace(FixedWindow::new(Quota::per_hour(limit)));
            assert_eq!(limiter.algorithm().policy().quota, limit);
            settled.store(limit, Ordering::SeqCst);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The table has no place for other keys. The units that shared buckets have used stay used.
#[test]
fn a_full_table_is_replaced_as_a_whole() {
    let clock = ManualClock::new();
    for kept in [1_usize, 5, 70] {
        let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_hour(100)))
            .clock(clock.clone())
            .max_keys(kept)
            .on_full(OnFull::ShareBuckets)
            .build();
        for key in 0..kept {
            assert!(limiter.check_n(&key, 40).is_allowed());
        }
        let homeless: HashSet<_> =
            (1_000..1_400_usize).filter(|key| limiter.check_n(key, 60).is_allowed()).collect();
        let left = |key: &usize| limiter.peek(key).remaining();
        assert!(homeless.len() > 100 && homeless.iter().all(|key| left(key) == 40));
        limiter.replace(TokenBucket::new(Quota::per_hour(150)));
        assert_eq!(limiter.len(), kept);
        assert!((0..kept).all(|key| left(&key) == 110) && homeless.iter().all(|key| left(key) == 90));
        // Keys that had shared a bucket and were denied have no more units than the others.
        assert!((1_000..1_400).all(|key| left(&key) == 90));
        limiter.replace(TokenBucket::new(Quota::per_hour(50)));
        assert!((0..kept).all(|key| left(&key) == 10) && homeless.iter().all(|key| left(key) == 0));
        // A place in the table becomes free. A key that shared a bucket keeps its used units when it gets this place.
        clock.advance(SECOND * 7_200);
        for key in 0..kept {
            let _ = limiter.check_n(&key, 0);
        }
        assert!(homeless.iter().all(|key| left(key) == 50));
    }
}

#[test]
fn a_full_table_is_raised_under_eight_threads() {
    for seed in 0..10 {
        let limiter = RateLimiter::builder(SlidingLog::new(Quota::per_hour(10)))
            .clock(ManualClock::new())
            .max_keys(3)
            .on_full(OnFull::ShareBuckets)
            .build();
        for key in ["a", "b", "c"] {
            assert!(limiter.check(key).is_allowed());
        }
        let counts = hammered(&limiter, 600, || limiter.replace(SlidingLog::new(Quota::per_hour(15 + seed))));
        // Each bucket that keys share admits exactly the limit of the last replacement.
        let (buckets, rest) =
            (counts.iter().sum::<u64>() / (15 + seed), counts.iter().sum::<u64>() % (15 + seed));
        assert_eq!(rest, 0, "{counts:?}");
        assert!((180..=256).contains(&buckets), "{buckets} buckets");
    }
}

/// Polls the future, and fails if the future is polled again and again. With paused time, no other task would then run.
async fn patient<F: Future>(future: F) -> F::Output {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1_000, "it spins");
        future.as_mut().poll(cx)
    })
    .await
}

/// Queues five calls at ten a second. After 50 ms, the rate changes. Returns when each call is released, in
/// milliseconds.
async fn leave_at<A: Algorithm>(old: A, new: A) -> Vec<u128> {
    let limiter = RateLimiter::new(old);
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..6 {
        let call = limiter.acquire("key");
        calls.spawn(async move {
            assert!(patient(call).await.is_allowed());
            (n, start.elapsed().as_millis())
        });
        tokio::task::yield_now().await;
    }
    sleep_until(start + MS * 50).await;
    limiter.replace(new);
    let mut left = calls.join_all().await;
    left.sort_unstable();
    left.into_iter().map(|(_, at)| at).collect()
}

fn queue(limit: u64) -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(limit)).queue(20)
}

#[tokio::test(start_paused = true)]
async fn waiters_are_released_at_the_new_rate_when_it_is_raised() {
    // Half of the first call's interval is left.
    assert_eq!(leave_at(queue(10), queue(100)).await, [0, 55, 65, 75, 85, 95]);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_released_at_the_new_rate_when_it_is_lowered() {
    assert_eq!(leave_at(queue(10), queue(1)).await, [0, 550, 1_550, 2_550, 3_550, 4_550]);
}

#[tokio::test(start_paused = true)]
async fn waiters_stay_queued_though_the_queue_is_shorter() {
    assert_eq!(leave_at(queue(10), queue(20).queue(1)).await, [0, 75, 125, 175, 225, 275]);
    assert_eq!(leave_at(queue(10), queue(20).queue(0).max_wait(MS)).await, [0, 75, 125, 175, 225, 275]);
}

#[tokio::test(start_paused = true)]
async fn an_equal_algorithm_changes_nothing_for_waiters() {
    assert_eq!(leave_at(queue(10), queue(10)).await, [0, 100, 200, 300, 400, 500]);
    let smooth = || Smooth::bursty(Quota::per_second(10)).queue(20);
    assert_eq!(leave_at(smooth(), smooth()).await, [0, 100, 200, 300, 400, 500]);
}

#[tokio::test(start_paused = true)]
async fn smooth_waits_at_the_new_rate_too() {
    let smooth = |limit| Smooth::bursty(Quota::per_second(limit)).queue(20);
    assert_eq!(leave_at(smooth(10), smooth(100)).await, [0, 55, 65, 75, 85, 95]);
    assert_eq!(leave_at(smooth(10), smooth(1)).await, [0, 550, 1_550, 2_550, 3_550, 4_550]);
}

/// The rate is raised and lowered at random times, and some calls are cancelled. The calls are released in order, and
/// none is forgotten.
#[tokio::test(start_paused = true)]
async fn waiters_are_released_in_order_at_any_rates() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let limiter = RateLimiter::new(queue(10).queue(100));
        let (start, mut calls) = (Instant::now(), JoinSet::new());
        for n in 0..40 {
            let call = limiter.acquire("key");
            let patience = if n % 4 == 3 { MS * random.below(3_000) as u32 } else { Duration::MAX };
            calls.spawn(async move {
                let left = tokio::time::timeout(patience, patient(call)).await;
                (n, left.is_ok_and(|decision| decision.is_allowed()), start.elapsed())
            });
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            tokio::time::sleep(MS * random.below(200) as u32).await;
            limiter.replace(queue(1 + random.below(50)).queue(100));
        }
        let mut left = calls.join_all().await;
        left.retain(|(n, passed, _)| {
            assert!(*passed || n % 4 == 3, "seed {seed}: {n} was lost");
            *passed
        });
        left.sort_unstable();
        assert!(left.is_sorted_by_key(|(.., at)| *at), "seed {seed}: {left:?}");
        for pair in left.windows(2) {
            assert!(pair[1].2 - pair[0].2 >= MS * 20, "seed {seed}: {left:?}");
        }
    }
}

/// Slots that are overdue when the algorithm is replaced belong to the calls that wait for these slots.
#[test]
fn an_equal_algorithm_takes_no_slots_that_are_overdue() {
    let leave = |replaced: bool| {
        let clock = ManualClock::new();
        let limiter = limiter(queue(10), &clock);
        assert!(limiter.check(&()).is_allowed());
        let mut line: Vec<_> = (0..4).map(|_| PolledByHand::new(limiter.acquire(&()))).collect();
        assert!(line.iter_mut().all(|call| !call.poll()));
        // No call was polled in the meantime, so the timers of the calls are late.
        clock.advance(MS * 250);
        if replaced {
            limiter.replace(queue(10));
        }
        let mut left = Vec::new();
        for ms in 250..1_000 {
            for (n, call) in line.iter_mut().enumerate().filter(|(_, call)| call.is_pending()) {
                for _ in 0..10 {
                    if call.is_pending() && call.alarm.rang() && call.poll() {
                        left.push((n, ms));
                    }
                }
            }
            clock.advance(MS);
        }
        left
    };
    assert_eq!(leave(true), leave(false));
}

/// A call whose rate was lowered sleeps until it is released, and is not polled again and again.
#[test]
fn waiters_sleep_on_when_the_rate_is_lowered() {
    let clock = ManualClock::new();
    let limiter = limiter(queue(10), &clock);
    assert!(limiter.check(&()).is_allowed());
    let mut line: Vec<_> = (0..4).map(|_| PolledByHand::new(limiter.acquire(&()))).collect();
    assert!(line.iter_mut().all(|call| !call.poll()));
    clock.advance(MS * 50);
    limiter.replace(queue(1));
    let mut left = Vec::new();
    for ms in (50..5_000).step_by(10) {
        for (n, call) in line.iter_mut().enumerate().filter(|(_, call)| call.is_pending()) {
            let before = call.polls;
            while call.is_pending() && call.alarm.rang() {
                assert!(call.polls - before < 50, "call {n} spins at {ms} ms");
                if call.poll() {
                    left.push((n, ms));
                }
            }
        }
        clock.advance(MS * 10);
    }
    assert_eq!(left, [(0, 550), (1, 1_550), (2, 2_550), (3, 3_550)]);
}

/// A waker that asks for the algorithm. A waker may run any code, whichever call wakes it.
struct Asks {
    limiter: RateLimiter<LeakyBucket>,
    times: AtomicU64,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        assert!(format!("{:?}", self.limiter).contains("LeakyBucket"));
        let _ = self.limiter.algorithm().policy();
        let _ = self.limiter.peek(&());
        if self.times.fetch_add(1, Ordering::SeqCst) == 0 {
            self.limiter.replace(queue(7));
        }
    }
}

#[test]
fn a_waker_may_ask_for_the_algorithm() {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let limiter = limiter(queue(10), &ManualClock::new());
        limiter.replace(queue(1));
        assert!(limiter.check(&()).is_allowed());
        let asks = Arc::new(Asks { limiter: limiter.clone(), times: AtomicU64::new(0) });
        let waker = Waker::from(asks.clone());
        let mut call = Box::pin(limiter.acquire(&()));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        limiter.replace(queue(1_000));
        let _ = done.send(asks.times.load(Ordering::SeqCst));
    });
    let woken = ended.recv_timeout(Duration::from_secs(20)).expect("the waker is stuck");
    assert!(woken > 0, "its scheduled time has moved up");
}

/// Returns the decisions of peeks with several costs.
fn looks<A: Algorithm>(limiter: &RateLimiter<A>) -> Vec<tower_throttle::Decision> {
    [0, 1, 2, 5, 9].map(|cost| limiter.peek_n("key", cost)).into()
}

fn unchanged<A: Algorithm>(rule: impl Fn(Quota) -> A) {
    for seed in 0..scaled(300) {
        let mut random = Random::new(seed);
        let period = Duration::from_nanos(1 + random.below(3_000_000_000));
        let quota = Quota::per(1 + random.below(20), period).unwrap().burst(1 + random.below(20));
        let clock = ManualClock::new();
        let (replaced, alone) = (limiter(rule(quota), &clock), limiter(rule(quota), &clock));
        for _ in 0..40 {
            clock.advance(Duration::from_nanos(random.below(400_000_000)));
            let cost = random.below(4);
            if random.one_in(3) {
                replaced.replace(rule(quota));
            }
            assert_eq!(replaced.check_n("key", cost), alone.check_n("key", cost), "seed {seed}: {alone:?}");
            if random.one_in(3) {
                replaced.replace(rule(quota));
            }
            assert_eq!(looks(&replaced), looks(&alone), "seed {seed}: {alone:?}");
            assert_eq!(replaced.len(), alone.len());
        }
    }
}

#[test]
fn an_equal_algorithm_changes_nothing() {
    with_each_kind!(unchanged);
    unchanged(|quota| TokenBucket::new(quota).start_empty());
    unchanged(LeakyBucket::new);
    unchanged(Smooth::bursty);
    unchanged(|quota| Smooth::warming_up(quota, SECOND));
}

fn never_seen<A: Algorithm>(rule: impl Fn(Quota) -> A) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut any = || {
            let period = MS * (1 + random.below(3_000) as u32);
            rule(Quota::per(1 + random.below(20), period).unwrap().burst(1 + random.below(20)))
        };
        let (old, new) = (any(), any());
        let clock = ManualClock::new();
        let created_at = random.below(5_000);
        clock.set(MS * created_at as u32);
        let limiter = limiter(old.clone(), &clock);
        let (then, later) = (created_at + random.below(3_000), random.below(3_000));
        clock.set(MS * then as u32);
        limiter.replace(new.clone());
        clock.advance(MS * later as u32);
        // The key decides like a key that was there all the time, and has used nothing.
        let nanos = |ms: u64| Nanos(ms * 1_000_000);
        let mut state = old.new_state(nanos(created_at), nanos(then));
        new.migrate(&mut state, &old, nanos(then));
        for cost in [0, 1, 7, 0] {
            let expected = new.check(&mut state, nanos(then + later), cost);
            assert_eq!(limiter.check_n("key", cost), expected, "seed {seed}: {old:?}, {new:?}");
        }
    }
}

#[test]
fn a_fresh_key_is_like_one_that_was_idle_all_the_time() {
    with_each_kind!(never_seen);
    never_seen(|quota| TokenBucket::new(quota).start_empty());
    never_seen(LeakyBucket::new);
    never_seen(Smooth::bursty);
    never_seen(|quota| Smooth::warming_up(quota, SECOND));
}

type Body = Empty<&'static [u8]>;

#[tokio::test]
async fn headers_report_the_new_quota_once_it_is_in_effect() {
    let (clock, pair) = (ManualClock::new(), |limit| {
        (TokenBucket::new(Quota::per_minute(limit)), FixedWindow::new(Quota::per_hour(limit * 5)))
    });
    let (one, two) = (limiter(FixedWindow::new(Quota::per_minute(3)), &clock), limiter(pair(4), &clock));
    let layer = RateLimitLayer::with_limiter(Global, one.clone())
        .name("one")
        .and(RateLimitLayer::with_limiter(from_fn(|_: &Request<Body>| Some("key")), two.clone()).name("two"));
    let service = layer.layer(service_fn(async |_: Request<Body>| Ok::<_, ()>(Response::new(Body::new()))));
    let reported = async || {
        let answer = service.clone().oneshot(Request::new(Body::new())).await.unwrap();
        let items = |field: &str| -> Vec<Item> {
            answer.headers().get_all(field).iter().map(|line| Item::read(line.to_str().unwrap())).collect()
        };
        let policies: Vec<_> = items("ratelimit-policy")
            .into_iter()
            .map(|item| (item.get("q"), item.get("w"), item.name))
            .collect();
        let left: Vec<_> = items("ratelimit").into_iter().map(|item| (item.get("r"), item.name)).collect();
        (answer.status().as_u16(), policies, left)
    };
    let name = str::to_owned;
    let policies = |one: u64, two: u64| {
        vec![(one, 60, name("one")), (two, 60, name("two")), (two * 5, 3_600, name("two-2"))]
    };
    assert_eq!(reported().await, (200, policies(3, 4), vec![(2, name("one")), (3, name("two"))]));
    one.replace(FixedWindow::new(Quota::per_minute(2)));
    assert_eq!(reported().await, (200, policies(2, 4), vec![(0, name("one")), (2, name("two"))]));
    assert_eq!(reported().await, (429, policies(2, 4), vec![(0, name("one")), (2, name("two"))]));
    two.replace(pair(1));
    one.replace(FixedWindow::new(Quota::per_minute(9)));
    assert_eq!(reported().await, (429, policies(9, 1), vec![(7, name("one")), (0, name("two"))]));
    two.replace(pair(10));
    assert_eq!(reported().await, (200, policies(9, 10), vec![(6, name("one")), (8, name("two"))]));
}
