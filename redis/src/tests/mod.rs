mod against_memory;
mod closed;
mod counted;
mod differential;
pub(super) mod events;
mod fallback;
mod faults;
mod flights;
mod joined;
mod kept;
mod late;
mod outages;
mod own_trips;
mod queues;
mod quotas;
#[path = "../../../tests/support/redis_connection.rs"]
pub(super) mod redis_connection;
#[path = "../../../tests/support/redis_server/mod.rs"]
pub(super) mod redis_server;
mod runtimes;
mod settled;
mod settlements;
mod staged;
mod threads;

use std::time::Duration;

use super::connection::Connection;
use super::limiter::RedisLimiter;
use super::script::TimeSource;
use super::store::{RedisStore, RedisStoreBuilder};
use tower_throttle::algorithm::StoredAlgorithm;

fn settings(scripts: bool, remember_denials: Duration) -> impl Fn(RedisStoreBuilder) -> RedisStoreBuilder {
    move |store| {
        let store = store.remember_denials(remember_denials);
        if scripts { store } else { store.without_scripts() }
    }
}

fn store(
    connection: impl Connection,
    settings: impl Fn(RedisStoreBuilder) -> RedisStoreBuilder,
) -> RedisStore {
    settings(RedisStoreBuilder::over(connection, TimeSource::Server)).connect_lazily().unwrap()
}

fn limiter<A: StoredAlgorithm>(store: &RedisStore, algorithm: A) -> RedisLimiter<A> {
    store.limiter("test", algorithm).build().unwrap()
}

/// A simple generator of random numbers (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
