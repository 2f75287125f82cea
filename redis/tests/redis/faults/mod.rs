//! A server that stops, restarts, fails, or has values of other programs. Calls fail in time with a named error, and
//! succeed soon after the fault.

mod permissions_and_values;
mod servers;

use std::time::Duration;

use tokio::time::sleep;
use tower_throttle::Quota;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle_redis::{RedisLimiter, RedisStore};

use crate::connect;
use crate::support::redis_server::RedisServer;

const MS: Duration = Duration::from_millis(1);

pub(crate) type Limiter = RedisLimiter<TokenBucket>;

/// Returns a limiter that never denies a call, with the default deadline.
async fn limiter(server: &RedisServer) -> (RedisStore, Limiter) {
    build(RedisStore::connect(&server.url()).await.unwrap())
}

async fn patient_limiter(server: &RedisServer) -> Limiter {
    build(connect(server).await).1
}

pub(crate) fn build(store: RedisStore) -> (RedisStore, Limiter) {
    let bucket = TokenBucket::new(Quota::per_day(10).burst(100_000));
    let limiter = store.limiter("test", bucket).build().unwrap();
    (store, limiter)
}

async fn used(limiter: &Limiter) -> u64 {
    loop {
        match limiter.peek("a").await {
            Ok(decision) => return 100_000 - decision.remaining(),
            // On a busy machine, a call may take longer than the deadline.
            Err(_) => sleep(5 * MS).await,
        }
    }
}
