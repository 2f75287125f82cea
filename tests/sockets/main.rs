//! Tests over real sockets and, in a few places, in real time. They are a program of their own, so that tests that keep
//! all processors busy do not run at the same time.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "axum")]
mod client_disconnect;
#[cfg(feature = "axum")]
mod fair;
#[cfg(feature = "axum")]
mod http2_uploads;
mod queue;
mod redis_fixture;
#[cfg(feature = "axum")]
mod spellings;
#[cfg(feature = "axum")]
mod streaming;
#[path = "../support/mod.rs"]
mod support;
