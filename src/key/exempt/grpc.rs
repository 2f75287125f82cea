use http::Request;

use super::predicate::RequestPredicate;

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
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).unless(GrpcHealth).unless(GrpcReflection);
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
