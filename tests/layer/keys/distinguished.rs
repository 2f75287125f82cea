//! Callers have a budget each: users, addresses, methods, prefixes, and clients behind proxies.

use std::net::IpAddr;

use http::Request;
use http_body_util::Full;
use tower_throttle::key::{
    Bearer, ClientIp, Cookie, Extension, Header, Method, PeerIp, TrustedProxies, first_of,
};
use tower_throttle::{RateLimitLayer, RateLimiter};

use super::{ask, at_once, from, get, statuses, with, with_peer};

#[tokio::test]
async fn a_key_that_the_layer_finds_is_the_same_to_the_limiter() {
    let limiter = RateLimiter::new(at_once(1));
    let by_ip = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone());
    assert_eq!(statuses!(by_ip, from("1.2.3.4"), from("1.2.3.4")), [200, 429]);
    assert!(!limiter.check(&IpAddr::from([1, 2, 3, 4])).is_allowed());
    limiter.reset(&IpAddr::from([1, 2, 3, 4]));
    assert_eq!(ask(&by_ip, from("1.2.3.4")).await.status, 200);

    let limiter = RateLimiter::new(at_once(1));
    let token = || with(get("/"), "authorization", "Bearer t0ken");
    let by_token = RateLimitLayer::with_limiter(Bearer::new(), limiter.clone());
    assert_eq!(statuses!(by_token, token(), token()), [200, 429]);
    limiter.reset(&Bearer::new().key("t0ken"));
    assert_eq!(ask(&by_token, token()).await.status, 200);

    let limiter = RateLimiter::new(at_once(1));
    let header = || with(get("/"), "x-api-key", "4711");
    let by_header = RateLimitLayer::with_limiter(Header::new("x-api-key").unwrap(), limiter.clone());
    assert_eq!(statuses!(by_header, header(), header()), [200, 429]);
    limiter.reset(&Header::new("x-api-key").unwrap().key(&"4711".parse().unwrap()));
    assert_eq!(ask(&by_header, header()).await.status, 200);

    let limiter = RateLimiter::new(at_once(1));
    let cookie = || with(get("/"), "cookie", "a=b; session=4711");
    let by_cookie = RateLimitLayer::with_limiter(Cookie::new("session").unwrap(), limiter.clone());
    assert_eq!(statuses!(by_cookie, cookie(), cookie()), [200, 429]);
    limiter.reset(&Cookie::new("session").unwrap().key("4711"));
    assert_eq!(ask(&by_cookie, cookie()).await.status, 200);
}

#[tokio::test]
async fn users_are_distinguished_before_addresses_are() {
    #[derive(Clone)]
    struct User(u64);
    let signed_in = |id: u64, peer: &str| {
        let mut request = from(peer);
        request.extensions_mut().insert(User(id));
        request
    };
    let token = |token: &str, peer: &str| with(from(peer), "authorization", token);
    let by_user = first_of((Extension::<User, _>::new(|user| user.0), Bearer::new(), PeerIp::new()));
    let layer = RateLimitLayer::new(by_user, at_once(1));
    assert_eq!(
        statuses!(
            layer,
            signed_in(1, "1.2.3.4"),
            signed_in(2, "1.2.3.4"),
            signed_in(1, "5.6.7.8"),
            token("Bearer abc", "1.2.3.4"),
            token("Bearer abd", "1.2.3.4"),
            token("bearer abc", "5.6.7.8"),
            from("1.2.3.4"),
            token("Basic abc", "1.2.3.4"),
            from("5.6.7.8"),
        ),
        [200, 200, 429, 200, 200, 429, 200, 429, 200]
    );
}

#[tokio::test]
async fn parts_of_a_key_stay_apart() {
    let header = |name| Header::new(name).unwrap();
    let layer = RateLimitLayer::new((header("x-a"), header("x-b")), at_once(1));
    let request = |a: &str, b: &str| with(with(get("/"), "x-a", a), "x-b", b);
    assert_eq!(
        statuses!(
            layer,
            request("a", "bc"),
            request("ab", "c"),
            request("abc", ""),
            request("", "abc"),
            with(get("/"), "x-a", "abc"),
            with(get("/"), "x-b", "abc"),
            request("a", "bc"),
        ),
        [200, 200, 200, 200, 200, 200, 429]
    );
    // The parts of a key are hashed separately.
    let limiter = RateLimiter::new(at_once(1));
    assert!(limiter.check(&("a", "bc")).is_allowed());
    assert!(limiter.check(&("ab", "c")).is_allowed());
    assert!(!limiter.check(&("a", "bc")).is_allowed());
}

#[tokio::test]
async fn reading_and_writing_may_have_a_budget_each() {
    let layer = RateLimitLayer::new((PeerIp::new(), Method::by_safety()), at_once(1));
    let ask =
        |method: &str| with_peer(Request::builder().method(method).body(Full::default()).unwrap(), "1.2.3.4");
    assert_eq!(statuses!(layer, ask("GET"), ask("HEAD"), ask("POST"), ask("ANY")), [200, 429, 200, 429]);
    let layer = RateLimitLayer::new(Method::new(), at_once(1));
    assert_eq!(
        statuses!(layer, ask("GET"), ask("HEAD"), ask("POST"), ask("ONE"), ask("TWO"), ask("PUT")),
        [200, 429, 200, 200, 429, 200]
    );
}

#[tokio::test]
async fn two_prefixes_at_once_are_two_layers() {
    let by_site = PeerIp::new().ipv6_prefix(48).ipv4_prefix(24);
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(1))
        .and(RateLimitLayer::new(by_site, at_once(2)).name("site"));
    assert_eq!(
        statuses!(
            layer,
            from("2001:db8:1:1::1"),
            from("2001:db8:1:1::2"),
            from("2001:db8:1:2::1"),
            from("2001:db8:1:3::1"),
            from("2001:db8:2:1::1"),
        ),
        [200, 429, 200, 429, 200]
    );
}

#[tokio::test]
async fn proxies_may_be_replaced_while_requests_go_on() {
    let proxies = TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap();
    let layer = RateLimitLayer::new(ClientIp::x_forwarded_for(proxies.clone()), at_once(1));
    let behind = |peer: &str, client: &str| with(from(peer), "x-forwarded-for", client);
    assert_eq!(
        statuses!(
            layer,
            behind("10.0.0.1", "1.2.3.4"),
            behind("10.0.0.2", "1.2.3.4"),
            behind("192.0.2.1", "5.6.7.8"),
            behind("192.0.2.1", "9.9.9.9"),
        ),
        [200, 429, 200, 429]
    );
    proxies.replace(TrustedProxies::cidrs(["192.0.2.0/24"]).unwrap());
    assert_eq!(
        statuses!(
            layer,
            behind("10.0.0.1", "7.7.7.7"),
            behind("10.0.0.1", "8.8.8.8"),
            behind("192.0.2.1", "5.6.7.8"),
            behind("192.0.2.1", "5.6.7.8"),
        ),
        [200, 429, 200, 429]
    );
    proxies.replace(TrustedProxies::hops(2).unwrap());
    assert_eq!(
        statuses!(layer, behind("10.0.0.1", "3.3.3.3, 9.9.9.9"), behind("10.0.0.1", "3.3.3.3")),
        [200, 400]
    );
}
