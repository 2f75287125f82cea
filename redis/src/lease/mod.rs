//! Leases: a process takes several units of a key at once, and spends them without further trips.
//!
//! While a process holds units of a key, a [task](crate::served) makes the trips of the key, one after another. Calls
//! that wait for units are in a queue of this process. The first call of a queue asks again when its units may be
//! available.

mod bucket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::bucket::{Ask, Bucket, LeaseScript, Level, Touched, Undo};
use super::call::{Callee, RedisCall, RedisReply, Request, call_methods, unit_methods};
use super::calls::{Calls, CountedCall, closed};
use super::error::{RedisError, RedisErrorKind};
use super::flight::Awaited;
use super::link::Route;
use super::links::Links;
use super::names::{Name, Registered, words};
use super::parts::StoreParts;
use super::served::{Batches, Deadlines, ServedKeys, Serves, Step, change, start};
use super::states::Plan;
use super::wait::WaitQueues;
use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, StoredAlgorithm, TokenBucket};
use tower_throttle::clock::Nanos;
use tower_throttle::limiter::{
    Acquired, Attempt, Decided, Denied, Limiter, LimiterFor, Permit, Reservation, SharedKey,
};
use tower_throttle::stats::LimiterStats;
use tower_throttle::store_support::{random_u64, warn_of_bursts};

#[cfg(any(test, feature = "__in-process"))]
pub(super) use bucket::Leased;

/// The version of the format of a key with leases. It is the first word of the field `s`.
const VERSION: &str = "1";
/// The time for which a process holds units before it returns the units that it has not spent, in nanoseconds.
const HOLD: u64 = 1_000_000_000;
/// The time for which units can be spent after the process has asked for them, in nanoseconds. This is shorter than the
/// time for which the server counts them as leased, because the clocks of the server and of the process may run at
/// different speeds.
const SPEND: u64 = 2_000_000_000;
/// The maximum time after a denial in which no trip is made for the key although the units of a call may be available,
/// in nanoseconds.
const MAX_PAUSE: u64 = 75_000_000;
/// The maximum number of calls that one trip decides.
const MAX_BATCH: usize = 256;

/// The maximum number of keys of a limiter for which a process holds units. While there are more keys, no units are
/// leased, and each call makes a trip.
const MAX_KEYS: usize = 10_000;

/// The time after which a call asks again if it waits for the end of the leases of other processes, in nanoseconds.
const UNKNOWN_WAIT: u64 = 50_000_000;

/// A limiter of token buckets in Redis that leases units: it takes several units of a key at once, and spends them
/// without further trips. [`RedisLimiterBuilder::lease`](super::RedisLimiterBuilder::lease) creates it.
///
/// A call whose units are leased is decided at once. So a key with many calls needs about one trip for every `units`
/// calls. A process leases units only of keys that it used within the last second: first 1 unit, and twice as many in
/// each further trip, up to `units`. A lease has at most half of the units that the bucket has left, so leases get
/// smaller while few units are left. In a simulation, eight processes share 1,000 calls per second with a burst of 200.
/// At 80 % load with leases of 10 units, they make about 0.1 trips for each admitted call, and at 200 % load with
/// leases of 25 units about half a trip, mostly for calls that are denied. In both cases, they admit more than 99 % of
/// the calls that one bucket would admit. While all units of the burst are leased, no units are refilled.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_throttle::Quota;
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle_redis::RedisStore;
///
/// let redis = RedisStore::connect("redis://10.0.0.5").await?;
/// let bucket = TokenBucket::new(Quota::per_second(1_000).burst(200));
/// let limiter = redis.limiter("api", bucket).lease(10).build()?;
/// # Ok(())
/// # }
/// ```
///
/// The methods have the meanings of those of a [`RedisLimiter`](super::RedisLimiter), except:
///
/// | method | with leases |
/// |---|---|
/// | `remaining` and `reset_after` of a decision | are those of the last trip, without the later calls of other processes |
/// | `retry_after` of a denial | may be up to 75 ms longer, so that the next trip takes several units. `None` if the call has to wait for units that other processes hold, or behind queued calls |
/// | `acquire` and its variants | the calls of a process are admitted in the order in which they arrived, except that calls whose futures are not polled are overtaken; the processes are served in no particular order. A call that is cancelled while it waits charges nothing |
/// | `peek`, `refund`, `reset` | each makes a trip. `reset` gives back all units except those that other processes hold |
/// | `close` | also returns the units that the process has not spent |
/// | `replace`, `settle` of a layer, `and` of a layer | do not compile |
///
/// The limiters that share the units of a key are those with the same name and quota that lease units as well. Limiters
/// of other processes with this name, but with another quota or without leases, have [units of their
/// own](crate::guide::many_machines#deployments).
///
/// The Redis user needs [permissions](crate::guide::many_machines#permissions) for leases.
///
/// # Guarantees
///
/// All processes together never admit a call that a single bucket would deny. The processes may deny calls that a
/// single bucket would admit, because other processes hold the units. Each process holds at most `units` units of a
/// key. One second after a process has leased units, or when the limiter is closed or dropped, the process returns the
/// units that it has not spent, if the runtime still runs. If a process ends without returning units, or a trip fails,
/// because the server refuses its writes or its reply is lost, the units that the process holds count as spent. Their
/// refill begins with the first trip of any process that is made three seconds or more after they were leased. If the
/// server's clock was set back in between, these three seconds begin with the first trip after the clock was set back.
/// If a future is dropped after a trip has charged its call, the units that cannot have been refilled since then are
/// given back at once, if the runtime still runs and the trip does not fail.
///
/// These guarantees require that the server's clock is not set forward, and that the process is not suspended together
/// with its monotonic clock, as a virtual machine may be. Otherwise the units of a lease may be spent after its end.
/// Then the excess is at most the units of the leases. They also require that the server loses no state: after a
/// `FLUSHALL`, an eviction of the key, or a failover to a replica without the latest writes, the bucket may be full
/// again, while processes spend the units that they hold.
///
/// # Memory
///
/// For each limiter, a process holds units of at most 10,000 keys at once, each for about a second.
#[derive(Clone)]
pub struct RedisLeases {
    owner: Arc<Owner>,
}

/// A builder of [`RedisLeases`]. [`RedisLimiterBuilder::lease`](super::RedisLimiterBuilder::lease) creates it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RedisLeasesBuilder {
    pub(super) store: StoreParts,
    pub(super) name: Name,
    pub(super) algorithm: TokenBucket,
    pub(super) units: u64,
    pub(super) max_queued: Option<usize>,
    pub(super) has_fallback: bool,
}

/// When the last clone of the limiter is dropped, the limiter's tasks return the units that were not spent.
struct Owner(Arc<SharedLeases>);

/// The part of a limiter that its clones and its tasks share.
#[expect(missing_debug_implementations, reason = "users cannot name this type")]
pub struct SharedLeases {
    links: Links,
    name: Registered,
    calls: Calls,
    algorithm: TokenBucket,
    info: Arc<AlgorithmInfo>,
    rules: Rules,
    script: LeaseScript,
    held: ServedKeys<HeldUnits>,
    names: Arc<LeaseNames>,
    queues: WaitQueues,
    /// `true` if the limiter was dropped.
    is_dropped: AtomicBool,
}

/// The source of the names of leases. A name consists of a random number, which is chosen once for each limiter, and a
/// number that no other lease of the limiter has.
#[derive(Debug)]
struct LeaseNames {
    process: u64,
    next: AtomicU64,
}

/// The settings of all keys of a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    bucket: Bucket,
    /// The maximum number of units that a trip takes at once, if its calls do not need more.
    units: u64,
    /// The maximum time for which a denial is remembered, in nanoseconds.
    remember: u64,
    /// `true` if tasks lease no units, return the units that are left, and end.
    is_brief: bool,
}

/// The units of a key, and the calls that wait for a trip.
#[derive(Debug)]
pub(crate) struct HeldUnits {
    names: Arc<LeaseNames>,
    /// The number that identifies the lease on the server.
    lease: u64,
    /// The leased units that are not spent.
    left: u64,
    /// The time until which these units can be spent.
    until: Nanos,
    /// The number of units that the server has leased to the process in the last trip.
    granted: u64,
    /// The number of units that a trip takes at once, including the units of the calls that the trip decides.
    size: u64,
    /// The beginning of the last trip that decided checks, or that returned units after other units had been spent.
    /// [`HOLD`] counts from this time.
    asked: Option<Nanos>,
    /// The charges of dropped calls, which the next trip undoes.
    undo: Undo,
    seen: Option<Seen>,
    calls: VecDeque<WaitingCall>,
    /// `true` while a trip is under way.
    is_asking: bool,
}

/// The level of the bucket after the last trip.
#[derive(Clone, Copy, Debug)]
struct Seen {
    level: Level,
    /// The server's time, in microseconds.
    now: u64,
    /// The time at which the trip began, by this process's clock. The server's time was read later.
    sent: Nanos,
    /// After a denial, the earliest time of the next trip.
    next_trip: Option<Nanos>,
}

/// A call that waits for a trip.
#[derive(Debug)]
struct WaitingCall {
    action: Action,
    cost: u64,
    deadline: Nanos,
    reply: oneshot::Sender<Reply>,
}

/// The decision on a call, and what undoes its charge.
type Reply = Result<(Decision, Undo), RedisError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Check,
    Peek,
    Refund,
}

/// A trip that decides some calls, or that only returns units.
#[derive(Debug)]
pub(crate) struct Trip {
    calls: Vec<WaitingCall>,
    ask: Ask,
    lease: u64,
    undo: Undo,
}

impl RedisLeasesBuilder {
    /// Returns the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty, if another limiter of the store has the same name, but another quota or
    /// no leases, if a fallback was set, if a lease has 0 units, if the queue drops the oldest call when it is full, or
    /// if the bucket needs numbers above 2^53.
    pub fn build(self) -> Result<RedisLeases, RedisError> {
        let Self { store, name, algorithm, units, max_queued, has_fallback } = self;
        let config = |detail| Err(RedisError::new(RedisErrorKind::Config, detail));
        if units == 0 {
            return config("a lease has at least one unit: `lease(1)`");
        }
        if has_fallback {
            return config(
                "a limiter that leases units has no fallback: call `fallback` or `lease`, but not both",
            );
        }
        warn_of_bursts(&algorithm, Some(name.as_str()));
        let source = store.links.any().source();
        let prefix = format!("{VERSION} {}", Plan::new(algorithm.clone(), source, false)?.frame().unit());
        // The states of a lease have one quota, so the quota is part of the kind.
        let kind = format!("lease/{}", algorithm.unit().trim_start_matches("t:"));
        let bucket = Bucket::new(&algorithm).ok_or_else(|| {
            let detail = "the bucket is too large for leases, whose script computes with numbers up to 2^53: \
                give a quota with a smaller burst or a shorter period, or call no `lease`";
            RedisError::new(RedisErrorKind::Algorithm, detail)
        })?;
        let info = AlgorithmInfo::of(&algorithm);
        let words = format!("{} with leases", words::<TokenBucket>(&info));
        let remember = Nanos::from(store.settings.remember_denials).0;
        let shared = SharedLeases {
            links: store.links,
            calls: Calls::new(name.as_str()),
            name: name.register(&kind, &format!("{prefix}, with leases"), words)?,
            info,
            queues: WaitQueues::new(&algorithm, max_queued),
            algorithm,
            rules: Rules { bucket, units: units.min(bucket.burst()), remember, is_brief: false },
            script: LeaseScript::new(source, bucket, prefix),
            held: DashMap::new(),
            names: Arc::new(LeaseNames::new()),
            is_dropped: AtomicBool::new(false),
        };
        Ok(RedisLeases { owner: Arc::new(Owner(Arc::new(shared))) })
    }
}

unit_methods!(RedisLeases);
call_methods!(RedisLeases);

impl RedisLeases {
    /// Refunds up to `cost` units that were charged to the key and still count. See
    /// [`RateLimiter::refund`](tower_throttle::RateLimiter::refund).
    pub fn refund<K: SharedKey + ?Sized>(&self, key: &K, cost: u64) -> RedisReply<()> {
        let (shared, key) = (Arc::clone(self.shared()), self.key(key));
        RedisReply::new(async move { shared.ask(&key, Action::Refund, cost).await.map(|_| ()) })
    }

    /// Resets the key: refunds all units except those that are leased to other processes. Returns whether the key had
    /// used any of the others. The type of the key counts, as in
    /// [`RateLimiter::reset`](tower_throttle::RateLimiter::reset).
    pub fn reset<K: SharedKey + ?Sized>(&self, key: &K) -> RedisReply<bool> {
        let (shared, key) = (Arc::clone(self.shared()), self.key(key));
        RedisReply::new(async move {
            let before = shared.ask(&key, Action::Refund, u64::MAX).await?;
            Ok(before.remaining() < before.limit())
        })
    }

    /// Closes the limiter and all its clones for ever: calls of this process that wait are denied at once, and new
    /// calls with a cost above 0 are denied as well, without a trip. The units that were not spent are returned. See
    /// [`RateLimiter::close`](tower_throttle::RateLimiter::close).
    ///
    /// Calls whose trips are under way are decided by these trips. Other processes and other limiters of this process
    /// are not affected, even if they have the same name.
    pub fn close(&self) {
        self.owner.0.calls.close();
        self.owner.0.wake();
    }

    /// Returns a copy of the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> TokenBucket {
        self.owner.0.algorithm.clone()
    }

    fn registered(&self) -> &Registered {
        &self.owner.0.name
    }

    fn stats_without_calls(&self) -> LimiterStats {
        let mut stats = LimiterStats::default();
        stats.store = self.owner.0.links.stats();
        stats
    }
}

/// An admitted call has an empty permit, because a token bucket does not limit calls in progress.
impl Callee for RedisLeases {
    type Algorithm = TokenBucket;
    type Shared = SharedLeases;

    fn shared(&self) -> &Arc<SharedLeases> {
        &self.owner.0
    }

    fn calls(shared: &SharedLeases) -> &Calls {
        &shared.calls
    }

    fn info_of(shared: &SharedLeases) -> Arc<AlgorithmInfo> {
        Arc::clone(&shared.info)
    }

    /// Decides a call if the limiter was closed, or if the call does not wait and the process holds its units or knows
    /// its denial.
    fn decide_at_once(
        shared: &Arc<SharedLeases>,
        key: &Arc<str>,
        request: &Request<TokenBucket>,
    ) -> Option<Decision> {
        let may_wait = request.may_wait(&shared.algorithm);
        let held = || if may_wait { None } else { shared.decide_held(key, request.cost()) };
        shared.calls.denial(&shared.algorithm, request.cost()).or_else(held)
    }

    async fn decide(
        shared: &Arc<SharedLeases>,
        key: &Arc<str>,
        request: &Request<TokenBucket>,
        call: &mut CountedCall<'_>,
    ) -> Result<Decided, RedisError> {
        match Self::decide_at_once(shared, key, request) {
            Some(decision) => Ok(Decided::new(decision, Reservation::default())),
            None if request.may_wait(&shared.algorithm) => shared.wait(key, request, call).await,
            None => shared.check(key, request.cost()).await,
        }
    }

    async fn look(
        shared: Arc<SharedLeases>,
        key: Arc<str>,
        request: Request<TokenBucket>,
    ) -> Result<Decision, RedisError> {
        match shared.calls.denial(&shared.algorithm, request.cost()) {
            Some(denial) => Ok(denial),
            None => shared.ask(&key, Action::Peek, request.cost()).await,
        }
    }
}

impl SharedLeases {
    /// Wakes the tasks of all keys.
    fn wake(&self) {
        self.held.iter().for_each(|held| held.wake());
    }

    /// Decides a call that does not wait, without a trip. Returns `None` if a trip must decide the call.
    fn decide_held(&self, key: &Arc<str>, cost: u64) -> Option<Decision> {
        let held = self.held.get(key)?;
        held.with(|held| held.decide_now(&self.rules, cost, self.links.any().now()))
    }

    /// Decides a call in the next trip of its key.
    async fn ask(
        self: &Arc<Self>,
        key: &Arc<str>,
        action: Action,
        cost: u64,
    ) -> Result<Decision, RedisError> {
        let (runtime, Route { link, .. }, deadline) = self.links.begin(key).await?;
        let (reply, answer) = oneshot::channel();
        let call = WaitingCall { action, cost, deadline, reply };
        let held = change(self, key, &runtime, |_, held| held.calls.push_back(call));
        let undo = |reply: Reply| {
            if let Ok((_, undo)) = reply
                && !undo.is_empty()
            {
                let add = |held: &mut HeldUnits| held.undo = self.rules.bucket.undo_both(held.undo, undo);
                let task = held.change(link.now(), self.patience(), add);
                start(self, task, &held, &runtime);
            }
        };
        let decided = Awaited::new(answer, None, undo).result(&link, deadline).await;
        decided.map(|(decision, _)| decision).map_err(|error| self.name.describe(error))
    }

    /// Decides a call that does not wait.
    async fn check(self: &Arc<Self>, key: &Arc<str>, cost: u64) -> Result<Decided, RedisError> {
        let decision = match self.decide_held(key, cost) {
            Some(decision) => decision,
            // The script accepts no cost above the burst. A call with such a cost is always denied.
            None if cost > self.rules.bucket.burst() => self.ask(key, Action::Peek, cost).await?,
            None => self.ask(key, Action::Check, cost).await?,
        };
        Ok(Decided::new(decision, Reservation::default()))
    }

    async fn peek(self: &Arc<Self>, key: &Arc<str>, cost: u64) -> Result<Decided, RedisError> {
        Ok(Decided::new(self.ask(key, Action::Peek, cost).await?, Reservation::default()))
    }

    /// Decides a call that may wait.
    async fn wait(
        self: &Arc<Self>,
        key: &Arc<str>,
        request: &Request<TokenBucket>,
        call: &mut CountedCall<'_>,
    ) -> Result<Decided, RedisError> {
        let cost = request.cost();
        // A call above the burst is denied at once, whichever calls wait.
        let can_wait = cost > 0 && cost <= self.rules.bucket.burst();
        let config = self.algorithm.queue_config().filter(|config| can_wait && config.places() > 0);
        let Some(config) = config else { return self.check(key, cost).await };
        let queued = self.queues.call(self.links.any(), key, &config, request.max_wait(), Some(UNKNOWN_WAIT));
        let decided =
            queued.until_decided(call, |_, _| self.check(key, cost), || self.peek(key, cost)).await?;
        Ok(decided.unwrap_or_else(|| Decided::new(closed(&self.algorithm), Reservation::default())))
    }
}

impl LeaseNames {
    fn new() -> Self {
        Self { process: random_u64(), next: AtomicU64::new(0) }
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the name of the lease with this number.
    fn of(&self, number: u64) -> String {
        format!("{:016x}.{number}", self.process)
    }
}

impl HeldUnits {
    fn new(names: &Arc<LeaseNames>) -> Self {
        Self {
            names: Arc::clone(names),
            lease: names.next_number(),
            left: 0,
            until: Nanos::ZERO,
            granted: 0,
            size: 1,
            asked: None,
            undo: Undo::default(),
            seen: None,
            calls: VecDeque::new(),
            is_asking: false,
        }
    }

    /// Decides a call without a trip, if the process holds the units of the call, or if the level after the last trip
    /// shows that the call must wait. Returns `None` if a trip must decide the call.
    fn decide_now(&mut self, rules: &Rules, cost: u64, now: Nanos) -> Option<Decision> {
        // A call must not overtake the calls that wait for a trip.
        let is_first = !self.is_asking && self.calls.is_empty();
        if is_first { self.decide_first(rules, cost, now) } else { None }
    }

    fn decide_first(&mut self, rules: &Rules, cost: u64, now: Nanos) -> Option<Decision> {
        let Rules { bucket, remember, .. } = rules;
        let seen = self.seen?;
        let elapsed = now.saturating_since(seen.sent);
        let server_now = seen.now + elapsed / 1_000;
        let level = bucket.at(seen.level, server_now);
        if cost <= self.left && now < self.until {
            self.left -= cost;
            return Some(bucket.allow(level, server_now, self.left));
        }
        let next_trip = seen.next_trip.filter(|_| elapsed <= *remember && cost > 0)?;
        let pause = next_trip.saturating_since(now);
        // A trip returns the units that are left before it takes the units of the call.
        let level = bucket.after_return(level, self.granted, self.left);
        let denial = bucket.deny(level, server_now, cost);
        let wait = denial.retry_after().map(|wait| Nanos::from(wait).0.max(pause));
        match wait {
            Some(0) => None,
            None if pause == 0 => None,
            wait => Some(denial.with_retry_after(wait)),
        }
    }

    /// Sends a decision. If the call was dropped, the next trip undoes its charge. The units of a call that is decided
    /// without a trip were taken by the last trip at the latest.
    fn send(&mut self, bucket: &Bucket, call: WaitingCall, decision: Decision) {
        let is_charged = call.action == Action::Check && decision.is_allowed();
        let level = self.seen.filter(|_| is_charged).map(|seen| seen.level);
        let undo = level.map_or(Undo::default(), |level| bucket.undo(call.cost, level));
        if call.reply.send(Ok((decision, undo))).is_err() {
            self.undo = bucket.undo_both(self.undo, undo);
        }
    }

    /// Forgets the units whose trip has failed: those that it has returned or leased are lost.
    fn lose(&mut self) {
        self.is_asking = false;
        self.left = 0;
        self.granted = 0;
        self.lease = self.names.next_number();
        self.seen = None;
    }
}

impl Batches for HeldUnits {
    type Rules = Rules;
    type Trip = Trip;
    /// The server's time in microseconds, and the changes that the trip has made.
    type Found = (u64, Touched);

    fn next(&mut self, rules: &Rules, now: Nanos) -> Step<Trip> {
        let mut calls = Vec::new();
        let mut costs = Vec::new();
        let mut refund = 0_u64;
        while calls.len() < MAX_BATCH {
            let Some(call) = self.calls.pop_front() else { break };
            if call.reply.is_closed() {
                continue;
            }
            if call.deadline <= now {
                let _ =
                    call.reply.send(Err(RedisError::new(RedisErrorKind::Late, "no trip was made in time")));
                continue;
            }
            match call.action {
                // The calls that arrived during the last trip may spend the units that this trip has leased.
                Action::Check if calls.is_empty() => match self.decide_first(rules, call.cost, now) {
                    Some(decision) => {
                        self.send(&rules.bucket, call, decision);
                        continue;
                    }
                    None => costs.push(call.cost),
                },
                Action::Check => costs.push(call.cost),
                Action::Refund => refund = refund.saturating_add(call.cost),
                Action::Peek => {}
            }
            calls.push(call);
        }
        let mut want = self.left;
        if calls.is_empty() {
            let end = self.asked.map_or(now, |asked| asked.saturating_add(HOLD));
            let is_held = now < end && !rules.is_brief;
            if self.undo.is_empty() {
                if is_held {
                    return Step::Wait(end);
                }
                if self.granted == 0 {
                    return Step::End;
                }
            }
            if !is_held {
                // If some units were spent, the next calls may follow soon, so the task goes on.
                let spent = self.granted - self.left;
                self.size = (spent / 2).max(1);
                want = 0;
                self.asked = self.asked.filter(|_| spent > 0).map(|_| now);
            }
        } else if !costs.is_empty() {
            let is_soon = self.asked.is_some_and(|asked| now < asked.saturating_add(HOLD));
            self.size = if is_soon { (2 * self.size).min(rules.units) } else { 1 };
            self.asked = Some(now);
            want = self.size.saturating_sub(costs.iter().sum());
        }
        self.is_asking = true;
        let undo = mem::take(&mut self.undo);
        let ask = Ask::new(self.left, refund, undo, costs, if rules.is_brief { 0 } else { want });
        Step::Trip(Trip { calls, ask, lease: self.lease, undo })
    }

    fn deadlines(trip: &Trip) -> Option<Deadlines> {
        Deadlines::of(trip.calls.iter().map(|call| call.deadline))
    }

    fn put_back(&mut self, rules: &Rules, trip: Trip) {
        self.is_asking = false;
        self.undo = rules.bucket.undo_both(self.undo, trip.undo);
        trip.calls.into_iter().rev().for_each(|call| self.calls.push_front(call));
    }

    fn finish(&mut self, rules: &Rules, trip: Trip, (now, touched): (u64, Touched), sent: Nanos, _: Nanos) {
        let Rules { bucket, .. } = rules;
        let (used, level, decisions, granted) = touched.into_parts();
        self.is_asking = false;
        self.left = granted;
        self.granted = granted;
        self.until = sent.saturating_add(SPEND);
        let is_denied = decisions.iter().any(|decision| !decision.is_allowed());
        // While calls are denied, the next trip is made only when several units can be taken at once. The pause is
        // longer than the time in which they are refilled, because other processes take units as well.
        let pause = bucket.time_of((3 * self.size).min(bucket.burst() / 3)).min(MAX_PAUSE);
        let next_trip = is_denied.then(|| sent.saturating_add(pause));
        self.seen = Some(Seen { level, now, sent, next_trip });
        let mut decisions = decisions.into_iter();
        for call in trip.calls {
            let decision = match call.action {
                Action::Check => match decisions.next() {
                    Some(decision) => decision,
                    None => unreachable!("each cost has a decision"),
                },
                Action::Peek if call.cost <= granted => bucket.allow(level, now, granted),
                Action::Peek => bucket.peek(bucket.after_return(level, granted, granted), now, call.cost),
                Action::Refund => bucket.allow(used, now, 0),
            };
            let wait = decision.retry_after().map(|wait| Nanos::from(wait).0.max(pause));
            let decision =
                if call.action == Action::Check { decision.with_retry_after(wait) } else { decision };
            self.send(bucket, call, decision);
        }
    }

    fn fail(&mut self, _: &Rules, trip: Trip, error: &RedisError, _: Nanos) {
        self.lose();
        trip.calls.into_iter().for_each(|call| drop(call.reply.send(Err(error.clone()))));
    }

    fn abandon(&mut self, _: &Rules, _: Nanos) -> Option<Handle> {
        self.lose();
        self.calls.clear();
        None
    }

    fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// The deadline of the first call that waits for a trip has passed. The calls of the former task fail at their
    /// deadlines, and its units are lost.
    fn is_stuck(&self, now: Nanos) -> bool {
        self.calls.front().is_some_and(|call| call.deadline <= now)
    }
}

impl Serves for SharedLeases {
    type Calls = HeldUnits;

    const ASKS_BREAKER: bool = false;

    fn links(&self) -> &Links {
        &self.links
    }

    fn keys(&self) -> &ServedKeys<HeldUnits> {
        &self.held
    }

    fn new_calls(&self) -> HeldUnits {
        HeldUnits::new(&self.names)
    }

    fn rules(&self) -> Rules {
        let has_ended = self.is_dropped.load(Ordering::Acquire) || self.calls.is_closed();
        Rules { is_brief: has_ended || self.held.len() > MAX_KEYS, ..self.rules }
    }

    /// A task is never replaced by another one for the same units, because nobody knows what its trip has done.
    fn patience(&self) -> u64 {
        u64::MAX
    }

    async fn make(
        &self,
        route: &Route,
        key: &str,
        trip: &Trip,
        not_after: Nanos,
    ) -> Result<Option<(u64, Touched)>, RedisError> {
        let name = self.names.of(trip.lease);
        self.script.execute(route, key, not_after, &name, &trip.ask).await
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.is_dropped.store(true, Ordering::Release);
        self.0.wake();
    }
}
