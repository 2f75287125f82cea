//! A thousand waiters, each with a limiter of its own. The tests check the order of the waiters, and the trips that
//! they need.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tower_throttle_redis::{RedisStore, RedisStoreBuilder};

use crate::failover::Group;
use crate::permits::{leasing, limiter, waiting};
use crate::proxy::{Fault, Proxy};
use crate::support::redis_server::{RedisCluster, RedisServer};

const WAITERS: u64 = 1_000;
const LIMIT: u64 = 3;

/// What was needed to release a thousand waiters.
struct Took {
    /// The number of trips for each waiter.
    trips: f64,
    messages: u64,
}

/// Releases a thousand waiters. Asserts that they are released in order, and that no more permits than allowed are held
/// at once. Of every `lose` messages, the first is lost.
async fn serve_all(lose: Option<u64>) -> Took {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await;
    if let Some(every) = lose {
        proxy.set(Fault::LoseMessages(every));
    }
    // There is one connection, so that the calls arrive in the order in which they are made. Each limiter makes its own
    // trips. The lease is so long that no waiter renews its place in the queue.
    let lease = Duration::from_secs(400);
    let store = leasing(&proxy.url(), lease).connect().await.unwrap();
    let first = limiter(&store, lease, LIMIT);
    let mut held = Vec::new();
    for _ in 0..LIMIT {
        held.push(first.acquire_permit("a").await.unwrap().unwrap());
    }
    let mut side = server.connect();
    let (trips, published) = (store.stats().trips, server.calls_of("publish"));
    let mut waiters = Vec::new();
    for _ in 0..WAITERS {
        let own = limiter(&store, lease, LIMIT);
        // A runtime with one thread starts the tasks in order.
        waiters.push(tokio::spawn(async move {
            let permit = timeout(Duration::from_secs(120), own.acquire_permit("a")).await.expect("served");
            let permit = permit.unwrap().unwrap();
            let begins = Instant::now();
            sleep(Duration::from_millis(1)).await;
            (permit.fencing_token().unwrap(), begins, Instant::now())
        }));
    }
    while waiting(&mut side) < WAITERS {
        sleep(Duration::from_millis(5)).await;
    }
    let start = Instant::now();
    drop(held);
    let mut spans = Vec::new();
    for waiter in waiters {
        spans.push(waiter.await.unwrap());
    }
    assert!(
        spans.is_sorted_by_key(|(fence, ..)| *fence),
        "they got their permits in the order in which they came"
    );
    for (_, begins, _) in &spans {
        let at_once = spans.iter().filter(|(_, from, to)| from <= begins && begins < to).count();
        assert!(at_once as u64 <= LIMIT, "{at_once} at once");
    }
    assert_eq!(first.peek("a").await.unwrap().remaining(), LIMIT);
    let trips = (store.stats().trips - trips) as f64 / WAITERS as f64;
    let took = Took { trips, messages: server.calls_of("publish") - published };
    println!(
        "{:.2} trips, {} messages, {} lost, {:?}",
        took.trips,
        took.messages,
        proxy.lost(),
        start.elapsed()
    );
    match lose {
        // The first messages were sent before the process had subscribed to messages, so fewer are lost.
        Some(every) => assert!(proxy.lost() > WAITERS / every * 9 / 10, "{}", proxy.lost()),
        None => assert_eq!(proxy.lost(), 0),
    }
    took
}

#[tokio::test]
async fn a_thousand_waiters_are_served_in_order() {
    let took = serve_all(None).await;
    assert!(took.trips <= 4.0, "{}", took.trips);
    assert_eq!(took.messages, WAITERS);
}

#[tokio::test]
async fn a_thousand_waiters_are_served_in_order_if_half_of_the_messages_are_lost() {
    let took = serve_all(Some(2)).await;
    assert!(took.trips <= 8.0, "{}", took.trips);
}

#[tokio::test]
async fn a_thousand_waiters_are_served_in_order_if_all_messages_are_lost() {
    let took = serve_all(Some(1)).await;
    assert!(took.trips <= 20.0, "{}", took.trips);
}

/// Asserts that a waiter gets its permit by a message, without a trip.
async fn a_message_arrives(build: impl Fn() -> RedisStoreBuilder) {
    let lease = Duration::from_secs(60);
    let [one, other] = [(); 2].map(|()| build().deadline(Duration::from_secs(5)).connect_lazily().unwrap());
    let permit = limiter(&one, lease, 1).acquire_permit("a").await.unwrap().unwrap();
    let next = tokio::spawn({
        let waiter = limiter(&other, lease, 1);
        async move { waiter.acquire_permit("a").await.unwrap().unwrap() }
    });
    // While nothing changes, the waiter polls the queue less and less often, in the end once a second.
    let mut pauses = 0;
    while pauses < 80 {
        let trips = other.stats().trips;
        sleep(Duration::from_millis(10)).await;
        pauses = if other.stats().trips == trips && trips > 0 { pauses + 1 } else { 0 };
    }
    let before = other.stats().trips;
    while other.stats().trips == before {
        sleep(Duration::from_millis(1)).await;
    }
    let trips = other.stats().trips;
    drop(permit);
    let next = timeout(Duration::from_secs(20), next).await.unwrap().unwrap();
    assert_eq!(other.stats().trips, trips, "it has not asked the server");
    drop(next);
}

#[tokio::test]
async fn messages_arrive_from_a_cluster_and_from_the_master_that_sentinels_name() {
    let cluster = RedisCluster::start();
    a_message_arrives(|| RedisStore::cluster(cluster.urls())).await;
    let group = Group::start();
    a_message_arrives(|| RedisStore::sentinel(group.urls(), "mymaster")).await;
}
