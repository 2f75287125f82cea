//! Clients that retry automatically. They are admitted at the first retry, with every algorithm.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::key::Global;
use tower_throttle::middleware::{BodyFormat, HeaderFormat, ResetFormat};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::run::{run, script};
use crate::support::{Server, Version, get as ask};

fn router() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// Returns an app whose limit is used up, so that the wait begins before the clients arrive.
async fn used_up<A: Algorithm>(algorithm: A) -> Server {
    let limiter = RateLimiter::new(algorithm);
    while limiter.check(&()).is_allowed() {}
    Server::start(router().layer(RateLimitLayer::with_limiter(Global, limiter))).await
}

async fn servers() -> Vec<Server> {
    let quota = Quota::per(1, Duration::from_millis(1_900)).unwrap();
    vec![
        used_up(FixedWindow::new(quota)).await,
        used_up(SlidingWindow::new(quota)).await,
        used_up(SlidingCounter::new(quota)).await,
        used_up(SlidingLog::new(quota)).await,
        used_up(TokenBucket::new(quota)).await,
        used_up(LeakyBucket::new(quota).queue(0)).await,
        used_up(Smooth::bursty(quota).queue(0)).await,
        // A limiter that is cold takes three times as long.
        used_up(
            Smooth::warming_up(Quota::per(1, Duration::from_millis(600)).unwrap(), Duration::from_secs(1))
                .queue(0),
        )
        .await,
        used_up((TokenBucket::new(quota), FixedWindow::new(quota))).await,
        used_up(Tiered::new(TokenBucket::new(quota))).await,
        used_up(SlidingWindow::new(quota).priority(20)).await,
        used_up(TokenBucket::new(quota).block_for(Duration::from_millis(2_500)).after(1)).await,
    ]
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| format!("http://{}/", server.address)).collect()
}

#[tokio::test]
async fn urllib3_gets_in_at_its_first_retry() {
    let servers = servers().await;
    let urls = urls(&servers);
    let arguments: Vec<_> = ["3"].into_iter().chain(urls.iter().map(String::as_str)).collect();
    let answers = script("retry.py", &arguments).await;
    assert_eq!(answers, vec![json!([200, [429]]); servers.len()]);
}

#[tokio::test]
async fn curl_is_admitted_at_its_first_retry() {
    let servers = servers().await;
    let urls = urls(&servers);
    let mut curls = JoinSet::new();
    for url in urls {
        curls.spawn(async move {
            let quiet = ["-q", "--silent", "--show-error", "--noproxy", "*", "--max-time", "20"];
            let retry = ["--retry", "3", "--write-out", "\n%{http_code}"];
            run("curl", &[&quiet[..], &retry, &[&url]].concat()).await
        });
    }
    for written in curls.join_all().await {
        // `written` contains the bodies of both responses, and the status of the last one.
        let rejections = written.matches("\"status\":429").count();
        assert!(rejections == 1 && written.ends_with("}hello\n200"), "{written}");
    }
}

/// Returns an app in which another call is in progress until half a second after the first rejection.
async fn occupied(responder: HttpResponder) -> Server {
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let permit = Arc::new(Mutex::new(Some(limiter.try_acquire_permit(&()).unwrap())));
    let release = move |response: Response| {
        if response.status() == 429
            && let Some(permit) = permit.lock().unwrap().take()
        {
            tokio::spawn(async move {
                sleep(Duration::from_millis(500)).await;
                drop(permit);
            });
        }
        async { response }
    };
    let layer = RateLimitLayer::with_limiter(Global, limiter).responder(responder);
    Server::start(router().layer(layer).layer(map_response(release))).await
}

#[tokio::test]
async fn where_the_wait_is_unknown_urllib3_retries_after_a_second() {
    let reported = occupied(HttpResponder::new()).await;
    let untold = occupied(HttpResponder::new().retry_after_unknown(None)).await;
    let servers = [reported, untold];
    let urls = urls(&servers);
    let answers = script("retry.py", &["3", &urls[0], &urls[1]]).await;
    assert_eq!(answers, [json!([200, [429]]), json!([429, [429, 429, 429]])]);
}

#[tokio::test]
async fn the_hint_is_in_retry_after_only_and_can_be_configured() {
    let hint = Duration::from_secs(7);
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let _permit = limiter.try_acquire_permit(&()).unwrap();
    let closed = RateLimiter::new(TokenBucket::new(Quota::per_second(1)));
    closed.close();
    let app = |responder: HttpResponder| {
        let busy = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(responder);
        let closed = RateLimitLayer::with_limiter(Global, closed.clone()).responder(responder);
        let busy = Router::new().route("/busy", get(|| async {})).layer(busy);
        Server::start(Router::new().route("/closed", get(|| async {})).layer(closed).merge(busy))
    };
    for (responder, seconds) in
        [(HttpResponder::new(), 1), (HttpResponder::new().retry_after_unknown(Some(hint)), 7)]
    {
        let server =
            app(responder
                .headers([HeaderFormat::Draft11, HeaderFormat::XRateLimit(ResetFormat::DeltaSeconds)]))
            .await;
        for (path, status) in [("/busy", 429), ("/closed", 503)] {
            let answer = ask(server.address, Version::Http1, path).await;
            assert_eq!((answer.status.as_u16(), answer.retry_after()), (status, seconds), "{answer:?}");
            assert!(!answer.has("x-ratelimit-reset"), "{answer:?}");
            if status == 429 {
                assert_eq!(answer.header("ratelimit"), r#""default";r=0"#);
            }
        }
    }
}

#[tokio::test]
async fn a_cost_that_never_fits_is_not_retried_where_its_status_says_so() {
    let app = |responder: HttpResponder| {
        let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_second(1)))
            .cost(|_: &Request<Body>| 2)
            .responder(responder);
        Server::start(router().layer(layer))
    };
    let bare = app(HttpResponder::new()).await;
    let chosen = HttpResponder::new()
        .never_fits_status(StatusCode::PAYLOAD_TOO_LARGE)
        .never_fits_body(BodyFormat::PlainText);
    let chosen = app(chosen).await;
    let problem = app(HttpResponder::new().never_fits_status(StatusCode::PAYLOAD_TOO_LARGE)).await;
    for (server, status) in [(&bare, 429), (&chosen, 413), (&problem, 413)] {
        let answer = ask(server.address, Version::Http1, "/").await;
        assert_eq!((answer.status.as_u16(), answer.has("retry-after")), (status, false), "{answer:?}");
        match status {
            _ if std::ptr::eq(server, &chosen) => assert_eq!(answer.text(), "rate limit exceeded\n"),
            _ => assert_eq!(answer.json()["status"], status),
        }
    }
    let servers = [bare, chosen];
    let urls = urls(&servers);
    let answers = script("retry.py", &["3", &urls[0], &urls[1]]).await;
    assert_eq!(answers, [json!([429, [429, 429, 429]]), json!([413, []])]);
}

#[tokio::test]
async fn calls_in_progress_that_cost_more_than_the_limit_never_fit() {
    let layer = RateLimitLayer::new(Global, Concurrency::per_key(2)).cost(|_: &Request<Body>| 3);
    let server = Server::start(router().layer(layer)).await;
    let answer = ask(server.address, Version::Http1, "/").await;
    assert_eq!((answer.status.as_u16(), answer.has("retry-after")), (429, false), "{answer:?}");
}
