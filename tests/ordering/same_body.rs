//! Limited axum apps that keep axum's body type, so that layers that must not change the type of responses can contain
//! the limit.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{Route, get};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use tower::layer::util::Identity;
use tower::util::{BoxCloneSyncServiceLayer, option_layer};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{Concurrency, FixedWindow};
use tower_throttle::key::Global;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer};

async fn ask(app: &Router, method: Method) -> (StatusCode, String, Bytes) {
    let request = Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let kind = response.headers().get(CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap()).to_owned();
    (response.status(), kind, response.into_body().collect().await.unwrap().to_bytes())
}

async fn one_is_admitted_and_the_others_are_not(app: Router) {
    let (status, _, body) = ask(&app, Method::GET).await;
    assert_eq!((status, &*body), (StatusCode::OK, &b"hello"[..]));
    let (status, kind, body) = ask(&app, Method::GET).await;
    assert_eq!((status, &*kind), (StatusCode::TOO_MANY_REQUESTS, "application/problem+json"));
    assert!(body.starts_with(br#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded""#));
    let (status, _, body) = ask(&app, Method::HEAD).await;
    assert_eq!((status, body), (StatusCode::TOO_MANY_REQUESTS, Bytes::new()));
}

fn one_per_hour() -> FixedWindow {
    FixedWindow::new(Quota::per_hour(1))
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn a_limit_can_be_optional() {
    let limit = || RateLimitLayer::new(Global, one_per_hour()).responder(HttpResponder::new().same_body());
    one_is_admitted_and_the_others_are_not(hello().layer(option_layer(Some(limit())))).await;
    let joined = limit().and(RateLimitLayer::new(Global, one_per_hour()));
    one_is_admitted_and_the_others_are_not(hello().layer(option_layer(Some(joined)))).await;
    let unlimited = hello().layer(option_layer(Some(limit()).filter(|_| false)));
    for _ in 0..3 {
        assert_eq!(ask(&unlimited, Method::GET).await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_limit_can_be_boxed() {
    type Boxed = BoxCloneSyncServiceLayer<Route, Request, Response, Infallible>;

    let limit = RateLimitLayer::new(Global, one_per_hour()).responder(HttpResponder::new().same_body());
    one_is_admitted_and_the_others_are_not(hello().layer(Boxed::new(limit))).await;
    let unlimited = hello().layer(Boxed::new(Identity::new()));
    assert_eq!(ask(&unlimited, Method::GET).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_permit_is_held_until_the_body_has_ended() {
    let responder = HttpResponder::new().same_body();
    let layer = RateLimitLayer::new(Global, Concurrency::per_key(1)).responder(responder);
    let inner = service_fn(|_: Request| async { Ok::<_, Infallible>(Response::new(Body::from("hello"))) });
    let mut service = layer.layer(inner);
    let mut call = || service.call(Request::new(Body::empty()));
    let first = call().await.unwrap();
    assert_eq!((first.status(), first.body().size_hint().exact()), (StatusCode::OK, Some(5)));
    assert_eq!(call().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(call().await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_custom_rejection_has_the_body_that_its_function_gave_it() {
    let responder = HttpResponder::new().same_body().rejection_response(|rejection, _| {
        let mut response = Response::new(Body::from("later"));
        *response.status_mut() = rejection.status();
        response
    });
    let app = hello().layer(RateLimitLayer::new(Global, one_per_hour()).responder(responder));
    assert_eq!(ask(&app, Method::GET).await.0, StatusCode::OK);
    let (status, _, body) = ask(&app, Method::GET).await;
    assert_eq!((status, &*body), (StatusCode::TOO_MANY_REQUESTS, &b"later"[..]));
}
