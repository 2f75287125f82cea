fn main() -> Result<(), tower_throttle::error::ConfigError> {
    // the block
    let bucket = tower_throttle::algorithm::TokenBucket::new(tower_throttle::Quota::per_minute(100));
    let layer = tower_throttle::RateLimitLayer::new(by_client, bucket);
    let _: axum::Router = axum::Router::new().layer(layer);
    Ok(())
}
