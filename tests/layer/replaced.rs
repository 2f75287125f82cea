//! The fields of a response are those of the algorithm that decided the request, while the algorithm of its limiter is
//! replaced.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::middleware::{HttpResponder, Rejection};
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, PolledByHand, scaled};

type Http = Request<u64>;

/// Returns the decision on the request, as the handler sees it.
async fn echo(request: Http) -> Result<Response<Empty<&'static [u8]>>, Infallible> {
    let mut response = Response::new(Empty::new());
    if let Some(decision) = request.extensions().get::<Decision>() {
        response.headers_mut().insert("decided-by", decision.limit().into());
    }
    Ok(response)
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

/// Sends requests through `service` while `replace` runs in a loop. Asserts that the first limit of each response is the
/// one that decided it. Returns the number of different limits.
fn while_replaced<S, B>(service: S, calls: u64, replace: impl Fn(u64) + Sync) -> usize
where
    S: Service<Http, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + Sync,
{
    /// Ends the loop of replacements, also if an assertion fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (ended, replaced) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut seen: Vec<u64> = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !ended.load(Ordering::Relaxed) {
                number += 1;
                replace(number);
                replaced.store(number, Ordering::Relaxed);
            }
        });
        let _end = End(&ended);
        for number in 0..calls {
            let response = at_once(&service, number);
            let limits = limits(&response);
            if let Some(decided) = response.headers().get("decided-by") {
                assert_eq!(decided.to_str().unwrap(), limits[0].to_string());
            }
            seen.extend(limits.first());
        }
    });
    assert!(replaced.load(Ordering::Relaxed) > 10, "the algorithm was replaced beside the requests");
    seen.sort_unstable();
    seen.dedup();
    seen.len()
}

/// Returns a limit that no other replacement has soon.
fn limit(number: u64) -> u64 {
    1_000_000_000 + number % 1_000_000
}

fn by_number() -> impl tower_throttle::key::KeyExtractor<Http, Key = u64> + Clone {
    from_fn(|request: &Http| Some(request.body() % 1_000))
}

#[test]
fn admitted_requests_report_the_algorithm_that_decided_them() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(limit(0))));
    let layer = RateLimitLayer::with_limiter(by_number(), limiter.clone());
    let replace = |number| limiter.replace(TokenBucket::new(Quota::per_hour(limit(number))));
    assert!(while_replaced(layer.layer(service_fn(echo)), scaled(400_000), replace) > 10);
}

#[test]
fn denied_requests_report_the_algorithm_that_decided_them() {
    let clock = ManualClock::new();
    let algorithm = |number| FixedWindow::new(Quota::per_hour(1 + number % 100_000));
    let limiter = RateLimiter::builder(algorithm(0)).clock(clock.clone()).build();
    let responder = HttpResponder::new();
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(responder).on_reject(
        |rejection: &Rejection<'_>, _: &Http| {
            let Rejection::Limited(reports) = rejection else { panic!("{rejection:?}") };
            assert_eq!(reports[0].policy().quota, reports[0].decision().limit());
        },
    );
    assert!(limiter.call(&()).cost(1).check().is_allowed());
    // The units of the key stay at the limit, because each new limit is at most what was charged.
    let replace = |number| limiter.replace(algorithm(100_000 - number % 100_000));
    while_replaced(layer.layer(service_fn(echo)), scaled(300_000), replace);
}

#[test]
fn joined_requests_report_the_algorithms_that_decided_them() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(limit(0))));
    let other = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(2_000_000_000)));
    let layer = RateLimitLayer::with_limiter(by_number(), limiter.clone()).and(other);
    let service = layer.layer(service_fn(|request: Http| async move {
        let decision = *request.extensions().get::<Decision>().unwrap();
        let mut response = echo(request).await?;
        // The decision for handlers is the nearest to its limit, which is that of the first policy.
        response.headers_mut().insert("decided-by", decision.limit().into());
        Ok::<_, Infallible>(response)
    }));
    let replace = |number| limiter.replace(TokenBucket::new(Quota::per_hour(limit(number))));
    assert!(while_replaced(service, scaled(200_000), replace) > 10);
}

#[test]
fn settled_requests_report_the_algorithm_that_settled_them() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(limit(0))));
    let layer = RateLimitLayer::with_limiter(by_number(), limiter.clone())
        .settle(|_: &Response<Empty<&'static [u8]>>| 2_u64);
    let service = layer.layer(service_fn(|_: Http| async {
        Ok::<_, Infallible>(Response::new(Empty::<&'static [u8]>::new()))
    }));
    let service = service.map_response(|response| {
        // Few of the units are used, so the number of those that are left tells the limit.
        let field = response.headers()["ratelimit"].to_str().unwrap();
        let left: u64 = field.split(';').find_map(|part| part.strip_prefix("r=")?.parse().ok()).unwrap();
        let reported = limits(&response)[0];
        assert!(left <= reported && reported - left < 2_000, "{field} with {reported}");
        response
    });
    let replace = |number| limiter.replace(TokenBucket::new(Quota::per_hour(limit(number * 5_000))));
    while_replaced(service, scaled(100_000), replace);
}

/// The requests were released by the old algorithm before it was replaced, and are polled afterwards.
#[tokio::test(start_paused = true)]
async fn a_request_that_waited_reports_the_algorithm_that_released_it() {
    let bucket = |places| LeakyBucket::new(Quota::per_second(1)).queue(places);
    let limiter = RateLimiter::new(bucket(5));
    let service = RateLimitLayer::with_limiter(Global, limiter.clone()).layer(service_fn(echo));
    let first = service.clone().oneshot(Request::new(0)).await.unwrap();
    let before = limits(&first);
    let mut waiting: Vec<_> =
        (0..2).map(|_| PolledByHand::new(service.clone().oneshot(Request::new(0)))).collect();
    assert!(waiting.iter_mut().all(|call| !call.poll()));
    // The first of the two is due, but is not polled.
    advance(Duration::from_millis(1_100)).await;
    limiter.replace(bucket(9));
    advance(Duration::from_millis(1_000)).await;
    let mut reported = Vec::new();
    for mut call in waiting {
        assert!(call.poll());
        let response = call.output.unwrap().unwrap();
        let limits = limits(&response);
        assert_eq!(response.headers()["decided-by"].to_str().unwrap(), limits[0].to_string());
        reported.push(limits);
    }
    assert_ne!(before, reported[1], "the second was released by the new algorithm");
    assert_eq!(before, reported[0], "the first was released by the old algorithm");
}

/// The names of the policies are those that were set, whatever the algorithm is.
#[test]
fn a_replaced_algorithm_keeps_its_name() {
    fn check<A: Algorithm>(limiter: &RateLimiter<A>, replacement: A, expected: &str) {
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).name("api");
        let service = layer.layer(service_fn(echo));
        limiter.replace(replacement);
        for _ in 0..3 {
            let response = at_once(&service, 0);
            assert_eq!(response.headers()["ratelimit-policy"], expected);
        }
    }
    let quota = Quota::per_hour;
    check(&RateLimiter::new(TokenBucket::new(quota(5))), TokenBucket::new(quota(7)), "\"api\";q=7;w=3600");
}

/// Two policies of one layer have the same limiter and the same key, so one of them is charged for both. They know
/// different algorithms, because only one of them was created before the replacement.
#[tokio::test(start_paused = true)]
async fn joined_policies_with_one_limiter_report_the_algorithm_that_decided_them() {
    let bucket = |places| LeakyBucket::new(Quota::per_second(1)).queue(places);
    for late_first in [true, false] {
        let limiter = RateLimiter::new(bucket(5));
        let early = RateLimitLayer::with_limiter(Global, limiter.clone());
        let before = limits(&at_once(&early.layer(service_fn(echo)), 0))[0];
        limiter.replace(bucket(9));
        limiter.reset(&());
        let late = RateLimitLayer::with_limiter(Global, limiter.clone());
        let both = if late_first { late.and(early) } else { early.and(late) };
        let service = both.layer(service_fn(echo));
        let at_once = limits(&at_once(&service, 0));
        assert!(at_once[0] > before && at_once[0] == at_once[1], "{before}, then {at_once:?}");
        let mut waiting = PolledByHand::new(service.clone().oneshot(Request::new(0)));
        assert!(!waiting.poll());
        advance(Duration::from_secs(3)).await;
        assert!(waiting.poll());
        assert_eq!(limits(&waiting.output.unwrap().unwrap()), at_once);
    }
}

/// A layer that has not seen the new algorithm yet asks how long its first request may wait.
#[tokio::test(start_paused = true)]
async fn the_first_request_that_a_new_algorithm_queues_does_not_wait_beyond_its_timeout() {
    let bucket = || TokenBucket::new(Quota::per_second(1).burst(1));
    let limiter = RateLimiter::new(bucket());
    let service = RateLimitLayer::with_limiter(Global, limiter.clone()).layer(service_fn(echo));
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
