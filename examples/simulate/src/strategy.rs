//! The strategies by which many machines can have one limit. In most of them, the machines share a *center*: Redis, or
//! a token server.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::{Quota, RateLimiter};
use tower_throttle_redis::RedisInProcess;
use tower_throttle_redis::{RedisLeases, RedisLimiter, RedisStore};

/// The time from a machine to the center and back: two ticks of tokio's timer.
pub(crate) const ROUND_TRIP: Duration = Duration::from_millis(2);

/// The time for which a call waits for the center. A call that gets no reply within this time is rejected.
const DEADLINE: Duration = Duration::from_millis(50);

/// The number of units that a machine leases at once.
const LEASE: u64 = 10;

const KEY: &str = "all";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each machine has its share of the quota, in memory.
    Share,
    /// Each call asks one server that has the limit in memory.
    TokenServer,
    /// Each call makes a trip of its own to Redis, unless the connection that it uses remembers a denial.
    Redis,
    /// Calls of a machine that arrive during a trip to Redis share the next trip, as with `RedisLimiter`.
    SingleFlight,
    /// A machine takes several units at once, as with `RedisLeases`.
    Leases,
}

pub(crate) const KINDS: [Kind; 5] =
    [Kind::Share, Kind::TokenServer, Kind::Redis, Kind::SingleFlight, Kind::Leases];

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Share => "share per machine",
            Self::TokenServer => "token server",
            Self::Redis => "Redis, a trip per call",
            Self::SingleFlight => "Redis, single flight",
            Self::Leases => "Redis, leases of 10",
        }
    }
}

type Bucket = TokenBucket;

/// A limiter whose bucket is in Redis.
type InRedis = RedisLimiter<Bucket>;

/// All machines of a scenario, with one strategy.
pub(crate) struct Machines {
    kind: Kind,
    quota: Quota,
    redis: Vec<RedisInProcess>,
    in_memory: Vec<RateLimiter<Bucket>>,
    in_redis: Vec<InRedis>,
    leased: Vec<RedisLeases>,
    /// For each machine, its connections on which no call is under way. This field is used if each call has a
    /// connection of its own.
    idle: Vec<Mutex<Vec<InRedis>>>,
    server: watch::Sender<bool>,
    trips: watch::Sender<u64>,
}

fn shared(quota: Quota, store: RedisStore) -> InRedis {
    store.limiter(KEY, TokenBucket::new(quota)).build().expect("the settings are right")
}

impl Machines {
    pub(crate) fn new(kind: Kind, quota: Quota, count: usize) -> Self {
        let first = RedisInProcess::new(ROUND_TRIP);
        let redis: Vec<_> = (0..count).map(|_| first.machine()).collect();
        let stores = redis.iter().map(RedisInProcess::connect).collect();
        Self { redis, ..Self::on(kind, quota, stores) }
    }

    /// Creates machines with these stores, which are on one server.
    pub(crate) fn on(kind: Kind, quota: Quota, stores: Vec<RedisStore>) -> Self {
        let count = stores.len();
        let share = Quota::per(quota.limit(), quota.period() * count as u32).expect("the period is short");
        let share = share.burst((quota.capacity() / count as u64).max(1));
        let in_memory = match kind {
            Kind::Share => (0..count).map(|_| RateLimiter::new(TokenBucket::new(share))).collect(),
            Kind::TokenServer => vec![RateLimiter::new(TokenBucket::new(quota))],
            _ => Vec::new(),
        };
        let lease = |store: RedisStore| {
            let builder = store.limiter(KEY, TokenBucket::new(quota)).lease(LEASE);
            builder.build().expect("the settings are right")
        };
        let (mut in_redis, mut leased) = (Vec::new(), Vec::new());
        match kind {
            Kind::SingleFlight => in_redis = stores.into_iter().map(|store| shared(quota, store)).collect(),
            Kind::Leases => leased = stores.into_iter().map(lease).collect(),
            Kind::Share | Kind::TokenServer | Kind::Redis => {}
        }
        let (server, _) = watch::channel(true);
        let (trips, _) = watch::channel(0);
        Self {
            kind,
            quota,
            redis: Vec::new(),
            in_memory,
            in_redis,
            leased,
            idle: (0..count).map(|_| Mutex::default()).collect(),
            server,
            trips,
        }
    }

    /// Decides a call on a machine. Returns `None` if there was no decision before the deadline.
    pub(crate) async fn is_admitted(&self, machine: usize) -> Option<bool> {
        match self.kind {
            Kind::Share => Some(self.in_memory[machine].check(KEY).is_allowed()),
            Kind::TokenServer => timeout(DEADLINE, self.ask_server()).await.ok(),
            Kind::Redis => {
                let idle = self.idle[machine].lock().expect("no holder panics").pop();
                let limiter = idle.unwrap_or_else(|| shared(self.quota, self.redis[machine].connect()));
                let decision = limiter.check(KEY).await;
                self.idle[machine].lock().expect("no holder panics").push(limiter);
                decision.ok().map(|decision| decision.is_allowed())
            }
            Kind::SingleFlight => Some(self.in_redis[machine].check(KEY).await.ok()?.is_allowed()),
            Kind::Leases => Some(self.leased[machine].check(KEY).await.ok()?.is_allowed()),
        }
    }

    async fn ask_server(&self) -> bool {
        sleep(ROUND_TRIP / 2).await;
        // The sender is a part of `self`, so the channel is open, and this does not fail.
        let _ = self.server.subscribe().wait_for(|is_running| *is_running).await;
        self.trips.send_modify(|trips| *trips += 1);
        let decision = self.in_memory[0].check(KEY);
        sleep(ROUND_TRIP / 2).await;
        decision.is_allowed()
    }

    /// Stops the center, or starts it again.
    pub(crate) fn set_center_running(&self, is_running: bool) {
        self.server.send_replace(is_running);
        self.redis[0].set_running(is_running);
    }

    /// Cuts off a machine that has failed.
    pub(crate) fn fail(&self, machine: usize) {
        self.redis[machine].cut_off();
    }

    /// Returns the number of trips to the center.
    pub(crate) fn trips(&self) -> u64 {
        match self.kind {
            Kind::Share => 0,
            Kind::TokenServer => *self.trips.borrow(),
            // Trips to a real server are not counted.
            _ => self.redis.first().map_or(0, RedisInProcess::trips),
        }
    }
}
