//! One limit that all callers share, with a queue for each of them. [`order`] decides who is next, and this file has
//! the limiter around it: the lock, the clock, the wakers and the counts.

mod order;
mod service;
mod slab;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;

use self::order::{Arrival, Held, Limits, Order, Outcome};
use super::attempt::Attempt;
use super::contract::{Acquired, Decided, Limiter, LimiterFor};
use super::fingerprint::{Fingerprint, HashSeed, MemoryKey};
use super::observed::Observed;
use super::options::OnClose;
use super::rate_limiter::default_max_queued;
use super::reservation::{Permit, Reservation};
use crate::algorithm::{Algorithm, AlgorithmInfo, Concurrency, Tiered};
use crate::clock::{AnyClock, Nanos, Sleep};
use crate::decision::{Decision, Denied};
use crate::error::ConfigError;
use crate::observe::Recurrence;
use crate::stats::{CallCounts, CallOutcome, LimiterStats, StoreStats, UnitStats};
use crate::sys::lock::atomic::{AtomicU64, Ordering};
use crate::sys::lock::{PoisonError, RwLock, SpinLock};
use crate::sys::wakers::Wakers;

/// A limiter that shares one total fairly.
///
/// When calls wait, a free place goes to the caller that holds the fewest units; among equals, to the one that has
/// received the least service. One caller cannot keep the others out: neither with many calls, nor with long or large
/// ones.
///
/// The caller is the key. The algorithm is a [`Concurrency`] with a [total](Concurrency::total). As in a
/// [`RateLimiter`](crate::RateLimiter), [`queue`](Concurrency::queue) is the number of calls that may wait for each
/// caller, and [`max_queued`](FairBuilder::max_queued) that of all callers. In a layer, requests wait only if `queue`,
/// `max_wait` or `overflow` was called. The guide has [a chapter](crate::guide::concurrency#fair-capacity) on it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use tower_throttle::RateLimitLayer;
/// use tower_throttle::algorithm::Concurrency;
/// use tower_throttle::key::Header;
/// use tower_throttle::limiter::FairLimiter;
///
/// // at most 100 calls in progress, 20 of one caller;
/// // 50 more of each caller wait, a second at most
/// let fair = FairLimiter::new(
///     Concurrency::per_key(20).total(100).queue(50).max_wait(Duration::from_secs(1)),
/// );
/// // HTTP, gRPC, any service
/// let layer = RateLimitLayer::with_limiter(Header::new("x-api-key")?, fair.clone());
/// # drop(layer);
/// // a task without a request
/// let permit = fair.acquire_permit("user:42").await?;
/// # drop(permit);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// The calls in progress hold at most `total` units, and those of one caller at most `per_key`, unless they were
/// admitted or queued under a higher limit, or in another tier. The limiter is in memory, and fair within one process.
///
/// **Who is next.** The waiting caller with the smallest of, in this order: the units that it holds now; the service
/// that it has received, which is units times the time for which they were held while calls waited; the turn at which
/// it began to wait or was last admitted. So callers that always have calls waiting hold the same number of units at a
/// time. If more callers wait than there are places, they get the same service in the long run, however long or large
/// their calls are. A caller at its own limit takes no part, and holds nobody up. A caller gets no credit for the time
/// in which it did not wait. The calls of one caller are admitted in the order of their arrival.
///
/// **A large call is not starved.** If the next call does not fit the total, no call behind it passes, and units stay
/// free until it fits. A call that comes before it by the rule passes.
///
/// **A call that does not wait** ([`try_acquire_permit`](Self::try_acquire_permit), a maximum wait of zero, shadow
/// mode) passes only if none of its caller's calls waits, and its caller holds less than the one that is next.
///
/// **Who is denied.** If the caller's own queue is full, the call that arrives, or its oldest one with
/// [`DropOldest`](crate::algorithm::QueueOverflow::DropOldest). If `max_queued` calls wait: with `DropOldest`, the
/// oldest call of the caller that arrives, if one waits; otherwise the newest call of the caller that has most of them,
/// if these are at least two more than its own; otherwise the call that arrives. So a caller without waiting calls is
/// never denied while another one has two. All are reported as [queue full](Decision::is_queue_full).
///
/// **What a decision says.** [`limit`](Decision::limit) is the smaller of `per_key` and `total`, and
/// [`remaining`](Decision::remaining) how many calls of cost 1 would pass now without waiting. Nobody knows when a call
/// will end, so a denial has no [`retry_after`](Decision::retry_after).
///
/// **[Tiers](Tiered).** Of a tier, only `per_key` counts. The total, the queue and the maximum wait are those of the
/// default tier. The units that a caller holds count in each of its tiers. A layer names the quota of a tier in header
/// fields by the tier's own limits, so make tiers from the default, by [`with_per_key`](Concurrency::with_per_key).
///
/// It is not promised that a caller waits at most some time: that depends on the calls in progress. A call whose future
/// is neither polled nor dropped keeps the units that it was given, as in any fair semaphore.
/// [Priority](crate::algorithm#priority) has no effect.
///
/// # Cancel safety
///
/// If a future is dropped while its call waits, the call leaves the queue at once, and those behind it pass if they now
/// fit. If the call was admitted, and its future is dropped before the next poll, its units go to the next call.
///
/// # Memory
///
/// A caller is known while it holds units or waits. While calls wait, the limiter also remembers what callers have
/// received that hold and wait for nothing: at most 16 more callers than wait; beyond that, each step forgets two. So
/// the memory is bounded by the total and `max_queued`, and needs no maximum number of keys. The memory of callers is
/// reused, but not freed while the limiter exists.
///
/// The work of a call is logarithmic in the number of the waiting callers. [`replace`](Self::replace) and
/// [`close`](Self::close) are linear in the number of the calls that wait, and in the most callers that were ever known
/// at a time.
///
/// # Panics
///
/// [`new`](Self::new) and [`build`](FairBuilder::build) panic if the algorithm has no total. No method panics because
/// of a key, a cost or a clock reading.
#[derive(Clone)]
pub struct FairLimiter<A = Concurrency> {
    core: Arc<Core>,
    current: Arc<Current<A>>,
}

/// A builder of a [`FairLimiter`].
///
/// ```
/// use tower_throttle::algorithm::Concurrency;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::limiter::{FairLimiter, OnClose};
///
/// let limiter = FairLimiter::builder(Concurrency::per_key(20).total(100).queue(50))
///     .name("reports")
///     .clock(ManualClock::new())
///     .max_queued(1_000)
///     .on_close(OnClose::Allow)
///     .build();
/// assert!(limiter.is_empty());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct FairBuilder<A> {
    algorithm: A,
    clock: AnyClock,
    name: Option<String>,
    max_queued: Option<usize>,
    on_close: OnClose,
}

/// A call with options, which is not made yet. [`FairLimiter::call`] creates it.
///
/// ```
/// use tower_throttle::algorithm::{Concurrency, Tiered};
/// use tower_throttle::limiter::FairLimiter;
///
/// let free = Concurrency::per_key(1).total(10);
/// let paid = free.clone().with_per_key(5);
/// let limiter = FairLimiter::new(Tiered::new(free));
/// let large = limiter.call("user:42").tier(&paid).cost(3).permit()?;
/// // The units count in each tier.
/// assert!(limiter.call("user:42").permit().is_err());
/// assert_eq!(limiter.call("user:42").tier(&paid).peek().remaining(), 2);
/// # drop(large);
/// # Ok::<(), tower_throttle::limiter::Denied>(())
/// ```
#[must_use = "the call is not made yet: call `peek`, `permit` or `acquire_permit`"]
pub struct FairCall<'a, A, K: ?Sized> {
    limiter: &'a FairLimiter<A>,
    key: &'a K,
    options: Options,
}

/// An algorithm whose total can be shared fairly: a [`Concurrency`], or [`Tiered`] ones.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no total that a `FairLimiter` could share",
    note = "give a `Concurrency` with `.total(n)`, or `Tiered::new(..)` of one; a rate goes into a layer outside"
)]
pub trait FairAlgorithm: Algorithm {
    /// Returns the limits of calls without a tier.
    fn concurrency(&self) -> &Concurrency;
}

/// The current algorithm, which only new calls of layers, and its owner, ask for.
struct Current<A> {
    algorithm: RwLock<(A, Arc<AlgorithmInfo>)>,
    /// The generation of the info.
    generation: AtomicU64,
}

/// The part of a limiter that its calls share.
struct Core {
    observed: Observed,
    clock: AnyClock,
    on_close: OnClose,
    seed: HashSeed,
    calls: CallCounts,
    /// Calls with priority, which has no effect.
    ignored_priority: Recurrence,
    queues: SpinLock<Queues>,
}

/// The state behind the lock. No waker is woken or dropped while it is locked.
struct Queues {
    order: Order<Waker>,
    is_closed: bool,
}

/// The options of a call.
#[derive(Clone, Copy, Debug)]
struct Options {
    cost: u64,
    /// The limit of its tier, for one caller.
    per_key: Option<u64>,
    /// `true` if the call waits even if the algorithm does not queue the requests of a layer.
    waits: bool,
    max_wait: u64,
    in_shadow: bool,
}

impl FairAlgorithm for Concurrency {
    fn concurrency(&self) -> &Concurrency {
        self
    }
}

impl FairAlgorithm for Tiered<Concurrency> {
    fn concurrency(&self) -> &Concurrency {
        self.algorithm()
    }
}

impl<A: FairAlgorithm> FairLimiter<A> {
    /// Creates a limiter with tokio's clock and the default [`max_queued`](FairBuilder::max_queued).
    ///
    /// # Panics
    ///
    /// Panics if the algorithm has no [total](Concurrency::total). [`FairBuilder::try_build`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(algorithm: A) -> Self {
        Self::builder(algorithm).build()
    }

    /// Returns a builder, which can set the name, the clock and the bound of all queues.
    pub fn builder(algorithm: A) -> FairBuilder<A> {
        FairBuilder {
            algorithm,
            clock: AnyClock::default(),
            name: None,
            max_queued: None,
            on_close: OnClose::default(),
        }
    }

    /// Takes a permit. The call is in progress until the permit is dropped. Never waits.
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::algorithm::Concurrency;
    /// use tower_throttle::limiter::FairLimiter;
    ///
    /// let exports = FairLimiter::new(Concurrency::per_key(1).total(10));
    /// let permit = exports.try_acquire_permit("user:42")?;
    /// assert!(exports.try_acquire_permit("user:42").is_err());
    /// drop(permit);
    /// assert!(exports.try_acquire_permit("user:42").is_ok());
    /// # Ok::<(), tower_throttle::limiter::Denied>(())
    /// ```
    pub fn try_acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> Result<Permit, Denied> {
        self.call(key).permit()
    }

    /// Takes a permit, and waits for it in the caller's queue. The call is in progress until the permit is dropped.
    ///
    /// If neither `queue` nor `max_wait` nor `overflow` was called on the algorithm, only
    /// [`max_queued`](FairBuilder::max_queued) bounds how many calls wait.
    ///
    /// In a tokio runtime, each call that is decided at once consumes budget of [cooperative
    /// scheduling](https://docs.rs/tokio/latest/tokio/task/coop/index.html).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, the call is not made. If it is dropped later, the call leaves
    /// the queue, or gives its units on. See [`FairLimiter`](Self#cancel-safety).
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Panics
    ///
    /// The future panics if it is polled after it was ready. With the default clock, it also panics if the call has a
    /// maximum wait, has to wait, and there is no tokio runtime with an enabled timer.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_throttle::limiter::Denied> {
    /// use tower_throttle::algorithm::Concurrency;
    /// use tower_throttle::limiter::FairLimiter;
    ///
    /// let exports = FairLimiter::new(Concurrency::per_key(10).total(10));
    /// let permit = exports.acquire_permit("user:42").await?;
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> FairAcquire {
        self.call(key).acquire_permit()
    }

    /// Returns a call of cost 1 for `key`, whose options can then be set. The last method of the chain makes the call.
    pub fn call<'a, K: MemoryKey + ?Sized>(&'a self, key: &'a K) -> FairCall<'a, A, K> {
        let options = Options { cost: 1, per_key: None, waits: false, max_wait: u64::MAX, in_shadow: false };
        FairCall { limiter: self, key, options }
    }

    /// Returns the number of callers that the limiter knows now: those with calls in progress or waiting calls, and
    /// those that it remembers for [what they have received](Self#memory).
    #[must_use]
    pub fn len(&self) -> usize {
        self.core.queues.lock().order.len()
    }

    /// Returns whether the limiter knows no caller.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what the limiter has counted: the outcomes of all calls, and in
    /// [`store`](crate::stats::LimiterStats::store) the numbers of waiting calls and of [known callers](Self::len).
    #[must_use]
    pub fn stats(&self) -> LimiterStats {
        self.core.stats()
    }

    /// Passes the counts of the limiter to the recorder of the [`metrics`](https://docs.rs/metrics) facade, as
    /// [`RateLimiter::record_metrics`](crate::RateLimiter::record_metrics) does. Of a limiter without a
    /// [name](FairBuilder::name), nothing is passed, and that is logged once.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.core.observed.record_metrics(&self.stats(), false);
    }

    /// Returns a copy of the current algorithm.
    #[must_use]
    pub fn algorithm(&self) -> A {
        self.current.algorithm.read().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Replaces the algorithm. Calls in progress stay counted, even above lower limits, and waiting calls that now fit
    /// pass at once.
    ///
    /// A call that waits keeps its maximum wait, and its place even if the new queue is shorter. If it costs more than
    /// the new total, it passes once nothing is in progress; if it costs more than the new limit per key, once its
    /// caller holds nothing. [`max_queued`](FairBuilder::max_queued) stays.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if the algorithm has no [total](Concurrency::total).
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::algorithm::Concurrency;
    /// use tower_throttle::limiter::FairLimiter;
    ///
    /// let limiter = FairLimiter::new(Concurrency::per_key(2).total(10));
    /// limiter.replace(Concurrency::per_key(3).total(20))?;
    /// assert_eq!(limiter.call("user:42").peek().limit(), 3);
    /// assert!(limiter.replace(Concurrency::per_key(3)).is_err());
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    pub fn replace(&self, algorithm: A) -> Result<(), ConfigError> {
        let limits = limits_of(&algorithm, 0)?;
        // The wakers are dropped last, when no lock is held.
        let mut wake = Wakers::default();
        let mut current = self.current.algorithm.write().unwrap_or_else(PoisonError::into_inner);
        // Made before a call is queued, because a layer asks whether one may be.
        let info = current.1.replaced_by(&algorithm);
        let generation = info.generation();
        self.core.replace(limits, &mut wake);
        *current = (algorithm, info);
        self.current.generation.store(generation, Ordering::Release);
        Ok(())
    }

    /// Closes the limiter and all its clones for ever: waiting calls are denied at once, and new calls with a cost
    /// above 0 are denied as well. With [`on_close(OnClose::Allow)`](FairBuilder::on_close), new calls are admitted
    /// without a charge instead. Calls in progress continue. See [`RateLimiter::close`](crate::RateLimiter::close).
    pub fn close(&self) {
        self.core.close();
    }
}

impl<A: FairAlgorithm> FairBuilder<A> {
    /// Sets the clock: a [`ManualClock`](crate::clock::ManualClock), or any other [`Clock`](crate::clock::Clock). The
    /// default is tokio's clock. It is read only while calls wait.
    pub fn clock(mut self, clock: impl Into<AnyClock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Sets the name of the limiter. With a name, each call that no layer makes and that is denied, or was queued, is a
    /// log event of level `debug` (feature `tracing`), and `record_metrics` passes the counts of all calls to a
    /// recorder (feature `metrics`).
    ///
    /// A layer with this limiter has the same name in header fields, unless another one is set by
    /// [`RateLimitLayer::name`](crate::middleware::RateLimitLayer::name).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the maximum number of waiting calls, for all callers together. With 0, no call waits. The default is
    /// 10,000, or the algorithm's `queue(n)` if that is more.
    ///
    /// [`FairLimiter`](FairLimiter#guarantees) says who is denied when it is reached. Each waiting call takes about 80
    /// bytes, and a caller about 200. The future, the request and the connection of the call take memory as well.
    pub fn max_queued(mut self, max_queued: usize) -> Self {
        self.max_queued = Some(max_queued);
        self
    }

    /// Sets what happens to new calls once the limiter is [closed](FairLimiter::close). The default is
    /// [`OnClose::Reject`].
    pub fn on_close(mut self, on_close: OnClose) -> Self {
        self.on_close = on_close;
        self
    }

    /// Returns the limiter.
    ///
    /// # Panics
    ///
    /// Panics if the algorithm has no [total](Concurrency::total).
    #[must_use]
    #[track_caller]
    pub fn build(self) -> FairLimiter<A> {
        match self.try_build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the limiter, for limits from a configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if the algorithm has no [total](Concurrency::total).
    pub fn try_build(self) -> Result<FairLimiter<A>, ConfigError> {
        let Self { algorithm, clock, name, max_queued, on_close } = self;
        let default = || usize::try_from(default_max_queued(algorithm.concurrency())).unwrap_or(usize::MAX);
        let limits = limits_of(&algorithm, max_queued.unwrap_or_else(default))?;
        let core = Core {
            observed: Observed::new(name),
            clock,
            on_close,
            seed: HashSeed::random(),
            calls: CallCounts::default(),
            ignored_priority: Recurrence::new(),
            queues: SpinLock::new(Queues { order: Order::new(limits), is_closed: false }),
        };
        let info = AlgorithmInfo::of(&algorithm);
        let current = Current {
            generation: AtomicU64::new(info.generation()),
            algorithm: RwLock::new((algorithm, info)),
        };
        Ok(FairLimiter { core: Arc::new(core), current: Arc::new(current) })
    }
}

/// Returns the bounds that an algorithm sets.
fn limits_of(algorithm: &impl FairAlgorithm, max_queued: usize) -> Result<Limits, ConfigError> {
    let shared = algorithm.concurrency();
    let Some(total) = shared.limit_in_total() else {
        return Err(ConfigError::new(
            "a `FairLimiter` shares a total between its callers: call `.total(n)` on its `Concurrency`",
        ));
    };
    let Some(queue) = shared.queue_config() else { unreachable!("a `Concurrency` has a queue") };
    Ok(Limits { total, per_key: shared.limit_per_key(), queue, max_queued })
}

impl<A: FairAlgorithm, K: MemoryKey + ?Sized> FairCall<'_, A, K> {
    fn id(&self) -> Fingerprint {
        self.limiter.core.seed.fingerprint(self.key)
    }

    /// Sets the cost, in units. The default is 1. A call of cost 0 always passes, and is not counted as in progress.
    pub fn cost(mut self, cost: u64) -> Self {
        self.options.cost = cost;
        self
    }

    /// Sets the maximum time for which the call waits. It is denied once it has waited for `max_wait`, or for the
    /// [`max_wait`](Concurrency::max_wait) of the algorithm if that is shorter. With zero, the call does not wait.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.options.max_wait = Nanos::from(max_wait).0;
        self
    }

    /// Returns a decision that tells whether [`permit`](Self::permit) would admit the call now. Takes no units.
    pub fn peek(self) -> Decision {
        self.limiter.core.peek(self.id(), &self.options)
    }

    /// Takes a permit, if the call is admitted now. See [`FairLimiter::try_acquire_permit`].
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    pub fn permit(self) -> Result<Permit, Denied> {
        let options = Options { max_wait: 0, ..self.options };
        match self.limiter.core.acquire(self.id(), &options) {
            Acquired::Ready(decision, reservation) => {
                self.limiter.core.observed.called(&decision);
                Permit::decided(decision, reservation)
            }
            Acquired::Pending(_) => unreachable!("a call without a maximum wait is decided at once"),
        }
    }

    /// Takes a permit, and waits for it in the caller's queue. See [`FairLimiter::acquire_permit`], also for errors,
    /// cancel safety and panics.
    pub fn acquire_permit(self) -> FairAcquire {
        let options = Options { waits: true, ..self.options };
        let core = Arc::clone(&self.limiter.core);
        FairAcquire { call: Some((core, self.id(), options)), wait: None }
    }
}

impl<K: ?Sized> FairCall<'_, Tiered<Concurrency>, K> {
    /// Sets the tier of the call, whose `per_key` is then the limit of its caller. Nothing else of the tier counts. See
    /// [`Tiered`].
    pub fn tier(mut self, algorithm: &Concurrency) -> Self {
        self.options.per_key = Some(algorithm.limit_per_key());
        self
    }
}

impl Core {
    /// Returns the time if calls wait. Otherwise nobody asks for it.
    #[inline]
    fn now(&self, order: &Order<Waker>) -> Nanos {
        if order.waiting() > 0 { self.clock.now() } else { Nanos::ZERO }
    }

    fn acquire(self: &Arc<Self>, id: Fingerprint, options: &Options) -> Acquired<FairWait> {
        let mut wake = Wakers::default();
        let mut queues = self.queues.lock();
        if let Some(decision) = self.free(&queues, id, options) {
            drop(queues);
            self.calls.add_decision(&decision, options.in_shadow);
            return Acquired::Ready(decision, Reservation::default());
        }
        let order = &mut queues.order;
        let Options { cost, per_key, waits, .. } = *options;
        let queue = &order.limits().queue;
        let (limit, mut now) = (order.limits().limit(per_key), self.now(order));
        let max_wait = options.max_wait.min(queue.max_wait());
        let may_wait = (waits || queue.holds_requests()) && queue.places() > 0 && max_wait > 0;
        let arrival = Arrival { id, cost, per_key, may_wait };
        let held = if cost <= limit { order.pass(&arrival, now) } else { None };
        let decision = match &held {
            Some(held) => Decision::allow(limit, order.remaining_beside(held, per_key), 0),
            None => deny(order, id, options),
        };
        if held.is_some() || !may_wait || cost > limit {
            drop(queues);
            return self.decided(decision, held, options);
        }
        if order.waiting() == 0 {
            now = self.clock.now();
        }
        let Some(waiter) = order.join(&arrival, now, &mut wake) else {
            drop(queues);
            return self.decided(decision.with_queue_full(), None, options);
        };
        drop(queues);
        self.calls.add(CallOutcome::Queued);
        let ticket = Ticket {
            core: Arc::clone(self),
            waiter,
            id,
            options: *options,
            arrived: now,
            max_wait,
            deadline: now.saturating_add(max_wait),
            has_left: false,
        };
        let wait = FairWait { ticket, sleep: None, wake_at: Nanos::ZERO };
        // If a waker panics, the call is cancelled.
        drop(wake);
        Acquired::Pending(wait)
    }

    /// Counts a decision that is made at once.
    #[inline]
    fn decided(
        self: &Arc<Self>,
        decision: Decision,
        held: Option<Held>,
        options: &Options,
    ) -> Acquired<FairWait> {
        self.calls.add_decision(&decision, options.in_shadow);
        Acquired::Ready(decision, self.reservation(held))
    }

    fn reservation(self: &Arc<Self>, held: Option<Held>) -> Reservation {
        let Some(held) = held else { return Reservation::default() };
        let core = Arc::clone(self);
        Reservation::on_release(move || core.end(held))
    }

    /// Returns the decision on a call that needs no units: it costs nothing, or the limiter is closed.
    fn free(&self, queues: &Queues, id: Fingerprint, options: &Options) -> Option<Decision> {
        if options.cost > 0 && !queues.is_closed {
            return None;
        }
        let limit = queues.order.limits().limit(options.per_key);
        if options.cost > 0 && self.on_close == OnClose::Reject {
            return Some(Decision::closed(limit));
        }
        Some(Decision::allow(limit, queues.order.remaining(id, options.per_key), 0))
    }

    fn peek(&self, id: Fingerprint, options: &Options) -> Decision {
        let queues = self.queues.lock();
        if let Some(decision) = self.free(&queues, id, options) {
            return decision;
        }
        let order = &queues.order;
        let Options { cost, per_key, .. } = *options;
        let limit = order.limits().limit(per_key);
        let arrival = Arrival { id, cost, per_key, may_wait: false };
        if cost <= limit && order.would_pass(&arrival) {
            Decision::allow(limit, order.remaining(id, per_key), 0)
        } else {
            deny(order, id, options)
        }
    }

    /// Removes a call whose future is dropped.
    fn cancel(&self, waiter: usize) {
        let mut wake = Wakers::default();
        let mut queues = self.queues.lock();
        // The call may wait no longer, and others may wait.
        let now = self.now(&queues.order);
        let spare = queues.order.cancel(waiter, now, &mut wake);
        drop(queues);
        drop(spare);
        self.calls.add(CallOutcome::Cancelled);
    }

    /// Ends a call in progress.
    fn end(&self, held: Held) {
        let mut wake = Wakers::default();
        let mut queues = self.queues.lock();
        let now = self.now(&queues.order);
        queues.order.end(held, now, &mut wake);
    }

    fn replace(&self, limits: Limits, wake: &mut Wakers) {
        let mut queues = self.queues.lock();
        let now = self.now(&queues.order);
        queues.order.replace(limits, now, wake);
    }

    fn close(&self) {
        let mut wake = Wakers::default();
        let mut queues = self.queues.lock();
        let now = self.now(&queues.order);
        queues.is_closed = true;
        queues.order.close(now, &mut wake);
    }

    fn stats(&self) -> LimiterStats {
        let queues = self.queues.lock();
        let (keys, waiting) = (queues.order.len() as u64, queues.order.waiting() as u64);
        drop(queues);
        let store = StoreStats { keys, waiting, ..StoreStats::default() };
        LimiterStats { calls: self.calls.stats(), store, units: UnitStats::default() }
    }
}

/// Returns the denial of a call that has no place now.
#[inline]
fn deny(order: &Order<Waker>, id: Fingerprint, options: &Options) -> Decision {
    let limit = order.limits().limit(options.per_key);
    let left = order.remaining(id, options.per_key);
    Decision::deny(limit, left, None, 0).with_unknown_wait(options.cost <= limit)
}

impl<A: FairAlgorithm> Limiter for FairLimiter<A> {
    type Algorithm = A;
    type Error = Infallible;
    type Wait = FairWait;

    const IS_LOCAL: bool = true;

    fn info(&self) -> Arc<AlgorithmInfo> {
        Arc::clone(&self.current.algorithm.read().unwrap_or_else(PoisonError::into_inner).1)
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.current.generation.load(Ordering::Acquire)
    }

    fn stats(&self) -> LimiterStats {
        self.core.stats()
    }

    fn close(&self) {
        self.core.close();
    }

    fn name(&self) -> Option<&str> {
        self.core.observed.name()
    }
}

impl<A: FairAlgorithm, K: MemoryKey + ?Sized> LimiterFor<K> for FairLimiter<A> {
    fn acquire(&self, key: &K, attempt: Attempt<'_, A>) -> Acquired<FairWait> {
        if attempt.has_priority() {
            self.core.ignored_priority.priority_ignored(self.core.observed.name());
        }
        let options = Options {
            cost: attempt.cost(),
            per_key: attempt.algorithm().map(|tier| tier.concurrency().limit_per_key()),
            waits: attempt.may_wait(),
            max_wait: attempt.options.max_wait,
            in_shadow: attempt.is_in_shadow(),
        };
        self.core.acquire(self.core.seed.fingerprint(key), &options)
    }
}

pin_project! {
    /// The future of a call that waits in a [`FairLimiter`].
    ///
    /// # Cancel safety
    ///
    /// If this future is dropped while its call waits, the call leaves the queue at once. If the call was admitted, and
    /// the future was not polled since, its units go to the next call.
    #[must_use = "futures do nothing unless polled"]
    pub struct FairWait {
        ticket: Ticket,
        #[pin]
        sleep: Option<Sleep>,
        wake_at: Nanos,
    }
}

/// A waiting call. When it is dropped before the call has left the queue, the call is cancelled.
struct Ticket {
    core: Arc<Core>,
    waiter: usize,
    id: Fingerprint,
    options: Options,
    arrived: Nanos,
    max_wait: u64,
    deadline: Nanos,
    has_left: bool,
}

impl Ticket {
    /// Returns and counts the decision on a waiting call, if it was decided. Otherwise the waker is woken once it is,
    /// and a waker that is no longer needed is returned.
    fn ask(&mut self, waker: &Waker) -> Result<Decided, Option<Waker>> {
        let Self { core, waiter, id, options, arrived, max_wait, deadline, has_left } = self;
        let (waiter, id, options) = (*waiter, *id, &*options);
        // Wakers are woken and dropped last, when no lock is held. They may panic.
        let mut wake = Wakers::default();
        let mut _spare = None;
        // Without a maximum wait, the time is not needed.
        let has_deadline = *deadline < Nanos::MAX;
        let now = if has_deadline { core.clock.now() } else { Nanos::ZERO };
        if has_deadline {
            // If the clock was set back, the call does not wait for longer than it may.
            *deadline = (*deadline).min(now.saturating_add(*max_wait));
        }
        let mut queues = core.queues.lock();
        let order = &mut queues.order;
        let limit = order.limits().limit(options.per_key);
        let (decision, at, held) = match order.take(waiter) {
            Some(Outcome::Admitted(held)) => {
                let left = order.remaining_beside(&held, options.per_key);
                (Decision::allow(limit, left, 0), held.since, Some(held))
            }
            Some(Outcome::Displaced(at)) => (deny(order, id, options).with_queue_full(), at, None),
            Some(Outcome::Closed(at)) => (Decision::closed(limit), at, None),
            None if has_deadline && now >= *deadline => {
                _spare = order.cancel(waiter, now, &mut wake);
                (deny(order, id, options), now, None)
            }
            None => {
                let known = order.wakes(waiter);
                return Err(match known {
                    Some(known) if known.will_wake(waker) => None,
                    _ => known.replace(waker.clone()),
                });
            }
        };
        // Its slot may be used again from now on.
        *has_left = true;
        drop(queues);
        let decision = decision.with_delay(at.saturating_since(*arrived));
        core.calls.add_decision(&decision, false);
        Ok(Decided::new(decision, core.reservation(held)))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.has_left {
            self.core.cancel(self.waiter);
        }
    }
}

impl Future for FairWait {
    type Output = Result<Decided, Infallible>;

    /// # Panics
    ///
    /// Panics if it is polled after it was ready. With the default clock, also panics outside a tokio runtime that has
    /// its timer enabled, if the call has a maximum wait.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let ticket = this.ticket;
        assert!(!ticket.has_left, "polled after it was ready");
        // When the sleep has ended, the call is asked once more. If it must sleep again, and that sleep has ended as
        // well, the task is woken to poll again.
        for _ in 0..2 {
            match ticket.ask(cx.waker()) {
                Ok(decided) => {
                    this.sleep.set(None);
                    return Poll::Ready(Ok(decided));
                }
                Err(_spare) if ticket.deadline == Nanos::MAX => return Poll::Pending,
                Err(_spare) => {}
            }
            if this.sleep.is_none() || *this.wake_at != ticket.deadline {
                this.sleep.set(Some(ticket.core.clock.sleep_until(ticket.deadline)));
                *this.wake_at = ticket.deadline;
            }
            match this.sleep.as_mut().as_pin_mut().map(|sleep| sleep.poll(cx)) {
                Some(Poll::Pending) => return Poll::Pending,
                _ => this.sleep.set(None),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

pin_project! {
    /// The future of [`FairLimiter::acquire_permit`] and [`FairCall::acquire_permit`].
    ///
    /// Borrows neither the key nor the limiter. Yields a [`Permit`], or the denial.
    #[must_use = "futures do nothing unless polled"]
    pub struct FairAcquire {
        // The call, until it is made.
        call: Option<(Arc<Core>, Fingerprint, Options)>,
        #[pin]
        wait: Option<FairWait>,
    }
}

impl Future for FairAcquire {
    type Output = Result<Permit, Denied>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // As in `Acquire`: without budget the call is not made yet, and a call that waits gives its unit of budget
        // back.
        let budget = ready!(poll_proceed(cx));
        let mut this = self.project();
        if let Some((core, id, options)) = this.call.take() {
            match core.acquire(id, &options) {
                Acquired::Ready(decision, reservation) => {
                    core.observed.called(&decision);
                    budget.made_progress();
                    return Poll::Ready(Permit::decided(decision, reservation));
                }
                Acquired::Pending(wait) => this.wait.set(Some(wait)),
            }
        }
        let mut wait = this.wait.as_pin_mut().expect("polled after it was ready");
        let Ok(decided) = ready!(wait.as_mut().poll(cx));
        wait.project().ticket.core.observed.called(decided.decision());
        budget.made_progress();
        let (decision, reservation) = decided.into_parts();
        Poll::Ready(Permit::decided(decision, reservation))
    }
}

impl<A, K: ?Sized> Clone for FairCall<'_, A, K> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<A: FairAlgorithm> fmt::Debug for FairLimiter<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLimiter").field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}

impl<A, K: ?Sized> fmt::Debug for FairCall<'_, A, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairCall").field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for FairWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairWait").field("until", &self.ticket.deadline).finish_non_exhaustive()
    }
}

impl fmt::Debug for FairAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairAcquire").finish_non_exhaustive()
    }
}
