//! The store in Redis, with real servers. Every test starts a server of its own.

mod cluster;
mod contract;
mod denial_reasons;
mod deployments;
mod failover;
mod faults;
mod idle;
mod joined;
mod layer;
mod leases;
mod limits;
mod lockouts;
mod memory;
mod metered_sockets;
#[cfg(feature = "metrics")]
mod metrics;
mod mistakes;
mod network;
mod outages;
mod permit_faults;
mod permit_processes;
mod permits;
mod permits_queue;
mod processes;
mod proxy;
mod sentinels;
#[path = "../../../tests/support/mod.rs"]
mod support;
#[cfg(feature = "tls")]
mod tls;
mod trips;

use std::time::Duration;

use tower_throttle_redis::{RedisStore, RedisStoreBuilder};

use support::redis_server::RedisServer;

/// Returns a builder of a store whose deadline is so long that a busy machine keeps it.
fn patient(server: &RedisServer) -> RedisStoreBuilder {
    RedisStore::builder(&server.url()).deadline(Duration::from_secs(10))
}

/// Returns the value of a key whose state has this unit and these numbers.
fn value(unit: &str, numbers: &[u8]) -> Vec<u8> {
    let script = redis::Script::new(unit);
    let mut head = u64::from_str_radix(&script.get_hash()[..14], 16).unwrap().to_be_bytes();
    head[0] = 1;
    [&head, numbers, b"\n", unit.as_bytes()].concat()
}

/// Sets the value of a key.
fn set(server: &RedisServer, key: &str, value: &[u8]) {
    server.connect().try_call(&[b"SET", key.as_bytes(), value]).unwrap().ok();
}

async fn connect(server: &RedisServer) -> RedisStore {
    patient(server).connect().await.unwrap()
}
