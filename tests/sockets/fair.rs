//! A flood over a hundred connections, and five polite callers, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use http::Method;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_throttle::RateLimitLayer;
use tower_throttle::algorithm::Concurrency;
use tower_throttle::key::{Global, Header};
use tower_throttle::limiter::FairLimiter;

use crate::support::{Client1, Server, request};

const MS: Duration = Duration::from_millis(1);
const SERVICE: Duration = Duration::from_millis(100);
const PLACES: u64 = 10;

fn handler() -> Router {
    Router::new().route("/", get(|| sleep(SERVICE)))
}

/// The time of each request of the polite callers, how many were rejected, and how many calls of all were served.
#[derive(Debug)]
struct Seen {
    times: Vec<Duration>,
    rejected: u64,
    served: u64,
}

async fn ask(client: &mut Client1, user: &str) -> u16 {
    let mut request = request(Method::GET, "/");
    request.headers_mut().insert("x-user", user.parse().unwrap());
    client.send(request).await.status.as_u16()
}

/// Sends requests for a few seconds.
async fn flood(app: Router) -> Seen {
    let server = Server::start(app).await;
    let (ends, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let mut client = Client1::http1(server.address).await;
        let (ends, served) = (ends.clone(), served.clone());
        tasks.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                match ask(&mut client, "flood").await {
                    200 => _ = served.fetch_add(1, Ordering::Relaxed),
                    _ => sleep(10 * MS).await,
                }
            }
        });
    }
    sleep(300 * MS).await;
    let mut polite = JoinSet::new();
    for user in 0..5_u32 {
        let mut client = Client1::http1(server.address).await;
        polite.spawn(async move {
            let mut seen = Vec::new();
            sleep(MS * 130 * user).await;
            for _ in 0..5 {
                let start = Instant::now();
                let status = ask(&mut client, &format!("user {user}")).await;
                seen.push((status, start.elapsed()));
                sleep((700 * MS).saturating_sub(start.elapsed())).await;
            }
            seen
        });
    }
    let began = (Instant::now(), served.load(Ordering::Relaxed));
    let answers = polite.join_all().await.concat();
    let times: Vec<_> = answers.iter().filter(|(status, _)| *status == 200).map(|(_, time)| *time).collect();
    let served_meanwhile = served.load(Ordering::Relaxed) - began.1 + times.len() as u64;
    ends.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    Seen {
        rejected: (answers.len() - times.len()) as u64,
        served: served_meanwhile * 1_000 / u64::try_from(began.0.elapsed().as_millis()).unwrap(),
        times,
    }
}

#[tokio::test]
async fn a_flood_over_a_hundred_connections_delays_polite_callers_by_one_service_time() {
    let one_queue = RateLimitLayer::new(Global, Concurrency::per_key(PLACES).queue(200));
    let one_queue = flood(handler().layer(one_queue)).await;
    let fair = FairLimiter::new(Concurrency::per_key(PLACES).total(PLACES).queue(50));
    let layer = RateLimitLayer::with_limiter(Header::new("x-user").unwrap(), fair.clone());
    let fair = (flood(handler().layer(layer)).await, fair);
    println!("one queue: {one_queue:?}");
    println!("a queue for each caller: {:?}", fair.0);
    let median = |seen: &Seen| {
        let mut times = seen.times.clone();
        times.sort_unstable();
        times[times.len() / 2]
    };
    assert_eq!(fair.0.rejected, 0);
    // Its own service, and the rest of another one. A busy machine is late, which the other run shows as well.
    let late = (median(&one_queue)).saturating_sub(11 * SERVICE);
    assert!(median(&fair.0) <= 2 * SERVICE + 20 * MS + late, "{:?} after {:?}", fair.0, one_queue);
    assert!(median(&one_queue) >= 9 * SERVICE, "{one_queue:?}");
    assert!(fair.0.served * 100 >= one_queue.served * 90, "{:?} after {:?}", fair.0, one_queue);
    assert_eq!(fair.1.stats().store.waiting, 0);
}

#[tokio::test]
async fn clients_that_disconnect_leave_nothing() {
    let fair = FairLimiter::new(Concurrency::per_key(PLACES).total(PLACES).queue(50));
    let layer = RateLimitLayer::with_limiter(Header::new("x-user").unwrap(), fair.clone());
    let server = Server::start(Router::new().route("/", get(|| sleep(600 * SERVICE))).layer(layer)).await;
    let mut clients = JoinSet::new();
    for _ in 0..60 {
        let mut client = Client1::http1(server.address).await;
        clients.spawn(async move { ask(&mut client, "flood").await });
    }
    let state = || (fair.call("nobody").peek().remaining(), fair.stats().store.waiting, fair.len());
    let becomes = async |expected| {
        timeout(Duration::from_secs(30), async {
            while state() != expected {
                sleep(MS).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("free, waiting, known: {:?}", state()));
    };
    becomes((0, 50, 1)).await;
    clients.shutdown().await;
    let start = Instant::now();
    becomes((PLACES, 0, 0)).await;
    println!("nothing was left after {:?}", start.elapsed());
}
