//! Permits, which limit the calls in progress of several processes.
//!
//! While calls of this process hold permits of a key, or wait for permits, a task makes the trips of the key, one after
//! another. The server says by messages that a waiter has a permit. These messages arrive on a connection of their own,
//! and may be lost.

mod records;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use self::records::{Grant, Outcome, PREFIX, PermitCall, PermitScript, Records, Rules, State, Trip};
use super::call::{Callee, RedisCall, RedisReply, Request, call_methods};
use super::calls::{Calls, CountedCall, closed};
use super::connection::Listened;
use super::error::{RedisError, RedisErrorKind};
use super::flight::Awaited;
use super::link::Route;
use super::links::Links;
use super::names::{Name, Registered, words};
use super::parts::StoreParts;
use super::served::{Served, ServedKeys, Serves, change, start};
use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, Concurrency};
use tower_throttle::clock::Nanos;
use tower_throttle::limiter::{
    Acquired, Attempt, Decided, Denied, Limiter, LimiterFor, Permit, Reservation, SharedKey,
};
use tower_throttle::stats::LimiterStats;
use tower_throttle::store_support::{Charge, Recurrence, random_u64, reservation_of};

/// The first pause between the end of a connection for messages and the next connection, and the maximum pause. The
/// pause doubles each time, until a message arrives or a connection lasts for [`IDLE`].
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The interval at which the task examines whether a call waits. If no call waits, the task closes the connection.
const IDLE: Duration = Duration::from_secs(10);
/// The maximum number of units: larger numbers are not exact in Lua.
const MAX_UNITS: u64 = 1 << 53;
/// The maximum number of waiters of a key, unless the algorithm sets one.
const MAX_WAITING: u64 = 10_000;
/// The bounds of the time for which the server keeps a record without a renewal.
const LEASES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(86_400));

/// A limiter of the calls in progress of all processes. [`RedisStore::permits`](super::RedisStore::permits) creates it.
///
/// For each key, the calls of all processes take permits from one limit, and wait in one queue in the order in which
/// the server has received them.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_throttle_redis::RedisStore;
///
/// let redis = RedisStore::connect("redis://10.0.0.5").await?;
/// let exports = redis.permits("exports", 1).build()?;
/// let permit = exports.acquire_permit("user:42").await??;
/// let token = permit.fencing_token();
/// // Other processes wait until this permit is dropped, or until this process fails.
/// drop(permit);
/// # Ok(())
/// # }
/// ```
///
/// It has the methods of a [`RateLimiter`](tower_throttle::RateLimiter) with a [`Concurrency`], as futures, without
/// `check` and `acquire`, since nothing would end their calls:
///
/// ```compile_fail,E0599
/// # async fn example(exports: tower_throttle_redis::RedisPermits) {
/// exports.check("user:42").await;
/// # }
/// ```
///
/// # Guarantees
///
/// The server keeps a permit, or the place of a waiter, for [ten seconds](RedisPermitsBuilder::lease) without a
/// renewal. Each process renews its permits and places in the background, whenever a third of this time has passed. So
/// if a process ends without returning its permits, they are free again after at most this time, and its places in the
/// queue are gone.
///
/// A process that cannot reach the server, or that was suspended, may lose a permit although its call goes on. Then the
/// future of [`Permit::lost`] is ready, and [`Permit::fencing_token`] tells a resource which of two calls has the newer
/// permit. While the server cannot be reached, waiters keep their places for at most the same ten seconds since the
/// last renewal. If the server has lost its data, the permits are lost when they would be renewed, and waiters are
/// queued again, or denied if the queue is full.
///
/// While processes have different limits for a key, as during a deployment, each call gets its permit by the limit of
/// its own process, and calls wait in one queue.
///
/// When a permit is free, the first waiter gets it. The server sends a message to the process of this waiter, on a
/// connection that each process opens when a call first waits. Messages may be lost. So for each key, each process also
/// asks the server about the first of its own waiters. It asks at least once a second if at most three calls are ahead
/// of this waiter, and otherwise at least every five seconds. A call whose future is not polled still gets its permit,
/// and holds it until the future is dropped. So it keeps the calls behind it waiting, as a future does that waits for a
/// permit of tokio's `Semaphore`: do not await a permit while you keep a future of the same limiter that you do not
/// poll.
///
/// # Memory
///
/// On the server, a permit takes about 130 bytes, and a waiter about 180 bytes (`MEMORY USAGE` of Redis 7.0). A key
/// expires ten seconds after its last change or renewal.
///
/// # What is not promised
///
/// - More permits than the limit may be held after the server's clock was set forward, after the server has lost its
///   data, after a failover to a replica that lacks the latest permits, or if the clock of a process stands still while
///   the process is suspended, as that of a virtual machine may. In these cases, waiters may also lose their places,
///   and are queued again in another order, or denied if the queue is full.
/// - Fencing tokens increase in all these cases, unless the server's clock was set back as well, or the clock of the
///   replica is behind.
/// - A task on the runtime of one of the key's calls renews its permits. If that runtime stops, and no other call of
///   the key is made, ends or waits on another runtime, the permits expire and are lost.
/// - The layer does not end a request whose permit was lost, and does not tell its handler the fencing token.
/// - A permit that is dropped while the server cannot be reached stays taken until the server can be reached, or until
///   the permit expires. Permits that are dropped may stay taken until they expire if two runtimes end before the
///   server was informed: that of the task, and the one on which a call of the key has ended last.
///
/// # Limits of other kinds
///
/// A total for all keys, a queue that drops the oldest waiter, a replacement of the limit, a fallback, tuples with
/// other algorithms, and joined layers are not possible, so there are no methods for them. For a total, wrap the layer
/// in another whose key is `Global`. At most 10,000 calls of all processes wait for a key, unless
/// [`queue`](RedisPermitsBuilder::queue) sets another number.
///
/// # Permissions
///
/// The Redis user needs [permissions](crate::guide::many_machines#permissions) for permits, and others for messages.
/// Without the permissions for messages, no messages arrive, and processes only ask the server. If SUBSCRIBE or PUBLISH
/// fails, a warning is logged, at most once a minute for each of the two (feature `tracing`).
#[derive(Clone)]
pub struct RedisPermits {
    shared: Arc<SharedPermits>,
}

/// A builder of [`RedisPermits`]. [`RedisStore::permits`](super::RedisStore::permits) creates it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RedisPermitsBuilder {
    store: StoreParts,
    listener: Arc<Listener>,
    name: Name,
    limit: u64,
    places: Option<u64>,
    max_wait: Option<Duration>,
    lease: Duration,
}

/// The receiver of the messages for all limiters of a store.
#[derive(Debug)]
pub(super) struct Listener {
    /// The name of this store, which no store of another process has.
    process: String,
    /// The beginning of the names of channels. The rest is the name of the process.
    channel: String,
    next_number: AtomicU64,
    /// The calls that wait or may have to wait, by the numbers of their records.
    waiting: DashMap<u64, (Rules, Arc<Records>)>,
    /// The task that receives messages.
    task: Mutex<Option<AbortHandle>>,
    /// No messages arrive.
    refused: Recurrence,
    /// No messages can be sent.
    unsent: Recurrence,
}

/// The part of a limiter that its clones, its permits and its tasks share.
#[expect(missing_debug_implementations, reason = "users cannot name this type")]
pub struct SharedPermits {
    links: Links,
    name: Registered,
    calls: Calls,
    algorithm: Concurrency,
    info: Arc<AlgorithmInfo>,
    rules: Rules,
    /// The maximum number of waiters of a key.
    places: u64,
    script: PermitScript,
    listener: Arc<Listener>,
    keys: ServedKeys<State>,
}

/// The record of a call. When this value is dropped, a trip removes the record from the server, and its permit is
/// handed over.
struct Place {
    shared: Arc<SharedPermits>,
    records: Arc<Records>,
    number: u64,
    runtime: Handle,
}

/// The permit of an admitted call.
struct HeldPermit {
    place: Place,
    grant: Grant,
}

impl RedisPermitsBuilder {
    pub(super) fn new(store: StoreParts, listener: Arc<Listener>, name: Name, limit: u64) -> Self {
        let lease = Duration::from_secs(10);
        Self { store, listener, name, limit, places: None, max_wait: None, lease }
    }

    /// Sets how many calls of all processes may wait, per key. With 0, no call waits. See
    /// [`Concurrency::queue`](Concurrency::queue).
    pub fn queue(mut self, places: u64) -> Self {
        self.places = Some(places);
        self
    }

    /// Sets how long a call may wait. A queued call is denied once it has waited for this time. See
    /// [`Concurrency::max_wait`](Concurrency::max_wait).
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Sets the time for which the server keeps a permit, or a place in the queue, without a renewal. The default is
    /// ten seconds. Values below 100 ms are raised to 100 ms, and values above one day are lowered to one day.
    ///
    /// The permits of a process that has failed are free again after this time. A process that cannot reach the server
    /// for this time, or that is suspended for this time, loses its permits. The time must be at least four times the
    /// [deadline](super::RedisStoreBuilder::deadline). A process renews its permits and places after a third of this
    /// time. One trip renews up to 256 permits and places of one key.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(LEASES.0, LEASES.1);
        self
    }

    /// Returns the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty, if another limiter of the store has the same name and another limit or is
    /// of another kind, if the limit is 0, or if the deadline of calls is longer than a quarter of the lease.
    pub fn build(self) -> Result<RedisPermits, RedisError> {
        let Self { store, listener, name, limit, places, max_wait, lease } = self;
        let StoreParts { links, settings, .. } = store;
        let deadline = settings.deadline;
        let config = |detail: String| Err(RedisError::new(RedisErrorKind::Config, detail));
        if limit == 0 {
            return config("a limit of 0 calls at a time admits none: give at least 1".to_owned());
        }
        if lease / 4 < deadline {
            return config(format!(
                "a permit is kept for {lease:?} unless it is renewed, which is too short for a deadline of \
                 {deadline:?}: call `lease` with at least four times the deadline"
            ));
        }
        let mut algorithm = Concurrency::per_key(limit);
        if let Some(places) = places {
            algorithm = algorithm.queue(places);
        }
        if let Some(max_wait) = max_wait {
            algorithm = algorithm.max_wait(max_wait);
        }
        let places = match algorithm.queue_config().map(|queue| queue.places()) {
            None | Some(u64::MAX) => MAX_WAITING,
            Some(places) => places.min(MAX_UNITS),
        };
        let rules = Rules::new(limit.min(MAX_UNITS), lease, deadline);
        let (process, channel) = (listener.process.clone(), listener.channel.clone());
        let info = AlgorithmInfo::of(&algorithm);
        let shared = SharedPermits {
            calls: Calls::new(name.as_str()),
            name: name.register("p", &format!("{PREFIX} {}", rules.limit), words::<Concurrency>(&info))?,
            info,
            script: PermitScript::new(links.any().source(), &rules, places, process, channel),
            links,
            algorithm,
            rules,
            places,
            listener,
            keys: DashMap::new(),
        };
        Ok(RedisPermits { shared: Arc::new(shared) })
    }
}

call_methods!(RedisPermits);

impl RedisPermits {
    /// Closes the limiter and all its clones for ever: calls of this process that wait are denied at once, and new
    /// calls with a cost above 0 are denied as well, without a trip. See
    /// [`RateLimiter::close`](tower_throttle::RateLimiter::close).
    ///
    /// Calls in progress keep their permits. Calls whose trips are under way are decided by these trips. Other
    /// processes and other limiters of this process are not affected, even if they have the same name.
    pub fn close(&self) {
        self.shared.calls.close();
    }

    /// Returns a copy of the algorithm: a limit of the calls in progress for each key.
    #[must_use]
    pub fn algorithm(&self) -> Concurrency {
        self.shared.algorithm.clone()
    }

    fn registered(&self) -> &Registered {
        &self.shared.name
    }

    fn stats_without_calls(&self) -> LimiterStats {
        let SharedPermits { links, keys, .. } = &*self.shared;
        let waiting = keys.iter().map(|records| records.with(|state| state.waiting())).sum();
        let mut stats = LimiterStats::default();
        stats.store = links.stats();
        stats.store.waiting = waiting;
        stats
    }
}

impl Callee for RedisPermits {
    type Algorithm = Concurrency;
    type Shared = SharedPermits;

    fn shared(&self) -> &Arc<SharedPermits> {
        &self.shared
    }

    fn calls(shared: &SharedPermits) -> &Calls {
        &shared.calls
    }

    fn info_of(shared: &SharedPermits) -> Arc<AlgorithmInfo> {
        Arc::clone(&shared.info)
    }

    fn decide_at_once(
        shared: &Arc<SharedPermits>,
        _: &Arc<str>,
        request: &Request<Concurrency>,
    ) -> Option<Decision> {
        shared.calls.denial(&shared.algorithm, request.cost())
    }

    /// Decides a call. The reservation of an admitted call that has units is its permit.
    async fn decide(
        shared: &Arc<SharedPermits>,
        key: &Arc<str>,
        request: &Request<Concurrency>,
        call: &mut CountedCall<'_>,
    ) -> Result<Decided, RedisError> {
        if let Some(denial) = Self::decide_at_once(shared, key, request) {
            return Ok(Decided::new(denial, Reservation::default()));
        }
        let longest = shared.algorithm.queue_config().map_or(0, |queue| queue.max_wait());
        let can_wait = request.may_wait(&shared.algorithm) && shared.places > 0;
        let max_wait = can_wait.then_some(request.max_wait().min(longest)).filter(|wait| *wait > 0);
        let (decision, permit) = shared.acquire(key, request.cost(), max_wait, call).await?;
        Ok(Decided::new(decision, permit.map(reservation_of).unwrap_or_default()))
    }

    async fn look(
        shared: Arc<SharedPermits>,
        key: Arc<str>,
        request: Request<Concurrency>,
    ) -> Result<Decision, RedisError> {
        match Self::decide_at_once(&shared, &key, &request) {
            Some(denial) => Ok(denial),
            None => shared.peek(&key, request.cost()).await,
        }
    }
}

impl SharedPermits {
    /// Decides a call. If `max_wait` is given, the call waits for up to `max_wait` nanoseconds. Returns the permit of
    /// an admitted call, if the call has units.
    async fn acquire(
        self: &Arc<Self>,
        key: &Arc<str>,
        units: u64,
        max_wait: Option<u64>,
        counted: &mut CountedCall<'_>,
    ) -> Result<(Decision, Option<HeldPermit>), RedisError> {
        // A call without units is always admitted, and a call of too many units is always denied.
        if units == 0 || units > self.rules.limit {
            return Ok((self.peek(key, units).await?, None));
        }
        let (runtime, Route { link, .. }, deadline) = self.links.begin(key).await?;
        let arrived = link.now();
        let latest = max_wait.map(|wait| arrived.saturating_add(wait));
        let (reply, mut answer) = oneshot::channel();
        let call = PermitCall::new(arrived, deadline, latest, reply);
        let place = Place::new(self, key, units, call, latest.is_some(), runtime);
        let latest = latest.unwrap_or(deadline);
        let first = link.until(deadline.min(latest), &mut answer);
        let mut received = match counted.unless_closed(first).await {
            Some(received) => received,
            None if place.is_waiting() => {
                counted.wait();
                return Ok((closed(&self.algorithm), None));
            }
            // The trip of the call is under way.
            None => link.until(deadline.min(latest), &mut answer).await,
        };
        if received.is_none() && !place.is_waiting() {
            received = link.until(deadline, &mut answer).await;
        }
        while received.is_none() && place.is_waiting() && link.now() < latest {
            counted.wait();
            place.tend();
            let soon = link.now().saturating_add(self.rules.lease / 8);
            let next = link.until(latest.min(soon), &mut answer);
            match counted.unless_closed(next).await {
                Some(next) => received = next,
                None => return Ok((closed(&self.algorithm), None)),
            }
        }
        if received.is_none() && place.is_waiting() {
            answer.close();
            let Ok(result) = answer.try_recv() else {
                return Ok((self.rules.deny_waiter(units), None));
            };
            received = Some(Ok(result));
        }
        let acquired = link.result_of(deadline, received, &mut answer);
        let acquired = acquired.map_err(|error| self.name.describe(error))?;
        let (decision, permit) = acquired.received(link.now())?;
        Ok((decision, permit.map(|grant| place.hold(grant))))
    }

    /// Returns the decision on a call of `units`, without a charge.
    async fn peek(self: &Arc<Self>, key: &Arc<str>, units: u64) -> Result<Decision, RedisError> {
        let (runtime, Route { link, .. }, deadline) = self.links.begin(key).await?;
        let (reply, answer) = oneshot::channel();
        change(self, key, &runtime, |_, state| state.peek(units, deadline, reply));
        let peeked = Awaited::new(answer, None, drop).result(&link, deadline).await;
        peeked.map_err(|error| self.name.describe(error))
    }
}

impl Serves for SharedPermits {
    type Calls = State;

    const ASKS_BREAKER: bool = true;

    fn links(&self) -> &Links {
        &self.links
    }

    fn keys(&self) -> &ServedKeys<State> {
        &self.keys
    }

    fn new_calls(&self) -> State {
        State::default()
    }

    fn rules(&self) -> Rules {
        self.rules
    }

    fn patience(&self) -> u64 {
        self.rules.patience()
    }

    async fn make(
        &self,
        route: &Route,
        key: &str,
        trip: &Trip,
        not_after: Nanos,
    ) -> Result<Option<Outcome>, RedisError> {
        let outcome = self.script.execute(route, key, trip, not_after).await?;
        if outcome.as_ref().is_some_and(Outcome::is_unsent) {
            self.listener.warn_unsent();
        }
        Ok(outcome)
    }

    fn tripped(&self, records: &Served<State>) {
        if records.with(|state| state.waiting()) > 0 {
            self.listener.listen(&self.links, records.key());
        }
    }
}

impl Place {
    /// Adds a call to the next trip of its key.
    fn new(
        shared: &Arc<SharedPermits>,
        key: &Arc<str>,
        units: u64,
        call: PermitCall,
        may_wait: bool,
        runtime: Handle,
    ) -> Self {
        let number = shared.listener.next_number();
        let records = change(shared, key, &runtime, |records, state| {
            if may_wait {
                shared.listener.expect(number, shared.rules, records);
            }
            state.enter(number, units, call);
        });
        Self { shared: Arc::clone(shared), records, number, runtime }
    }

    /// Starts another task if the task of the records has ended or is not driven.
    fn tend(&self) {
        let task = self.records.tend(self.shared.links.any().now(), self.shared.patience());
        start(&self.shared, task, &self.records, &self.runtime());
    }

    /// Returns the present runtime, since that in which the call was made may have ended.
    fn runtime(&self) -> Handle {
        Handle::try_current().unwrap_or_else(|_| self.runtime.clone())
    }

    /// Returns whether the call waits in the queue of the server.
    fn is_waiting(&self) -> bool {
        self.records.with(|state| state.is_waiting(self.number))
    }

    /// Returns the permit of the call, which was admitted.
    fn hold(self, grant: Grant) -> HeldPermit {
        self.shared.listener.forget(self.number);
        HeldPermit { place: self, grant }
    }
}

impl Charge for HeldPermit {
    fn settle(self: Box<Self>, _: u64) -> Option<Decision> {
        None
    }

    fn release(self: Box<Self>) {}

    fn is_permit(&self) -> bool {
        true
    }

    fn fencing_token(&self) -> Option<u64> {
        Some(self.grant.fence())
    }

    fn lost(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let (shared, grant) = (Arc::clone(&self.place.shared), self.grant.clone());
        Some(Box::pin(async move { grant.lost(shared.links.any()).await }))
    }
}

impl Listener {
    /// Creates the receiver of a store. `channel` is the beginning of the names of channels.
    pub(super) fn new(channel: String) -> Self {
        Self {
            process: format!("{:016x}", random_u64()),
            channel,
            next_number: AtomicU64::new(0),
            waiting: DashMap::new(),
            task: Mutex::default(),
            refused: Recurrence::new(),
            unsent: Recurrence::new(),
        }
    }

    /// Returns the number of a new record. No two records of a store have the same number.
    fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Expects a message about a record, until [`forget`](Self::forget) is called.
    fn expect(&self, number: u64, rules: Rules, records: &Arc<Records>) {
        self.waiting.insert(number, (rules, Arc::clone(records)));
    }

    fn forget(&self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Starts the task that receives messages, unless it is running. In a cluster, the task subscribes at the node that
    /// has `key`. Since the nodes forward messages to each other, the task also receives the messages about keys of
    /// other nodes.
    fn listen(self: &Arc<Self>, links: &Links, key: &Arc<str>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let receive = receive(
                Arc::downgrade(self),
                links.clone(),
                format!("{}{}", self.channel, self.process),
                Arc::clone(key),
            );
            *task = Some(runtime.spawn(receive).abort_handle());
        }
    }

    /// Logs that waiters get no messages, because the user may not publish.
    fn warn_unsent(&self) {
        if let Some(count) = self.unsent.due(false) {
            log_refused(&RedisError::new(RedisErrorKind::Permission, "PUBLISH"), count);
        }
    }

    /// Processes a message: the number of a record, its fencing token, and the units that all records hold.
    fn receive(&self, text: &str, links: &Links) {
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (Some(number), Some(fence), Some(held)) = (next(), next(), next()) else { return };
        let Some((rules, records)) = self.waiting.get(&number).map(|waiting| waiting.clone()) else { return };
        records.with(|state| state.receive(&rules, number, fence, held, links.any().now()));
        records.wake();
    }
}

async fn receive(listener: Weak<Listener>, links: Links, channel: String, key: Arc<str>) {
    let mut pause = PAUSES.0;
    while listener.upgrade().is_some_and(|listener| !listener.waiting.is_empty()) {
        let receiver = listener.clone();
        let of = links.clone();
        let has_received = Arc::new(AtomicBool::new(false));
        let received = Arc::clone(&has_received);
        let on_message = move |text: &str| {
            received.store(true, Ordering::Relaxed);
            if let Some(listener) = receiver.upgrade() {
                listener.receive(text, &of);
            }
        };
        let mut messages = pin!(links.route(&key).link.listen(channel.clone(), Box::new(on_message)));
        let listened = loop {
            match tokio::time::timeout(IDLE, &mut messages).await {
                Ok(listened) => break listened,
                Err(_) => pause = PAUSES.0,
            }
            if listener.upgrade().is_none_or(|listener| listener.waiting.is_empty()) {
                return;
            }
        };
        if has_received.load(Ordering::Relaxed) || matches!(listened, Listened::Unconnected) {
            pause = PAUSES.0;
        }
        if let Some(listener) = listener.upgrade()
            && let Listened::Refused(error) = listened
            && let Some(count) = listener.refused.due(false)
        {
            log_refused(&error, count);
        }
        tokio::time::sleep(pause).await;
        pause = PAUSES.1.min(2 * pause);
    }
}

#[cfg(feature = "tracing")]
fn log_refused(error: &RedisError, count: u64) {
    tracing::warn!(target: "tower_throttle", event = "messages_refused", reason = %error, count,
        "tower-throttle[R03]: calls that wait for permits ask Redis, because no messages arrive");
}

#[cfg(not(feature = "tracing"))]
fn log_refused(_: &RedisError, _: u64) {}

impl Drop for Place {
    fn drop(&mut self) {
        let Self { shared, records, number, .. } = &*self;
        shared.listener.forget(*number);
        let (runtime, now) = (self.runtime(), shared.links.any().now());
        let expires = now.saturating_add(shared.rules.lease);
        let task = records.change(now, shared.patience(), |state| {
            state.leave(*number, expires);
            state.left_on(&runtime);
        });
        start(shared, task, records, &runtime);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}
