//! Calls in progress: permits that are given, waited for, and released. A limiter may release a permit after its
//! reservation was dropped.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower_layer::Layer;
use tower_service::Service;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::key::{StoreKey, from_fn};
use tower_throttle::limiter::{Acquired, Attempt, Limiter, LimiterFor, Reservation};
use tower_throttle::{Decision, Error, ErrorResponder, RateLimitLayer};

use crate::case::{Env, decide};
use crate::tested::MakePermits;

list! { for MakePermits:
    a_key_has_as_many_permits_as_the_limit
    a_released_permit_can_be_taken_again
    a_settled_permit_is_released
    a_denial_takes_no_permit
    keys_do_not_share_permits
    clones_share_permits
    a_layers_key_has_the_permits_of_the_limiters
    a_missing_key_has_permits_of_its_own
    a_cost_takes_as_many_permits_or_none
    a_call_of_cost_0_takes_no_permit
    a_cost_above_the_limit_never_fits
    a_waiting_call_gets_the_permit_that_is_released
    a_waiting_call_is_denied_after_its_maximum_wait
    a_call_that_does_not_wait_is_denied_at_once
    concurrent_calls_hold_no_more_permits_than_the_limit
    a_wait_that_is_dropped_takes_no_permit
    a_wait_that_is_dropped_late_takes_no_permit
    a_wait_that_was_never_polled_takes_no_permit
    a_closed_limiter_gives_no_permits
    a_layer_holds_a_permit_while_its_service_works
    a_layer_releases_the_permit_of_a_request_that_is_dropped
}

const MS: Duration = Duration::from_millis(1);

/// Makes a call that does not wait. Returns the decision, and what the call holds.
async fn call<L: LimiterFor<K>, K: ?Sized>(limiter: &L, key: &K, cost: u64) -> (Decision, Reservation) {
    let (decision, reservation) = decide(limiter, key, Attempt::new(cost)).await.into_parts();
    assert!(decision.is_allowed() || reservation.is_empty(), "a denied call holds nothing");
    (decision, reservation)
}

/// Takes permits, which must be free.
#[track_caller]
fn taken((decision, reservation): (Decision, Reservation)) -> Reservation {
    assert!(decision.is_allowed(), "a call is denied that should be admitted: {decision:?}");
    reservation
}

/// Waits for at most two seconds until permits are free, and takes them.
async fn take_when_free<L: LimiterFor<str>>(limiter: &L, key: &str, cost: u64) -> Reservation {
    let start = Instant::now();
    loop {
        match call(limiter, key, cost).await {
            (decision, reservation) if decision.is_allowed() => return reservation,
            (decision, _) => {
                assert!(start.elapsed() < Duration::from_secs(2), "no permit is free: {decision:?}");
            }
        }
        sleep(2 * MS).await;
    }
}

/// Asserts that a key has exactly `limit` free permits, or will have them within two seconds.
async fn has_free<L: LimiterFor<str>>(limiter: &L, key: &str, limit: u64) {
    let all = take_when_free(limiter, key, limit).await;
    assert!(!call(limiter, key, 1).await.0.is_allowed(), "more permits than the limit");
    drop(all);
}

/// Makes a call that waits. Returns the decision, and what the call holds.
async fn wait_for<L: LimiterFor<str>>(limiter: L, max_wait: Duration) -> (Decision, Reservation) {
    let attempt = Attempt::new(1).wait().with_max_wait(max_wait);
    decide(&limiter, "a", attempt).await.into_parts()
}

async fn a_key_has_as_many_permits_as_the_limit<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(3);
    assert!(<M::Limiter as Limiter>::Algorithm::NEEDS_RELEASE, "the algorithm counts calls in progress");
    let mut held = Vec::new();
    for left in [2, 1, 0] {
        let (decision, reservation) = call(&limiter, "a", 1).await;
        assert_eq!((decision.is_allowed(), decision.limit(), decision.remaining()), (true, 3, left));
        assert!(!reservation.is_empty(), "an admitted call holds its permit");
        held.push(reservation);
    }
    for _ in 0..3 {
        let (denied, _) = call(&limiter, "a", 1).await;
        assert_eq!((denied.is_allowed(), denied.remaining()), (false, 0));
        assert_eq!(denied.retry_after(), None, "it is not known when a call ends");
    }
}

async fn a_released_permit_can_be_taken_again<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(2);
    let mut held = vec![taken(call(&limiter, "a", 1).await), taken(call(&limiter, "a", 1).await)];
    for _ in 0..5 {
        drop(held.remove(0));
        held.push(take_when_free(&limiter, "a", 1).await);
        assert!(!call(&limiter, "a", 1).await.0.is_allowed(), "one permit was released");
    }
}

async fn a_settled_permit_is_released<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    for actual in [0, 1, 5] {
        let _ = take_when_free(&limiter, "a", 1).await.settle(actual);
    }
    has_free(&limiter, "a", 1).await;
}

async fn a_denial_takes_no_permit<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, "a", 1).await);
    for _ in 0..10 {
        assert!(!call(&limiter, "a", 1).await.0.is_allowed());
    }
    drop(held);
    has_free(&limiter, "a", 1).await;
}

async fn keys_do_not_share_permits<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = [taken(call(&limiter, "a", 1).await), taken(call(&limiter, "b", 1).await)];
    assert!(!call(&limiter, "a", 1).await.0.is_allowed());
    drop(held);
}

async fn clones_share_permits<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let clone = limiter.clone();
    let held = taken(call(&limiter, "a", 1).await);
    assert!(!call(&clone, "a", 1).await.0.is_allowed());
    drop(held);
    has_free(&clone, "a", 1).await;
}

async fn a_layers_key_has_the_permits_of_the_limiters<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, &StoreKey::Key("a".to_owned()), 1).await);
    assert!(!call(&limiter, "a", 1).await.0.is_allowed());
    drop(held);
}

async fn a_missing_key_has_permits_of_its_own<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, &StoreKey::Missing, 1).await);
    for key in ["", "missing", "~missing", "Missing"] {
        drop(taken(call(&limiter, key, 1).await));
    }
    assert!(!call(&limiter, &StoreKey::Missing, 1).await.0.is_allowed());
    drop(held);
}

async fn a_cost_takes_as_many_permits_or_none<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(3);
    let two = taken(call(&limiter, "a", 2).await);
    assert!(!call(&limiter, "a", 2).await.0.is_allowed());
    let one = taken(call(&limiter, "a", 1).await);
    assert!(!call(&limiter, "a", 1).await.0.is_allowed());
    drop(two);
    let two = take_when_free(&limiter, "a", 2).await;
    assert!(!call(&limiter, "a", 1).await.0.is_allowed());
    drop((one, two));
    has_free(&limiter, "a", 3).await;
}

async fn a_call_of_cost_0_takes_no_permit<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let free = taken(call(&limiter, "a", 0).await);
    let held = taken(call(&limiter, "a", 1).await);
    let free_again = taken(call(&limiter, "a", 0).await);
    drop((free, free_again));
    assert!(
        !call(&limiter, "a", 1).await.0.is_allowed(),
        "a call of cost 0 has released the permit of another"
    );
    drop(held);
}

async fn a_cost_above_the_limit_never_fits<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(2);
    for cost in [3, 1 << 53, u64::MAX] {
        let (denied, _) = call(&limiter, "a", cost).await;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, None), "{cost}");
    }
    has_free(&limiter, "a", 2).await;
}

async fn a_waiting_call_gets_the_permit_that_is_released<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, "a", 1).await);
    let mut waiting = JoinSet::new();
    waiting.spawn(wait_for(limiter.clone(), Duration::MAX));
    let early = timeout(30 * MS, waiting.join_next()).await;
    assert!(early.is_err(), "the call waits");
    drop(held);
    let Some(Ok(next)) = waiting.join_next().await else { panic!("the call has panicked") };
    let next = taken(next);
    assert!(!call(&limiter, "a", 1).await.0.is_allowed(), "the call that has waited holds the permit");
    drop(next);
    has_free(&limiter, "a", 1).await;
}

async fn a_waiting_call_is_denied_after_its_maximum_wait<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, "a", 1).await);
    let start = Instant::now();
    let (denied, reservation) = wait_for(limiter.clone(), 50 * MS).await;
    assert!(!denied.is_allowed() && reservation.is_empty());
    assert!(start.elapsed() >= 50 * MS, "denied after {:?}", start.elapsed());
    drop(held);
    has_free(&limiter, "a", 1).await;
}

async fn a_call_that_does_not_wait_is_denied_at_once<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, "a", 1).await);
    // If the call waited, the case would time out.
    assert!(!call(&limiter, "a", 1).await.0.is_allowed());
    drop(held);
}

async fn concurrent_calls_hold_no_more_permits_than_the_limit<M: MakePermits>(env: Env<M>) {
    const LIMIT: u64 = 3;
    let limiter = env.permits(LIMIT);
    let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let (limiter, now, most) = (limiter.clone(), now.clone(), most.clone());
        calls.spawn(async move {
            let held = taken(wait_for(limiter, Duration::MAX).await);
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(3 * MS).await;
            now.fetch_sub(1, Ordering::SeqCst);
            drop(held);
        });
    }
    calls.join_all().await;
    // A slow limiter may give a permit only after another one was released.
    let most = most.load(Ordering::SeqCst);
    assert!(most <= LIMIT, "{most} permits at a time");
    has_free(&limiter, "a", LIMIT).await;
}

async fn a_wait_that_is_dropped_takes_no_permit<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, "a", 1).await);
    for _ in 0..3 {
        let cancelled = timeout(20 * MS, wait_for(limiter.clone(), Duration::MAX)).await;
        assert!(cancelled.is_err(), "the call waits");
    }
    drop(held);
    has_free(&limiter, "a", 1).await;
}

/// The future of the call is dropped after the permit was given to the call, and before the next poll.
async fn a_wait_that_is_dropped_late_takes_no_permit<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, "a", 1).await);
    {
        let mut waiting = pin!(wait_for(limiter.clone(), Duration::MAX));
        assert!(timeout(20 * MS, waiting.as_mut()).await.is_err(), "the call waits");
        drop(held);
        sleep(20 * MS).await;
    }
    has_free(&limiter, "a", 1).await;
}

async fn a_wait_that_was_never_polled_takes_no_permit<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    // A limiter that decides in the process may decide at once.
    match LimiterFor::<str>::acquire(&limiter, "a", Attempt::new(1).wait()) {
        Acquired::Pending(wait) => drop(wait),
        decided => drop(decided),
    }
    has_free(&limiter, "a", 1).await;
}

async fn a_closed_limiter_gives_no_permits<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let held = taken(call(&limiter, "a", 1).await);
    let mut waiting = JoinSet::new();
    waiting.spawn(wait_for(limiter.clone(), Duration::MAX));
    assert!(timeout(30 * MS, waiting.join_next()).await.is_err(), "the call waits");
    limiter.close();
    let Some(Ok((denied, _))) = waiting.join_next().await else { panic!("the call has panicked") };
    assert!(!denied.is_allowed() && denied.is_closed(), "{denied:?}");
    drop(held);
    for key in ["a", "b"] {
        let (denied, _) = call(&limiter, key, 1).await;
        assert!(!denied.is_allowed() && denied.is_closed(), "{denied:?}");
    }
}

/// A service whose responses come when the test says so.
#[derive(Clone)]
struct Slow(Arc<AtomicBool>);

impl Service<String> for Slow {
    type Response = ();
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<(), Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: String) -> Self::Future {
        let may_end = self.0.clone();
        Box::pin(async move {
            while !may_end.load(Ordering::SeqCst) {
                sleep(MS).await;
            }
            Ok(())
        })
    }
}

/// Sends a request. Returns whether it was admitted.
async fn ask<S: Service<String, Response = (), Error = Error<Infallible>>>(mut service: S) -> bool {
    let ready = poll_fn(|cx| service.poll_ready(cx)).await;
    ready.unwrap_or_else(|error| panic!("{error}"));
    match service.call("a".to_owned()).await {
        Ok(()) => true,
        Err(Error::Limited(_)) => false,
        Err(error) => panic!("the limiter failed: {error}"),
    }
}

async fn a_layer_holds_a_permit_while_its_service_works<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let by_text = from_fn(|request: &String| Some(request.clone()));
    let layer = RateLimitLayer::with_limiter(by_text, limiter.clone()).responder(ErrorResponder);
    let may_end = Arc::new(AtomicBool::new(false));
    let service = layer.layer(Slow(may_end.clone()));
    let mut first = pin!(ask(service.clone()));
    assert!(timeout(30 * MS, first.as_mut()).await.is_err(), "the service works");
    assert!(!ask(service.clone()).await, "the first request holds the permit");
    may_end.store(true, Ordering::SeqCst);
    assert!(first.await);
    has_free(&limiter, "a", 1).await;
}

async fn a_layer_releases_the_permit_of_a_request_that_is_dropped<M: MakePermits>(env: Env<M>) {
    let limiter = env.permits(1);
    let by_text = from_fn(|request: &String| Some(request.clone()));
    let layer = RateLimitLayer::with_limiter(by_text, limiter.clone()).responder(ErrorResponder);
    let service = layer.layer(Slow(Arc::default()));
    assert!(timeout(30 * MS, ask(service)).await.is_err(), "the service works");
    has_free(&limiter, "a", 1).await;
}
