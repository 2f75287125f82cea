//! Calls whose actual cost is known only from their responses.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tower::layer::Layer;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service as _, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use tower_throttle::key::Global;
use tower_throttle::middleware::{ResponseBody, SettleFn};
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

use crate::generators::Kind;
use crate::generators::{KINDS, Rule, made};
use crate::header_parser::ParsedFields;
use crate::reference_service::{Cost, CostOf, cost_of};
use crate::support::{PolledByHand, Random, TickingClock};

/// The outcome of an admitted call. `None` while the call is in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Costs(Option<u64>),
    Fails,
}

/// The actual cost of a call, in the extensions of its response.
#[derive(Clone, Copy, Debug)]
struct Actual(Option<u64>);

/// A gate in front of the inner service, which answers only when the gate is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Door(Arc<Mutex<Option<Outcome>>>);

pub(crate) type Svc = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;

pub(crate) fn behind() -> Svc {
    BoxCloneSyncService::new(service_fn(|request: Request<Body>| {
        let Door(door) = request.extensions().get::<Door>().unwrap().clone();
        poll_fn(move |_| match *door.lock().unwrap() {
            None => Poll::Pending,
            Some(Outcome::Fails) => Poll::Ready(Err(BoxError::from("it fails"))),
            Some(Outcome::Costs(actual)) => {
                let mut response = Response::new(Body::empty());
                response.extensions_mut().insert(Actual(actual));
                Poll::Ready(Ok(response))
            }
        })
    }))
}

pub(crate) fn limited<L>(layer: L, inner: Svc) -> Svc
where
    L: Layer<Svc>,
    L::Service: tower::Service<Request<Body>, Response = Response<ResponseBody<Body>>, Error = BoxError>,
    L::Service: Clone + Send + Sync + 'static,
    <L::Service as tower::Service<Request<Body>>>::Future: Send,
{
    let service = layer.layer(inner);
    BoxCloneSyncService::new(service.map_response(|response| response.map(Body::new)))
}

pub(crate) fn actual(response: &Response<Body>) -> Option<u64> {
    response.extensions().get::<Actual>().and_then(|Actual(actual)| *actual)
}

pub(crate) type Settling<A> = RateLimitLayer<Global, A, SettleFn<CostOf, fn(&Response<Body>) -> Option<u64>>>;

pub(crate) fn settling<A: Algorithm>(limiter: &RateLimiter<A>) -> Settling<A> {
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).cost(cost_of as fn(&_) -> _);
    layer.settle(actual as fn(&_) -> _)
}

pub(crate) fn limiter<A: Algorithm>(algorithm: A, clock: &TickingClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

/// A call that is in progress, or was denied.
pub(crate) struct Call {
    pub(crate) hand: PolledByHand<<Svc as tower::Service<Request<Body>>>::Future>,
    door: Door,
}

impl Call {
    pub(crate) fn start(service: &Svc, cost: u64) -> Self {
        let door = Door::default();
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(Cost(cost));
        request.extensions_mut().insert(door.clone());
        let mut hand = PolledByHand::new(service.clone().call(request));
        hand.poll();
        Self { hand, door }
    }

    /// Returns whether the call was admitted or is queued.
    pub(crate) fn goes_on(&self) -> bool {
        match &self.hand.output {
            None => true,
            Some(Ok(response)) => response.status() != 429,
            Some(Err(_)) => true,
        }
    }

    #[track_caller]
    pub(crate) fn ends(&mut self, outcome: Outcome) {
        *self.door.0.lock().unwrap() = Some(outcome);
        assert!(self.hand.poll(), "the door is open");
    }

    pub(crate) fn costs(mut self, actual: u64) {
        self.ends(Outcome::Costs(Some(actual)));
    }
}

const LIMIT: u64 = 5;
const SECOND: Duration = Duration::from_secs(1);

fn five() -> Quota {
    Quota::per_second(LIMIT)
}

#[tokio::test]
async fn only_failed_logins_count() {
    for clock in TickingClock::both() {
        let logins = limiter(FixedWindow::new(Quota::per_minute(3)), &clock);
        let layer = RateLimitLayer::with_limiter(Global, logins)
            .settle(|response: &Response<Body>| u64::from(!response.status().is_success()));
        let login = service_fn(|request: Request<Body>| async move {
            let right = request.uri() == "/right";
            let status = if right { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
            let response = Response::builder().status(status).body(Body::empty()).unwrap();
            Ok::<_, BoxError>(response)
        });
        let service = limited(layer, BoxCloneSyncService::new(login));
        let ask = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            (response.status().as_u16(), ParsedFields::read(response.headers()).left[0].r)
        };
        for _ in 0..100 {
            assert_eq!(ask("/right").await, (200, 3), "the fields describe the state after settling");
        }
        assert_eq!(ask("/wrong").await, (401, 2));
        assert_eq!(ask("/wrong").await, (401, 1));
        assert_eq!(ask("/right").await, (200, 1));
        assert_eq!(ask("/wrong").await, (401, 0));
        assert_eq!(ask("/right").await, (429, 0));
        clock.advance(Duration::from_secs(60));
        assert_eq!(ask("/right").await, (200, 3));
    }
}

#[test]
fn settling_higher_charges_only_available_units() {
    for clock in TickingClock::both() {
        let queries = limiter(TokenBucket::new(five()), &clock);
        let service = limited(settling(&queries), behind());
        Call::start(&service, 1).costs(3);
        assert_eq!(queries.peek(&()).remaining(), 2);
        Call::start(&service, 1).costs(100);
        assert_eq!(queries.peek(&()).remaining(), 0);
        // These 97 units are charged to no key.
        clock.advance(SECOND / 5);
        assert_eq!(queries.peek(&()).remaining(), 1);
        Call::start(&service, 1).costs(u64::MAX);
        assert!(!Call::start(&service, 1).goes_on());
        clock.advance(SECOND);
        assert_eq!(queries.peek(&()).remaining(), 5);
    }
}

#[test]
fn a_call_without_a_response_costs_what_it_was_charged() {
    for clock in TickingClock::both() {
        let limiter = limiter(FixedWindow::new(Quota::per_hour(10)), &clock);
        let service = limited(settling(&limiter), behind());
        // The service fails.
        let mut call = Call::start(&service, 2);
        call.ends(Outcome::Fails);
        assert!(call.hand.output.unwrap().is_err());
        assert_eq!(limiter.peek(&()).remaining(), 8);
        // The caller disconnects.
        drop(Call::start(&service, 2));
        assert_eq!(limiter.peek(&()).remaining(), 6);
        // The response reports no cost.
        Call::start(&service, 2).ends(Outcome::Costs(None));
        assert_eq!(limiter.peek(&()).remaining(), 4);
        // The call is denied.
        assert!(!Call::start(&service, 5).goes_on());
        assert_eq!(limiter.peek(&()).remaining(), 4);
        // The call is settled when the head of the response is there, whatever happens to the body.
        let mut call = Call::start(&service, 3);
        assert_eq!(limiter.peek(&()).remaining(), 1);
        call.ends(Outcome::Costs(Some(1)));
        assert_eq!(limiter.peek(&()).remaining(), 3);
        drop(call);
        assert_eq!(limiter.peek(&()).remaining(), 3);
    }
}

/// Charges three units. After the end of their window, charges two units in the next window.
fn adds_nothing_to_the_next_window<A: Algorithm>(algorithm: A) {
    for actual in [0, 1, 2] {
        for (taken, clock) in (0..=2).flat_map(|taken| TickingClock::both().map(|clock| (taken, clock))) {
            let reported = |decision: Decision| reported(&decision, &clock);
            clock.set(Duration::from_secs(1_000));
            let rule = format!("{algorithm:?}");
            let ours = limiter(algorithm.clone(), &clock);
            let reference = limiter(algorithm.clone(), &clock);
            let service = limited(settling(&ours), behind());
            let call = Call::start(&service, 3);
            let _ = reference.check_n(&(), 3);
            // After two periods and a slice, all older units have expired.
            clock.advance(SECOND * 2 + SECOND / 10);
            for _ in 0..taken {
                assert_eq!(ours.check(&()).is_allowed(), reference.check(&()).is_allowed());
            }
            call.costs(actual);
            assert_eq!(reported(ours.peek_n(&(), 1)), reported(reference.peek_n(&(), 1)), "{rule}");
            for _ in 0..LIMIT {
                assert_eq!(reported(ours.check(&())), reported(reference.check(&())), "{rule}");
            }
        }
    }
}

/// Returns exact times if the clock stands still, so that two limiters read the same time.
fn reported(decision: &Decision, clock: &TickingClock) -> (bool, u64, Option<Duration>, Duration) {
    let times = match clock.ticks() {
        true => (decision.retry_after().map(|_| Duration::ZERO), Duration::ZERO),
        false => (decision.retry_after(), decision.reset_after()),
    };
    (decision.is_allowed(), decision.remaining(), times.0, times.1)
}

#[test]
fn a_refund_for_an_ended_window_adds_nothing_to_the_next() {
    for kind in KINDS {
        if kind != Kind::Concurrency {
            made!(Rule::of(kind, five()), |rule| adds_nothing_to_the_next_window(rule));
        }
    }
    let tuple = (FixedWindow::new(five()), SlidingLog::new(five()));
    adds_nothing_to_the_next_window(tuple);
    adds_nothing_to_the_next_window(TokenBucket::new(five()).block_for(SECOND).after(3));
    adds_nothing_to_the_next_window(FixedWindow::new(five()).priority(20));
}

/// While a call with an actual cost of zero still counts, settling it leaves the state as if the call had never been
/// made.
fn refunds_all<A: Algorithm>(algorithm: A) {
    for (before, clock) in (0..=2).flat_map(|before| TickingClock::both().map(|clock| (before, clock))) {
        clock.set(Duration::from_secs(1_000));
        let rule = format!("{algorithm:?}");
        let ours = limiter(algorithm.clone(), &clock);
        let reference = limiter(algorithm.clone(), &clock);
        let service = limited(settling(&ours), behind());
        for _ in 0..before {
            assert_eq!(ours.check(&()).is_allowed(), reference.check(&()).is_allowed());
        }
        let call = Call::start(&service, 1);
        if !call.goes_on() {
            continue;
        }
        clock.advance(SECOND / 50);
        call.costs(0);
        // `Smooth` is exact to the nanosecond.
        clock.advance(Duration::from_nanos(1));
        let (ours, reference) = (ours.peek(&()), reference.peek(&()));
        assert_eq!(
            (ours.is_allowed(), ours.remaining()),
            (reference.is_allowed(), reference.remaining()),
            "{rule}"
        );
    }
}

#[test]
fn a_refund_while_the_call_still_counts_returns_all_units() {
    for kind in KINDS {
        // Permits that a cold start has taken from the store are not given back.
        if ![Kind::Concurrency, Kind::WarmingUp].contains(&kind) {
            made!(Rule::of(kind, five()), |rule| refunds_all(rule));
        }
    }
    refunds_all((TokenBucket::new(five()), SlidingWindow::new(five())));
    refunds_all(SlidingCounter::new(five()).block_for(SECOND).after(3));
}

/// Some calls succeed and some fail. Only the failures count, and not longer than without the successes.
fn extends_nothing_else<A: Algorithm>(algorithm: A) {
    for clock in TickingClock::both() {
        clock.set(Duration::from_secs(1_000));
        let rule = format!("{algorithm:?}");
        let ours = limiter(algorithm.clone(), &clock);
        let reference = limiter(algorithm.clone(), &clock);
        let service = limited(settling(&ours), behind());
        for _ in 0..LIMIT - 1 {
            Call::start(&service, 1).costs(1);
            assert!(reference.check(&()).is_allowed());
        }
        for _ in 0..30 {
            clock.advance(SECOND / 10 + Duration::from_nanos(1));
            let call = Call::start(&service, 1);
            assert!(call.goes_on(), "{rule}");
            clock.advance(Duration::from_nanos(7));
            call.costs(0);
            assert_eq!(ours.peek(&()).remaining(), reference.peek(&()).remaining(), "{rule}");
        }
        assert_eq!(ours.peek(&()).remaining(), LIMIT, "{rule}");
    }
}

#[test]
fn refunded_units_extend_nothing_else() {
    use Kind::*;
    for kind in [FixedWindow, Aligned, SlidingWindow, SlidingCounter, SlidingLog] {
        made!(Rule::of(kind, five()), |rule| extends_nothing_else(rule));
    }
}

#[test]
fn a_call_in_progress_is_free_when_it_ends_whatever_its_cost() {
    for clock in TickingClock::both() {
        let limiter = limiter(Concurrency::per_key(3), &clock);
        let service = limited(settling(&limiter), behind());
        for actual in [0, 1, 3] {
            let mut call = Call::start(&service, 1);
            call.ends(Outcome::Costs(Some(actual)));
            assert_eq!(limiter.peek(&()).remaining(), 2, "its body has not ended");
            drop(call);
            assert_eq!(limiter.peek(&()).remaining(), 3);
        }
    }
}

#[test]
fn joined_policies_are_settled_independently() {
    for clock in TickingClock::both() {
        let hour = || limiter(FixedWindow::new(Quota::per_hour(10)), &clock);
        let (plain, settled, halved) = (hour(), hour(), hour());
        let half = |response: &Response<Body>| actual(response).map(|actual| actual / 2);
        let of_half =
            RateLimitLayer::with_limiter(Global, halved.clone()).cost(cost_of as fn(&_) -> _).settle(half);
        let as_charged = RateLimitLayer::with_limiter(Global, plain.clone()).cost(cost_of as fn(&_) -> _);
        let service = limited(as_charged.and(settling(&settled)).and(of_half), behind());
        let left = || [&plain, &settled, &halved].map(|limiter| limiter.peek(&()).remaining());
        let call = Call::start(&service, 4);
        assert_eq!(left(), [6, 6, 6]);
        call.costs(2);
        assert_eq!(left(), [6, 8, 9]);
        Call::start(&service, 1).costs(6);
        assert_eq!(left(), [5, 2, 6]);
        // One layer denies the call, so no layer settles it.
        assert!(!Call::start(&service, 3).goes_on());
        assert_eq!(left(), [5, 2, 6]);
        let mut call = Call::start(&service, 2);
        call.ends(Outcome::Fails);
        assert_eq!(left(), [3, 0, 4]);
    }
}

#[test]
fn each_limit_of_a_tuple_gets_back_the_units_that_still_count() {
    for clock in TickingClock::both() {
        let second_and_hour = (FixedWindow::new(five()), FixedWindow::new(Quota::per_hour(20)));
        let limiter = limiter(second_and_hour, &clock);
        let service = limited(settling(&limiter), behind());
        let call = Call::start(&service, 4);
        clock.advance(SECOND);
        assert!(limiter.check_n(&(), 5).is_allowed());
        call.costs(0);
        // The limit of this second is used up, and five of the 20 units of the hour are used.
        assert_eq!(limiter.peek(&()).remaining(), 0);
        for _ in 0..3 {
            clock.advance(SECOND);
            assert!(limiter.check_n(&(), 5).is_allowed());
        }
        clock.advance(SECOND);
        assert_eq!(limiter.peek(&()).remaining(), 0);
    }
}

#[test]
fn a_queued_call_is_settled_from_its_release() {
    for clock in TickingClock::both() {
        let line = limiter(TokenBucket::new(Quota::per_second(1).burst(2)).queue(5), &clock);
        let service = limited(settling(&line), behind());
        let [mut a, mut b, mut c] = [2, 2, 2].map(|cost| Call::start(&service, cost));
        a.ends(Outcome::Costs(None));
        clock.advance(SECOND * 2);
        assert!(!b.hand.poll() && !c.hand.poll());
        // The call arrived two seconds ago, but was released just now. Both its units still count, and the next call is
        // released.
        b.ends(Outcome::Costs(Some(0)));
        assert!(!c.hand.poll());
        c.ends(Outcome::Costs(Some(2)));
        assert_eq!(line.peek(&()).remaining(), 0);
        clock.advance(SECOND * 2);
        assert_eq!(line.peek(&()).remaining(), 2);
    }
}

#[test]
fn a_refund_releases_the_next_queued_call_sooner() {
    for clock in TickingClock::both() {
        let line = limiter(LeakyBucket::new(Quota::per_second(1)).queue(5), &clock);
        let service = limited(settling(&line), behind());
        let a = Call::start(&service, 4);
        let mut b = Call::start(&service, 1);
        *b.door.0.lock().unwrap() = Some(Outcome::Costs(None));
        clock.advance(SECOND);
        assert!(!b.hand.poll(), "three more seconds");
        a.costs(1);
        assert!(!b.hand.run(), "one of three units has been refilled");
        clock.advance(SECOND);
        assert!(b.hand.run(), "woken and released");
    }
}

/// A naive model of an algorithm.
trait Naive {
    fn left(&mut self, now: u64) -> u64;
    fn take(&mut self, now: u64, units: u64);
    /// Settles a call that was charged `charged` units at `taken` to a lower cost.
    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64);
}

const PERIOD: u64 = 1_000;

/// A window that begins with its first unit.
struct Window {
    limit: u64,
    begun: Option<u64>,
    used: u64,
}

impl Naive for Window {
    fn left(&mut self, now: u64) -> u64 {
        if self.begun.is_some_and(|begun| now - begun >= PERIOD) {
            (self.begun, self.used) = (None, 0);
        }
        self.limit - self.used
    }

    fn take(&mut self, now: u64, units: u64) {
        self.left(now);
        if self.used == 0 && units > 0 {
            self.begun = Some(now);
        }
        self.used += units;
    }

    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64) {
        self.left(now);
        if self.begun.is_some_and(|begun| taken >= begun) {
            self.used -= charged - actual;
        }
    }
}

/// All units, each with the time at which it was charged.
struct Log {
    limit: u64,
    taken: VecDeque<u64>,
}

impl Naive for Log {
    fn left(&mut self, now: u64) -> u64 {
        self.taken.retain(|taken| now - taken < PERIOD);
        self.limit - self.taken.len() as u64
    }

    fn take(&mut self, now: u64, units: u64) {
        self.taken.extend((0..units).map(|_| now));
    }

    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64) {
        self.left(now);
        for _ in actual..charged {
            if let Some(at) = self.taken.iter().position(|unit| *unit == taken) {
                self.taken.remove(at);
            }
        }
    }
}

/// The missing units, in fractions of a unit. A unit has as many fractions as the period has nanoseconds, and each
/// nanosecond refills `limit` fractions.
struct Bucket {
    limit: u64,
    missing: u64,
    seen: u64,
}

impl Naive for Bucket {
    fn left(&mut self, now: u64) -> u64 {
        self.missing = self.missing.saturating_sub((now - self.seen) * self.limit);
        self.seen = now;
        (self.limit * PERIOD - self.missing) / PERIOD
    }

    fn take(&mut self, now: u64, units: u64) {
        self.left(now);
        self.missing += units * PERIOD;
    }

    /// Refunds the difference, less the units that have been refilled since the charge.
    fn give(&mut self, now: u64, charged: u64, actual: u64, taken: u64) {
        self.left(now);
        let counts = ((charged - actual) * PERIOD).saturating_sub((now - taken) * self.limit);
        self.missing = self.missing.saturating_sub(counts);
    }
}

/// Returns one nanosecond for the models if the clock stands still. Otherwise, returns a time that is so long that the
/// advances of the clock do not matter.
fn unit(clock: &TickingClock) -> u32 {
    if clock.ticks() { 1_000_000 } else { 1 }
}

fn agrees<A: Algorithm, N: Naive>(clock: fn() -> TickingClock, rule: fn(Quota) -> A, naive: fn(u64) -> N) {
    for (seed, clock) in (0..2_000).map(|seed| (seed, clock())) {
        let nanos = |nanos| Duration::from_nanos(nanos) * unit(&clock);
        let mut random = Random::new(seed);
        let limit = 1 + random.below(12);
        let mut now = 1_000_000;
        clock.set(nanos(now));
        let limiter = limiter(rule(Quota::per(limit, nanos(PERIOD)).unwrap()), &clock);
        let service = limited(settling(&limiter), behind());
        let mut naive = naive(limit);
        let mut open: Vec<(Call, u64, u64)> = Vec::new();
        for _ in 0..40 {
            match random.below(4) {
                0 => {
                    let most = if random.one_in(5) { 3 * PERIOD } else { PERIOD / 3 };
                    now += random.below(most);
                    clock.set(nanos(now));
                }
                1 | 2 => {
                    let most = limit / 2 + random.below(3);
                    let cost = random.within(0..=most);
                    let call = Call::start(&service, cost);
                    let fits = cost == 0 || cost <= naive.left(now);
                    assert_eq!(call.goes_on(), fits, "seed {seed}");
                    if fits {
                        naive.take(now, cost);
                        open.push((call, cost, now));
                    }
                }
                _ if open.is_empty() => {}
                _ => {
                    let at = random.below(open.len() as u64) as usize;
                    let (mut call, cost, taken) = open.swap_remove(at);
                    match random.below(6) {
                        0 => call.ends(Outcome::Fails),
                        1 => drop(call),
                        2 => call.ends(Outcome::Costs(None)),
                        _ => {
                            let actual = random.below(cost + 3);
                            call.costs(actual);
                            if actual < cost {
                                naive.give(now, cost, actual, taken);
                            } else {
                                let more = (actual - cost).min(naive.left(now));
                                naive.take(now, more);
                            }
                        }
                    }
                }
            }
            assert_eq!(
                limiter.peek(&()).remaining(),
                naive.left(now),
                "seed {seed}, at {now}, of {limit}: {limiter:?}"
            );
        }
    }
}

#[test]
fn naive_models_agree() {
    for clock in [TickingClock::still, TickingClock::new] {
        agrees(clock, FixedWindow::new, |limit| Window { limit, begun: None, used: 0 });
        agrees(clock, SlidingLog::new, |limit| Log { limit, taken: VecDeque::new() });
    }
    // If the clock advances at each reading, a bucket that was refunded lacks the units that were refilled between two
    // readings. The model does not include this.
    agrees(TickingClock::still, TokenBucket::new, |limit| Bucket { limit, missing: 0, seen: 0 });
}

/// Asserts that no call is admitted that would be denied if each call had been charged its actual cost from the
/// beginning.
///
/// `other` makes the same algorithm as `rule`, or one that admits all that `rule` admits. The actual cost of each call
/// is at least `least`.
fn assert_refund_never_exceeds_charge<A: Algorithm, B: Algorithm>(
    rule: fn(Quota) -> A,
    other: fn(Quota) -> B,
    least: u64,
) {
    for (seed, clock) in (0..300).flat_map(|seed| TickingClock::both().map(|clock| (seed, clock))) {
        let nanos = |nanos| Duration::from_nanos(nanos) * unit(&clock);
        let mut random = Random::new(seed);
        let limit = 1 + random.below(9);
        let quota = Quota::per(limit, nanos(PERIOD)).unwrap();
        let (rule, kinder) = (rule(quota), other(quota));
        let mut now = 1_000_000;
        clock.set(nanos(now));
        let limiter = limiter(rule.clone(), &clock);
        let service = limited(settling(&limiter), behind());
        // The arrival, the charge and the actual cost of each call.
        let mut calls: Vec<(u64, u64)> = Vec::new();
        let mut open: Vec<(Call, usize)> = Vec::new();
        for _ in 0..20 {
            now += random.below(PERIOD / 3);
            clock.set(nanos(now));
            let cost = 1 + random.below(limit);
            let call = Call::start(&service, cost);
            if call.goes_on() {
                open.push((call, calls.len()));
                calls.push((now, cost));
            }
            if !open.is_empty() && random.one_in(2) {
                let at = random.below(open.len() as u64) as usize;
                let (call, at) = open.swap_remove(at);
                let actual = random.within(least..=calls[at].1);
                calls[at].1 = actual;
                call.costs(actual);
            }
            let clock = TickingClock::still();
            clock.set(nanos(1_000_000));
            let other = RateLimiter::builder(kinder.clone()).clock(clock.clone()).build();
            for (came, cost) in &calls {
                clock.set(nanos(*came));
                assert!(other.check_n(&(), *cost).is_allowed(), "seed {seed}: {rule:?}");
            }
            clock.set(nanos(now));
            let (ours, best) = (limiter.peek(&()).remaining(), other.peek(&()).remaining());
            assert!(ours <= best, "seed {seed}, at {now}: {ours} and not {best}: {rule:?}");
        }
    }
}

#[test]
fn refund_never_exceeds_charge() {
    let aligned = |quota| FixedWindow::new(quota).aligned();
    assert_refund_never_exceeds_charge(aligned, aligned, 0);
    assert_refund_never_exceeds_charge(SlidingLog::new, SlidingLog::new, 0);
    assert_refund_never_exceeds_charge(SlidingWindow::new, SlidingLog::new, 0);
    assert_refund_never_exceeds_charge(TokenBucket::new, TokenBucket::new, 0);
    let leaky = |quota| LeakyBucket::new(quota).queue(0);
    assert_refund_never_exceeds_charge(leaky, leaky, 0);
    let bursty = |quota| Smooth::bursty(quota).queue(0);
    assert_refund_never_exceeds_charge(bursty, bursty, 0);
    // The windows begin with a call, so this call must have a cost above 0.
    assert_refund_never_exceeds_charge(FixedWindow::new, FixedWindow::new, 1);
    assert_refund_never_exceeds_charge(SlidingCounter::new, SlidingCounter::new, 1);
}
