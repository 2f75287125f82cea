async fn set_up() -> Result<(), Box<dyn std::error::Error>> {
    // the block
    let _: axum::Router = axum::Router::new().layer(layer);
    Ok(())
}
