#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), tower_throttle::limiter::Denied> {
    // the block
    let permit = exports.try_acquire_permit(&42_u64)?;
    assert!(export(&exports, 42).await.is_err());
    drop(permit);
    assert!(export(&exports, 42).await.is_ok());
    Ok(())
}
