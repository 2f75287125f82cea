//! Limits that allow, deny, queue or decide later, for the tests of readiness.

use std::time::Duration;

use tokio::task::JoinSet;
use tower::{BoxError, Service, ServiceExt};
use tower_throttle::algorithm::{Algorithm, LeakyBucket, TokenBucket};
use tower_throttle::{Error, Quota};

use crate::support::OwnLimiter;

/// Returns a limit that admits a hundred calls at once.
pub(super) fn allows() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(100))
}

/// Returns a limit that admits the first call, and denies all others.
pub(super) fn denies() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(1))
}

/// Returns a limit that admits all calls, one every 10 ms.
pub(super) fn queues() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(100)).queue(100)
}

/// Returns a limiter that replies after a delay.
pub(super) fn slow<A: Algorithm>(rule: A) -> OwnLimiter<A> {
    OwnLimiter::new(rule).latency(Duration::from_millis(50))
}

/// Makes twenty calls one after another through one instance, and then twenty calls at once through clones of the
/// instance. Returns the number of admitted calls and the number of denied calls.
pub(super) async fn rounds<S, E>(service: S) -> (usize, usize)
where
    S: Service<String, Response = String, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    E: Into<BoxError> + Send + 'static,
{
    let mut same = service.clone();
    let (mut passed, mut rejected) = (0, 0);
    let mut count = |answer: Result<String, E>| match answer {
        Ok(_) => passed += 1,
        Err(error) => {
            let error = error.into();
            let limited = matches!(error.downcast_ref::<Error<std::io::Error>>(), Some(Error::Limited(_)));
            assert!(limited || error.is::<tower::load_shed::error::Overloaded>(), "{error:?}");
            rejected += 1;
        }
    };
    for n in 0..20 {
        match same.ready().await {
            Ok(ready) => count(ready.call(n.to_string()).await),
            Err(error) => count(Err(error)),
        }
    }
    let mut calls = JoinSet::new();
    for n in 0..20 {
        let service = service.clone();
        calls.spawn(async move { service.oneshot(n.to_string()).await });
    }
    calls.join_all().await.into_iter().for_each(&mut count);
    (passed, rejected)
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
pub(crate) use every_limit;
