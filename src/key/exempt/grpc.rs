use http::Request;

use super::condition::Condition;

/// Calls of the gRPC health service, `grpc.health.v1.Health`.
#[derive(Clone, Copy, Debug)]
pub struct GrpcHealth;

/// Calls of the gRPC reflection service, `grpc.reflection.v1.ServerReflection`, and of its `v1alpha`.
#[derive(Clone, Copy, Debug)]
pub struct GrpcReflection;

impl<B> Condition<Request<B>> for GrpcHealth {
    fn holds(&self, request: &Request<B>) -> bool {
        request.uri().path().starts_with("/grpc.health.v1.Health/")
    }
}

impl<B> Condition<Request<B>> for GrpcReflection {
    fn holds(&self, request: &Request<B>) -> bool {
        let path = request.uri().path();
        path.starts_with("/grpc.reflection.v1.ServerReflection/")
            || path.starts_with("/grpc.reflection.v1alpha.ServerReflection/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_told_by_the_service() {
        let request = |path: &str| Request::builder().uri(path).body(()).unwrap();
        assert!(GrpcHealth.holds(&request("/grpc.health.v1.Health/Check")));
        assert!(!GrpcHealth.holds(&request("/grpc.health.v1.Healthy/Check")));
        assert!(!GrpcHealth.holds(&request("/my.Service/Check")));
        for version in ["v1", "v1alpha"] {
            let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
            assert!(GrpcReflection.holds(&request(&path)));
            assert!(!GrpcHealth.holds(&request(&path)));
        }
        assert!(!GrpcReflection.holds(&request("/grpc.reflection.v2.ServerReflection/X")));
    }
}
