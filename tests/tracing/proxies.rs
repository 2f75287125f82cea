//! A peer that seems to be a proxy, and a list of addresses that is too short, are warnings that name the fix.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::{ClientIp, Global, KeyExtractor, Networks, PeerIp, TrustedProxies};
use tower_throttle::{Quota, RateLimitLayer};

use crate::{Http, Log, get, hello};

#[tokio::test]
async fn the_first_list_that_is_too_short_for_the_hops_is_a_warning_that_names_the_fix() {
    let (log, _guard) = Log::start();
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::hops(2).unwrap());
    let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_second(1))).name("front door");
    for _ in 0..10 {
        let mut request = get();
        request.headers_mut().insert("x-forwarded-for", "192.0.2.1".parse().unwrap());
        assert_eq!(layer.clone().layer(service_fn(hello)).oneshot(request).await.unwrap().status(), 400);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 10, "{lines:#?}");
    assert!(lines[0].trim_start().starts_with("WARN") && lines[0].contains("front door"), "{lines:#?}");
    assert!(lines[0].contains("TrustedProxies::hops"), "{lines:#?}");
    assert!(lines[1..].iter().all(|line| line.starts_with("DEBUG")), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains("192.0.2.1")), "{lines:#?}");
}

/// Returns what is logged when a request from this peer with this header is sent twice.
async fn logged(by_peer: fn() -> PeerIp, peer: &str, header: Option<&'static str>) -> Vec<String> {
    let peer: IpAddr = peer.parse().unwrap();
    let mut logs = Vec::new();
    // The log does not depend on whether axum's server inserts the address.
    for is_axum in [false, true] {
        let (log, _guard) = Log::start();
        let layer = RateLimitLayer::new(by_peer(), TokenBucket::new(Quota::per_second(9)));
        for _ in 0..2 {
            let mut request = get();
            request.extensions_mut().insert(peer);
            if is_axum {
                request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer, 4711)));
            }
            if let Some(header) = header {
                request.headers_mut().insert(header, "192.0.2.1".parse().unwrap());
            }
            assert_eq!(layer.clone().layer(service_fn(hello)).oneshot(request).await.unwrap().status(), 200);
        }
        logs.push(log.lines());
    }
    assert_eq!(logs[0], logs[1]);
    logs.pop().unwrap_or_default()
}

#[tokio::test]
async fn a_peer_that_seems_to_be_a_proxy_is_a_warning_that_names_client_ip() {
    for peer in
        ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "::ffff:10.1.2.3", "fd00::1", "fe80::1"]
    {
        for header in [
            "x-forwarded-for",
            "forwarded",
            "x-real-ip",
            "cf-connecting-ip",
            "true-client-ip",
            "fly-client-ip",
        ] {
            let lines = logged(PeerIp::new, peer, Some(header)).await;
            let [line] = &lines[..] else { panic!("{peer} {header}: {lines:#?}") };
            assert!(line.trim_start().starts_with("WARN") && line.contains("`ClientIp`"), "{line}");
            assert!(line.contains("PeerIp") && !line.contains("192.0.2.1"), "{line}");
        }
        assert_eq!(logged(PeerIp::new, peer, None).await, [""; 0], "{peer}, without such a header");
        assert_eq!(logged(PeerIp::new, peer, Some("x-other")).await, [""; 0], "{peer}, with another header");
    }
    for peer in ["192.0.2.1", "8.8.8.8", "2001:db8::1", "172.32.0.1"] {
        assert_eq!(
            logged(PeerIp::new, peer, Some("x-forwarded-for")).await,
            [""; 0],
            "{peer} is on the internet"
        );
    }
    // An outer layer has inserted the client's address.
    let found = || PeerIp::new().peer_from(|address: &IpAddr| *address);
    assert_eq!(logged(found, "10.1.2.3", Some("x-forwarded-for")).await, [""; 0]);
}

/// A key for Cloudflare, used behind an nginx on the same machine, makes one budget for all visitors.
#[tokio::test]
async fn a_proxy_whose_header_is_not_read_is_a_warning_that_names_the_lists() {
    let cloudflare = || ["173.245.48.0/20"];
    let single =
        || ClientIp::header("cf-connecting-ip").unwrap().only_from(Networks::new(cloudflare()).unwrap());
    let listed = || ClientIp::x_forwarded_for(TrustedProxies::cidrs(cloudflare()).unwrap());
    let hops = || ClientIp::x_forwarded_for(TrustedProxies::hops(1).unwrap());
    for (client, peer, header, warns) in [
        (single(), "127.0.0.1", "cf-connecting-ip", true),
        (single(), "::ffff:10.0.0.1", "cf-connecting-ip", true),
        (single(), "127.0.0.1", "x-forwarded-for", false),
        (single(), "192.0.2.1", "cf-connecting-ip", false),
        (single(), "173.245.48.1", "cf-connecting-ip", false),
        (listed(), "172.17.0.1", "x-forwarded-for", true),
        (listed(), "172.17.0.1", "forwarded", false),
        (listed(), "173.245.48.1", "x-forwarded-for", false),
        (hops().only_from(Networks::new(cloudflare()).unwrap()), "127.0.0.1", "x-forwarded-for", true),
        (hops(), "127.0.0.1", "x-forwarded-for", false),
        (listed().peer_from(|address: &IpAddr| *address), "127.0.0.1", "x-forwarded-for", false),
    ] {
        let (log, _guard) = Log::start();
        let layer = RateLimitLayer::new(client.clone(), TokenBucket::new(Quota::per_second(9)));
        for _ in 0..2 {
            let mut request = get();
            request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
            request.headers_mut().insert(header, "192.0.2.7".parse().unwrap());
            assert_eq!(layer.clone().layer(service_fn(hello)).oneshot(request).await.unwrap().status(), 200);
        }
        let lines = log.lines();
        assert_eq!(lines.len(), usize::from(warns), "{client:?} {peer} {header}: {lines:#?}");
        for line in lines {
            assert!(line.trim_start().starts_with("WARN") && line.contains("`only_from`"), "{line}");
            assert!(line.contains("`TrustedProxies`") && !line.contains("192.0.2.7"), "{line}");
        }
    }
}

/// With `X-Forwarded-For` configured behind an nginx that sets only `X-Real-IP`, all visitors share one budget.
#[test]
fn a_trusted_proxy_that_writes_another_header_is_a_warning() {
    let lists = || {
        let proxies = || TrustedProxies::cidrs(["10.0.0.0/8", "192.0.2.0/24"]).unwrap();
        [ClientIp::x_forwarded_for(proxies()), ClientIp::forwarded(proxies())]
    };
    let found = lists().map(|client| client.peer_from(|address: &IpAddr| *address));
    let denying = lists().map(|client| client.deny(Networks::private()));
    for (clients, peer, header, warns) in [
        (lists(), "10.0.0.1", Some("x-real-ip"), true),
        (lists(), "::ffff:10.0.0.1", Some("cf-connecting-ip"), true),
        (lists(), "10.0.0.1", Some("x-other"), false),
        // A health check of the proxy itself has no such header.
        (lists(), "10.0.0.1", None, false),
        (lists(), "192.0.2.1", Some("x-real-ip"), false),
        (lists(), "127.0.0.1", Some("x-real-ip"), false),
        (found, "10.0.0.1", Some("x-real-ip"), false),
        (denying, "10.0.0.1", Some("x-real-ip"), false),
    ] {
        for client in clients {
            let mut request = get();
            request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
            if let Some(header) = header {
                request.headers_mut().insert(header, "192.0.2.7".parse().unwrap());
            }
            let (log, _guard) = Log::start();
            assert_eq!(client.resolve(&request).unwrap().to_string(), peer.trim_start_matches("::ffff:"));
            assert_eq!(log.lines(), [""; 0]);
            let _ = [client.extract(&request), client.extract(&request)];
            let lines = log.lines();
            assert_eq!(lines.len(), usize::from(warns), "{client:?} {peer} {header:?}: {lines:#?}");
            for line in lines {
                assert!(line.contains("tower-throttle[T03]") && line.contains("another header"), "{line}");
                assert!(line.contains("share one budget") && !line.contains("192.0.2.7"), "{line}");
            }
        }
    }
}

#[tokio::test]
async fn each_layer_warns_of_a_proxy_for_itself() {
    let (log, _guard) = Log::start();
    let key = || (PeerIp::new(), Global);
    let layer = RateLimitLayer::new(key(), TokenBucket::new(Quota::per_second(9)));
    let other = RateLimitLayer::new(key(), TokenBucket::new(Quota::per_second(9)));
    for layer in [&layer, &layer.clone(), &other, &layer] {
        layer.layer(service_fn(hello)).oneshot(forwarded()).await.unwrap();
    }
    assert_eq!(log.lines().len(), 2, "{:#?}", log.lines());
}

/// Returns a request that a peer on this machine has forwarded.
fn forwarded() -> Http {
    let mut request = get();
    request.extensions_mut().insert(IpAddr::from([127, 0, 0, 1]));
    request.headers_mut().insert("x-forwarded-for", "192.0.2.1".parse().unwrap());
    request
}

/// axum clones a handler, with the key in it, for each request.
#[test]
fn the_clones_of_a_key_warn_together() {
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::cidrs(["192.0.2.0/24"]).unwrap());
    let (by_peer, request) = (PeerIp::new(), forwarded());
    let (log, _guard) = Log::start();
    for _ in 0..10 {
        assert!(by_peer.clone().extract(&request).is_ok());
        assert!(by_client.clone().extract(&request).is_ok());
    }
    assert_eq!(log.counts("proxy_as_client"), [1, 1], "{:#?}", log.lines());
}

/// Code that only wants to know the address may call `resolve` for each request, on a new key each time.
#[test]
fn an_address_that_is_only_resolved_is_no_warning() {
    let (log, _guard) = Log::start();
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::cidrs(["192.0.2.0/24"]).unwrap());
    let loopback = Ok([127, 0, 0, 1].into());
    assert_eq!(
        [PeerIp::new().resolve(&forwarded()), by_client.resolve(&forwarded())],
        [loopback.clone(), loopback]
    );
    assert_eq!(log.lines(), [""; 0]);
}

#[test]
fn a_proxy_on_an_allow_list_is_a_warning_that_its_clients_are_not_limited() {
    let listed = || ClientIp::x_forwarded_for(TrustedProxies::cidrs(["192.0.2.0/24"]).unwrap());
    let (private, others) = (Networks::private(), Networks::new(["192.0.2.9"]).unwrap());
    let warning = |key: &dyn KeyExtractor<Http, Key = IpAddr>| {
        let (log, _guard) = Log::start();
        let _ = key.extract(&forwarded());
        log.lines().concat()
    };
    for (networks, is_limited) in [(&private, false), (&others, true)] {
        let by_peer = warning(&PeerIp::new().allow(networks.clone()));
        let by_client = warning(&listed().allow(networks.clone()));
        for line in [by_peer, by_client] {
            assert!(line.contains("tower-throttle[T03]"), "{line}");
            assert_eq!(line.contains("share one budget"), is_limited, "{line}");
            assert_eq!(line.contains("are not limited"), !is_limited, "{line}");
        }
        let denying =
            [warning(&PeerIp::new().deny(networks.clone())), warning(&listed().deny(networks.clone()))];
        assert_eq!(denying.map(|line| line.is_empty()), [!is_limited; 2], "who is denied shares no budget");
    }
}
