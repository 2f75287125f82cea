//! Keys from the target of a request: the route, the method, the host, the gRPC service.

mod grpc;
mod host;
mod known_names;
mod method;
#[cfg(feature = "axum")]
mod route;

pub use grpc::{GrpcMethod, GrpcService};
pub use host::Host;
pub use method::{Method, MethodKey};
#[cfg(feature = "axum")]
pub use route::{Route, RouteKey};
