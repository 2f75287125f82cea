//! The guide's handler of WebSockets, which counts the bytes of each message, against a server that is near or far.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::{Router, routing::any};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::key::Global;
use tower_throttle::{Meter, Quota, RateLimitLayer};
use tower_throttle_redis::{RedisLimiter, RedisStore};

use crate::patient;
use crate::support::Server;
use crate::support::redis_server::RedisServer;

const LIMIT: u64 = 1_000_000_000_000;
const MS: Duration = Duration::from_millis(1);
/// A message of one byte, as a client sends it: with a mask, which is zero.
const MESSAGE: [u8; 7] = *b"\x82\x81\0\0\0\0x";

/// Passes on what a server and its clients send. Replies take this long.
struct FarServer {
    address: SocketAddr,
    has_ended: Arc<AtomicBool>,
}

impl FarServer {
    fn start(server: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, has_ended) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&has_ended);
        thread::spawn(move || {
            for client in listener.incoming().take_while(|_| !ended.load(Ordering::SeqCst)) {
                pass_on(client.unwrap(), TcpStream::connect(server).unwrap(), delay);
            }
        });
        Self { address, has_ended }
    }
}

impl Drop for FarServer {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        // The thread notices it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

/// Passes on what both sides send, in threads that end with the connections.
fn pass_on(client: TcpStream, server: TcpStream, delay: Duration) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
    let (replies, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(length @ 1..) = from_server.read(&mut bytes) {
            let _ = replies.send((Instant::now() + delay, bytes[..length].to_vec()));
        }
    });
    thread::spawn(move || {
        for (due, bytes) in due {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to_client.write_all(&bytes).is_err() {
                return;
            }
        }
    });
}

/// What the handler has counted.
#[derive(Debug, Default)]
struct Counted {
    messages: AtomicU64,
    /// The longest call of `add`, in nanoseconds, and the number of those above 50 us.
    longest: AtomicU64,
    above: AtomicU64,
    /// The number of loops above 50 us that take as long as an `add`, if the thread is not interrupted.
    interrupted: AtomicU64,
    /// `true` if the handler counts no units.
    without_meter: bool,
}

/// The handler of the guide, which also measures how long `add` takes.
async fn open(State(counted): State<Arc<Counted>>, meter: Meter, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(|mut socket: WebSocket| async move {
        while let Some(Ok(message)) = socket.recv().await {
            let units = message.into_data().len() as u64;
            if counted.without_meter {
                counted.messages.fetch_add(units, Ordering::Relaxed);
                continue;
            }
            let began = Instant::now();
            meter.add(units);
            let took = began.elapsed().as_nanos() as u64;
            counted.longest.fetch_max(took, Ordering::Relaxed);
            if took > 50_000 {
                counted.above.fetch_add(1, Ordering::Relaxed);
            }
            let began = Instant::now();
            (0..200).for_each(|number| _ = std::hint::black_box(number));
            if began.elapsed() > MS / 20 {
                counted.interrupted.fetch_add(1, Ordering::Relaxed);
            }
            counted.messages.fetch_add(units, Ordering::Relaxed);
        }
    })
}

/// Opens a socket. On a busy machine, a request may fail at the deadline of its call. It is then made again.
fn connect(address: SocketAddr) -> TcpStream {
    loop {
        if let Some(socket) = try_connect(address) {
            return socket;
        }
    }
}

fn try_connect(address: SocketAddr) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(address).unwrap();
    let request = "GET /socket HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    head.starts_with(b"HTTP/1.1 101").then_some(socket)
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// Sends at most `most` messages for `time` over all `sockets`: `rate` of them a second or, without a rate, as many as
/// are received. Returns their number.
fn send(sockets: &mut [TcpStream], rate: Option<u64>, time: Duration, most: u64) -> u64 {
    let (start, count) = (Instant::now(), sockets.len() as u64);
    let mut sent = 0;
    match rate {
        None => {
            // Enough to keep the server busy, and little enough to end in time.
            let each = (20_000 / count).max(20);
            let messages = MESSAGE.repeat(each as usize);
            while start.elapsed() < time && sent < most {
                for socket in &mut *sockets {
                    socket.write_all(&messages).unwrap();
                }
                sent += each * count;
            }
        }
        Some(rate) => {
            while start.elapsed() < time {
                let due = start.elapsed().as_micros() as u64 * rate / 1_000_000;
                let at_once = (due - sent).div_ceil(count);
                while sent < due {
                    let now = at_once.min(due - sent);
                    let socket = &mut sockets[(sent / at_once % count) as usize];
                    socket.write_all(&MESSAGE.repeat(now as usize)).unwrap();
                    sent += now;
                }
                thread::sleep(MS);
            }
        }
    }
    sent
}

/// The figures of a run.
#[derive(Debug)]
struct Run {
    sent: u64,
    charged: u64,
    uncharged: u64,
    failed: u64,
    /// The number of calls with another key, and how many of them failed.
    others: (u64, u64),
    /// The time after the last message for which calls with the key failed.
    unusable: Duration,
    memory: (u64, u64),
    longest: Duration,
    above: u64,
    interrupted: u64,
}

/// Lets clients send messages over `sockets` sockets of one key. The server replies after `delay`. With
/// `without_meter`, the handler counts nothing: calls with another key that fail then, fail because the machine is
/// busy.
async fn run(sockets: usize, rate: Option<u64>, delay: Duration, most: u64, without_meter: bool) -> Run {
    let server = RedisServer::start();
    let far = FarServer::start(server.address(), delay);
    let address = if delay.is_zero() { server.address() } else { far.address };
    let store = RedisStore::builder(&format!("redis://{address}"))
        .connect_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap();
    let window = FixedWindow::new(Quota::per_day(LIMIT));
    let limiter = store.limiter("bytes", window.clone()).build().unwrap();
    let direct = patient(&server).connect().await.unwrap().limiter("bytes", window).build().unwrap();
    let counted = Arc::new(Counted { without_meter, ..Counted::default() });
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).metered();
    let app = Router::new().route("/socket", any(open)).layer(layer).with_state(Arc::clone(&counted));
    let app = Server::start(app).await;
    let address = app.address;
    let mut clients =
        tokio::task::spawn_blocking(move || (0..sockets).map(|_| connect(address)).collect::<Vec<_>>());
    let mut clients = (&mut clients).await.unwrap();
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    // Opening the sockets has cost this much.
    let base = LIMIT - direct.peek(&()).await.unwrap().remaining();
    let memory = resident();
    let is_over = Arc::new(AtomicBool::new(false));
    let others = tokio::spawn(other_calls(limiter.clone(), Arc::clone(&is_over)));
    let highest = Arc::new(AtomicU64::new(0));
    let sampler = thread::spawn({
        let (highest, is_over) = (Arc::clone(&highest), Arc::clone(&is_over));
        move || {
            while !is_over.load(Ordering::SeqCst) {
                highest.fetch_max(resident(), Ordering::SeqCst);
                thread::sleep(10 * MS);
            }
        }
    });
    let (sent, clients) = tokio::task::spawn_blocking(move || {
        (send(&mut clients, rate, Duration::from_secs(3), most), clients)
    })
    .await
    .unwrap();
    while counted.messages.load(Ordering::Relaxed) < sent {
        tokio::time::sleep(MS).await;
    }
    let end = Instant::now();
    let mut usable = None;
    while usable.is_none() {
        usable = limiter.peek(&()).await.is_ok().then(|| end.elapsed());
        tokio::time::sleep(MS).await;
    }
    assert_eq!(store.flush(Duration::from_secs(60)).await, 0);
    is_over.store(true, Ordering::SeqCst);
    sampler.join().unwrap();
    let peeked = direct.peek(&()).await.unwrap();
    let stats = limiter.stats();
    drop(clients);
    Run {
        sent,
        charged: LIMIT - peeked.remaining() - base,
        uncharged: stats.units.uncharged,
        failed: stats.store.settle_errors,
        others: others.await.unwrap(),
        unusable: usable.unwrap(),
        memory: (memory, highest.load(Ordering::SeqCst)),
        longest: Duration::from_nanos(counted.longest.load(Ordering::Relaxed)),
        above: counted.above.load(Ordering::Relaxed),
        interrupted: counted.interrupted.load(Ordering::Relaxed),
    }
}

/// Makes calls with another key, one after another. Returns their number, and how many of them failed.
async fn other_calls(limiter: RedisLimiter<FixedWindow>, is_over: Arc<AtomicBool>) -> (u64, u64) {
    let (mut made, mut failed) = (0, 0);
    while !is_over.load(Ordering::SeqCst) {
        made += 1;
        failed += u64::from(limiter.check("other").await.is_err());
        tokio::time::sleep(MS).await;
    }
    (made, failed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures: .ci/nightly runs it. With `--release -- --ignored --nocapture`, it prints the figures"]
async fn all_bytes_of_sockets_are_charged_at_each_speed_and_distance() {
    for rate in [None, Some(18_000)] {
        for sockets in [1, 2_000] {
            for micros in [0, 7_000, 11_000] {
                let delay = Duration::from_micros(micros);
                let control = run(sockets, rate, delay, u64::MAX, true).await;
                let run = run(sockets, rate, delay, u64::MAX, false).await;
                let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                println!(
                    "{:>10} {sockets:>4} sockets {delay:>6?}: {:>8} of {:>8} charged, {:.4}; uncharged {}, \
                     {} failed; others {} of {} failed, {} of {} without a meter; unusable {:?}; {:.0} to {:.0} MiB; \
                     longest add {:?}, {} above 50 us, and {} of as many loops of about that length",
                    rate.map_or("full speed".to_owned(), |rate| format!("{rate}/s")),
                    run.charged,
                    run.sent,
                    run.charged as f64 / run.sent as f64,
                    run.uncharged,
                    run.failed,
                    run.others.1,
                    run.others.0,
                    control.others.1,
                    control.others.0,
                    run.unusable,
                    mib(run.memory.0),
                    mib(run.memory.1),
                    run.longest,
                    run.above,
                    run.interrupted,
                );
                assert_eq!((run.charged, run.failed), (run.sent, 0));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bytes_of_fast_sockets_are_charged_by_a_server_that_is_far() {
    let run = run(3, None, 7 * MS, 50_000, false).await;
    assert!(run.sent >= 50_000, "{run:?}");
    assert_eq!((run.charged, run.uncharged, run.failed), (run.sent, 0, 0), "{run:?}");
}
