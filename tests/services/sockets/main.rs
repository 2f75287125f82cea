//! Tests over real sockets and, in a few places, in real time. This is a separate program, so that tests that keep all processors busy
//! do not run beside it.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "axum")]
mod client_disconnect;
mod queue;
mod redis_fixture;
#[cfg(feature = "axum")]
mod streaming;
#[path = "../../support/mod.rs"]
mod support;
