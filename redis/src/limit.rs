use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::asked::{Asked, result_of};
use super::denials::Denials;
use super::error::RedisError;
use super::links::Links;
use super::names::Registered;
use super::next_trip::Waiting;
use super::operation::{Action, Operation, Outcome, Pending};
use super::plan::Plan;
use super::wait_queue::WaitQueues;
use tower_throttle::Decision;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;
use tower_throttle::stats::StoreStats;
use tower_throttle::store::{Acquired, Attempt, KeyedStore, Reservation, SettleStore, Store};
use tower_throttle::store::{KeyText, SharedKey};
use tower_throttle::store_support::holds_requests;

/// The store of one limiter in a [`RedisStore`](super::RedisStore).
/// [`Builder::store`](tower_throttle::limiter::Builder::store) creates this store.
pub struct RedisLimit<A: StoredAlgorithm> {
    pub(super) shared: Arc<Shared<A>>,
}

/// The key of a [`RedisLimit`]: the name of the key in Redis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RedisKey(pub(super) Arc<str>);

/// The future of a reply of a [`RedisLimit`].
pub(super) type RedisReply<T> = Pin<Box<dyn Future<Output = Result<T, RedisError>> + Send>>;

/// The part of a limiter that its clones share.
pub(super) struct Shared<A: StoredAlgorithm> {
    pub(super) links: Links,
    pub(super) key_text: KeyText,
    initial: A,
    pub(super) plan: RwLock<Arc<Plan<A>>>,
    pub(super) is_replaced: AtomicBool,
    pub(super) scripts: bool,
    /// The keys for which a trip is under way, each with the calls that wait for its next trip.
    pub(super) flights: DashMap<Arc<str>, Waiting<A>>,
    pub(super) flights_begun: AtomicU64,
    pub(super) queues: WaitQueues,
    pub(super) denials: Denials<A>,
    pub(super) fallback: Option<RateLimiter<A>>,
    pub(super) name: Registered,
}

/// A call of a limiter.
#[derive(Clone, Debug)]
pub(super) struct Request<A> {
    pub(super) operation: Operation<A>,
    pub(super) settles: bool,
    pub(super) may_wait: bool,
    pub(super) max_wait: u64,
}

/// The parts from which a limiter's store is made.
pub(super) struct Parts<A: StoredAlgorithm> {
    pub(super) links: Links,
    pub(super) key_text: KeyText,
    pub(super) plan: Arc<Plan<A>>,
    pub(super) scripts: bool,
    pub(super) denials: Denials<A>,
    pub(super) fallback: Option<RateLimiter<A>>,
    pub(super) name: Registered,
}

impl<A: StoredAlgorithm> RedisLimit<A> {
    pub(super) fn new(parts: Parts<A>) -> Self {
        let Parts { links, key_text, plan, scripts, denials, fallback, name } = parts;
        let shared = Shared {
            links,
            key_text,
            initial: plan.algorithm.clone(),
            plan: RwLock::new(plan),
            is_replaced: AtomicBool::new(false),
            scripts,
            flights: DashMap::new(),
            flights_begun: AtomicU64::default(),
            queues: WaitQueues::default(),
            denials,
            fallback,
            name,
        };
        Self { shared: Arc::new(shared) }
    }

    pub(super) fn request(&self, attempt: &Attempt<'_, A>) -> Request<A> {
        let operation =
            Operation { tier: attempt.algorithm().cloned(), ..Operation::new(Action::Check, attempt.cost()) };
        let waits = || attempt.algorithm().map_or_else(|| holds_requests(&*self.algorithm()), holds_requests);
        Request {
            operation,
            settles: attempt.wants_reservation(),
            may_wait: attempt.may_wait() || waits(),
            max_wait: attempt.max_wait().map_or(u64::MAX, |wait| Nanos::from(wait).0),
        }
    }
}

impl<A: StoredAlgorithm> Shared<A> {
    pub(super) fn plan(&self) -> Arc<Plan<A>> {
        Arc::clone(&self.plan.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends an operation to the server, and returns its outcome. Returns an error if there is no outcome by the
    /// deadline.
    pub(super) async fn ask(
        self: &Arc<Self>,
        key: &Arc<str>,
        operation: Operation<A>,
    ) -> Result<Outcome, RedisError> {
        let runtime = RedisError::current_runtime()?;
        let link = &*self.links.route(key).link;
        link.breaker.admit(link.now())?;
        let deadline = link.deadline();
        let (reply, answer) = oneshot::channel();
        let pending = Pending { operation: operation.clone(), deadline, reply: Some(reply) };
        // A call that needs several trips is made in a task, since the caller may not be polled between the trips.
        let is_one_trip = operation.is_plain_check() && self.plan().script(&[operation.cost]).is_some();
        let flight = match is_one_trip {
            true => self.send_polled(key, pending, &runtime),
            false => {
                self.send(key, pending, &runtime);
                None
            }
        };
        let mut asked = Asked { shared: self, key, operation, answer, flight, runtime: &runtime };
        let received = asked.answer(link, deadline).await;
        result_of(link, deadline, received, &mut asked.answer)
    }

    /// Sends an operation without waiting for its outcome. The operation is lost if the server cannot execute it within
    /// the deadline.
    pub(super) fn tell(self: &Arc<Self>, key: &Arc<str>, operation: Operation<A>, runtime: &Handle) {
        let deadline = self.links.any().deadline();
        self.send(key, Pending { operation, deadline, reply: None }, runtime);
    }

    /// Returns the reservation of a call that was charged, or an empty reservation if the call will not be settled.
    pub(super) fn reservation(
        self: &Arc<Self>,
        key: &Arc<str>,
        request: &Request<A>,
        charged_at: Nanos,
    ) -> Reservation {
        let Operation { cost, tier, .. } = request.operation.clone();
        let Ok(runtime) = Handle::try_current() else { return Reservation::default() };
        if !request.settles {
            return Reservation::default();
        }
        let (shared, key) = (Arc::clone(self), Arc::clone(key));
        Reservation::on_settle(move |actual| {
            let (action, cost) = match actual.checked_sub(cost) {
                Some(0) => return None,
                Some(more) => (Action::ChargeMore, more),
                None => (Action::Undo(charged_at), cost - actual),
            };
            shared.tell(&key, Operation { tier, ..Operation::new(action, cost) }, &runtime);
            None
        })
    }

    /// Decides a call that does not wait.
    pub(super) async fn check(
        self: &Arc<Self>,
        key: &Arc<str>,
        request: &Request<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        if let Some(denial) = self.known_denial(key, request) {
            return Ok((denial, Reservation::default()));
        }
        let outcome = self.ask(key, request.operation.clone()).await?;
        let reservation = match outcome.decision.is_allowed() {
            true => self.reservation(key, request, outcome.charged_at),
            false => Reservation::default(),
        };
        Ok((outcome.decision, reservation))
    }

    /// Returns the denial of a call that does not wait, if this process remembers a state that denies the call.
    pub(super) fn known_denial(&self, key: &Arc<str>, request: &Request<A>) -> Option<Decision> {
        // The settlement of another call may return units at any time. So calls with settlement are always sent, even
        // if a denial is remembered.
        if request.settles {
            return None;
        }
        self.denials.answer(key, &self.plan(), &request.operation, self.links.any().now())
    }
}

impl<A: StoredAlgorithm> Store<A> for RedisLimit<A> {
    type Key = RedisKey;
    type Error = RedisError;
    type Wait = RedisReply<(Decision, Reservation)>;

    fn algorithm(&self) -> Cow<'_, A> {
        match self.shared.is_replaced.load(Ordering::Acquire) {
            true => Cow::Owned(self.shared.plan().algorithm.clone()),
            false => Cow::Borrowed(&self.shared.initial),
        }
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
