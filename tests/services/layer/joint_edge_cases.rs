//! Edge cases of several limits: algorithms and closures that panic, costs above all limits, clocks that are set back,
//! and values that must not be printed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, QuotaPolicy, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::{Global, KeyError, KeyExtractor, from_fn};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, Random};

const NANO: Duration = Duration::from_nanos(1);

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

/// Returns the response to a call that is not queued.
fn ask<S, Req, T>(service: &mut S, request: Req) -> Result<T, Error<()>>
where
    S: Service<Req, Response = T, Error = Error<()>>,
{
    let mut call = PolledByHand::new(service.call(request));
    assert!(call.poll(), "no call is queued");
    call.output.unwrap()
}

macro_rules! served {
    ($layer:expr) => {
        $layer.responder(ErrorResponder).layer(service_fn(async |_| Ok::<_, ()>(())))
    };
}

/// An algorithm that panics on demand, and otherwise is a window.
#[derive(Clone, Debug)]
struct Moody {
    window: FixedWindow,
    angry: Arc<AtomicBool>,
}

impl Moody {
    fn new(limit: u64) -> (Self, Arc<AtomicBool>) {
        let angry = Arc::new(AtomicBool::new(false));
        (Self { window: FixedWindow::new(hourly(limit)), angry: angry.clone() }, angry)
    }

    fn mood(&self) {
        assert!(!self.angry.load(Ordering::SeqCst), "this algorithm panics");
    }
}

impl Algorithm for Moody {
    type State = <FixedWindow as Algorithm>::State;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State {
        self.window.new_state(created_at, now)
    }

    fn last_update(&self, state: &Self::State) -> Nanos {
        self.window.last_update(state)
    }

    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        self.mood();
        self.window.check(state, now, cost)
    }

    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        self.mood();
        self.window.peek(state, now, cost)
    }

    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.window.refund(state, now, cost);
    }

    fn migrate(&self, state: &mut Self::State, from: &Self, now: Nanos) {
        self.mood();
        self.window.migrate(state, &from.window, now);
    }

    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
        self.window.is_fresh(state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        self.window.policy()
    }
}

fn panics(run: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
}

#[test]
fn an_algorithm_that_panics_leaves_the_others_unchanged_and_no_lock_held() {
    let clock = ManualClock::new();
    let (moody, angry) = Moody::new(5);
    for moody_first in [true, false] {
        let (other, moody) = (limiter(TokenBucket::new(hourly(5)), &clock), limiter(moody.clone(), &clock));
        let (of_other, of_moody) = (
            RateLimitLayer::with_limiter(Global, other.clone()),
            RateLimitLayer::with_limiter(Global, moody.clone()),
        );
        let mut call: Box<dyn FnMut() -> bool> = match moody_first {
            true => {
                let mut service = served!(of_moody.and(of_other));
                Box::new(move || ask(&mut service, ()).is_ok())
            }
            false => {
                let mut service = served!(of_other.and(of_moody));
                Box::new(move || ask(&mut service, ()).is_ok())
            }
        };
        assert!(call());
        angry.store(true, Ordering::SeqCst);
        for _ in 0..10 {
            panics(|| {
                call();
            });
        }
        angry.store(false, Ordering::SeqCst);
        assert_eq!((other.peek(&()).remaining(), moody.peek(&()).remaining()), (4, 4));
        for _ in 0..4 {
            assert!(call());
        }
        assert!(!call());
    }
}

/// An algorithm that panics leaves no place in the table occupied, so new keys still find a place.
#[test]
fn an_algorithm_that_panics_on_new_keys_loses_no_slots() {
    let clock = ManualClock::new();
    let (moody, angry) = Moody::new(5);
    let limiter = RateLimiter::builder(moody).clock(clock.clone()).max_keys(10).build();
    let other = limiter.clone();
    let mut service =
        served!(RateLimitLayer::with_limiter(from_fn(|key: &u64| Some(*key)), limiter.clone()).and(
            RateLimitLayer::with_limiter(Global, self::limiter(TokenBucket::new(hourly(1_000)), &clock))
        ));
    angry.store(true, Ordering::SeqCst);
    for key in 0..20_u64 {
        panics(|| {
            let _ = ask(&mut service, key);
        });
        panics(|| {
            let _ = other.check(&(key + 100));
        });
    }
    angry.store(false, Ordering::SeqCst);
    clock.advance(Duration::from_secs(7_200));
    for key in 1_000..1_100_u64 {
        assert!(limiter.check_n(&key, 0).is_allowed());
    }
    assert_eq!(limiter.len(), 0, "places were lost");
}

#[test]
fn a_replacement_that_panics_leaves_a_limiter_that_goes_on() {
    let clock = ManualClock::new();
    let ((moody, _), (next, angry)) = (Moody::new(5), Moody::new(9));
    let limiter = limiter(moody.clone(), &clock);
    for key in 0..200_u64 {
        assert!(limiter.check(&key).is_allowed());
    }
    angry.store(true, Ordering::SeqCst);
    panics(|| limiter.replace(next.clone()));
    angry.store(false, Ordering::SeqCst);
    assert!((0..200_u64).all(|key| limiter.check(&key).is_allowed()));
    limiter.replace(next);
    assert!((0..200_u64).all(|key| limiter.peek(&key).remaining() == 7));
    assert_eq!(limiter.algorithm().policy().quota, 9);
}

#[test]
fn closures_that_panic_charge_no_key() {
    let clock = ManualClock::new();
    let window = |limit| limiter(FixedWindow::new(hourly(limit)), &clock);
    let (first, second) = (window(5), limiter(Tiered::new(FixedWindow::new(hourly(5))), &clock));
    let layers = RateLimitLayer::with_limiter(
        from_fn(|at: &u8| {
            assert!(*at != 1, "no key");
            Some(())
        }),
        first.clone(),
    )
    .cost(|at: &u8| {
        assert!(*at != 2, "no cost");
        1
    })
    .and(
        RateLimitLayer::with_limiter(
            from_fn(|at: &u8| {
                assert!(*at != 3, "no key");
                Some(())
            }),
            second.clone(),
        )
        .cost(|at: &u8| {
            assert!(*at != 4, "no cost");
            1
        })
        .tier(|at: &u8, (): &()| {
            assert!(*at != 5, "no tier");
            FixedWindow::new(hourly(5))
        }),
    );
    let mut service = served!(layers);
    assert!(ask(&mut service, 0).is_ok());
    for at in 1..=5 {
        panics(|| {
            let _ = ask(&mut service, at);
        });
    }
    assert_eq!((first.peek(&()).remaining(), second.peek(&()).remaining()), (4, 4));
    assert!(ask(&mut service, 0).is_ok());
}

#[derive(Clone)]
struct NoKey;

impl KeyExtractor<u8> for NoKey {
    type Key = ();

    fn extract(&self, at: &u8) -> Result<Option<()>, KeyError> {
        if *at == 1 { Err(KeyError::new("say who you are")) } else { Ok(Some(())) }
    }
}

#[test]
fn a_call_without_a_key_for_one_is_charged_by_none() {
    let clock = ManualClock::new();
    let window = || limiter(FixedWindow::new(hourly(3)), &clock);
    let limiters = [window(), window(), window()];
    let layer = |at: usize| RateLimitLayer::with_limiter(Global, limiters[at].clone());
    let mut service =
        served!(layer(0).and(RateLimitLayer::with_limiter(NoKey, limiters[1].clone())).and(layer(2)));
    assert!(ask(&mut service, 0).is_ok());
    assert!(matches!(ask(&mut service, 1), Err(Error::Key(_))));
    assert_eq!(limiters.each_ref().map(|limiter| limiter.peek(&()).remaining()), [2, 2, 2]);
}

#[test]
fn extreme_costs_are_denied_by_all_or_fit() {
    let clock = ManualClock::new();
    let most = Quota::per(u64::MAX, Duration::from_secs(1)).unwrap();
    let (first, second) = (limiter(FixedWindow::new(most), &clock), limiter(TokenBucket::new(most), &clock));
    for (costs, passes) in
        [([u64::MAX, u64::MAX], true), ([1, 1], false), ([0, 0], true), ([u64::MAX, 0], false)]
    {
        let layer = RateLimitLayer::with_limiter(Global, first.clone()).cost(move |(): &()| costs[0]);
        let layers =
            layer.and(RateLimitLayer::with_limiter(Global, second.clone()).cost(move |(): &()| costs[1]));
        assert_eq!(ask(&mut served!(layers), ()).is_ok(), passes, "{costs:?}");
    }
    // Two charges of the largest cost on one key are more than the largest cost. The sum must not wrap around.
    let one = limiter(SlidingCounter::new(most), &clock);
    let layer = RateLimitLayer::with_limiter(Global, one.clone()).cost(|(): &()| u64::MAX - 1);
    let mut twice = served!(layer.clone().and(layer.clone()));
    // The sum of both costs saturates at the largest possible cost.
    assert!(ask(&mut twice, ()).is_ok());
    assert_eq!(one.peek(&()).remaining(), 0);
}

/// Asserts that a call that joined layers deny is denied at every instant before its wait has passed, and allowed at
/// this instant.
fn waits_are_true<A: Algorithm, B: Algorithm>(rules: impl Fn(&mut Random) -> (A, B)) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (a, b) = rules(&mut random);
        let clock = ManualClock::new();
        let (first, second) = (limiter(a, &clock), limiter(b, &clock));
        let layer = RateLimitLayer::with_limiter(Global, first.clone()).cost(|costs: &[u64; 2]| costs[0]);
        let other = RateLimitLayer::with_limiter(Global, second.clone()).cost(|costs: &[u64; 2]| costs[1]);
        let mut service = served!(layer.and(other));
        for _ in 0..20 {
            let costs = [random.below(5), random.below(5)];
            let Err(Error::Limited(denied)) = ask(&mut service, costs) else {
                clock.advance(Duration::from_nanos(random.below(300_000_000)));
                continue;
            };
            let case = format!("seed {seed}: {costs:?} of {first:?} and {second:?}");
            let Some(wait) = denied.retry_after() else {
                clock.advance(Duration::from_secs(1_000_000));
                assert!(ask(&mut service, costs).is_err(), "{case}");
                continue;
            };
            assert!(!wait.is_zero(), "{case}");
            let early = Duration::from_nanos(random.below(wait.as_nanos() as u64));
            clock.advance(early);
            match ask(&mut service, costs) {
                Err(Error::Limited(reported)) => {
                    assert_eq!(reported.retry_after(), Some(wait - early), "{case}");
                }
                _ => panic!("{case}: allowed after {early:?} of {wait:?}"),
            }
            clock.advance(wait - early - NANO);
            assert!(ask(&mut service, costs).is_err(), "{case}");
            clock.advance(NANO);
            assert!(ask(&mut service, costs).is_ok(), "{case}: denied after {wait:?}");
        }
    }
}

fn any(random: &mut Random) -> Quota {
    let period = Duration::from_nanos(1 + random.below(2_000_000_000));
    Quota::per(1 + random.below(7), period).unwrap().burst(1 + random.below(7))
}

#[test]
fn the_wait_of_joined_layers_is_true_to_the_nanosecond() {
    waits_are_true(|random| (TokenBucket::new(any(random)), FixedWindow::new(any(random))));
    waits_are_true(|random| (SlidingLog::new(any(random)), SlidingCounter::new(any(random))));
    waits_are_true(|random| (SlidingWindow::new(any(random)), FixedWindow::new(any(random)).aligned()));
    waits_are_true(|random| (LeakyBucket::new(any(random)).queue(0), TokenBucket::new(any(random))));
    waits_are_true(|random| (Smooth::bursty(any(random)).queue(0), SlidingLog::new(any(random))));
    waits_are_true(|random| {
        ((TokenBucket::new(any(random)), SlidingLog::new(any(random))), FixedWindow::new(any(random)))
    });
}

/// A clock that jumps to random times admits nothing extra. By the latest readings, no period has more admitted calls
/// than the limit.
#[test]
fn a_clock_that_steps_back_admits_nothing_extra_to_joined_layers_and_tuples() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        clock.set(Duration::from_secs(100));
        let second = Duration::from_secs(1);
        let (log, bucket) = (SlidingLog::new(Quota::per_second(5)), TokenBucket::new(hourly(40)));
        let pair = limiter((log.clone(), bucket.clone()), &clock);
        let joined = RateLimitLayer::with_limiter(Global, limiter(log, &clock))
            .and(RateLimitLayer::with_limiter(Global, limiter(bucket, &clock)));
        let mut service = served!(joined);
        let (mut latest, mut now) = (Duration::from_secs(100), Duration::from_secs(100));
        let (mut seen, mut times) = (Duration::ZERO, [Vec::new(), Vec::new()]);
        for _ in 0..400 {
            match random.below(4) {
                0 => now = latest.saturating_sub(Duration::from_millis(random.below(1_001))),
                1 => {
                    latest += Duration::from_millis(random.below(150));
                    now = latest;
                }
                _ => {
                    clock.set(now);
                    // The latest reading that was observed counts, and not the present reading.
                    seen = seen.max(now);
                    if pair.check(&()).is_allowed() {
                        times[0].push(seen);
                    }
                    if ask(&mut service, ()).is_ok() {
                        times[1].push(seen);
                    }
                }
            }
        }
        for times in times {
            assert!(times.len() <= 41, "seed {seed}");
            for window in times.windows(6) {
                assert!(window[5] - window[0] >= second, "seed {seed}: {window:?}");
            }
        }
    }
}

#[test]
fn debug_output_shows_no_key() {
    let clock = ManualClock::new();
    let secret = "sesame-9f31";
    let (first, second) = (
        limiter(LeakyBucket::new(hourly(5)), &clock),
        limiter(Tiered::new(TokenBucket::new(hourly(5))), &clock),
    );
    let by_line = from_fn(|line: &String| Some(line.clone()));
    let layers = RateLimitLayer::with_limiter(by_line, first.clone())
        .and(
            RateLimitLayer::with_limiter(by_line, second.clone())
                .tier(|_: &String, _: &String| TokenBucket::new(hourly(7))),
        )
        .responder(ErrorResponder);
    let mut service = layers.clone().layer(Quiet);
    let passed = service.call(secret.to_owned());
    let waits = service.call(secret.to_owned());
    let mut said =
        vec![format!("{layers:?}"), format!("{service:?}"), format!("{passed:?}"), format!("{waits:?}")];
    said.push(format!("{first:?} {second:?} {:?}", first.acquire(secret)));
    said.push(format!("{:?} {:?}", first.peek(secret), second.check_n(secret, 9)));
    for said in said {
        assert!(!said.contains(secret), "{said}");
        assert!(said.len() < 4_000, "{said}");
    }
}

#[derive(Clone, Debug)]
struct Quiet;

impl Service<String> for Quiet {
    type Response = ();
    type Error = ();
    type Future = std::future::Ready<Result<(), ()>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), ()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: String) -> Self::Future {
        std::future::ready(Ok(()))
    }
}

#[test]
fn decisions_with_the_same_values_are_equal() {
    let clock = ManualClock::new();
    // A unit becomes available every half second. One limiter computes in its own grains, and the other in nanoseconds.
    let alone = limiter(TokenBucket::new(Quota::per_second(2)), &clock);
    let pair = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_hour(1_000)));
    let (pair, swapped) = (limiter(pair.clone(), &clock), limiter((pair.1, pair.0), &clock));
    for _ in 0..2 {
        let _ = (alone.check(&()), pair.check(&()), swapped.check(&()));
    }
    let (one, two, other) = (alone.check(&()), pair.check(&()), swapped.check(&()));
    assert_eq!((one.retry_after(), one.limit()), (two.retry_after(), two.limit()));
    assert_eq!(two.retry_after(), other.retry_after());
    assert_eq!((two.limit_index(), other.limit_index()), (0, 1));
    assert_ne!(two, other, "they tell of another limit");
    assert_eq!(two, pair.peek(&()));
    assert_eq!(two, pair.check(&()));
    assert_eq!(pair.peek_n(&(), 0), pair.check_n(&(), 0));
}

/// Calls are dropped while other calls of the same kind continue. They leave nothing behind.
#[test]
fn a_thousand_cancelled_calls_leave_an_empty_table() {
    let clock = ManualClock::new();
    let (line, bucket) = (
        limiter(LeakyBucket::new(Quota::per_second(10)).queue(2_000), &clock),
        limiter(TokenBucket::new(hourly(5_000)), &clock),
    );
    let by_key = from_fn(|key: &u64| Some(*key));
    let mut service = served!(
        RateLimitLayer::with_limiter(by_key, line.clone())
            .and(RateLimitLayer::with_limiter(by_key, bucket.clone()))
    );
    for key in 0..50_u64 {
        let mut calls: Vec<_> = (0..20).map(|_| PolledByHand::new(service.call(key))).collect();
        for call in &mut calls {
            call.poll();
        }
        assert!(calls[0].output.is_some() && calls[1..].iter().all(PolledByHand::is_pending));
        drop(calls);
        assert_eq!(bucket.peek(&key).remaining(), 4_999);
        assert_eq!(line.peek(&key).retry_after(), Some(Duration::from_millis(100)));
    }
    clock.advance(Duration::from_secs(7_200));
    // Each shard is swept by its own new keys, so the number of keys is large enough for all shards.
    for key in 1_000..4_000_u64 {
        let _ = (line.check_n(&key, 0), bucket.check_n(&key, 0));
    }
    assert_eq!((line.len(), bucket.len()), (0, 0));
}
