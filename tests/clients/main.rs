//! Clients that many programs use, against a real server: all of them get the answers that the limit gives.
#![cfg(feature = "axum")]

mod fields;
mod retries;
mod run;
#[path = "../support/mod.rs"]
mod support;
mod uploads;
