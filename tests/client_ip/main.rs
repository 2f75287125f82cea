//! The address of the client of a request: the peer's or, behind proxies, their client's.
//!
//! Tables to read, a naive model that random requests are compared with, and clients that forge headers.

mod adapter;
mod differential;
mod generators;
mod large_headers;
#[path = "model.rs"]
mod model;
mod prefixes;
#[path = "../support/scale.rs"]
mod scale;
#[path = "../support/random.rs"]
mod seed;
mod spoofing;
mod table;
