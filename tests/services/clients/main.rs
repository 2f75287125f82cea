//! Widely used clients against a real server: all of them get the responses that the limit makes.
#![cfg(feature = "axum")]

mod fields;
mod retries;
mod run;
#[path = "../../support/mod.rs"]
mod support;
mod uploads;
