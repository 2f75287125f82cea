//! Two copies of one app share one limit, which is kept in Redis. One command starts both copies and a Redis server.
//! `redis-server` must be installed.
//!
//! ```text
//! cargo run -p tower-throttle-redis --example redis
//! ```
//!
//! The limit is ten requests a minute for each address. The example sends twelve requests, alternately to one copy and
//! to the other. You will see that ten of them are admitted, and that the number of remaining units decreases with each
//! request, whichever copy receives the request. To use a server that is already running, run `cargo run -p
//! tower-throttle-redis --example redis -- redis://127.0.0.1:6379`.

use std::error::Error;
use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use axum::{Router, routing::get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::PeerIp;
use tower_throttle::{Quota, RateLimitLayer};
use tower_throttle_redis::RedisStore;

const QUOTA: Quota = Quota::per_minute(10);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Starts one copy of the app. The copy has a connection of its own, as another process would have. Returns the address
/// of the copy.
async fn start_copy(url: &str) -> Result<SocketAddr> {
    // A call that takes longer than the deadline is answered with 503. In a data centre, the default of 50 ms is
    // enough.
    let redis = RedisStore::builder(url).deadline(Duration::from_secs(1)).connect().await?;
    // Limiters with the same name share their keys.
    let limiter = redis.limiter("example", TokenBucket::new(QUOTA)).build()?;
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter);
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
    });
    Ok(address)
}

/// Starts a server that stores nothing on disk, on a free port. The server ends when its process handle is dropped.
async fn start_redis() -> Result<(Child, String)> {
    // Redis cannot choose a free port itself. If another program takes the port before Redis does, the Redis server
    // ends, and another port is tried.
    for _ in 0..5 {
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        if let Some(server) = start_redis_on(port).await? {
            return Ok((server, format!("redis://127.0.0.1:{port}")));
        }
    }
    Err("redis-server does not start".into())
}

/// Starts a server on that port, and waits until the server answers. Returns `None` if the server ends instead.
async fn start_redis_on(port: u16) -> Result<Option<Child>> {
    let mut server = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            format!("redis-server cannot be started: {error}; install it, or give the URL of a server")
        })?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if server.try_wait()?.is_some() {
            return Ok(None);
        }
        let process = timeout(Duration::from_secs(1), process_at(port)).await;
        if matches!(process, Ok(Ok(process)) if process == server.id()) {
            return Ok(Some(server));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Err("redis-server does not answer".into())
}

/// Returns the process id of the server on that port, or `None` if the reply contains no process id. This may not be
/// the server that was started.
async fn process_at(port: u16) -> Result<Option<u32>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"INFO server\r\nQUIT\r\n").await?;
    let mut info = String::new();
    stream.read_to_string(&mut info).await?;
    let process = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    Ok(process.and_then(|process| process.parse().ok()))
}

/// Sends a request. Returns the status, and the header that reports the remaining units.
async fn ask(address: SocketAddr) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: example\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).ok_or("no status")?.parse()?;
    let limit = answer.lines().find_map(|line| line.strip_prefix("ratelimit: "));
    Ok((status, limit.unwrap_or("-").to_owned()))
}

/// Sends requests to two copies in turn. Returns the number of admitted requests.
async fn share(url: &str, requests: usize) -> Result<usize> {
    let copies = [start_copy(url).await?, start_copy(url).await?];
    let mut admitted = 0;
    for (number, copy) in (1..=requests).zip([0, 1].into_iter().cycle()) {
        let (status, limit) = ask(copies[copy]).await?;
        println!("request {number:>2} to copy {}: {status}, RateLimit: {limit}", copy + 1);
        admitted += usize::from(status == 200);
    }
    Ok(admitted)
}

async fn run(url: Option<String>) -> Result<()> {
    let (server, url) = match url {
        Some(url) => (None, url),
        None => start_redis().await.map(|(server, url)| (Some(server), url))?,
    };
    println!("the limit is {QUOTA}");
    let admitted = share(&url, 12).await?;
    println!("{admitted} were admitted, by both copies together");
    if let Some(mut server) = server {
        server.kill().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(std::env::args().nth(1)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_copies_admit_one_limit_together() {
        let (mut server, url) = start_redis().await.unwrap();
        let start = Instant::now();
        let admitted = share(&url, 14).await.unwrap();
        // The bucket gets one token back every six seconds.
        let refilled = start.elapsed().as_secs() as usize / 6 + 1;
        assert!((10..10 + refilled).contains(&admitted), "{admitted}");
        server.kill().await.unwrap();
        assert!(TcpStream::connect(url.trim_start_matches("redis://")).await.is_err());
    }
}
