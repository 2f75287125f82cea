//! The values that parsers of real clients read from the header fields.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{FieldNames, HeaderFormat, HttpResponder, ResetFormat, SendHeaders};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::run::script;
use crate::support::{self, Server, Version};

/// A burst of five, and one more call each 25.5 seconds, on a clock that stands still.
fn quota() -> Quota {
    Quota::per(10, Duration::from_secs(255)).unwrap().burst(5)
}

/// An app whose limit has `left` calls left.
async fn app(responder: HttpResponder, left: u64) -> Server {
    let limiter = RateLimiter::builder(TokenBucket::new(quota())).clock(ManualClock::new()).build();
    assert!(limiter.check_n(&(), 5 - left).is_allowed());
    let layer = RateLimitLayer::with_limiter(Global, limiter).name("api").responder(responder);
    Server::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await
}

fn url(server: &Server) -> String {
    format!("http://{}/", server.address)
}

/// Makes a call that is admitted with four units left, and a call that is rejected. Returns what the parsers for Node
/// and Python read from both responses.
async fn read(fields: &[HeaderFormat]) -> [[Value; 2]; 2] {
    let responder = HttpResponder::new().headers(fields.iter().copied());
    let mut read = Vec::new();
    for program in ["parse.mjs", "parse.py"] {
        let servers = [app(responder, 5).await, app(responder, 0).await];
        let urls = servers.each_ref().map(url);
        let arguments = urls.each_ref().map(String::as_str);
        let [admitted, rejected] = script(program, &arguments).await.try_into().unwrap();
        read.push([admitted, rejected]);
    }
    read.try_into().unwrap()
}

/// Returns whether `seconds` is the number of whole seconds until a date that was `expected` seconds ahead some time
/// ago.
fn is_about(seconds: &Value, expected: i64) -> bool {
    let seconds = seconds.as_i64().unwrap_or(-1);
    (expected - 10..=expected + 1).contains(&seconds)
}

#[track_caller]
fn assert_read([node, python]: &[[Value; 2]; 2]) {
    // A rejection reports the time of the retry, in 25.5 seconds, rounded up. An admission reports the time at which
    // the bucket is full again.
    for (at, remaining, delay) in [(0, 4, Value::Null), (1, 0, json!(26.0))] {
        let (node, python) = (&node[at], &python[at]);
        assert_eq!((&node["limit"], &node["remaining"]), (&json!(5), &json!(remaining)), "{node}");
        assert!(is_about(&node["seconds"], 26), "{node}");
        assert_eq!((&python["limit"], &python["remaining"]), (&json!(5), &json!(remaining)), "{python}");
        assert!(is_about(&python["reset"], 26), "{python}");
        assert_eq!(python["delay"], delay, "{python}");
    }
}

#[tokio::test]
async fn octokit_waits_until_the_next_unit() {
    let server =
        app(HttpResponder::new().headers([HeaderFormat::XRateLimit(ResetFormat::default())]), 0).await;
    let [seconds] = script("octokit.mjs", &[&url(&server)]).await.try_into().unwrap();
    // The client waits 25.5 seconds, rounded up, and one second that it adds. It does not wait 127.5 seconds, until all
    // five units are available.
    let seconds = seconds.as_u64().expect("a number of seconds");
    assert!((10..=28).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn x_ratelimit_is_read() {
    assert_read(&read(&[HeaderFormat::XRateLimit(ResetFormat::EpochSeconds)]).await);
}

#[tokio::test]
async fn draft_6_is_read() {
    assert_read(&read(&[HeaderFormat::Draft06]).await);
}

#[tokio::test]
async fn draft_7_is_read() {
    // Python's parser does not support the combined field.
    let [node, _] = read(&[HeaderFormat::Draft07]).await;
    for (read, remaining) in node.iter().zip([4, 0]) {
        assert_eq!((&read["limit"], &read["remaining"]), (&json!(5), &json!(remaining)), "{read}");
        assert!(is_about(&read["seconds"], 26), "{read}");
    }
}

#[tokio::test]
async fn draft_11_is_read() {
    let [_, python] = read(&[HeaderFormat::Draft11]).await;
    let policy = json!([["api", 5, 128]]);
    assert_eq!(python[0]["named"], json!([policy, [["api", 4, 102]]]), "{}", python[0]);
    assert_eq!(python[1]["named"], json!([policy, [["api", 0, 26]]]), "{}", python[1]);
    assert_eq!(python.each_ref().map(|read| read["delay"].clone()), [Value::Null, json!(26.0)]);
}

#[tokio::test]
async fn custom_names_are_read() {
    // These names are those of Twitter's API, which both parsers know.
    const NAMES: FieldNames = FieldNames::new(
        "x-rate-limit-limit",
        "x-rate-limit-remaining",
        "x-rate-limit-reset",
        ResetFormat::EpochSeconds,
    );
    assert_read(&read(&[HeaderFormat::Custom(NAMES)]).await);
}

#[tokio::test]
async fn the_wait_in_milliseconds_is_read_by_an_sdk() {
    let sdk = |[_, python]: [[Value; 2]; 2]| python.map(|read| read["sdk"].clone());
    let fields = [HeaderFormat::Draft11, HeaderFormat::RetryAfterMs];
    assert_eq!(sdk(read(&fields).await), [Value::Null, json!(25.5)]);
    assert_eq!(sdk(read(&fields[..1]).await), [Value::Null, json!(26.0)]);
}

#[tokio::test]
async fn a_wait_is_reported_up_to_a_maximum() {
    let bound = Duration::from_millis(1_500);
    let all = [
        HeaderFormat::Draft11,
        HeaderFormat::RetryAfterMs,
        HeaderFormat::XRateLimit(ResetFormat::DeltaSeconds),
    ];
    let server = app(HttpResponder::new().headers(all).max_reported_wait(bound), 0).await;
    let answer = support::get(server.address, Version::Http1, "/").await;
    assert_eq!((answer.status.as_u16(), answer.retry_after()), (429, 2));
    assert_eq!(answer.header("retry-after-ms"), "1500");
    assert_eq!(answer.header("x-ratelimit-reset"), "2");
    assert_eq!(answer.header("ratelimit"), r#""api";r=0;t=2"#);
    let [read] = script("parse.py", &[&url(&server)]).await.try_into().unwrap();
    assert_eq!((&read["delay"], &read["sdk"]), (&json!(2.0), &json!(1.5)));
}

#[tokio::test]
async fn fields_may_be_limited_to_admitted_responses() {
    for (left, is_sent) in [(1, true), (0, false)] {
        let server = app(HttpResponder::new().send_headers(SendHeaders::OnAdmission), left).await;
        let answer = support::get(server.address, Version::Http1, "/").await;
        assert_eq!((answer.has("ratelimit"), answer.has("ratelimit-policy")), (is_sent, is_sent));
        assert_eq!(answer.has("retry-after"), !is_sent);
    }
}

#[tokio::test]
async fn of_several_drafts_the_last_one_is_sent_and_policies_without_names_are_a_list() {
    let both = (TokenBucket::new(quota()), TokenBucket::new(Quota::per_hour(100)));
    let layer = RateLimitLayer::new(Global, both).responder(HttpResponder::new().headers([
        HeaderFormat::Draft11,
        HeaderFormat::Draft06,
        HeaderFormat::Draft07,
    ]));
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await;
    let answer = support::get(server.address, Version::Http1, "/").await;
    assert_eq!(answer.header("ratelimit-policy"), "5;w=128, 100;w=3600");
    assert_eq!(answer.header("ratelimit"), "limit=5, remaining=4, reset=36");
    assert!(!answer.has("ratelimit-limit"));
}
