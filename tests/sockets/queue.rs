//! Over a socket, responses to queued requests are never early, and seldom late.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::key::Header;
use tower_throttle::{Quota, RateLimitLayer};

use crate::support::{Client1, Server, request};

const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn over_a_socket_no_response_is_early_and_the_median_is_at_most_five_milliseconds_late() {
    const ROUNDS: usize = 7;
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(3);
    let layer = RateLimitLayer::new(Header::new("x-round").unwrap(), bucket);
    let limited = axum::Router::new().route("/", axum::routing::get(|| async {})).layer(layer);
    let server = Server::start(limited.route("/plain", axum::routing::get(|| async {}))).await;
    let mut late: [Vec<Duration>; 4] = Default::default();
    // The lateness of the machine itself. It is measured at the same instants, with a timer, and with a request that is
    // not limited.
    let mut plain: [Vec<Duration>; 4] = Default::default();
    for round in 0..ROUNDS {
        let together = Arc::new(Barrier::new(9));
        let mut calls = JoinSet::new();
        for _ in 0..5 {
            let mut client = Client1::http1(server.address).await;
            let together = together.clone();
            let mut request: Request<Full<Bytes>> = request(Method::GET, "/");
            request.headers_mut().insert("x-round", round.into());
            calls.spawn(async move {
                together.wait().await;
                let start = Instant::now();
                let answer = client.send(request).await;
                (start, Instant::now(), answer)
            });
        }
        let mut controls = JoinSet::new();
        for n in 0..4 {
            let mut client = Client1::http1(server.address).await;
            let together = together.clone();
            controls.spawn(async move {
                together.wait().await;
                let slot = Instant::now() + MS * 100 * n;
                tokio::time::sleep_until(slot).await;
                client.send(request(Method::GET, "/plain")).await;
                (n as usize, slot.elapsed())
            });
        }
        let calls = calls.join_all().await;
        // The schedule begins when the first request is served, which is after the request was sent.
        let start = calls.iter().map(|(start, ..)| *start).min().unwrap();
        let mut passed = Vec::new();
        for (_, end, answer) in calls {
            match answer.status.as_u16() {
                200 => passed.push(end - start),
                429 => {
                    assert_eq!(answer.retry_after(), 1);
                    assert!(end - start < MS * 100, "rejected, but not immediately: {:?}", end - start);
                }
                _ => panic!("{answer:?}"),
            }
        }
        passed.sort_unstable();
        assert_eq!(passed.len(), 4);
        for (n, at) in passed.into_iter().enumerate() {
            let slot = MS * 100 * n as u32;
            late[n].push(at.checked_sub(slot).unwrap_or_else(|| panic!("number {n} is early: {at:?}")));
        }
        for (n, by) in controls.join_all().await {
            plain[n].push(by);
        }
    }
    let [late, plain] = [late, plain].map(|times| {
        times.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 2]
        })
    });
    for n in 0..4 {
        // The limit is 5 ms on a machine without delays of its own. It grows by the measured lateness of the machine.
        let machine = (plain[0] + plain[n]).saturating_sub(MS * 2);
        assert!(late[n] <= MS * 5 + machine, "late by {late:?}, and without a limit by {plain:?}");
    }
}
