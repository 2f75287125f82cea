//! Reports of several limits to clients. Each policy is reported once, with a name of its own, and the longest wait is
//! reported.

mod policies;
mod waits;

use std::collections::HashSet;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tower::ServiceExt;

use crate::support::Answer;
use crate::support::limiter;

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

async fn ask(app: &Router) -> Answer {
    Answer::read(app.clone().oneshot(Request::new(Body::empty())).await.unwrap()).await
}

/// Returns the name, quota and window of each policy, in order.
fn policies(answer: &Answer) -> Vec<(String, u64, u64)> {
    let items = answer.items("ratelimit-policy").into_iter();
    let policies: Vec<_> = items.map(|item| (item.name.clone(), item.get("q"), item.get("w"))).collect();
    let names: HashSet<_> = policies.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), policies.len(), "a name twice: {answer:?}");
    policies
}

/// Returns the name, the remaining units, and the window of each reported limit.
fn left(answer: &Answer) -> Vec<(String, u64, Option<u64>)> {
    let items = answer.items("ratelimit").into_iter();
    items.map(|item| (item.name.clone(), item.get("r"), item.parameters.get("t").copied())).collect()
}
