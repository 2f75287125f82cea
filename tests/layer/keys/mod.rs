//! Keys through the layer: users, routes, callers that are exempt or forbidden, and requests without a key.

mod distinguished;
mod forbidden_or_exempt;
mod missing;
#[cfg(feature = "axum")]
mod routes;
mod unauthorized;

use std::convert::Infallible;
use std::net::IpAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::Quota;
use tower_throttle::algorithm::TokenBucket;

pub(crate) type Http = Request<Full<Bytes>>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

pub(crate) fn get(path: &str) -> Http {
    Request::get(path).body(Full::default()).unwrap()
}

/// Returns a request from a peer.
pub(crate) fn from(peer: &str) -> Http {
    with_peer(get("/"), peer)
}

pub(crate) fn with_peer(mut request: Http, peer: &str) -> Http {
    request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
    request
}

pub(crate) fn with(mut request: Http, name: &'static str, value: &str) -> Http {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

/// Returns a limit that admits `limit` calls at once, and no more calls while the test runs.
pub(crate) fn at_once(limit: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_day(limit))
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

pub(crate) async fn ask<L>(layer: &L, request: Http) -> Answer
where
    L: Layer<tower::util::BoxCloneSyncService<Http, Response<Full<Bytes>>, Infallible>>,
    L::Service: Service<Http, Response = Response<tower_throttle::middleware::ResponseBody<Full<Bytes>>>>,
    <L::Service as Service<Http>>::Error: std::fmt::Debug,
{
    let service = layer.layer(tower::util::BoxCloneSyncService::new(service_fn(hello)));
    let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// Returns the statuses of requests, one after another.
macro_rules! statuses {
    ($layer:expr, $($request:expr),+ $(,)?) => {{
        let layer = &$layer;
        [$($crate::keys::ask(layer, $request).await.status),+]
    }};
}
pub(crate) use statuses;
