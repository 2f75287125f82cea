fn main() {
    // the block
    let _: axum::Router = axum::Router::new().layer(layer);
}
