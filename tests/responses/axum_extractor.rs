//! axum handlers that extract the decision.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tower::ServiceExt;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingLog};
use tower_throttle::key::{Global, from_fn};
use tower_throttle::middleware::Shadow;
use tower_throttle::{Decision, HttpResponder, Quota, RateLimitLayer};

use crate::support::Answer;

async fn left(decision: Decision) -> String {
    assert!(decision.is_allowed());
    format!("{} of {}", decision.remaining(), decision.limit())
}

async fn perhaps(decision: Option<Decision>) -> String {
    decision.map_or("nobody limits".to_owned(), |decision| decision.to_string())
}

fn app() -> Router {
    Router::new().route("/", get(left)).route("/perhaps", get(perhaps))
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
    let app = app().layer(window(5));
    assert_eq!(ask(&app, "/").await, (200, "4 of 5".to_owned()));
    assert_eq!(ask(&app, "/perhaps").await, (200, "allowed, 3 of 5 left".to_owned()));
}

#[tokio::test]
async fn without_a_layer_the_error_names_the_fix() {
    let (status, text) = ask(&app(), "/").await;
    assert_eq!(status, 500);
    assert!(text.contains("`RateLimitLayer`") && text.contains("`Option<Decision>`"), "{text}");
    assert_eq!(ask(&app(), "/perhaps").await, (200, "nobody limits".to_owned()));
    // There is also no decision for requests that are not limited, and none if the layer does not insert the extension.
    let no_key = from_fn(|_: &Request<Body>| None::<()>);
    let app_without_key = app().layer(RateLimitLayer::new(no_key, FixedWindow::new(Quota::per_hour(5))));
    let in_shadow = app().layer(window(5).shadow(&Shadow::new()));
    let untold = app().layer(window(5).responder(HttpResponder::new().insert_extension(false)));
    for app in [app_without_key, in_shadow, untold] {
        assert_eq!(ask(&app, "/").await.0, 500);
        assert_eq!(ask(&app, "/perhaps").await, (200, "nobody limits".to_owned()));
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
    async fn held(decision: Decision) -> String {
        format!("{:?}", decision.delay())
    }
    let line = RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_second(4)).queue(3));
    let app = Router::new().route("/", get(held)).layer(line);
    let held = tokio::join!(ask(&app, "/"), ask(&app, "/"), ask(&app, "/"));
    assert_eq!([held.0.1, held.1.1, held.2.1], ["0ns", "250ms", "500ms"]);
}
