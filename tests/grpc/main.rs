//! Responses to gRPC callers: every byte of a rejection, and clients of other implementations that retry after the
//! reported wait.
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
