//! Joined layers with limits on different keys, which are decided together.

mod charges;
mod closed;
mod queued_and_settled;
mod servers;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tower::util::BoxCloneService;
use tower::{BoxError, ServiceExt};
use tower_throttle::Quota;

type Http = Request<Full<Bytes>>;
type App = BoxCloneService<Http, (u16, HeaderMap), BoxError>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, BoxError> {
    Ok(Response::new(Full::from("hello")))
}

fn get(key: &str) -> Http {
    Request::get("/").header("x-api-key", key).body(Full::default()).unwrap()
}

fn key_of(request: &Http) -> Option<String> {
    Some(request.headers()["x-api-key"].to_str().unwrap().to_owned())
}

macro_rules! limiter {
    ($store:expr, $name:expr, $algorithm:expr) => {
        $store.limiter($name, $algorithm).build().unwrap()
    };
}
pub(crate) use limiter;

/// A layer with a limit for each caller.
macro_rules! each {
    ($store:expr, $algorithm:expr) => {
        RateLimitLayer::with_limiter(from_fn(key_of), limiter!($store.clone(), "each", $algorithm))
            .name("each")
    };
}
pub(crate) use each;

/// A layer with a limit for all callers.
macro_rules! all {
    ($store:expr, $algorithm:expr) => {
        RateLimitLayer::with_limiter(Global, limiter!($store.clone(), "all", $algorithm)).name("all")
    };
}
pub(crate) use all;

macro_rules! app {
    ($layer:expr) => {
        App::new(
            $layer.layer(service_fn(hello)).map_response(|response: Response<_>| {
                (response.status().as_u16(), response.headers().clone())
            }),
        )
    };
}
pub(crate) use app;

async fn status(app: &App, key: &str) -> u16 {
    app.clone().oneshot(get(key)).await.unwrap().0
}

fn day(limit: u64) -> Quota {
    Quota::per_day(limit)
}
