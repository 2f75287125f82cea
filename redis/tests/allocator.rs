//! Tests of the memory that a call on Redis needs.

use std::time::Duration;

use allocation_counter::measure;
use tower_throttle::Quota;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle_redis::RedisInProcess;

#[test]
fn a_call_on_redis_needs_little_memory() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _entered = runtime.enter();
    let store = RedisInProcess::new(Duration::from_millis(1)).connect();
    let bucket = TokenBucket::new(Quota::per_second(10));
    let limiter = store.limiter("api", bucket).build().unwrap();
    let check = || assert!(runtime.block_on(limiter.check("user:42")).unwrap().is_allowed());
    check();
    let used = measure(check);
    // With the work of the simulated server, the call needs 3,750 bytes. It needed 2,816 more when the future of a trip
    // was kept three times in one allocation.
    assert!(used.bytes_max < 4_200, "{used:?}");
    // The text of the key is allocated once, and once more as the name that the trip shares.
    assert!(used.count_total <= 46, "{used:?}");
}
