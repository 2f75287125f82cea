mod against_memory;
mod differential;
mod fallback;
mod faults;
mod flights;
mod joined;
mod largest_scripts;
mod own_trips;
mod queues;
#[path = "../../../tests/support/redis_connection.rs"]
pub(super) mod redis_connection;
#[path = "../../../tests/support/redis_server/mod.rs"]
pub(super) mod redis_server;
mod runtimes;
mod settled;
mod staged;
mod threads;

use std::time::Duration;

use super::builder::RedisStoreBuilder;
use super::connection::Connection;
use super::limit::RedisLimit;
use super::scripts::TimeSource;
use super::settings::Settings;
use super::store::RedisStore;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::store::StoreSettings;

fn settings(scripts: bool, remember_denials: Duration) -> Settings {
    let mut settings = Settings::default();
    (settings.scripts, settings.remember_denials) = (scripts, remember_denials);
    settings
}

fn store(connection: impl Connection, settings: Settings) -> RedisStore {
    RedisStoreBuilder::store(Box::new(connection), Duration::from_millis(50), TimeSource::Server, settings)
}

fn limit<A: StoredAlgorithm>(store: &RedisStore, algorithm: A) -> RedisLimit<A> {
    let mut settings = StoreSettings::new(algorithm);
    settings.name = Some("test".to_owned());
    store.limit(settings, None).unwrap()
}

fn limiter<A: StoredAlgorithm>(store: &RedisStore, algorithm: A) -> RateLimiter<A, RedisLimit<A>> {
    RateLimiter::with_store(limit(store, algorithm))
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
