//! Leases: a process takes several units of a key at once, and spends them without further trips.

mod bucket;
mod held;
#[cfg(any(test, feature = "test-util"))]
pub(super) mod reference;
mod script;
#[cfg(test)]
mod tests;
mod trips;
mod wait;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;

use self::bucket::Bucket;
use self::held::{Action, Rules};
use self::trips::{Leases, Shared};
use super::error::{RedisError, RedisErrorKind};
use super::limit::{RedisKey, RedisReply};
use super::plan::Plan;
use super::store::RedisStore;
use super::wait_queue::WaitQueues;
use tower_throttle::Decision;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::Nanos;
use tower_throttle::stats::StoreStats;
use tower_throttle::store::SharedKey;
use tower_throttle::store::{
    Acquired, Attempt, CheckStore, Denied, KeyedStore, MakeStore, Permit, Reservation, Store, StoreSettings,
};
use tower_throttle::store_support::holds_requests;

/// A [`RedisStore`] whose limiters lease units. [`RedisStore::lease`] creates this store.
#[derive(Clone, Debug)]
pub struct WithLeases {
    store: RedisStore,
    units: u64,
}

/// The store of one limiter that leases units. [`Builder::store`](tower_throttle::limiter::Builder::store) creates this
/// store from the result of [`RedisStore::lease`].
#[derive(Clone)]
pub struct LeasedLimit {
    owner: Arc<Owner>,
}

/// When the last clone of the limiter is dropped, the limiter's tasks return the units that were not spent.
struct Owner(Arc<Shared>);

impl RedisStore {
    /// Returns a store for [`Builder::store`](tower_throttle::limiter::Builder::store) whose limiters take up to
    /// `units` units of a key at once. These units are a *lease*: the limiter spends them without further trips.
    ///
    /// A call whose units are leased is decided at once. So a key with many calls needs about one trip for every
    /// `units` calls. A process leases units only of keys that it used within the last second: first 1 unit, and twice
    /// as many in each further trip, up to `units`. A lease has at most half of the units that the bucket has left, so
    /// leases get smaller while few units are left.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle_redis::RedisStore;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let redis = RedisStore::connect("redis://10.0.0.5").await?;
    /// let bucket = TokenBucket::new(Quota::per_second(1_000).burst(200));
    /// let limiter = RateLimiter::builder(bucket).name("api").store(redis.lease(10)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Guarantees
    ///
    /// All processes together never admit a call that a single bucket would deny. The processes may deny calls that a
    /// single bucket would admit, because other processes hold the units. Each process holds at most `units` units of a
    /// key. One second after a process has leased units, or when the limiter is dropped, the process returns the units
    /// that it has not spent, if the runtime still runs. If a process ends without returning units, or a reply is lost,
    /// these units count as spent. Their refill begins with the first trip of any process that is made three seconds or
    /// more after they were leased. If the server's clock was set back in between, these three seconds begin with the
    /// first trip after the clock was set back.
    ///
    /// These guarantees require that the server's clock is not set forward, and that the process is not suspended
    /// together with its monotonic clock, as a virtual machine may be. Otherwise the units of a lease may be spent
    /// after its end. Then the excess is at most the units of the leases.
    ///
    /// The methods of a limiter keep their meaning, except:
    ///
    /// | method | with leases |
    /// |---|---|
    /// | `remaining` and `reset_after` of a decision | are those of the last trip, without the later calls of other processes |
    /// | `retry_after` of a denial | may be up to 75 ms longer, so that the next trip takes several units. `None` if the call has to wait for units that other processes hold, or behind queued calls |
    /// | `acquire` and its variants | the calls of a process are admitted in the order in which they arrived; the processes are served in no particular order. A call that is cancelled while it waits charges nothing |
    /// | `peek`, `refund`, `reset` | each makes a trip. `reset` gives back all units except those that other processes hold |
    /// | `replace`, `settle` of a layer, `fallback` | do not compile |
    ///
    /// Other algorithms do not compile:
    ///
    /// ```compile_fail,E0277
    /// # use tower_throttle::algorithm::FixedWindow;
    /// # use tower_throttle_redis::RedisStore;
    /// # use tower_throttle::{Quota, RateLimiter};
    /// # fn example(redis: RedisStore) {
    /// RateLimiter::builder(FixedWindow::new(Quota::per_second(10))).store(redis.lease(10));
    /// # }
    /// ```
    ///
    /// All limiters that share a name must lease units, and have the same quota. A call fails with
    /// [`RedisErrorKind::Foreign`] if the value of its key was written by a limiter that leases no units or has another
    /// quota. A call of a limiter without leases fails in the same way if the value was written by a limiter with
    /// leases. So choose a new name when you begin to use leases, or when you change the quota.
    ///
    /// # Permissions
    ///
    /// The Redis user needs the permission to run EXISTS, HMGET, HGETALL, HSET, HDEL and PEXPIRE, in addition to the
    /// commands of limiters without leases: EVALSHA, EVAL, TIME, GET, PSETEX and DEL.
    ///
    /// # Memory
    ///
    /// For each limiter, a process holds units of at most 10,000 keys at once, each for about a second.
    ///
    /// # Errors
    ///
    /// A limiter is not built if `units` is 0, or if its bucket needs numbers above 2^53.
    #[must_use]
    pub fn lease(self, units: u64) -> WithLeases {
        WithLeases { store: self, units }
    }
}

impl MakeStore<TokenBucket> for WithLeases {
    type Store = LeasedLimit;
    type Error = RedisError;

    /// Creates the store of a limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no name, if another limiter of this store has the same name, but another
    /// quota or no leases, if a lease has 0 units, or if the bucket needs numbers above 2^53.
    fn make_store(self, settings: StoreSettings<TokenBucket>) -> Result<LeasedLimit, RedisError> {
        let Self { store, units } = self;
        let StoreSettings { algorithm, name, .. } = settings;
        if units == 0 {
            return Err(RedisError::new(RedisErrorKind::Config, "a lease has at least one unit: `lease(1)`"));
        }
        let source = store.links.any().source;
        let prefix = Plan::new(algorithm.clone(), source, false)?.prefix().to_owned();
        let bucket = Bucket::new(&algorithm).ok_or_else(|| {
            let detail = "the bucket is too large for leases, whose script computes with numbers up to 2^53: \
                give a quota with a smaller burst or a shorter period, or call no `lease`";
            RedisError::new(RedisErrorKind::Algorithm, detail)
        })?;
        let key_text = store.settings.key_text(name.as_deref().unwrap_or_default());
        let rules = Rules { bucket, units, remember: Nanos::from(store.settings.remember_denials).0 };
        let shared = Shared {
            _name: store.names.register(name, &format!("{prefix}, with leases"))?,
            links: store.links,
            key_text,
            algorithm,
            rules,
            prefix,
            script: script::script(source),
            held: DashMap::new(),
            leases: Leases::new(),
            queues: WaitQueues::default(),
            is_closed: AtomicBool::new(false),
        };
        Ok(LeasedLimit { owner: Arc::new(Owner(Arc::new(shared))) })
    }
}

impl LeasedLimit {
    fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.owner.0)
    }
}

impl Store<TokenBucket> for LeasedLimit {
    type Key = RedisKey;
    type Error = RedisError;
    type Wait = RedisReply<(Decision, Reservation)>;

    fn algorithm(&self) -> Cow<'_, TokenBucket> {
        Cow::Borrowed(&self.owner.0.algorithm)
    }

    fn stats(&self) -> StoreStats {
        self.owner.0.links.stats()
    }

    fn acquire(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
        let (shared, cost) = (self.shared(), attempt.cost());
        let may_wait = attempt.may_wait() || holds_requests(&shared.algorithm);
        if !may_wait && let Some(decision) = shared.decide(&key, cost) {
            return Acquired::Ready(decision, Reservation::default());
        }
        let max_wait = attempt.max_wait().map_or(u64::MAX, |wait| Nanos::from(wait).0);
        Acquired::Pending(Box::pin(async move {
            let decision = match may_wait {
                true => shared.wait(&key, cost, max_wait).await?,
                false => shared.check(&key, cost).await?,
            };
            Ok((decision, Reservation::default()))
        }))
    }
}

impl<K: SharedKey + ?Sized> KeyedStore<TokenBucket, K> for LeasedLimit {
    fn key(&self, key: &K) -> RedisKey {
        RedisKey(self.owner.0.key_text.of(key).into())
    }
}

impl CheckStore<TokenBucket> for LeasedLimit {
    type Reply<T: Send + 'static> = RedisReply<T>;
    type Output<T> = Result<T, RedisError>;

    fn output<T>(result: Result<T, RedisError>) -> Result<T, RedisError> {
        result
    }

    fn check(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, TokenBucket>) -> RedisReply<Decision> {
        let (shared, cost) = (self.shared(), attempt.cost());
        Box::pin(async move { shared.check(&key, cost).await })
    }

    /// Returns an empty permit for an admitted call, because a token bucket does not limit calls in progress.
    fn try_acquire_permit(
        &self,
        key: RedisKey,
        attempt: Attempt<'_, TokenBucket>,
    ) -> RedisReply<Result<Permit, Denied>> {
        let decision = self.check(key, attempt);
        Box::pin(async move { Ok(Permit::decided(decision.await?, Reservation::default())) })
    }

    fn peek(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, TokenBucket>) -> RedisReply<Decision> {
        let (shared, cost) = (self.shared(), attempt.cost());
        Box::pin(async move { shared.ask(&key, Action::Peek, cost).await })
    }

    fn refund(&self, RedisKey(key): RedisKey, cost: u64) -> RedisReply<()> {
        let shared = self.shared();
        Box::pin(async move { shared.ask(&key, Action::Refund, cost).await.map(|_| ()) })
    }

    /// Refunds all units except those that are leased to other processes.
    fn reset(&self, key: RedisKey) -> RedisReply<()> {
        self.refund(key, u64::MAX)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.held.iter().for_each(|held| held.wake.notify_one());
    }
}

impl fmt::Debug for LeasedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedLimit").field("key", &self.owner.0.key_text).finish_non_exhaustive()
    }
}
