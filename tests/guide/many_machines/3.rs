use tower_throttle::Quota;
use tower_throttle::algorithm::TokenBucket;

fn set_up(redis: tower_throttle_redis::RedisStore) -> Result<(), Box<dyn std::error::Error>> {
    // the block
    Ok(())
}
