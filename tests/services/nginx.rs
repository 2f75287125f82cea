//! Tests behind a real nginx. The client is limited by its own address, whatever headers it sends.
//!
//! Clients have different loopback addresses, and only Linux has more than one. 127.0.0.1 is the address of nginx, and
//! all others are clients.
#![cfg(all(feature = "axum", target_os = "linux"))]

#[path = "../../examples/behind_proxy/app.rs"]
mod app;
#[path = "nginx/caching.rs"]
mod caching;
#[path = "nginx/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;
#[path = "nginx/uploads.rs"]
mod uploads;

use std::net::{IpAddr, SocketAddr};

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::serve::IncomingStream;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use server::{Directory, Nginx, at, at_socket};
use support::{Answer, Server, Task, request};
use tokio::net::{TcpSocket, UnixListener};
use tower_throttle::Quota;
use tower_throttle::key::{ClientIp, Networks, TrustedProxies};

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

#[tokio::test]
async fn one_nginx_adds_to_x_forwarded_for() {
    for trusted in [trusted(), hops(1)] {
        let app = unlimited(ClientIp::x_forwarded_for(trusted)).await;
        let nginx = nginx(app.address, X_FORWARDED_FOR).await;
        assert_finds_clients(nginx.address).await;
    }
}

#[tokio::test]
async fn two_in_a_row_add_to_x_forwarded_for() {
    for trusted in [trusted(), hops(2)] {
        let app = unlimited(ClientIp::x_forwarded_for(trusted)).await;
        let inner = nginx(app.address, X_FORWARDED_FOR).await;
        let outer = nginx(inner.address, X_FORWARDED_FOR).await;
        assert_finds_clients(outer.address).await;
    }
}

#[tokio::test]
async fn one_nginx_adds_to_forwarded() {
    for trusted in [trusted(), hops(1)] {
        let app = unlimited(ClientIp::forwarded(trusted)).await;
        let nginx = nginx(app.address, FORWARDED).await;
        assert_finds_clients(nginx.address).await;
    }
}

#[tokio::test]
async fn two_in_a_row_add_to_forwarded() {
    for trusted in [trusted(), hops(2)] {
        let app = unlimited(ClientIp::forwarded(trusted)).await;
        let inner = nginx(app.address, FORWARDED).await;
        let outer = nginx(inner.address, FORWARDED).await;
        assert_finds_clients(outer.address).await;
    }
}

#[tokio::test]
async fn nginx_sets_x_real_ip() {
    let client = || ClientIp::header("x-real-ip").unwrap();
    let app = unlimited(client()).await;
    let inner = nginx(app.address, X_REAL_IP).await;
    assert_finds_clients(inner.address).await;
    // With two proxies, the inner proxy forwards what the outer proxy has written.
    let inner = nginx(app.address, "").await;
    let outer = nginx(inner.address, X_REAL_IP).await;
    assert_finds_clients(outer.address).await;

    // If callers can reach the app directly, they could claim any address. So the configuration must say which peers
    // may send the header.
    let forged: Lines<'_> = &[("x-real-ip", FORGED)];
    assert_eq!(seen(CLIENT, app.address, forged).await, FORGED);
    let app = unlimited(client().only_from(Networks::new([NGINX]).unwrap())).await;
    assert_finds_clients(app.address).await;
    assert_finds_clients(nginx(app.address, X_REAL_IP).await.address).await;
}

#[tokio::test]
async fn an_nginx_that_forwards_x_real_ip_is_believed_but_two_field_lines_are_noticed() {
    let app = unlimited(ClientIp::header("x-real-ip").unwrap()).await;
    let nginx = nginx(app.address, "").await;
    assert_eq!(seen(CLIENT, nginx.address, &[("x-real-ip", FORGED)]).await, FORGED);
    for (lines, status) in [
        (&[][..], StatusCode::INTERNAL_SERVER_ERROR),
        (&[("x-real-ip", FORGED), ("x-real-ip", FORGED)], StatusCode::BAD_REQUEST),
    ] {
        let answer = ask(CLIENT, nginx.address, lines).await;
        assert_eq!(answer.status, status, "{lines:?}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(!detail.contains("x-real-ip") && !detail.contains(FORGED), "{detail}");
    }
}

#[tokio::test]
async fn what_nginx_copies_from_a_caller_into_its_own_entry_is_believed() {
    // The caller sends `host`, with quotes and commas. It ends the entry of nginx, and begins a second entry.
    let copying = "proxy_set_header Forwarded 'for=$remote_addr;host=\"$http_host\"';";
    let app = unlimited(ClientIp::forwarded(trusted())).await;
    let nginx = nginx(app.address, copying).await;
    assert_eq!(seen(CLIENT, nginx.address, &[]).await, CLIENT);
    let forged: Lines<'_> = &[("host", "app\",for=192.0.2.7;host=\"app")];
    assert_eq!(seen(CLIENT, nginx.address, forged).await, FORGED);
}

#[tokio::test]
async fn past_nginx_the_peer_address_is_the_client() {
    for client in [ClientIp::x_forwarded_for(trusted()), ClientIp::forwarded(trusted())] {
        let app = unlimited(client).await;
        assert_finds_clients(app.address).await;
    }
}

#[tokio::test]
async fn without_the_header_nginx_itself_is_the_client_but_hops_are_an_error() {
    // Without `proxy_set_header`, nginx forwards what the client sends, and nothing shows this.
    let app = unlimited(ClientIp::x_forwarded_for(trusted())).await;
    let forgetful = nginx(app.address, "").await;
    assert_eq!(seen(CLIENT, forgetful.address, &[]).await, NGINX);
    // There is one hop less than configured.
    let app = unlimited(ClientIp::x_forwarded_for(hops(2))).await;
    let alone = nginx(app.address, X_FORWARDED_FOR).await;
    let answer = ask(CLIENT, alone.address, &[]).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(!answer.json()["detail"].as_str().unwrap().contains("x-forwarded-for"), "{answer:?}");
}

#[tokio::test]
async fn each_client_has_a_budget_of_its_own_and_forging_gets_no_other() {
    let app = app_for(ClientIp::x_forwarded_for(trusted()), 3).await;
    let inner = nginx(app.address, X_FORWARDED_FOR).await;
    let outer = nginx(inner.address, X_FORWARDED_FOR).await;
    // The client is the same through one nginx, through two, and without nginx.
    for server in [inner.address, outer.address, app.address] {
        assert_eq!(seen(CLIENT, server, &[]).await, CLIENT);
    }
    let refused = |answer: &Answer| {
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{answer:?}");
        // nginx forwards what a denied caller receives.
        assert_eq!(answer.json()["status"], 429);
        assert_eq!(answer.retry_after(), 1_200);
        assert_eq!(answer.header("ratelimit"), "\"default\";r=0;t=1200");
    };
    for server in [inner.address, outer.address, app.address] {
        for lines in FORGERIES {
            refused(&ask(CLIENT, server, lines).await);
        }
    }
    for left in [2, 1, 0] {
        let answer = ask("127.0.0.3", outer.address, &[("x-forwarded-for", CLIENT)]).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "127.0.0.3\n"));
        assert!(answer.header("ratelimit").starts_with(&format!("\"default\";r={left};")), "{answer:?}");
    }
    refused(&ask("127.0.0.3", outer.address, &[]).await);
    // The address that was forged has made no call, so it was not charged.
    assert_eq!(seen("127.0.0.4", outer.address, &[]).await, "127.0.0.4");
}

#[tokio::test]
async fn denied_and_unlimited_addresses_are_recognised_behind_nginx_too() {
    let [denied, allowed] = ["127.0.0.3", "127.0.0.4"];
    let networks = |address| Networks::new([address]).unwrap();
    let client = ClientIp::x_forwarded_for(trusted()).deny(networks(denied)).allow(networks(allowed));
    let app = app_for(client, 1).await;
    let nginx = nginx(app.address, X_FORWARDED_FOR).await;
    for name in [denied, allowed, CLIENT] {
        let lines: Lines<'_> = &[("x-forwarded-for", name)];
        let status = async |client| ask(client, nginx.address, lines).await.status;
        assert_eq!(status(denied).await, StatusCode::FORBIDDEN, "as {name}");
        assert_eq!(status(allowed).await, StatusCode::OK, "as {name}");
    }
    assert_eq!(seen(CLIENT, nginx.address, &[]).await, CLIENT);
    for name in [allowed, denied] {
        let answer = ask(CLIENT, nginx.address, &[("x-forwarded-for", name)]).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "as {name}");
    }
}

#[tokio::test]
async fn trust_is_moved_while_requests_go_on() {
    let proxies = trusted();
    let app = unlimited(ClientIp::x_forwarded_for(proxies.clone())).await;
    let nginx = nginx(app.address, X_FORWARDED_FOR).await;
    assert_eq!(seen(CLIENT, nginx.address, &[]).await, CLIENT);
    proxies.replace(TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap());
    assert_eq!(seen(CLIENT, nginx.address, &[]).await, NGINX);
    proxies.replace(hops(1));
    assert_eq!(seen(CLIENT, nginx.address, &[]).await, CLIENT);
}

#[tokio::test]
async fn clients_with_ipv6_addresses() {
    if tokio::net::TcpListener::bind("[::1]:0").await.is_err() {
        println!("skipped: this machine has no ::1");
        return;
    }
    for (client, directives) in [
        (ClientIp::x_forwarded_for(trusted()), X_FORWARDED_FOR),
        (ClientIp::forwarded(trusted()), FORWARDED),
        (ClientIp::header("x-real-ip").unwrap(), X_REAL_IP),
    ] {
        let app = unlimited(client).await;
        let from = format!("proxy_bind {NGINX}; {directives}");
        let nginx = Nginx::start("::1", &at(app.address), &from).await;
        for lines in FORGERIES {
            assert_eq!(seen("::1", nginx.address, lines).await, "::1", "{lines:?}");
        }
        // IPv4 clients call this socket as a dual-stack socket, so nginx writes `::ffff:127.0.0.2`.
        let mapped = "[::ffff:127.0.0.1]:PORT ipv6only=off";
        let both = Nginx::listening(mapped, NGINX, &at(app.address), &from).await;
        assert_finds_clients(both.address).await;
    }
}

/// The peer of a Unix socket.
#[derive(Clone)]
struct Nobody;

impl Connected<IncomingStream<'_, UnixListener>> for Nobody {
    fn connect_info(_: IncomingStream<'_, UnixListener>) -> Self {
        Self
    }
}

/// Starts an app behind a unix socket, where the peer has no address.
async fn app_at_socket(directory: &Directory, client: ClientIp) -> (Task, String) {
    let path = directory.join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let client = client.peer_from(|_: &ConnectInfo<Nobody>| None::<IpAddr>);
    let app = app::app(client, Quota::per_hour(1_000));
    let serve = axum::serve(listener, app.into_make_service_with_connect_info::<Nobody>());
    (Task::spawn(async move { serve.await.unwrap() }), at_socket(&path))
}

#[tokio::test]
async fn nginx_calls_over_a_unix_socket() {
    let unix = || TrustedProxies::cidrs(["unix", NGINX]).unwrap();
    let only_unix = || Networks::new(["unix"]).unwrap();
    for (client, directives) in [
        (ClientIp::x_forwarded_for(unix()), X_FORWARDED_FOR),
        (ClientIp::x_forwarded_for(hops(1)), X_FORWARDED_FOR),
        (ClientIp::forwarded(unix()), FORWARDED),
        (ClientIp::header("x-real-ip").unwrap().only_from(only_unix()), X_REAL_IP),
    ] {
        let directory = Directory::new();
        let (_serving, upstream) = app_at_socket(&directory, client).await;
        let nginx = Nginx::start(NGINX, &upstream, directives).await;
        assert_finds_clients(nginx.address).await;
    }
    // The outer proxy listens on TCP, and the inner proxy on the socket.
    let directory = Directory::new();
    let (_serving, upstream) = app_at_socket(&directory, ClientIp::x_forwarded_for(unix())).await;
    let inner = Nginx::start(NGINX, &upstream, X_FORWARDED_FOR).await;
    let outer = nginx(inner.address, X_FORWARDED_FOR).await;
    assert_finds_clients(outer.address).await;
}

#[tokio::test]
async fn an_nginx_that_is_called_over_a_unix_socket_writes_no_address() {
    // nginx writes `unix:`, which is an entry without an address, and counts as a hop. With two hops, the entry to the
    // left of it is read.
    for (proxies, found) in
        [(trusted(), false), (TrustedProxies::cidrs(["unix", NGINX]).unwrap(), false), (hops(2), true)]
    {
        let app = unlimited(ClientIp::x_forwarded_for(proxies)).await;
        let directory = Directory::new();
        let path = directory.join("inner.sock");
        let listen = format!("{NGINX}:PORT; listen unix:{}", path.display());
        let from = format!("proxy_bind {NGINX}; {X_FORWARDED_FOR}");
        let _inner = Nginx::listening(&listen, NGINX, &at(app.address), &from).await;
        let outer = Nginx::start(NGINX, &at_socket(&path), X_FORWARDED_FOR).await;
        if found {
            assert_finds_clients(outer.address).await;
        } else {
            let answer = ask(CLIENT, outer.address, &[]).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
            assert!(!answer.json()["detail"].as_str().unwrap().contains("x-forwarded-for"), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn an_untrusted_unix_socket_is_an_error() {
    let directory = Directory::new();
    let (_serving, upstream) = app_at_socket(&directory, ClientIp::x_forwarded_for(trusted())).await;
    let nginx = Nginx::start(NGINX, &upstream, X_FORWARDED_FOR).await;
    let answer = ask(CLIENT, nginx.address, &[("x-forwarded-for", FORGED)]).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(!detail.contains("unix") && !detail.contains(FORGED), "{detail}");
}
