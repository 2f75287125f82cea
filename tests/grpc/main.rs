//! What gRPC callers get: every byte of a refusal, and clients of other makes that read it and come back when told.
#![cfg(feature = "tonic")]

mod browser;
mod bytes;
mod client;
mod details;
mod modes;
mod protobuf;
#[cfg(unix)]
mod python;
mod service;
#[path = "../support/mod.rs"]
mod support;
mod wire;
