//! Tests behind a real nginx. The client is limited by its own address, whatever headers it sends.
//!
//! Clients have different loopback addresses, and only Linux has more than one. 127.0.0.1 is the address of nginx, and
//! all others are clients.
#![cfg(all(feature = "axum", target_os = "linux"))]

#[path = "../../examples/behind_proxy/app.rs"]
mod app;
mod caching;
mod cloudflare;
mod haproxy;
mod header_fields;
mod limits;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod unix_sockets;
mod uploads;

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use server::{Nginx, at};
use support::{Answer, Server, Task, request};
use tokio::net::TcpSocket;
use tower_throttle::Quota;
use tower_throttle::key::{ClientIp, TrustedProxies};

/// The address that a forged header claims. No client here has it.
const FORGED: &str = "192.0.2.7";

/// The address from which only nginx calls.
const NGINX: &str = "127.0.0.1";

const CLIENT: &str = "127.0.0.2";

/// The usual configuration, which the guide recommends.
const X_FORWARDED_FOR: &str = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;";
const FORWARDED: &str = "proxy_set_header Forwarded $add_forwarded;";
const X_REAL_IP: &str = "proxy_set_header X-Real-IP $remote_addr;";

fn trusted() -> TrustedProxies {
    TrustedProxies::cidrs([NGINX]).unwrap()
}

fn hops(count: usize) -> TrustedProxies {
    TrustedProxies::hops(count).unwrap()
}

/// Returns an app that answers with the client's address and allows each client `limit` requests.
async fn app_for(client: ClientIp, limit: u64) -> Server {
    Server::start(app::app(client, Quota::per_hour(limit))).await
}

async fn unlimited(client: ClientIp) -> Server {
    app_for(client, 1_000).await
}

/// Starts nginx in front of the app at this address.
async fn nginx(upstream: SocketAddr, directives: &str) -> Nginx {
    let from = format!("proxy_bind {NGINX}; {directives}");
    Nginx::start(NGINX, &at(upstream), &from).await
}

type Lines<'a> = &'a [(&'static str, &'static str)];

fn asking(lines: Lines<'_>) -> Request<Full<Bytes>> {
    let mut request = request(Method::GET, "/");
    for (name, value) in lines {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        request.headers_mut().append(HeaderName::from_static(name), value);
    }
    request.headers_mut().entry(HOST).or_insert(HeaderValue::from_static("app"));
    request
}

/// Sends one request over a connection from `client`.
async fn ask(client: &str, server: SocketAddr, lines: Lines<'_>) -> Answer {
    let client: IpAddr = client.parse().unwrap();
    let socket = if client.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
    socket.bind((client, 0).into()).unwrap();
    let stream = socket.connect(server).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let _connection = Task::spawn(async move {
        let _ = connection.await;
    });
    Answer::read(sender.send_request(asking(lines)).await.unwrap()).await
}

/// Returns the client that the limiter sees.
async fn seen(client: &str, server: SocketAddr, lines: Lines<'_>) -> String {
    let answer = ask(client, server, lines).await;
    assert_eq!(answer.status, StatusCode::OK, "{client} with {lines:?}: {answer:?}");
    answer.text().trim_end().to_owned()
}

/// The headers that callers forge. They contain each header that may be read, alone and together, in one line and in
/// several lines, and malformed headers.
const FORGERIES: &[Lines<'_>] = &[
    &[],
    &[("x-forwarded-for", FORGED)],
    &[("x-forwarded-for", NGINX)],
    &[("x-forwarded-for", "192.0.2.7, 127.0.0.1")],
    &[("x-forwarded-for", "192.0.2.7"), ("x-forwarded-for", "192.0.2.7, 198.51.100.7")],
    &[("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", FORGED), ("x-forwarded-for", "127.0.0.1")],
    &[("x-forwarded-for", "")],
    &[("x-forwarded-for", ",,")],
    &[("x-forwarded-for", "unknown")],
    &[("x-forwarded-for", "192.0.2.7:80, \"[2001:db8::7]\", é")],
    &[("x-real-ip", FORGED)],
    &[("x-real-ip", FORGED), ("x-real-ip", "198.51.100.7")],
    &[("forwarded", "for=192.0.2.7")],
    &[("forwarded", "for=127.0.0.1;by=127.0.0.1")],
    &[("forwarded", "for=192.0.2.7, for=\"[2001:db8::7]:80\"")],
    &[("forwarded", "for=192.0.2.7"), ("forwarded", "for=192.0.2.7")],
    &[("forwarded", "for=\"192.0.2.7")],
    &[("forwarded", "for=192.0.2.7;x=\"")],
    &[("forwarded", "for=192.0.2.7;x=\"\\")],
    &[("forwarded", "for=192.0.2.7;x=\\")],
    &[("forwarded", "nonsense")],
    &[("forwarded", ";;;")],
    &[("x-forwarded-for", FORGED), ("forwarded", "for=192.0.2.7"), ("x-real-ip", FORGED)],
    // If nginx obeyed this field, it would remove its own header line.
    &[("connection", "x-forwarded-for, forwarded, x-real-ip")],
    &[("connection", "close, X-Forwarded-For"), ("x-forwarded-for", FORGED)],
];

/// Checks two clients with every forged header.
async fn assert_finds_clients(server: SocketAddr) {
    for lines in FORGERIES {
        for client in [CLIENT, "127.0.0.3"] {
            assert_eq!(seen(client, server, lines).await, client, "{lines:?}");
        }
    }
}
