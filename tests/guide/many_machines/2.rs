fn set_up(redis: tower_throttle_redis::RedisStore) -> Result<(), Box<dyn std::error::Error>> {
    // the block
    let _: axum::Router = axum::Router::new().layer(layer);
    Ok(())
}
