//! Metered calls over real sockets: whatever ends a response, the sum of the meters is charged.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::Method;
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Meter, Quota, RateLimitLayer, RateLimiter};

use super::at_last;
use super::connection::{Connection, text, whole};
use crate::support::{Server, VERSIONS, Version};

const LIMIT: u64 = 1_000_000_000;
const ESTIMATE: u64 = 10;

/// The number of units that the meters of all calls have counted.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU64>);

impl Counted {
    fn add(&self, meter: &Meter, units: u64) {
        meter.add(units);
        self.0.fetch_add(units, Ordering::SeqCst);
    }

    fn sum(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn limiter() -> RateLimiter<TokenBucket> {
    RateLimiter::builder(TokenBucket::new(Quota::per_hour(LIMIT))).clock(ManualClock::new()).build()
}

fn used(limiter: &RateLimiter<TokenBucket>) -> u64 {
    LIMIT - limiter.peek(&()).remaining()
}

/// A body that counts seven units for each of its pieces, of which it sends five in a second.
struct Pieces {
    counted: Counted,
    meter: Meter,
    left: u64,
    next: Interval,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.next.poll_tick(cx));
        self.left -= 1;
        self.counted.add(&self.meter, 7);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
    }
}

fn pieces(counted: Counted, meter: Meter, count: u64) -> Body {
    let mut next = interval(Duration::from_millis(200));
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Body::new(Pieces { counted, meter, left: count, next })
}

fn app(limiter: &RateLimiter<TokenBucket>, counted: &Counted) -> Router {
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone())
        .cost(|_: &axum::http::Request<Body>| ESTIMATE)
        .metered();
    Router::new()
        .route("/ends", get(async |State(all): State<Counted>, meter: Meter| pieces(all, meter, 3)))
        .route("/goes-on", get(async |State(all): State<Counted>, meter: Meter| pieces(all, meter, u64::MAX)))
        .route(
            "/panics",
            get(|State(all): State<Counted>, meter: Meter| async move {
                all.add(&meter, 40);
                if all.sum() > 0 {
                    panic!("as handlers do");
                }
            }),
        )
        .route(
            "/waits",
            get(async |State(all): State<Counted>, meter: Meter| {
                all.add(&meter, 3);
                std::future::pending::<()>().await;
            }),
        )
        .layer(layer)
        .with_state(counted.clone())
}

/// Waits until the calls are settled: until `limiter` has charged the sum of the meters, and the sum does not change.
async fn is_settled(limiter: &RateLimiter<TokenBucket>, counted: &Counted, what: &str) {
    at_last(what, async {
        let mut last = u64::MAX;
        while used(limiter) != counted.sum() || counted.sum() != last {
            last = counted.sum();
            sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_end_of_a_response_charges_what_its_meter_counted() {
    for version in VERSIONS {
        let (limiter, counted) = (limiter(), Counted::default());
        let server = Server::start(app(&limiter, &counted)).await;
        let connection = Connection::open(server.address, version).await;
        whole(connection.get("/ends").await).await;
        is_settled(&limiter, &counted, "a body that ends").await;
        assert_eq!(used(&limiter), 21, "{version:?}");

        // The body of a response to HEAD is not polled: nothing is counted, and the estimate stays.
        whole(at_last("HEAD", connection.send(Method::HEAD, "/ends")).await).await;
        assert_eq!(counted.sum(), 21);
        at_last("the estimate", async {
            while used(&limiter) != 21 + ESTIMATE {
                sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        counted.0.fetch_add(ESTIMATE, Ordering::SeqCst);

        // Over HTTP/2, this resets the stream.
        let mut streams = connection.get("/goes-on").await;
        text(streams.body_mut()).await;
        drop(streams);
        if version == Version::Http1 {
            connection.close();
        }
        is_settled(&limiter, &counted, "a client that disconnects").await;

        let connection = Connection::open(server.address, version).await;
        assert!(at_last("no answer", connection.try_send(Method::GET, "/panics")).await.is_err());
        is_settled(&limiter, &counted, "a handler that panics").await;

        let connection = Arc::new(Connection::open(server.address, version).await);
        let (calls, before) = (Arc::clone(&connection), counted.sum());
        let call = tokio::spawn(async move { drop(calls.try_send(Method::GET, "/waits").await) });
        at_last("the call", async {
            while counted.sum() == before {
                sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        call.abort();
        connection.close();
        is_settled(&limiter, &counted, "a client that disconnects before the response").await;
        assert!(counted.sum() > 60, "{}", counted.sum());
    }
}

#[test]
fn the_end_of_the_server_charges_the_meters_of_a_thousand_open_streams() {
    const CONNECTIONS: usize = 10;
    const STREAMS: usize = 100;
    const CALLS: u64 = (CONNECTIONS * STREAMS) as u64;
    let (limiter, counted) = (limiter(), Counted::default());
    let (clients, servers) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let server = servers.block_on(Server::start(app(&limiter, &counted)));
    let connections = clients.block_on(async {
        let (opened, mut all_opened) = mpsc::channel(1);
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let connection = Arc::new(Connection::open(server.address, Version::Http2).await);
            for _ in 0..STREAMS {
                let (connection, opened) = (Arc::clone(&connection), opened.clone());
                tokio::spawn(async move {
                    let mut response = connection.get("/goes-on").await;
                    text(response.body_mut()).await;
                    opened.send(()).await.unwrap();
                    // The client must read, because it closes a connection with too many small frames that are unread.
                    while let Some(Ok(_)) = response.body_mut().frame().await {}
                });
            }
            connections.push(connection);
        }
        for _ in 0..CONNECTIONS * STREAMS {
            at_last("a stream", all_opened.recv()).await.unwrap();
        }
        connections
    });
    assert!(counted.sum() >= 7 * CALLS);
    assert_eq!(used(&limiter), ESTIMATE * CALLS, "no call has ended");
    drop(server);
    // All tasks of the server are dropped, as at the end of its process.
    drop(servers);
    assert_eq!(used(&limiter), counted.sum());
    drop(connections);
    drop(clients);
}
