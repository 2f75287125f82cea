fn main() -> Result<(), tower_throttle::error::ConfigError> {
    // the block
    let _: axum::Router = axum::Router::new().layer(layer);
    Ok(())
}
