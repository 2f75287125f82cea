//! Over real sockets and, here and there, in real time. A program of its own, so that what keeps all processors busy does not run beside.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "axum")]
mod client_disconnect;
mod queue;
#[cfg(feature = "axum")]
mod streaming;
#[path = "../support/mod.rs"]
mod support;
