//! A client that waits as long as `Retry-After` says is admitted when it retries.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{HeaderMap, Method, Request};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tower::{Service as _, ServiceExt};
use tower_throttle::algorithm::{Algorithm, FixedWindow, TokenBucket};
use tower_throttle::key::{Global, Header};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer};

use crate::generators::{KINDS, Kind, Rule, made};
use crate::header_parser::ParsedFields;
use crate::reference_service::{Cost, CostOf, Service, behind, cost_of, limited};
use crate::support::{Answer, Client1, Client2, Random, Server, request, scaled};

const CLIENTS: u64 = 1_000;

/// Returns the kinds of algorithms that know when a call will be admitted.
fn timed() -> impl Iterator<Item = Kind> {
    KINDS.into_iter().filter(|kind| *kind != Kind::Concurrency)
}

fn service<A: Algorithm>(algorithm: A, jitter: Duration) -> Service {
    let layer: RateLimitLayer<_, _, CostOf> =
        RateLimitLayer::new(Global, algorithm).cost(cost_of as fn(&_) -> _);
    limited(layer.responder(HttpResponder::new().jitter(jitter)), behind(HeaderMap::new()))
}

fn costing(cost: u64) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(Cost(cost));
    request
}

/// Makes calls until one is denied, waits as long as reported, and makes the same call again.
async fn comes_back(random: &mut Random, service: Service, most: u64, interval: u64) {
    let mut in_line = JoinSet::new();
    loop {
        if random.one_in(3) {
            tokio::time::sleep(Duration::from_nanos(random.below(2 * interval))).await;
        }
        let cost = 1 + random.below(most);
        let mut call = Box::pin(service.clone().call(costing(cost)));
        let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await else {
            // Other calls are queued, too.
            in_line.spawn(call);
            continue;
        };
        let answer = answer.unwrap();
        if answer.status() == 200 {
            continue;
        }
        let wait = ParsedFields::read(answer.headers()).retry_after.expect("it is known when");
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let answer = service.oneshot(costing(cost)).await.unwrap();
        assert_eq!(answer.status(), 200, "after {wait} s: {:?}", answer.headers());
        return;
    }
}

#[tokio::test(start_paused = true)]
async fn every_algorithm_in_paused_time() {
    for kind in timed() {
        for seed in 0..scaled(CLIENTS) {
            let mut random = Random::new(seed);
            let limit = 1 + random.below(6);
            // A `Smooth` stores the units of one second.
            let least = if [Kind::Bursty, Kind::WarmingUp].contains(&kind) { 1_000_000_000 } else { 1 };
            let period = least + random.below(100_000_000_000);
            let quota = Quota::per(limit, Duration::from_nanos(period)).unwrap();
            let rule = Rule { quota, ..Rule::any(&mut random, kind, true) };
            let jitter = Duration::from_millis(random.below(2) * 3_000);
            // No algorithm has a queue that accepts only cheap calls.
            let most = if rule.places > 0 { 1 } else { limit };
            let service = made!(rule, |rule| service(rule, jitter));
            comes_back(&mut random, service, most, period / limit + 1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn algorithms_made_of_algorithms_in_paused_time() {
    for seed in 0..scaled(CLIENTS) {
        let mut random = Random::new(seed);
        let mut quota = || {
            let period = Duration::from_nanos(1 + random.below(100_000_000_000));
            Quota::per(3 + random.below(6), period).unwrap()
        };
        let (a, b) = (TokenBucket::new(quota()), FixedWindow::new(quota()));
        let tuple = service((a.clone(), b.clone()), Duration::ZERO);
        let blocking = service(a.clone().block_for(Duration::from_secs(9)).after(1), Duration::ZERO);
        let joined = RateLimitLayer::new(Global, a).and(RateLimitLayer::new(Global, b));
        let joined = limited(joined, behind(HeaderMap::new()));
        for service in [tuple, blocking, joined] {
            comes_back(&mut random, service, 3, 3_000_000_000).await;
        }
    }
}

/// The connection of a client. Other tasks share it.
#[derive(Clone)]
enum Line {
    One(Arc<Mutex<Client1>>),
    Two(Client2),
}

impl Line {
    async fn ask(&mut self, path: &str, client: u64) -> Answer {
        let mut request = request(Method::GET, path);
        request.headers_mut().insert("x-client", client.into());
        match self {
            Self::One(connection) => connection.lock().await.send(request).await,
            Self::Two(connection) => connection.send(request).await,
        }
    }
}

/// The limit is one call in a little less than two seconds, so the second call has to wait one or two seconds.
const SLOW: Duration = Duration::from_millis(1_900);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_algorithm_over_sockets() {
    let mut app = Router::new();
    let quota = Quota::per(1, SLOW).unwrap();
    for (at, kind) in timed().enumerate() {
        let rule = Rule { warm_up: Duration::from_millis(10), ..Rule::of(kind, quota) };
        let key = Header::new("x-client").unwrap();
        let route = made!(rule, |rule| get(|| async { "hello" }).layer(RateLimitLayer::new(key, rule)));
        app = app.route(&format!("/{at}"), route);
    }
    let server = Server::start(app).await;
    let mut clients = JoinSet::new();
    for (at, kind) in timed().enumerate() {
        let one = Arc::new(Mutex::new(Client1::http1(server.address).await));
        let two = Client2::http2(server.address).await;
        for client in 0..scaled(CLIENTS) {
            let mut line = match client % 4 {
                0 => Line::One(one.clone()),
                _ => Line::Two(two.clone()),
            };
            clients.spawn(async move {
                let path = format!("/{at}");
                loop {
                    let answer = line.ask(&path, client).await;
                    if answer.status == 200 {
                        continue;
                    }
                    assert_eq!(answer.status, 429);
                    let wait = answer.retry_after();
                    // The units of the previous window count until two windows have ended.
                    assert!((1..=4).contains(&wait), "{kind:?}: {wait}");
                    tokio::time::sleep(Duration::from_secs(wait)).await;
                    break (format!("{kind:?}"), line.ask(&path, client).await.status == 200);
                }
            });
        }
    }
    let mut served = BTreeMap::new();
    for (kind, is_served) in clients.join_all().await {
        *served.entry(kind).or_insert(0) += u64::from(is_served);
    }
    assert_eq!(served.len(), timed().count());
    assert!(served.values().all(|served| *served == scaled(CLIENTS)), "{served:?}");
}
