//! Who is not limited.

mod condition;
mod grpc;
mod paths;
mod preflight;
mod unless;

pub use condition::Condition;
pub use grpc::{GrpcHealth, GrpcReflection};
pub use paths::Paths;
pub use preflight::Preflight;
pub use unless::Unless;
