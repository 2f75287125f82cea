#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // the block
    let _permits = [1, 2].map(|_| limiters.downloads.try_acquire_permit("key").unwrap());
    assert!(limiters.downloads.try_acquire_permit("key").is_err());
    assert!(limiters.login.call("key").cost(5).check().is_allowed());
    for wrong in [
        r#"{"api": "9/min", "login": "many", "downloads": 2}"#,
        r#"{"api": "9/min", "login": "5/min", "downloads": 0}"#,
        r#"{"api": "9/min", "login": "5/min", "downloads": 2, "logins": 3}"#,
    ] {
        assert!(parse(wrong).is_err());
    }
    let path = std::env::temp_dir().join(format!("tower-throttle-limits-{}", std::process::id()));
    std::fs::write(&path, r#"{"api": "100/min", "login": "6/min", "downloads": 3}"#)?;
    let task = tokio::spawn(reload(hangup, path.clone(), limiters.clone()));
    let kill = format!("kill -HUP {}", std::process::id());
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status()?.success());
    while limiters.api.algorithm().quota() != Quota::per_minute(100) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    task.abort();
    std::fs::remove_file(path)?;
    assert!(limiters.downloads.try_acquire_permit("key").is_ok());
    assert_eq!([1, 2].map(|_| limiters.login.check("key").is_allowed()), [true, false]);
    Ok(())
}
