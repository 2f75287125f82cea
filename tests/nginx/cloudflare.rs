//! Cloudflare, then nginx, then the app. Another nginx stands for Cloudflare: it overwrites `CF-Connecting-IP`, and
//! appends its peer to `X-Forwarded-For`.

use tower_throttle::key::{ClientIp, Networks, TrustedProxies};

use crate::server::{Nginx, at};
use crate::{
    CLIENT, FORGED, Lines, NGINX, X_FORWARDED_FOR, assert_finds_clients, nginx, seen, trusted, unlimited,
};

/// The network of Cloudflare, from which only Cloudflare calls.
const CLOUDFLARE: &str = "127.0.0.5";

/// Starts Cloudflare in front of nginx, and nginx in front of the app.
async fn both(client: ClientIp) -> (Nginx, Nginx, crate::support::Server) {
    let app = unlimited(client).await;
    let inner = nginx(app.address, X_FORWARDED_FOR).await;
    let directives =
        format!("proxy_bind {CLOUDFLARE}; {X_FORWARDED_FOR} proxy_set_header CF-Connecting-IP $remote_addr;");
    (Nginx::start(CLOUDFLARE, &at(inner.address), &directives).await, inner, app)
}

#[tokio::test]
async fn a_visitor_of_cloudflare_and_a_caller_that_goes_past_it_are_limited_by_their_own_addresses() {
    let proxies = TrustedProxies::cidrs([NGINX, CLOUDFLARE]).unwrap();
    let (cloudflare, nginx, app) = both(ClientIp::x_forwarded_for(proxies)).await;
    assert_finds_clients(cloudflare.address).await;
    assert_finds_clients(nginx.address).await;
    assert_finds_clients(app.address).await;
    let forged: Lines<'_> = &[("cf-connecting-ip", FORGED), ("x-forwarded-for", FORGED)];
    for server in [cloudflare.address, nginx.address, app.address] {
        assert_eq!(seen(CLIENT, server, forged).await, CLIENT);
    }
}

/// The rows of the guide for Cloudflare and for nginx, joined: nginx passes on what the caller sent.
#[tokio::test]
async fn past_cloudflare_a_caller_chooses_its_address_if_only_the_address_of_nginx_is_checked() {
    let only_from =
        |network| ClientIp::header("cf-connecting-ip").unwrap().only_from(Networks::new([network]).unwrap());
    let forged: Lines<'_> = &[("cf-connecting-ip", FORGED)];
    let (cloudflare, nginx, _app) = both(only_from(NGINX)).await;
    assert_eq!(seen(CLIENT, cloudflare.address, forged).await, CLIENT);
    assert_eq!(seen(CLIENT, nginx.address, forged).await, FORGED);
    // The row for Cloudflare alone gives all visitors one budget.
    let (cloudflare, _nginx, _app) = both(only_from(CLOUDFLARE)).await;
    assert_eq!(seen(CLIENT, cloudflare.address, &[]).await, NGINX);
    assert_eq!(seen("127.0.0.3", cloudflare.address, &[]).await, NGINX);
    // Without Cloudflare among the trusted proxies, so does the key for nginx.
    let (cloudflare, _nginx, _app) = both(ClientIp::x_forwarded_for(trusted())).await;
    assert_eq!(seen(CLIENT, cloudflare.address, &[]).await, CLOUDFLARE);
}
