//! The client is found in `X-Forwarded-For`, `Forwarded` and `X-Real-IP`, as nginx writes them.

use http::StatusCode;
use tower_throttle::key::{ClientIp, Networks, TrustedProxies};

use crate::server::{Nginx, at};
use crate::{
    CLIENT, FORGED, FORGERIES, FORWARDED, Lines, NGINX, X_FORWARDED_FOR, X_REAL_IP, ask,
    assert_finds_clients, hops, nginx, seen, trusted, unlimited,
};

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
async fn a_forged_header_from_the_machine_of_nginx_is_believed() {
    // The guide says so: the key has to be checked from another address.
    for proxies in [trusted(), TrustedProxies::loopback()] {
        let app = unlimited(ClientIp::x_forwarded_for(proxies)).await;
        let nginx = nginx(app.address, X_FORWARDED_FOR).await;
        assert_eq!(seen(NGINX, nginx.address, &[("x-forwarded-for", FORGED)]).await, FORGED);
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
