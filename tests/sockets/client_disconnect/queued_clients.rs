//! Clients that disconnect while they are queued free their slots for the next calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{Method, Request, Uri};
use axum::routing::get;
use tokio::task::JoinHandle;
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};

use super::{Limiter, at_last, free_places};
use crate::support::{Answer, Client1, Client2, Server, Version, request};

const INTERVAL: Duration = Duration::from_millis(300);

/// The cost of the first call of a queue. It is the number of intervals in which the other calls arrive and disconnect,
/// before one of them is admitted.
const HEAD_START: u32 = 5;

/// The source of requests. With HTTP/1.1, each request has a connection of its own. With HTTP/2, all requests are
/// streams of one connection.
enum Clients {
    Http1(SocketAddr),
    Http2(Client2),
}

impl Clients {
    async fn new(address: SocketAddr, version: Version) -> Self {
        match version {
            Version::Http1 => Self::Http1(address),
            Version::Http2 => Self::Http2(Client2::http2(address).await),
        }
    }

    /// Starts a request. If the task is aborted, the client disconnects: it closes the connection, or resets the
    /// stream.
    fn get(&self, path: &'static str) -> JoinHandle<Answer> {
        let request = request(Method::GET, path);
        match self {
            Self::Http1(address) => {
                let address = *address;
                tokio::spawn(async move { Client1::http1(address).await.send(request).await })
            }
            Self::Http2(client) => {
                let mut client = client.clone();
                tokio::spawn(async move { client.send(request).await })
            }
        }
    }
}

async fn hang_up(calls: impl IntoIterator<Item = JoinHandle<Answer>>) {
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
}

async fn served(call: JoinHandle<Answer>) {
    let answer = at_last("an answer", call).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// A queue, and a second queue in which no client disconnects. Both have just admitted their first calls.
struct Queues {
    server: Server,
    queue: Limiter,
    other: Limiter,
    /// The calls that reached the handler, in order, each with its time.
    came: Arc<Mutex<Vec<(String, Instant)>>>,
    /// A time before the first slots of both queues.
    began: Instant,
}

impl Queues {
    async fn begin(capacity: u64) -> Self {
        let came = Arc::<Mutex<Vec<_>>>::default();
        let layer = || {
            let bucket = LeakyBucket::new(Quota::per(1, INTERVAL).unwrap()).queue(capacity);
            RateLimitLayer::new(Global, bucket).cost(|request: &Request<_>| {
                if request.uri().path().ends_with("/first") { u64::from(HEAD_START) } else { 1 }
            })
        };
        let handler = {
            let came = came.clone();
            move |uri: Uri| async move { came.lock().unwrap().push((uri.path().to_owned(), Instant::now())) }
        };
        let (queue, other) = (layer(), layer());
        let limiters = (queue.limiter().clone(), other.limiter().clone());
        let app = Router::new()
            .route("/queue/{name}", get(handler.clone()).layer(queue))
            .route("/other/{name}", get(handler).layer(other));
        let server = Server::start(app).await;
        let queues = Self { server, queue: limiters.0, other: limiters.1, came, began: Instant::now() };
        let clients = queues.clients(Version::Http1).await;
        served(clients.get("/queue/first")).await;
        served(clients.get("/other/first")).await;
        queues
    }

    async fn clients(&self, version: Version) -> Clients {
        Clients::new(self.server.address, version).await
    }

    /// Returns the calls of one queue after the first call, in order, each with its time.
    fn came(&self, queue: &str) -> Vec<(String, Instant)> {
        let came = self.came.lock().unwrap();
        let of_the_queue =
            came.iter().filter_map(|(path, at)| Some((path.strip_prefix(queue)?.to_owned(), *at)));
        of_the_queue.skip(1).collect()
    }

    /// Asserts that exactly these calls reached the handler, in this order, and none of them before its slot.
    fn assert_came(&self, queue: &str, names: &[&str]) {
        let came = self.came(queue);
        assert_eq!(came.iter().map(|(name, _)| name).collect::<Vec<_>>(), names, "{queue}");
        for (nth, (name, at)) in (0..).zip(&came) {
            let slot = self.began + INTERVAL * (HEAD_START + nth);
            assert!(*at >= slot, "{queue}{name} came {:?} early", slot - *at);
        }
    }

    /// Asserts that one call reached the handler before the other.
    fn assert_order(&self, first: &str, then: &str) {
        let came = self.came.lock().unwrap();
        let position = |path: &str| came.iter().position(|(other, _)| other == path).expect(path);
        assert!(position(first) < position(then), "{first} came after {then}: {came:?}");
    }
}

async fn one_queued_client_disconnects(version: Version) {
    let queues = Queues::begin(4).await;
    let clients = queues.clients(version).await;
    let mut others = Vec::new();
    for (path, free) in [("/other/1", 3), ("/other/2", 2), ("/other/3", 1)] {
        others.push(clients.get(path));
        free_places(&queues.other, free).await;
    }

    let leaves = clients.get("/queue/leaves");
    free_places(&queues.queue, 3).await;
    let stays = clients.get("/queue/stays");
    free_places(&queues.queue, 2).await;
    hang_up([leaves]).await;
    free_places(&queues.queue, 3).await;
    let comes = clients.get("/queue/comes");
    free_places(&queues.queue, 2).await;

    for call in [stays, comes].into_iter().chain(others) {
        served(call).await;
    }
    queues.assert_came("/queue/", &["stays", "comes"]);
    queues.assert_came("/other/", &["1", "2", "3"]);
    // The calls used the first and the second slot of the queue, and not the second and the third.
    queues.assert_order("/queue/stays", "/other/2");
    queues.assert_order("/queue/comes", "/other/3");
}

#[tokio::test]
async fn a_queued_connection_that_is_closed_frees_its_slot_for_the_next() {
    one_queued_client_disconnects(Version::Http1).await;
}

#[tokio::test]
async fn a_queued_stream_that_is_reset_frees_its_slot_for_the_next_of_its_connection() {
    one_queued_client_disconnects(Version::Http2).await;
}

#[tokio::test]
async fn a_connection_that_is_closed_with_several_queued_streams_frees_all_their_slots() {
    let queues = Queues::begin(4).await;
    let connection = Client2::http2(queues.server.address).await;
    let closed = Clients::Http2(connection.clone());
    let open = queues.clients(Version::Http2).await;
    let mut others = Vec::new();
    for (path, free) in [("/other/1", 3), ("/other/2", 2), ("/other/3", 1), ("/other/4", 0)] {
        others.push(open.get(path));
        free_places(&queues.other, free).await;
    }

    let leave = ["/queue/a", "/queue/b", "/queue/c"].map(|path| closed.get(path));
    free_places(&queues.queue, 1).await;
    let stays = open.get("/queue/stays");
    free_places(&queues.queue, 0).await;
    // The socket is closed first, so no stream is reset on its own.
    connection.close();
    hang_up(leave).await;
    free_places(&queues.queue, 3).await;

    for call in [stays].into_iter().chain(others) {
        served(call).await;
    }
    queues.assert_came("/queue/", &["stays"]);
    queues.assert_came("/other/", &["1", "2", "3", "4"]);
    queues.assert_order("/queue/stays", "/other/2");
}

async fn all_queued_clients_disconnect(version: Version) {
    let queues = Queues::begin(3).await;
    let clients = queues.clients(version).await;
    let others = ["/other/x", "/other/x", "/other/x"].map(|path| clients.get(path));
    free_places(&queues.other, 0).await;

    let leave = ["/queue/a", "/queue/b", "/queue/c"].map(|path| clients.get(path));
    free_places(&queues.queue, 0).await;
    assert_eq!(clients.get("/queue/rejected").await.unwrap().status, 429);
    hang_up(leave).await;
    free_places(&queues.queue, 3).await;
    let mut come = Vec::new();
    for (path, free) in [("/queue/next", 2), ("/queue/second", 1), ("/queue/third", 0)] {
        come.push(clients.get(path));
        free_places(&queues.queue, free).await;
    }

    for call in come.into_iter().chain(others) {
        served(call).await;
    }
    queues.assert_came("/queue/", &["next", "second", "third"]);
    // The first call of the other queue has the same slot, and the second call has the next slot. So no slot was lost.
    let [queue, other] = ["/queue/", "/other/"].map(|queue| queues.came(queue));
    assert!(queue[0].1 < other[1].1 && queue[1].1 < other[2].1, "{queue:?} {other:?}");
}

#[tokio::test]
async fn when_all_connections_of_a_full_queue_close_the_next_call_has_the_next_slot() {
    all_queued_clients_disconnect(Version::Http1).await;
}

#[tokio::test]
async fn when_all_streams_of_a_full_queue_are_reset_the_next_call_has_the_next_slot() {
    all_queued_clients_disconnect(Version::Http2).await;
}
