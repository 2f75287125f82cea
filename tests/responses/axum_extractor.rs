//! axum handlers that extract the decision.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tower::ServiceExt;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingLog};
use tower_throttle::key::{Global, from_fn};
use tower_throttle::middleware::{Decisions, Shadow};
use tower_throttle::{Decision, HttpResponder, Quota, RateLimitLayer};

use crate::support::Answer;

const NOBODY: &str = "nobody limits";

async fn left(decision: Option<Decision>) -> String {
    let Some(decision) = decision else { return NOBODY.to_owned() };
    assert!(decision.is_allowed());
    format!("{} of {}", decision.remaining(), decision.limit())
}

async fn all(decisions: Decisions) -> String {
    let all: Vec<_> =
        decisions.iter().map(|(name, decision)| format!("{name} {}", decision.remaining())).collect();
    if all.is_empty() { NOBODY.to_owned() } else { all.join(", ") }
}

fn app() -> Router {
    Router::new().route("/", get(left)).route("/all", get(all))
}

async fn ask(app: &Router, path: &str) -> (u16, String) {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    let answer = Answer::read(app.clone().oneshot(request).await.unwrap()).await;
    (answer.status.as_u16(), answer.text().to_owned())
}

fn window(limit: u64) -> RateLimitLayer<Global, FixedWindow> {
    RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(limit)))
}

#[tokio::test]
async fn a_handler_is_given_the_decision() {
    let details = HttpResponder::new().insert_details(true);
    let app = app().layer(window(9).name("day").and(window(5).name("hour")).responder(details));
    assert_eq!(ask(&app, "/").await, (200, "4 of 5".to_owned()));
    assert_eq!(ask(&app, "/all").await, (200, "day 7, hour 3".to_owned()));
}

#[tokio::test]
async fn without_a_decision_a_handler_is_given_none_and_does_not_fail() {
    let no_key = from_fn(|_: &Request<Body>| None::<()>);
    let app_without_key = app().layer(RateLimitLayer::new(no_key, FixedWindow::new(Quota::per_hour(5))));
    let in_shadow = app().layer(window(5).shadow(&Shadow::on()));
    let untold = app().layer(window(5).responder(HttpResponder::new().insert_extension(false)));
    for app in [app(), app_without_key, in_shadow, untold] {
        assert_eq!(ask(&app, "/").await, (200, NOBODY.to_owned()));
        assert_eq!(ask(&app, "/all").await, (200, NOBODY.to_owned()));
    }
}

#[tokio::test]
async fn with_several_limits_it_is_the_most_pressing_one_wherever_it_is_placed() {
    let few = || window(3);
    let many = || RateLimitLayer::new(Global, SlidingLog::new(Quota::per_hour(9)));
    for app in [
        app().layer(few()).layer(many()),
        app().layer(many()).layer(few()),
        app().layer(few().and(many())),
        app().layer(many().and(few())),
    ] {
        assert_eq!(ask(&app, "/").await, (200, "2 of 3".to_owned()));
        assert_eq!(ask(&app, "/").await, (200, "1 of 3".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_how_long_its_call_was_queued() {
    async fn held(decision: Option<Decision>) -> String {
        format!("{:?}", decision.unwrap().delay())
    }
    let line = RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_second(4)).queue(3));
    let app = Router::new().route("/", get(held)).layer(line);
    let held = tokio::join!(ask(&app, "/"), ask(&app, "/"), ask(&app, "/"));
    assert_eq!([held.0.1, held.1.1, held.2.1], ["0ns", "250ms", "500ms"]);
}
