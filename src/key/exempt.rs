//! Requests that are exempt from the limit, and the predicates that such requests match.

use std::fmt;
use std::sync::Arc;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, ORIGIN};
use http::{Method, Request};
use http_body::Body;

use super::{KeyError, KeyExtractor};

/// An extractor with exceptions: requests that match a predicate are not limited.
/// [`RateLimitLayer::unless`](crate::RateLimitLayer::unless) creates it.
#[derive(Clone, Copy)]
pub struct Unless<K, C> {
    key: K,
    condition: C,
}

impl<K, C> Unless<K, C> {
    /// Creates an extractor with the keys of `key`. Requests that match `condition` are not limited, even if they have
    /// no key. `key` is called for such requests, too, so the [deny list](crate::key::PeerIp::deny) of `key` applies.
    pub fn new(key: K, condition: C) -> Self {
        Self { key, condition }
    }
}

impl<Req, K: KeyExtractor<Req>, C: RequestPredicate<Req>> KeyExtractor<Req> for Unless<K, C> {
    type Key = K::Key;

    fn extract(&self, request: &Req) -> Result<Option<K::Key>, KeyError> {
        match self.key.extract(request) {
            Err(error) if error.is_forbidden() => Err(error),
            _ if self.condition.matches(request) => Ok(None),
            key => key,
        }
    }
}

impl<K: fmt::Debug, C> fmt::Debug for Unless<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unless").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A predicate on requests. Closures `Fn(&Req) -> bool` implement this trait, and so do types of this module such as
/// `Paths`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no condition on requests of type `{Req}`",
    note = "for paths take `key::Paths::new([\"/health\"])`; for others a closure: `|request: &{Req}| ..`"
)]
pub trait RequestPredicate<Req> {
    /// Returns whether the request matches.
    fn matches(&self, request: &Req) -> bool;
}

// The attribute lets the compiler report what is no condition by the message of the trait, not as a missing closure.
#[diagnostic::do_not_recommend]
impl<Req, F: Fn(&Req) -> bool> RequestPredicate<Req> for F {
    fn matches(&self, request: &Req) -> bool {
        self(request)
    }
}

/// A predicate for requests of some paths, such as health checks and metrics.
///
/// The path is compared byte by byte, as the client sent it: nothing is decoded, and no slash is added or removed.
/// Anyone can request these paths, so their handlers should be cheap.
///
/// In axum (feature `axum`), the predicate reads the path that the client sent from axum's `OriginalUri`. So inside
/// `Router::nest("/api", ..)`, write each path with the prefix: `/api/login`. In two cases, the predicate compares a
/// path that the client did not send: if the path is rewritten before the outermost router is called, or if a router
/// other than axum's strips a prefix.
#[derive(Clone, Debug)]
pub struct Paths {
    paths: Arc<[Box<str>]>,
}

impl Paths {
    /// Creates a predicate for these paths, each with its leading slash.
    ///
    /// # Panics
    ///
    /// Panics if a path does not begin with a slash. Only unusual requests, such as `OPTIONS *`, have such a path.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::key::Paths;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100))
    ///     .unless(Paths::new(["/health", "/metrics"]));
    /// ```
    #[must_use]
    #[track_caller]
    pub fn new<I>(paths: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let path = |path: I::Item| {
            let path = path.as_ref();
            assert!(path.starts_with('/'), "the path {path:?} must begin with a slash");
            path.into()
        };
        Self { paths: paths.into_iter().map(path).collect() }
    }
}

impl<B> RequestPredicate<Request<B>> for Paths {
    fn matches(&self, request: &Request<B>) -> bool {
        let sent = sent_path(request);
        self.paths.iter().any(|path| **path == *sent)
    }
}

/// Returns the path that the client sent, including the prefixes that routers have stripped.
fn sent_path<B>(request: &Request<B>) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions().get::<axum::extract::OriginalUri>() {
        return original.0.path();
    }
    request.uri().path()
}

/// A predicate for CORS preflights: `OPTIONS` requests with `Origin` and `Access-Control-Request-Method` (the Fetch
/// standard, section 4.8). A request with a body, a `Content-Type` or an `X-HTTP-Method-Override` does not match. If a
/// layer outside the limit has changed the body, so that the body does not tell whether it is empty, the request
/// does not match either.
///
/// Before some cross-origin requests, a browser sends a preflight without credentials. If the preflight is rejected,
/// the browser reports a network error to the page. A `CorsLayer` outside the limit answers preflights before the
/// limit counts them. This predicate is for services that answer preflights inside the limit.
///
/// Anyone can send preflights. So do not use this predicate if a preflight could reach a handler that treats the
/// preflight as a call (`any(..)`, a fallback, a tonic server). Make sure that preflights are answered at little cost.
///
/// ```
/// use tower_throttle::key::Preflight;
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).unless(Preflight);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Preflight;

impl<B: Body> RequestPredicate<Request<B>> for Preflight {
    fn matches(&self, request: &Request<B>) -> bool {
        let headers = request.headers();
        request.method() == Method::OPTIONS
            && headers.contains_key(ORIGIN)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            // Some servers treat a request of any method as a call if the request has a body.
            && (request.body().is_end_stream() || request.body().size_hint().upper() == Some(0))
            && !headers.contains_key(CONTENT_TYPE)
            // Other servers take the method from this header.
            && !headers.contains_key("x-http-method-override")
    }
}

/// A predicate for calls of the gRPC health service, `grpc.health.v1.Health`: `Check`, `List` and `Watch`.
///
/// A client whose `Watch` is rejected considers the server unhealthy. Anyone can call these methods and keep a `Watch`
/// open, so bound the number of streams of a connection in the server's configuration, or limit the calls in progress
/// by another layer.
///
/// The predicate compares the path that the layer receives. Inside axum's `nest`, this path lacks the prefix. Suppose
/// that a service that is not gRPC is nested. A caller can then send that service a request whose path, without the
/// prefix, is a path of the health service, and this request is not limited. To prevent this, put the layer around gRPC
/// services only.
///
/// ```
/// use tower_throttle::key::{GrpcHealth, GrpcReflection};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let layer =
///     RateLimitLayer::per_ip(Quota::per_second(10)).unless(GrpcHealth).unless(GrpcReflection);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GrpcHealth;

/// A predicate for calls of the gRPC reflection service, `grpc.reflection.v1.ServerReflection` or its version
/// `v1alpha`.
///
/// Anyone can make these calls, and their responses are large. So use this predicate only on a server that the public
/// cannot reach. The path is compared in the same way as by [`GrpcHealth`].
#[derive(Clone, Copy, Debug)]
pub struct GrpcReflection;

impl<B> RequestPredicate<Request<B>> for GrpcHealth {
    fn matches(&self, request: &Request<B>) -> bool {
        let method = request.uri().path().strip_prefix("/grpc.health.v1.Health/");
        matches!(method, Some("Check" | "List" | "Watch"))
    }
}

impl<B> RequestPredicate<Request<B>> for GrpcReflection {
    fn matches(&self, request: &Request<B>) -> bool {
        matches!(
            request.uri().path(),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
                | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Full;

    #[test]
    fn a_path_is_compared_exactly() {
        let paths = Paths::new(["/health", "/ready"]);
        let matches = |uri: &str| paths.matches(&Request::builder().uri(uri).body(()).unwrap());
        for uri in ["/health", "/ready?verbose", "http://host/health"] {
            assert!(matches(uri), "{uri}");
        }
        for uri in ["/health/", "//health", "/Health", "/%68ealth", "/healthy", "/", "/x/health", "/health;x"]
        {
            assert!(!matches(uri), "{uri}");
        }
    }

    #[test]
    #[should_panic(expected = "must begin with a slash")]
    fn an_impossible_path_panics() {
        let _ = Paths::new(["health"]);
    }

    #[test]
    fn a_preflight_has_all_three_marks() {
        let with = |method: &str, headers: &[&str], body: &'static [u8]| {
            let mut request = Request::builder().method(method);
            for name in headers {
                request = request.header(*name, "x");
            }
            Preflight.matches(&request.body(Full::<Bytes>::from(body)).unwrap())
        };
        let request = |method: &str, headers: &[&str]| with(method, headers, b"");
        assert!(request("OPTIONS", &["origin", "access-control-request-method"]));
        assert!(!request("OPTIONS", &["origin", "access-control-request-method", "content-type"]));
        let overriding = ["origin", "access-control-request-method", "x-http-method-override"];
        assert!(!request("OPTIONS", &overriding));
        assert!(!with("OPTIONS", &["origin", "access-control-request-method"], b"\0"));
        assert!(!request("GET", &["origin", "access-control-request-method"]));
        assert!(!request("OPTIONS", &["origin"]));
        assert!(!request("OPTIONS", &["access-control-request-method"]));
    }

    #[test]
    fn calls_are_matched_by_service() {
        let request = |path: &str| Request::builder().uri(path).body(()).unwrap();
        assert!(GrpcHealth.matches(&request("/grpc.health.v1.Health/Check")));
        assert!(!GrpcHealth.matches(&request("/grpc.health.v1.Healthy/Check")));
        assert!(!GrpcHealth.matches(&request("/my.Service/Check")));
        assert!(!GrpcHealth.matches(&request("/grpc.health.v1.Health/../my.Service/Login")));
        for version in ["v1", "v1alpha"] {
            let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
            assert!(GrpcReflection.matches(&request(&path)));
            assert!(!GrpcHealth.matches(&request(&path)));
        }
        assert!(!GrpcReflection.matches(&request("/grpc.reflection.v2.ServerReflection/X")));
    }
}
