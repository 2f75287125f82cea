//! The engine without HTTP, and the contract of a limiter.
//!
//! A [`RateLimiter`] is an [algorithm](crate::algorithm) and a [clock](crate::clock) with the state of all keys, in
//! memory. [`RateLimiter::new`] creates a limiter, and a [`Builder`] creates a limiter with other bounds or another
//! clock. The crate `tower-throttle-redis` has limiters with state in Redis.
//!
//! A layer works with any type that implements [`Limiter`] and [`LimiterFor`]. Such a type promises three things, and
//! an [`Algorithm`] relies on them:
//!
//! 1. **Exclusive access.** One call at a time changes the state of a key. No admission is computed from state that
//!    another call is changing.
//! 2. **Removal changes no decision.** The state of a key may be dropped only when the algorithm reports that the state
//!    is [fresh](crate::algorithm::Algorithm::is_fresh). If the limiter has no room for a new key, a documented policy
//!    may drop other states: for a [`RateLimiter`], this policy is [`OnFull`].
//! 3. **All or nothing.** A call that is denied charges nothing. In a limiter that makes its decisions in the process,
//!    such as [`RateLimiter`], a call that is cancelled while it is queued charges nothing either. [`Limiter::Wait`]
//!    says what other limiters promise.
//!
//! # A limiter of your own
//!
//! This limiter has one budget for all callers, and no queue. The guide has [one with a map of
//! keys](crate::guide::engine#a-limiter-of-your-own), for calls in progress.
//!
//! ```
//! use std::convert::Infallible;
//! use std::future::Pending;
//! use std::sync::{Arc, Mutex};
//!
//! use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, TokenBucket};
//! use tower_throttle::clock::AnyClock;
//! use tower_throttle::key::PeerIp;
//! use tower_throttle::limiter::{Acquired, Attempt, Decided, Limiter, LimiterFor, Reservation};
//! use tower_throttle::stats::LimiterStats;
//! use tower_throttle::{Decision, Quota, RateLimitLayer};
//!
//! #[derive(Clone)]
//! struct OneBudget {
//!     algorithm: TokenBucket,
//!     info: Arc<AlgorithmInfo>,
//!     clock: AnyClock,
//!     // `None` once the limiter is closed
//!     state: Arc<Mutex<Option<<TokenBucket as Algorithm>::State>>>,
//! }
//!
//! impl Limiter for OneBudget {
//!     type Algorithm = TokenBucket;
//!     type Error = Infallible;
//!     type Wait = Pending<Result<Decided, Infallible>>;
//!
//!     fn info(&self) -> Arc<AlgorithmInfo> {
//!         Arc::clone(&self.info)
//!     }
//!     fn stats(&self) -> LimiterStats {
//!         LimiterStats::default()
//!     }
//!     fn close(&self) {
//!         *self.state.lock().unwrap() = None;
//!     }
//! }
//!
//! impl<K: ?Sized> LimiterFor<K> for OneBudget {
//!     fn acquire(&self, _: &K, attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
//!         let decision = match &mut *self.state.lock().unwrap() {
//!             Some(state) => self.algorithm.check(state, self.clock.now(), attempt.cost()),
//!             None => Decision::closed(self.info.quotas()[0].quota),
//!         };
//!         Acquired::Ready(decision, Reservation::default())
//!     }
//! }
//!
//! let (algorithm, clock) = (TokenBucket::new(Quota::per_minute(2)), AnyClock::default());
//! let state = algorithm.new_state(clock.now(), clock.now());
//! let limiter = OneBudget {
//!     info: AlgorithmInfo::of(&algorithm),
//!     state: Arc::new(Mutex::new(Some(state))),
//!     algorithm,
//!     clock,
//! };
//! let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter);
//! # use tower::{Layer, ServiceExt, service_fn};
//! # let service = layer.layer(service_fn(async |_: http::Request<String>| {
//! #     Ok::<_, Infallible>(http::Response::new(String::new()))
//! # }));
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # let ask = |peer: &str| {
//! #     let mut request = http::Request::new(String::new());
//! #     request.extensions_mut().insert(peer.parse::<std::net::SocketAddr>().unwrap());
//! #     runtime.block_on(service.clone().oneshot(request)).unwrap().status().as_u16()
//! # };
//! # assert_eq!(["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"].map(ask), [200, 200, 429]);
//! # layer.limiter().close();
//! # assert_eq!(ask("192.0.2.1:1"), 503);
//! ```
//!
//! The crate [`tower-throttle-contract`](https://docs.rs/tower-throttle-contract) has tests that a limiter of your own
//! must pass. A limiter that can do more also does the following:
//!
//! - If its algorithm can be replaced, it implements [`Limiter::generation`]. So a layer reports the quotas of the new
//!   algorithm.
//! - If its algorithm can queue calls, it returns [`Acquired::Pending`] for a call that waits.
//! - If it implements [`Settles`], its layers can [settle](crate::middleware::RateLimitLayer::settle) the cost of a
//!   call.
//!
//! A limiter on other machines requires a key that can be written as a string which is the same on all machines: see
//! [`SharedKey`]. std's `Hash` may differ between machines.

mod attempt;
mod call;
mod charge;
mod contract;
mod decide;
mod eviction;
mod fair;
mod fingerprint;
pub(crate) mod joint;
mod latest_denial;
pub(crate) mod observed;
mod options;
mod queue;
pub(crate) mod rate_limiter;
pub(crate) mod reservation;
mod resets;
mod room;
mod shard;
mod shared_key;
mod slots;
mod table;
mod wait;

use std::sync::Arc;
use std::task::Waker;

use crate::algorithm::{Algorithm, Semaphore, Usage};
use crate::clock::{AnyClock, Nanos};
use crate::stats::{CallCounts, LimiterStats, StoreStats, UnitCounts};
use crate::sys::lock::atomic::{AtomicU64, Ordering};
use observed::Observed;
use resets::ChargeTime;
use room::Room;

pub use crate::decision::Denied;
pub use attempt::Attempt;
pub use call::{Acquire, AcquirePermit, Call};
pub use contract::{Acquired, Decided, Limiter, LimiterFor, Settles};
pub use fair::{FairAcquire, FairBuilder, FairCall, FairLimiter};
pub use options::{OnClose, OnFull};
pub use rate_limiter::Builder;
pub(crate) use rate_limiter::RateLimiter;
pub use reservation::{Permit, Reservation};
pub(crate) use shared_key::text_of;
pub use shared_key::{KeySecret, KeyText, KeyWriter, SharedKey};

// These items occur in the signatures of limiters.
pub use self::{fair::FairWait, fingerprint::MemoryKey, shared_key::KeyedHash, wait::QueuedAcquire};

// What an operation on a key borrows beside its shard: [`Shared`] by all operations, [`ShardConfig`] by those of one
// shard, and [`Access`] by one operation. All files of this folder see their fields.

/// The part of a limiter that all its shards have in common.
#[derive(Debug)]
struct Shared {
    observed: Observed,
    clock: AnyClock,
    room: Room,
    /// The number of waiters of all keys, and the maximum of that number.
    waiting: Semaphore,
    /// The number of paused keys, and the maximum of that number.
    paused: Semaphore,
    /// The maximum debt of a key, in units.
    max_debt: u64,
    on_close: OnClose,
    /// The number of resets, of a key or of all keys of a shard. It changes only while the shard is locked.
    resets: AtomicU64,
    /// The counts of all calls, including those of layers.
    calls: Arc<CallCounts>,
    /// The counts of the units that were charged or given back after the fact.
    units: UnitCounts,
}

/// The settings that apply to all keys of a shard. All shards share them until the algorithm is replaced or the limiter
/// is closed.
#[derive(Clone, Debug)]
struct ShardConfig<A: Algorithm> {
    algorithm: A,
    /// The usage up to which a key is evicted without a comparison with other keys.
    one_unit: Usage,
    /// The state with which a new key begins. It is a new state of the first algorithm that was converted at each
    /// replacement, as the states of known keys were. `None` until the algorithm is replaced.
    first: Option<A::State>,
    closed: bool,
}

/// An operation on the keys of a locked shard.
struct Access<'a, A> {
    shared: &'a Shared,
    /// The algorithm that the call chose. `None` if the call uses the limiter's algorithm.
    tier: Option<&'a A>,
    now: Nanos,
    /// The wakers to wake once no lock is held, because a waker may run any code.
    wake: &'a mut Vec<Waker>,
}

impl Shared {
    /// Counts a reset, while the shard is locked. Returns the number of resets with this one.
    fn count_reset(&self) -> u64 {
        self.resets.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns when a call was charged whose key is still locked: at the clock reading `at`.
    fn charge_time(&self, at: Nanos) -> ChargeTime {
        ChargeTime { at, resets: self.resets.load(Ordering::Relaxed) }
    }

    /// Logs a warning if the table was found full, and a warning is due. The caller must hold no lock.
    #[inline]
    fn warn_if_full(&self) {
        self.room.warn_if_full(&self.observed);
    }

    fn stats(&self) -> LimiterStats {
        LimiterStats { calls: self.calls.stats(), store: self.store_stats(), units: self.units.stats() }
    }

    /// Returns the counts of the key table.
    fn store_stats(&self) -> StoreStats {
        StoreStats { waiting: self.waiting.len(), ..self.room.stats() }
    }
}

impl<A: Algorithm> ShardConfig<A> {
    /// Returns the algorithm of a call: `tier`, or the limiter's algorithm if `tier` is `None`.
    #[inline]
    fn algorithm_of<'a>(&'a self, tier: Option<&'a A>) -> &'a A {
        tier.unwrap_or(&self.algorithm)
    }

    /// Returns the state of a key that is new or was removed. The time of the state is not before the latest reading at
    /// which any key was removed, because a removed key may have observed that reading.
    #[inline]
    fn new_state(&self, tier: Option<&A>, room: &Room, now: Nanos) -> A::State {
        let now = room.time_of_new_key(now);
        let Some(mut first) = self.first.clone() else {
            return self.algorithm_of(tier).new_state(room.created_at, now);
        };
        // This advances the state to `now`.
        let _ = self.algorithm.peek(&mut first, now, 0);
        first
    }

    /// Returns whether the state of a new key is fresh. The new state of a bucket that starts empty is not fresh. In
    /// that case no key is removed, because a removed key would later get a new state with fewer units.
    fn may_forget(&self, room: &Room, now: Nanos) -> bool {
        self.algorithm.is_fresh(&self.new_state(None, room, now), now)
    }
}
