//! A limiter may decide at once, or forward calls to a limiter in memory, whose algorithm is replaced.

use std::convert::Infallible;
use std::future::{Pending, poll_fn};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, LeakyBucket, TokenBucket};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::{Global, MissingKey, PeerIp, from_fn};
use tower_throttle::limiter::{Acquired, Attempt, Decided, Limiter, LimiterFor, Reservation};
use tower_throttle::stats::LimiterStats;
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Answer, PolledByHand, limiter};

/// The smallest limiter: each call is decided as the first call of a new key.
#[derive(Clone)]
struct Always {
    algorithm: TokenBucket,
    info: Arc<AlgorithmInfo>,
}

impl Limiter for Always {
    type Algorithm = TokenBucket;
    type Error = Infallible;
    type Wait = Pending<Result<Decided, Infallible>>;

    fn info(&self) -> Arc<AlgorithmInfo> {
        Arc::clone(&self.info)
    }

    fn stats(&self) -> LimiterStats {
        LimiterStats::default()
    }

    fn close(&self) {}
}

impl<K: ?Sized> LimiterFor<K> for Always {
    fn acquire(&self, _: &K, attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
        let mut fresh = self.algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        let decision = self.algorithm.check(&mut fresh, Nanos::ZERO, attempt.cost());
        Acquired::Ready(decision, Reservation::default())
    }
}

#[tokio::test]
async fn a_limiter_may_decide_at_once() {
    let algorithm = TokenBucket::new(Quota::per_hour(1));
    let limiter = Always { info: AlgorithmInfo::of(&algorithm), algorithm };
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
    let ready = poll_fn(|cx| Poll::Ready(service.poll_ready(cx))).await;
    assert!(matches!(ready, Poll::Ready(Ok(()))));
}

/// A limiter that passes every call on to another limiter.
#[derive(Clone, Debug)]
struct Forwarding<L>(L);

impl<L: Limiter> Limiter for Forwarding<L> {
    type Algorithm = L::Algorithm;
    type Error = L::Error;
    type Wait = L::Wait;

    fn info(&self) -> Arc<AlgorithmInfo> {
        self.0.info()
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn stats(&self) -> LimiterStats {
        self.0.stats()
    }

    fn close(&self) {
        self.0.close();
    }
}

impl<K: ?Sized, L: LimiterFor<K>> LimiterFor<K> for Forwarding<L> {
    fn acquire(&self, key: &K, attempt: Attempt<'_, L::Algorithm>) -> Acquired<L::Wait> {
        self.0.acquire(key, attempt)
    }
}

#[tokio::test]
async fn a_layer_reports_the_replaced_algorithm_of_a_limiter_that_forwards() {
    let inner = limiter(TokenBucket::new(Quota::per_hour(10)), &ManualClock::new());
    let layer = RateLimitLayer::with_limiter(Global, Forwarding(inner.clone())).name("global");
    let service = layer.layer(service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
    }));
    let ask = async || Answer::read(service.clone().oneshot(Request::default()).await.unwrap()).await;
    // Before it is replaced, after it was replaced, and once the layer knows the new algorithm.
    for (replaced_by, quota, remaining) in [
        (None, 10, 9),
        (Some(20), 20, 18),
        (None, 20, 17),
        (Some(3), 3, 0),
        (Some(30), 30, 26),
        (None, 30, 25),
    ] {
        if let Some(limit) = replaced_by {
            inner.replace(TokenBucket::new(Quota::per_hour(limit)));
        }
        let answer = ask().await;
        assert_eq!(answer.header("ratelimit-policy"), format!("\"global\";q={quota};w=3600"));
        assert_eq!(
            answer.header("ratelimit").split(";t=").next(),
            Some(&*format!("\"global\";r={remaining}"))
        );
    }
    inner.replace(TokenBucket::new(Quota::per_hour(1)));
    let denied = ask().await;
    assert_eq!((denied.status.as_u16(), denied.header("ratelimit-policy")), (429, "\"global\";q=1;w=3600"));
    // A layer that is made later knows the present algorithm from the beginning.
    let later = RateLimitLayer::with_limiter(Global, Forwarding(inner)).responder(ErrorResponder);
    let error =
        later.layer(service_fn(async |(): ()| Ok::<_, Infallible>(()))).oneshot(()).await.unwrap_err();
    let Error::Limited(decision) = error else { panic!("{error:?}") };
    assert_eq!(decision.limit(), 1);
}

/// The layer passes only the hash of a key to a limiter in memory, and the key itself to a limiter that forwards it.
#[tokio::test]
async fn a_key_is_the_same_to_a_limiter_and_to_one_that_forwards_to_it() {
    let inner = limiter(TokenBucket::new(Quota::per_hour(2)), &ManualClock::new());
    let straight = RateLimitLayer::with_limiter(PeerIp::new(), inner.clone()).missing_key(MissingKey::Shared);
    let forwarded = RateLimitLayer::with_limiter(PeerIp::new(), Forwarding(inner.clone()));
    let forwarded = forwarded.missing_key(MissingKey::Shared);
    let hello = || service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    for peer in [Some("192.0.2.1"), Some("2001:db8::1"), None] {
        let address = peer.map(|peer| peer.parse::<IpAddr>().unwrap());
        let request = || {
            let mut request = Request::new(());
            if let Some(address) = address {
                request.extensions_mut().insert(address);
            }
            request
        };
        let statuses = [
            straight.layer(hello()).oneshot(request()).await.unwrap().status().as_u16(),
            forwarded.layer(hello()).oneshot(request()).await.unwrap().status().as_u16(),
            straight.layer(hello()).oneshot(request()).await.unwrap().status().as_u16(),
            forwarded.layer(hello()).oneshot(request()).await.unwrap().status().as_u16(),
        ];
        assert_eq!(statuses, [200, 200, 429, 429], "{peer:?}");
        if let Some(address) = address {
            assert!(!inner.check(&PeerIp::new().key(address)).is_allowed());
        }
    }
    assert_eq!(inner.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_calls_of_a_limiter_that_forwards_to_memory_are_counted_once() {
    let inner = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)).queue(5));
    let layer = RateLimitLayer::with_limiter(Global, Forwarding(inner.clone())).responder(ErrorResponder);
    let service = layer.layer(service_fn(|_: ()| async { Ok::<_, Infallible>(()) }));
    for _ in 0..2 {
        service.clone().oneshot(()).await.unwrap();
    }
    let cancelled = timeout(Duration::from_millis(1), service.clone().oneshot(())).await;
    assert!(cancelled.is_err(), "the call is queued");
    let stats = layer.stats().calls;
    // The layer counts a call as queued when the call is admitted, since it does not know why the limiter did not
    // decide at once.
    assert_eq!((stats.admitted, stats.queued, stats.cancelled, stats.ended()), (2, 1, 1, 3));
    // The inner limiter counts what it decided.
    let stats = inner.stats().calls;
    assert_eq!((stats.admitted, stats.queued, stats.cancelled, stats.ended()), (2, 2, 1, 3));
}
