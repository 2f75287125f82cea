//! Once the algorithm of a limiter was replaced, the fields of later responses are those of the new algorithm.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, AlgorithmInfo, FixedWindow, QueueConfig, QuotaPolicy, TokenBucket,
};
use tower_throttle::clock::Nanos;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::limiter::{Acquired, Attempt, Limiter, LimiterFor, MemoryKey};
use tower_throttle::stats::LimiterStats;
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, PolledByHand, scaled};

type Http = Request<u64>;
type Body = Empty<&'static [u8]>;

async fn hello(_: Http) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Empty::new()))
}

/// Returns the limits of all items of `RateLimit-Policy`.
fn limits<B>(response: &Response<B>) -> Vec<u64> {
    let lines = response.headers().get_all("ratelimit-policy").into_iter();
    let items = lines.flat_map(|line| line.to_str().unwrap().split(','));
    let limit = |item: &str| item.split(';').find_map(|part| part.strip_prefix("q=")?.parse().ok());
    items.map(|item| limit(item).unwrap()).collect()
}

/// Returns the response to a request that does not wait.
fn at_once<S, B>(service: &S, number: u64) -> Response<B>
where
    S: Service<Http, Response = Response<B>, Error = Infallible> + Clone,
{
    service.clone().oneshot(Request::new(number)).now().unwrap()
}

/// Sends requests through `service` from two threads while `replace` runs in a loop. Asserts that each response reports
/// the limit of an algorithm that was not replaced before the request began, and not later than its end.
fn while_replaced<S, B>(service: &S, calls: u64, replace: impl Fn(u64) + Sync)
where
    S: Service<Http, Response = Response<B>, Error = Infallible> + Clone + Send + Sync,
{
    /// Ends the loop of replacements, also if an assertion fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (ended, begun, replaced) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let send = || {
        let _end = End(&ended);
        for number in 0..calls {
            let oldest = replaced.load(Ordering::SeqCst);
            let reported = limits(&at_once(service, number))[0];
            let newest = begun.load(Ordering::SeqCst);
            assert!((limit(oldest)..=limit(newest)).contains(&reported), "{oldest} to {newest}: {reported}");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                begun.store(number, Ordering::SeqCst);
                replace(number);
                replaced.store(number, Ordering::SeqCst);
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        scope.spawn(send);
        send();
    });
    assert!(replaced.load(Ordering::Relaxed) > 10, "the algorithm was replaced beside the requests");
}

/// Returns the limit after this number of replacements.
fn limit(number: u64) -> u64 {
    1_000_000_000 + number
}

fn by_number() -> impl tower_throttle::key::KeyExtractor<Http, Key = u64> + Clone {
    from_fn(|request: &Http| Some(request.body() % 1_000))
}

#[test]
fn requests_report_no_algorithm_that_was_replaced_before_they_began() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(limit(0))));
    let layer = RateLimitLayer::with_limiter(by_number(), limiter.clone());
    let replace = |number| limiter.replace(TokenBucket::new(Quota::per_hour(limit(number))));
    while_replaced(&layer.layer(service_fn(hello)), scaled(100_000), replace);
}

#[test]
fn joined_requests_report_no_algorithm_that_was_replaced_before_they_began() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(limit(0))));
    let other = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(2_000_000_000)));
    let layer = RateLimitLayer::with_limiter(by_number(), limiter.clone()).and(other);
    let replace = |number| limiter.replace(TokenBucket::new(Quota::per_hour(limit(number))));
    while_replaced(&layer.layer(service_fn(hello)), scaled(50_000), replace);
}

#[test]
fn denied_and_settled_requests_report_the_new_algorithm() {
    let limiter = RateLimiter::new(FixedWindow::new(Quota::per_hour(1)));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
    let service = layer.settle(|_: &Response<Body>| 2_u64).layer(service_fn(hello));
    for quota in 2..100 {
        limiter.replace(FixedWindow::new(Quota::per_hour(quota)));
        limiter.reset(&());
        for number in 0..quota {
            let response = at_once(&service, number);
            assert_eq!(response.status() == 429, number >= quota.div_ceil(2), "{number} of {quota}");
            assert_eq!(limits(&response), [quota]);
        }
    }
}

/// A request that was queued before the replacement is reported by the algorithm that the limiter has when it leaves.
#[tokio::test(start_paused = true)]
async fn joined_policies_with_one_limiter_report_its_new_algorithm() {
    let bucket = |burst| TokenBucket::new(Quota::per_second(1).burst(burst)).queue(5);
    let limiter = RateLimiter::new(bucket(2));
    let layer = || RateLimitLayer::with_limiter(Global, limiter.clone());
    let service = layer().and(layer()).layer(service_fn(hello));
    let before = at_once(&service, 0);
    let mut waiting = PolledByHand::new(service.clone().oneshot(Request::new(0)));
    assert!(!waiting.poll());
    limiter.replace(bucket(4));
    advance(Duration::from_secs(3)).await;
    assert!(waiting.poll());
    limiter.reset(&());
    let after = [at_once(&service, 0), waiting.output.unwrap().unwrap()].map(|response| limits(&response));
    assert_eq!((limits(&before), after), (vec![2, 2], [vec![4, 4], vec![4, 4]]));
}

/// The names of the policies are those that were set, whatever the algorithm is.
#[test]
fn a_replaced_algorithm_keeps_its_name() {
    fn check<A: Algorithm>(limiter: &RateLimiter<A>, replacement: A, expected: &str) {
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).name("api");
        let service = layer.layer(service_fn(hello));
        limiter.replace(replacement);
        for _ in 0..3 {
            let response = at_once(&service, 0);
            assert_eq!(response.headers()["ratelimit-policy"], expected);
        }
    }
    let quota = Quota::per_hour;
    check(&RateLimiter::new(TokenBucket::new(quota(5))), TokenBucket::new(quota(7)), "\"api\";q=7;w=3600");
}

/// A limiter that sets its generation itself.
#[derive(Clone)]
struct Announced(RateLimiter<TokenBucket>, Arc<AtomicU64>);

impl Limiter for Announced {
    type Algorithm = TokenBucket;
    type Error = Infallible;
    type Wait = <RateLimiter<TokenBucket> as Limiter>::Wait;

    fn info(&self) -> Arc<AlgorithmInfo> {
        self.0.info()
    }

    fn generation(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }

    fn stats(&self) -> LimiterStats {
        LimiterStats::default()
    }

    fn close(&self) {}
}

impl<K: MemoryKey + ?Sized> LimiterFor<K> for Announced {
    fn acquire(&self, key: &K, attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
        LimiterFor::acquire(&self.0, key, attempt)
    }
}

/// A layer may ask for the info between the two changes of a replacement, or while the next replacement has begun.
#[test]
fn a_layer_remembers_the_generation_of_the_info_that_it_got() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(10)));
    let generation = Arc::new(AtomicU64::new(0));
    let announced = Announced(limiter.clone(), Arc::clone(&generation));
    let service = RateLimitLayer::with_limiter(Global, announced).layer(service_fn(hello));
    let quota = || limits(&at_once(&service, 0))[0];
    // The generation is set too early: the layer gets the old info, and asks again.
    generation.store(1, Ordering::SeqCst);
    assert_eq!(quota(), 10);
    limiter.replace(TokenBucket::new(Quota::per_hour(20)));
    assert_eq!([quota(), quota()], [20; 2]);
    // The layer asks because of the second replacement, and gets the info of the third.
    limiter.replace(TokenBucket::new(Quota::per_hour(30)));
    assert_eq!(quota(), 20);
    limiter.replace(TokenBucket::new(Quota::per_hour(40)));
    generation.store(2, Ordering::SeqCst);
    assert_eq!(quota(), 40);
    generation.store(3, Ordering::SeqCst);
    assert_eq!(quota(), 40);
}

type Three = (FixedWindow, FixedWindow, TokenBucket);

/// An algorithm of three limits, or of the last of them. The last one queues requests, and is the nearest to its limit.
#[derive(Clone, Debug)]
struct ThreeOrOne {
    three: Three,
    is_three: bool,
}

impl ThreeOrOne {
    fn new(is_three: bool) -> Self {
        let windows = [300, 200].map(|limit| FixedWindow::new(Quota::per_hour(limit)));
        let [first, second] = windows;
        let three = (first, second, TokenBucket::new(Quota::per_second(1).burst(1)).queue(5));
        Self { three, is_three }
    }
}

impl Algorithm for ThreeOrOne {
    type State = <Three as Algorithm>::State;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State {
        self.three.new_state(created_at, now)
    }

    fn last_update(&self, state: &Self::State) -> Nanos {
        if self.is_three { self.three.last_update(state) } else { self.three.2.last_update(&state.2) }
    }

    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        match self.is_three {
            true => self.three.check(state, now, cost),
            false => self.three.2.check(&mut state.2, now, cost),
        }
    }

    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        match self.is_three {
            true => self.three.peek(state, now, cost),
            false => self.three.2.peek(&mut state.2, now, cost),
        }
    }

    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.three.refund(state, now, cost, charged_at);
    }

    fn migrate(&self, _: &mut Self::State, _: &Self, _: Nanos) {}

    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
        self.three.is_fresh(state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        self.three.2.policy()
    }

    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        if self.is_three { self.three.for_each_policy(f) } else { f(self.policy()) }
    }

    fn queue_config(&self) -> Option<QueueConfig> {
        self.three.2.queue_config()
    }

    fn ready_at(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Option<Nanos> {
        match self.is_three {
            true => self.three.ready_at(state, now, cost),
            false => self.three.2.ready_at(&mut state.2, now, cost),
        }
    }
}

/// Returns the names of the items of a field.
fn names<B>(response: &Response<B>, field: &str) -> Vec<String> {
    let lines = response.headers().get_all(field).into_iter();
    let items = lines.flat_map(|line| line.to_str().unwrap().split(','));
    items.map(|item| item.split(';').next().unwrap().trim().trim_matches('"').to_owned()).collect()
}

const ALL: [&str; 3] = ["default", "default-2", "default-3"];

/// An algorithm of one limit replaces one of three, and the other way round. A layer has the names that it had at
/// first, so a decision may report a limit without a name.
#[tokio::test(start_paused = true)]
async fn a_limit_without_a_name_is_reported_by_the_last_name() {
    for is_three in [true, false] {
        let (first, replacement) = (ThreeOrOne::new(is_three), ThreeOrOne::new(!is_three));
        let before: &[&str] = if is_three { &ALL } else { &ALL[..1] };
        let limiter = RateLimiter::new(first.clone());
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
        let alone = layer.clone().layer(service_fn(hello));
        let other = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(900))).name("other");
        let joined = layer.clone().and(other).layer(service_fn(hello));

        // The call is admitted by the first algorithm, and settled by the other.
        let replaced = (limiter.clone(), replacement.clone());
        let late = layer.settle(|_: &Response<Body>| 1_u64).layer(service_fn(move |_: Http| {
            replaced.0.replace(replaced.1.clone());
            ready(Ok::<_, Infallible>(Response::new(Body::new())))
        }));
        let response = at_once(&late, 0);
        assert_eq!(names(&response, "ratelimit-policy"), before);
        assert_eq!(names(&response, "ratelimit"), ALL[..1]);

        // The calls are queued by the first algorithm. One of them is admitted by it before it is replaced, or none is,
        // and their futures are polled when the layer has the other names.
        for seconds in [0, 2] {
            limiter.replace(first.clone());
            advance(Duration::from_secs(60)).await;
            at_once(&alone, 0);
            let mut queued = PolledByHand::new(alone.clone().oneshot(Request::new(0)));
            let mut both = PolledByHand::new(joined.clone().oneshot(Request::new(0)));
            assert!(!queued.poll() && !both.poll());
            advance(Duration::from_secs(seconds)).await;
            limiter.replace(replacement.clone());
            advance(Duration::from_secs(2)).await;
            assert!(queued.poll());
            let response = queued.output.unwrap().unwrap();
            assert_eq!(names(&response, "ratelimit-policy"), ALL[..1]);
            assert_eq!(names(&response, "ratelimit"), ALL[..1]);
            advance(Duration::from_secs(2)).await;
            assert!(both.poll());
            assert_eq!(names(&both.output.unwrap().unwrap(), "ratelimit"), ["default", "other"]);
        }

        // The fields of later requests are those of the names that the layer has.
        for (algorithm, expected) in [(&replacement, &ALL[..1]), (&first, before)] {
            limiter.replace(algorithm.clone());
            advance(Duration::from_secs(60)).await;
            let response = at_once(&alone, 0);
            assert_eq!(names(&response, "ratelimit-policy"), expected);
            assert_eq!(names(&response, "ratelimit").first().map(String::as_str), expected.last().copied());
        }
    }
}

/// A layer that has not seen the new algorithm yet asks how long its first request may wait.
#[tokio::test(start_paused = true)]
async fn the_first_request_that_a_new_algorithm_queues_does_not_wait_beyond_its_timeout() {
    let bucket = || TokenBucket::new(Quota::per_second(1).burst(1));
    let limiter = RateLimiter::new(bucket());
    let service = RateLimitLayer::with_limiter(Global, limiter.clone()).layer(service_fn(hello));
    assert!(at_once(&service, 0).status().is_success());
    for _ in 0..2 {
        limiter.replace(bucket());
        limiter.replace(bucket().queue(5));
        let mut request = Request::new(0);
        request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        request.headers_mut().insert("grpc-timeout", "100m".parse().unwrap());
        let mut call = PolledByHand::new(service.clone().oneshot(request));
        assert!(call.poll(), "the request waits for a second");
    }
}
