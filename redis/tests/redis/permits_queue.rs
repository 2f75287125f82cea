//! Many waiters, each with a limiter of its own. The tests check the order of the waiters, and the trips that they
//! need.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tower_throttle_redis::{RedisStore, RedisStoreBuilder};

use crate::failover::Group;
use crate::permits::{leasing, limiter, waiting};
use crate::proxy::{Fault, Proxy};
use crate::sentinels::FakeSentinel;
use crate::support::redis_server::{RedisCluster, RedisServer, Reply};
use crate::support::scaled;

const WAITERS: u64 = 1_000;
const LIMIT: u64 = 3;

/// While messages are lost, waiters find out by asking, so that a thousand take ten seconds.
fn fewer() -> u64 {
    scaled(3 * WAITERS).min(WAITERS)
}

/// What was needed to admit many waiters.
struct Took {
    /// The number of trips for each waiter.
    trips: f64,
    messages: u64,
}

/// Lets many calls wait. Asserts that they are admitted in order, and that no more permits than allowed are held
/// at once. Of every `lose` messages, the first is lost.
async fn serve_all(count: u64, lose: Option<u64>) -> Took {
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
    for _ in 0..count {
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
    while waiting(&mut side) < count {
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
    let trips = (store.stats().trips - trips) as f64 / count as f64;
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
        Some(every) => assert!(proxy.lost() > count / every * 9 / 10, "{}", proxy.lost()),
        None => assert_eq!(proxy.lost(), 0),
    }
    took
}

#[tokio::test]
async fn a_thousand_waiters_are_served_in_order() {
    let took = serve_all(WAITERS, None).await;
    assert!(took.trips <= 4.0, "{}", took.trips);
    assert_eq!(took.messages, WAITERS);
}

#[tokio::test]
async fn waiters_are_served_in_order_if_half_of_the_messages_are_lost() {
    let took = serve_all(fewer(), Some(2)).await;
    assert!(took.trips <= 8.0, "{}", took.trips);
}

#[tokio::test]
async fn waiters_are_served_in_order_if_all_messages_are_lost() {
    let took = serve_all(fewer(), Some(1)).await;
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
    let group = Group::start();
    tokio::join!(
        a_message_arrives(|| RedisStore::cluster(cluster.urls())),
        a_message_arrives(|| RedisStore::sentinel(group.urls(), "mymaster"))
    );
}

/// Returns the channels to which somebody has subscribed.
fn channels(server: &RedisServer) -> Vec<Reply> {
    match server.call(&["PUBSUB", "CHANNELS"]) {
        Reply::List(channels) => channels,
        other => panic!("{other:?}"),
    }
}

/// Waits until somebody has subscribed to a channel, for at most `limit`.
async fn until_subscribed(server: &RedisServer, limit: Duration) -> Reply {
    let start = Instant::now();
    loop {
        if let Some(channel) = channels(server).pop() {
            return channel;
        }
        assert!(start.elapsed() < limit, "nobody has subscribed within {limit:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_from_another_master_soon_after_it_is_named() {
    let (former, new) = (RedisServer::start(), RedisServer::start());
    let sentinel = FakeSentinel::start(0, &former).await;
    let lease = Duration::from_secs(20);
    let store =
        |builder: RedisStoreBuilder| builder.deadline(Duration::from_secs(5)).connect_lazily().unwrap();
    // Both servers have a permit that is held.
    let mut held = Vec::new();
    for server in [&former, &new] {
        let limiter = limiter(&store(RedisStore::builder(&server.url())), lease, 1);
        held.push(limiter.acquire_permit("a").await.unwrap().unwrap());
    }
    let waiter = limiter(&store(RedisStore::sentinel([sentinel.url()], "mymaster")), lease, 1);
    let waiter = tokio::spawn(async move { waiter.acquire_permit("a").await.unwrap().unwrap() });
    until_subscribed(&former, Duration::from_secs(5)).await;
    sentinel.name(1, &new);
    // The waiter asks the server every second or more often, which asks the sentinel.
    until_subscribed(&new, Duration::from_secs(5)).await;
    let start = Instant::now();
    while !channels(&former).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(5), "it has left the former master");
        sleep(Duration::from_millis(10)).await;
    }
    drop(held);
    drop(timeout(Duration::from_secs(20), waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_connection_for_messages_that_is_cut_after_each_message_is_made_again_soon() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(40);
    let limiter = limiter(&leasing(&server.url(), lease).connect().await.unwrap(), lease, 1);
    let permit = limiter.acquire_permit("a").await.unwrap().unwrap();
    let waiter = tokio::spawn(limiter.acquire_permit("a"));
    for round in 0..7 {
        let start = Instant::now();
        let channel = until_subscribed(&server, Duration::from_secs(30)).await.text();
        // Without a message, the seventh pause is 6.4 s.
        assert!(start.elapsed() < Duration::from_secs(3), "round {round}: {:?}", start.elapsed());
        assert_eq!(server.call(&["PUBLISH", &channel, "0 0 0"]), Reply::Integer(1));
        sleep(Duration::from_millis(50)).await;
        server.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    drop(permit);
    assert!(waiter.await.unwrap().unwrap().is_ok());
}
