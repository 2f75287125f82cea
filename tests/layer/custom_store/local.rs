//! A store may decide at once, or forward calls to a store in memory.

use std::borrow::Cow;
use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{Algorithm, LeakyBucket, TokenBucket};
use tower_throttle::clock::Nanos;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::store::{Acquired, Attempt, KeyedStore, MemoryStore, Reservation, Store};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::PolledByHand;

#[tokio::test]
async fn a_store_may_decide_at_once() {
    #[derive(Clone, Debug)]
    struct Always(TokenBucket);
    impl Store<TokenBucket> for Always {
        type Key = ();
        type Error = std::convert::Infallible;
        type Wait = std::future::Pending<Result<(Decision, Reservation), Self::Error>>;

        fn algorithm(&self) -> Cow<'_, TokenBucket> {
            Cow::Borrowed(&self.0)
        }

        fn acquire(&self, (): (), attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
            let mut fresh = self.0.new_state(Nanos::ZERO, Nanos::ZERO);
            let decision = self.0.check(&mut fresh, Nanos::ZERO, attempt.cost());
            Acquired::Ready(decision, Reservation::default())
        }
    }
    impl<K: ?Sized> KeyedStore<TokenBucket, K> for Always {
        fn key(&self, _: &K) {}
    }
    let limiter = RateLimiter::with_store(Always(TokenBucket::new(Quota::per_hour(1))));
    let layer = RateLimitLayer::with_limiter(from_fn(|_: &String| Some("key")), limiter)
        .cost(|line: &String| line.len() as u64)
        .responder(ErrorResponder);
    let mut service = layer.layer(service_fn(|line: String| async move { Ok::<_, ()>(line) }));
    for _ in 0..3 {
        let mut call = PolledByHand::new(service.ready().await.unwrap().call("a".to_owned()));
        assert!(call.poll() && matches!(call.output, Some(Ok(_))));
    }
    let denied = service.ready().await.unwrap().call("ab".to_owned()).await;
    let Err(Error::Limited(decision)) = denied else { panic!("{denied:?}") };
    assert_eq!(decision.retry_after(), None, "two never fit");
    let ready = std::future::poll_fn(|cx| Poll::Ready(service.poll_ready(cx))).await;
    assert!(matches!(ready, Poll::Ready(Ok(()))));
}

/// A store that passes every call on to a store in memory.
#[derive(Clone, Debug)]
struct Forwarding<A: Algorithm>(MemoryStore<A>);

impl<A: Algorithm> Store<A> for Forwarding<A> {
    type Key = <MemoryStore<A> as Store<A>>::Key;
    type Error = <MemoryStore<A> as Store<A>>::Error;
    type Wait = <MemoryStore<A> as Store<A>>::Wait;

    fn algorithm(&self) -> Cow<'_, A> {
        self.0.algorithm()
    }

    fn acquire(&self, key: Self::Key, attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        self.0.acquire(key, attempt)
    }
}

impl<A: Algorithm, K: ?Sized> KeyedStore<A, K> for Forwarding<A>
where
    MemoryStore<A>: KeyedStore<A, K>,
{
    fn key(&self, key: &K) -> Self::Key {
        self.0.key(key)
    }
}

#[tokio::test(start_paused = true)]
async fn the_calls_of_a_store_that_forwards_to_memory_are_counted_once() {
    let inner = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)).queue(5));
    let limiter = RateLimiter::<LeakyBucket, _>::with_store(Forwarding(inner.store().clone()));
    let layer = RateLimitLayer::with_limiter(Global, limiter).responder(ErrorResponder);
    let service = layer.layer(service_fn(|_: ()| async { Ok::<_, Infallible>(()) }));
    for _ in 0..2 {
        service.clone().oneshot(()).await.unwrap();
    }
    let cancelled = timeout(Duration::from_millis(1), service.clone().oneshot(())).await;
    assert!(cancelled.is_err(), "the call is queued");
    let stats = layer.stats().calls;
    // The layer counts a call as queued when the call is admitted, since it does not know why the store did not decide.
    assert_eq!((stats.admitted, stats.queued, stats.cancelled, stats.ended()), (2, 1, 1, 3));
    // The inner limiter counts what it decided, as calls that are made without a layer.
    let stats = inner.stats().calls;
    assert_eq!((stats.admitted, stats.queued, stats.cancelled, stats.ended()), (2, 2, 1, 3));
}
