use std::net::TcpListener;
use std::process::{Command, Stdio};

use tower_throttle::clock::ManualClock;

fn main() {
    // the block
    // in memory
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(mails.clone()).clock(clock.clone()).build();
    for wait in [60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
        assert!(limiter.check("key").is_allowed());
        assert!(limiter.check_n("key", 0).is_allowed());
        assert!(limiter.check_n("key", 2).never_fits());
        assert_eq!(limiter.check("key").retry_after(), Some(Duration::from_secs(wait)));
        assert_eq!(limiter.peek("key").retry_after(), Some(Duration::from_secs(wait)));
        clock.advance(Duration::from_secs(wait));
    }
    clock.advance(Duration::from_secs(3_600));
    assert!(limiter.check("key").is_allowed());
    assert_eq!(limiter.check("key").retry_after(), Some(Duration::from_secs(60)));
    limiter.refund("key", 1);
    assert!(limiter.check("key").is_allowed());
    limiter.replace(Doubling::new(Duration::from_secs(1), Duration::from_secs(10)));
    assert_eq!(limiter.check("key").retry_after(), Some(Duration::from_secs(10)));
    clock.set(Duration::ZERO);
    assert_eq!(limiter.check("key").retry_after(), Some(Duration::from_secs(10)));
    clock.advance(Duration::from_secs(20));
    assert_eq!(limiter.peek("key").remaining(), 1);

    // in Redis
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("redis-server");
    server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let mut server =
        server.stdout(Stdio::null()).spawn().expect("redis-server is installed: tests/install-deps");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let checked = runtime.block_on(async {
        let url = format!("redis://127.0.0.1:{port}");
        let store = async || RedisStore::builder(&url).deadline(Duration::from_secs(5)).connect().await;
        let mut tries = 0;
        let redis = loop {
            tries += 1;
            match store().await {
                Ok(redis) => break redis,
                Err(error) if tries == 200 => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let mut decisions = Vec::new();
        // two processes, and a deployment of other waits
        let hour = Duration::from_secs(3_600);
        for mails in [mails.clone(), mails.clone(), Doubling::new(hour, 2 * hour)] {
            decisions.push(shared(&redis, mails)?.check("ann").await?);
        }
        Ok(decisions)
    });
    server.kill().unwrap();
    server.wait().unwrap();
    let [first, second, third] = checked.unwrap().try_into().unwrap();
    assert!(first.is_allowed());
    for denied in [second, third] {
        let wait = denied.retry_after().unwrap();
        assert!((Duration::from_secs(40)..=Duration::from_secs(60)).contains(&wait), "{wait:?}");
    }
}
