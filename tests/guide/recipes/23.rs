fn main() -> std::io::Result<()> {
    let path = &std::env::temp_dir().join(format!("tower-throttle-daily-{}", std::process::id()));
    let _ = std::fs::remove_file(path);
    // the block
    let anew = RateLimiter::new(FixedWindow::new(Quota::per_day(1_000)).aligned());
    restore(path, &anew)?;
    std::fs::remove_file(path)?;
    assert_eq!((anew.peek("ann").remaining(), anew.peek("bob").remaining()), (999, 1_000));
    Ok(())
}
