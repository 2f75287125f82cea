//! Clients behind nginx have a budget each, or are denied or unlimited by their address.

use http::StatusCode;
use tower_throttle::key::{ClientIp, Networks, TrustedProxies};

use crate::support::Answer;
use crate::{
    CLIENT, FORGERIES, Lines, NGINX, X_FORWARDED_FOR, app_for, ask, hops, nginx, seen, trusted, unlimited,
};

#[tokio::test]
async fn each_client_has_a_budget_of_its_own_and_forging_gets_no_other() {
    let app = app_for(ClientIp::x_forwarded_for(trusted()), 3).await;
    let inner = nginx(app.address, X_FORWARDED_FOR).await;
    let outer = nginx(inner.address, X_FORWARDED_FOR).await;
    // The client is the same through one nginx, through two, and without nginx.
    for server in [inner.address, outer.address, app.address] {
        assert_eq!(seen(CLIENT, server, &[]).await, CLIENT);
    }
    let rejected = |answer: &Answer| {
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{answer:?}");
        // nginx forwards what a denied caller receives.
        assert_eq!(answer.json()["status"], 429);
        assert_eq!(answer.retry_after(), 1_200);
        assert_eq!(answer.header("ratelimit"), "\"default\";r=0;t=1200");
    };
    for server in [inner.address, outer.address, app.address] {
        for lines in FORGERIES {
            rejected(&ask(CLIENT, server, lines).await);
        }
    }
    for left in [2, 1, 0] {
        let answer = ask("127.0.0.3", outer.address, &[("x-forwarded-for", CLIENT)]).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "127.0.0.3\n"));
        assert!(answer.header("ratelimit").starts_with(&format!("\"default\";r={left};")), "{answer:?}");
    }
    rejected(&ask("127.0.0.3", outer.address, &[]).await);
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
