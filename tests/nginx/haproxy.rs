//! Rejected uploads behind a real HAProxy that multiplexes: the requests of all clients are streams of one HTTP/2
//! connection to the app.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http::header::HOST;
use http::{Method, Request};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tower_throttle::key::Global;
use tower_throttle::middleware::types::{DefaultRejection, UnreadBody};
use tower_throttle::{HttpResponder, RateLimitLayer};

use crate::server::{Directory, Process};
use crate::support::{Server, Task};
use crate::uploads::used_up;

const UPLOADERS: usize = 30;
const EACH: usize = 100;
const SIZE: usize = 200_000;

/// Starts HAProxy in front of the app at this address. It is stopped on drop.
async fn haproxy(upstream: SocketAddr) -> (Process, SocketAddr, Directory) {
    let directory = Directory::new();
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let configuration = format!(
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
         frontend front\n  bind {address}\n  default_backend app\n\
         backend app\n  http-reuse always\n  server app {upstream} proto h2\n"
    );
    let path = directory.join("haproxy.cfg");
    fs::write(&path, configuration).unwrap();
    let spawned = ["haproxy", "/usr/sbin/haproxy"].iter().find_map(|program| {
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(&path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
    });
    let process = Process(spawned.expect("HAProxy cannot be started: run tests/install-deps"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(address).await.is_err() {
        assert!(Instant::now() < deadline, "HAProxy does not listen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (process, address, directory)
}

/// Sends a request over a connection of its own. Returns the status of the response, or 0 if there is none.
async fn send(address: SocketAddr, method: Method, path: &str, size: usize) -> u16 {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let _connection = Task::spawn(async move {
        let _ = connection.await;
    });
    let body = Full::new(Bytes::from(vec![0; size]));
    let request = Request::builder().method(method).uri(path).header(HOST, "app").body(body).unwrap();
    sender.send_request(request).await.map_or(0, |answer| answer.status().as_u16())
}

type Seen = BTreeMap<u16, usize>;

/// Returns the statuses of the uploads of thirty clients, and those of another user meanwhile.
async fn statuses<D>(responder: HttpResponder<DefaultRejection, D>) -> [Seen; 2]
where
    D: UnreadBody<Body> + Clone + Send + Sync + 'static,
{
    let layer = RateLimitLayer::with_limiter(Global, used_up()).responder(responder);
    let uploads = Router::new().route("/up", post(|_: Bytes| async {})).layer(layer);
    let app = Server::start(uploads.route("/", get(|| async { "hello" }))).await;
    let (_process, address, _directory) = haproxy(app.address).await;
    assert_eq!(send(address, Method::GET, "/", 0).await, 200);
    let has_ended = Arc::new(AtomicBool::new(false));
    let mut uploaders = JoinSet::new();
    for _ in 0..UPLOADERS {
        uploaders.spawn(async move {
            let mut seen = Seen::new();
            for _ in 0..EACH {
                *seen.entry(send(address, Method::POST, "/up", SIZE).await).or_default() += 1;
            }
            seen
        });
    }
    let other = {
        let has_ended = has_ended.clone();
        tokio::spawn(async move {
            let mut seen = Seen::new();
            while !has_ended.load(Ordering::Relaxed) {
                *seen.entry(send(address, Method::GET, "/", 0).await).or_default() += 1;
            }
            seen
        })
    };
    let mut uploads = Seen::new();
    for (status, count) in uploaders.join_all().await.into_iter().flatten() {
        *uploads.entry(status).or_default() += count;
    }
    has_ended.store(true, Ordering::Relaxed);
    [uploads, other.await.unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_haproxy_drained_uploads_break_no_request_of_another_user() {
    let responder = HttpResponder::new().drain(2 * 1024 * 1024, Duration::from_secs(30));
    let [uploads, others] = statuses(responder).await;
    assert_eq!(uploads, Seen::from([(429, UPLOADERS * EACH)]));
    assert_eq!(others.keys().collect::<Vec<_>>(), [&200], "{others:?}");
}

/// Prints the statuses of uploads that are rejected without being read, and of another user: the figures of the guide.
/// `cargo test -p tower-throttle-tests --test nginx -- --ignored --nocapture figures_behind_haproxy`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures of the guide: .ci/nightly runs it, and its comment says how to see them"]
async fn figures_behind_haproxy() {
    let [uploads, others] = statuses(HttpResponder::new()).await;
    println!("HAProxy, default: uploads {uploads:?}, another user {others:?}");
}
