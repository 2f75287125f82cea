//! Rejections byte by byte, in process and as one frame of a connection.

mod errors;
mod one_frame;
mod policies;
mod waits;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::Quota;
use tower_throttle::algorithm::TokenBucket;

use crate::frames::{EMPTY, call};
use crate::service::SAY;

fn per(limit: u64, period: Duration) -> TokenBucket {
    TokenBucket::new(Quota::per(limit, period).unwrap())
}

fn request() -> Request<Full<Bytes>> {
    let mut request = call(SAY, Some("application/grpc")).map(|()| Full::from(EMPTY));
    *request.version_mut() = http::Version::HTTP_2;
    request
}

type App = Response<Empty<Bytes>>;

/// Calls a service behind the layer. The service answers every request.
async fn through<L, S, B>(layer: &L) -> Response<B>
where
    L: Layer<tower::util::BoxCloneSyncService<Request<Full<Bytes>>, App, Infallible>, Service = S>,
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
{
    let inner = service_fn(|_| async { Ok(Response::new(Empty::new())) });
    layer.layer(tower::util::BoxCloneSyncService::new(inner)).oneshot(request()).await.unwrap()
}

/// Returns the headers of a rejection, which has no body and no trailers.
macro_rules! rejection {
    ($layer:expr) => {{
        let response = through(&$layer).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.body().is_end_stream() && response.body().size_hint().exact() == Some(0));
        let headers = response.into_parts().0.headers;
        assert_eq!(one(&headers, "content-type"), Some("application/grpc"));
        assert_eq!(one(&headers, "grpc-message"), Some("rate limit exceeded"));
        headers
    }};
}
pub(crate) use rejection;

/// Returns the headers of the rejection of the second of two calls.
macro_rules! second {
    ($layer:expr) => {{
        let layer = $layer;
        assert!(!through(&layer).await.headers().contains_key("grpc-status"));
        rejection!(layer)
    }};
}
pub(crate) use second;
