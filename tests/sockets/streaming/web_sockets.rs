//! A layer does not limit open WebSockets, because the body of the response ends with the upgrade. The guide's recipe
//! does.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, sleep};
use tower_throttle::algorithm::{Concurrency, TokenBucket};
use tower_throttle::key::{Global, PeerIp};
use tower_throttle::{Meter, Quota, RateLimitLayer, RateLimiter};

use super::at_last;
use crate::support::Server;

/// The recipe of the guide's chapter on concurrency limits.
async fn open(
    State(sockets): State<RateLimiter<Concurrency>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    upgrade: WebSocketUpgrade,
) -> Response {
    match sockets.try_acquire_permit(&PeerIp::new().key(peer.ip())) {
        Ok(permit) => upgrade.on_upgrade(|socket| async move {
            echo(socket).await;
            drop(permit);
        }),
        Err(_) => StatusCode::TOO_MANY_REQUESTS.into_response(),
    }
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

/// The client's side of a connection on which a WebSocket was requested.
struct Client(TcpStream);

impl Client {
    /// Requests a WebSocket. Returns the client, and the status of the response.
    async fn request(server: &Server) -> (Self, u16) {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = "GET /socket HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
            sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(at_last("the head of the response", stream.read_u8()).await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        (Self(stream), head.split(' ').nth(1).unwrap().parse().unwrap())
    }

    /// Opens a WebSocket, which must be admitted.
    async fn open(server: &Server) -> Self {
        let (client, status) = Self::request(server).await;
        assert_eq!(status, 101);
        client
    }

    /// Sends a text with an empty mask, and asserts that the server sends the text back.
    async fn is_echoed(&mut self) {
        self.0.write_all(b"\x81\x82\0\0\0\0hi").await.unwrap();
        let mut answer = [0; 4];
        at_last("an echo", self.0.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"\x81\x02hi");
    }

    /// Closes the WebSocket by a message of the protocol, and waits until the server ends the connection.
    async fn close(mut self) {
        self.0.write_all(b"\x88\x80\0\0\0\0").await.unwrap();
        at_last("the end of the connection", self.0.read_to_end(&mut Vec::new())).await.unwrap();
    }
}

#[tokio::test]
async fn a_permit_of_a_task_limits_open_web_sockets_until_they_end() {
    let sockets = RateLimiter::new(Concurrency::per_key(2));
    let server = Server::start(Router::new().route("/socket", get(open)).with_state(sockets.clone())).await;
    let is_free = async || {
        let key = PeerIp::new().key(server.address.ip());
        at_last("a free permit", async {
            while sockets.peek(&key).remaining() == 0 {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    let (mut first, mut second) = (Client::open(&server).await, Client::open(&server).await);
    first.is_echoed().await;
    assert_eq!(Client::request(&server).await.1, 429);
    first.close().await;
    is_free().await;
    let mut third = Client::open(&server).await;
    assert_eq!(Client::request(&server).await.1, 429);
    second.is_echoed().await;
    // The client disconnects without a message of the protocol.
    drop(second);
    is_free().await;
    third.is_echoed().await;
    let _fourth = Client::open(&server).await;
    assert_eq!(Client::request(&server).await.1, 429);
}

#[tokio::test]
async fn a_layer_releases_its_permit_when_a_web_socket_is_opened() {
    let layer = RateLimitLayer::new(Global, Concurrency::per_key(1));
    let limiter = layer.limiter().clone();
    let upgrade = async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
    let server = Server::start(Router::new().route("/socket", get(upgrade)).layer(layer)).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::open(&server).await);
        at_last("the release", async {
            while limiter.peek(&()).remaining() == 0 {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    for client in &mut clients {
        client.is_echoed().await;
    }
}

#[tokio::test]
async fn the_messages_of_a_web_socket_are_charged_one_by_one() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(100)));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).metered();
    // The response ends with the upgrade, so the connection itself costs the estimate of one.
    let upgrade = async |meter: Meter, upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(|mut socket| async move {
            while let Some(Ok(message)) = socket.recv().await {
                meter.add(10);
                if socket.send(message).await.is_err() {
                    return;
                }
            }
        })
    };
    let server = Server::start(Router::new().route("/socket", get(upgrade)).layer(layer)).await;
    let mut client = Client::open(&server).await;
    at_last("the end of the response", async {
        while limiter.peek(&()).remaining() != 99 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for messages in 1..=3 {
        client.is_echoed().await;
        assert_eq!(limiter.stats().units.charged, 10 * messages);
    }
    assert_eq!(limiter.peek(&()).remaining(), 69);
}
