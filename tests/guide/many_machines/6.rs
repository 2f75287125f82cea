async fn serve() {}

async fn run(redis: tower_throttle_redis::RedisStore) {
    // the block
}
