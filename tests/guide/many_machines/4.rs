async fn export(redis: tower_throttle_redis::RedisStore) -> Result<(), Box<dyn std::error::Error>> {
    // the block
    let _ = (is_done, permit.fencing_token());
    Ok(())
}
