//! Clients that disconnect or upload while they are queued, over real sockets, with HTTP/1.1 and HTTP/2.
//!
//! A busy machine is late, so no test here bounds the lateness. Times are compared with slots, before which no call may
//! be admitted. They are also compared with a second queue, in which no client disconnects. A slot that becomes free
//! must put a call one slot ahead of the second queue.

mod queued_clients;
mod uploads;

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{Algorithm, LeakyBucket};

type Limiter = RateLimiter<LeakyBucket>;

/// Waits for an event, and fails instead of hanging if it does not happen. The time limit is so long that it does not
/// affect events that do happen.
async fn at_last<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Waits until `count` places in the queue are free.
async fn free_places(limiter: &Limiter, count: u64) {
    let places = limiter.algorithm().queue_config().expect("it has a queue").places();
    at_last(&format!("{count} free places"), async {
        while places - limiter.queued() as u64 != count {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
