//! The options of one call, and the futures of calls that wait.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;

use super::attempt::Attempt;
use super::contract::{Acquired, Decided};
use super::fingerprint::{Fingerprint, MemoryKey};
use super::rate_limiter::RateLimiter;
use super::reservation::{Permit, Reservation};
use super::table::Table;
use super::wait::QueuedAcquire;
use crate::algorithm::{Algorithm, Tiered};
use crate::decision::{Decision, Denied};

/// A call with options, which is not made yet. [`RateLimiter::call`] creates it.
///
/// ```
/// use tower_throttle::algorithm::{FixedWindow, Tiered};
/// use tower_throttle::{Quota, RateLimiter};
///
/// let (free, paid) =
///     (FixedWindow::new(Quota::per_hour(1)), FixedWindow::new(Quota::per_hour(100)));
/// let limiter = RateLimiter::new(Tiered::new(free));
/// assert!(limiter.check("user:42").is_allowed());
/// assert!(!limiter.check("user:42").is_allowed());
/// assert_eq!(limiter.call("user:42").tier(&paid).cost(3).check().remaining(), 96);
/// ```
#[must_use = "the call is not made yet: call `check`, `peek`, `acquire`, `reserve` or `permit`"]
pub struct Call<'a, A: Algorithm, K: ?Sized> {
    limiter: &'a RateLimiter<A>,
    key: &'a K,
    options: Options<A>,
}

/// The options of a call.
#[derive(Clone, Debug)]
struct Options<A> {
    cost: u64,
    /// The algorithm of the call's tier.
    algorithm: Option<A>,
    priority: bool,
    max_wait: Duration,
}

impl<A: Algorithm> Options<A> {
    fn of_cost(cost: u64) -> Self {
        Self { cost, algorithm: None, priority: false, max_wait: Duration::MAX }
    }

    fn attempt(&self) -> Attempt<'_, A> {
        Attempt::of(self.cost, self.algorithm.as_ref(), self.priority)
    }
}

/// Calls with options, and calls that wait in the queue of their key.
impl<A: Algorithm> RateLimiter<A> {
    /// Returns a call of cost 1 for `key`, whose options can then be set. The last method of the chain makes the call.
    ///
    /// The requests of a layer whose [key is missing](crate::key::MissingKey::Shared) have one budget together. A call
    /// for [`StoreKey::<()>::Missing`](crate::key::StoreKey) uses this budget. So [`Call::peek`] shows it, and
    /// [`Call::reset`] and [`Call::refund`] change it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(5)));
    /// assert!(limiter.call("upstream").cost(5).check().is_allowed());
    /// let decision =
    ///     limiter.call("upstream").cost(2).max_wait(Duration::from_millis(200)).acquire().await;
    /// assert_eq!(decision.delay(), Duration::from_millis(200));
    /// # }
    /// ```
    pub fn call<'a, K: MemoryKey + ?Sized>(&'a self, key: &'a K) -> Call<'a, A, K> {
        Call { limiter: self, key, options: Options::of_cost(1) }
    }

    /// Takes one unit, and waits for it in the key's queue if it is not available now.
    ///
    /// The queued calls of one key are admitted in the order in which they arrived. The algorithm determines what a
    /// queued call waits for:
    ///
    /// - its scheduled time, with a [`LeakyBucket`](crate::algorithm::LeakyBucket) or
    ///   [`Smooth`](crate::algorithm::Smooth),
    /// - tokens, with a [`TokenBucket`](crate::algorithm::TokenBucket),
    /// - room in the window, with a window,
    /// - a permit, with [`Concurrency`](crate::algorithm::Concurrency),
    /// - the admission by all members, with a tuple.
    ///
    /// A window with [priority](crate::algorithm#priority) queues only calls with priority. A tuple with a lockout,
    /// priority or tiers among its members queues no calls. If an algorithm of your own does not implement
    /// [`queue_config`](Algorithm::queue_config), the call is decided at once, as by [`check`](RateLimiter::check).
    ///
    /// The number of queued calls, and the length of their wait, are bounded:
    ///
    /// - by `queue(n)` and `max_wait(d)`, if they were called on the algorithm. A call is denied at once if the queue
    ///   is full, or if the call would have to wait longer than `d`. With
    ///   [`Concurrency`](crate::algorithm::Concurrency), whose waits are not known, a call is denied after it has
    ///   waited for `d`. With [`DropOldest`](crate::algorithm::QueueOverflow::DropOldest), a call that finds the queue
    ///   full is queued, and the call that has waited longest is denied. The new call is denied instead if it would
    ///   still have to wait longer than its maximum wait, or if its units would still not fit into a
    ///   [total](crate::algorithm::Concurrency::total). With `queue(0)`, no call waits. If `max_wait(d)` or
    ///   `overflow(..)` was called without `queue(n)`, the number of queued calls is at most the limit or, with a
    ///   bucket or `Smooth`, the burst.
    /// - by the burst, for [`LeakyBucket`](crate::algorithm::LeakyBucket) and [`Smooth`](crate::algorithm::Smooth)
    ///   without `queue(n)`.
    /// - otherwise only by the [total of the limiter](super::Builder::max_queued), and there is no maximum wait. **One
    ///   key may then use up that total**, and calls for other keys are denied if they cannot be admitted at once. If
    ///   callers choose the keys, call `queue(n)` or `max_wait(d)` on the algorithm, or [`max_wait`](Call::max_wait)
    ///   for the call.
    ///
    /// In a tokio runtime, each call that is decided at once consumes budget of [cooperative
    /// scheduling](https://docs.rs/tokio/latest/tokio/task/coop/index.html), so a task that loops over such calls lets
    /// other tasks run. If the task has no budget left at the first poll of the future, the call is made at a later
    /// poll.
    ///
    /// # Cancel safety
    ///
    /// If a future is dropped before its first poll, its call charges nothing. If a future is dropped while its call is
    /// queued, the call charges nothing, and the calls behind it in the queue move up. A queued call is charged when it
    /// is admitted, which can happen before the next poll of its future. If the future is dropped between the admission
    /// and that poll, the charge is undone, unless in the meantime another call for the key was admitted, or the key
    /// was changed in another way, for example by a refund. The units of a
    /// [`Concurrency`](crate::algorithm::Concurrency) are given back in any case. The work of cancelling a queued call
    /// is linear in the number of queued calls of the key.
    ///
    /// A queued call has a timer, so keep polling its future, in a task or a `select!`. If the future of a queued call
    /// is kept and not polled, the calls behind that call are admitted nevertheless, a few milliseconds late if only
    /// the first call is not polled. Behind several such calls, a call waits at most half as long again as it would
    /// otherwise, and a few milliseconds for each of them. If its wait becomes shorter meanwhile, because calls before
    /// it are cancelled or units are refunded, that is half of the wait with which it was queued. The units of a call
    /// that is not polled stay charged to it. With [`Concurrency`](crate::algorithm::Concurrency), the first queued
    /// call is given the next free permit. If the future of that call is kept but never polled again, the permit stays
    /// taken, as in any fair semaphore. A call that waits for a window is charged to the window in which the call is
    /// admitted. If its future is polled late, this can be a later window than the first window with room for the call.
    ///
    /// A runtime that is shut down drops its tasks, which has the same effect on the queued calls of these tasks as
    /// dropping each future. A clock that steps back while calls are queued adds at most one period to their wait.
    ///
    /// # Calls in progress
    ///
    /// With a [`Concurrency`](crate::algorithm::Concurrency), and with algorithms that contain one, this method [does
    /// not compile](RateLimiter#calls-in-progress). [`acquire_permit`](RateLimiter::acquire_permit) waits in the same
    /// way.
    ///
    /// # Panics
    ///
    /// The future panics if it is polled after it was ready. With the default clock, it also panics if the call has to
    /// wait and there is no tokio runtime with an enabled timer.
    pub fn acquire<K: Hash + ?Sized>(&self, key: &K) -> Acquire<A> {
        const { Self::NO_RELEASE }
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units, and waits for them in the key's queue if they are not all available now. In all other
    /// respects, this method is the same as [`acquire`](RateLimiter::acquire), including its cancel safety and panics.
    pub fn acquire_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Acquire<A> {
        const { Self::NO_RELEASE }
        self.call(key).cost(cost).acquire()
    }

    /// Takes a permit, and waits for it in the key's queue as [`acquire`](RateLimiter::acquire) does. The call is in
    /// progress until the permit is dropped.
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Cancel safety
    ///
    /// The cancel safety is the same as that of [`acquire`](RateLimiter::acquire). If a future is dropped after its
    /// call was given a permit, the permit goes to the next queued call.
    ///
    /// # Panics
    ///
    /// Panics as [`acquire`](RateLimiter::acquire) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_throttle::limiter::Denied> {
    /// use tower_throttle::RateLimiter;
    /// use tower_throttle::algorithm::Concurrency;
    ///
    /// let exports = RateLimiter::new(Concurrency::per_key(1));
    /// let permit = exports.acquire_permit("user:42").await?;
    /// // the next export of this user begins when this one ends
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> AcquirePermit<A> {
        self.call(key).acquire_permit()
    }
}

impl<A: Algorithm, K: MemoryKey + ?Sized> Call<'_, A, K> {
    fn table(&self) -> &Arc<Table<A>> {
        &self.limiter.table
    }

    fn id(&self) -> Fingerprint {
        self.limiter.table.fingerprint(self.key)
    }

    /// Sets the cost, in units of the quota. The default is 1.
    pub fn cost(mut self, cost: u64) -> Self {
        self.options.cost = cost;
        self
    }

    /// Gives the call priority: it may wait for the next window instead of being denied.
    ///
    /// Only [`acquire`](Self::acquire) and [`acquire_permit`](Self::acquire_permit) use the priority, and only with
    /// windows with [priority](crate::algorithm#priority), and with [`Tiered`] or [lockouts](crate::algorithm::Lockout)
    /// of such windows. With any other algorithm, the call is the same as one without priority, and a
    /// warning is logged (feature `tracing`).
    ///
    /// ```
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(FixedWindow::new(Quota::per_second(10)).priority(20));
    /// let payment = limiter.call("upstream").priority().acquire();
    /// # drop(payment);
    /// ```
    pub fn priority(mut self) -> Self {
        self.options.priority = true;
        self
    }

    /// Sets the maximum time for which the call waits in a queue.
    ///
    /// A call that would have to wait longer is denied at once. The `retry_after` of the denial is the time until the
    /// same call would be admitted or queued. With [`Concurrency`](crate::algorithm::Concurrency), the wait is not
    /// known beforehand, so the call is denied after it has waited for `max_wait`. If the algorithm has a shorter
    /// `max_wait`, that time applies.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(1)));
    /// assert!(limiter.check("upstream").is_allowed());
    /// let late = limiter.call("upstream").max_wait(Duration::from_millis(50)).acquire().await;
    /// assert!(!late.is_allowed() && late.delay().is_zero());
    /// let in_time = limiter.call("upstream").max_wait(Duration::from_millis(100)).acquire().await;
    /// assert!(in_time.is_allowed() && in_time.delay() == Duration::from_millis(100));
    /// # }
    /// ```
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.options.max_wait = max_wait;
        self
    }

    /// Makes the call, if its units are available. See [`RateLimiter::check_n`].
    pub fn check(self) -> Decision {
        const { RateLimiter::<A>::NO_RELEASE }
        let decision = self.table().check(self.id(), self.options.attempt());
        self.table().shared.observed.checked(&decision);
        decision
    }

    /// Returns a decision that tells whether [`check`](Self::check) would admit the call now. Takes no units. See
    /// [`RateLimiter::peek`].
    pub fn peek(self) -> Decision {
        self.table().peek(self.id(), self.options.attempt())
    }

    /// Makes the call, and waits for its units in the key's queue if they are not all available now. In all other
    /// respects, this method is the same as [`RateLimiter::acquire`], including its cancel safety and panics.
    pub fn acquire(self) -> Acquire<A> {
        const { RateLimiter::<A>::NO_RELEASE }
        self.acquire_reserved()
    }

    /// Returns the future of the call, which yields the reservation of the call if it is polled for it.
    fn acquire_reserved(self) -> Acquire<A> {
        let table = Arc::clone(self.table());
        Acquire { stage: Stage::Start { table, id: self.id(), options: self.options } }
    }

    /// Takes a permit, if the call is admitted now. See [`RateLimiter::try_acquire_permit`].
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    pub fn permit(self) -> Result<Permit, Denied> {
        self.table().permit(self.id(), self.options.attempt())
    }

    /// Makes the call, if its units are available, with the cost as an estimate. The actual cost is charged by
    /// [`settle`](Reservation::settle) of the reservation, when it is known. If it is more than the estimate, the key
    /// may be in [debt](super::Builder::max_debt).
    ///
    /// A reservation that is dropped keeps the charge of the estimate. With an algorithm that [needs a
    /// release](Algorithm::NEEDS_RELEASE), nothing is settled: the call is in progress until the reservation is settled
    /// or dropped.
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let rows = RateLimiter::new(TokenBucket::new(Quota::per_minute(10_000)));
    /// let reservation = rows.call("user:42").cost(100).reserve()?;
    /// // run the query
    /// reservation.settle(2_500);
    /// assert_eq!(rows.peek("user:42").remaining(), 7_500);
    /// # Ok::<(), tower_throttle::limiter::Denied>(())
    /// ```
    pub fn reserve(self) -> Result<Reservation, Denied> {
        let attempt = self.options.attempt().with_reservation();
        let (decision, reservation) = self.table().reserve(self.id(), attempt);
        self.table().shared.observed.checked(&decision);
        reservation.decided(decision)
    }

    /// Takes a permit, and waits for it in the key's queue. See [`RateLimiter::acquire_permit`], also for errors,
    /// cancel safety and panics.
    pub fn acquire_permit(self) -> AcquirePermit<A> {
        AcquirePermit { acquire: self.acquire_reserved() }
    }

    /// Charges the cost of this call after the fact, even if its units are not available. The other options have no
    /// effect, except for the [tier](Self::tier). See [`RateLimiter::charge`].
    pub fn charge(self) {
        self.table().charge(self.id(), self.options.algorithm.as_ref(), self.options.cost);
    }

    /// Refunds up to as many units as the cost of this call. The other options have no effect. See
    /// [`RateLimiter::refund`].
    pub fn refund(self) {
        self.table().refund(self.id(), self.options.cost);
    }

    /// Resets the key to the state of a new key, and returns whether the key had used anything. The options have no
    /// effect. See [`RateLimiter::reset`].
    pub fn reset(self) -> bool {
        self.table().reset(self.id())
    }
}

impl<A: Algorithm + PartialEq, K: ?Sized> Call<'_, Tiered<A>, K> {
    /// Sets the tier of the call: the algorithm that decides it, instead of the limiter's own. Units that a key uses in
    /// one tier count in all tiers of the key. See [`Tiered`].
    pub fn tier(mut self, algorithm: &A) -> Self {
        self.options.algorithm = Some(Tiered::new(algorithm.clone()));
        self
    }
}

impl<A: Algorithm, K: ?Sized> Clone for Call<'_, A, K> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter, key: self.key, options: self.options.clone() }
    }
}

impl<A: Algorithm, K: ?Sized> fmt::Debug for Call<'_, A, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("options", &self.options).finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`RateLimiter::acquire`] and [`Call::acquire`].
    ///
    /// Borrows neither the key nor the limiter.
    #[must_use = "futures do nothing unless polled"]
    pub struct Acquire<A>
    where
        A: Algorithm,
    {
        #[pin]
        stage: Stage<A>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<A>
    where
        A: Algorithm,
    {
        Start { table: Arc<Table<A>>, id: Fingerprint, options: Options<A> },
        Waiting { #[pin] wait: QueuedAcquire<A> },
        Done,
    }
}

impl<A: Algorithm> Acquire<A> {
    fn poll_inner(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Decision, Reservation)> {
        // tokio's budget is checked before the decision. So if the task has no budget left, the call charges nothing
        // and joins no queue. If the call is queued, the unit of budget is returned. Outside a tokio runtime, there is
        // always budget.
        let budget = ready!(poll_proceed(cx));
        let mut stage = self.project().stage;
        let decided = loop {
            match stage.as_mut().project() {
                StageProj::Start { table, id, options } => {
                    let attempt = options.attempt().wait().with_max_wait(options.max_wait);
                    match table.acquire(*id, attempt) {
                        Acquired::Ready(decision, reservation) => {
                            table.shared.observed.checked(&decision);
                            break Decided::new(decision, reservation);
                        }
                        Acquired::Pending(wait) => stage.set(Stage::Waiting { wait }),
                    }
                }
                StageProj::Waiting { mut wait } => {
                    let Ok(decided) = ready!(wait.as_mut().poll(cx));
                    wait.observed().called(decided.decision());
                    break decided;
                }
                StageProj::Done => panic!("polled after it was ready"),
            }
        };
        stage.set(Stage::Done);
        budget.made_progress();
        Poll::Ready(decided.into_parts())
    }
}

impl<A: Algorithm> Future for Acquire<A> {
    type Output = Decision;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        // The reservation is empty: the call does not compile if it needs a release.
        let (decision, _) = ready!(self.poll_inner(cx));
        Poll::Ready(decision)
    }
}

pin_project! {
    /// The future of [`RateLimiter::acquire_permit`] and [`Call::acquire_permit`].
    ///
    /// Borrows neither the key nor the limiter. Yields a [`Permit`], or the denial.
    #[must_use = "futures do nothing unless polled"]
    pub struct AcquirePermit<A>
    where
        A: Algorithm,
    {
        #[pin]
        acquire: Acquire<A>,
    }
}

impl<A: Algorithm> Future for AcquirePermit<A> {
    type Output = Result<Permit, Denied>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (decision, reservation) = ready!(self.project().acquire.poll_inner(cx));
        Poll::Ready(Permit::decided(decision, reservation))
    }
}

impl<A: Algorithm> fmt::Debug for Acquire<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl<A: Algorithm> fmt::Debug for AcquirePermit<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquirePermit").finish_non_exhaustive()
    }
}
