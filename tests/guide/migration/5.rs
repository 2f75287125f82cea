#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tower_throttle::limiter::Denied> {
    // the block
    Ok(())
}
