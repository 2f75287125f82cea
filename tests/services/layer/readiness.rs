//! The layer between other layers. The instance that is ready is the one that is called, and nothing is charged before
//! the call.

use std::borrow::Cow;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};
use tower_throttle::algorithm::{Algorithm, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::error::BoxError as StoreError;
use tower_throttle::key::{Global, StoreKey, from_fn};
use tower_throttle::store::{Acquired, Attempt, KeyedStore, Reservation, Store};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::PolledByHand;

/// A service that panics if an instance is called that is not ready. It records which instance was called.
#[derive(Debug)]
struct Probe {
    number: u64,
    ready: bool,
    shared: Arc<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    numbers: AtomicU64,
    /// Returns the instances that were called, in order.
    called: Mutex<Vec<u64>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Probe {
    fn new() -> Self {
        Self { number: 0, ready: false, shared: Arc::default() }
    }

    fn calls(&self) -> usize {
        self.shared.called.lock().unwrap().len()
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        let number = self.shared.numbers.fetch_add(1, Ordering::SeqCst) + 1;
        Self { number, ready: false, shared: self.shared.clone() }
    }
}

impl Service<String> for Probe {
    type Response = String;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<String>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, line: String) -> Self::Future {
        assert!(mem::take(&mut self.ready), "instance {} was not ready", self.number);
        self.shared.called.lock().unwrap().push(self.number);
        let notes = self.shared.clone();
        Box::pin(async move {
            let running = notes.running.fetch_add(1, Ordering::SeqCst) + 1;
            notes.most_running.fetch_max(running, Ordering::SeqCst);
            sleep(Duration::from_millis(3)).await;
            notes.running.fetch_sub(1, Ordering::SeqCst);
            Ok(line)
        })
    }
}

/// A store that replies after a delay.
#[derive(Clone, Debug)]
struct Slow<A: Algorithm> {
    limiter: RateLimiter<A>,
}

impl<A: Algorithm> Store<A> for Slow<A> {
    type Key = ();
    type Error = StoreError;
    type Wait = Pin<Box<dyn Future<Output = Result<(Decision, Reservation), StoreError>> + Send>>;

    fn algorithm(&self) -> Cow<'_, A> {
        self.limiter.algorithm()
    }

    fn acquire(&self, (): (), attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        let (store, cost) = (self.clone(), attempt.cost());
        Acquired::Pending(Box::pin(async move {
            sleep(Duration::from_millis(50)).await;
            Ok((store.limiter.check_n(&(), cost), Reservation::default()))
        }))
    }
}

impl<A: Algorithm> KeyedStore<A, StoreKey<()>> for Slow<A> {
    fn key(&self, _: &StoreKey<()>) {}
}

/// Returns a limit that admits a hundred calls at once.
fn allows() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(100))
}

/// Returns a limit that admits the first call, and denies all others.
fn denies() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(1))
}

/// Returns a limit that admits all calls, one every 10 ms.
fn queues() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(100)).queue(100)
}

fn slow<A: Algorithm>(rule: A) -> RateLimiter<A, Slow<A>> {
    RateLimiter::with_store(Slow { limiter: RateLimiter::new(rule) })
}

/// Makes twenty calls one after another through one instance, and then twenty calls at once through clones of the
/// instance. Returns the number of admitted calls and the number of denied calls.
async fn rounds<S, E>(service: S) -> (usize, usize)
where
    S: Service<String, Response = String, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    E: Into<BoxError> + Send + 'static,
{
    let mut same = service.clone();
    let (mut passed, mut refused) = (0, 0);
    let mut count = |answer: Result<String, E>| match answer {
        Ok(_) => passed += 1,
        Err(error) => {
            let error = error.into();
            let limited = matches!(error.downcast_ref::<Error<std::io::Error>>(), Some(Error::Limited(_)));
            assert!(limited || error.is::<tower::load_shed::error::Overloaded>(), "{error:?}");
            refused += 1;
        }
    };
    for n in 0..20 {
        match same.ready().await {
            Ok(ready) => count(ready.call(n.to_string()).await),
            Err(error) => count(Err(error)),
        }
    }
    // The inner service stays reserved for this instance after a denied call.
    drop(same);
    let mut calls = JoinSet::new();
    for n in 0..20 {
        let service = service.clone();
        calls.spawn(async move { service.oneshot(n.to_string()).await });
    }
    calls.join_all().await.into_iter().for_each(&mut count);
    (passed, refused)
}

/// Runs `$stack` with each kind of limiter, at the position of `$limit`.
macro_rules! every_limit {
    (|$limit:ident, $probe:ident| $stack:expr, $check:expr) => {{
        let check = $check;
        {
            let ($limit, $probe) = (RateLimitLayer::new(Global, allows()), Probe::new());
            let ($limit, probe) = ($limit.responder(ErrorResponder), $probe.clone());
            check("allows", rounds($stack).await, probe.calls());
        }
        {
            let ($limit, $probe) = (RateLimitLayer::new(Global, denies()), Probe::new());
            let ($limit, probe) = ($limit.responder(ErrorResponder), $probe.clone());
            check("denies", rounds($stack).await, probe.calls());
        }
        {
            let ($limit, $probe) = (RateLimitLayer::new(Global, queues()), Probe::new());
            let ($limit, probe) = ($limit.responder(ErrorResponder), $probe.clone());
            check("queues", rounds($stack).await, probe.calls());
        }
        {
            let key = from_fn(|_: &String| Some(()));
            let ($limit, $probe) = (RateLimitLayer::with_limiter(key, slow(allows())), Probe::new());
            let ($limit, probe) = ($limit.responder(ErrorResponder), $probe.clone());
            check("slow and allows", rounds($stack).await, probe.calls());
        }
        {
            let key = from_fn(|_: &String| Some(()));
            let ($limit, $probe) = (RateLimitLayer::with_limiter(key, slow(denies())), Probe::new());
            let ($limit, probe) = ($limit.responder(ErrorResponder), $probe.clone());
            check("slow and denies", rounds($stack).await, probe.calls());
        }
    }};
}

/// Boxes the error of a limiter. If the error contains a boxed error, returns the contained error.
fn plain(error: Error<BoxError>) -> BoxError {
    match error {
        Error::Inner(error) => error,
        Error::Limited(decision) => Error::<std::io::Error>::Limited(decision).into(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_limited_service_fits_between_two_whose_errors_are_boxed() {
    // tower's own middleware requires this of an error if a timeout or a buffer is inside of the limiter.
    fn boxes<E: Into<BoxError>>(error: E) -> String {
        error.into().to_string()
    }
    assert_eq!(boxes(Error::Inner(std::io::Error::other("plain"))), "plain");
    assert_eq!(boxes(Error::Inner(BoxError::from("boxed"))), "boxed");
}

fn all_forty(limit: &str, (passed, refused): (usize, usize), calls: usize) {
    let expected = if limit.ends_with("denies") { (1, 39) } else { (40, 0) };
    assert_eq!((passed, refused), expected, "{limit}");
    assert_eq!(calls, passed, "{limit}: a refused call does not reach the service behind");
}

#[tokio::test(start_paused = true)]
async fn alone_it_calls_the_readied_instance() {
    every_limit!(|limit, probe| ServiceBuilder::new().layer(limit).service(probe), all_forty);
}

#[tokio::test(start_paused = true)]
async fn it_works_above_a_limit_of_one_call_in_flight() {
    every_limit!(
        |limit, probe| ServiceBuilder::new().layer(limit).layer(ConcurrencyLimitLayer::new(1)).service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn it_works_below_a_limit_of_one_call_in_flight() {
    every_limit!(
        |limit, probe| ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(1)).layer(limit).service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn it_works_above_a_buffer() {
    for bound in [1, 8] {
        every_limit!(
            |limit, probe| ServiceBuilder::new()
                .map_err(plain)
                .layer(limit)
                .layer(BufferLayer::new(bound))
                .service(probe),
            all_forty
        );
    }
}

#[tokio::test(start_paused = true)]
async fn it_works_below_a_buffer() {
    for bound in [1, 8] {
        every_limit!(
            |limit, probe| ServiceBuilder::new().layer(BufferLayer::new(bound)).layer(limit).service(probe),
            all_forty
        );
    }
}

#[tokio::test(start_paused = true)]
async fn it_works_between_buffers_and_limits_of_calls_in_flight() {
    every_limit!(
        |limit, probe| ServiceBuilder::new()
            .layer(ConcurrencyLimitLayer::new(1))
            .layer(BufferLayer::new(2))
            .map_err(plain)
            .layer(limit)
            .layer(BufferLayer::new(2))
            .layer(ConcurrencyLimitLayer::new(1))
            .service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn it_works_between_timeouts_that_are_not_reached() {
    every_limit!(
        |limit, probe| ServiceBuilder::new()
            .layer(BufferLayer::new(64))
            .layer(TimeoutLayer::new(Duration::from_secs(10)))
            .map_err(plain)
            .layer(limit)
            .layer(TimeoutLayer::new(Duration::from_secs(10)))
            .service(probe),
        all_forty
    );
}

#[tokio::test(start_paused = true)]
async fn beside_load_shedding_no_call_waits_for_a_slot() {
    every_limit!(
        |limit, probe| ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(ConcurrencyLimitLayer::new(1))
            .layer(limit)
            .service(probe),
        |limit: &str, (passed, refused): (usize, usize), calls: usize| {
            // The calls that are made one after another are all admitted. Of the calls at once, only the first is
            // admitted, while it is in flight.
            let expected = if limit.ends_with("denies") { (1, 39) } else { (21, 19) };
            assert_eq!((passed, refused), expected, "{limit}");
            assert_eq!(calls, passed, "{limit}");
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_timeout_above_frees_the_slots_of_the_calls_it_cancels() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(100);
    let limiter = RateLimiter::new(bucket);
    let probe = Probe::new();
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(Duration::from_millis(250)))
        .layer(RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder))
        .service(probe.clone());
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let service = service.clone();
        calls.spawn(async move { service.oneshot(String::new()).await.is_ok() });
    }
    let passed = calls.join_all().await.into_iter().filter(|passed| *passed).count();
    // The calls are admitted at 0, 100 and 200 ms.
    assert_eq!((passed, probe.calls()), (3, 3));
    assert_eq!(limiter.peek(&()).retry_after(), Some(Duration::from_millis(50)));
}

#[tokio::test(start_paused = true)]
async fn the_instance_that_was_readied_is_the_one_that_is_called() {
    let probe = Probe::new();
    let notes = probe.shared.clone();
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(2);
    let mut service = RateLimitLayer::new(Global, bucket).responder(ErrorResponder).layer(probe);

    // The call is admitted at once, so this instance is called, and not a clone.
    service.ready().await.unwrap().call(String::new()).await.unwrap();
    assert_eq!((notes.called.lock().unwrap().clone(), service.get_ref().number), (vec![0], 0));
    // The call is queued. The future takes the instance that is ready, and a clone that is not ready replaces it.
    let waits = service.ready().await.unwrap().call(String::new());
    assert_eq!((service.get_ref().number, service.get_ref().ready), (1, false));
    let waits_too = service.ready().await.unwrap().call(String::new());
    assert_eq!((service.get_ref().number, service.get_ref().ready), (2, false));
    // The call is denied, so the instance that is ready stays.
    assert!(service.ready().await.unwrap().call(String::new()).await.is_err());
    assert_eq!((service.get_ref().number, service.get_ref().ready), (2, true));
    let (first, second) = tokio::join!(waits, waits_too);
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(*notes.called.lock().unwrap(), [0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn queued_calls_reach_the_service_in_order() {
    let probe = Probe::new();
    let service = ServiceBuilder::new()
        .map_err(plain)
        .layer(RateLimitLayer::new(Global, queues()).responder(ErrorResponder))
        .layer(BufferLayer::new(100))
        .service(probe.clone());
    let start = Instant::now();
    let mut calls = JoinSet::new();
    let served = Arc::new(Mutex::new(Vec::new()));
    for n in 0..30_u128 {
        let served = served.clone();
        let noted = service.clone().map_result(move |answer: Result<String, BoxError>| {
            // The call was in flight for three milliseconds.
            served.lock().unwrap().push((n, start.elapsed().as_millis() - 3));
            answer
        });
        calls.spawn(noted.oneshot(String::new()));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!(*served.lock().unwrap(), (0..30).map(|n| (n, n * 10)).collect::<Vec<_>>());
    assert_eq!(probe.shared.most_running.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn poll_ready_charges_nothing() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_hour(1))).clock(clock).build();
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let mut service = layer.layer(Probe::new());
    for _ in 0..100 {
        service.ready().await.unwrap();
    }
    assert!(limiter.is_empty() && limiter.peek(&()).remaining() == 1);
    assert!(service.call(String::new()).await.is_ok());
    for _ in 0..100 {
        service.ready().await.unwrap();
    }
    assert!(matches!(service.call(String::new()).await, Err(Error::Limited(_))));
}

#[tokio::test]
async fn a_denied_call_keeps_its_reservation_until_the_next_call_or_the_drop() {
    let layer = RateLimitLayer::new(Global, denies()).responder(ErrorResponder);
    let service =
        ServiceBuilder::new().layer(layer).layer(ConcurrencyLimitLayer::new(1)).service(Probe::new());
    let mut first = service.clone();
    assert!(first.ready().await.unwrap().call(String::new()).await.is_ok());
    assert!(first.ready().await.unwrap().call(String::new()).await.is_err());
    // The only permit is held by an idle instance, as the docs say.
    let mut second = service.clone();
    assert!(!PolledByHand::new(second.ready()).poll());
    // The instance can use this permit for its own next call. The permit is released when the instance is dropped.
    assert!(first.ready().await.is_ok());
    drop(first);
    assert!(second.ready().await.is_ok());
}

#[tokio::test]
async fn the_inner_future_is_dropped_when_it_is_ready_and_not_later() {
    let layer = RateLimitLayer::new(Global, allows()).responder(ErrorResponder);
    let service =
        ServiceBuilder::new().layer(layer).layer(ConcurrencyLimitLayer::new(1)).service(Probe::new());
    let (mut first, mut second) = (service.clone(), service);
    let mut call = std::pin::pin!(first.ready().await.unwrap().call(String::new()));
    assert!(call.as_mut().await.is_ok());
    // The future still exists, but the permit of the inner layer has been released.
    assert!(PolledByHand::new(second.ready()).poll());
}

#[tokio::test]
async fn a_service_that_is_not_ready_stays_so_and_wakes_once() {
    let (mut service, mut handle) = tower_test::mock::spawn_with(|mock: tower_test::mock::Mock<(), ()>| {
        RateLimitLayer::new(Global, allows()).responder(ErrorResponder).layer(mock)
    });
    handle.allow(0);
    assert_pending(&mut service);
    handle.allow(1);
    assert!(service.is_woken());
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
}

fn assert_pending<S: Service<()>>(service: &mut tower_test::mock::Spawn<S>) {
    for _ in 0..3 {
        assert!(service.poll_ready().is_pending());
        assert!(!service.is_woken());
    }
}
