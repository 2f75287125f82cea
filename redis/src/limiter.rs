//! The limiter whose state is in Redis: its calls, those that wait, its fallback, and its part in joint calls.
//!
//! Calls wait either until a time that the server has determined, or in a queue of this process. The state of a bucket
//! determines when the units of a call will be available. So the call is charged at once for that time, and sleeps in
//! this process until that time. The calls of all processes are released in the order of these times. The state of a
//! window does not show which other calls wait. So calls that wait for a window are queued in their own process once
//! they were denied, and the first call of each queue asks the server again when its units may be available.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::connection::BoxFuture;
use super::error::{RedisError, RedisErrorKind};
use super::joint::{InRedis, Member, RedisPart};
use super::links::Links;
use super::script::ScriptPart;
use super::states::{Action, Operation, Outcome, Plan, States};
use super::trips::Trips;
use super::wait::WaitQueues;
use tower_throttle::Decision;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;
#[cfg(feature = "test-util")]
use tower_throttle::error::BoxError;
use tower_throttle::stats::StoreStats;
use tower_throttle::store::{
    Acquired, Attempt, CheckStore, Denied, KeyText, KeyedStore, Permit, ReplaceAlgorithm, Reservation,
    SettleStore, SharedKey, Store,
};
use tower_throttle::store_support::{AnyAlgorithm, JointRequest, JointStore};
use tower_throttle::store_support::{CallCounts, CallOutcome, holds_requests, memory_part};
#[cfg(feature = "test-util")]
use tower_throttle::test_util::TestedStore;

/// The store of one limiter in a [`RedisStore`](super::RedisStore).
/// [`Builder::store`](tower_throttle::limiter::Builder::store) creates this store.
pub struct RedisLimit<A: StoredAlgorithm> {
    shared: Arc<Shared<A>>,
}

/// The key of a [`RedisLimit`]: the name of the key in Redis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RedisKey(pub(super) Arc<str>);

/// The future of a reply of a [`RedisLimit`].
pub(super) type RedisReply<T> = BoxFuture<Result<T, RedisError>>;

/// The part of a limiter that its clones share.
struct Shared<A: StoredAlgorithm> {
    links: Links,
    trips: Arc<Trips<A>>,
    key_text: KeyText,
    queues: WaitQueues,
    fallback: Option<RateLimiter<A>>,
}

/// A call of a limiter.
#[derive(Clone, Debug)]
struct Request<A> {
    operation: Operation<A>,
    settles: bool,
    may_wait: bool,
    max_wait: u64,
}

/// A guard that gives back the charge of a call if the call is dropped while it sleeps.
struct Sleeper<'a, A: StoredAlgorithm> {
    trips: &'a Arc<Trips<A>>,
    key: &'a Arc<str>,
    give_back: Option<Operation<A>>,
    runtime: Option<Handle>,
}

/// The part of a limiter in a joint call.
struct Part<A: StoredAlgorithm> {
    shared: Arc<Shared<A>>,
    plan: Arc<Plan<A>>,
    key: Arc<str>,
    request: Request<A>,
    /// `true` if the call is charged at once for the time of its release.
    is_reserving: bool,
    in_shadow: bool,
    counts: Arc<CallCounts>,
    states: Option<States<A>>,
    /// The number of times that the limiter had forgotten states when the call was made.
    forgotten: u64,
}

const NOT_READ: &str = "the state is read first";

impl<A: StoredAlgorithm> RedisLimit<A> {
    pub(super) fn new(
        links: Links,
        trips: Trips<A>,
        key_text: KeyText,
        fallback: Option<RateLimiter<A>>,
    ) -> Self {
        let shared =
            Shared { links, trips: Arc::new(trips), key_text, queues: WaitQueues::default(), fallback };
        Self { shared: Arc::new(shared) }
    }

    fn request(&self, attempt: &Attempt<'_, A>) -> Request<A> {
        let operation = Operation::new(Action::Check, attempt.cost(), attempt.algorithm().cloned());
        let waits = || attempt.algorithm().map_or_else(|| holds_requests(&*self.algorithm()), holds_requests);
        Request {
            operation,
            settles: attempt.wants_reservation(),
            may_wait: attempt.may_wait() || waits(),
            max_wait: attempt.max_wait().map_or(u64::MAX, |wait| Nanos::from(wait).0),
        }
    }

    /// Refunds or resets the key. A reset is also made in the fallback. A refund is made in the fallback only if Redis
    /// fails. As with all methods, a failure of Redis is no error if there is a fallback.
    fn change(&self, key: Arc<str>, action: Action, cost: u64) -> RedisReply<()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            shared.trips.forget(&key);
            let changed = shared.trips.ask(&key, Operation::new(action, cost, None)).await.map(|_| ());
            let Some(local) = &shared.fallback else { return changed };
            match action {
                Action::Reset => local.reset(&*key),
                // If Redis fails now, the call whose units are refunded was probably charged by the fallback.
                _ if changed.is_err() => local.refund(&*key, cost),
                _ => {}
            }
            Ok(())
        })
    }
}

impl<A: StoredAlgorithm> Shared<A> {
    /// Returns the reservation of a call that was charged, or an empty reservation if the call will not be settled.
    fn reservation(&self, key: &Arc<str>, request: &Request<A>, charged_at: Nanos) -> Reservation {
        let Ok(runtime) = Handle::try_current() else { return Reservation::default() };
        if !request.settles {
            return Reservation::default();
        }
        let (trips, key, operation) = (Arc::clone(&self.trips), Arc::clone(key), request.operation.clone());
        Reservation::on_settle(move |actual| {
            trips.tell(&key, operation.settled(charged_at, actual)?, &runtime);
            None
        })
    }

    /// Decides a call that does not wait.
    async fn check(
        &self,
        key: &Arc<str>,
        request: &Request<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        if let Some(denial) = self.known_denial(key, request) {
            return Ok((denial, Reservation::default()));
        }
        let outcome = self.trips.ask(key, request.operation.clone()).await?;
        let reservation = match outcome.decision().is_allowed() {
            true => self.reservation(key, request, outcome.charged_at()),
            false => Reservation::default(),
        };
        Ok((outcome.decision(), reservation))
    }

    /// Returns the denial of a call that does not wait, if this process remembers a state that denies the call.
    fn known_denial(&self, key: &Arc<str>, request: &Request<A>) -> Option<Decision> {
        // The settlement of another call may return units at any time. So calls with settlement are always sent, even
        // if a denial is remembered.
        if request.settles {
            return None;
        }
        self.trips.known_denial(key, &request.operation)
    }

    /// Decides a call that may wait.
    async fn wait(
        &self,
        key: &Arc<str>,
        request: &Request<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        // A call of cost 0 is always allowed, so it waits neither for units nor behind other calls.
        if request.operation.cost() == 0 {
            return self.check(key, request).await;
        }
        match request.operation.reserving(&self.trips.plan(), request.max_wait) {
            Some(reserving) => self.sleep_until_given_time(key, request, reserving).await,
            None => self.queue(key, request).await,
        }
    }

    async fn sleep_until_given_time(
        &self,
        key: &Arc<str>,
        request: &Request<A>,
        reserving: Operation<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        let outcome = self.trips.ask(key, reserving.clone()).await?;
        let decision = outcome.decision();
        if !decision.is_allowed() {
            return Ok((decision, Reservation::default()));
        }
        let delay = Nanos::from(decision.delay()).0;
        if delay > 0 {
            let (give_back, runtime) = (reserving.undone(&outcome), Handle::try_current().ok());
            let mut sleeper = Sleeper { trips: &self.trips, key, give_back, runtime };
            let link = self.links.any();
            link.sleep_until(link.now().saturating_add(delay)).await;
            sleeper.give_back = None;
        }
        Ok((decision, self.reservation(key, request, outcome.charged_at())))
    }

    async fn queue(
        &self,
        key: &Arc<str>,
        request: &Request<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        let plan = self.trips.plan();
        let algorithm = request.operation.tier().unwrap_or(&plan.algorithm);
        let Some(config) = algorithm.queue_config() else { return self.check(key, request).await };
        if config.places() == 0 {
            return self.check(key, request).await;
        }
        let waiting = self.queues.call(self.links.any(), key, &config, request.max_wait, None);
        waiting.until_decided(|| self.check(key, request), || self.peek(key, request)).await
    }

    async fn peek(&self, key: &Arc<str>, request: &Request<A>) -> Result<Decision, RedisError> {
        Ok(self.trips.ask(key, request.operation.with(Action::Peek)).await?.decision())
    }

    /// Returns `decided`, or the decision of the fallback if `decided` is an error.
    async fn or_fallback(
        &self,
        key: &Arc<str>,
        request: &Request<A>,
        decided: Result<(Decision, Reservation), RedisError>,
    ) -> Result<(Decision, Reservation), RedisError> {
        let (Err(_), Some(local)) = (&decided, &self.fallback) else { return decided };
        match local.store().acquire(local.store().key(&**key), request.attempt()) {
            Acquired::Ready(decision, reservation) => Ok((decision, reservation)),
            Acquired::Pending(wait) => match wait.await {
                Ok(waited) => Ok(waited),
                Err(never) => match never {},
            },
        }
    }
}

impl<A: StoredAlgorithm> Request<A> {
    /// Returns the attempt with which the call is passed to the fallback.
    fn attempt(&self) -> Attempt<'_, A> {
        let mut attempt = Attempt::new(self.operation.cost());
        if let Some(tier) = self.operation.tier() {
            attempt = attempt.with_algorithm(tier);
        }
        if self.settles {
            attempt = attempt.with_reservation();
        }
        if self.max_wait < u64::MAX {
            attempt = attempt.with_max_wait(Duration::from_nanos(self.max_wait));
        }
        if self.may_wait { attempt.wait() } else { attempt }
    }
}

impl<A: StoredAlgorithm> Store<A> for RedisLimit<A> {
    type Key = RedisKey;
    type Error = RedisError;
    type Wait = RedisReply<(Decision, Reservation)>;

    fn algorithm(&self) -> Cow<'_, A> {
        self.shared.trips.algorithm()
    }

    fn stats(&self) -> StoreStats {
        let Shared { links, fallback, .. } = &*self.shared;
        let fallbacks = fallback.as_ref().map_or(0, |limiter| limiter.stats().calls.ended());
        let mut stats = links.stats();
        stats.fallbacks = fallbacks;
        stats
    }

    fn acquire(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        let (shared, request) = (Arc::clone(&self.shared), self.request(&attempt));
        if !request.may_wait
            && let Some(denial) = shared.known_denial(&key, &request)
        {
            return Acquired::Ready(denial, Reservation::default());
        }
        Acquired::Pending(Box::pin(async move {
            let decided = match request.may_wait {
                true => shared.wait(&key, &request).await,
                false => shared.check(&key, &request).await,
            };
            shared.or_fallback(&key, &request, decided).await
        }))
    }
}

impl<A: StoredAlgorithm, K: SharedKey + ?Sized> KeyedStore<A, K> for RedisLimit<A> {
    fn key(&self, key: &K) -> RedisKey {
        RedisKey(self.shared.key_text.of(key).into())
    }
}

/// A settlement is sent without waiting for its reply. It is lost if the server cannot execute it within the deadline.
impl<A: StoredAlgorithm> SettleStore<A> for RedisLimit<A> {}

impl<A: StoredAlgorithm> CheckStore<A> for RedisLimit<A> {
    type Reply<T: Send + 'static> = RedisReply<T>;
    type Output<T> = Result<T, RedisError>;

    fn output<T>(result: Result<T, RedisError>) -> Result<T, RedisError> {
        result
    }

    fn check(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, A>) -> RedisReply<Decision> {
        let (shared, request) = (Arc::clone(&self.shared), self.request(&attempt));
        Box::pin(async move {
            match (shared.check(&key, &request).await, &shared.fallback) {
                (Err(_), Some(local)) => Ok(local.store().check(local.store().key(&*key), request.attempt())),
                (decided, _) => decided.map(|(decision, _)| decision),
            }
        })
    }

    /// Returns an empty permit for an admitted call, because no algorithm of this crate that works with a
    /// [`RedisLimit`] limits calls in progress.
    fn try_acquire_permit(
        &self,
        key: RedisKey,
        attempt: Attempt<'_, A>,
    ) -> RedisReply<Result<Permit, Denied>> {
        let decision = self.check(key, attempt);
        Box::pin(async move { Ok(Permit::decided(decision.await?, Reservation::default())) })
    }

    fn peek(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, A>) -> RedisReply<Decision> {
        let (shared, request) = (Arc::clone(&self.shared), self.request(&attempt));
        Box::pin(async move {
            match shared.peek(&key, &request).await {
                Ok(decision) => Ok(decision),
                Err(error) => match &shared.fallback {
                    Some(local) => Ok(local.store().peek(local.store().key(&*key), request.attempt())),
                    None => Err(error),
                },
            }
        })
    }

    fn refund(&self, RedisKey(key): RedisKey, cost: u64) -> RedisReply<()> {
        self.change(key, Action::Refund, cost)
    }

    fn reset(&self, RedisKey(key): RedisKey) -> RedisReply<()> {
        self.change(key, Action::Reset, 0)
    }
}

/// The states of keys are converted when the keys are next used. Other processes continue with their own algorithm.
impl<A: StoredAlgorithm> ReplaceAlgorithm<A> for RedisLimit<A> {
    /// Replaces the algorithm. If the states of the new algorithm cannot be kept in Redis, the old algorithm stays in
    /// use, and the error is logged (feature `tracing`). The fallback keeps its own algorithm.
    fn replace(&self, algorithm: A) {
        self.shared.trips.replace(algorithm);
    }
}

impl<A: StoredAlgorithm, K: SharedKey + ?Sized> JointStore<A, K> for RedisLimit<A> {
    type Kind = InRedis;

    fn joint_part<'a>(&'a self, key: &K, attempt: Attempt<'_, A>, counts: &'a Arc<CallCounts>) -> RedisPart {
        let RedisKey(key) = self.key(key);
        let mut request = self.request(&attempt);
        let (shared, plan) = (Arc::clone(&self.shared), self.shared.trips.plan());
        // In shadow mode, a call must not wait.
        let in_shadow = attempt.is_in_shadow();
        request.may_wait &= request.operation.cost() > 0 && !in_shadow;
        let reserving = match request.may_wait {
            true => request.operation.reserving(&plan, request.max_wait),
            false => None,
        };
        let is_reserving = reserving.is_some();
        if let Some(reserving) = reserving {
            request.operation = reserving;
        }
        let (forgotten, counts) = (shared.trips.forgotten(), Arc::clone(counts));
        let part =
            Part { shared, plan, key, request, is_reserving, in_shadow, counts, states: None, forgotten };
        RedisPart::new(Box::new(part))
    }
}

impl<A: StoredAlgorithm> Member for Part<A> {
    fn links(&self) -> &Links {
        &self.shared.links
    }

    fn key(&self) -> &Arc<str> {
        &self.key
    }

    fn cost(&self) -> u64 {
        self.request.operation.cost()
    }

    fn is_in_shadow(&self) -> bool {
        self.in_shadow
    }

    fn count(&self, outcome: CallOutcome) {
        self.counts.add(outcome);
    }

    fn counts(&self) -> Arc<CallCounts> {
        Arc::clone(&self.counts)
    }

    fn check_supported(&self) -> Result<(), RedisError> {
        let algorithm = self.request.operation.tier().unwrap_or(&self.plan.algorithm);
        let queues = || algorithm.queue_config().is_some_and(|config| config.places() > 0);
        match self.request.may_wait && !self.is_reserving && queues() {
            true => Err(RedisError::new(
                RedisErrorKind::Algorithm,
                "in joined layers, only a `TokenBucket` or a `LeakyBucket` without tiers can have a queue",
            )),
            false => Ok(()),
        }
    }

    fn known_denial(&self) -> Option<Decision> {
        let is_asked = self.in_shadow || self.request.may_wait;
        if is_asked { None } else { self.shared.known_denial(&self.key, &self.request) }
    }

    fn script_part(&self, cost: u64) -> Option<(&ScriptPart, &str)> {
        self.plan.script_part(&self.request.operation, cost)
    }

    fn read(&mut self, value: &str, now: Nanos) -> Result<(), RedisError> {
        self.states = Some(self.plan.decode(value, now)?);
        Ok(())
    }

    fn preview(&self, cost: u64, now: Nanos) -> Outcome {
        let states = self.states.as_ref().expect(NOT_READ);
        states.preview(&self.plan, &self.request.operation.at_cost(cost), now)
    }

    fn apply(&mut self, cost: u64, now: Nanos) -> (Outcome, bool) {
        let states = self.states.as_mut().expect(NOT_READ);
        states.apply(&self.plan, &self.request.operation.at_cost(cost), now)
    }

    fn write(&mut self, now: Nanos) -> (String, u64) {
        let states = self.states.as_mut().expect(NOT_READ);
        let value = states.write(&self.plan, now).unwrap_or_default();
        (value, states.time_to_live(&self.plan.algorithm, now))
    }

    fn remember(&mut self, now: Nanos, sent: Nanos) {
        if let Some(states) = self.states.take() {
            let state = states.into_own();
            self.shared.trips.remember(&self.key, &self.plan, state, now, sent, self.forgotten);
        }
    }

    fn undo(&self, cost: u64, outcome: &Outcome, runtime: &Handle) {
        if let Some(undo) = self.request.operation.at_cost(cost).undone(outcome) {
            self.shared.trips.tell(&self.key, undo, runtime);
        }
    }

    fn reservation(&self, charged_at: Nanos) -> Reservation {
        self.shared.reservation(&self.key, &self.request, charged_at)
    }

    fn algorithm(&self) -> Option<AnyAlgorithm> {
        self.request.operation.tier().cloned().map(|tier| Box::new(tier) as AnyAlgorithm)
    }

    fn fallback_part(&self) -> Option<JointRequest<'_>> {
        let local = self.shared.fallback.as_ref()?;
        Some(memory_part(local, &*self.key, self.request.attempt()))
    }
}

impl<A: StoredAlgorithm> Drop for Sleeper<'_, A> {
    fn drop(&mut self) {
        if let (Some(operation), Some(runtime)) = (self.give_back.take(), &self.runtime) {
            self.trips.tell(self.key, operation, runtime);
        }
    }
}

impl<A: StoredAlgorithm> Clone for RedisLimit<A> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<A: StoredAlgorithm> fmt::Debug for RedisLimit<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimit").field("key", &self.shared.key_text).finish_non_exhaustive()
    }
}

#[cfg(feature = "test-util")]
impl<A: StoredAlgorithm> TestedStore<A> for RedisLimit<A> {
    async fn reply<T: Send + 'static>(reply: Self::Reply<T>) -> Result<T, BoxError> {
        Ok(reply.await?)
    }

    fn result<T>(output: Self::Output<T>) -> Result<T, BoxError> {
        Ok(output?)
    }
}
