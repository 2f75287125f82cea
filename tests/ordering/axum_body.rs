//! Limits whose responses have axum's body, so that layers that must not change the type of responses can contain the
//! limit.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, Route, get};
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{Method, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use tower::layer::util::Identity;
use tower::util::{BoxCloneSyncServiceLayer, option_layer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;
use tower_http::trace::TraceLayer;
use tower_throttle::algorithm::{Concurrency, FixedWindow};
use tower_throttle::key::Global;
use tower_throttle::middleware::{Rejection, ResponseBody};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer};

use crate::{Fed, data};

/// A layer of an axum app that can be stored in a field or a list, whatever it contains.
type Boxed = BoxCloneSyncServiceLayer<Route, Request, Response, Infallible>;

fn get_root() -> Request {
    Request::builder().uri("/").header(ACCEPT_ENCODING, "gzip").body(Body::empty()).unwrap()
}

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

async fn all_are_admitted(app: Router) {
    for _ in 0..3 {
        assert_eq!(ask(&app, Method::GET).await.0, StatusCode::OK);
    }
}

/// A limit of one request per hour.
fn one_per_hour() -> RateLimitLayer<Global, FixedWindow> {
    RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(1)))
}

fn handler() -> MethodRouter {
    get(|| async { "hello" })
}

fn hello() -> Router {
    Router::new().route("/", handler())
}

fn around(route: MethodRouter) -> Router {
    Router::new().route("/", route)
}

#[tokio::test]
async fn a_limit_can_be_optional() {
    let limit = || one_per_hour().axum_body();
    for app in [
        hello().layer(option_layer(Some(limit()))),
        hello().layer(option_layer(Some(limit().and(one_per_hour())))),
        hello().layer(option_layer(Some(one_per_hour().and(one_per_hour()).axum_body()))),
        hello().route_layer(option_layer(Some(limit()))),
        around(handler().layer(option_layer(Some(limit())))),
        around(handler().route_layer(option_layer(Some(limit())))),
        hello().layer(ServiceBuilder::new().layer(CompressionLayer::new()).option_layer(Some(limit()))),
    ] {
        one_is_admitted_and_the_others_are_not(app).await;
    }
    all_are_admitted(hello().layer(option_layer(Some(limit()).filter(|_| false)))).await;
}

#[tokio::test]
async fn a_limit_can_be_boxed() {
    let joined = || one_per_hour().and(one_per_hour()).axum_body();
    for app in [
        hello().layer(Boxed::new(one_per_hour().axum_body())),
        hello().layer(Boxed::new(joined())),
        hello().route_layer(Boxed::new(joined())),
        around(handler().layer(Boxed::new(joined()))),
        around(handler().route_layer(Boxed::new(joined()))),
    ] {
        one_is_admitted_and_the_others_are_not(app).await;
    }
    all_are_admitted(hello().layer(Boxed::new(Identity::new()))).await;
}

#[tokio::test]
async fn a_list_can_contain_different_limits() {
    let by_function =
        HttpResponder::new().rejection_response(|rejection, _| (rejection.status(), "later").into_response());
    let limits = vec![
        Boxed::new(RateLimitLayer::new(Global, Concurrency::per_key(9)).axum_body()),
        Boxed::new(one_per_hour().responder(by_function).axum_body()),
        Boxed::new(one_per_hour().axum_body()),
    ];
    one_is_admitted_and_the_others_are_not(limits.into_iter().fold(hello(), Router::layer)).await;
}

#[tokio::test]
async fn a_limit_works_wherever_it_did_with_its_own_body() {
    let limit = || one_per_hour().axum_body();
    for app in [
        hello().layer(limit()),
        hello().route_layer(limit()),
        around(handler().layer(limit())),
        around(handler().route_layer(limit())),
        hello().layer((TraceLayer::new_for_http(), limit())),
    ] {
        one_is_admitted_and_the_others_are_not(app).await;
    }
}

/// Outside of these layers, the inner body is not axum's.
#[tokio::test]
async fn a_limit_works_outside_of_tracing_and_compression() {
    let stack = || {
        let compression = CompressionLayer::new().compress_when(SizeAbove::new(1));
        (one_per_hour().axum_body(), TraceLayer::new_for_http(), compression)
    };
    for app in [
        hello().layer(stack()),
        hello().layer(ServiceBuilder::new().layer(stack())),
        hello().layer(Boxed::new(stack())),
        hello().layer(option_layer(Some(stack()))),
        around(handler().layer(stack())),
        around(handler().route_layer(Boxed::new(stack()))),
    ] {
        let response = app.clone().oneshot(get_root()).await.unwrap();
        assert_eq!(
            (response.status(), &response.headers()[CONTENT_ENCODING]),
            (StatusCode::OK, &"gzip".parse().unwrap())
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body[..2], [0x1f, 0x8b], "the magic number of gzip");
        let (status, kind, _) = ask(&app, Method::GET).await;
        assert_eq!((status, &*kind), (StatusCode::TOO_MANY_REQUESTS, "application/problem+json"));
    }
}

#[tokio::test]
async fn a_permit_is_held_until_the_body_has_ended() {
    let one = || RateLimitLayer::new(Global, Concurrency::per_key(1));
    let inner = || service_fn(|_: Request| async { Ok::<_, Infallible>(Response::new(Body::from("hello"))) });
    let other = || service_fn(|_: Request| async { Ok::<_, Infallible>(Response::new(Full::from("hello"))) });
    for service in [
        one().axum_body().layer(inner()).boxed_clone(),
        one().axum_body().layer(other()).boxed_clone(),
        one().and(one()).axum_body().layer(other()).boxed_clone(),
    ] {
        let call = || service.clone().oneshot(Request::new(Body::empty()));
        let first = call().await.unwrap();
        assert_eq!((first.status(), first.body().size_hint().exact()), (StatusCode::OK, Some(5)));
        assert_eq!(call().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "hello");
        let dropped = call().await.unwrap();
        assert_eq!(dropped.status(), StatusCode::OK);
        drop(dropped);
        assert_eq!(call().await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_permit_in_a_router_is_held_until_the_body_has_ended() {
    let (feeds, bodies) = (0..2).map(|_| Fed::new()).unzip::<_, _, Vec<_>, Vec<_>>();
    let bodies = std::sync::Arc::new(std::sync::Mutex::new(bodies));
    let route = get(move || async move { Body::new(bodies.lock().unwrap().pop().unwrap()) });
    let in_progress = RateLimitLayer::new(Global, Concurrency::per_key(1)).axum_body();
    let app = around(route).layer(option_layer(Some(in_progress)));
    let call = || app.clone().oneshot(get_root());
    for feed in feeds.into_iter().rev() {
        let mut first = call().await.unwrap().into_body();
        feed.send(data("hello")).unwrap();
        assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
        assert_eq!(call().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        drop(feed);
        assert!(first.frame().await.is_none());
    }
}

#[tokio::test]
async fn a_custom_rejection_has_the_body_that_its_function_gave_it() {
    let responder = || {
        HttpResponder::new().rejection_response(|rejection: &Rejection<'_>, _| {
            let mut response = Response::new(Body::from("later"));
            *response.status_mut() = rejection.status();
            response
        })
    };
    let compressed = (one_per_hour().responder(responder()).axum_body(), CompressionLayer::new());
    for app in [
        hello().layer(one_per_hour().responder(responder().axum_body())),
        hello().layer(one_per_hour().responder(responder()).axum_body()),
        // The function's body is axum's, although the body of the service is another.
        hello().layer(compressed),
    ] {
        assert_eq!(ask(&app, Method::GET).await.0, StatusCode::OK);
        let (status, kind, body) = ask(&app, Method::GET).await;
        assert_eq!((status, &*kind, &*body), (StatusCode::TOO_MANY_REQUESTS, "", &b"later"[..]));
        assert_eq!(ask(&app, Method::HEAD).await.2, Bytes::new());
    }
}

#[tokio::test]
async fn a_body_and_an_observer_of_rejections_are_set_in_any_order() {
    let (rejections, counted) = std::sync::mpsc::channel();
    let observe = move |rejection: &Rejection<'_>, _: &Request| {
        rejections.send(rejection.status()).unwrap();
    };
    let joined = || one_per_hour().and(one_per_hour());
    for app in [
        hello().layer(option_layer(Some(one_per_hour().on_reject(observe.clone()).axum_body()))),
        hello().layer(option_layer(Some(one_per_hour().axum_body().on_reject(observe.clone())))),
        hello().layer(option_layer(Some(joined().on_reject(observe.clone()).axum_body()))),
        hello().layer(option_layer(Some(joined().axum_body().on_reject(observe.clone())))),
    ] {
        one_is_admitted_and_the_others_are_not(app).await;
        assert_eq!(counted.try_iter().collect::<Vec<_>>(), [StatusCode::TOO_MANY_REQUESTS; 2]);
    }
}

/// Returns the body of the response to a call.
async fn body_of<S, B>(service: S) -> B
where
    S: Service<Request, Response = Response<B>, Error = Infallible>,
{
    service.oneshot(get_root()).await.unwrap().into_body()
}

#[tokio::test]
async fn the_body_stays_when_a_layer_is_joined() {
    let inner = || service_fn(|_: Request| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let _: ResponseBody<Body> = body_of(one_per_hour().and(one_per_hour()).layer(inner())).await;
    let _: Body = body_of(one_per_hour().axum_body().and(one_per_hour()).layer(inner())).await;
    let by_responder = one_per_hour().responder(HttpResponder::new().axum_body());
    let _: Body = body_of(by_responder.and(one_per_hour()).layer(inner())).await;
}
