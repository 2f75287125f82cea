//! Eight processes that lease units from one bucket, each with a connection of its own.

use std::time::{Duration, Instant};

use tower_throttle::algorithm::TokenBucket;
use tower_throttle::{Quota, RateLimiter};

use crate::patient;
use crate::support::redis_server::{RedisServer, Reply};

const BUCKET: TokenBucket = TokenBucket::new(Quota::per_second(1_000).burst(200));

#[tokio::test]
async fn processes_with_leases_admit_no_more_than_one_bucket() {
    let server = RedisServer::start();
    let stores = [(); 8].map(|()| patient(&server).connect_lazily().unwrap());
    let build = |store| RateLimiter::builder(BUCKET).name("api").store(store).build().unwrap();
    let limiters = stores.clone().map(|store| build(store.lease(25)));
    let start = Instant::now();
    let processes = limiters.map(|limiter| {
        tokio::spawn(async move {
            let mut admitted = 0;
            while start.elapsed() < Duration::from_secs(2) {
                admitted += u64::from(limiter.check("a").await.unwrap().is_allowed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            admitted
        })
    });
    let mut admitted = 0;
    for process in processes {
        admitted += process.await.unwrap();
    }
    let possible = 200 + start.elapsed().as_millis() as u64;
    assert!(admitted <= possible, "{admitted} of {possible}");
    assert!(admitted > 200, "{admitted}");
    let trips: u64 = stores.iter().map(|store| store.stats().trips).sum();
    assert!(trips < admitted, "{trips} trips for {admitted} calls");
    let ttl = server.call(&["PTTL", "throttle:{a}:api"]);
    assert!(matches!(ttl, Reply::Integer(1..=4_000)), "{ttl:?}");
}
