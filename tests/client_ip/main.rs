//! The address of the client of a request. Without proxies, this is the peer's address.
//!
//! There are readable tables, a naive model that is compared with the crate on random requests, and clients that forge
//! headers.

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
