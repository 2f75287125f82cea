//! Requests that are exempt from the limit.

mod grpc;
mod paths;
mod predicate;
mod preflight;
mod unless;

pub use grpc::{GrpcHealth, GrpcReflection};
pub use paths::Paths;
pub use predicate::RequestPredicate;
pub use preflight::Preflight;
pub use unless::Unless;
