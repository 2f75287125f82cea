//! nginx calls the app over a Unix socket, or is called over one.

use std::net::IpAddr;

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::serve::IncomingStream;
use http::StatusCode;
use tokio::net::UnixListener;
use tower_throttle::Quota;
use tower_throttle::key::{ClientIp, Networks, TrustedProxies};

use crate::server::{Directory, Nginx, at, at_socket};
use crate::support::Task;
use crate::{
    CLIENT, FORGED, FORWARDED, NGINX, X_FORWARDED_FOR, X_REAL_IP, app, ask, assert_finds_clients, hops,
    nginx, trusted, unlimited,
};

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
