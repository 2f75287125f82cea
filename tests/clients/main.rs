//! Widely used clients and a real server. All these clients understand the responses of the limit.
#![cfg(feature = "axum")]

mod fields;
mod retries;
mod run;
#[path = "../support/mod.rs"]
mod support;
mod uploads;
