//! One call of a limiter: its options, and the future of its reply.

use std::convert::identity;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::coop::consume_budget;

use super::calls::{Calls, CountedCall};
use super::connection::BoxFuture;
use super::error::RedisError;
use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, StoredAlgorithm, Tiered};
use tower_throttle::clock::Nanos;
use tower_throttle::limiter::{Acquired, Attempt, Decided, Denied, Permit, Reservation, Settles};
use tower_throttle::store_support::{CallOutcome, holds_requests};

/// A call of a limiter in Redis, with its options. The method `call` of a limiter creates it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_throttle::Quota;
/// use tower_throttle::algorithm::{TokenBucket, Tiered};
/// use tower_throttle_redis::RedisStore;
///
/// let (free, paid) =
///     (TokenBucket::new(Quota::per_minute(10)), TokenBucket::new(Quota::per_minute(100)));
/// let redis = RedisStore::connect("redis://10.0.0.5").await?;
/// let limiter = redis.limiter("api", Tiered::new(free)).build()?;
/// let decision = limiter
///     .call("user:42")
///     .cost(3)
///     .tier(&paid)
///     .max_wait(Duration::from_millis(200))
///     .acquire()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a call is made by `check`, `acquire` or another method that returns a future"]
pub struct RedisCall<'a, L: Callee> {
    limiter: &'a L,
    key: Arc<str>,
    request: Request<L::Algorithm>,
}

/// The future of the reply to a call. It borrows neither the key nor the limiter, and the call is made when the future
/// is first polled.
#[must_use = "futures do nothing unless polled"]
pub struct RedisReply<T>(BoxFuture<Result<T, RedisError>>);

/// A limiter in Redis, as its calls use it.
pub trait Callee: Clone + Send + Sync + 'static {
    /// The algorithm of the limiter.
    type Algorithm: Algorithm;
    /// The part of the limiter that its clones share. A call keeps this part, but not the limiter, so that the tasks of
    /// the limiter end when the limiter is dropped.
    type Shared: Send + Sync + 'static;

    /// Returns the part of the limiter that its clones share.
    fn shared(&self) -> &Arc<Self::Shared>;

    /// Returns the counts of the calls.
    fn calls(shared: &Self::Shared) -> &Calls;

    /// Returns what a layer reports of the algorithm.
    fn info_of(shared: &Self::Shared) -> Arc<AlgorithmInfo>;

    /// Returns the [`generation`](tower_throttle::limiter::Limiter::generation) of the limiter.
    fn generation_of(_shared: &Self::Shared) -> u64 {
        0
    }

    /// Decides a call without a trip. Returns `None` if a trip must decide the call.
    fn decide_at_once(
        shared: &Arc<Self::Shared>,
        key: &Arc<str>,
        request: &Request<Self::Algorithm>,
    ) -> Option<Decision>;

    /// Decides a call. The reservation of a denied call is empty.
    fn decide(
        shared: &Arc<Self::Shared>,
        key: &Arc<str>,
        request: &Request<Self::Algorithm>,
        call: &mut CountedCall<'_>,
    ) -> impl Future<Output = Result<Decided, RedisError>> + Send;

    /// Returns the decision on a call, without a charge.
    fn look(
        shared: Arc<Self::Shared>,
        key: Arc<str>,
        request: Request<Self::Algorithm>,
    ) -> impl Future<Output = Result<Decision, RedisError>> + Send + 'static;

    /// Decides and counts a call, and converts the result by `then`.
    ///
    /// The conversion is an argument because a future that awaits another needs room for its arguments twice.
    fn count<T: 'static>(
        shared: Arc<Self::Shared>,
        key: Arc<str>,
        request: Request<Self::Algorithm>,
        then: fn(Decided) -> T,
    ) -> impl Future<Output = Result<T, RedisError>> + Send + 'static {
        async move {
            let mut call = Self::calls(&shared).begin(request.is_in_shadow());
            let decided = Self::decide(&shared, &key, &request, &mut call).await;
            let decided = call.end(decided)?;
            if request.is_direct {
                Self::calls(&shared).observed().called(decided.decision());
            }
            Ok(then(decided))
        }
    }

    /// Decides and counts the call of a layer.
    fn begin(&self, key: Arc<str>, attempt: &Attempt<'_, Self::Algorithm>) -> Acquired<RedisReply<Decided>> {
        let shared = self.shared();
        let request = Request::of(attempt);
        match Self::decide_at_once(shared, &key, &request) {
            Some(decision) => {
                Self::calls(shared).add(CallOutcome::of(&decision, request.is_in_shadow()));
                Acquired::Ready(decision, Reservation::default())
            }
            None => {
                Acquired::Pending(RedisReply::new(Self::count(Arc::clone(shared), key, request, identity)))
            }
        }
    }
}

/// A call as it is passed to a limiter.
#[derive(Clone, Debug)]
pub struct Request<A> {
    cost: u64,
    /// The algorithm of the call, if it is not the limiter's own.
    tier: Option<A>,
    waits: Waits,
    /// The maximum wait, in nanoseconds.
    max_wait: u64,
    settles: bool,
    in_shadow: bool,
    /// `true` if no layer has made the call.
    is_direct: bool,
}

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Never,
    /// If the algorithm queues the requests of layers.
    IfConfigured,
    Always,
}

impl<'a, L: Callee> RedisCall<'a, L> {
    pub(super) fn new(limiter: &'a L, key: Arc<str>) -> Self {
        let request = Request { is_direct: true, ..Request::of(&Attempt::new(1)) };
        Self { limiter, key, request }
    }

    /// Returns the limiter, the key, and the options of the call.
    pub(super) fn into_parts(self) -> (&'a L, Arc<str>, Request<L::Algorithm>) {
        (self.limiter, self.key, self.request)
    }

    /// Sets the number of units that the call takes. The default is 1.
    pub fn cost(mut self, cost: u64) -> Self {
        self.request.cost = cost;
        self
    }

    /// Sets the maximum time that the call waits in `acquire` and [`acquire_permit`](Self::acquire_permit). If the
    /// algorithm has a shorter `max_wait`, that time applies. A call that would have to wait longer is denied at once,
    /// unless its wait is not known beforehand.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.request.max_wait = Nanos::from(max_wait).0;
        self
    }

    /// Returns a decision that tells whether the call would be admitted now. Takes no units.
    pub fn peek(self) -> RedisReply<Decision> {
        let Self { limiter, key, request } = self;
        RedisReply::new(L::look(Arc::clone(limiter.shared()), key, request))
    }

    /// Takes a permit. The call is in progress until the permit is dropped. Never waits in a queue. Returns the denial,
    /// if the call is denied.
    pub fn permit(self) -> RedisReply<Result<Permit, Denied>> {
        let Self { limiter, key, request } = self;
        RedisReply::new(L::count(Arc::clone(limiter.shared()), key, request.never_waiting(), permit))
    }

    /// Takes a permit, and waits for it if necessary. The call is in progress until the permit is dropped. Returns the
    /// denial, if the call is denied.
    pub fn acquire_permit(self) -> RedisReply<Result<Permit, Denied>> {
        self.acquire_then(permit)
    }

    fn acquire_then<T: 'static>(self, then: fn(Decided) -> T) -> RedisReply<T> {
        let Self { limiter, key, request } = self;
        let shared = Arc::clone(limiter.shared());
        let request = request.always_waiting();
        RedisReply::new(async move {
            consume_budget().await;
            L::count(shared, key, request, then).await
        })
    }
}

/// Not for [`RedisPermits`](crate::RedisPermits): nothing would end such a call.
impl<L: Callee<Algorithm: StoredAlgorithm>> RedisCall<'_, L> {
    /// Takes the units if all of them are available, and otherwise none. Never waits in a queue.
    pub fn check(self) -> RedisReply<Decision> {
        let Self { limiter, key, request } = self;
        RedisReply::new(L::count(Arc::clone(limiter.shared()), key, request.never_waiting(), decision))
    }

    /// Takes the units, and waits for them if they are not all available now.
    pub fn acquire(self) -> RedisReply<Decision> {
        self.acquire_then(decision)
    }
}

impl<L: Callee + Settles> RedisCall<'_, L> {
    /// Takes the units if all of them are available, with the cost of the call as an estimate. The actual cost is
    /// charged when the reservation is [settled](Reservation::settle), by a trip that is not waited for. The
    /// reservation may be settled on any thread, and after the limiter was closed. Returns the denial, if the call is
    /// denied. Never waits in a queue. See [`Call::reserve`](tower_throttle::limiter::Call::reserve).
    pub fn reserve(self) -> RedisReply<Result<Reservation, Denied>> {
        let Self { limiter, key, mut request } = self;
        request.settles = true;
        RedisReply::new(L::count(Arc::clone(limiter.shared()), key, request.never_waiting(), reservation))
    }
}

impl<A: Algorithm + PartialEq, L: Callee<Algorithm = Tiered<A>>> RedisCall<'_, L> {
    /// Sets the tier of the call: the algorithm that decides the call. Units that a key uses in one tier count in all
    /// tiers of the key. See [`Tiered`].
    pub fn tier(mut self, algorithm: &A) -> Self {
        self.request.tier = Some(Tiered::new(algorithm.clone()));
        self
    }
}

/// Returns the decision on a call that is not settled and has no permit.
fn decision(decided: Decided) -> Decision {
    *decided.decision()
}

/// Returns the reservation of a call that was admitted, or the denial.
fn reservation(decided: Decided) -> Result<Reservation, Denied> {
    let (decision, reservation) = decided.into_parts();
    reservation.decided(decision)
}

/// Returns the permit of a call that was admitted, or the denial.
fn permit(decided: Decided) -> Result<Permit, Denied> {
    let (decision, reservation) = decided.into_parts();
    Permit::decided(decision, reservation)
}

impl<A: Algorithm> Request<A> {
    /// Returns the call of a layer.
    pub fn of(attempt: &Attempt<'_, A>) -> Self {
        Self {
            cost: attempt.cost(),
            tier: attempt.algorithm().cloned(),
            waits: if attempt.may_wait() { Waits::Always } else { Waits::IfConfigured },
            max_wait: attempt.max_wait().map_or(u64::MAX, |wait| Nanos::from(wait).0),
            settles: attempt.wants_reservation(),
            in_shadow: attempt.is_in_shadow(),
            is_direct: false,
        }
    }

    /// Returns the same call, which never waits.
    pub fn never_waiting(self) -> Self {
        Self { waits: Waits::Never, ..self }
    }

    /// Returns the same call, which waits even if the algorithm does not queue the requests of layers.
    pub fn always_waiting(self) -> Self {
        Self { waits: Waits::Always, ..self }
    }

    /// Returns the attempt with which the call is passed to a fallback. `limiters` is the algorithm of the limiter.
    pub fn attempt(&self, limiters: &A) -> Attempt<'_, A> {
        let mut attempt = Attempt::new(self.cost);
        if let Some(tier) = &self.tier {
            attempt = attempt.with_algorithm(tier);
        }
        if self.settles {
            attempt = attempt.with_reservation();
        }
        if self.max_wait < u64::MAX {
            attempt = attempt.with_max_wait(Duration::from_nanos(self.max_wait));
        }
        if self.may_wait(limiters) { attempt.wait() } else { attempt }
    }

    /// Returns the number of units that the call takes.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the algorithm of the call, if it is not the limiter's own.
    pub fn tier(&self) -> Option<&A> {
        self.tier.as_ref()
    }

    /// Returns the algorithm of the call. `limiters` is the limiter's own algorithm.
    pub fn algorithm<'a>(&'a self, limiters: &'a A) -> &'a A {
        self.tier.as_ref().unwrap_or(limiters)
    }

    /// Returns whether the call never waits, whatever the algorithm is.
    pub fn is_check(&self) -> bool {
        self.waits == Waits::Never
    }

    /// Returns whether the call may wait. `limiters` is the limiter's own algorithm.
    pub fn may_wait(&self, limiters: &A) -> bool {
        match self.waits {
            Waits::Never => false,
            Waits::IfConfigured => holds_requests(self.algorithm(limiters)),
            Waits::Always => true,
        }
    }

    /// Returns the maximum wait, in nanoseconds.
    pub fn max_wait(&self) -> u64 {
        self.max_wait
    }

    /// Returns whether the call may be settled.
    pub fn settles(&self) -> bool {
        self.settles
    }

    /// Returns whether the policy of the call is in shadow mode.
    pub fn is_in_shadow(&self) -> bool {
        self.in_shadow
    }
}

impl<T> RedisReply<T> {
    pub(super) fn new(reply: impl Future<Output = Result<T, RedisError>> + Send + 'static) -> Self {
        Self(Box::pin(reply))
    }
}

impl<T> Future for RedisReply<T> {
    type Output = Result<T, RedisError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<L: Callee> Clone for RedisCall<'_, L> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter, key: Arc::clone(&self.key), request: self.request.clone() }
    }
}

impl<L: Callee> fmt::Debug for RedisCall<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCall").field("cost", &self.request.cost).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for RedisReply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisReply").finish_non_exhaustive()
    }
}

/// Defines the methods and the traits that all limiters in Redis have in common. The limiter has the methods
/// `registered`, which returns its name, and `stats_without_calls`.
macro_rules! call_methods {
    ($limiter:ident $(<$algorithm:ident: $bound:ident>)?) => {
        impl$(<$algorithm: $bound>)? $limiter$(<$algorithm>)? {
            /// Returns a decision that tells whether a call of one unit would be admitted now. Takes no units. See
            /// [`RateLimiter::peek`](tower_throttle::RateLimiter::peek).
            pub fn peek<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<Decision> {
                self.call(key).peek()
            }

            /// Returns a decision that tells whether a call of `cost` units would be admitted now. Takes no units. See
            /// [`RateLimiter::peek_n`](tower_throttle::RateLimiter::peek_n).
            pub fn peek_n<K: SharedKey + ?Sized>(&self, key: &K, cost: u64) -> RedisReply<Decision> {
                self.call(key).cost(cost).peek()
            }

            /// Takes a permit. The call is in progress until the permit is dropped. Never waits in a queue. Returns the
            /// denial, if the call is denied. See
            /// [`RateLimiter::try_acquire_permit`](tower_throttle::RateLimiter::try_acquire_permit).
            pub fn try_acquire_permit<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<Result<Permit, Denied>> {
                self.call(key).permit()
            }

            /// Takes a permit, and waits for it if necessary. The call is in progress until the permit is dropped.
            /// Returns the denial, if the call is denied. See
            /// [`RateLimiter::acquire_permit`](tower_throttle::RateLimiter::acquire_permit).
            ///
            /// # Cancel safety
            ///
            /// A future that is dropped before its first poll makes no call. If a future is dropped later, its call
            /// leaves the queue, and what the call was charged is given back, as the docs of
            /// [`RedisStore`](crate::RedisStore) say.
            pub fn acquire_permit<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<Result<Permit, Denied>> {
                self.call(key).acquire_permit()
            }

            /// Returns a call with the key, whose options can be set before it is made.
            pub fn call<K: SharedKey + ?Sized>(&self, key: &K) -> RedisCall<'_, Self> {
                RedisCall::new(self, self.key(key))
            }

            /// Returns the name of the limiter.
            #[must_use]
            pub fn name(&self) -> &str {
                self.registered().as_str()
            }

            /// Returns what the limiter has counted since it was created: the calls of this limiter and its clones, [by
            /// outcome](crate::guide::exactness#what-is-counted), the events of its store, and the units that
            /// settlements have charged or given back.
            #[must_use]
            pub fn stats(&self) -> LimiterStats {
                Self::calls(self.shared()).add_to(self.stats_without_calls())
            }

            /// Passes the counts of the limiter to the recorder of the [`metrics`](https://docs.rs/metrics) facade,
            /// under names that begin with `tower_throttle_limiter_` and with the limiter's name as label. They count
            /// all its calls in this process, whoever made them, and so those of layers, which count their requests as
            /// well: do not add the two.
            ///
            /// Call this before each scrape, or every few seconds, on any clone. The guide has the
            /// [names](tower_throttle::guide::production#metrics).
            #[cfg(feature = "metrics")]
            pub fn record_metrics(&self) {
                Self::calls(self.shared()).observed().record_metrics(&self.stats(), true);
            }

            /// Returns the name of a key in Redis.
            fn key<K: SharedKey + ?Sized>(&self, key: &K) -> Arc<str> {
                self.registered().key(key)
            }
        }

        impl$(<$algorithm: $bound>)? Limiter for $limiter$(<$algorithm>)? {
            type Algorithm = <Self as Callee>::Algorithm;
            type Error = RedisError;
            type Wait = RedisReply<Decided>;

            fn info(&self) -> Arc<AlgorithmInfo> {
                Self::info_of(self.shared())
            }

            fn generation(&self) -> u64 {
                Self::generation_of(self.shared())
            }

            fn stats(&self) -> LimiterStats {
                self.stats()
            }

            fn close(&self) {
                self.close();
            }

            fn name(&self) -> Option<&str> {
                Some(self.name())
            }
        }

        impl<$($algorithm: $bound,)? K: SharedKey + ?Sized> LimiterFor<K> for $limiter$(<$algorithm>)? {
            fn acquire(
                &self,
                key: &K,
                attempt: Attempt<'_, <Self as Callee>::Algorithm>,
            ) -> Acquired<RedisReply<Decided>> {
                self.begin(self.key(key), &attempt)
            }
        }

        impl$(<$algorithm: $bound>)? fmt::Debug for $limiter$(<$algorithm>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($limiter)).field("name", &self.name()).finish_non_exhaustive()
            }
        }
    };
}

/// Defines the methods of the limiters in Redis whose calls hold no permits.
macro_rules! unit_methods {
    ($limiter:ident $(<$algorithm:ident: $bound:ident>)?) => {
        impl$(<$algorithm: $bound>)? $limiter$(<$algorithm>)? {
            /// Takes one unit if it is available. Never waits in a queue. See
            /// [`RateLimiter::check`](tower_throttle::RateLimiter::check).
            pub fn check<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<Decision> {
                self.call(key).check()
            }

            /// Takes `cost` units if all of them are available, and otherwise none. Never waits in a queue. See
            /// [`RateLimiter::check_n`](tower_throttle::RateLimiter::check_n).
            pub fn check_n<K: SharedKey + ?Sized>(&self, key: &K, cost: u64) -> RedisReply<Decision> {
                self.call(key).cost(cost).check()
            }

            /// Takes one unit, and waits for it if it is not available now. See
            /// [`RateLimiter::acquire`](tower_throttle::RateLimiter::acquire) for what the call waits for and how its
            /// wait is bounded.
            ///
            /// A future that is kept and not polled does not stop the calls behind it. The order is that of arrival
            /// among the calls that are polled.
            ///
            /// # Cancel safety
            ///
            /// The cancel safety is the same as that of [`acquire_permit`](Self::acquire_permit).
            pub fn acquire<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<Decision> {
                self.call(key).acquire()
            }

            /// Takes `cost` units, and waits for them if they are not all available now. In all other respects, this
            /// method is the same as [`acquire`](Self::acquire), including its cancel safety.
            pub fn acquire_n<K: SharedKey + ?Sized>(&self, key: &K, cost: u64) -> RedisReply<Decision> {
                self.call(key).cost(cost).acquire()
            }
        }
    };
}
pub(super) use {call_methods, unit_methods};
