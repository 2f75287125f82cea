//! Each layer in another place has the effect that the guide warns of.

use axum::Router;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn;
use axum::routing::get;
use http_body_util::Full;
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;

use super::{
    ANNA, BERT, ORIGIN, Probe, asking, by_address, by_user, cors, is_readable, preflight, routes, sign_in,
};
use crate::support::{Client1, Server, VERSIONS, Version, request, send};
use crate::{HERE, left, limiter, panics};

#[tokio::test]
async fn with_cors_inside_preflights_cost_units_and_rejections_cannot_be_read() {
    for version in VERSIONS {
        let address = limiter(3);
        let server = Server::start(routes().layer(cors()).layer(by_address(&address))).await;
        let get = || asking(Method::GET, "/", &[ORIGIN]);
        assert_eq!(send(server.address, version, preflight()).await.status, 200);
        assert_eq!(left(&address, &HERE), 2);
        assert!(is_readable(&send(server.address, version, get()).await));
        assert_eq!(send(server.address, version, preflight()).await.status, 200);
        for rejected in [preflight(), get()] {
            let answer = send(server.address, version, rejected).await;
            assert_eq!((answer.status, is_readable(&answer)), (StatusCode::TOO_MANY_REQUESTS, false));
        }
    }
}

#[tokio::test]
async fn with_cors_inside_preflights_can_be_left_uncounted_but_rejections_cannot_be_read() {
    for version in VERSIONS {
        let address = limiter(1);
        let layer = by_address(&address).unless(tower_throttle::key::Preflight);
        let server = Server::start(routes().layer(cors()).layer(layer)).await;
        for (status, readable) in [(200, true), (429, false)] {
            assert_eq!(send(server.address, version, preflight()).await.status, 200);
            let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN])).await;
            assert_eq!((answer.status.as_u16(), is_readable(&answer)), (status, readable), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn with_tracing_inside_rejections_are_not_seen() {
    let probe = Probe::default();
    let server = Server::start(probe.on(routes()).layer(by_address(&limiter(1)))).await;
    for status in [200, 429, 429] {
        assert_eq!(send(server.address, Version::Http1, request(Method::GET, "/")).await.status, status);
    }
    assert_eq!(probe.statuses(), [200]);
}

#[tokio::test]
async fn with_auth_outside_the_limit_by_address_guesses_are_never_rejected() {
    let address = limiter(5);
    let server = Server::start(routes().layer(by_address(&address)).layer(from_fn(sign_in))).await;
    let mut client = Client1::http1(server.address).await;
    for _ in 0..50 {
        let answer = client.send(asking(Method::GET, "/", &[("authorization", "Bearer guessed")])).await;
        assert_eq!((answer.status, answer.has("ratelimit")), (StatusCode::UNAUTHORIZED, false));
    }
    assert_eq!(left(&address, &HERE), 5);
}

#[tokio::test]
async fn with_the_limit_by_user_outside_of_auth_no_request_has_a_key() {
    let user = limiter(2);
    let server = Server::start(routes().layer(from_fn(sign_in)).layer(by_user(&user))).await;
    for (name, status) in [(ANNA, 500), (BERT, 500)] {
        let answer = send(server.address, Version::Http1, asking(Method::GET, "/", &[name])).await;
        assert_eq!(answer.status, status, "{name:?}");
    }
    assert_eq!([left(&user, &1_u64), left(&user, &2_u64)], [2, 2]);
}

#[tokio::test]
async fn with_the_limit_on_bodies_outside_a_body_that_is_too_large_is_not_counted() {
    let address = limiter(2);
    let server =
        Server::start(routes().layer(by_address(&address)).layer(RequestBodyLimitLayer::new(10))).await;
    for version in VERSIONS {
        let mut upload = request(Method::POST, "/upload");
        *upload.body_mut() = Full::from("eleven bytes");
        assert_eq!(send(server.address, version, upload).await.status, 413, "{version:?}");
    }
    assert_eq!(left(&address, &HERE), 2);
}

#[tokio::test]
async fn with_compression_outside_rejections_are_compressed_too() {
    let app = routes().layer(by_address(&limiter(1))).layer(CompressionLayer::new());
    let server = Server::start(app).await;
    for status in [200, 429] {
        let asked = asking(Method::GET, "/long", &[("accept-encoding", "gzip")]);
        let answer = send(server.address, Version::Http1, asked).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-encoding")), (status, "gzip"));
        assert!(answer.has("ratelimit"));
    }
}

#[tokio::test]
async fn catch_panic_belongs_outside_of_the_limits_and_inside_of_cors() {
    use tower_http::catch_panic::CatchPanicLayer;
    let routes = || Router::new().route("/", get(panics));
    for version in VERSIONS {
        let [inside, outside] = [limiter(2), limiter(2)];
        let app = routes().layer(by_address(&inside)).layer(CatchPanicLayer::new()).layer(cors());
        let server = Server::start(app).await;
        for (status, left_then) in [(500, 1), (500, 0), (429, 0)] {
            let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN])).await;
            assert_eq!((answer.status.as_u16(), is_readable(&answer)), (status, true), "{answer:?}");
            assert_eq!(left(&inside, &HERE), left_then);
        }
        let app = routes().layer(by_address(&outside)).layer(cors()).layer(CatchPanicLayer::new());
        let server = Server::start(app).await;
        let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN])).await;
        assert_eq!((answer.status.as_u16(), is_readable(&answer)), (500, false), "{answer:?}");
    }
}
