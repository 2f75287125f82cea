//! Whose request it is: the peer's or, behind proxies, their client's.
//!
//! Tables to read, a naive model of the rules that random requests are held against, and clients that lie.

mod adapter;
mod differential;
mod generators;
mod large_headers;
#[path = "model.rs"]
mod model;
mod prefixes;
#[path = "../support/random.rs"]
mod seed;
mod spoofing;
mod table;
