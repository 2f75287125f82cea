//! Permits, which limit the calls in progress of several processes.

mod calls;
mod listener;
mod permit;
mod record;
mod records;
mod results;
mod schedule;
mod script;
mod steps;
#[cfg(test)]
mod tests;
mod trips;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;

use self::record::Rules;
use self::script::{Arguments, MAX_UNITS, PREFIX};
use self::trips::Shared;
use super::error::{RedisError, RedisErrorKind};
use super::limit::{RedisKey, RedisReply};
use super::store::{MakeKept, RedisStore};
use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, Concurrency, QueueOverflow};
use tower_throttle::clock::Nanos;
use tower_throttle::stats::StoreStats;
use tower_throttle::store::SharedKey;
use tower_throttle::store::{
    Acquired, Attempt, CheckStore, Denied, KeyedStore, Permit, ReleaseStore, Reservation, Store,
    StoreSettings,
};
use tower_throttle::store_support::{AsPermits, holds_requests, reservation_of};

pub(super) use listener::Listener;

/// The maximum number of waiters of a key, unless the algorithm sets one.
const MAX_WAITING: u64 = 10_000;

/// The store of one limiter with a [`Concurrency`] in a [`RedisStore`]. This store limits the calls in progress of all
/// processes. [`Builder::store`](tower_throttle::limiter::Builder::store) creates it.
///
/// For each key, the calls of all processes take permits from one limit, and wait in one queue in the order in which
/// the server has received them.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_throttle::RateLimiter;
/// use tower_throttle::algorithm::Concurrency;
/// use tower_throttle_redis::RedisStore;
///
/// let redis = RedisStore::connect("redis://10.0.0.5").await?;
/// let exports = RateLimiter::builder(Concurrency::per_key(1)).name("exports").store(redis).build()?;
/// let permit = exports.acquire_permit("user:42").await??;
/// let token = permit.fencing_token();
/// // Other processes wait until this permit is dropped, or until this process fails.
/// drop(permit);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// The server keeps a permit, or the place of a waiter, for [ten seconds](super::RedisStoreBuilder::permit_lease)
/// without a renewal. Each process renews its permits and places in the background, whenever a third of this time has
/// passed. So if a process ends without returning its permits, they are free again after at most this time, and its
/// places in the queue are gone.
///
/// A process that cannot reach the server, or that was suspended, may lose a permit although its call goes on. Then the
/// future of [`Permit::lost`] is ready, and [`Permit::fencing_token`] tells a resource which of two calls has the newer
/// permit. While the server cannot be reached, waiters keep their places for at most the same ten seconds since the
/// last renewal. If the server has lost its data, the permits are lost when they would be renewed, and waiters are
/// queued again, or denied if the queue is full.
///
/// When a permit is free, the first waiter gets it. The server sends a message to the process of this waiter, on a
/// connection that each process opens when a call first waits. Messages may be lost. So for each key, each process also
/// asks the server about the first of its own waiters. It asks at least once a second if at most three calls are ahead
/// of this waiter, and otherwise at least every five seconds. A call whose future is not polled still gets its permit,
/// and holds it until the future is dropped.
///
/// # What is not promised
///
/// - More permits than the limit may be held after the server's clock was set forward, after the server has lost its
///   data, after a failover to a replica that lacks the latest permits, or if the clock of a process stands still while
///   the process is suspended, as that of a virtual machine may. In these cases, waiters may also lose their places,
///   and are queued again in another order, or denied if the queue is full.
/// - Fencing tokens increase in all these cases, unless the server's clock was set back as well, or the clock of the
///   replica is behind.
/// - The permits of a key are renewed on the runtime of one of the calls of the key. If this runtime ends, or is not
///   driven any more, the permits are lost when they expire, unless another call for the key is made, ends or waits on
///   another runtime before they expire.
/// - The layer does not end a request whose permit was lost, and does not tell its handler the fencing token.
/// - A permit that is dropped while the server cannot be reached stays taken until the server can be reached, or until
///   the permit expires.
///
/// # Limits of other kinds
///
/// [`total`](Concurrency::total) and [`DropOldest`](QueueOverflow::DropOldest) are not possible in Redis: the limiter's
/// `build` returns an error. [`replace`](tower_throttle::RateLimiter::replace), [`fallback`](RedisStore::fallback),
/// tuples with this algorithm, and joined layers do not compile. If the algorithm does not bound its queue, at most
/// 10,000 calls of all processes wait for a key.
///
/// # Permissions
///
/// The Redis user needs the permission to run EVALSHA, EVAL, TIME, EXISTS, HGET, HGETALL, HSET, HDEL and PEXPIRE. For
/// [`connect`](super::RedisStoreBuilder::connect), the user also needs GET. For messages, the user needs PUBLISH and
/// SUBSCRIBE, and access to the channels whose names begin with `throttle:permits:` (or another
/// [prefix](super::RedisStoreBuilder::prefix)). Without the permissions for messages, no messages arrive, and processes
/// only ask the server.
#[derive(Clone)]
pub struct RedisPermits {
    owner: Arc<Owner>,
}

/// When the last clone of the limiter is dropped, its forgotten permits are returned.
struct Owner(Arc<Shared>);

impl MakeKept<Concurrency, AsPermits> for RedisStore {
    type Store = RedisPermits;

    /// Creates the store of a limiter. Returns an error also if the algorithm has a total or drops the oldest waiter,
    /// or if the deadline of calls is longer than a quarter of the lease of permits.
    fn make(self, settings: StoreSettings<Concurrency>) -> Result<RedisPermits, RedisError> {
        let StoreSettings { algorithm, name, .. } = settings;
        let error = |detail: &str| RedisError::new(RedisErrorKind::Algorithm, detail);
        if algorithm.limit_in_total().is_some() {
            return Err(error(
                "permits in Redis have no total for all keys: call no `total`, and wrap the layer in another \
                whose key is `Global`",
            ));
        }
        let (deadline, source) = (self.links.any().deadline, self.links.any().source);
        let lease = self.settings.permit_lease;
        if lease / 4 < deadline {
            let detail = format!(
                "a permit is kept for {lease:?} unless it is renewed, which is too short for a deadline of {deadline:?}: call \
                 `permit_lease` with at least four times the deadline"
            );
            return Err(RedisError::new(RedisErrorKind::Config, detail));
        }
        let queue = algorithm.queue_config();
        if queue.is_some_and(|queue| queue.overflow() == QueueOverflow::DropOldest) {
            return Err(error(
                "the queue for permits in Redis denies new calls when it is full: call no `overflow`",
            ));
        }
        let places = match queue.map(|queue| queue.places()) {
            None | Some(u64::MAX) => MAX_WAITING,
            Some(places) => places.min(MAX_UNITS),
        };
        let limit = algorithm.limit_per_key().min(MAX_UNITS);
        let arguments = Arguments {
            process: self.listener.process().to_owned(),
            limit,
            lease: Nanos::from(lease).0 / 1_000,
            places,
            channel: self.settings.channel("permits"),
        };
        let shared = Shared {
            key_text: self.settings.key_text(name.as_deref().unwrap_or_default()),
            _name: self.names.register(name, &format!("{PREFIX} {limit}"))?,
            script: script::script(source),
            links: self.links,
            algorithm,
            rules: Rules { limit, lease: Nanos::from(lease).0, deadline: Nanos::from(deadline).0 },
            arguments,
            listener: self.listener,
            keys: DashMap::new(),
            is_closed: AtomicBool::new(false),
        };
        Ok(RedisPermits { owner: Arc::new(Owner(Arc::new(shared))) })
    }
}

impl RedisPermits {
    fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.owner.0)
    }
}

impl Store<Concurrency> for RedisPermits {
    type Key = RedisKey;
    type Error = RedisError;
    type Wait = RedisReply<(Decision, Reservation)>;

    fn algorithm(&self) -> Cow<'_, Concurrency> {
        Cow::Borrowed(&self.owner.0.algorithm)
    }

    fn stats(&self) -> StoreStats {
        let Shared { links, keys, .. } = &*self.owner.0;
        let waiting = keys.iter().map(|records| records.lock().waiting()).sum();
        let mut stats = links.stats();
        stats.waiting = waiting;
        stats
    }

    fn acquire(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, Concurrency>) -> Acquired<Self::Wait> {
        let (shared, cost) = (self.shared(), attempt.cost());
        let may_wait = attempt.may_wait() || holds_requests(&shared.algorithm);
        let max_wait = attempt.max_wait().map_or(u64::MAX, |wait| Nanos::from(wait).0);
        let longest = shared.algorithm.queue_config().map_or(0, |queue| queue.max_wait());
        let can_wait = may_wait && shared.arguments.places > 0;
        let max_wait = can_wait.then_some(max_wait.min(longest)).filter(|wait| *wait > 0);
        Acquired::Pending(Box::pin(async move {
            let (decision, permit) = shared.acquire(&key, cost, max_wait).await?;
            Ok((decision, permit.map(reservation_of).unwrap_or_default()))
        }))
    }
}

impl<K: SharedKey + ?Sized> KeyedStore<Concurrency, K> for RedisPermits {
    fn key(&self, key: &K) -> RedisKey {
        RedisKey(self.owner.0.key_text.of(key).into())
    }
}

impl CheckStore<Concurrency> for RedisPermits {
    type Reply<T: Send + 'static> = RedisReply<T>;
    type Output<T> = Result<T, RedisError>;

    fn output<T>(result: Result<T, RedisError>) -> Result<T, RedisError> {
        result
    }

    /// The process renews the permit of an admitted call until the call is released by
    /// [`release`](tower_throttle::RateLimiter::release).
    fn check(&self, key: RedisKey, attempt: Attempt<'_, Concurrency>) -> RedisReply<Decision> {
        let (shared, cost) = (self.shared(), attempt.cost());
        Box::pin(async move {
            let (decision, permit) = shared.acquire(&key.0, cost, None).await?;
            if let Some(permit) = permit {
                reservation_of(permit).forget();
            }
            Ok(decision)
        })
    }

    fn try_acquire_permit(
        &self,
        key: RedisKey,
        attempt: Attempt<'_, Concurrency>,
    ) -> RedisReply<Result<Permit, Denied>> {
        let (shared, cost) = (self.shared(), attempt.cost());
        Box::pin(async move {
            let (decision, permit) = shared.acquire(&key.0, cost, None).await?;
            Ok(Permit::decided(decision, permit.map(reservation_of).unwrap_or_default()))
        })
    }

    fn peek(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, Concurrency>) -> RedisReply<Decision> {
        let (shared, cost) = (self.shared(), attempt.cost());
        Box::pin(async move { shared.peek(&key, cost).await })
    }

    /// Does nothing: the units of a call are released only when the call ends.
    fn refund(&self, _: RedisKey, _: u64) -> RedisReply<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Does nothing: calls in progress stay counted.
    fn reset(&self, _: RedisKey) -> RedisReply<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Releases calls of this process. The next trip of the key returns their permits. `release` does not wait for this
/// trip.
impl ReleaseStore<Concurrency> for RedisPermits {
    fn release(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, Concurrency>) -> RedisReply<()> {
        let (shared, cost) = (self.shared(), attempt.cost());
        Box::pin(async move { shared.release(&key, cost) })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.keys.iter().for_each(|records| records.wake.notify_one());
    }
}

impl fmt::Debug for RedisPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPermits").field("key", &self.owner.0.key_text).finish_non_exhaustive()
    }
}
