//! The limiter whose state is in Redis: its calls, those that wait, its fallback, and its part in joint calls.
//!
//! A bucket's state tells when units will be free, so the call is charged for that time at once and sleeps until then;
//! all processes share one order. A window's state does not, so each process queues its denied calls, and the first one
//! asks again after its `retry_after`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::call::{Callee, RedisCall, RedisReply, Request, call_methods, unit_methods};
use super::calls::{Calls, CountedCall, closed};
use super::error::{RedisError, RedisErrorKind};
use super::frame::Frame;
use super::joint::{InRedis, Member, RedisPart};
use super::lease::RedisLeasesBuilder;
use super::links::Links;
use super::names::{Name, Registered, words};
use super::parts::StoreParts;
use super::script::ScriptPart;
use super::settlements::Settlements;
use super::states::{Action, Operation, Outcome, Plan, States};
use super::trips::Trips;
use super::wait::{TotalPlace, WaitQueues, is_in_time};
use tower_throttle::Decision;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{AlgorithmInfo, Lockout, MAX_DEBT, StoredAlgorithm, TokenBucket};
use tower_throttle::clock::Nanos;
use tower_throttle::limiter::{
    Acquired, Attempt, Decided, Denied, Limiter, LimiterFor, Permit, Reservation, Settles, SharedKey,
};
use tower_throttle::stats::LimiterStats;
use tower_throttle::store_support::{
    AnyAlgorithm, Charge, Charger, JointLimiter, JointRequest, memory_part, reservation_of, warn_of_bursts,
    with_queue_full,
};

/// A rate limiter whose state is in Redis. Clones share their state, and so do the limiters of all processes with the
/// same name. [`RedisStore::limiter`](super::RedisStore::limiter) creates it.
///
/// It has the methods of [`RateLimiter`], as futures. The futures borrow neither the key nor the limiter, and make the
/// call when they are first polled.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_throttle::Quota;
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle_redis::RedisStore;
///
/// let redis = RedisStore::connect("redis://10.0.0.5").await?;
/// let logins = redis.limiter("login", TokenBucket::new(Quota::per_minute(5))).build()?;
/// if logins.check("user:42").await?.is_allowed() {
///     // serve
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The futures yield a [`RedisError`] if Redis does not decide the call, unless there is a
/// [fallback](RedisLimiterBuilder::fallback).
pub struct RedisLimiter<A: StoredAlgorithm> {
    shared: Arc<Shared<A>>,
}

/// A builder of a [`RedisLimiter`]. [`RedisStore::limiter`](super::RedisStore::limiter) creates it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RedisLimiterBuilder<A: StoredAlgorithm> {
    pub(super) store: StoreParts,
    pub(super) name: Name,
    pub(super) algorithm: A,
    pub(super) max_debt: u64,
    pub(super) max_queued: Option<usize>,
    pub(super) fallback: Option<RateLimiter<A>>,
}

/// The part of a limiter that its clones share.
#[expect(missing_debug_implementations, reason = "users cannot name this type")]
pub struct Shared<A: StoredAlgorithm> {
    links: Links,
    trips: Arc<Trips<A>>,
    name: Registered,
    calls: Arc<Calls>,
    queues: WaitQueues,
    settlements: Arc<Settlements>,
    /// The maximum debt of a key, in units.
    max_debt: u64,
    fallback: Option<RateLimiter<A>>,
}

/// A call of a limiter, and the plan that decides it.
struct LimiterCall<'a, A: StoredAlgorithm> {
    shared: &'a Shared<A>,
    plan: &'a Arc<Plan<A>>,
    key: &'a Arc<str>,
    request: &'a Request<A>,
}

/// A guard that gives back the charge of a call if the call is dropped while it sleeps.
struct Sleeper<'a, A: StoredAlgorithm> {
    trips: &'a Arc<Trips<A>>,
    key: &'a Arc<str>,
    give_back: Option<Operation<A>>,
    runtime: &'a Handle,
}

/// The charge of a call, which is settled by a trip that nobody waits for. The limiter may be closed meanwhile: other
/// processes share the key.
#[derive(Clone)]
struct RedisCharge<A: StoredAlgorithm> {
    trips: Arc<Trips<A>>,
    settlements: Arc<Settlements>,
    key: Arc<str>,
    call: Operation<A>,
    outcome: Outcome,
    max_debt: u64,
    /// The runtime that makes the trip, from whichever thread the call is settled.
    runtime: Handle,
}

/// The part of a limiter in a joint call.
struct Part<A: StoredAlgorithm> {
    shared: Arc<Shared<A>>,
    plan: Arc<Plan<A>>,
    key: Arc<str>,
    request: Request<A>,
    operation: Operation<A>,
    may_wait: bool,
    /// `true` if the call does not wait because as many calls as allowed wait already.
    finds_no_place: bool,
    arrived: Nanos,
    states: Option<States<A>>,
    /// The number of times that the limiter had forgotten states when the call was made.
    forgotten: u64,
}

const NOT_READ: &str = "the state is read first";

impl<A: StoredAlgorithm> RedisLimiterBuilder<A> {
    /// Sets a limiter in memory, to which a call is passed if Redis cannot decide the call.
    ///
    /// `limiter` charges only the calls that are passed to it, so give it one machine's share of the quota. A call is
    /// settled where it was charged: in Redis, or in `limiter`. The time that a call has waited before Redis failed
    /// counts towards its maximum wait in `limiter`.
    ///
    /// No method fails: what Redis cannot do is done in `limiter`, and is then `Ok`. This is true of `check`,
    /// `acquire`, `peek`, `charge`, `refund` and `reset`. A reset is always made in `limiter` as well. A reset during
    /// an outage is made only in `limiter`, and is `Ok` as well: Redis keeps the state of the key, so the key is
    /// limited in Redis again as soon as Redis works. Reset the key once more then, or use a limiter without a fallback
    /// if you have to know.
    ///
    /// `limiter` gets the text of each key, without the [kind](StoredAlgorithm::kind) that follows it in Redis. So ask
    /// `limiter` about a key by its [`KeyText`](tower_throttle::limiter::KeyText), with the settings of the store:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::limiter::KeyText;
    /// use tower_throttle_redis::RedisStore;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let local = RateLimiter::new(FixedWindow::new(Quota::per_minute(5)));
    /// // There is no server at this address.
    /// let redis = RedisStore::builder("redis://127.0.0.1:1").prefix("shop").connect_lazily()?;
    /// let window = FixedWindow::new(Quota::per_minute(10));
    /// let limiter = redis.limiter("login", window).fallback(local.clone()).build()?;
    /// limiter.check("user:42").await?;
    /// let text = KeyText::new("login").prefix("shop").of("user:42");
    /// assert_eq!(local.peek(&text).remaining(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fallback(mut self, limiter: RateLimiter<A>) -> Self {
        self.fallback = Some(limiter);
        self
    }

    /// Sets by how many units a key may be in debt. See
    /// [`Builder::max_debt`](tower_throttle::limiter::Builder::max_debt).
    ///
    /// The bound applies to the charges of this process. The fallback has a bound of its own.
    pub fn max_debt(mut self, units: u64) -> Self {
        self.max_debt = units.min(MAX_DEBT);
        self
    }

    /// Sets how many calls of this process may wait, for all keys together. With 0, no call waits. See
    /// [`Builder::max_queued`](tower_throttle::limiter::Builder::max_queued), with the same default: 10,000, or the
    /// algorithm's `queue(n)` if that is more.
    ///
    /// A call that may wait for a bucket counts while Redis is asked, too. The fallback has a bound of its own.
    pub fn max_queued(mut self, max_queued: usize) -> Self {
        self.max_queued = Some(max_queued);
        self
    }

    /// Returns the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty, if another limiter of the store has the same name and another algorithm
    /// or quota, or if the states or the queue of the algorithm cannot be kept in Redis.
    pub fn build(self) -> Result<RedisLimiter<A>, RedisError> {
        let Self { store, name, algorithm, max_debt, max_queued, fallback } = self;
        let queues = WaitQueues::new(&algorithm, max_queued);
        let StoreParts { links, settings, settlements, .. } = store;
        warn_of_bursts(&algorithm, Some(name.as_str()));
        let plan = Plan::new(algorithm, links.any().source(), settings.scripts)?;
        let name = name.register(&A::kind(), plan.frame().unit(), words::<A>(&plan.info()))?;
        let trips = Trips::new(links.clone(), plan, settings.scripts, settings.remember_denials);
        let shared = Shared {
            links,
            trips: Arc::new(trips),
            settlements: Arc::new(Settlements::new(settlements, name.as_str())),
            calls: Arc::new(Calls::new(name.as_str())),
            name,
            queues,
            max_debt,
            fallback,
        };
        Ok(RedisLimiter { shared: Arc::new(shared) })
    }
}

impl RedisLimiterBuilder<TokenBucket> {
    /// Lets the limiter take up to `units` units of a key at once. These units are a *lease*: the limiter spends them
    /// without further trips. [`RedisLeases`](super::RedisLeases) says what is promised.
    ///
    /// Only a `TokenBucket` can be leased. Other algorithms do not compile:
    ///
    /// ```compile_fail,E0599
    /// # use tower_throttle::Quota;
    /// # use tower_throttle::algorithm::FixedWindow;
    /// # use tower_throttle_redis::RedisStore;
    /// # fn example(redis: RedisStore) {
    /// redis.limiter("api", FixedWindow::new(Quota::per_second(10))).lease(10);
    /// # }
    /// ```
    pub fn lease(self, units: u64) -> RedisLeasesBuilder {
        let Self { store, name, algorithm, max_queued, fallback, .. } = self;
        RedisLeasesBuilder { store, name, algorithm, units, max_queued, has_fallback: fallback.is_some() }
    }
}

unit_methods!(RedisLimiter<A: StoredAlgorithm>);
call_methods!(RedisLimiter<A: StoredAlgorithm>);

impl<A: StoredAlgorithm> RedisLimiter<A> {
    /// Refunds up to `cost` units that were charged to the key and still count. See [`RateLimiter::refund`].
    ///
    /// A `TokenBucket` or a `LeakyBucket` has charged the calls that wait, and its state does not show which units are
    /// theirs. If `cost` is above what other calls were charged and still counts, their units are given back as well.
    pub fn refund<K: SharedKey + ?Sized>(&self, key: &K, cost: u64) -> RedisReply<()> {
        self.change(key, Action::Refund, cost, drop)
    }

    /// Charges `units` to the key after the fact, even if they are not available. See [`RateLimiter::charge`], and
    /// [`max_debt`](RedisLimiterBuilder::max_debt).
    ///
    /// A limiter that was closed charges as well, because other processes share the key.
    pub fn charge<K: SharedKey + ?Sized>(&self, key: &K, units: u64) -> RedisReply<()> {
        self.call(key).cost(units).charge()
    }

    /// Resets the key to the state of a new key. Returns whether the key had used anything, in Redis or in the
    /// [fallback](RedisLimiterBuilder::fallback). If Redis fails, only the fallback is reset and asked. The type of the
    /// key counts, as in [`RateLimiter::reset`].
    ///
    /// There is no `reset_all`, because a server would have to search all of its keys. To reset all keys, give the
    /// limiter another name: the keys of the old name expire.
    pub fn reset<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<bool> {
        self.change(key, Action::Reset, 0, |was_used| was_used)
    }

    /// Replaces the algorithm by another of the same type, for all keys and for all clones of the limiter. See
    /// [`RateLimiter::replace`]. The states of keys are converted when the keys are next used, even by a call that is
    /// denied, and not by a peek. A key that is not used before its state expires is a new key.
    ///
    /// Calls that this process has charged before, and settles later, give nothing back. Other processes continue with
    /// their own algorithm, and the fallback with its own. If the states or the queue of the new algorithm cannot be
    /// kept in Redis, the old algorithm stays in use, and the error is logged (feature `tracing`).
    pub fn replace(&self, algorithm: A) {
        self.shared.trips.replace(algorithm, &self.shared.name);
    }

    /// Closes the limiter and all its clones for ever: calls of this process that wait are denied at once, and new
    /// calls with a cost above 0 are denied as well, without a trip. See [`RateLimiter::close`].
    ///
    /// Calls whose trips are under way are decided by these trips. The units of calls that were to be admitted after a
    /// wait are given back. Other processes and other limiters of this process are not affected, even if they have the
    /// same name, and neither is the fallback.
    ///
    /// Calls in progress are settled, and [`charge`](Self::charge) charges, as before, because other processes share
    /// the keys. In memory, a closed limiter charges nothing more.
    pub fn close(&self) {
        self.shared.calls.close();
    }

    /// Returns a copy of the current algorithm.
    #[must_use]
    pub fn algorithm(&self) -> A {
        self.shared.trips.plan().algorithm.clone()
    }

    fn registered(&self) -> &Registered {
        &self.shared.name
    }

    fn stats_without_calls(&self) -> LimiterStats {
        let Shared { links, settlements, fallback, .. } = &*self.shared;
        let mut stats = LimiterStats::default();
        stats.store = links.stats();
        stats.units = settlements.units();
        stats.store.settle_errors = settlements.failed();
        if let Some(local) = fallback.as_ref().map(RateLimiter::stats) {
            stats.store.fallbacks = local.calls.ended();
            let units = &mut stats.units;
            units.charged = units.charged.saturating_add(local.units.charged);
            units.refunded = units.refunded.saturating_add(local.units.refunded);
            units.uncharged = units.uncharged.saturating_add(local.units.uncharged);
        }
        stats
    }

    /// Refunds or resets the key. A reset is also made in the fallback. A refund is made in the fallback only if Redis
    /// fails. As with all methods, a failure of Redis is no error if there is a fallback. `then` gets whether a reset
    /// has found a key that was not fresh.
    fn change<K: SharedKey + ?Sized, T: 'static>(
        &self,
        key: &K,
        action: Action,
        cost: u64,
        then: fn(bool) -> T,
    ) -> RedisReply<T> {
        let shared = Arc::clone(&self.shared);
        let key = self.key(key);
        RedisReply::new(async move {
            shared.trips.forget(&key);
            let plan = shared.trips.plan();
            let operation = Operation::new(action, cost, None);
            let changed = shared.trips.ask(&plan, &key, operation, None).await;
            let was_used =
                changed.map(|outcome| outcome.was_used()).map_err(|error| shared.name.describe(error));
            let (Some(local), text) = (&shared.fallback, shared.name.text_of(&key)) else {
                return was_used.map(then);
            };
            if action == Action::Reset {
                return Ok(then(local.reset(text) | was_used.unwrap_or(false)));
            }
            // If Redis fails now, the call whose units are refunded was probably charged by the fallback.
            if was_used.is_err() {
                local.refund(text, cost);
            }
            Ok(then(false))
        })
    }
}

/// Lockouts that an administrator begins and ends.
impl<A: StoredAlgorithm> RedisLimiter<Lockout<A>> {
    /// Locks the key out for `duration` from now, for all processes. See [`RateLimiter::lock_out`]. Returns whether the
    /// key is locked out: `false` only if `duration` is zero.
    ///
    /// The lockout is part of the key's state, which is compared and then replaced in one script. So no call that is
    /// decided meanwhile is lost. The [fallback](RedisLimiterBuilder::fallback) locks the key out as well. If Redis
    /// fails, only the fallback does.
    ///
    /// Calls that wait in a process ask Redis in their turn. During the lockout they are then denied, unlike in memory.
    /// Calls of other processes that use the same name with another quota are denied as well. If a process with another
    /// quota is the first that calls the key afterwards, it shortens the lockout to the duration of its own lockouts.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), tower_throttle_redis::RedisError> {
    /// use std::time::Duration;
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle_redis::RedisStore;
    ///
    /// let hour = Duration::from_secs(3_600);
    /// let redis = RedisStore::connect("redis://10.0.0.5").await?;
    /// let log_ins = FixedWindow::new(Quota::per_minute(5)).block_for(hour).after(10);
    /// let log_ins = redis.limiter("log-ins", log_ins).build()?;
    /// log_ins.lock_out("user:42", 24 * hour).await?;
    /// assert!(log_ins.check("user:42").await?.is_locked_out());
    /// assert!(log_ins.lift_lockout("user:42").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_out<K: SharedKey + ?Sized>(&self, key: &K, duration: Duration) -> RedisReply<bool> {
        self.set_lockout(key, duration, false)
    }

    /// Ends the lockout of the key, if it is in one, for all processes, and forgets the denials that were counted
    /// towards the next one. See [`RateLimiter::lift_lockout`]. Returns whether the key was locked out or had such
    /// denials, in Redis or in the [fallback](RedisLimiterBuilder::fallback). If Redis fails, only the fallback is
    /// changed and asked.
    pub fn lift_lockout<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<bool> {
        self.set_lockout(key, Duration::ZERO, true)
    }

    fn set_lockout<K: SharedKey + ?Sized>(&self, key: &K, left: Duration, lifts: bool) -> RedisReply<bool> {
        let shared = Arc::clone(&self.shared);
        let key = self.key(key);
        RedisReply::new(async move {
            shared.trips.forget(&key);
            let operation = Operation::new(Action::LockOut(Nanos::from(left).0), 0, None);
            let set = shared.trips.ask(&shared.trips.plan(), &key, operation, None).await;
            let is_set = |outcome: Outcome| if lifts { outcome.was_used() } else { !left.is_zero() };
            let set = set.map(is_set).map_err(|error| shared.name.describe(error));
            let (Some(local), text) = (&shared.fallback, shared.name.text_of(&key)) else { return set };
            let is_set = if lifts { local.lift_lockout(text) } else { local.lock_out(text, left) };
            Ok(is_set | set.unwrap_or(false))
        })
    }
}

impl<A: StoredAlgorithm> RedisCall<'_, RedisLimiter<A>> {
    /// Charges the cost of this call after the fact, even if its units are not available. The other options have no
    /// effect, except for the [tier](Self::tier). See [`RedisLimiter::charge`].
    pub fn charge(self) -> RedisReply<()> {
        let (limiter, key, request) = self.into_parts();
        let shared = Arc::clone(&limiter.shared);
        RedisReply::new(async move {
            if request.cost() == 0 {
                return Ok(());
            }
            let plan = shared.trips.plan();
            let local = shared.fallback.as_ref();
            let unsettled = shared.settlements.charge(request.cost(), local.is_some());
            let operation = operation(&request, Action::ChargeMore(shared.max_debt));
            let charged = shared.trips.ask(&plan, &key, operation, Some(unsettled)).await;
            match (charged, local) {
                (Err(_), Some(local)) => {
                    local.charge_attempt(shared.name.text_of(&key), request.attempt(&plan.algorithm));
                    Ok(())
                }
                (charged, _) => charged.map(|_| ()).map_err(|error| shared.name.describe(error)),
            }
        })
    }
}

/// An admitted call has an empty permit, because no algorithm that works with a [`RedisLimiter`] limits calls in
/// progress.
impl<A: StoredAlgorithm> Callee for RedisLimiter<A> {
    type Algorithm = A;
    type Shared = Shared<A>;

    fn shared(&self) -> &Arc<Shared<A>> {
        &self.shared
    }

    fn calls(shared: &Shared<A>) -> &Calls {
        &shared.calls
    }

    fn info_of(shared: &Shared<A>) -> Arc<AlgorithmInfo> {
        shared.trips.plan().info()
    }

    fn generation_of(shared: &Shared<A>) -> u64 {
        shared.trips.generation()
    }

    fn decide_at_once(shared: &Arc<Shared<A>>, key: &Arc<str>, request: &Request<A>) -> Option<Decision> {
        LimiterCall { shared, plan: &shared.trips.plan(), key, request }.denial_without_trip()
    }

    async fn decide(
        shared: &Arc<Shared<A>>,
        key: &Arc<str>,
        request: &Request<A>,
        call: &mut CountedCall<'_>,
    ) -> Result<Decided, RedisError> {
        let plan = &shared.trips.plan();
        let called = LimiterCall { shared, plan, key, request };
        match called.denial_without_trip() {
            Some(denial) => Ok(denied(denial)),
            None => called.decide(call).await,
        }
    }

    async fn look(
        shared: Arc<Shared<A>>,
        key: Arc<str>,
        request: Request<A>,
    ) -> Result<Decision, RedisError> {
        let plan = &shared.trips.plan();
        let called = LimiterCall { shared: &shared, plan, key: &key, request: &request };
        if let Some(denial) = called.denial_of_closed() {
            return Ok(denial);
        }
        match (called.ask(Action::Peek).await, &shared.fallback) {
            (Err(_), Some(local)) => {
                Ok(local.peek_attempt(shared.name.text_of(&key), request.attempt(&plan.algorithm)))
            }
            (peeked, _) => Ok(*peeked.map_err(|error| shared.name.describe(error))?.decision()),
        }
    }
}

impl<'a, A: StoredAlgorithm> LimiterCall<'a, A> {
    /// Returns the reservation of a call that was charged with this outcome, or an empty reservation if the call will
    /// not be settled.
    fn reservation(&self, outcome: Outcome, runtime: &Handle) -> Reservation {
        let Shared { trips, settlements, max_debt, .. } = self.shared;
        if self.request.settles() {
            reservation_of(RedisCharge {
                trips: Arc::clone(trips),
                settlements: Arc::clone(settlements),
                key: Arc::clone(self.key),
                call: operation(self.request, Action::Check),
                outcome,
                max_debt: *max_debt,
                runtime: runtime.clone(),
            })
        } else {
            Reservation::default()
        }
    }

    /// Returns the algorithm that decides the call.
    fn algorithm(&self) -> &A {
        self.request.algorithm(&self.plan.algorithm)
    }

    /// Returns whether a new key would admit the call, now or later.
    fn can_fit(&self) -> bool {
        let algorithm = self.algorithm();
        let mut fresh = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        !algorithm.peek(&mut fresh, Nanos::ZERO, self.request.cost()).never_fits()
    }

    /// Returns the denial of the call if the limiter was closed.
    fn denial_of_closed(&self) -> Option<Decision> {
        self.shared.calls.denial(self.algorithm(), self.request.cost())
    }

    /// Returns the denial of a call that does not wait, if this process remembers a state that denies the call.
    fn known_denial(&self) -> Option<Decision> {
        // The settlement of another call may return units at any time. So calls with settlement are always sent, even
        // if a denial is remembered.
        if self.request.settles() {
            return None;
        }
        self.shared.trips.known_denial(self.plan, self.key, &operation(self.request, Action::Check))
    }

    /// Returns the denial of the call if it needs no trip: if the limiter was closed, or if the call does not wait and
    /// its denial is known.
    fn denial_without_trip(&self) -> Option<Decision> {
        let may_wait = self.request.may_wait(&self.plan.algorithm);
        self.denial_of_closed().or_else(|| if may_wait { None } else { self.known_denial() })
    }

    /// Decides a call that needs a trip, by the fallback if Redis fails.
    async fn decide(&self, counted: &mut CountedCall<'_>) -> Result<Decided, RedisError> {
        // A call of cost 0 is always allowed, so it waits neither for units nor behind other calls.
        let may_wait = self.request.may_wait(&self.plan.algorithm) && self.request.cost() > 0;
        let arrived = self.shared.links.any().now();
        let decided = if may_wait {
            // This future and that of the fallback are large, and most calls need neither.
            Box::pin(self.wait(counted)).await
        } else {
            self.send(0, None).await
        };
        match (decided, &self.shared.fallback) {
            (Err(_), Some(local)) => Ok(Box::pin(self.fall_back(local, arrived, counted)).await),
            (decided, _) => decided.map_err(|error| self.shared.name.describe(error)),
        }
    }

    /// Decides a call that can be queued for at most `max_wait` nanoseconds if it is denied, and that may need no trip.
    /// See [`Operation::queueing`].
    async fn check(&self, max_wait: u64, waited: Option<u64>) -> Result<Decided, RedisError> {
        match self.known_denial() {
            Some(denial) => Ok(denied(denial)),
            None => self.send(max_wait, waited).await,
        }
    }

    /// Decides a call that can be queued for at most `max_wait` nanoseconds if it is denied, by a trip.
    async fn send(&self, max_wait: u64, waited: Option<u64>) -> Result<Decided, RedisError> {
        let operation = operation(self.request, Action::Check).queueing(self.plan, max_wait, waited);
        let runtime = RedisError::current_runtime()?;
        let outcome = self.shared.trips.ask(self.plan, self.key, operation, None).await?;
        let reservation = if outcome.decision().is_allowed() {
            self.reservation(outcome, &runtime)
        } else {
            Reservation::default()
        };
        Ok(Decided::new(outcome.decision(), reservation))
    }

    /// Decides a call that may wait.
    async fn wait(&self, counted: &mut CountedCall<'_>) -> Result<Decided, RedisError> {
        let max_wait = self.request.max_wait();
        let Some(reserving) = operation(self.request, Action::Check).reserving(self.plan, max_wait) else {
            return self.queue(counted).await;
        };
        // The place comes before the charge, which cannot be given back once a later call was charged.
        let Some(place) = self.shared.queues.total_place() else {
            let (decision, reservation) = self.send(0, None).await?.into_parts();
            return Ok(Decided::new(self.without_place(decision), reservation));
        };
        self.sleep_until_given_time(reserving, place, counted).await
    }

    /// Returns the decision on a call that does not wait because as many calls as allowed wait already.
    fn without_place(&self, decision: Decision) -> Decision {
        let Some(queue) = self.algorithm().queue_config().filter(|queue| queue.places() > 0) else {
            return decision;
        };
        let max_wait = queue.max_wait().min(self.request.max_wait());
        let wait = decision.retry_after().map(|wait| Nanos::from(wait).0);
        if wait.is_some_and(|wait| is_in_time(wait, max_wait)) { with_queue_full(decision) } else { decision }
    }

    async fn sleep_until_given_time(
        &self,
        reserving: Operation<A>,
        _place: TotalPlace,
        counted: &mut CountedCall<'_>,
    ) -> Result<Decided, RedisError> {
        let Self { shared, key, .. } = *self;
        let runtime = RedisError::current_runtime()?;
        let outcome = shared.trips.ask(self.plan, key, reserving.clone(), None).await?;
        let decision = outcome.decision();
        if !decision.is_allowed() {
            return Ok(denied(decision));
        }
        let delay = Nanos::from(decision.delay()).0;
        if delay > 0 {
            let give_back = reserving.undone(&outcome);
            let mut sleeper = Sleeper { trips: &shared.trips, key, give_back, runtime: &runtime };
            let link = shared.links.any();
            counted.wait();
            if counted.unless_closed(link.sleep_until(link.now().saturating_add(delay))).await.is_none() {
                return Ok(denied(closed(self.algorithm())));
            }
            sleeper.give_back = None;
        }
        Ok(Decided::new(decision, self.reservation(outcome, &runtime)))
    }

    async fn queue(&self, counted: &mut CountedCall<'_>) -> Result<Decided, RedisError> {
        let Self { shared, key, request, .. } = *self;
        let config = self.algorithm().queue_config().filter(|config| config.places() > 0);
        // A call that never fits is denied at once, whichever calls wait.
        let Some(config) = config.filter(|_| self.can_fit()) else {
            return self.check(0, None).await;
        };
        let queued = shared.queues.call(shared.links.any(), key, &config, request.max_wait(), None);
        // The algorithm may be replaced while the call waits.
        let check = |left, waited| async move {
            LimiterCall { plan: &shared.trips.plan(), ..*self }.check(left, waited).await
        };
        let deny = || async { LimiterCall { plan: &shared.trips.plan(), ..*self }.ask(Action::Deny).await };
        let decided = queued.until_decided(counted, check, deny).await?;
        Ok(decided.unwrap_or_else(|| denied(closed(self.algorithm()))))
    }

    /// Asks for the decision on a call that is not charged.
    async fn ask(&self, action: Action) -> Result<Decided, RedisError> {
        let operation = operation(self.request, action);
        let outcome = self.shared.trips.ask(self.plan, self.key, operation, None).await?;
        Ok(denied(outcome.decision()))
    }

    /// Returns the attempt with which the fallback decides the call, which arrived at `arrived`. The time since then is
    /// a part of its maximum wait.
    fn local_attempt(&self, local: &RateLimiter<A>, arrived: Nanos) -> Attempt<'a, A> {
        let Self { shared, plan, request, .. } = *self;
        let attempt = request.attempt(&plan.algorithm);
        let queue = request.algorithm(&local.algorithm()).queue_config();
        let max_wait = queue.map_or(u64::MAX, |queue| queue.max_wait()).min(request.max_wait());
        if max_wait == u64::MAX {
            return attempt;
        }
        let waited = shared.links.any().now().saturating_since(arrived);
        attempt.with_max_wait(Duration::from_nanos(max_wait.saturating_sub(waited)))
    }

    /// Decides a call, which arrived at `arrived`, by the fallback. The layer goes on reporting the quotas of this
    /// limiter.
    async fn fall_back(
        &self,
        local: &RateLimiter<A>,
        arrived: Nanos,
        counted: &mut CountedCall<'_>,
    ) -> Decided {
        let Self { shared, key, request, .. } = *self;
        let acquired = {
            let text = shared.name.text_of(key);
            let attempt = self.local_attempt(local, arrived);
            if request.is_check() {
                let (decision, reservation) = local.reserve_attempt(text, attempt);
                Acquired::Ready(decision, reservation)
            } else {
                LimiterFor::acquire(local, text, attempt)
            }
        };
        match acquired {
            Acquired::Ready(decision, reservation) => Decided::new(decision, reservation),
            Acquired::Pending(wait) => {
                counted.wait();
                match counted.unless_closed(wait).await {
                    None => denied(closed(self.algorithm())),
                    Some(Ok(waited)) => waited,
                    Some(Err(never)) => match never {},
                }
            }
        }
    }
}

/// Returns the operation of a call.
fn operation<A: StoredAlgorithm>(request: &Request<A>, action: Action) -> Operation<A> {
    Operation::new(action, request.cost(), request.tier().cloned())
}

/// Returns a decision that has no reservation.
fn denied(decision: Decision) -> Decided {
    Decided::new(decision, Reservation::default())
}

/// A settlement is sent without waiting for its reply. It is lost if the server cannot execute it within the deadline,
/// and [counted](tower_throttle::stats::StoreStats::settle_errors) as failed.
impl<A: StoredAlgorithm> Settles for RedisLimiter<A> {}

impl<A: StoredAlgorithm, K: SharedKey + ?Sized> JointLimiter<K> for RedisLimiter<A> {
    type Kind = InRedis;

    fn joint_part(&self, key: &K, attempt: Attempt<'_, A>) -> RedisPart {
        let key = self.key(key);
        let request = Request::of(&attempt);
        let shared = Arc::clone(&self.shared);
        let plan = self.shared.trips.plan();
        let operation = operation(&request, Action::Check);
        // In shadow mode, a call must not wait.
        let may_wait = request.may_wait(&plan.algorithm) && request.cost() > 0 && !request.is_in_shadow();
        let forgotten = shared.trips.forgotten();
        let arrived = shared.links.any().now();
        RedisPart::new(Box::new(Part {
            shared,
            plan,
            key,
            request,
            operation,
            may_wait,
            finds_no_place: false,
            arrived,
            states: None,
            forgotten,
        }))
    }
}

impl<A: StoredAlgorithm> Part<A> {
    fn call(&self) -> LimiterCall<'_, A> {
        let Self { shared, plan, key, request, .. } = self;
        LimiterCall { shared, plan, key, request }
    }

    /// Returns the operation of the call if it may wait for a bucket, which then charges it at once.
    fn reserving(&self) -> Option<Operation<A>> {
        let Self { plan, request, operation, .. } = self;
        self.may_wait.then(|| operation.reserving(plan, request.max_wait()))?
    }

    fn found(&self, outcome: Outcome) -> Outcome {
        if self.finds_no_place {
            outcome.map(|decision| self.call().without_place(decision))
        } else {
            outcome
        }
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
        self.request.cost()
    }

    fn is_in_shadow(&self) -> bool {
        self.request.is_in_shadow()
    }

    fn calls(&self) -> &Arc<Calls> {
        &self.shared.calls
    }

    fn check_supported(&self) -> Result<(), RedisError> {
        let algorithm = self.request.algorithm(&self.plan.algorithm);
        let queues = || algorithm.queue_config().is_some_and(|config| config.places() > 0);
        if self.may_wait && self.reserving().is_none() && queues() {
            Err(RedisError::new(
                RedisErrorKind::Algorithm,
                "in joined layers, only a `TokenBucket` or a `LeakyBucket` without tiers can have a queue",
            ))
        } else {
            Ok(())
        }
    }

    fn known_denial(&self) -> Option<Decision> {
        let is_asked = self.request.is_in_shadow() || self.may_wait;
        self.closed_denial().or_else(|| if is_asked { None } else { self.call().known_denial() })
    }

    fn closed_denial(&self) -> Option<Decision> {
        self.call().denial_of_closed()
    }

    fn script_part(&self, cost: u64) -> Option<(&ScriptPart, &Frame)> {
        self.plan.script_part(&self.operation, cost)
    }

    fn read(&mut self, value: &[u8], now: Nanos) -> Result<(), RedisError> {
        self.states = Some(self.plan.decode(value, now)?);
        Ok(())
    }

    fn describe(&self, error: RedisError) -> RedisError {
        self.shared.name.describe(error)
    }

    fn is_converted(&self) -> bool {
        self.states.as_ref().is_some_and(States::is_converted)
    }

    fn preview(&self, cost: u64, now: Nanos) -> Outcome {
        let states = self.states.as_ref().expect(NOT_READ);
        self.found(states.preview(&self.plan, &self.operation.at_cost(cost), now))
    }

    fn apply(&mut self, cost: u64, now: Nanos) -> (Outcome, bool) {
        let states = self.states.as_mut().expect(NOT_READ);
        let (outcome, changed) = states.apply(&self.plan, &self.operation.at_cost(cost), now);
        (self.found(outcome), changed)
    }

    fn take_place(&mut self) -> Option<TotalPlace> {
        let reserving = self.reserving()?;
        let place = self.shared.queues.total_place();
        match place {
            Some(_) => self.operation = reserving,
            None => self.finds_no_place = true,
        }
        place
    }

    fn write(&mut self, now: Nanos) -> (Vec<u8>, u64) {
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
        if let Some(undo) = self.operation.at_cost(cost).undone(outcome) {
            self.shared.trips.tell(&self.key, undo, None, runtime);
        }
    }

    fn reservation(&self, outcome: Outcome, runtime: &Handle) -> Reservation {
        self.call().reservation(outcome, runtime)
    }

    fn algorithm(&self) -> Option<AnyAlgorithm> {
        self.request.tier().cloned().map(|tier| Arc::new(tier) as AnyAlgorithm)
    }

    fn fallback_part(&self) -> Option<JointRequest<'_>> {
        let local = self.shared.fallback.as_ref()?;
        let text = self.shared.name.text_of(&self.key);
        Some(memory_part(local, text, self.call().local_attempt(local, self.arrived)))
    }
}

impl<A: StoredAlgorithm> Drop for Sleeper<'_, A> {
    fn drop(&mut self) {
        if let Some(operation) = self.give_back.take() {
            self.trips.tell(self.key, operation, None, self.runtime);
        }
    }
}

impl<A: StoredAlgorithm> RedisCharge<A> {
    /// Sends a settlement.
    fn send(&self, operation: Operation<A>) {
        // The call may be settled outside a runtime, where tokio's clock shows another time if it is paused.
        let _entered = self.runtime.enter();
        let gives_units = operation.gives_units();
        let unsettled = self.settlements.settle(operation.cost(), gives_units);
        if gives_units {
            self.trips.tell(&self.key, operation, Some(unsettled), &self.runtime);
        } else {
            self.trips.charge(&self.key, operation, unsettled, &self.runtime);
        }
    }
}

impl<A: StoredAlgorithm> Charge for RedisCharge<A> {
    /// Sends the difference to the server. Returns `None`, because the reply comes later.
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision> {
        if let Some(operation) = self.call.settled(&self.outcome, actual, self.max_debt) {
            self.send(operation);
        }
        None
    }

    fn release(self: Box<Self>) {}

    fn is_permit(&self) -> bool {
        false
    }

    fn charger(&self) -> Option<Charger> {
        let charge = self.clone();
        Some(Box::new(move |units| {
            if units > 0 {
                charge.send(charge.call.with(Action::ChargeMore(charge.max_debt)).at_cost(units));
            }
        }))
    }
}

impl<A: StoredAlgorithm> Clone for RedisLimiter<A> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}
