//! What gRPC callers get: every byte of a refusal, and clients of other makes that read it and come back when told.
#![cfg(feature = "tonic")]

mod client;
mod details;
mod detection;
mod frames;
mod grpc_web;
mod protobuf;
#[cfg(unix)]
mod python;
mod service;
#[path = "../support/mod.rs"]
mod support;
mod wire_vectors;
